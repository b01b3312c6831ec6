"""What a requester sends for each verb, in plain Python, and who keeps its READs."""

import random

from support_roce import PSN_MASK, _bits, packet_beats, unpack

from hw.formats.op import Status, Verb
from hw.segmenter import Started

__all__ = ["ATOMICS", "Reads", "gathered_bytes", "is_sent", "request_packets", "response_packets"]

#: Opcodes of the first, middle, last and only packet (InfiniBand specification, table 38).
_MESSAGES = {
    Verb.WRITE: (0x06, 0x07, 0x08, 0x0A),
    Verb.WRITE_IMM: (0x06, 0x07, 0x09, 0x0B),
    Verb.SEND: (0x00, 0x01, 0x02, 0x04),
    Verb.SEND_IMM: (0x00, 0x01, 0x03, 0x05),
}
ATOMICS = {
    Verb.COMPARE_SWAP: 0x13,
    Verb.FETCH_ADD: 0x14,
    Verb.MASKED_COMPARE_SWAP: 0xD3,
    Verb.MASKED_FETCH_ADD: 0xD4,
}


def gathered_bytes(op, mtu):
    """Bytes that are gathered for an operation, as a function of it: message or operands."""
    rng = random.Random(op["qp"] << 16 | op["wqe_index"])
    if op["status"] != Status.SUCCESS or op["verb"] in (Verb.NOP, Verb.READ):
        return b""
    if op["verb"] in ATOMICS:
        wide = op["verb"] == Verb.MASKED_COMPARE_SWAP and op["length"] == 8
        return rng.randbytes(32 if wide else 16)
    return rng.randbytes(op["length"])[op.get("skip", 0) * mtu :]


def is_sent(op):
    return Status(op["status"]) == Status.SUCCESS and Verb(op["verb"]) not in (Verb.NOP, Verb.DUMP)


def response_packets(length, mtu):
    """PSNs that a READ takes."""
    return max(1, -(-length // mtu))


def request_packets(op, mtu, psn, *, payload=None, ack_every=0, **header):
    """(packets, next PSN) of an operation that is sent; the first has PSN `psn`.

    `op` is a dict of an `Op`; what it skips is not sent, and comes before `psn`. `payload` is what
    was gathered for it, if that is not `gathered_bytes`.
    """
    verb, skip = op["verb"], op.get("skip", 0)
    payload = gathered_bytes(op, mtu) if payload is None else payload
    header |= {"qp": op["qp"], "wqe_index": op["wqe_index"]}
    reth = {"va": op["raddr"], "rkey": op["rkey"], "length": op["length"]}
    if verb == Verb.READ:
        left = op["length"] - skip * mtu
        reth |= {"va": op["raddr"] + skip * mtu, "length": left}
        packet = packet_beats(0x0C, psn, ack=1, reth=reth, **header)
        return [packet], (psn + response_packets(left, mtu)) & PSN_MASK
    if verb in ATOMICS:
        packet = packet_beats(ATOMICS[verb], psn, payload, ack=1, reth=reth, **header)
        return [packet], (psn + 1) & PSN_MASK

    runs, packets = [payload[i : i + mtu] for i in range(0, len(payload), mtu)] or [b""], []
    for number, run in enumerate(runs):
        first, last = number == 0 and skip == 0, number == len(runs) - 1
        place = {(1, 0): 0, (0, 0): 1, (0, 1): 2, (1, 1): 3}[first, last]
        is_write = verb in (Verb.WRITE, Verb.WRITE_IMM)
        packet = packet_beats(
            _MESSAGES[verb][place],
            psn + number,
            run,
            ack=int(last or ack_every),
            solicited=int(last and verb != Verb.WRITE and op.get("solicited", 0)),
            reth=reth if first and is_write else None,
            **header,
        )
        if last and verb in (Verb.WRITE_IMM, Verb.SEND_IMM):
            packet = [beat | {"imm": op["imm"]} for beat in packet]
        packets.append(packet)
    return packets, (psn + len(packets)) & PSN_MASK


class Reads:
    """Stands for the landing at a requester's `reads`: it counts what is outstanding, until an ACK
    beat of the last PSN is taken from `acks` (a `Source`, which must be driven before).
    """

    def __init__(self, port, acks, qpns):
        self.port, self.acks, self.qpns = port, acks, qpns
        self.waiting = {qp: [] for qp in qpns.values()}
        #: (cycle, `Started`) of all operations; most that were ever outstanding of a QP.
        self.started, self.most, self._seen = [], 0, 0

    def drive(self, ctx, cycle):
        ctx.set(self.port.room, 1)
        ctx.set(self.port.outstanding, len(self.waiting.get(ctx.get(self.port.ask), [])))

    def sample(self, ctx, cycle):
        for _, beat in self.acks.taken[self._seen :]:
            waiting = self.waiting.get(self.qpns.get(beat["bth"]["dest_qp"]), [])
            while waiting and not (beat["bth"]["psn"] - waiting[0] & PSN_MASK) >> 23:
                waiting.pop(0)
        self._seen = len(self.acks.taken)
        if ctx.get(self.port.started.valid):
            item = unpack(Started, ctx.get(_bits(self.port.started.payload)))
            self.started.append((cycle, item))
            if item["entry"]["reads"] and item["entry"]["sends"]:
                self.waiting[item["qp"]].append(item["entry"]["last_psn"])
                self.most = max(self.most, len(self.waiting[item["qp"]]))
