"""What a request packet is to its connection."""

from amaranth.hdl import Module, Signal
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import RxContext
from .formats.events import DropReason
from .formats.roce import RoceOpcode, WireBeat

__all__ = ["PacketChecker", "Verdict"]


class Verdict(enum.Enum, shape=3):
    """What is to be done with a packet."""

    #: Dropped in silence (and counted): nobody to answer, or nothing to say.
    DROP = 0
    EXECUTE = 1
    #: Executed before: acknowledged again.
    DUPLICATE = 2
    #: Behind a gap: the missing one is asked for.
    AHEAD = 3
    #: Refused: the connection is in error.
    INVALID = 4


class PacketChecker(wiring.Component):
    """Judges a packet by its first beat.

    Parameters
    ----------
    none

    Members
    -------
    beat : In(WireBeat)
        First beat of the packet.
    context : In(RxContext)
    expected_psn, in_message, failed : In
        State of its connection; `failed`: it refused a packet.
    verdict : Out(Verdict)
        In this order: unknown QP, unknown opcode, failed connection (DROP); a PSN that is not the
        expected one, up to 2^23 before it (DUPLICATE) or beyond (AHEAD); a wrong place in a message
        or a wrong length for the opcode (INVALID); else EXECUTE.
    reason : Out(DropReason)
        Of every verdict but EXECUTE.
    starts, ends : Out(1)
        It is the first, the last packet of its message.

    Timing
    ------
    Combinational.
    """

    def __init__(self):
        super().__init__(
            {
                "beat": In(WireBeat),
                "context": In(RxContext),
                "expected_psn": In(24),
                "in_message": In(1),
                "failed": In(1),
                "verdict": Out(Verdict),
                "reason": Out(DropReason, init=DropReason.PACKET_UNKNOWN_QP),
                "starts": Out(1),
                "ends": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bth, length = self.beat.bth, self.beat.length
        known, known_opcode, fits = Signal(), Signal(), Signal()
        mtu, ahead = Signal(16), Signal(24)
        m.d.comb += [
            known.eq(self.context.valid & (self.context.qpn == bth.dest_qp)),
            mtu.eq(1 << self.context.mtu_log2),
            ahead.eq(bth.psn - self.expected_psn),
        ]
        with m.Switch(bth.opcode):
            with m.Case(RoceOpcode.WRITE_FIRST):
                m.d.comb += [known_opcode.eq(1), self.starts.eq(1), fits.eq(length == mtu)]
            with m.Case(RoceOpcode.WRITE_MIDDLE):
                m.d.comb += [known_opcode.eq(1), fits.eq(length == mtu)]
            with m.Case(RoceOpcode.WRITE_LAST):
                m.d.comb += [
                    known_opcode.eq(1),
                    self.ends.eq(1),
                    fits.eq((length != 0) & (length <= mtu)),
                ]
            with m.Case(RoceOpcode.WRITE_ONLY):
                m.d.comb += [
                    known_opcode.eq(1),
                    self.starts.eq(1),
                    self.ends.eq(1),
                    fits.eq(length <= mtu),
                ]

        with m.If(~known):
            m.d.comb += self.reason.eq(DropReason.PACKET_UNKNOWN_QP)
        with m.Elif(~known_opcode):
            m.d.comb += self.reason.eq(DropReason.PACKET_OPCODE)
        with m.Elif(self.failed):
            m.d.comb += self.reason.eq(DropReason.PACKET_QP_ERROR)
        with m.Elif(ahead[-1]):
            m.d.comb += [
                self.verdict.eq(Verdict.DUPLICATE),
                self.reason.eq(DropReason.PACKET_DUPLICATE),
            ]
        with m.Elif(ahead != 0):
            m.d.comb += [
                self.verdict.eq(Verdict.AHEAD),
                self.reason.eq(DropReason.PACKET_PSN),
            ]
        with m.Elif((self.starts == self.in_message) | ~fits):
            m.d.comb += [
                self.verdict.eq(Verdict.INVALID),
                self.reason.eq(DropReason.PACKET_OPCODE),
            ]
        with m.Else():
            m.d.comb += self.verdict.eq(Verdict.EXECUTE)
        return m
