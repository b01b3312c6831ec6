"""What a responder makes of packets, in plain Python."""

from collections import defaultdict
from dataclasses import dataclass, field

from support_roce import PSN_MASK, ack_beat, normal, packet_beats

from hw.formats.events import DropReason
from hw.formats.layout import Codec
from hw.formats.op import Received, Status
from hw.formats.roce import Reth, RoceOpcode
from hw.formats.tlp import MarkKind
from hw.packet_checker import RequestKind, Verdict

__all__ = ["Judgement", "RefMemory", "RefResponder", "RefState", "atomic_result", "judge"]

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
    length: int = 0
    reported: bool = False
    failed: bool = False
    #: PSN and finding of the latest atomics, oldest first.
    atomics: list = field(default_factory=list)


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


def judge(head, context, state, *, reads_full=False, not_ready=False, room=1 << 31):
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
    if kind is RequestKind.SEND and length > (room if starts else state.left):
        return Judgement(Verdict.INVALID, DropReason.PACKET_TOO_LONG, **facts, takes=takes)
    return Judgement(Verdict.EXECUTE, None, **facts, takes=takes)


class RefMemory:
    """Bytes of one node; those that nobody wrote follow from their address."""

    def __init__(self):
        self.written = {}

    def read(self, address, length):
        return bytes(
            self.written.get(a, a * 151 >> 3 & 0xFF) for a in range(address, address + length)
        )

    def write(self, address, payload):
        self.written.update(enumerate(payload, address))


def atomic_result(opcode, size, original, operands):
    """What an atomic on `size` bytes makes of an integer, bit by bit; `operands` are bytes."""
    opcode, bits = int(getattr(opcode, "value", opcode)), 8 * size
    words = [int.from_bytes(operands[i : i + size], "big") for i in range(0, len(operands), size)]
    if opcode in (0x13, 0xD3):
        swap, compare = words[:2]
        swap_mask, compare_mask = words[2:] if opcode == 0xD3 else [(1 << bits) - 1] * 2
        for bit in range(bits):
            if compare_mask >> bit & 1 and (original ^ compare) >> bit & 1:
                return original
        return original & ~swap_mask | swap & swap_mask
    add, boundary = words[0], words[1] if opcode == 0xD4 else 0
    result = carry = 0
    for bit in range(bits):
        total = (original >> bit & 1) + (add >> bit & 1) + carry
        result |= (total & 1) << bit
        carry = 0 if boundary >> bit & 1 else total >> 1
    return result


class RefResponder:
    """Takes packets one after the other, each of them at once.

    Attributes
    ----------
    placements : list of (dict, bytes)
    answers : list of beats
    drops : list of (reason, qp)
    """

    def __init__(self, contexts, *, memory=None, rooms=None):
        self.contexts, self.memory = contexts, memory or RefMemory()
        self.rooms = defaultdict(list, {qp: list(rooms) for qp, rooms in (rooms or {}).items()})
        self.states = {
            qp: RefState(psn=c["expected_psn"], msn=c["start_msn"]) for qp, c in contexts.items()
        }
        self.placements, self.answers, self.drops = [], [], []

    def take(self, packet, *, reads_full=False):
        head = packet[0]
        qp = head["bth"]["dest_qp"] & 3
        context, state = self.contexts.get(qp), self.states.get(qp, RefState(0))
        rooms = self.rooms[qp]
        room = min(rooms[0], (1 << 32) - 1) if rooms else 0
        said = judge(head, context, state, reads_full=reads_full, not_ready=not rooms, room=room)
        if said.takes and rooms:
            rooms.pop(0)
        reason, psn = said.reason, head["bth"]["psn"]
        match said.verdict:
            case Verdict.EXECUTE:
                self._execute(packet, qp, context, state, said, room)
            case Verdict.DUPLICATE:
                reason = self._repeat(packet, context, state, said)
            case Verdict.AHEAD:
                if not state.reported:
                    self._ack(context, state.psn, state.msn, 0x60)
                state.reported = True
            case Verdict.INVALID:
                self._ack(context, psn, state.msn, 0x61)
                if said.takes or (state.in_message and state.in_send):
                    self._refuse(head, qp, state, said)
                state.failed = True
            case Verdict.RNR:
                self._ack(context, psn, state.msn, 0x20 | context["rnr_timer"])
                state.reported = True
        if reason:
            self.drops.append((reason.value, head["bth"]["dest_qp"]))

    def _execute(self, packet, qp, context, state, said, room):
        head = packet[0]
        bth, reth = head["bth"], _reth.unpack(head["ext"].to_bytes(16, "big"))
        state.msn = (state.msn + said.ends) & PSN_MASK
        match said.kind:
            case RequestKind.READ:
                self._read(context, bth["psn"], state.msn, reth)
            case RequestKind.ATOMIC:
                original = self._atomic(qp, bth, reth, _bytes(packet))
                state.atomics = [*state.atomics, (bth["psn"], original)][-context["max_reads"] :]
                self._found(context, bth["psn"], state.msn, original)
            case _:
                sends, length = said.kind is RequestKind.SEND, head["length"]
                if said.starts:
                    state.address, state.length = reth["va"], 0 if sends else reth["length"]
                    state.left = room if sends else reth["length"]
                state.length += length if sends else 0
                self._place(packet, qp, state, said)
                state.address, state.left = state.address + length, state.left - length
        state.psn = (state.psn + said.packets) & PSN_MASK
        state.in_message, state.reported = not said.ends, False
        state.in_send = said.kind is RequestKind.SEND
        if bth["ack_request"] and said.kind in (RequestKind.WRITE, RequestKind.SEND):
            self._ack(context, bth["psn"], state.msn)

    def _repeat(self, packet, context, state, said):
        """Answers a duplicate; returns why it was dropped."""
        head = packet[0]
        psn, reth = head["bth"]["psn"], _reth.unpack(head["ext"].to_bytes(16, "big"))
        match said.kind:
            case RequestKind.READ:
                self._read(context, psn, state.msn, reth)
            case RequestKind.ATOMIC:
                kept = dict(state.atomics)
                if psn not in kept:
                    return DropReason.PACKET_FORGOTTEN
                self._found(context, psn, state.msn, kept[psn])
            case _:
                if head["bth"]["ack_request"]:
                    self._ack(context, state.psn - 1, state.msn)
        return said.reason

    def _place(self, packet, qp, state, said):
        head, payload = packet[0], _bytes(packet)
        sends, opcode = said.kind is RequestKind.SEND, _number(head)
        imm = ROLES[opcode][3]
        completes = said.ends and (sends or imm)
        if not payload and not completes:
            return
        kind = MarkKind.PAYLOAD_LAST if said.ends else MarkKind.PAYLOAD
        placement = {
            "length": len(payload),
            "mark": {"kind": kind.value, "qp": qp, "index": head["bth"]["psn"]},
            "qp": qp,
            "scatter": int(sends),
            "completes": int(completes),
        }
        if not sends:
            placement["address"] = state.address
        if completes:
            received = (
                (Received.SEND_IMM if imm else Received.SEND) if sends else Received.WRITE_IMM
            )
            placement |= {
                "received": received.value,
                "solicited": head["bth"]["solicited"],
                "message_length": state.length,
                "status": 0,
            }
            if imm:
                placement["imm"] = head["imm"]
        self.placements.append((placement, payload))
        if not sends:
            self.memory.write(state.address, payload)

    def _refuse(self, head, qp, state, said):
        self.placements.append(
            (
                {
                    "length": 0,
                    "qp": qp,
                    "scatter": 1,
                    "completes": 1,
                    "received": Received.SEND.value,
                    "status": Status.LOCAL_LENGTH.value,
                },
                b"",
            )
        )

    def _atomic(self, qp, bth, reth, operands):
        size = reth["length"]
        original = int.from_bytes(self.memory.read(reth["va"], size), "little")
        result = atomic_result(bth["opcode"], size, original, operands)
        payload = result.to_bytes(size, "little")
        self.memory.write(reth["va"], payload)
        mark = {"kind": MarkKind.PAYLOAD_LAST.value, "qp": qp, "index": bth["psn"]}
        placement = {"address": reth["va"], "length": size, "mark": mark, "qp": qp}
        self.placements.append((placement | {"scatter": 0, "completes": 0}, payload))
        return original.to_bytes(8, "big")

    def _ends(self, context):
        return {
            "dest_qp": context["peer_qpn"],
            "dest": context["peer_node"],
            "port": context["port"],
        }

    def _ack(self, context, psn, msn, syndrome=0x1F):
        beat = ack_beat(psn, msn=msn, syndrome=syndrome, **self._ends(context))
        self.answers.append(normal(beat))

    def _respond(self, context, opcode, psn, msn, payload):
        ext = 0 if opcode is RoceOpcode.READ_RESPONSE_MIDDLE else 0x1F << 24 | msn
        beats = packet_beats(opcode, psn, payload, ext=ext, **self._ends(context))
        self.answers += [normal(beat) for beat in beats]

    def _found(self, context, psn, msn, original):
        self._respond(context, RoceOpcode.ATOMIC_ACK, psn, msn, original)

    def _read(self, context, psn, msn, reth):
        payload, mtu = self.memory.read(reth["va"], reth["length"]), 1 << context["mtu_log2"]
        pieces = [payload[i : i + mtu] for i in range(0, len(payload), mtu)] or [b""]
        for i, piece in enumerate(pieces):
            first, last = i == 0, i == len(pieces) - 1
            opcode = {
                (True, True): RoceOpcode.READ_RESPONSE_ONLY,
                (True, False): RoceOpcode.READ_RESPONSE_FIRST,
                (False, True): RoceOpcode.READ_RESPONSE_LAST,
                (False, False): RoceOpcode.READ_RESPONSE_MIDDLE,
            }[first, last]
            self._respond(context, opcode, psn + i, msn, piece)


def _number(head):
    opcode = head["bth"]["opcode"]
    return int(getattr(opcode, "value", opcode))


def _bytes(packet):
    return b"".join(beat["data"].to_bytes(64, "little")[: beat["count"]] for beat in packet)
