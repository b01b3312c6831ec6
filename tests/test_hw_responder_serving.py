"""The responder and what it does not do alone: READs, atomics, receive WQEs."""

import random

import pytest
from support_responder import RefMemory
from support_responder_run import MTU, Run, contexts_of
from support_roce import PSN_MASK, context_writes, packet_beats, write_packets
from support_streams import unpack

from hw.formats.context import RxContext, Table
from hw.formats.events import DropReason
from hw.formats.roce import Aeth, RoceOpcode

BASE = 0x2000_0000_0000
#: Atomic, bytes that it works on, bytes of operands.
ATOMICS = [
    (RoceOpcode.FETCH_ADD, 8, 16),
    (RoceOpcode.COMPARE_SWAP, 8, 16),
    (RoceOpcode.MASKED_FETCH_ADD, 8, 16),
    (RoceOpcode.MASKED_FETCH_ADD, 4, 16),
    (RoceOpcode.MASKED_COMPARE_SWAP, 8, 32),
    (RoceOpcode.MASKED_COMPARE_SWAP, 4, 16),
]


def request(opcode, psn, payload=b"", *, qp=0, va=BASE, length=None, ack=1, **more):
    """One packet of any kind, with a RETH."""
    length = len(payload) if length is None else length
    reth = {"va": va, "rkey": 7, "length": length}
    return packet_beats(opcode, psn, payload, dest_qp=0x500 + qp, ack=ack, reth=reth, **more)


def read(psn, length, *, va=BASE, qp=0):
    return request(RoceOpcode.READ_REQUEST, psn, qp=qp, va=va, length=length)


def write(psn, payload, *, va=BASE, qp=0):
    return request(RoceOpcode.WRITE_ONLY, psn, payload, qp=qp, va=va)


def add(psn, value, *, va=BASE, qp=0):
    operands = value.to_bytes(8, "big") + bytes(8)
    return request(RoceOpcode.FETCH_ADD, psn, operands, qp=qp, va=va, length=8)


def answers(run):
    """(opcode, PSN, syndrome) of each packet that was answered; None for a MIDDLE."""
    return [
        (
            RoceOpcode(beat["bth"]["opcode"]),
            beat["bth"]["psn"],
            unpack(Aeth, beat["ext"])["syndrome"] if beat["ext"] else None,
        )
        for beat in run.acks.words
        if beat["first"]
    ]


@pytest.mark.parametrize("lane", [0, 1, 63])
@pytest.mark.parametrize("length", [0, 1, MTU, MTU + 1, 2 * MTU, 3 * MTU + 63])
def test_a_read_brings_the_bytes_and_takes_their_psns(length, lane):
    packets = max(1, -(-length // MTU))
    psn = PSN_MASK
    run = Run(
        [read(psn, length, va=BASE + lane), write((psn + packets) & PSN_MASK, b"x")],
        contexts_of(1, psn=psn, msn=PSN_MASK),
        stall=0.3,
    )
    run.check()
    assert not run.drops
    assert [psn for _, psn, _ in answers(run)] == [(psn + i) & PSN_MASK for i in range(packets + 1)]
    assert [unpack(Aeth, run.acks.words[i]["ext"])["msn"] for i in (0, -1)] == [0, 1]


def test_a_response_has_an_aeth_but_in_its_middle():
    run = Run([read(0, 3 * MTU)], contexts_of(1))
    assert answers(run) == [
        (RoceOpcode.READ_RESPONSE_FIRST, 0, 0x1F),
        (RoceOpcode.READ_RESPONSE_MIDDLE, 1, None),
        (RoceOpcode.READ_RESPONSE_LAST, 2, 0x1F),
    ]


def test_what_is_answered_later_waits_for_the_response():
    packets = [
        read(0, 2 * MTU),
        write(2, bytes(8)),
        read(3, 8),
        request(0x15, 4),
        write(5, bytes(8)),
    ]
    run = Run(packets, contexts_of(1), latency=200, tx=1)
    run.check()
    assert [(psn, syndrome) for _, psn, syndrome in answers(run)] == [
        (0, 0x1F),
        (1, 0x1F),
        (2, 0x1F),
        (3, 0x1F),
        (4, 0x61),
    ]
    assert run.drops[-1] == (DropReason.PACKET_QP_ERROR.value, 0x500)


def test_a_duplicate_read_is_executed_again_from_where_it_asks():
    packets = [read(0, 3 * MTU), read(1, 2 * MTU, va=BASE + MTU), write(3, b"x"), read(0, 8)]
    run = Run(packets, contexts_of(1), stall=0.2)
    run.check()
    assert [psn for _, psn, _ in answers(run)] == [0, 1, 2, 1, 2, 3, 0]
    assert run.drops == [(DropReason.PACKET_DUPLICATE.value, 0x500)] * 2


@pytest.mark.parametrize("kind", ["read", "atomic"])
def test_what_reads_memory_goes_behind_all_writes(kind):
    # The writes are taken slowly, and have gone to the write engine only much later.
    for unsettled in (range(0), range(0, 150)):
        packets = [write(psn, bytes([psn + 1] * MTU), va=BASE + MTU * psn) for psn in range(4)]
        packets.append(read(4, 4 * MTU) if kind == "read" else add(4, 1, va=BASE + 3 * MTU))
        run = Run(packets, contexts_of(1), stall=0.8, unsettled=unsettled, tx=1)
        run.check()
        reader = run.reads if kind == "read" else run.atomics
        assert reader.requests.items[0][0] >= unsettled.stop


@pytest.mark.parametrize("opcode,size,operands", ATOMICS)
def test_atomics_change_memory_and_say_what_was_there(opcode, size, operands):
    rng = random.Random(size)
    packets, contexts = [], contexts_of(2)
    for i in range(12):
        va = BASE + 64 + size * rng.randrange(3)
        words = b"".join(
            rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)])
            for _ in range(operands // size)
        )
        qp = i % 2
        packets.append(request(opcode, i // 2 + 11 * qp, words, qp=qp, va=va, length=size))
    run = Run(packets, contexts, stall=0.2)
    run.check()
    assert {opcode for opcode, _, _ in answers(run)} == {RoceOpcode.ATOMIC_ACK}
    assert len(run.written) == 12 and not run.drops


def test_a_packet_behind_an_atomic_waits_until_it_has_written():
    run = Run([add(0, 5), write(1, b"y" * 8), add(2, 1)], contexts_of(1), latency=100, stall=0.5)
    run.check()
    found = [beat["data"].to_bytes(64, "little")[:8] for beat in run.acks.words if beat["count"]]
    assert found[1] == b"y" * 8
    # Memory is little-endian, the answer big-endian.
    assert found[0] == RefMemory().read(BASE, 8)[::-1]


def test_a_duplicate_atomic_gets_its_answer_while_that_is_kept():
    packets = [add(psn, psn + 1) for psn in range(4)]
    packets += [add(psn, 99) for psn in (3, 2, 1, 0, 3)]
    run = Run([*packets, add(4, 1)], contexts_of(1, max_reads=2), stall=0.2)
    run.check()
    assert [psn for _, psn, _ in answers(run)] == [0, 1, 2, 3, 3, 2, 3, 4]
    reasons = [DropReason.PACKET_DUPLICATE] * 2 + [DropReason.PACKET_FORGOTTEN] * 2
    reasons.append(DropReason.PACKET_DUPLICATE)
    assert [reason for reason, _ in run.drops] == [reason.value for reason in reasons]


def test_a_new_context_forgets_answers():
    contexts = contexts_of(1)
    again = {0: {**contexts[0], "expected_psn": 1}}
    configs = [(200, item) for _, item in context_writes(Table.RX, RxContext, again)]
    packets, starts = [add(0, 1), add(0, 1)], [10, 300]
    run = Run(packets, contexts, starts=starts, until=400)
    assert run.drops == [(DropReason.PACKET_DUPLICATE.value, 0x500)]
    run = Run(packets, contexts, starts=starts, until=400, configs=configs)
    assert run.drops == [(DropReason.PACKET_FORGOTTEN.value, 0x500)]


@pytest.mark.parametrize("kind", ["read", "atomic"])
def test_a_read_or_atomic_too_many_is_refused(kind):
    # Answers cannot leave, so all that was asked for is outstanding.
    def packets(count):
        made = [read(psn, 8, va=BASE + 64 * psn) for psn in range(count)]
        if kind == "atomic":
            made[-1] = add(count - 1, 1)
        return made

    within = Run(packets(3), contexts_of(1, max_reads=3), acks_stall=0.99)
    within.check()
    # The response of the first leaves long after the fourth has come.
    run = Run(packets(4), contexts_of(1, max_reads=3), latency=300, tx=1, full=(3,))
    run.check()
    assert answers(run) == [
        *((RoceOpcode.READ_RESPONSE_ONLY, psn, 0x1F) for psn in range(3)),
        (RoceOpcode.ACK, 3, 0x61),
    ]
    assert run.drops == [(DropReason.PACKET_READS.value, 0x500)]


def test_reads_that_were_answered_make_room():
    run = Run(
        [read(psn, 8) for psn in range(40)],
        contexts_of(1, max_reads=1),
        starts=[10 + 60 * psn for psn in range(40)],
    )
    run.check()
    assert not run.drops


def send(psn, payload, *, opcode=RoceOpcode.SEND_ONLY, qp=0, **more):
    return packet_beats(opcode, psn, payload, dest_qp=0x500 + qp, ack=1, **more)


def test_sends_take_a_wqe_and_complete_it():
    rng = random.Random(1)
    long = rng.randbytes(2 * MTU + 5)
    packets = [
        send(0, b"abc"),
        send(1, b"", opcode=RoceOpcode.SEND_ONLY_IMM, imm=0x12345678, solicited=1),
        send(2, long[:MTU], opcode=RoceOpcode.SEND_FIRST),
        send(3, long[MTU : 2 * MTU], opcode=RoceOpcode.SEND_MIDDLE),
        send(4, long[2 * MTU :], opcode=RoceOpcode.SEND_LAST_IMM, imm=7),
        request(RoceOpcode.WRITE_ONLY_IMM, 5, imm=9),
        request(RoceOpcode.WRITE_FIRST, 6, long[:MTU], length=MTU + 1, va=BASE + 33),
        packet_beats(RoceOpcode.WRITE_LAST_IMM, 7, b"q", dest_qp=0x500, imm=10, ack=1),
        write(8, b"w"),
    ]
    rooms = {0: [3, 0, len(long), 0, 0]}
    run = Run(packets, contexts_of(1), rooms=rooms, stall=0.3, idle=0.1)
    run.check()
    assert not run.drops and not run.receive.rooms[0]
    completed = [placed for placed, _ in run.written if placed["completes"]]
    assert [placed["message_length"] for placed in completed] == [3, 0, len(long), 0, MTU + 1]


@pytest.mark.parametrize("at", [0, 1])
def test_a_send_longer_than_its_wqe_is_refused_and_completes_it(at):
    packets = [
        send(0, bytes(MTU), opcode=RoceOpcode.SEND_FIRST),
        send(1, bytes(9), opcode=RoceOpcode.SEND_LAST),
        send(2, b"more"),
    ]
    run = Run(packets, contexts_of(1), rooms={0: [MTU - 1 if at == 0 else MTU + 8, 64]})
    run.check()
    assert answers(run)[-1] == (RoceOpcode.ACK, at, 0x61)
    assert run.drops[0] == (DropReason.PACKET_TOO_LONG.value, 0x500)
    assert run.receive.rooms[0] == [64]


def test_a_send_that_breaks_off_completes_its_wqe_in_error():
    packets = [send(0, bytes(MTU), opcode=RoceOpcode.SEND_FIRST), write(1, b"x")]
    run = Run(packets, contexts_of(1), rooms={0: [4096]})
    run.check()
    assert run.drops == [(DropReason.PACKET_OPCODE.value, 0x500)]
    assert run.written[-1][0]["completes"]


def mixed(seed, count, contexts):
    """Packets of all kinds over all QPs, and the rooms of their receive WQEs.

    What a READ reads is not written behind it, since that may overtake it.
    """
    rng = random.Random(seed)
    psns = {qp: context["expected_psn"] for qp, context in contexts.items()}
    fresh, packets, rooms = BASE, [], {qp: [] for qp in contexts}
    for _ in range(count):
        qp = rng.choice(list(contexts))
        psn, length = psns[qp], rng.choice([0, 1, 64, MTU, MTU + 1, 700])
        header = {"dest_qp": 0x500 + qp}
        match rng.randrange(4):
            case 0:
                new = write_packets(rng.randbytes(length), MTU, psn, raddr=fresh, **header)
                fresh += length + rng.randrange(80)
            case 1:
                va = BASE + rng.randrange(max(1, fresh - BASE))
                length = min(length, fresh - va)
                new = [read(psn, length, va=va, qp=qp)]
                psns[qp] += max(1, -(-length // MTU)) - 1
            case 2:
                opcode, size, operands = rng.choice(ATOMICS)
                va = BASE - 64 + size * rng.randrange(3)
                words = rng.randbytes(operands)
                new = [request(opcode, psn, words, qp=qp, va=va, length=size)]
            case 3:
                new = [send(psn, rng.randbytes(length % (MTU + 1)), qp=qp)]
                rooms[qp].append(rng.choice([MTU, 5000, (1 << 35) + 1]))
        psns[qp] = (psns[qp] + len(new)) & PSN_MASK
        packets += new
    return packets, rooms


@pytest.mark.parametrize("seed,idle,stall", [(1, 0, 0), (2, 0.4, 0.4), (3, 0, 0.7)])
def test_all_kinds_match_reference(seed, idle, stall):
    contexts = contexts_of(psn=0xFFFFF0)
    packets, rooms = mixed(seed, 40, contexts)
    run = Run(packets, contexts, rooms=rooms, idle=idle, stall=stall, seed=seed, limit=20000)
    run.check()
    assert not run.drops


@pytest.mark.parametrize("seed", range(2))
def test_all_kinds_twice_match_reference(seed):
    contexts = contexts_of()
    packets, rooms = mixed(seed, 25, contexts)
    packets = [packet for packet in packets for _ in range(2)]
    run = Run(packets, contexts, rooms=rooms, stall=0.2, seed=seed, limit=20000)
    run.check()
    assert {reason for reason, _ in run.drops} == {DropReason.PACKET_DUPLICATE.value}


def test_latency_closed_form():
    for tx, latency in ((1, 20), (60, 20)):
        run = Run([read(0, 8)], contexts_of(1), tx=tx, latency=latency)
        ((taken, _),) = run.packets.taken
        assert run.reads.requests.items[0][0] == taken + 2
        data = run.reads.lines.taken[0][0]
        assert run.acks.items[0][0] == max(data, taken + 2 + max(1, tx))
        run = Run([add(0, 8), write(1, b"x", va=BASE + 64)], contexts_of(1), tx=tx, latency=latency)
        assert run.atomics.requests.items[0][0] == run.packets.taken[0][0] + 2
        line = run.atomics.lines.taken[0][0]
        assert run.placements.items[0][0] == line + 2
        assert run.packets.taken[1][0] == line + 3


def test_skipping_quiet_cycles_changes_nothing():
    def once(skip):
        contexts = contexts_of()
        packets, rooms = mixed(5, 12, contexts)
        run = Run(
            packets,
            contexts,
            rooms=rooms,
            skip=skip,
            tx=60,
            latency=90,
            stall=0.3,
            starts=[100 + 160 * i for i in range(len(packets))],
            limit=8000,
        )
        run.check()
        kept = (run.bench.events, run.acks.items, run.placements.items, run.lines.items)
        return kept, run.bench.evaluated, run.bench.cycle

    full, skipped = once(False), once(True)
    assert full[0] == skipped[0]
    assert skipped[1] < 0.6 * skipped[2]
