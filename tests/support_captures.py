"""Captures of others' requests, sent to our responder; what it answers beside what theirs did.

Not compared: what the frames around the packets hold (addresses, IP identification, TTL), time, and
where the MSN starts.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import scapy.all as scapy
from support_responder import RefMemory
from support_responder_run import Run
from support_roce import packet_beats

from hw.formats.layout import Codec
from hw.formats.roce import EXTENSIONS, RESPONSES, Aeth, AtomicEth, RoceOpcode
from sim.frames import Packet, parse

__all__ = [
    "Capture",
    "CaptureError",
    "Flow",
    "read",
    "replayed",
    "said_of_beats",
    "said_of_packets",
]

#: Room for any message in a receive WQE.
_ROOM = 1 << 31
_ANSWERS = {opcode.value for opcode in RESPONSES}
_ATOMICS = {opcode.value for opcode, headers in EXTENSIONS.items() if headers == (AtomicEth,)}
_READ = RoceOpcode.READ_REQUEST.value
#: Last packets of messages, as `Packet.opcode`s.
_ENDS = (
    {opcode.value for opcode in RoceOpcode if "_LAST" in opcode.name or "_ONLY" in opcode.name}
    | _ATOMICS
    | {_READ}
)
_aeth = Codec(Aeth)


class CaptureError(ValueError):
    """A capture that cannot be replayed; one line."""


@dataclass
class Flow:
    """What one end of a connection asked for, and what the other one answered."""

    requests: list[Packet] = field(default_factory=list)
    answers: list[Packet] = field(default_factory=list)


@dataclass
class Capture:
    """All of a file."""

    name: str
    #: Frames by kind (`sim.frames.Frame`); those with a right ICRC.
    kinds: Counter
    right: int
    flows: list[Flow]


def read(file):
    """A capture file, apart."""
    kinds, right = Counter(), 0
    asked, answered = defaultdict(list), defaultdict(list)
    try:
        with file.open("rb") as opened:
            frames = [parse(raw) for raw, _ in scapy.RawPcapReader(opened)]
    except (OSError, scapy.Scapy_Exception) as error:
        raise CaptureError(f"{file.name}: no capture ({error})") from None
    for frame in frames:
        kinds[frame.kind] += 1
        if frame.packet:
            right += frame.icrc_right
        if frame.kind == "rc" and frame.packet and frame.source and frame.target:
            ends = frame.source.ip, frame.target.ip, frame.packet.bth["dest_qp"]
            (answered if frame.packet.opcode in _ANSWERS else asked)[ends].append(frame.packet)
    flows = [Flow(asked[ends], _answers_of(file, ends, asked[ends], answered)) for ends in asked]
    left = [ends for ends, packets in answered.items() if packets]
    if left:
        raise CaptureError(f"{file.name}: answers to QP {left[0][2]:#x} that nobody asked for")
    return Capture(file.name, kinds, right, flows)


def _answers_of(file, ends, requests, answered):
    """The answers of the other direction whose PSNs are those of the requests; they are taken."""
    source, target, qpn = ends
    first, span = (
        requests[0].bth["psn"],
        sum(_psns(packet, mtu_of(requests)) for packet in requests),
    )

    def within(packets):
        return all((packet.bth["psn"] - first) % (1 << 24) < span for packet in packets)

    found = [
        key
        for key, packets in answered.items()
        if key[:2] == (target, source) and packets and within(packets)
    ]
    if len(found) > 1:
        raise CaptureError(f"{file.name}: answers of QP {qpn:#x} go to any of {len(found)} QPs")
    return answered.pop(found[0]) if found else []


def mtu_of(packets):
    """The smallest MTU that packets fit in."""
    most = max((len(packet.payload) for packet in packets), default=0)
    lengths = [packet.extended["Reth"]["length"] for packet in packets if packet.opcode == _READ]
    # (Of READs alone nothing is known: what theirs was shows in the answers, see `replayed`.)
    return max(256, 1 << (most - 1).bit_length()) if most or not lengths else 1024


def _psns(packet, mtu):
    return max(1, -(-packet.extended["Reth"]["length"] // mtu)) if packet.opcode == _READ else 1


def beats_of(packet):
    """Beats of a captured request."""
    extended, bth, payload = packet.extended, packet.bth, packet.payload
    reth = extended.get("Reth")
    if atomic := extended.get("AtomicEth"):
        reth = {"va": atomic["va"], "rkey": atomic["rkey"], "length": 8}
        operands = (atomic[name].to_bytes(8, "big") for name in ("swap_add", "compare"))
        payload = b"".join(operands) + payload
    return packet_beats(
        bth["opcode"],
        bth["psn"],
        payload,
        dest_qp=bth["dest_qp"],
        ack=bth["ack_request"],
        solicited=bth["solicited"],
        reth=reth,
        imm=extended.get("ImmDt", {}).get("immediate", 0),
    )


def said_of_beats(beats):
    """What answers say, packet by packet: opcode, PSN, QP, AETH and what they carry."""
    said, payload, head = [], b"", {}
    for beat in beats:
        head = beat if beat["first"] else head
        payload += beat["data"].to_bytes(64, "little")[: beat["count"]]
        if beat["last"]:
            bth, opcode = head["bth"], int(head["bth"]["opcode"])
            aeth = _aeth.unpack((head["ext"] & 0xFFFFFFFF).to_bytes(4, "big"))
            middle = opcode == RoceOpcode.READ_RESPONSE_MIDDLE.value
            said.append((opcode, bth["psn"], bth["dest_qp"], None if middle else aeth, payload))
            payload = b""
    return said


def said_of_packets(packets):
    """The same of captured packets."""
    return [
        (
            packet.opcode,
            packet.bth["psn"],
            packet.bth["dest_qp"],
            packet.extended.get("Aeth"),
            packet.extended["AtomicAckEth"]["original"].to_bytes(8, "big")
            if "AtomicAckEth" in packet.extended
            else packet.payload,
        )
        for packet in packets
    ]


class Scripted(RefMemory):
    """A memory whose software changes it: each READ and atomic finds what it found then."""

    def __init__(self, found):
        super().__init__()
        self.found = list(found)

    def read(self, address, length):
        first, data = self.found[0]
        assert (address, length) == (first, min(length, len(data))), "nobody read this"
        self.found[0] = first + length, data[length:]
        if not self.found[0][1]:
            self.found.pop(0)
        return data[:length]


def found_of(requests, answers):
    """(address, bytes) that READs and atomics found, in their order."""
    found, open_reads = (
        [],
        [
            packet.extended.get("Reth") or packet.extended["AtomicEth"]
            for packet in requests
            if packet.opcode == _READ or packet.opcode in _ATOMICS
        ],
    )
    data = b""
    for packet in answers:
        if "AtomicAckEth" in packet.extended:
            original = packet.extended["AtomicAckEth"]["original"]
            found.append((open_reads.pop(0)["va"], original.to_bytes(8, "little")))
        elif packet.opcode != RoceOpcode.ACK.value:
            data += packet.payload
            if packet.opcode in (
                RoceOpcode.READ_RESPONSE_LAST.value,
                RoceOpcode.READ_RESPONSE_ONLY.value,
            ):
                found.append((open_reads.pop(0)["va"], data))
                data = b""
    return found


def replayed(flow):
    """A `Run` of captured requests, in the state in which their responder was."""
    requests, answers = flow.requests, flow.answers
    qpn = requests[0].bth["dest_qp"]
    context = {
        "valid": 1,
        "qpn": qpn,
        "peer_qpn": answers[0].bth["dest_qp"],
        "peer_node": 1,
        "expected_psn": requests[0].bth["psn"],
        "start_msn": _msn_before(requests, answers),
        "mtu_log2": mtu_of(requests + answers).bit_length() - 1,
        "port": 0,
        "rnr_timer": 12,
        "max_reads": 16,
    }
    found = found_of(requests, answers)
    packets = [beats_of(packet) for packet in requests]
    carried = sum(len(packet.payload) for packet in requests + answers)
    run = Run(
        packets,
        {qpn & 3: context},
        rooms={qpn & 3: [_ROOM] * len(requests)},
        limit=4000 + 100 * len(packets) + carried,
        memory=lambda: Scripted(found),
    )
    run.check()
    return run


def _msn_before(requests, answers):
    """Where the responder's MSN stood: what its first answer with one says, less what that
    completes.
    """
    first = next(packet for packet in answers if "Aeth" in packet.extended)
    start = requests[0].bth["psn"]
    upto = (first.bth["psn"] - start) % (1 << 24)
    done = sum(
        packet.opcode in _ENDS and (packet.bth["psn"] - start) % (1 << 24) <= upto
        for packet in requests
    )
    return (first.extended["Aeth"]["msn"] - done) % (1 << 24)
