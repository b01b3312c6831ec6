"""Streams of structs: a checked connection, and queues.

A transfer happens in a cycle in which `valid` and `ready` are both high; `valid` never waits for
`ready` (RFC 61). Every queue says whether it is `empty`, since a node that holds nothing is not
evaluated.
"""

from amaranth.hdl import Module, Shape, ShapeCastable, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Queue", "connect", "same_shape", "skid"]


def _fields(shape):
    """(key, field) of a struct or layout; None for a scalar or an enumeration."""
    try:
        return list(data.Layout.cast(shape))
    except TypeError:
        return None


def same_shape(left, right):
    """Whether two stream payloads have the same layout, not only the same width."""
    if left is right:
        return True
    left_fields, right_fields = _fields(left), _fields(right)
    if left_fields is not None and right_fields is not None:
        # Amaranth takes nested fields of equal width for equal.
        return len(left_fields) == len(right_fields) and all(
            (key, one.offset) == (other_key, other.offset) and same_shape(one.shape, other.shape)
            for (key, one), (other_key, other) in zip(left_fields, right_fields, strict=True)
        )
    if isinstance(left, ShapeCastable) or isinstance(right, ShapeCastable):
        return left == right
    return Shape.cast(left) == Shape.cast(right)


def connect(m, source, sink):
    """Joins two streams; raises `TypeError` where their payloads differ in layout."""
    left, right = (side.signature.members["payload"].shape for side in (source, sink))
    if not same_shape(left, right):
        raise TypeError(f"stream of {left!r} connected to stream of {right!r}")
    m.d.comb += [
        sink.payload.eq(source.payload),
        sink.valid.eq(source.valid),
        source.ready.eq(sink.ready),
    ]


class Queue(wiring.Component):
    """First-in first-out buffer of a struct, first word falls through.

    Parameters
    ----------
    shape : payload shape
    depth : int
        Entries, a power of two, at least 2.

    Members
    -------
    i, o : streams of `shape`
    level : Out
        Entries held, 0 to depth.
    empty : Out(1)
        Nothing held.

    Timing
    ------
    One entry in and one out per cycle; an entry is offered in the cycle after it came in. The
    memory is read asynchronously (a register file or LUT RAM).
    """

    def __init__(self, shape, depth):
        if depth < 2 or depth & (depth - 1):
            raise ValueError(f"queue depth must be a power of two from 2, not {depth}")
        self._shape, self.depth = shape, depth
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
                "empty": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = memory.Memory(shape=self._shape, depth=self.depth, init=[])
        write, read = store.write_port(), store.read_port(domain="comb")
        head, tail = Signal(range(self.depth)), Signal(range(self.depth))

        m.d.comb += [
            self.i.ready.eq(self.level != self.depth),
            write.en.eq(self.i.valid & self.i.ready),
            write.addr.eq(tail),
            write.data.eq(self.i.payload),
            read.addr.eq(head),
            self.o.payload.eq(read.data),
            self.o.valid.eq(self.level != 0),
            self.empty.eq(self.level == 0),
        ]
        with m.If(write.en):
            m.d.sync += tail.eq(tail + 1)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += head.eq(head + 1)
        m.d.sync += self.level.eq(self.level + write.en - (self.o.valid & self.o.ready))
        return m


def skid(shape):
    """A queue of two: breaks a combinational path at full throughput."""
    return Queue(shape, 2)
