"""The requester, verb by verb: packets, fences, limits of READs, local reads."""

import random

import pytest
from support_requests import ATOMICS, is_sent
from support_roce import PSN_MASK, Recorder, ack_beat, context_writes
from support_streams import unpack
from test_hw_requester import (
    MTU,
    Run,
    acknowledge,
    all_retired,
    contexts_of,
    op,
    payload_lines,
    random_ops,
)

from hw.formats.context import Table, TxContext
from hw.formats.op import Status, Verb
from hw.formats.roce import Reth, RoceOpcode
from hw.units import TIMER_FRACTION

MESSAGES = (Verb.WRITE, Verb.WRITE_IMM, Verb.SEND, Verb.SEND_IMM, Verb.READ)
SIZES = (0, 1, MTU - 1, MTU, MTU + 1, 3 * MTU + 5)


def opcodes(run):
    return [RoceOpcode(beat["bth"]["opcode"]) for beat in run.sent if beat["first"]]


def sent_at(run):
    """WQE index to the cycle in which its first beat left."""
    cycles = {}
    for cycle, beat in run.packets.items:
        cycles.setdefault(beat["wqe_index"], cycle)
    return cycles


@pytest.mark.parametrize("verb", MESSAGES)
def test_every_size_from_every_packet_on(verb):
    """Each size, as a whole and without the packets that are acknowledged, over the PSN's wrap."""
    contexts = contexts_of(1, start_psn=PSN_MASK - 5)
    ops = [
        op(0, 10 * number + skip, size, verb=verb, skip=skip, solicited=skip & 1)
        for number, size in enumerate(SIZES)
        for skip in range(max(1, -(-size // MTU)))
    ]
    run = Run(ops, contexts, answer=acknowledge(contexts), done=all_retired(ops))
    assert run.sent == run.expected
    assert run.retired_of(0) == [item["wqe_index"] for item in ops]
    psns = [beat["bth"]["psn"] for beat in run.sent if beat["first"]]
    assert psns[0] == PSN_MASK - 5 and min(psns) < 3
    entries = [item for _, item in run.reads.started]
    for item, started in zip(ops, entries, strict=True):
        entry, packets = started["entry"], max(1, -(-item["length"] // MTU))
        assert started["psn"] == (entry["first_psn"] + item["skip"]) & PSN_MASK
        assert entry["last_psn"] == (entry["first_psn"] + packets - 1) & PSN_MASK
        assert (entry["reads"], entry["sends"], started["listed"]) == (verb == Verb.READ, 1, 1)


@pytest.mark.parametrize("verb", ATOMICS)
def test_an_atomic_is_one_packet_of_its_operands(verb):
    contexts = contexts_of(1, start_psn=PSN_MASK)
    sizes = (4, 8) if verb.name.startswith("MASKED") else (8, 8)
    ops = [op(0, index, size, verb=verb) for index, size in enumerate(sizes)]
    run = Run(ops, contexts, answer=acknowledge(contexts), done=all_retired(ops))
    assert run.sent == run.expected
    assert [beat["bth"]["psn"] for beat in run.sent] == [PSN_MASK, 0]
    wide = verb == Verb.MASKED_COMPARE_SWAP
    assert [beat["length"] for beat in run.sent] == [16, 32 if wide else 16]
    assert [unpack(Reth, beat["ext"])["length"] for beat in run.sent] == list(sizes)
    assert opcodes(run) == [RoceOpcode[verb.name]] * 2
    assert {item["entry"]["reads"] for _, item in run.reads.started} == {1}


def test_immediate_data_and_solicited_event_are_in_the_last_packet_alone():
    contexts = contexts_of(1)
    ops = [op(0, index, 2 * MTU, verb=verb, solicited=1) for index, verb in enumerate(MESSAGES)]
    run = Run(ops, contexts, answer=acknowledge(contexts), done=all_retired(ops))
    marks = {
        (Verb(ops[beat["wqe_index"]]["verb"]), beat["imm"], beat["bth"]["solicited"])
        for beat in run.sent
        if beat["imm"] or beat["bth"]["solicited"]
    }
    assert marks == {
        (Verb.WRITE_IMM, ops[1]["imm"], 1),
        (Verb.SEND, 0, 1),
        (Verb.SEND_IMM, ops[3]["imm"], 1),
    }
    with_imm = {RoceOpcode.WRITE_LAST_IMM.value, RoceOpcode.SEND_LAST_IMM.value}
    assert all(beat["bth"]["opcode"] in with_imm for beat in run.sent if beat["imm"])


@pytest.mark.parametrize("behind", [Verb.WRITE, Verb.SEND_IMM, Verb.READ, Verb.FETCH_ADD])
@pytest.mark.parametrize("before", [Verb.READ, Verb.MASKED_FETCH_ADD])
def test_a_fence_waits_for_reads_and_atomics_of_its_qp(before, behind):
    contexts = contexts_of(2)
    ops = [
        op(0, 0, 8, verb=before),
        op(1, 0, 8, verb=before),
        op(0, 1, 8, verb=Verb.WRITE),
        op(0, 2, 8, verb=behind, fence=1),
        op(0, 3, 8, verb=Verb.WRITE),
    ]
    acks = [
        (200, ack_beat(1, dest_qp=0x500)),
        (400, ack_beat(3, dest_qp=0x500)),
        (500, ack_beat(7, dest_qp=0x501)),
    ]
    run = Run(ops, contexts, acks=acks, done=all_retired(ops))
    assert run.sent == run.expected
    cycles = {key: cycle for key, cycle in sent_at(run).items() if key}
    assert cycles[1] < 40, "no fence, no wait"
    # Taken at t, the ACK shows in the look-up at t + 1; five cycles of transmit delay.
    assert cycles[2] == 201 + 5 and cycles[3] == cycles[2] + 1


def test_a_fence_without_reads_costs_nothing():
    contexts = contexts_of(2)
    ops = [op(0, index, 8, verb=Verb.WRITE, fence=index & 1) for index in range(8)]
    ops.insert(0, op(1, 0, 8, verb=Verb.READ))
    run = Run(ops, contexts, answer=acknowledge(contexts, 300), done=all_retired(ops))
    left = [cycle for cycle, _ in run.packets.items]
    assert left[-1] - left[0] == len(left) - 1


def test_nop_and_local_read_wait_behind_a_fence_too():
    contexts = contexts_of(1)
    ops = [
        op(0, 0, 8, verb=Verb.READ),
        op(0, 1, verb=Verb.NOP, fence=1),
        op(0, 2, 8, verb=Verb.DUMP, fence=1),
        op(0, 3, 8, verb=Verb.WRITE),
    ]
    acks = [(300, ack_beat(0, dest_qp=0x500)), (400, ack_beat(1, dest_qp=0x500))]
    run = Run(ops, contexts, acks=acks, done=all_retired(ops))
    cycles = [cycle for cycle, _ in run.reads.started]
    assert cycles[0] < 10 and cycles[1:] == [301, 302, 303]
    assert run.retired_of(0) == [0, 1, 2, 3]


@pytest.mark.parametrize("most", [1, 2, 5, 16])
def test_no_more_reads_are_outstanding_than_the_qp_may_have(most):
    contexts = contexts_of(2, max_reads=most)
    verbs = (Verb.READ, Verb.FETCH_ADD, Verb.WRITE, Verb.READ)
    ops = [
        op(number % 2, number // 2, 8 if number % 4 == 1 else 300, verb=verbs[number % 4])
        for number in range(60)
    ]
    run = Run(ops, contexts, answer=acknowledge(contexts, 90), done=all_retired(ops))
    assert run.sent == run.expected
    assert run.reads.most == most
    for qp in contexts:
        assert run.retired_of(qp) == list(range(30))


def test_an_operation_that_waits_is_flushed_when_its_qp_fails():
    """And so are a READ that was never sent, and its landings are for nobody."""
    contexts = contexts_of(1, max_reads=1)
    ops = [
        op(0, 0, 8, verb=Verb.READ),
        op(0, 1, 300, verb=Verb.READ),
        op(0, 2, 8, verb=Verb.WRITE, fence=1),
        op(0, 3, 300, verb=Verb.DUMP),
    ]
    run = Run(
        ops,
        contexts,
        acks=[(100, ack_beat(0, dest_qp=0x500, syndrome=0x62))],
        expected=1,
        done=all_retired(ops),
    )
    assert [beat["wqe_index"] for beat in run.sent] == [0]
    statuses = [event["status"] for event in run.bench.of("on_retired")]
    assert statuses == [0x13, 5, 5, 5]
    told = [(item["entry"]["reads"], item["entry"]["sends"]) for _, item in run.reads.started]
    assert told == [(1, 1), (1, 0), (0, 0), (0, 0)]


@pytest.mark.parametrize("length", [1, 64, MTU, MTU + 1, 3 * MTU + 5])
def test_a_local_read_retires_when_its_last_byte_has_come(length):
    contexts = contexts_of(1, start_psn=PSN_MASK)
    ops = [op(0, 0, length, verb=Verb.DUMP), op(0, 1, 8)]
    run = Run(
        ops,
        contexts,
        lines=lambda packets: [
            (100 + 50 * number, line) for number, line in enumerate(payload_lines(packets))
        ],
        answer=acknowledge(contexts),
        done=all_retired(ops),
    )
    lines = sum(-(-min(MTU, length - at) // 64) for at in range(0, length, MTU))
    assert [beat["bth"]["psn"] for beat in run.sent] == [PSN_MASK], "it takes no PSN"
    assert run.retired.items[0][0] == 100 + 50 * (lines - 1) + 2
    assert [c["length"] for c in run.completions.words] == [length, 8]
    assert run.retired_of(0) == [0, 1]


def test_local_reads_retire_in_their_turn():
    """Bytes that come early do not retire a WQE before those before it, nor another local read."""
    contexts = contexts_of(2)
    ops = [
        op(0, 0, 8),
        op(0, 1, 8, verb=Verb.DUMP),
        op(0, 2, 0, verb=Verb.DUMP),
        op(0, 3, 8, verb=Verb.DUMP),
        op(1, 0, 8, verb=Verb.DUMP),
        op(0, 4, 8),
        op(0, 5, 8, verb=Verb.DUMP),
    ]
    times = [20, 20, 20, 150, 170, 250]
    run = Run(
        ops,
        contexts,
        lines=lambda packets: list(zip(times, payload_lines(packets), strict=True)),
        acks=[(100, ack_beat(0, dest_qp=0x500)), (200, ack_beat(1, dest_qp=0x500))],
        done=all_retired(ops),
    )
    retired = [
        (cycle, event["qp"], event["wqe_index"])
        for cycle, name, event in run.bench.events
        if name == "on_retired"
    ]
    assert retired == [
        (101, 0, 0),
        (102, 0, 1),
        (103, 0, 2),
        (104, 0, 3),
        (152, 1, 0),
        (201, 0, 4),
        (252, 0, 5),
    ]


def test_local_reads_that_are_flushed_are_not_counted():
    """A QP in error retires one whose bytes are under way; after a new context the next one waits
    for its own bytes.
    """
    contexts = contexts_of(1)
    ops = [op(0, 0, 8), op(0, 1, 8, verb=Verb.DUMP), op(0, 2, 8, verb=Verb.DUMP)]
    again = context_writes(Table.TX, TxContext, contexts)
    run = Run(
        ops,
        contexts,
        starts=[10, 10, 170],
        configs=[(150, item) for _, item in again],
        lines=lambda packets: list(zip([20, 200, 300], payload_lines(packets), strict=True)),
        acks=[(100, ack_beat(0, dest_qp=0x500, syndrome=0x63))],
        done=all_retired(ops),
    )
    assert [cycle for cycle, _ in run.retired.items] == [101, 102, 302]
    assert [event["status"] for event in run.bench.of("on_retired")] == [0x14, 5, 0]


@pytest.mark.parametrize("seed", range(5, 8))
def test_mixed_verbs_with_few_reads_and_stalls(seed):
    """What is told to the landing: every READ and atomic, in the order of all operations."""
    rng = random.Random(seed)
    contexts = contexts_of(start_psn=0xFFFFC0, max_reads=rng.choice((1, 3)))
    ops = random_ops(seed, 80)
    run = Run(
        ops,
        contexts,
        idle=0.3,
        stall=0.3,
        seed=seed,
        answer=acknowledge(contexts, 40),
        done=all_retired(ops),
    )
    assert run.sent == run.expected
    told = [(item["qp"], item["entry"]["wqe_index"]) for _, item in run.reads.started]
    assert told == [(item["qp"], item["wqe_index"]) for item in ops]
    for item, (_, started) in zip(ops, run.reads.started, strict=True):
        reads = item["verb"] == Verb.READ or item["verb"] in ATOMICS
        assert started["entry"]["reads"] == (reads and item["status"] == Status.SUCCESS)
        assert started["entry"]["sends"] <= is_sent(item)


def test_unfenced_is_told_once_for_each_fenced_operation_with_pieces():
    contexts = contexts_of(1)
    verbs = [Verb.NOP, Verb.READ, Verb.WRITE, Verb.DUMP, Verb.FETCH_ADD, Verb.SEND]
    ops = [op(0, 2 * index, 8, verb=verb, fence=1) for index, verb in enumerate(verbs)]
    ops += [op(0, 20 + index, 0, verb=verb, fence=1) for index, verb in enumerate(verbs[2:4])]
    ops += [op(0, 30, 8, fence=0), op(0, 31, 0, fence=1, status=Status.LOCAL_LENGTH)]
    ops[0]["length"] = 0
    ops += [op(0, 32, 8, verb=Verb.SEND, fence=1)]
    told = []

    def watch(run):
        told.append(Recorder(run.dut.recovery.unfenced))
        return told

    run = Run(ops, contexts, answer=acknowledge(contexts, 30), done=all_retired(ops), watch=watch)
    # WRITE, DUMP, FETCH_ADD, SEND, and the one behind the error, whose pieces are dropped.
    assert len(told[0].items) == 5
    assert run.retired_of(0) == [item["wqe_index"] for item in ops]


@pytest.mark.parametrize("came", [1, 2, 3])
def test_a_read_times_out_while_a_part_of_its_response_is_missing(came):
    """All of its PSNs have left with its one packet."""
    contexts = contexts_of(1)
    contexts[0] |= {"ack_timeout": 1, "retry_count": 7}
    acks = [(100, ack_beat(psn, dest_qp=0x500)) for psn in range(came)]
    held = []

    def watch(run):
        held.append(Recorder(run.dut.recovery.hold.valid))
        return held

    run = Run(
        [op(0, 0, 3 * MTU, verb=Verb.READ)],
        contexts,
        acks=acks,
        ack_unit=200 << TIMER_FRACTION,
        done=lambda run: run.bench.cycle > 900,
        watch=watch,
    )
    assert len(run.acks.taken) == came
    assert bool(held[0].items) == (came < 3)
