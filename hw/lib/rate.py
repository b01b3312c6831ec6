"""A rate as a fixed-point cost: the time at which the next item may go."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .delay import NOW_BITS

__all__ = ["RateMeter"]


class RateMeter(wiring.Component):
    """Keeps the time until which a resource is busy.

    Parameters
    ----------
    fraction : int
        Fraction bits of the cost.
    width : int
        Width of the cost.
    ahead : int
        Cycles by which an item may be charged before the resource is free. With items that cost
        less than a cycle among dearer ones, 0 leaves the rest of a cycle unused; a lead of 2 does
        not.

    Members
    -------
    now : In
    cost : In(width)
        Cycles (fixed point) that the item takes.
    charge : In(1)
        Takes the item in this cycle; only while `open`.
    open : Out(1)
        The resource is free in this cycle, or will be before the next (or before `ahead` more).
    ends : Out
        First whole cycle in which everything charged has been sent, this cycle's item included.
    free_at : Out
        Whole cycle from which the resource is free.

    Timing
    ------
    Exact on average: fractions carry over while the resource is busy. One charge per cycle.
    """

    def __init__(self, fraction, width, *, ahead=0):
        self._fraction, self._width, self._ahead = fraction, width, ahead
        super().__init__(
            {
                "now": In(NOW_BITS),
                "cost": In(width),
                "charge": In(1),
                "open": Out(1),
                "ends": Out(NOW_BITS),
                "free_at": Out(NOW_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        fraction = self._fraction
        # Busy until whole + part: two words, each narrow enough for one machine word.
        whole, part = Signal(NOW_BITS), Signal(fraction)
        start = Signal(NOW_BITS)
        begun, spent = Signal(fraction), Signal(max(fraction, self._width) + 1)
        end = Signal(NOW_BITS)
        behind = Signal()
        m.d.comb += [
            self.free_at.eq(whole),
            self.open.eq(whole <= self.now + self._ahead),
            # Busy until some point within this cycle: the next item follows without a gap.
            behind.eq(whole < self.now),
            start.eq(Mux(behind, self.now, whole)),
            begun.eq(Mux(behind, 0, part)),
            spent.eq(begun + self.cost),
            end.eq(start + spent[fraction:]),
            self.ends.eq(end + (spent[:fraction] != 0)),
        ]
        with m.If(self.charge):
            m.d.sync += [whole.eq(end), part.eq(spent)]
        return m
