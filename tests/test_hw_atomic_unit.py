"""The atomic unit and its parts against plain Python."""

import random
import warnings

import pytest
from amaranth.sim import Simulator
from support_responder import RefMemory, atomic_result
from support_responder_run import Reader
from support_roce import Pulses, context_writes
from support_streams import Bench, Sink, Source, pack

from hw.atomic_arithmetic import AtomicArithmetic, AtomicOperation
from hw.atomic_unit import AtomicUnit
from hw.config import Structure
from hw.formats.context import ConfigWrite, RxContext, Table
from hw.formats.roce import RoceOpcode
from hw.formats.tlp import MarkKind

STRUCTURE = Structure(qps=4)
BASE = 0x1000_0000_0100
#: Opcode, bytes that it works on, bytes of operands.
ATOMICS = [
    (RoceOpcode.FETCH_ADD, 8, 16),
    (RoceOpcode.COMPARE_SWAP, 8, 16),
    (RoceOpcode.MASKED_FETCH_ADD, 8, 16),
    (RoceOpcode.MASKED_FETCH_ADD, 4, 16),
    (RoceOpcode.MASKED_COMPARE_SWAP, 8, 32),
    (RoceOpcode.MASKED_COMPARE_SWAP, 4, 16),
]


def computed(cases):
    """What the block makes of (opcode, size, original, operand bytes)."""
    dut, results = AtomicArithmetic(), []

    async def loop(ctx):
        for opcode, size, original, operands in cases:
            words = {
                "opcode": opcode,
                "wide": int(size == 8),
                "operands": int.from_bytes(operands, "little"),
            }
            ctx.set(dut.operation.as_value(), pack(AtomicOperation, words))
            ctx.set(dut.original, original)
            await ctx.delay(1e-9)
            results.append(ctx.get(dut.result) & (1 << 8 * size) - 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulator = Simulator(dut)
    simulator.add_testbench(loop)
    simulator.run()
    return results


@pytest.mark.parametrize("opcode,size,length", ATOMICS)
def test_arithmetic_matches_reference(opcode, size, length):
    rng = random.Random(length + size)
    cases = []
    for _ in range(400):
        original = rng.randbytes(size)
        words = [
            rng.choice([bytes(size), b"\xff" * size, original[::-1], rng.randbytes(size)])
            for _ in range(length // size)
        ]
        value = int.from_bytes(original, "little")
        cases.append((opcode.value, size, value, b"".join(words)[:length]))
    assert computed(cases) == [atomic_result(*case) for case in cases]


def masked(opcode, size, original, *words):
    operands = b"".join(word.to_bytes(size, "big") for word in words)
    return computed([(opcode.value, size, original, operands.ljust(16, b"\0"))])[0]


def test_masks_do_what_software_makes_of_them():
    """AND, OR and XOR, as NVSHMEM encodes them."""
    add, swap = RoceOpcode.MASKED_FETCH_ADD, RoceOpcode.MASKED_COMPARE_SWAP
    old, value, ones = 0xF0F0_1234_FFFF_0001, 0x0FF0_FFFF_00FF_FFFF, (1 << 64) - 1
    assert masked(add, 8, old, value, ones) == old ^ value
    assert masked(add, 8, old, value, 0) == (old + value) & ones
    assert masked(swap, 8, old, value, 0, ~value & ones, 0) == old & value
    assert masked(swap, 8, old, value, 0, value, 0) == old | value
    # Two counters of 4 bytes in one word of 8: the lower one's carry is lost.
    assert masked(add, 8, 0x0000_0001_FFFF_FFFF, 1, 1 << 31) == 0x0000_0001_0000_0000


def operation(opcode, psn, va, operands, *, qp=1, size=8, replay=0, kept=4):
    return {
        "opcode": opcode,
        "qp": qp,
        "psn": psn,
        "address": va,
        "wide": int(size == 8),
        "operands": int.from_bytes(operands, "little"),
        "replay": replay,
        "kept": kept,
    }


def add(psn, value=1, *, va=BASE, **more):
    return operation(RoceOpcode.FETCH_ADD, psn, va, value.to_bytes(8, "big"), **more)


class Run:
    def __init__(self, items, *, stall=0.0, skip=False, configs=(), latency=20):
        self.dut = dut = AtomicUnit(STRUCTURE)
        self.memory = RefMemory()
        self.operations = Source(dut.operations, items)
        self.reads = Reader(dut.requests, dut.lines, self.memory, latency, stall, 2)
        self.written = Sink(dut.written, stall, 3, on_item=self._write)
        self.results = Sink(dut.results, stall, 4)
        config = Pulses(dut.config.valid, dut.config.payload, ConfigWrite, configs)
        drivers = [
            config,
            self.operations,
            self.reads.requests,
            self.reads.lines,
            self.written,
            self.results,
        ]
        self.bench = Bench(dut, drivers, skip=skip)
        self.bench.run(6000, lambda: len(self.results.items) >= len(items), tail=5)

    def _write(self, _, line):
        address = self.reads.requests.words[-1]["address"]
        assert line["lane"] == address % 64 and line["last"]
        data = line["data"] >> 8 * line["lane"] & (1 << 8 * line["count"]) - 1
        self.memory.write(address, data.to_bytes(line["count"], "little"))


def test_memory_and_results_match_reference():
    rng = random.Random(5)
    items, expected, memory = [], [], RefMemory()
    for psn in range(60):
        opcode, size, length = rng.choice(ATOMICS)
        va, operands = BASE - 8 + size * rng.randrange(4), rng.randbytes(length)
        items.append(operation(opcode, psn, va, operands, size=size))
        original = int.from_bytes(memory.read(va, size), "little")
        expected.append({"found": 1, "original": original})
        result = atomic_result(opcode, size, original, operands)
        memory.write(va, result.to_bytes(size, "little"))
    run = Run(items, stall=0.3)
    assert run.results.words == expected
    assert run.memory.written == memory.written
    mark = {"kind": MarkKind.RESPONSE.value, "qp": 1, "index": 59}
    assert run.reads.requests.words[-1]["mark"] == mark


@pytest.mark.parametrize("kept", [1, 3, 16])
def test_the_latest_answers_are_kept_per_qp(kept):
    items = [add(psn, psn, kept=kept) for psn in range(20)]
    items += [add(5, 7, qp=3, va=BASE + 8, kept=kept)]
    replays = [add(psn, 0, replay=1, kept=kept) for psn in range(20)]
    run = Run([*items, *replays, add(5, 0, qp=3, replay=1, kept=kept)])
    before, after = run.results.words[:20], run.results.words[21:41]
    for psn in range(20):
        assert after[psn]["found"] == int(psn >= 20 - kept)
        if after[psn]["found"]:
            assert after[psn] == before[psn]
    assert run.results.words[-1] == run.results.words[20]
    assert len(run.written.items) == 21


def test_a_replay_is_the_latest_of_its_psn():
    run = Run([add(1, 1), add(2, 1), add(1, 1), add(1, replay=1)])
    assert run.results.words[3] == run.results.words[2] != run.results.words[0]


def test_a_new_context_forgets_only_its_own():
    context = context_writes(Table.RX, RxContext, {1: {"valid": 1}})[0][1]
    items = [add(1), add(2, qp=2), (200, add(1, replay=1)), add(2, qp=2, replay=1)]
    run = Run(items, configs=[(150, context)])
    assert [result["found"] for result in run.results.words] == [1, 1, 0, 1]


def test_latency_closed_form():
    run = Run([add(1), add(1, replay=1)])
    taken, again = (cycle for cycle, _ in run.operations.taken)
    assert run.reads.requests.items[0][0] == taken + 1
    line = run.reads.lines.taken[0][0]
    assert run.written.items[0][0] == line + 1
    assert run.results.items[0][0] == line + 3
    assert run.results.items[1][0] == again + 2


def test_skipping_quiet_cycles_changes_nothing():
    def once(skip):
        items = [(150 * i, add(i, i)) for i in range(6)]
        run = Run(items, stall=0.3, latency=100, skip=skip)
        kept = (run.results.items, run.written.items, run.reads.requests.items)
        return kept, run.bench.evaluated, run.bench.cycle

    full, skipped = once(False), once(True)
    assert full[0] == skipped[0]
    assert skipped[1] < 0.6 * skipped[2]
