"""What a packet of a responder is to the queue pair that it comes for."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from .ack_checker import Identity
from .awaited_reads import Awaited
from .formats.events import DropReason
from .formats.roce import RESPONSES, Aeth, AethClass, RoceOpcode, WireBeat

__all__ = ["ResponseChecker", "ResponseVerdict"]

#: Payload of an atomic ACK: the original value, in network order.
ATOMIC_BYTES = 8


class ResponseVerdict(enum.Enum, shape=3):
    """What is to be done with a packet."""

    #: Counted, and no more.
    DROP = 0
    #: Handed on as it is.
    PASS = 1
    #: A response that is expected: its bytes go to memory.
    LAND = 2
    #: The first one beyond a response that has not come: that one is asked for again.
    GAP = 3
    #: A response that is not what was asked for.
    MISFIT = 4


class ResponseChecker(wiring.Component):
    """Judges a packet by its first beat.

    What is neither ACK nor response, and any ACK for an unknown QP or one in error, passes. An ACK
    acknowledges what is before its PSN, and its own if it is no NAK; so one that acknowledges more
    than what is before the expected response comes behind a gap, as a response of a later PSN does.
    Where in its response a packet stands is told by its PSN, not by its opcode: a READ that is
    executed again begins later.

    Parameters
    ----------
    none

    Members
    -------
    beat : In(WireBeat)
        First beat of the packet.
    identity : In(Identity)
    mtu_log2 : In(4)
    failed : In(1)
    awaited : In(Awaited)
        State of its QP.
    verdict : Out(ResponseVerdict)
    reason : Out(DropReason)
        Of every verdict but PASS and LAND.

    Timing
    ------
    Combinational.
    """

    def __init__(self):
        super().__init__(
            {
                "beat": In(WireBeat),
                "identity": In(Identity),
                "mtu_log2": In(4),
                "failed": In(1),
                "awaited": In(Awaited),
                "verdict": Out(ResponseVerdict),
                "reason": Out(DropReason, init=DropReason.RESPONSE_MISSING),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bth, awaited = self.beat.bth, self.awaited
        known, gap = Signal(), Signal(ResponseVerdict)
        m.d.comb += [
            known.eq(self.identity.valid & (self.identity.qpn == bth.dest_qp)),
            gap.eq(Mux(awaited.reported, ResponseVerdict.DROP, ResponseVerdict.GAP)),
        ]
        with m.Switch(bth.opcode):
            with m.Case(*(opcode for opcode in RESPONSES if opcode != RoceOpcode.ACK)):
                self._response(m, known, gap)
            with m.Case(RoceOpcode.ACK):
                m.d.comb += self.verdict.eq(ResponseVerdict.PASS)
                with m.If(known & ~self.failed):
                    self._ack(m, gap)
            with m.Default():
                m.d.comb += self.verdict.eq(ResponseVerdict.PASS)
        return m

    def _ack(self, m, gap):
        """An ACK or a NAK of a known QP."""
        awaited, syndrome = self.awaited, data.View(Aeth, self.beat.ext[:32]).syndrome
        acknowledged, beyond, past = Signal(24), Signal(24), Signal(24)
        m.d.comb += [
            acknowledged.eq(self.beat.bth.psn + (syndrome[5:] == AethClass.ACK)),
            beyond.eq(acknowledged - awaited.psn),
            past.eq(acknowledged - awaited.reached),
        ]
        with m.If(awaited.any & (beyond != 0) & ~beyond[-1]):
            m.d.comb += self.verdict.eq(gap)
        # It may acknowledge a READ that is about to be executed again, and brings no bytes.
        with m.Elif(~awaited.any & awaited.behind & (past != 0) & ~past[-1]):
            m.d.comb += self.verdict.eq(ResponseVerdict.DROP)

    def _response(self, m, known, gap):
        """A READ response or an atomic ACK."""
        beat, awaited, oldest = self.beat, self.awaited, self.awaited.oldest
        ahead, length, fits = Signal(24), Signal(13), Signal()
        m.d.comb += [
            ahead.eq(beat.bth.psn - awaited.psn),
            length.eq(Mux(awaited.psn == oldest.last_psn, oldest.last_length, 1 << self.mtu_log2)),
            fits.eq(
                (beat.length == Mux(oldest.atomic, ATOMIC_BYTES, length))
                & (oldest.atomic == (beat.bth.opcode == RoceOpcode.ATOMIC_ACK))
            ),
        ]
        with m.If(~known):
            m.d.comb += self.reason.eq(DropReason.PACKET_UNKNOWN_QP)
        with m.Elif(self.failed):
            m.d.comb += self.reason.eq(DropReason.ACK_QP_ERROR)
        with m.Elif(ahead[-1]):
            m.d.comb += self.reason.eq(DropReason.RESPONSE_OLD)
        with m.Elif(~awaited.any):
            m.d.comb += self.reason.eq(DropReason.RESPONSE_UNEXPECTED)
        with m.Elif(ahead != 0):
            m.d.comb += self.verdict.eq(gap)
        with m.Elif(~fits):
            m.d.comb += [
                self.verdict.eq(ResponseVerdict.MISFIT),
                self.reason.eq(DropReason.RESPONSE_MISFIT),
            ]
        with m.Else():
            m.d.comb += self.verdict.eq(ResponseVerdict.LAND)
