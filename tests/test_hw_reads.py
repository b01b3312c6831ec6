"""READs, atomics, fences and local reads from the WQE to the last byte, with loss on the way."""

import random

import pytest
from support_requests import ATOMICS
from support_roce import normal
from support_transport import MTU, TransportRig, bytes_at
from support_wqe import data_segment, inline_segment, reference_decode, verb_wqe

from hw.formats.events import RetryReason
from hw.formats.op import Verb

READ, ADD, DUMP, WRITE, SEND_IMM = 0x10, 0x12, 0x23, 0x08, 0x0B
FENCE = 0x48


def local(number):
    return 0x40_0000 + 0x2000 * number


def remote(number):
    return 0x7000_0000 + 0x2000 * number + 13


def read(number, length, flags=0x08, parts=1):
    """A READ of `length` bytes, into `parts` runs."""
    cut = length // parts
    sizes = [cut] * (parts - 1) + [length - cut * (parts - 1)]
    runs = [data_segment(local(number) + at * (cut + 7), size) for at, size in enumerate(sizes)]
    return verb_wqe(READ, *runs, raddr=remote(number), flags=flags)


def add(number, flags=0x08):
    return verb_wqe(
        ADD, bytes(range(16)), data_segment(local(number), 8), raddr=remote(number), flags=flags
    )


def write(number, length, flags=0x08):
    return verb_wqe(WRITE, data_segment(local(number), length), raddr=remote(number), flags=flags)


class ReadRig(TransportRig):
    """A `TransportRig` that keeps what lands."""

    def __init__(self, **options):
        super().__init__(**options)
        self._runs, self._landed, self._at = [], [], {}
        self.on_taken |= {"land_writes": self._announce, "land_lines": self._land}

    def _announce(self, cycle, request):
        self._runs.append(request)

    def _land(self, cycle, line):
        self._landed.append((cycle, line))

    @property
    def landed(self):
        """(cycle, byte) by address; one that was written again must be the same."""
        memory, lines = {}, iter(self._landed)
        for run in self._runs:
            address, end = run["address"], run["address"] + run["length"]
            while address < end:
                cycle, line = next(lines)
                assert line["lane"] == address % 64
                raw = line["data"].to_bytes(64, "little")
                for lane in range(line["lane"], line["lane"] + line["count"]):
                    assert memory.setdefault(address, (cycle, raw[lane]))[1] == raw[lane]
                    address += 1
            assert address == end
        return memory

    def wanted(self):
        """Bytes by address."""
        memory = {}
        for qp, wqes in self.expected.items():
            for index, wqe in wqes:
                op, _, landings = reference_decode(wqe, qp=qp, wqe_index=index, mtu_log2=8)
                raw = bytes_at(op["raddr"], op["length"])
                if Verb(op["verb"]) in ATOMICS:
                    raw = raw[::-1]
                for landing in landings:
                    part, raw = raw[: landing["length"]], raw[landing["length"] :]
                    memory |= {landing["address"] + at: byte for at, byte in enumerate(part)}
        return memory

    def check(self):
        """Each WQE retired once, in order, with its bytes; the peer executed what was posted."""
        assert {address: byte for address, (_, byte) in self.landed.items()} == self.wanted()
        for qp, wqes in self.expected.items():
            assert self.retired(qp) == [(index, 0) for index, _ in wqes]
            executed = self.peer.executed[self.peer_qpn(qp)]
            assert [list(map(normal, packet)) for packet in executed] == [
                list(map(normal, packet)) for packet in self.reference(qp)
            ]

    def reasons(self):
        return [RetryReason(event["reason"]) for event in self.of("on_retransmitted_2")]


def lost(*wanted):
    """Loses the packets (direction, PSN), once each."""
    left = list(wanted)

    def fate(way, qpn, psn, rng):
        if (way, psn) in left:
            left.remove((way, psn))
            return "drop"
        return ""

    return {"faults": fate}


def mixed(rig, qp=0):
    """PSNs 0 to 9."""
    rig.post(qp, write(0, 8))
    rig.post(qp, read(1, 3 * MTU + 5, parts=3))
    rig.post(qp, add(2))
    rig.post(qp, read(3, 0))
    rig.post(qp, write(4, 2 * MTU, FENCE))
    rig.post(qp, verb_wqe(SEND_IMM, inline_segment(b"signal"), imm=7))


def test_each_verb_brings_its_bytes():
    rig = ReadRig(qps=2, psn=0xFFFFFC)
    for qp in range(2):
        mixed(rig, qp)
        rig.ring(qp)
    rig.finish()
    rig.check()
    assert rig.reasons() == []


@pytest.mark.parametrize("way", ["request", "ack"])
@pytest.mark.parametrize("psn", [1, 2, 4, 5, 6])
def test_a_lost_request_or_response_is_made_good(way, psn):
    """A READ goes on from the first response that is missing; no atomic is executed twice."""
    if way == "request" and psn in (2, 4):
        # Within the READ, which is one request: the last packet instead.
        psn = 9
    rig = ReadRig(peer=lost((way, psn)))
    mixed(rig)
    rig.ring(0)
    rig.finish()
    rig.check()
    assert rig.reasons()
    asked = [packet for _, packet in rig.taken["packets"] if packet["bth"]["opcode"] == 0x0C]
    assert psn in {packet["bth"]["psn"] for packet in asked} or psn not in range(1, 5)


def test_what_a_fence_holds_is_read_after_what_it_waits_for_has_landed():
    rig = ReadRig()
    rig.post(0, read(1, 300))
    rig.post(0, verb_wqe(DUMP, data_segment(local(1), 1), flags=FENCE))
    rig.post(0, write(1, 300, FENCE))
    rig.ring(0)
    rig.finish()
    landed = max(cycle for cycle, _ in rig.landed.values())
    reads = [cycle for cycle, _ in rig.taken["payload_requests"]]
    assert len(reads) >= 2 and min(reads) > landed
    assert [index for index, _ in rig.retired(0)] == [0, 1, 2]


@pytest.mark.parametrize("behind", ["read", "fence", "dump"])
def test_what_waits_in_a_qp_that_recovers_passes_in_silence(behind):
    """The READ before it was lost: nothing behind it may leave before it was asked for again."""
    rig = ReadRig(context={"max_reads": 1}, peer=lost(("request", 0)))
    rig.post(0, read(1, 300))
    waits = {
        "read": read(2, 600),
        "fence": write(2, 600, FENCE),
        "dump": verb_wqe(DUMP, data_segment(local(2), 600), flags=FENCE),
    }
    rig.post(0, waits[behind])
    rig.post(0, write(3, 300))
    rig.post(0, read(4, 10))
    rig.ring(0)
    rig.finish()
    rig.check()
    assert rig.reasons() == [RetryReason.TIMEOUT]
    first = [packet["bth"]["psn"] for _, packet in rig.taken["packets"] if packet["first"]]
    assert first[:2] == [0, 0]


def test_a_qp_that_recovers_holds_no_other_up():
    """One waits for a READ that was lost; after its timeout the other's operations go on."""
    rig = ReadRig(qps=2, context={"max_reads": 1}, peer=lost(("request", 0)))
    rig.post(0, read(1, 300))
    rig.post(0, read(2, 300))
    rig.ring(0)
    for number in range(5):
        rig.post(1, write(10 + number, 8))
    rig.ring(1, at=60)
    rig.finish()
    rig.check()


def chaos(share):
    def fate(way, qpn, psn, rng):
        return rng.choices(("drop", "duplicate", ""), (share, share / 2, 1 - 1.5 * share))[0]

    return fate


def any_wqe(rng, number):
    flags = rng.choice((0x08, 0x08, 0x08, FENCE))
    length = rng.choice((0, 1, 8, MTU - 1, MTU, MTU + 1, 3 * MTU + 5))
    kind = rng.randrange(6)
    if kind < 2:
        return read(number, length, flags, parts=rng.choice((1, 3)) if length > 8 else 1)
    if kind == 2:
        return add(number, flags)
    if kind == 3:
        return verb_wqe(DUMP, data_segment(local(number), length), flags=flags)
    if kind == 4:
        return verb_wqe(SEND_IMM, data_segment(local(number), length), imm=number, flags=flags)
    return write(number, length, flags)


@pytest.mark.parametrize("seed", [2, 3])
def test_random_loss_and_duplicates_lose_nothing(seed):
    rng = random.Random(seed)
    rig = ReadRig(
        qps=3,
        psn=0xFFFFE0,
        context={"max_reads": rng.choice((1, 2, 16))},
        peer={"faults": chaos(0.1), "seed": seed},
        seed=seed,
        stall={"land_writes": 0.3, "land_lines": 0.3, "packets": 0.2},
    )
    at = 20
    for number in range(30):
        qp = rng.randrange(3)
        if len(rig.expected[qp]) < 15:
            rig.post(qp, any_wqe(rng, number))
            rig.ring(qp, at)
        at += rng.choice((0, 10, 200))
    rig.finish(60000)
    rig.check()
    assert rig.reasons()


@pytest.mark.parametrize("length", [64, 1024])
@pytest.mark.parametrize("delay", [450, 550, 650])
def test_a_local_read_that_is_read_again_moves_no_psn(length, delay):
    """ACKs and a NAK that are slower than the ACK timeout, and come in the middle of the second
    execution, while the DUMP waits for its bytes.
    """
    sent = []

    def fate(way, qpn, psn, rng):
        sent.extend([psn] if way == "request" else [])
        return "drop" if way == "request" and psn == 2 and sent.count(2) == 1 else ""

    rig = SlowPayload(peer={"faults": fate, "delay": (delay, delay + 1)})
    dump = verb_wqe(DUMP, data_segment(0x6000_0000, length))
    for wqe in (write(0, 8), dump, add(2), write(3, 8), write(4, 8)):
        rig.post(0, wqe)
    rig.ring(0)
    rig.finish(8000)
    executed = [packet[0]["wqe_index"] for packet in rig.peer.executed[rig.peer_qpn(0)]]
    assert executed == [0, 2, 3, 4]
    assert rig.retired(0) == [(index, 0) for index in range(5)]
    assert len(rig.of("on_retransmitted_2")) >= 2


class SlowPayload(ReadRig):
    """Payload takes its time, so that a local read lacks its bytes for long."""

    def _lines(self, name, cycle, request, raw):
        self.read = 300 if name == "payload_lines" else 15
        super()._lines(name, cycle, request, raw)
