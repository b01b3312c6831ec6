"""What a responder makes of packets, in plain Python."""

from dataclasses import dataclass

from support_roce import PSN_MASK

from hw.formats.events import DropReason
from hw.formats.layout import Codec
from hw.formats.roce import Reth
from hw.packet_checker import RequestKind, Verdict

__all__ = ["Judgement", "RefState", "judge"]

_reth = Codec(Reth)

#: Opcode to kind, first, last, immediate; written from the specification's table of opcodes.
ROLES = {
    **{
        0x00 + i: (RequestKind.SEND, *role)
        for i, role in enumerate([(1, 0, 0), (0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 1, 0), (1, 1, 1)])
    },
    **{
        0x06 + i: (RequestKind.WRITE, *role)
        for i, role in enumerate([(1, 0, 0), (0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 1, 0), (1, 1, 1)])
    },
    0x0C: (RequestKind.READ, 1, 1, 0),
    **dict.fromkeys((0x13, 0x14, 0xD3, 0xD4), (RequestKind.ATOMIC, 1, 1, 0)),
}
RESPONSES = range(0x0D, 0x13)


@dataclass
class RefState:
    """A connection, as far as its packets are judged by it."""

    psn: int
    msn: int = 0
    in_message: bool = False
    in_send: bool = False
    address: int = 0
    left: int = 0
    reported: bool = False
    failed: bool = False


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    reason: DropReason | None = None
    kind: RequestKind = RequestKind.NONE
    starts: bool = False
    ends: bool = False
    #: It needs a receive WQE.
    takes: bool = False
    #: PSNs that it uses up.
    packets: int = 1


def _fits(opcode, kind, starts, ends, length, reth, left, mtu):
    fills = length == mtu if not ends else length <= mtu and (starts or length > 0)
    match kind:
        case RequestKind.WRITE:
            if starts and reth["length"] > 1 << 31:
                return False
            left = reth["length"] if starts else left
            return fills and (left == length if ends else left > length)
        case RequestKind.SEND:
            return fills
        case RequestKind.READ:
            return length == 0 and reth["length"] <= 1 << 31
        case RequestKind.ATOMIC:
            size = reth["length"]
            operands = {(0xD3, 8): 32, (0xD3, 4): 16, (0xD4, 8): 16, (0xD4, 4): 16}
            operands |= {(0x13, 8): 16, (0x14, 8): 16}
            return operands.get((opcode, size)) == length and reth["va"] % size == 0
    return False


def judge(head, context, state, *, reads_full=False, not_ready=False):
    """Judgement of a packet by its first beat (a dict), the context and `RefState` of its QP."""
    bth, length = head["bth"], head["length"]
    opcode = int(getattr(bth["opcode"], "value", bth["opcode"]))
    reth = _reth.unpack(head["ext"].to_bytes(16, "big"))
    mtu = 1 << context["mtu_log2"] if context else 0
    kind, starts, ends, imm = ROLES.get(opcode, (RequestKind.NONE, 0, 0, 0))
    if not context or not context["valid"] or context["qpn"] != bth["dest_qp"]:
        return Judgement(Verdict.DROP, DropReason.PACKET_UNKNOWN_QP)
    if opcode in RESPONSES or 0x20 <= opcode < 0xC0:
        return Judgement(Verdict.DROP, DropReason.PACKET_OPCODE)
    if state.failed:
        return Judgement(Verdict.DROP, DropReason.PACKET_QP_ERROR)
    served = kind in (RequestKind.READ, RequestKind.ATOMIC)
    fits = _fits(opcode, kind, starts, ends, length, reth, state.left, mtu)
    packets = max(1, -(-reth["length"] // mtu)) if kind is RequestKind.READ else 1
    facts = {"kind": kind, "starts": bool(starts), "ends": bool(ends), "packets": packets}
    distance = (bth["psn"] - state.psn) & PSN_MASK
    if distance >= 1 << 23:
        if kind is RequestKind.NONE or (served and not fits):
            return Judgement(Verdict.DROP, DropReason.PACKET_OPCODE)
        return Judgement(Verdict.DUPLICATE, DropReason.PACKET_DUPLICATE, **facts)
    if distance:
        return Judgement(Verdict.AHEAD, DropReason.PACKET_PSN, **facts)
    placed = not state.in_message if starts else state.in_message
    if not starts and (kind is RequestKind.SEND) != state.in_send:
        placed = False
    if kind is RequestKind.NONE or not placed or not fits:
        return Judgement(Verdict.INVALID, DropReason.PACKET_OPCODE, **facts)
    if served and reads_full:
        return Judgement(Verdict.INVALID, DropReason.PACKET_READS, **facts)
    takes = bool(starts if kind is RequestKind.SEND else imm)
    if takes and not_ready:
        return Judgement(Verdict.RNR, DropReason.PACKET_NOT_READY, **facts, takes=True)
    return Judgement(Verdict.EXECUTE, None, **facts, takes=takes)
