"""What a request packet is to its connection."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import RxContext
from .formats.events import DropReason
from .formats.roce import RESPONSES, Reth, RoceOpcode, WireBeat
from .formats.tlp import ADDRESS_BITS

__all__ = ["PacketChecker", "RequestKind", "RxState", "Verdict"]

#: Longest message, in bytes.
_LONGEST = 1 << 31


class Verdict(enum.Enum, shape=3):
    """What is to be done with a packet."""

    #: Dropped in silence (and counted): nobody to answer, or nothing to say.
    DROP = 0
    EXECUTE = 1
    #: Executed before: answered again.
    DUPLICATE = 2
    #: Behind a gap: the missing one is asked for.
    AHEAD = 3
    #: Refused: the connection is in error.
    INVALID = 4
    #: Has no receive WQE: to be sent again later.
    RNR = 5


class RequestKind(enum.Enum, shape=3):
    """What a packet asks for."""

    #: An opcode that is not served.
    NONE = 0
    WRITE = 1
    SEND = 2
    READ = 3
    ATOMIC = 4


class RxState(data.Struct):
    """What a connection has received."""

    expected_psn: 24
    #: Messages completed, modulo 2^24.
    msn: 24
    in_message: 1
    #: The message is a SEND; valid within a message.
    in_send: 1
    #: Where the next byte of a WRITE goes, and its bytes; of a SEND its bytes so far. Valid within
    #: a message, as is `left`.
    address: ADDRESS_BITS
    length: 32
    #: Bytes of a WRITE that are still to come; of a SEND, those that its WQE still has room for.
    left: 32
    #: The gap before the expected packet was reported, or that it was not welcome.
    reported: 1
    #: A packet was refused; nothing more is served.
    failed: 1


class _Opcode(data.Struct):
    """What an opcode says."""

    kind: RequestKind
    starts: 1
    ends: 1
    immediate: 1


_WRITE, _SEND = RequestKind.WRITE, RequestKind.SEND
#: Kind, first of its message, last, with immediate data.
_OPCODES = {
    RoceOpcode.SEND_FIRST: (_SEND, 1, 0, 0),
    RoceOpcode.SEND_MIDDLE: (_SEND, 0, 0, 0),
    RoceOpcode.SEND_LAST: (_SEND, 0, 1, 0),
    RoceOpcode.SEND_LAST_IMM: (_SEND, 0, 1, 1),
    RoceOpcode.SEND_ONLY: (_SEND, 1, 1, 0),
    RoceOpcode.SEND_ONLY_IMM: (_SEND, 1, 1, 1),
    RoceOpcode.WRITE_FIRST: (_WRITE, 1, 0, 0),
    RoceOpcode.WRITE_MIDDLE: (_WRITE, 0, 0, 0),
    RoceOpcode.WRITE_LAST: (_WRITE, 0, 1, 0),
    RoceOpcode.WRITE_LAST_IMM: (_WRITE, 0, 1, 1),
    RoceOpcode.WRITE_ONLY: (_WRITE, 1, 1, 0),
    RoceOpcode.WRITE_ONLY_IMM: (_WRITE, 1, 1, 1),
    RoceOpcode.READ_REQUEST: (RequestKind.READ, 1, 1, 0),
    RoceOpcode.COMPARE_SWAP: (RequestKind.ATOMIC, 1, 1, 0),
    RoceOpcode.FETCH_ADD: (RequestKind.ATOMIC, 1, 1, 0),
    RoceOpcode.MASKED_COMPARE_SWAP: (RequestKind.ATOMIC, 1, 1, 0),
    RoceOpcode.MASKED_FETCH_ADD: (RequestKind.ATOMIC, 1, 1, 0),
}


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
    state : In(RxState)
        Of its connection.
    reads_full : In(1)
        As many READs and atomics of its connection as may be are still to be answered.
    not_ready, room : In(1), In(32)
        There is no receive WQE for it; the bytes that its WQE has room for. Looked at only if it
        `takes` one.
    verdict : Out(Verdict)
        In this order: unknown QP, no request of a reliable connection, failed connection (DROP); a
        PSN that is not the expected one, up to 2^23 before it (DUPLICATE; DROP if it cannot be
        answered again) or beyond (AHEAD); an opcode that is not served, a wrong place in a message,
        or what does not fit its opcode (INVALID): a packet's length the MTU, the bytes of a WRITE
        the length that its first packet said, an atomic's operands its size, its address not a
        multiple of that; a READ or an atomic too many (INVALID); no receive WQE (RNR); more bytes
        of a SEND than its WQE has room for (INVALID); else EXECUTE.
    reason : Out(DropReason)
        Of every verdict but EXECUTE.
    kind : Out(RequestKind)
    starts, ends : Out(1)
        It is the first, the last packet of its message.
    immediate : Out(1)
        It brings immediate data.
    takes : Out(1)
        It is to be executed, and needs a receive WQE of its own for that: the first packet of a
        SEND, or a WRITE with immediate data.
    packets : Out(24)
        PSNs that it uses up: those of the response to a READ, else one.

    Timing
    ------
    Combinational. `takes` does not depend on `not_ready` and `room`.
    """

    def __init__(self):
        super().__init__(
            {
                "beat": In(WireBeat),
                "context": In(RxContext),
                "state": In(RxState),
                "reads_full": In(1),
                "not_ready": In(1),
                "room": In(32),
                "verdict": Out(Verdict),
                "reason": Out(DropReason, init=DropReason.PACKET_UNKNOWN_QP),
                "kind": Out(RequestKind),
                "starts": Out(1),
                "ends": Out(1),
                "immediate": Out(1),
                "takes": Out(1),
                "packets": Out(24, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bth = self.beat.bth
        says, request = self._opcode(m)
        fits = self._fits(m, says)

        known, ahead = Signal(), Signal(24)
        served, sends, misplaced, overflows = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            self.kind.eq(says.kind),
            self.starts.eq(says.starts),
            self.ends.eq(says.ends),
            self.immediate.eq(says.immediate),
            known.eq(self.context.valid & (self.context.qpn == bth.dest_qp)),
            ahead.eq(bth.psn - self.state.expected_psn),
            served.eq((says.kind == RequestKind.READ) | (says.kind == RequestKind.ATOMIC)),
            misplaced.eq(
                (says.starts == self.state.in_message)
                | (~says.starts & (sends != self.state.in_send))
            ),
            sends.eq(says.kind == RequestKind.SEND),
            overflows.eq(sends & (self.beat.length > Mux(says.starts, self.room, self.state.left))),
        ]

        def judge(verdict, reason):
            m.d.comb += [self.verdict.eq(verdict), self.reason.eq(reason)]

        with m.If(~known):
            judge(Verdict.DROP, DropReason.PACKET_UNKNOWN_QP)
        with m.Elif(~request):
            judge(Verdict.DROP, DropReason.PACKET_OPCODE)
        with m.Elif(self.state.failed):
            judge(Verdict.DROP, DropReason.PACKET_QP_ERROR)
        with m.Elif(ahead[-1]):
            with m.If((says.kind == RequestKind.NONE) | (served & ~fits)):
                judge(Verdict.DROP, DropReason.PACKET_OPCODE)
            with m.Else():
                judge(Verdict.DUPLICATE, DropReason.PACKET_DUPLICATE)
        with m.Elif(ahead != 0):
            judge(Verdict.AHEAD, DropReason.PACKET_PSN)
        with m.Elif((says.kind == RequestKind.NONE) | misplaced | ~fits):
            judge(Verdict.INVALID, DropReason.PACKET_OPCODE)
        with m.Elif(served & self.reads_full):
            judge(Verdict.INVALID, DropReason.PACKET_READS)
        with m.Else():
            m.d.comb += self.takes.eq(Mux(sends, says.starts, says.immediate))
            with m.If(self.takes & self.not_ready):
                judge(Verdict.RNR, DropReason.PACKET_NOT_READY)
            with m.Elif(overflows):
                judge(Verdict.INVALID, DropReason.PACKET_TOO_LONG)
            with m.Else():
                judge(Verdict.EXECUTE, DropReason.PACKET_UNKNOWN_QP)
        return m

    def _opcode(self, m):
        """What the opcode says, and whether it is a request of a reliable connection at all."""
        opcode = self.beat.bth.opcode
        says, request = Signal(_Opcode), Signal()
        # The reliable connection's own range, and that which is left to manufacturers.
        m.d.comb += request.eq((opcode[5:] == 0) | (opcode[6:] == 3))
        with m.Switch(opcode):
            for code, (kind, starts, ends, immediate) in _OPCODES.items():
                with m.Case(code):
                    m.d.comb += [
                        says.kind.eq(kind),
                        says.starts.eq(starts),
                        says.ends.eq(ends),
                        says.immediate.eq(immediate),
                    ]
            with m.Case(*RESPONSES):
                m.d.comb += request.eq(0)
        return says, request

    def _fits(self, m, says):
        """Whether the packet's bytes are those that its opcode and its message ask for."""
        fits = Signal()
        reth, length, opcode = (
            data.View(Reth, self.beat.ext),
            self.beat.length,
            self.beat.bth.opcode,
        )
        mtu, left, up = Signal(13), Signal(32), Signal(32)
        fills, possible = Signal(), Signal()
        m.d.comb += [
            mtu.eq(1 << self.context.mtu_log2),
            fills.eq(
                Mux(says.ends, (length <= mtu) & (says.starts | (length != 0)), length == mtu)
            ),
            possible.eq(reth.length <= _LONGEST),
            left.eq(Mux(says.starts, reth.length, self.state.left)),
        ]
        with m.Switch(says.kind):
            with m.Case(RequestKind.WRITE):
                m.d.comb += fits.eq(
                    fills
                    & (possible | ~says.starts)
                    & Mux(says.ends, left == length, left > length)
                )
            with m.Case(RequestKind.SEND):
                m.d.comb += fits.eq(fills)
            with m.Case(RequestKind.READ):
                m.d.comb += [
                    fits.eq(possible & (length == 0)),
                    up.eq(reth.length + (mtu - 1)),
                    self.packets.eq(Mux(reth.length == 0, 1, up >> self.context.mtu_log2)),
                ]
            with m.Case(RequestKind.ATOMIC):
                masked, swaps = Signal(), Signal()
                m.d.comb += [
                    masked.eq(opcode[6:] != 0),
                    swaps.eq(opcode == RoceOpcode.MASKED_COMPARE_SWAP),
                    fits.eq(
                        Mux(
                            reth.length == 8,
                            (length == Mux(swaps, 32, 16)) & (reth.va[:3] == 0),
                            masked & (reth.length == 4) & (length == 16) & (reth.va[:2] == 0),
                        )
                    ),
                ]
        return fits
