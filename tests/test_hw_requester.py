"""The requester against plain Python: packets, PSNs, and what retires when."""

import random

import pytest
from support_requests import ATOMICS, Reads, gathered_bytes, is_sent, request_packets
from support_roce import (
    PSN_MASK,
    ContextTable,
    Pulses,
    Recorder,
    ack_beat,
    context_writes,
    normal,
    packet_beats,
)
from support_streams import Bench, Sink, Source, pack, unpack

from hw.config import Structure
from hw.formats.context import ConfigWrite, Table, TxContext
from hw.formats.events import DropReason
from hw.formats.op import Retirement, Status, Verb
from hw.formats.roce import Reth, RoceOpcode
from hw.requester import Requester
from hw.timing import NicTiming

STRUCTURE = Structure(qps=4, window_blocks=16)
MTU = 256


def contexts_of(qps=4, start_psn=0, mtu_log2=8, max_reads=16):
    return {
        qp: {
            "valid": 1,
            "qpn": 0x500 + qp,
            "peer_qpn": 0x900 + qp,
            "peer_node": 3 + qp,
            "start_psn": (start_psn + 7 * qp) & PSN_MASK,
            "mtu_log2": mtu_log2,
            "port": qp & 1,
            "max_reads": max_reads,
        }
        for qp in range(qps)
    }


def op(qp, index, length=0, **fields):
    return {
        "verb": Verb.WRITE,
        "qp": qp,
        "wqe_index": index,
        "blocks": 1,
        "signaled": 1,
        "length": length,
        "raddr": 0x2000_0000_1000 + 4096 * index,
        "rkey": 0x77 + qp,
        "vendor_opcode": 8,
        "imm": 0xDEAD_0000 + index,
        "status": Status.SUCCESS,
        **fields,
    }


def ref_packets(ops, contexts, ack_every=0):
    """Packets; those that are gathered but not sent, too; per QP the WQEs with their status.

    What comes behind an operation with a status is flushed.
    """
    psns = {qp: context["start_psn"] for qp, context in contexts.items()}
    packets, gathered, ends, stopped = [], [], {qp: [] for qp in contexts}, set()
    for item in ops:
        qp = item["qp"]
        ends[qp].append((item, Status.FLUSHED if qp in stopped else item["status"]))
        if item["status"] != Status.SUCCESS:
            stopped.add(qp)
        mtu = 1 << contexts[qp]["mtu_log2"]
        if not is_sent(item):
            dropped = gathered_bytes(item, mtu)
            runs = [dropped[at : at + mtu] for at in range(0, len(dropped), mtu)]
            gathered += [packet_beats(0, 0, run) for run in runs]
            continue
        new, after = request_packets(
            item,
            mtu,
            psns[qp],
            ack_every=ack_every,
            dest_qp=contexts[qp]["peer_qpn"],
            dest=contexts[qp]["peer_node"],
            port=contexts[qp]["port"],
        )
        gathered += new
        if qp not in stopped:
            packets += new
            psns[qp] = after
    return packets, gathered, ends


def payload_lines(packets):
    return [
        {"data": beat["data"], "lane": 0, "count": beat["count"], "last": beat["last"]}
        for packet in packets
        for beat in packet
        if beat["count"]
    ]


class Run:
    """One requester. `answer(cycle, beat)` gives the (cycle, ACK) pairs to send for a beat;
    `expected` is how many beats leave, where not all do; `watch(run)` gives further drivers.
    """

    def __init__(
        self,
        ops,
        contexts,
        *,
        idle=0.0,
        stall=0.0,
        seed=1,
        tx=5,
        ack_every=0,
        ack_unit=0,
        answer=None,
        acks=(),
        lines=None,
        completions_stall=None,
        skip=False,
        limit=20000,
        done=lambda run: True,
        structure=STRUCTURE,
        configs=(),
        starts=None,
        expected=None,
        watch=lambda run: [],
    ):
        self.dut = dut = Requester(structure)
        packets, gathered, self.ends = ref_packets(ops, contexts, ack_every)
        self.expected = [normal(beat) for packet in packets for beat in packet]
        start = len(contexts) + 1
        self.ops = Source(
            dut.ops, list(zip(starts or [start] * len(ops), ops, strict=True)), idle, seed
        )
        self.lines = Source(
            dut.payload,
            payload_lines(gathered) if lines is None else lines(gathered),
            idle,
            seed + 1,
        )
        self.acks = Source(dut.acks, acks, idle, seed + 2)

        def on_beat(cycle, beat):
            if answer:
                self.acks.items.extend(answer(cycle, beat))

        self.reads = Reads(
            dut.reads, self.acks, {context["qpn"]: qp for qp, context in contexts.items()}
        )
        self.packets = Sink(dut.packets, stall, seed + 3, on_beat)
        self.completions = Sink(
            dut.completions, stall if completions_stall is None else completions_stall, seed + 4
        )
        self.retired = Recorder(dut.retired.valid, dut.retired.payload, Retirement)
        config = Pulses(
            dut.config.valid,
            dut.config.payload,
            ConfigWrite,
            context_writes(Table.TX, TxContext, contexts) + list(configs),
        )
        self.bench = Bench(
            dut,
            [
                config,
                ContextTable(dut.tx, TxContext, contexts),
                self.ops,
                self.lines,
                self.acks,
                self.reads,
                self.packets,
                self.completions,
                self.retired,
                *watch(self),
            ],
            {"timing": timing(tx, ack_every, ack_unit)},
            skip=skip,
        )
        beats = len(self.expected) if expected is None else expected
        self.bench.run(limit, lambda: len(self.packets.items) == beats and done(self), tail=20)
        self.start = start

    @property
    def sent(self):
        return [normal(beat) for beat in self.packets.words]

    def retired_of(self, qp):
        return [event["wqe_index"] for event in self.bench.of("on_retired") if event["qp"] == qp]


def timing(tx, ack_every=0, ack_unit=0):
    return pack(NicTiming, {"tx": tx, "ack_every_packet": ack_every, "ack_unit": ack_unit})


def acknowledge(contexts, delay=10, skip=lambda beat: False):
    """ACKs the last beat of each packet that asks for it, of a READ the last response."""
    qpns = {context["peer_qpn"]: context["qpn"] for context in contexts.values()}

    def answer(cycle, beat):
        headers = beat["bth"]
        if beat["last"] and headers["ack_request"] and not skip(beat):
            psn = headers["psn"]
            if headers["opcode"] == RoceOpcode.READ_REQUEST.value:
                asked = unpack(Reth, beat["ext"])["length"]
                psn = psn + max(1, -(-asked // MTU)) - 1 & PSN_MASK
            return [(cycle + delay, ack_beat(psn, dest_qp=qpns[headers["dest_qp"]]))]
        return []

    return answer


def random_ops(seed, count, qps=4):
    rng = random.Random(seed)
    lengths = [0, 1, 8, 63, 64, 65, MTU - 1, MTU, MTU + 1, 2 * MTU, 2 * MTU + 1, 700]
    indices = [0] * qps
    ops = []
    for _ in range(count):
        qp = rng.randrange(qps)
        verb = rng.choice((Verb.WRITE, Verb.WRITE, *Verb))
        fields = {
            "verb": verb,
            "signaled": rng.randrange(2),
            "blocks": rng.randrange(1, 5),
            "solicited": rng.randrange(2),
            "fence": int(rng.random() < 0.2),
        }
        length = rng.choice(lengths)
        if verb == Verb.NOP:
            length = 0
        elif verb in ATOMICS:
            length = rng.choice((4, 8)) if verb.name.startswith("MASKED") else 8
        if rng.random() < 0.03:
            fields.update(status=Status.LOCAL_QP_OPERATION)
            length = 0
        ops.append(op(qp, indices[qp], length, **fields))
        indices[qp] = (indices[qp] + fields["blocks"]) & 0xFFFF
    return ops


def all_retired(ops):
    return lambda run: len(run.retired.items) == len(ops)


@pytest.mark.parametrize(
    "seed,idle,stall,ack_every",
    [(1, 0, 0, 0), (2, 0.4, 0.4, 0), (3, 0.1, 0.6, 1), (4, 0.6, 0.1, 0)],
)
def test_packets_and_retirement_match_reference(seed, idle, stall, ack_every):
    contexts, ops = contexts_of(start_psn=0xFFFFF0), random_ops(seed, 60)
    run = Run(
        ops,
        contexts,
        idle=idle,
        stall=stall,
        seed=seed,
        ack_every=ack_every,
        answer=acknowledge(contexts),
        done=all_retired(ops),
    )
    assert run.sent == run.expected
    assert any(beat["bth"]["psn"] < 0x100 for beat in run.sent), "no PSN wrapped"
    for qp in contexts:
        mine = [item for item in ops if item["qp"] == qp]
        assert run.retired_of(qp) == [item["wqe_index"] for item in mine]
        assert [r["blocks"] for r in run.retired.words if r["qp"] == qp] == [
            item["blocks"] for item in mine
        ]
        reported = [
            (item, status)
            for item, status in run.ends[qp]
            if item["signaled"] or status != Status.SUCCESS
        ]
        assert [c for c in run.completions.words if c["qp"] == qp] == [
            {
                "qp": qp,
                "receive": 0,
                "received": 0,
                "imm": 0,
                "solicited": 0,
                "wqe_index": item["wqe_index"],
                "vendor_opcode": item["vendor_opcode"],
                "length": item["length"],
                "status": status.value,
            }
            for item, status in reported
        ]
    assert not run.bench.of("on_dropped")


@pytest.mark.parametrize("length", [0, 1, MTU - 1, MTU, MTU + 1, 2 * MTU, 2 * MTU + 1])
def test_segmentation_at_the_mtu(length):
    contexts = contexts_of(1, start_psn=PSN_MASK)
    run = Run([op(0, 0, length)], contexts, answer=acknowledge(contexts))
    assert run.sent == run.expected
    assert [beat["bth"]["psn"] for beat in run.sent if beat["first"]] == [
        (PSN_MASK + i) & PSN_MASK for i in range(max(1, -(-length // MTU)))
    ]
    assert run.retired_of(0) == [0]


def test_one_ack_retires_all_before_it_in_order():
    contexts = contexts_of(1)
    ops = [op(0, i, 300 if i % 2 else 8, signaled=int(i == 5)) for i in range(6)]
    last = ref_packets(ops, contexts)[0][-1][0]["bth"]["psn"]
    run = Run(ops, contexts, acks=[(200, ack_beat(last, dest_qp=0x500))])
    assert run.retired_of(0) == list(range(6))
    cycles = [cycle for cycle, _ in run.retired.items]
    assert cycles == list(range(201, 207)), "one per cycle from the cycle after the ACK"
    assert [c["wqe_index"] for c in run.completions.words] == [5]
    assert run.completions.items[0][0] == cycles[-1] + 1


def test_ack_in_the_middle_of_a_message_retires_only_what_is_before():
    contexts = contexts_of(1)
    ops = [op(0, 0, 8), op(0, 1, 3 * MTU), op(0, 2, 8)]
    run = Run(
        ops,
        contexts,
        acks=[
            (100, ack_beat(2, dest_qp=0x500)),
            (120, ack_beat(3, dest_qp=0x500)),
            (140, ack_beat(4, dest_qp=0x500)),
        ],
    )
    assert [(cycle, item["qp"]) for cycle, item in run.retired.items] == [
        (101, 0),
        (121, 0),
        (141, 0),
    ]
    assert not run.bench.of("on_dropped")


def test_nop_and_failed_operations_retire_behind_what_is_outstanding():
    contexts = contexts_of(2)
    ops = [
        op(0, 0, verb=Verb.NOP),
        op(0, 1, 8),
        op(0, 2, verb=Verb.NOP),
        op(0, 3, 8, status=Status.LOCAL_QP_OPERATION, signaled=0),
        op(1, 0, verb=Verb.NOP),
        op(0, 4, 700),
        op(0, 5, verb=Verb.NOP),
    ]
    run = Run(
        ops, contexts, acks=[(100, ack_beat(0, dest_qp=0x500)), (150, ack_beat(1, dest_qp=0x500))]
    )
    events = [
        (cycle, event["qp"], event["wqe_index"])
        for cycle, name, event in run.bench.events
        if name == "on_retired"
    ]
    assert [event for event in events if event[1] == 0 and event[0] > 50] == [
        (101, 0, 1),
        (102, 0, 2),
        (103, 0, 3),
        (104, 0, 4),
        (105, 0, 5),
    ]
    assert [event[1:] for event in events if event[0] < 50] == [(0, 0), (1, 0)]
    assert events[0][0] == run.ops.taken[0][0] + 3, "closed form"
    done = {c["wqe_index"]: c["status"] for c in run.completions.words if c["qp"] == 0}
    assert done == {0: 0, 1: 0, 2: 0, 3: 2, 4: 5, 5: 5}


def test_acks_for_nothing_are_dropped_and_change_nothing():
    contexts = contexts_of(2)
    bad = [
        (50, ack_beat(1, dest_qp=0x500)),
        (51, ack_beat(PSN_MASK, dest_qp=0x500)),
        (52, ack_beat(0, dest_qp=0x600)),
        (53, ack_beat(0, dest_qp=0x502)),
        (54, ack_beat(0, dest_qp=0x500, syndrome=0x64)),
        (55, ack_beat(7, dest_qp=0x501)),
    ]
    good = [(100, ack_beat(0, dest_qp=0x500)), (110, ack_beat(0, dest_qp=0x500))]
    run = Run([op(0, 0, 8)], contexts, acks=bad + good)
    assert [(event["reason"], event["qp"]) for event in run.bench.of("on_dropped")] == [
        (DropReason.ACK_UNEXPECTED.value, 0x500),
        (DropReason.ACK_OLD.value, 0x500),
        (DropReason.PACKET_UNKNOWN_QP.value, 0x600),
        (DropReason.PACKET_UNKNOWN_QP.value, 0x502),
        (DropReason.PACKET_OPCODE.value, 0x500),
        (DropReason.ACK_UNEXPECTED.value, 0x501),
        (DropReason.ACK_OLD.value, 0x500),
    ]
    assert run.bench.of("on_dropped")[4]["info"] == 0x64000000
    assert [cycle for cycle, _ in run.retired.items] == [101]
    assert run.bench.of("on_ack_received") == [{"qp": 0, "psn": 0, "syndrome": 0x1F}]


def test_response_that_does_not_fit_ends_its_operation():
    """As `landing` hands it on, with its own opcode."""
    answer = ack_beat(1, dest_qp=0x500)
    answer["bth"]["opcode"] = RoceOpcode.READ_RESPONSE_LAST
    run = Run([op(0, 0, 8), op(0, 1, 8), op(0, 2, 8)], contexts_of(1), acks=[(60, answer)])
    assert [completion["status"] for completion in run.completions.words] == [
        0,
        Status.BAD_RESPONSE.value,
        Status.FLUSHED.value,
    ]
    assert not run.bench.of("on_dropped")


def test_a_full_window_holds_operations():
    contexts = contexts_of(1)
    ops = [op(0, i, 0) for i in range(20)]
    run = Run(
        ops,
        contexts,
        acks=[
            (100, ack_beat(0, dest_qp=0x500)),
            (200, ack_beat(15, dest_qp=0x500)),
            (300, ack_beat(19, dest_qp=0x500)),
        ],
        done=all_retired(ops),
    )
    taken = [cycle for cycle, _ in run.ops.taken]
    assert taken[16] < 100 and taken[17] > 100
    assert run.retired_of(0) == list(range(20))


def test_a_full_completion_queue_holds_retirement():
    contexts = contexts_of(2)
    ops = [op(i % 2, i // 2, 0) for i in range(30)]
    run = Run(
        ops,
        contexts,
        answer=acknowledge(contexts),
        completions_stall=0.97,
        done=lambda run: len(run.completions.items) == 30,
    )
    assert len(run.retired.items) == 30
    assert [c["wqe_index"] for c in run.completions.words if c["qp"] == 0] == list(range(15))


def test_a_new_context_starts_afresh():
    contexts = contexts_of(1, start_psn=5)
    again = context_writes(Table.TX, TxContext, {0: {**contexts[0], "start_psn": 900}})
    ops = [op(0, 0, 8), op(0, 1, 8), op(0, 2, 8)]
    run = Run(
        ops,
        contexts,
        configs=[(60, item) for _, item in again],
        starts=[10, 10, 70],
        done=lambda run: True,
        acks=[
            (50, ack_beat(5, dest_qp=0x500)),
            (90, ack_beat(6, dest_qp=0x500)),
            (100, ack_beat(900, dest_qp=0x500)),
        ],
    )
    assert [beat["bth"]["psn"] for beat in run.sent] == [5, 6, 900]
    assert run.retired_of(0) == [0, 2], "what was outstanding is forgotten"
    assert len(run.bench.of("on_dropped")) == 1


@pytest.mark.parametrize("tx", [0, 1, 2, 40])
def test_latency_closed_form(tx):
    contexts = contexts_of(1)
    run = Run([op(0, 0, 8)], contexts, tx=tx, answer=acknowledge(contexts))
    assert run.packets.items[0][0] == run.ops.taken[0][0] + 1 + max(1, tx)
    accepted = run.acks.taken[0][0]
    assert [cycle for cycle, _ in run.retired.items] == [accepted + 1]
    assert [cycle for cycle, _ in run.completions.items] == [accepted + 2]


@pytest.mark.parametrize("qps", [1, 4])
def test_small_messages_pass_one_per_cycle_and_retire_one_per_two(qps):
    contexts = contexts_of(qps)
    structure = Structure(qps=4, window_blocks=256)
    ops = [op(i % qps, i // qps, 8) for i in range(100)]
    run = Run(
        ops, contexts, answer=acknowledge(contexts), structure=structure, done=all_retired(ops)
    )
    taken, left = [cycle for cycle, _ in run.ops.taken], [cycle for cycle, _ in run.packets.items]
    retired = [cycle for cycle, _ in run.retired.items]
    assert taken[-1] - taken[0] == 99 and left[-1] - left[0] == 99
    assert retired[-1] - retired[0] == 198


def test_large_messages_pass_one_beat_per_cycle_without_gaps():
    contexts = contexts_of(2)
    ops = [op(i % 2, i // 2, 5 * MTU) for i in range(10)]
    run = Run(ops, contexts, answer=acknowledge(contexts))
    left = [cycle for cycle, _ in run.packets.items]
    assert left[-1] - left[0] == len(left) - 1 == 199


def test_beats_leave_as_soon_as_their_line_is_there():
    contexts = contexts_of(1)
    run = Run(
        [op(0, 0, MTU)],
        contexts,
        lines=lambda packets: [
            (100 + 50 * i, line) for i, line in enumerate(payload_lines(packets))
        ],
    )
    assert [cycle for cycle, _ in run.packets.items] == [100, 150, 200, 250]


@pytest.mark.parametrize("fences", [False, True])
def test_skipping_quiet_cycles_changes_nothing(fences):
    def once(skip):
        contexts, ops = contexts_of(), random_ops(9, 30)
        ops = [item | {"fence": int(fences and item["fence"])} for item in ops]
        run = Run(
            ops,
            contexts,
            skip=skip,
            tx=60,
            answer=acknowledge(contexts, 90),
            idle=0.9,
            done=all_retired(ops),
            lines=lambda packets: [(70 * i, line) for i, line in enumerate(payload_lines(packets))],
        )
        return (
            run.bench.events,
            run.packets.items,
            run.completions.items,
            run.retired.items,
            run.bench.evaluated,
            run.bench.cycle,
        )

    full, skipped = once(False), once(True)
    assert full[:4] == skipped[:4]
    # An operation that is not taken yet is offered in every cycle.
    assert fences or skipped[4] < 0.5 * skipped[5]
