"""Keeps the bytes of fenced operations from being read too early."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.op import Piece
from .lib.stream import connect

__all__ = ["FenceGate"]


class FenceGate(wiring.Component):
    """Lets pieces pass, but those of an operation with a fence only once it goes on.

    What is read behind a fence may be what the READs before it bring.

    Parameters
    ----------
    none

    Members
    -------
    i, o : streams of `Piece`
        Whole messages in order.
    passed : In(1)
        The next operation with a fence and pieces goes on. At most 7 may be ahead of their pieces.

    Timing
    ------
    Combinational; a message passes from the cycle after `passed`.
    """

    def __init__(self):
        super().__init__(
            {
                "i": In(stream.Signature(Piece)),
                "o": Out(stream.Signature(Piece)),
                "passed": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        connect(m, self.i, self.o)
        piece, ahead, ends = self.i.payload, Signal(3), Signal()
        with m.If(piece.fence & (ahead == 0)):
            m.d.comb += [self.o.valid.eq(0), self.i.ready.eq(0)]
        m.d.comb += ends.eq(self.i.valid & self.i.ready & piece.fence & piece.last)
        m.d.sync += ahead.eq(ahead + self.passed - ends)
        return m
