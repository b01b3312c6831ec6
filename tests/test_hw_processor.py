"""hw.processor: stores into lanes, routing, order, loads and their answers."""

import random
from math import ceil

import pytest
from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from support_pcie import Sink, Source, pcie_timing, run

from hw.config import Structure
from hw.formats.command import Command, Operation
from hw.formats.tlp import Port
from hw.lib.stream import connect
from hw.memory import Memory
from hw.pcie_switch import PcieFabric
from hw.processor import Processor, Response
from hw.timing import PcieTiming

HOST, GPU, NIC = (port.value << 44 for port in (Port.HOST, Port.GPU, Port.NIC))


def store(address, payload, mark=0):
    return {
        "op": Operation.STORE,
        "address": address,
        "length": len(payload),
        "token": mark,
        "data": int.from_bytes(payload, "little"),
    }


def load(address, length, token):
    return {"op": Operation.LOAD, "address": address, "length": length, "token": token, "data": 0}


class Far:
    """Answers reads after `delay` cycles, in random order, with bytes address, address + 1 ..."""

    def __init__(self, dut, delay=5, seed=0):
        self.dut, self.delay, self.random = dut, delay, random.Random(seed)
        self.sink = Sink(dut.reads, stall=0.2)
        self.waiting, self.answered, self.tags = [], [], []

    def drive(self, ctx, now):
        self.sink.drive(ctx, now)
        due = [entry for entry in self.waiting if entry[0] <= now]
        ctx.set(self.dut.completions.valid, bool(due))
        if due:
            entry = self.random.choice(due)
            self.waiting.remove(entry)
            _, item = entry
            lane = item["address"] % 64
            payload = bytes((item["address"] + n) & 0xFF for n in range(item["length"]))
            ctx.set(
                self.dut.completions.payload,
                {
                    "data": int.from_bytes(payload, "little") << 8 * lane,
                    "address": item["address"] & 0xFFF,
                    "count": item["length"],
                    "length": item["length"],
                    "first": 1,
                    "last": 1,
                    "final": 1,
                    "requester": Port(item["requester"]),
                    "tag": item["tag"],
                    "mark": {"kind": 0, "qp": 0, "index": 0},
                },
            )

    def sample(self, ctx, now):
        before = len(self.sink.got)
        self.sink.sample(ctx, now)
        for cycle, item in self.sink.got[before:]:
            assert item["tag"] not in [other["tag"] for _, other in self.waiting]
            self.waiting.append((cycle + self.delay, item))
            self.tags.append(item["tag"])
        if ctx.get(self.dut.response.valid):
            self.answered.append(
                (ctx.get(self.dut.response.token), ctx.get(self.dut.response.data))
            )


class Bench:
    def __init__(self, commands, *, port=Port.GPU, gap=0.0, stall=0.0, until=0, delay=5):
        self.dut = Processor(port)
        self.source = Source(self.dut.commands, commands, gap=gap)
        self.stores = Sink(self.dut.stores, stall=stall, seed=2)
        self.posted = Sink(self.dut.posted, stall=stall, until=until, seed=3)
        self.far = Far(self.dut, delay)

    def run(self, cycles, each=None):
        run(self.dut, [self.source, self.stores, self.posted, self.far], cycles=cycles, each=each)
        assert self.source.done
        return self


def check_store(beats, command):
    """Consumes the beats of one store; compares bytes, lengths and marks."""
    size = command["length"]
    address = command["address"] & (1 << 48) - 1
    payload, left = bytearray(), 0
    while len(payload) < size:
        _, beat = beats.pop(0)
        at = address + len(payload)
        assert beat["address"] == at
        lane = at % 64
        assert lane + beat["count"] <= 64
        if beat["first"]:
            assert left == 0
            left = beat["length"]
            assert at // 4096 == (at + left - 1) // 4096
        payload += (beat["data"] >> 8 * lane & (1 << 8 * beat["count"]) - 1).to_bytes(
            beat["count"], "little"
        )
        left -= beat["count"]
        assert beat["last"] == (left == 0)
        assert beat["mark"] == command["token"] & (1 << 40) - 1
    assert payload == (command["data"] & (1 << 8 * size) - 1).to_bytes(size, "little")


@pytest.mark.parametrize(("gap", "stall"), [(0, 0), (0.3, 0.5)])
def test_stores_reach_their_lanes(gap, stall):
    rng = random.Random(1)
    commands = [
        store(
            rng.choice([GPU, NIC, HOST]) + rng.choice([rng.randrange(1 << 32), 4095, 4032, 60]),
            rng.randbytes(rng.choice([1, 4, 8, 64, rng.randrange(1, 65)])),
            n % 10 | n << 16 | 1 << 60,
        )
        for n in range(120)
    ]
    bench = Bench(commands, gap=gap, stall=stall).run(800)
    own, other = list(bench.stores.got), list(bench.posted.got)
    for command in commands:
        check_store(own if command["address"] >> 44 == Port.GPU.value else other, command)
    assert not own and not other


@pytest.mark.parametrize(
    ("address", "length", "tlps", "beats"),
    [
        (NIC, 8, 1, 1),
        (NIC + 60, 8, 1, 2),
        (NIC + 32, 64, 1, 2),
        (NIC + 4092, 8, 2, 2),
        (NIC + 4092, 4, 1, 1),
    ],
)
def test_tlps_of_a_store(address, length, tlps, beats):
    bench = Bench([store(address, bytes(length))]).run(10)
    got = [item for _, item in bench.posted.got]
    assert (sum(item["first"] for item in got), len(got)) == (tlps, beats)
    assert sum(item["last"] for item in got) == tlps
    assert sum(item["length"] for item in got if item["first"]) == length


def test_a_command_per_cycle():
    """A store that crosses a line takes two cycles, all others one."""
    commands = (
        [store(GPU + 64 * n, bytes(64)) for n in range(8)]
        + [store(NIC + 60, bytes(8))]
        + [store(NIC, bytes(8)) for _ in range(4)]
    )
    bench = Bench(commands).run(20)
    assert bench.source.taken == [*range(8), 9, 10, 11, 12, 13]
    assert [cycle for cycle, _ in bench.stores.got] == list(range(8))


def test_loads_answer_with_their_bytes_and_token():
    rng = random.Random(4)
    commands = []
    for n in range(150):
        lane = rng.randrange(64)
        commands.append(
            load(
                rng.choice([HOST, NIC]) + 64 * rng.randrange(1 << 20) + lane,
                rng.randrange(1, 65 - lane),
                n << 40 | n,
            )
        )
    bench = Bench(commands, delay=100).run(900)
    assert len(bench.far.answered) == 150
    expected = {command["token"]: command for command in commands}
    for token, data in bench.far.answered:
        command = expected.pop(token)
        size = command["length"]
        assert (data & (1 << 8 * size) - 1).to_bytes(size, "little") == bytes(
            command["address"] + n & 0xFF for n in range(size)
        )
    assert bench.far.tags == [n % 64 for n in range(150)]
    assert {item["requester"] for _, item in bench.far.sink.got} == {Port.GPU.value}


def test_commands_stay_in_order():
    """A posted store that is not taken blocks the own store and the load behind it."""
    bench = Bench([store(NIC, bytes(8)), store(GPU, bytes(8)), load(HOST, 8, 1)], until=30).run(60)
    assert bench.posted.got[0][0] == 30
    assert bench.stores.got[0][0] == 31
    assert bench.far.sink.got[0][0] >= 32


def test_foreign_commands_are_dropped():
    commands = [
        {"op": Operation.CONFIGURE, "address": 0, "length": 64, "token": 0, "data": 0},
        {"op": Operation.TRACE, "address": 0, "length": 64, "token": 0, "data": 0},
        store(HOST, bytes(4)),
    ]
    bench = Bench(commands, port=Port.HOST).run(6)
    assert bench.source.taken == [0, 1, 2]
    assert len(bench.stores.got) == 1


def test_quiet_while_a_load_is_out():
    quiets = []
    bench = Bench([load(HOST, 8, 3)], delay=20)
    bench.far.sink.stall = 0

    def each(ctx, now):
        quiets.append(ctx.get(bench.dut.quiet))

    bench.run(30, each)
    assert bench.far.answered == [(3, 0x0706050403020100)]
    assert [now for now, quiet in enumerate(quiets) if not quiet] == [0, 20]


class Path(wiring.Component):
    """The GPU's processor, the fabric, and the host's memory."""

    commands: In(stream.Signature(Command))
    now: In(48)
    timing: In(PcieTiming)
    response: Out(Response())

    def elaborate(self, platform):
        m = Module()
        m.submodules.processor = processor = Processor(Port.GPU)
        m.submodules.fabric = fabric = PcieFabric(Structure(pcie_beats=128, pcie_reads=16))
        m.submodules.memory = host = self.memory = Memory(1)
        gpu_up, gpu_down = fabric.up[Port.GPU.value], fabric.down[Port.GPU.value]
        host_up, host_down = fabric.up[Port.HOST.value], fabric.down[Port.HOST.value]
        connect(m, self.commands, processor.commands)
        connect(m, processor.posted, gpu_up.posted)
        connect(m, processor.reads, gpu_up.reads)
        connect(m, gpu_down.completions, processor.completions)
        connect(m, host_down.posted, host.posted)
        connect(m, host_down.reads, host.reads)
        connect(m, host.completions, host_up.completions)
        wiring.connect(m, processor.response, wiring.flipped(self.response))
        line = Signal(512)
        with m.If(host.fw_en):
            m.d.sync += line.eq(host.fw_data)
        answer = Signal(512)
        with m.If(host.fr_en):
            m.d.sync += answer.eq(Mux(host.fw_en, host.fw_data, line))
        m.d.comb += [
            fabric.now.eq(self.now),
            fabric.timing.eq(self.timing),
            host.now.eq(self.now),
            host.timing.commit.eq(20),
            host.timing.read.eq(30),
            host.mps_log2.eq(8),
            host.fr_data.eq(answer),
        ]
        return m


def test_load_sees_the_store_before_it_at_the_round_trip():
    """A store and a load of the same host word, back to back, through all of the path."""
    dut = Path()
    payload = bytes.fromhex("0123456789abcdef")
    source = Source(dut.commands, [store(HOST + 24, payload), load(HOST + 24, 8, 77)])
    answers = []

    def each(ctx, now):
        if ctx.get(dut.response.valid):
            answers.append((now, ctx.get(dut.response.token), ctx.get(dut.response.data)))

    run(dut, [source], cycles=130, each=each, setup=[(dut.timing, pcie_timing())])
    (arrived, token, data) = answers[0]
    assert (len(answers), token) == (1, 77)
    assert (data & (1 << 64) - 1).to_bytes(8, "little") == payload
    # The links take 1/16 cycle per byte. Up: the read's 24 bytes from 2 on, behind the store's 32;
    # down: the same, behind a store that came there two cycles earlier; the answer has 28 bytes.
    at_host = (ceil(2 + 1.5) + 10) + (ceil(1.5) + 20)
    assert arrived == at_host + 30 + (ceil(1.75) + 10) + (ceil(1.75) + 20)
