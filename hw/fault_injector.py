"""Which packets a scenario wants lost."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .opcodes import is_response
from .timing import FaultTiming

__all__ = ["FaultInjector"]


class FaultInjector(wiring.Component):
    """Says which packets are to be lost.

    Parameters
    ----------
    slots : int
        Fault slots looked at.
    port : int
        Port whose slots count; those of others never match.

    Members
    -------
    faults : In(FaultTiming)
    opcode : In(8)
        Opcode of the packet that is offered.
    step : In(1)
        The packet's first beat is taken, sent or swallowed, in this cycle.
    hit : Out(1)
        The packet is to be dropped.
    slot : Out(8)
        Lowest-numbered slot that says so.

    Timing
    ------
    Combinational. Each slot counts the packets that match it, from 0, those that
    other slots drop included.
    """

    def __init__(self, slots, port=0):
        self._slots, self._port = slots, port
        super().__init__(
            {
                "faults": In(FaultTiming),
                "opcode": In(8),
                "step": In(1),
                "hit": Out(1),
                "slot": Out(8),
            }
        )

    def elaborate(self, platform):
        m = Module()
        responds = Signal()
        m.d.comb += responds.eq(is_response(self.opcode))
        for number in reversed(range(self._slots)):
            slot = self.faults.slots[number]
            seen, past = Signal(32, name=f"seen_{number}"), Signal(32, name=f"past_{number}")
            match = Signal(name=f"match_{number}")
            with m.Switch(slot.match):
                with m.Case(1):
                    m.d.comb += match.eq(1)
                with m.Case(2):
                    m.d.comb += match.eq(~responds)
                with m.Case(3):
                    m.d.comb += match.eq(responds)
            with m.If(slot.port != self._port):
                m.d.comb += match.eq(0)
            m.d.comb += past.eq(seen - slot.first)
            with m.If(match & (seen >= slot.first) & ((past < slot.count) | slot.count.all())):
                m.d.comb += [self.hit.eq(1), self.slot.eq(number)]
            with m.If(self.step & match):
                m.d.sync += seen.eq(seen + 1)
        return m
