"""Lines of pushed WQEs, kept until their ring asks for them."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.op import PushLine

__all__ = ["PushStore"]


class PushStore(wiring.Component):
    """A queue of push lines in which an unfinished push is not seen, and can be taken back.

    Parameters
    ----------
    depth : int
        Lines it holds, a power of two.

    Members
    -------
    i : In(stream of `PushLine`)
        Lines of one push after the other; `last` ends a push.
    revoke : In(1)
        Drops the lines of the unfinished push. No line comes in with it.
    level : Out
        Lines held, those of the unfinished push included.
    o : Out(stream of `PushLine`)
        Lines of finished pushes.

    Timing
    ------
    One line in and one out per cycle. The lines of a push are offered from the cycle after its last
    one came in.
    """

    def __init__(self, depth):
        self.depth = depth
        super().__init__(
            {
                "i": In(stream.Signature(PushLine)),
                "revoke": In(1),
                "level": Out(range(depth + 1)),
                "o": Out(stream.Signature(PushLine)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = memory.Memory(shape=PushLine, depth=self.depth, init=[])
        write, read = store.write_port(), store.read_port(domain="comb")
        head, finished, tail = (Signal(range(self.depth)) for _ in range(3))
        offered = Signal(range(self.depth + 1))
        taken, unfinished = Signal(), Signal(range(self.depth + 1))
        m.d.comb += [
            self.i.ready.eq(self.level != self.depth),
            write.en.eq(self.i.valid & self.i.ready),
            write.addr.eq(tail),
            write.data.eq(self.i.payload),
            read.addr.eq(head),
            self.o.payload.eq(read.data),
            self.o.valid.eq(offered != 0),
            taken.eq(self.o.valid & self.o.ready),
            unfinished.eq(self.level - offered),
        ]
        with m.If(taken):
            m.d.sync += head.eq(head + 1)
        with m.If(write.en):
            m.d.sync += tail.eq(tail + 1)
            with m.If(self.i.payload.last):
                m.d.sync += finished.eq(tail + 1)
        with m.Elif(self.revoke):
            m.d.sync += tail.eq(finished)
        ends = write.en & self.i.payload.last
        m.d.sync += [
            offered.eq(offered + Mux(ends, unfinished + 1, 0) - taken),
            self.level.eq(Mux(self.revoke, offered, self.level + write.en) - taken),
        ]
        return m
