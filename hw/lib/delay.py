"""A named latency: what goes in comes out a set number of cycles later."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
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
        head, tail = Signal(range(self.depth)), Signal(range(self.depth))
        level = Signal(range(self.depth + 1))
        entered, taken = Signal(), Signal()

        # The time has a store of its own: it is compared every cycle, the wide item is read once.
        oldest = {}
        for name, shape, value in (
            ("times", NOW_BITS, self.now + self.latency),
            ("items", self._shape, self.i.payload),
        ):
            m.submodules[name] = store = memory.Memory(shape=shape, depth=self.depth, init=[])
            write, read = store.write_port(), store.read_port(domain="comb")
            m.d.comb += [
                write.en.eq(entered),
                write.addr.eq(tail),
                write.data.eq(value),
                read.addr.eq(head),
            ]
            oldest[name] = read.data

        m.d.comb += [
            self.i.ready.eq(level != self.depth),
            entered.eq(self.i.valid & self.i.ready),
            self.o.payload.eq(oldest["items"]),
            self.o.valid.eq((level != 0) & (oldest["times"] <= self.now)),
            taken.eq(self.o.valid & self.o.ready),
            self.due.eq(Mux(level != 0, oldest["times"], NEVER)),
            self.quiet.eq(~self.o.valid),
        ]
        with m.If(entered):
            m.d.sync += tail.eq(tail + 1)
        with m.If(taken):
            m.d.sync += head.eq(head + 1)
        m.d.sync += level.eq(level + entered - taken)
        return m
