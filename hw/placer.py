"""Lines the payload of packets up with the memory that it goes to."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.dma import Placement
from .lib.align import Line, Realigner
from .lib.stream import Queue, connect, skid

__all__ = ["Placer"]


class Placer(wiring.Component):
    """Hands over what packets leave in memory: what is to be done, and the bytes beside it.

    Parameters
    ----------
    none

    Members
    -------
    i : In(stream of `Placement`)
        One per packet with payload, with the first of its `pieces`, or for something else.
    pieces : In(stream of `Line`)
        Payload as it stands in the packet; `last` ends the packet.
    start : In(6)
        Lane at which a packet's first byte shall come out; looked at with its first piece.
    single : In(stream of `Line`)
        A line that stands in its lanes. Only while the placer is `drained`.
    placements : Out(stream of `Placement`)
    lines : Out(stream of `Line`)
        Two lines are taken whatever `placements` waits for.
    finished : Out(1)
        The last line of a packet is handed over to `lines`, which buffers it.
    empty : Out(1)
        No packet is in work: the last line of each one has been handed over.
    drained : Out(1)
        Nothing is held.

    Timing
    ------
    Both come out in the cycle after they came in. One line per cycle; a packet whose bytes spill
    into one more line takes one cycle more.
    """

    def __init__(self):
        super().__init__(
            {
                "i": In(stream.Signature(Placement)),
                "pieces": In(stream.Signature(Line)),
                "start": In(6),
                "single": In(stream.Signature(Line)),
                "placements": Out(stream.Signature(Placement)),
                "lines": Out(stream.Signature(Line)),
                "finished": Out(1),
                "empty": Out(1),
                "drained": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.waiting = waiting = Queue(Placement, 4)
        m.submodules.realigner = realigner = Realigner()
        # A line is taken before its placement is there (one cycle later): who takes waits for both.
        m.submodules.buffer = buffer = skid(Line)
        connect(m, wiring.flipped(self.i), waiting.i)
        connect(m, wiring.flipped(self.pieces), realigner.i)
        connect(m, waiting.o, wiring.flipped(self.placements))
        connect(m, realigner.o, buffer.i)
        connect(m, buffer.o, wiring.flipped(self.lines))
        m.d.comb += [
            realigner.start.eq(self.start),
            self.single.ready.eq(buffer.i.ready),
            self.finished.eq(realigner.o.valid & realigner.o.ready & realigner.o.payload.last),
            self.empty.eq(realigner.empty),
            self.drained.eq(realigner.empty & waiting.empty & buffer.empty),
        ]
        with m.If(self.single.valid):
            m.d.comb += [buffer.i.payload.eq(self.single.payload), buffer.i.valid.eq(1)]
        return m
