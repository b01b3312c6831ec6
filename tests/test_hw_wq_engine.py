"""The work-queue engine: which blocks are fetched, in what order, and what their WQEs mean."""

import random

import pytest
from amaranth.lib import wiring
from support_rig import Rig, pack
from support_wqe import (
    blocks,
    data_segment,
    inline_segment,
    nop,
    real_wqes,
    reference_decode,
    verb_wqe,
    write_wqe,
)

from hw.config import Structure
from hw.formats.context import ConfigWrite, SqContext, Table
from hw.formats.events import DropReason
from hw.formats.op import Retirement, Verb
from hw.opcodes import ATOMICS
from hw.qp_context import QpContext
from hw.units import ITEM_FRACTION
from hw.wq_engine import WqEngine

STRUCTURE = Structure(qps=16, wqe_lines=64)
#: Cycle from which rings come; the contexts are there.
START = 70


class Engine(Rig):
    """An engine with rings of its own, a memory that answers fetches, and a requester that retires.

    Parameters
    ----------
    qps : number of QPs in use
    start : their start index
    retire : cycles from an operation to its retirement; None: never
    read : cycles from a request to its lines
    timing : of the NIC
    """

    def __init__(
        self,
        *,
        structure=STRUCTURE,
        qps=1,
        start=0,
        depth_log2=6,
        retire=20,
        read=30,
        timing=None,
        **options,
    ):
        engine, contexts = WqEngine(structure), QpContext(structure)

        def wrap(m, engine):
            m.submodules.contexts = contexts
            wiring.connect(m, engine.sq, contexts.sq)
            # A requester that never holds an operation.
            op = engine.ops.payload
            m.d.comb += [
                engine.recovery.unfenced.eq(
                    engine.ops.valid
                    & engine.ops.ready
                    & op.fence
                    & (op.length != 0)
                    & (op.verb != Verb.READ)
                ),
                contexts.config.valid.eq(engine.config.valid),
                contexts.config.payload.eq(engine.config.payload),
            ]

        super().__init__(
            engine,
            wrap=wrap,
            pulses={
                "config": (engine.config, ConfigWrite),
                "retired": (engine.retired, Retirement),
            },
            **options,
        )
        self.structure, self.start, self.depth, self.retire, self.read = (
            structure,
            start,
            1 << depth_log2,
            retire,
            read,
        )
        self.ring_memory, self.expected, self.posted, self.answered = {}, [], {}, []
        self.line_time = 0
        for field, value in (
            {"wqe": 10, "fetch_blocks": 4, "window_blocks": structure.window_blocks}
            | (timing or {})
        ).items():
            self.set(getattr(engine.timing, field), value)
        for qp in range(qps):
            context = {
                "valid": 1,
                "qpn": 0x1230 + qp,
                "base": self.base(qp),
                "depth_log2": depth_log2,
                "start_index": start,
                "mtu_log2": 8 + qp % 5,
            }
            self.put("config", {"table": Table.SQ, "index": qp, "data": pack(SqContext, context)})
            self.posted[qp] = start
        self.on_taken = {"requests": self.answer, "ops": self.retire_op}

    @staticmethod
    def base(qp):
        return 0x1000_0000_0000 + 0x100000 * qp

    def post(self, qp, wqe):
        """Writes a WQE into the ring; returns its index."""
        index = self.posted[qp]
        for offset, block in enumerate(blocks(wqe)):
            self.ring_memory[qp, (index + offset) % self.depth] = block
        self.posted[qp] = (index + len(wqe) // 64) % 65536
        self.expected.append((qp, index, wqe))
        return index

    def ring(self, qp, at=START, producer=None, push=None):
        """Rings what was posted; `push`: (index, lines) that came with it."""
        producer = self.posted[qp] if producer is None else producer
        ring = {"qp": qp, "qpn": 0x1230 + qp, "producer": producer % 65536}
        if push:
            index, wqe = push
            ring |= {"pushed": 1, "index": index, "blocks": len(wqe) // 64}
            for offset, block in enumerate(blocks(wqe)):
                self.put(
                    "pushes",
                    {
                        "data": int.from_bytes(block, "little"),
                        "last": int(64 * offset + 64 == len(wqe)),
                    },
                    at,
                )
        self.put("rings", ring, at)

    def answer(self, cycle, request):
        qp = request["context"]
        slot, rest = divmod(request["address"] - self.base(qp), 64)
        count = request["length"] // 64
        assert (
            rest == 0 and 0 < count and slot + count <= self.depth and request["length"] % 64 == 0
        )
        self.answered.append((qp, slot, count))
        self.line_time = max(self.line_time, cycle + self.read)
        for offset in range(count):
            data = int.from_bytes(self.ring_memory[qp, slot + offset], "little")
            self.put(
                "lines",
                {
                    "data": data,
                    "lane": 0,
                    "count": 64,
                    "last": int(offset == count - 1),
                    "context": qp,
                },
                self.line_time,
            )

    def retire_op(self, cycle, op):
        if self.retire is not None:
            self.put("retired", {"qp": op["qp"], "blocks": op["blocks"]}, cycle + 1 + self.retire)

    def reference(self, qp, index, wqe):
        return reference_decode(
            wqe, qp=qp, wqe_index=index, mtu_log2=8 + qp % 5, wqe_blocks=self.structure.wqe_blocks
        )

    def finish(self, cycles=4000, more=0):
        """Runs until every posted WQE was decoded, nothing is left to put in, and `more` cycles."""
        works = [self.reference(*wqe) for wqe in self.expected]
        wanted = {"ops": len(works), "pieces": sum(len(work[1]) for work in works)}
        wanted["landings"] = sum(len(work[2]) for work in works)
        done = None

        def finished():
            nonlocal done
            if (
                done is None
                and all(len(self.taken[name]) >= count for name, count in wanted.items())
                and not any(self._waiting.values())
            ):
                done = self.cycle
            return done is not None and self.cycle >= done + more

        self.run(cycles, finished)

    def check(self):
        """Operations are those of the reference for each QP, pieces and landings in the order of
        operations.
        """
        wanted = {}
        for qp, index, wqe in self.expected:
            wanted.setdefault(qp, []).append(self.reference(qp, index, wqe))
        pieces, landings = [], []
        for op in self.items("ops"):
            expected_op, expected_pieces, expected_landings = wanted[op["qp"]].pop(0)
            assert op == expected_op
            pieces += expected_pieces
            landings += expected_landings
        assert not any(wanted.values()), "WQEs without an operation"
        got = [
            piece
            if piece["inline"]
            else {key: value for key, value in piece.items() if key != "data"}
            for piece in self.items("pieces")
        ]
        assert got == pieces
        assert self.items("landings") == landings

    def drops(self):
        return [DropReason(event["reason"]) for _, event in self.events["on_dropped"]]


def small(number=0, **options):
    return write_wqe(data_segment(0x7000_0000 + 64 * number, 64), raddr=number, **options)


def test_wqes_of_real_software_decode():
    """All but those of other services and WAIT; a vector may be more than one WQE."""
    rig = Engine(start=5, depth_log2=8)
    wqes = real_wqes()
    for _, wqe in wqes:
        rig.post(0, wqe)
    assert len(wqes) > 50
    rig.ring(0)
    rig.finish(8000)
    rig.check()
    ops = rig.items("ops")
    assert {op["status"] for op in ops} == {0}
    assert {op["verb"] for op in ops} == {verb.value for verb in Verb}
    lengths = {op["length"] for op in ops}
    assert {0, 1, 4, 8, 12, 16, 28, 29, 32, 64, 92, 128, 256, 4096, 7408, 1 << 20} <= lengths
    named = {name: op for (name, _), op in zip(wqes, ops, strict=True)}
    assert named["send_imm_64B_solicited"]["imm"] == 0x11223344
    assert [name for name, op in named.items() if op["fence"]] == ["dump_1B_fence"]
    landing = {Verb.READ, *ATOMICS}
    assert len(rig.items("landings")) == sum(Verb(op["verb"]) in landing for op in ops) > 10


ODD_WQES = {
    "nop": nop(),
    "nop_unsignaled": nop(flags=0),
    "nop_of_no_octowords": nop(ds=0),
    "nop_of_3_blocks": nop(ds=9) + bytes(128),
    "solicited": small(flags=0x02),
    "completion_with_event": small(flags=0x0C),
    "no_data": write_wqe(),
    "zero_sge": write_wqe(data_segment(1, 0), data_segment(2, 5), data_segment(3, 0)),
    "only_zero_sges": write_wqe(data_segment(1, 0), data_segment(2, 0), data_segment(2, 0)),
    "end_of_list": write_wqe(
        data_segment(1, 9), data_segment(0, 0, lkey=0x100), data_segment(3, 7)
    ),
    "zero_sges_then_data_in_next_block": write_wqe(
        data_segment(1, 0), data_segment(1, 0), data_segment(7, 77)
    ),
    "data_then_inline": write_wqe(data_segment(1, 100), inline_segment(b"0123456789ab")),
    "inline_then_data": write_wqe(
        inline_segment(b"0123456789abc"), data_segment(1, 100), data_segment(2, 1)
    ),
    "inline_of_nothing": write_wqe(inline_segment(b""), data_segment(1, 100)),
    "inline_head_ends_block": write_wqe(
        data_segment(1, 3), inline_segment(bytes(range(12 + 64 + 1)))
    ),
    "inline_fills_block": write_wqe(inline_segment(bytes(range(28 + 64)))),
    "inline_too_long": write_wqe(inline_segment(bytes(28)), ds=3),
    "inline_far_too_long": write_wqe((0xFFFFFFFF).to_bytes(4, "big") + bytes(12)),
    "inline_too_long_behind_data": write_wqe(
        data_segment(1, 4), (0x8000000D).to_bytes(4, "big") + bytes(12)
    ),
    "unknown_opcode": small(opcode=0x77),
    "ds_0": small(ds=0),
    "ds_1": small(ds=1),
    "largest": write_wqe(*(data_segment(i, i) for i in range(61))),
    "largest_inline": write_wqe(inline_segment(bytes(i % 251 for i in range(61 * 16 - 4)))),
    "imm_of_nothing": verb_wqe(0x09, imm=0x11223344, flags=0x0A),
    "imm_inline": verb_wqe(0x09, inline_segment(bytes(range(100))), imm=0xFFFFFFFF),
    "send_of_nothing": verb_wqe(0x0A),
    "send_2_blocks": verb_wqe(0x0A, inline_segment(bytes(range(90))), data_segment(1, 7)),
    "send_imm": verb_wqe(0x0B, data_segment(1, 7), data_segment(8, 9), imm=5, flags=2),
    "send_of_no_octowords": verb_wqe(0x0A, ds=0),
    "read_of_nothing": verb_wqe(0x10),
    "read_3_segments": verb_wqe(
        0x10, data_segment(1, 7), data_segment(8, 0), data_segment(9, 4096), flags=0x48
    ),
    "read_inline": verb_wqe(0x10, data_segment(1, 7), inline_segment(b"x")),
    "read_without_address": verb_wqe(0x10, ds=1),
    "compare_swap": verb_wqe(0x11, bytes(range(16)), data_segment(1, 8)),
    "fetch_add": verb_wqe(0x12, bytes(range(16)), data_segment(1, 8), opmod=0x77),
    "fetch_add_in_parts": verb_wqe(
        0x12, bytes(range(16)), data_segment(1, 5), data_segment(0, 0), data_segment(9, 3)
    ),
    "fetch_add_of_4": verb_wqe(0x12, bytes(16), data_segment(1, 4)),
    "fetch_add_without_data": verb_wqe(0x12, bytes(16)),
    "fetch_add_without_operands": verb_wqe(0x12),
    "fetch_add_whose_operands_look_inline": verb_wqe(0x12, b"\xff" * 16, data_segment(1, 8)),
    "fetch_add_whose_operands_end_a_list": verb_wqe(
        0x12, data_segment(5, 0, lkey=0x100), data_segment(1, 8)
    ),
    "masked_add_4": verb_wqe(0x15, bytes(range(16)), data_segment(1, 4), opmod=8),
    "masked_add_4_of_8": verb_wqe(0x15, bytes(range(16)), data_segment(1, 8), opmod=8),
    "masked_add_8": verb_wqe(0x15, bytes(range(16)), data_segment(1, 8), opmod=9),
    "masked_swap_4": verb_wqe(0x14, bytes(range(16)), data_segment(1, 4), opmod=8),
    "masked_swap_8": verb_wqe(0x14, bytes(range(32)), data_segment(1, 8), opmod=9),
    "masked_swap_8_without_data": verb_wqe(0x14, bytes(range(32)), opmod=9),
    "masked_swap_8_without_masks": verb_wqe(0x14, bytes(range(16)), opmod=9),
    "masked_swap_of_no_size": verb_wqe(0x14, bytes(range(16)), data_segment(1, 8)),
    "masked_add_inline": verb_wqe(0x15, bytes(16), inline_segment(bytes(8)), opmod=9),
    "dump": verb_wqe(0x23, data_segment(1, 1), flags=0x48),
    "dump_of_nothing": verb_wqe(0x23),
    "dump_inline": verb_wqe(0x23, inline_segment(bytes(8))),
    "wait": verb_wqe(0x0F, bytes(16)),
    "more_than_4_gib": write_wqe(*(data_segment(i, 0x7FFFFFFF) for i in range(3))),
}


@pytest.mark.parametrize("wqe_blocks", [4, 16])
def test_odd_wqes_decode(wqe_blocks):
    rig = Engine(
        structure=Structure(qps=4, wqe_lines=32, wqe_blocks=wqe_blocks), depth_log2=8, stall=0.2
    )
    for wqe in ODD_WQES.values():
        rig.post(0, wqe)
        rig.post(0, small())
    rig.ring(0)
    rig.finish()
    rig.check()


def test_fixed_latencies():
    rig = Engine(timing={"wqe": 10}, read=50)
    rig.post(0, small())
    rig.ring(0)
    rig.finish()
    assert [cycle for cycle, _ in rig.events["on_ring_seen"]] == [START]
    assert [cycle for cycle, _ in rig.taken["requests"]] == [START + 3]
    assert [cycle for cycle, _ in rig.events["on_fetch_requested"]] == [START + 3]
    assert [cycle for cycle, _ in rig.events["on_fetched"]] == [START + 53]
    assert [cycle for cycle, _ in rig.taken["ops"]] == [START + 53 + 10 + 2]
    assert [cycle for cycle, _ in rig.taken["pieces"]] == [START + 53 + 10 + 2]


def test_fetch_is_split_at_the_end_of_the_ring_and_never_passes_the_producer():
    rig = Engine(start=60, timing={"fetch_blocks": 8})
    for number in range(6):
        rig.post(0, small(number))
    rig.ring(0)
    rig.finish()
    rig.check()
    assert rig.answered == [(0, 60, 4), (0, 0, 2)]


def test_index_wraps_at_16_bits():
    rig = Engine(start=65530, depth_log2=4, retire=5)
    at = START
    for _ in range(5):
        for number in range(3):
            rig.post(0, small(number))
        rig.ring(0, at)
        at += 200
    rig.finish()
    rig.check()
    assert [op["wqe_index"] for op in rig.items("ops")] == [(65530 + i) % 65536 for i in range(15)]


def test_whole_depth_may_be_rung_and_not_more():
    rig = Engine(depth_log2=4)
    for number in range(16):
        rig.post(0, small(number))
    rig.ring(0, producer=17)
    rig.ring(0, producer=16)
    rig.ring(0, producer=15)
    rig.ring(0, producer=16, at=600)
    rig.finish()
    rig.check()
    assert rig.drops() == [DropReason.DOORBELL_STALE] * 3
    assert [event["producer"] for _, event in rig.events["on_ring_seen"]] == [16]


def test_blocks_of_several_qps_are_mixed_within_wqes():
    rig = Engine(qps=4, timing={"fetch_blocks": 1}, stall=0.1)
    for number in range(6):
        for qp in range(4):
            rig.post(qp, write_wqe(inline_segment(bytes((qp, number)) * (20 + 35 * qp))))
    for qp in range(4):
        rig.ring(qp)
    rig.finish()
    rig.check()
    turns = [qp for qp, _, _ in rig.answered[8:]]
    assert all(sorted(turns[i : i + 4]) == [0, 1, 2, 3] for i in range(12))
    fetched = [
        (event["qp"], event["wqe_index"], event["blocks"]) for _, event in rig.events["on_fetched"]
    ]
    assert sorted(fetched) == sorted((qp, index, len(wqe) // 64) for qp, index, wqe in rig.expected)


def test_a_qp_without_room_is_parked_until_it_retires():
    rig = Engine(qps=2, timing={"window_blocks": 16, "fetch_blocks": 32}, retire=300)
    for number in range(40):
        rig.post(0, small(number))
    rig.post(1, small())
    rig.ring(0)
    rig.ring(1, START + 150)
    outstanding, most = 0, 0

    def requested(cycle, request):
        nonlocal outstanding, most
        if request["context"] == 0:
            outstanding += request["length"] // 64
            most = max(most, outstanding)
        Engine.answer(rig, cycle, request)

    def retired(cycle, op):
        nonlocal outstanding
        if op["qp"] == 0:
            outstanding -= 1
        Engine.retire_op(rig, cycle, op)

    rig.on_taken = {"requests": requested, "ops": retired}
    rig.finish()
    rig.check()
    assert most == 16
    assert [cycle for cycle, op in rig.taken["ops"] if op["qp"] == 1][0] < START + 150 + 60
    (_, stall), *_ = rig.events["on_stall_window"]
    assert 250 < stall["cycles"] < 400
    assert all(count == 1 for qp, _, count in rig.answered[1:])


def test_turns_go_round():
    rig = Engine(qps=8, timing={"fetch_blocks": 2}, depth_log2=5)
    for qp in range(8):
        for number in range(20):
            rig.post(qp, small(number))
        rig.ring(qp)
    rig.finish()
    rig.check()
    turns = [qp for qp, _, _ in rig.answered]
    # The first QPs have turns while the others are rung; from then on the order is fixed.
    assert sorted(turns[16:24]) == list(range(8))
    assert all(turns[i] == turns[i + 8] for i in range(16, 50))


def test_a_second_ring_of_the_same_index_is_dropped():
    rig = Engine()
    rig.post(0, small())
    rig.ring(0)
    rig.ring(0, START + 40)
    rig.finish(more=60)
    assert rig.drops() == [DropReason.DOORBELL_STALE]
    assert len(rig.items("ops")) == 1


@pytest.mark.parametrize("payload", [8, 60, 200])
def test_pushes_in_succession_are_used(payload):
    rig = Engine(start=62, timing={"wqe": 200})
    for number in range(4):
        wqe = write_wqe(inline_segment(bytes([number]) * payload))
        index = rig.post(0, wqe)
        rig.ring(0, START + 10 * number, push=(index, wqe))
    rig.finish()
    rig.check()
    assert rig.answered == [] and rig.drops() == []
    assert [event["pushed"] for _, event in rig.events["on_ring_seen"]] == [1] * 4
    assert [event["pushed"] for _, event in rig.events["on_fetched"]] == [1] * 4


def test_push_behind_older_work_is_fetched():
    rig = Engine(read=60)
    rig.post(0, small())
    rig.ring(0)
    wqe = write_wqe(inline_segment(bytes(100)))
    rig.ring(0, START + 20, push=(rig.post(0, wqe), wqe))
    rig.post(0, small())
    # Not at the fetched index: the WQE before it was never rung.
    wqe = small(2)
    rig.ring(0, START + 400, push=(rig.post(0, wqe), wqe))
    rig.finish()
    rig.check()
    assert rig.drops() == [DropReason.PUSH_NOT_USED] * 2
    assert [event["pushed"] for _, event in rig.events["on_ring_seen"]] == [0, 0, 0]


@pytest.mark.parametrize("fetch_blocks", [1, 4])
def test_64_qps_pass_a_wqe_every_2_cycles(fetch_blocks):
    rig = Engine(
        structure=Structure(qps=64, wqe_lines=64),
        qps=64,
        timing={"fetch_blocks": fetch_blocks},
        retire=5,
        read=40,
    )
    for qp in range(64):
        for number in range(8):
            rig.post(qp, write_wqe(inline_segment(bytes(8)), raddr=number))
        rig.ring(qp)
    rig.finish()
    rig.check()
    cycles = [cycle for cycle, _ in rig.taken["ops"]]
    assert cycles[-1] - cycles[0] == 2 * (len(cycles) - 1)


@pytest.mark.parametrize("interval", [2.5, 3.846, 7.25])
def test_total_ceiling_is_exact(interval):
    rig = Engine(qps=4, timing={"total_interval": round(interval * 2**ITEM_FRACTION)})
    for qp in range(4):
        for number in range(40):
            rig.post(qp, small(number))
        rig.ring(qp)
    rig.finish()
    rig.check()
    cycles = [cycle for cycle, _ in rig.taken["ops"]]
    assert abs((cycles[-1] - cycles[0]) - interval * (len(cycles) - 1)) < 2
    assert rig.events["on_stall_rate"]


@pytest.mark.parametrize(
    "qps, interval, fetch_blocks",
    [(1, 10.5, 1), (1, 10.5, 4), (4, 20.25, 2), (16, 50.75, 1), (3, 7.125, 4)],
)
def test_ceiling_of_a_qp_is_exact(qps, interval, fetch_blocks):
    rig = Engine(
        qps=qps,
        timing={"qp_interval": round(interval * 2**ITEM_FRACTION), "fetch_blocks": fetch_blocks},
        skip=True,
    )
    count = 40 if qps < 16 else 16
    for qp in range(qps):
        for number in range(count):
            rig.post(qp, small(number))
        rig.ring(qp)
    rig.finish()
    rig.check()
    for qp in range(qps):
        cycles = [cycle for cycle, request in rig.taken["requests"] if request["context"] == qp]
        assert abs((cycles[-1] - cycles[0]) / (len(cycles) - 1) - interval * fetch_blocks) < (
            qps + 2
        ) / (len(cycles) - 1)


def test_ceiling_of_a_qp_counts_wqes_of_several_blocks_once():
    rig = Engine(timing={"qp_interval": 20 * 2**ITEM_FRACTION, "fetch_blocks": 4}, read=10)
    for _ in range(20):
        rig.post(0, write_wqe(inline_segment(bytes(60))))
    rig.ring(0)
    rig.finish()
    rig.check()
    cycles = [cycle for cycle, _ in rig.taken["requests"]]
    assert abs((cycles[-1] - cycles[2]) - 20 * 2 * (len(cycles) - 3)) < 3


def random_wqe(rng):
    kind = rng.random()
    if kind < 0.05:
        return rng.choice(list(ODD_WQES.values()))
    if kind < 0.1:
        return nop()
    if kind < 0.2:
        return verb_wqe(
            0x14,
            rng.randbytes(32),
            data_segment(rng.getrandbits(48), 8),
            opmod=9,
            raddr=rng.getrandbits(64),
            flags=rng.getrandbits(8),
        )
    opcode = rng.choice((0x08, 0x08, 0x09, 0x0A, 0x0B, 0x10, 0x23))
    segments = []
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3, 6))):
        if opcode not in (0x10, 0x23) and rng.random() < 0.4:
            segments.append(inline_segment(rng.randbytes(rng.choice((1, 8, 12, 28, 29, 60, 130)))))
        else:
            segments.append(
                data_segment(
                    rng.getrandbits(48),
                    rng.choice((0, 1, 64, 4096, 1 << 20)),
                    rng.choice((1, 0x100, 0xFFFFFFFF)),
                )
            )
    return verb_wqe(
        opcode,
        *segments,
        raddr=rng.getrandbits(64),
        rkey=rng.getrandbits(32),
        imm=rng.getrandbits(32),
        flags=rng.getrandbits(8),
    )


def random_run(seed, skip=False, stress=True):
    rng = random.Random(seed)
    timing = {
        "wqe": rng.choice((0, 3, 30)),
        "fetch_blocks": rng.choice((1, 2, 5, 32)),
        "window_blocks": rng.choice((16, 40, 256)),
        "qp_interval": rng.choice((0, 0, 1000, 9000)),
        "total_interval": rng.choice((0, 0, 900)),
    }
    qps = rng.choice((1, 3, 16))
    rig = Engine(
        qps=qps,
        start=rng.choice((0, 65500)),
        depth_log2=6,
        retire=rng.choice((1, 30, 200)),
        read=rng.choice((1, 25)),
        timing=timing,
        seed=seed,
        skip=skip,
        **({"idle": 0.3, "stall": 0.3} if stress else {}),
    )
    at = START
    for _ in range(40):
        qp = rng.randrange(qps)
        if (rig.posted[qp] - rig.start) % 65536 > 40:
            continue
        for _ in range(rng.choice((1, 1, 2))):
            wqe = random_wqe(rng)
            index = rig.post(qp, wqe)
        push = (index, wqe) if rng.random() < 0.4 and len(wqe) <= 256 and wqe[7] & 63 else None
        rig.ring(qp, at, push=push)
        at += rng.choice((0, 1, 5, 60, 300))
    return rig


@pytest.mark.parametrize("seed", range(4))
def test_random_work_agrees_with_the_reference(seed):
    rig = random_run(seed)
    rig.finish(20000)
    rig.check()


@pytest.mark.parametrize("seed", range(20, 23))
def test_skipping_quiet_cycles_changes_nothing(seed):
    runs = []
    for skip in (True, False):
        rig = random_run(seed, skip, stress=seed % 2)
        rig.finish(12000)
        runs.append(rig)
    assert runs[0].log() == runs[1].log()
    runs[0].check()


def test_completion_is_wanted_by_ce_2_and_3():
    rig = Engine()
    for flags in (0x08, 0x0C, 0x04, 0x00):
        rig.post(0, small(flags=flags))
    rig.ring(0)
    rig.finish()
    assert [op["signaled"] for op in rig.items("ops")] == [1, 1, 0, 0]
