"""A named latency: what goes in comes out a set number of cycles later."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["NEVER", "NOW_BITS", "DelayLine", "earliest"]

#: Width of the cycle counter; all ones means never.
NOW_BITS = 48
NEVER = (1 << NOW_BITS) - 1


def earliest(m, dues):
    """The smallest of several due cycles, as a tree of minima."""
    dues = list(dues)
    while len(dues) > 1:
        pairs = [dues[i : i + 2] for i in range(0, len(dues), 2)]
        dues = []
        for pair in pairs:
            if len(pair) == 1:
                dues.append(pair[0])
            else:
                least = Signal(NOW_BITS)
                m.d.comb += least.eq(Mux(pair[0] < pair[1], pair[0], pair[1]))
                dues.append(least)
    return dues[0]


class DelayLine(wiring.Component):
    """Holds each item for `latency` cycles, in order.

    Parameters
    ----------
    shape : payload shape
    depth : int
        Items in flight, a power of two; for one item per cycle it must exceed the latency in force.

    Members
    -------
    i, o : streams
    now : In
        Cycle number.
    latency : In(16)
        Cycles between acceptance at `i` and the first cycle at which `o` may be valid; 0 and 1 both
        mean the next cycle.
    quiet : Out(1)
        Nothing changes before `due` unless an item comes in.
    due : Out
        Cycle from which the oldest item is offered; `NEVER` if there is none.

    Timing
    ------
    One item per cycle at any latency below the depth. Items leave in order and as late as `o.ready`
    wants.
    """

    def __init__(self, shape, depth):
        if depth < 2 or depth & (depth - 1):
            raise ValueError(f"delay line depth must be a power of two from 2, not {depth}")
        self._shape, self.depth = shape, depth
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "now": In(NOW_BITS),
                "latency": In(16),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        entry = data.StructLayout({"due": NOW_BITS, "item": self._shape})
        m.submodules.store = store = memory.Memory(shape=entry, depth=self.depth, init=[])
        write, read = store.write_port(), store.read_port(domain="comb")
        head, tail = Signal(range(self.depth)), Signal(range(self.depth))
        level = Signal(range(self.depth + 1))
        taken = Signal()

        m.d.comb += [
            self.i.ready.eq(level != self.depth),
            write.en.eq(self.i.valid & self.i.ready),
            write.addr.eq(tail),
            write.data.due.eq(self.now + self.latency),
            write.data.item.eq(self.i.payload),
            read.addr.eq(head),
            self.o.payload.eq(read.data.item),
            self.o.valid.eq((level != 0) & (read.data.due <= self.now)),
            taken.eq(self.o.valid & self.o.ready),
            self.due.eq(Mux(level != 0, read.data.due, NEVER)),
            self.quiet.eq(~self.o.valid),
        ]
        with m.If(write.en):
            m.d.sync += tail.eq(tail + 1)
        with m.If(taken):
            m.d.sync += head.eq(head + 1)
        m.d.sync += level.eq(level + write.en - taken)
        return m
