"""Judges acknowledgements."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .formats.events import DropReason
from .formats.op import Status
from .formats.roce import RESPONSES, Aeth, AethClass, NakCode, RoceOpcode, WireBeat

__all__ = ["AckChecker", "Identity"]

#: What the errors that a responder finds make of a WQE.
_ERRORS = {
    NakCode.INVALID_REQUEST: Status.REMOTE_INVALID_REQUEST,
    NakCode.REMOTE_ACCESS: Status.REMOTE_ACCESS,
    NakCode.REMOTE_OPERATION: Status.REMOTE_OPERATION,
}


class Identity(data.Struct):
    """Who a QP is."""

    valid: 1
    qpn: 24


class AckChecker(wiring.Component):
    """Judges an ACK packet by its headers and the state of its QP.

    A response that `landing` hands on as it stands is none: the operation ends as BAD_RESPONSE.

    Parameters
    ----------
    none

    Members
    -------
    beat : In(WireBeat)
    identity : In(Identity)
    base : In(24)
        The oldest unacknowledged PSN.
    end : In(24)
        The PSN behind the last one sent.
    failed, recovering : In(1)
    good : Out(1)
        It counts; exactly one of `is_ack`, `is_sequence`, `is_rnr`, `is_error` says how. If not,
        `reason` says why: first of unknown QP, unknown opcode or syndrome, QP in error, PSN not
        outstanding, and a sequence or RNR NAK while recovering.
    acknowledged : Out(24)
        `base` after it: a NAK acknowledges what is before its PSN.
    progress : Out(1)
        `base` moves.
    status : Out(Status)
        What an error NAK, or such a response, makes of its WQE.

    Timing
    ------
    Combinational.
    """

    def __init__(self):
        super().__init__(
            {
                "beat": In(WireBeat),
                "identity": In(Identity),
                "base": In(24),
                "end": In(24),
                "failed": In(1),
                "recovering": In(1),
                "good": Out(1),
                "reason": Out(DropReason, init=DropReason.PACKET_UNKNOWN_QP),
                "is_ack": Out(1),
                "is_sequence": Out(1),
                "is_rnr": Out(1),
                "is_error": Out(1),
                "acknowledged": Out(24),
                "progress": Out(1),
                "status": Out(Status, init=Status.REMOTE_OPERATION),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bth, syndrome = self.beat.bth, data.View(Aeth, self.beat.ext[:32]).syndrome
        code = syndrome[:5]
        with m.Switch(bth.opcode):
            with m.Case(RoceOpcode.ACK):
                with m.Switch(syndrome[5:]):
                    with m.Case(AethClass.ACK):
                        m.d.comb += self.is_ack.eq(1)
                    with m.Case(AethClass.RNR):
                        m.d.comb += self.is_rnr.eq(1)
                    with m.Case(AethClass.NAK):
                        m.d.comb += self.is_sequence.eq(code == NakCode.SEQUENCE)
                        for nak, status in _ERRORS.items():
                            with m.If(code == nak):
                                m.d.comb += [self.is_error.eq(1), self.status.eq(status)]
            with m.Case(*(opcode for opcode in RESPONSES if opcode != RoceOpcode.ACK)):
                m.d.comb += [self.is_error.eq(1), self.status.eq(Status.BAD_RESPONSE)]

        ahead, outstanding = Signal(24), Signal(24)
        m.d.comb += [
            ahead.eq(bth.psn - self.base),
            outstanding.eq(self.end - self.base),
            self.acknowledged.eq(bth.psn + self.is_ack),
            self.progress.eq(self.acknowledged != self.base),
        ]
        is_known_kind = self.is_ack | self.is_sequence | self.is_rnr | self.is_error
        with m.If(~self.identity.valid | (self.identity.qpn != bth.dest_qp)):
            m.d.comb += self.reason.eq(DropReason.PACKET_UNKNOWN_QP)
        with m.Elif(~is_known_kind):
            m.d.comb += self.reason.eq(DropReason.PACKET_OPCODE)
        with m.Elif(self.failed):
            m.d.comb += self.reason.eq(DropReason.ACK_QP_ERROR)
        with m.Elif(ahead >= outstanding):
            m.d.comb += self.reason.eq(
                Mux(ahead[-1], DropReason.ACK_OLD, DropReason.ACK_UNEXPECTED)
            )
        with m.Elif(self.recovering & (self.is_sequence | self.is_rnr)):
            m.d.comb += self.reason.eq(DropReason.NAK_IGNORED)
        with m.Else():
            m.d.comb += self.good.eq(1)
        return m
