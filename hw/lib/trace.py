"""Events out of a block, and the meter that turns a stall into one event."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..formats.events import Dropped, EventKind, Stall

__all__ = ["Alarm", "Probe", "StallMeter", "probes"]


#: Cycles after which a stall that goes on is told.
STALL_PART = 4096


class Probe(wiring.Signature):
    """An event port: `payload` is logged in each cycle in which `valid` is high.

    Parameters
    ----------
    kind : EventKind
    layout : Struct of the payload, at most 160 bits
    """

    def __init__(self, kind, layout):
        self.kind, self.layout = kind, layout
        super().__init__({"valid": Out(1), "payload": Out(layout)})

    def __eq__(self, other):
        return isinstance(other, Probe) and (self.kind, self.layout) == (other.kind, other.layout)


def probes(component):
    """(name, kind, interface) of every probe among a component's members."""
    for name, member in component.signature.members.items():
        if member.is_signature and isinstance(member.signature, Probe):
            yield name, member.signature.kind, getattr(component, name)


class StallMeter(wiring.Component):
    """Counts the cycles of a stall and reports them when it ends.

    Parameters
    ----------
    cause : StallCause
    where : int
        Instance number that goes into the event.

    Members
    -------
    stalled : In(1)
        High in each cycle lost to this cause.
    event : Out(Probe)
        One event in the first cycle after a stall, and one each `STALL_PART` cycles of a long one.
    """

    def __init__(self, cause, where=0):
        self._cause, self._where = cause, where
        super().__init__({"stalled": In(1), "event": Out(Probe(EventKind.STALL, Stall))})

    def elaborate(self, platform):
        m = Module()
        # A stall that never ends is told in parts, or a hang would hide its cause.
        lost, part = Signal(32), Signal()
        m.d.comb += part.eq(lost == STALL_PART)
        with m.If(self.stalled):
            m.d.sync += lost.eq(Mux(part, 1, lost + 1))
        with m.Elif(lost != 0):
            m.d.sync += lost.eq(0)
        m.d.comb += [
            self.event.valid.eq((~self.stalled & (lost != 0)) | part),
            self.event.payload.cause.eq(self._cause),
            self.event.payload.where.eq(self._where),
            self.event.payload.cycles.eq(lost),
            self.event.payload.active.eq(self.stalled),
        ]
        return m


class Alarm(wiring.Component):
    """Reports once that something happened which never may.

    Parameters
    ----------
    reason : DropReason
    info : int

    Members
    -------
    raised : In(1)
        Sticky; from the first cycle on.
    event : Out(Probe)
        One event, in that cycle.
    """

    def __init__(self, reason, info):
        self._reason, self._info = reason, info
        super().__init__({"raised": In(1), "event": Out(Probe(EventKind.DROPPED, Dropped))})

    def elaborate(self, platform):
        m = Module()
        reported = Signal()
        m.d.sync += reported.eq(self.raised)
        m.d.comb += [
            self.event.valid.eq(self.raised & ~reported),
            self.event.payload.reason.eq(self._reason),
            self.event.payload.info.eq(self._info),
        ]
        return m
