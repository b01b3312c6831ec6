"""hw.memory: bytes, latencies, order and completions, against a memory in Python."""

import random

import pytest
from support_pcie import Probes, Sink, Source, posted_beats, run

from hw.formats.tlp import Port
from hw.memory import Memory

NEVER = (1 << 48) - 1
BASE = 1 << 44


class Lines:
    """The memory behind the line ports: writes first, then the read, whose data stays."""

    def __init__(self, dut, size=1 << 14, seed=0):
        self.dut, self.bytes = dut, bytearray(random.Random(seed).randbytes(size))
        #: (cycle, path, address, count) of each write.
        self.writes = []
        self.read_cycles = []
        self.answer = 0

    def drive(self, ctx, now):
        ctx.set(self.dut.fr_data, self.answer)

    def sample(self, ctx, now):
        for path in ("pw", "fw"):
            if ctx.get(getattr(self.dut, f"{path}_en")):
                address, enables, line = (
                    ctx.get(getattr(self.dut, f"{path}_{name}")) for name in ("addr", "be", "data")
                )
                assert address % 64 == 0 and address >> 44 == 1
                lanes = [lane for lane in range(64) if enables >> lane & 1]
                assert lanes == list(range(lanes[0], lanes[-1] + 1))
                for lane in lanes:
                    self.bytes[address - BASE + lane] = line >> 8 * lane & 0xFF
                self.writes.append((now, path, address + lanes[0], len(lanes)))
        if ctx.get(self.dut.fr_en):
            address = ctx.get(self.dut.fr_addr) - BASE
            assert address % 64 == 0
            self.answer = int.from_bytes(self.bytes[address : address + 64], "little")
            self.read_cycles.append(now)


def read(address, length, tag=0):
    return {
        "address": BASE + address,
        "length": length,
        "requester": Port.NIC,
        "tag": tag,
        "mark": {"kind": 8, "qp": 1, "index": tag},
    }


class Bench:
    def __init__(
        self,
        *,
        posted=(),
        reads=(),
        stores=(),
        gap=0.0,
        stall=0.0,
        until=0,
        mps_log2=8,
        seed=0,
        **timing,
    ):
        self.dut = dut = Memory(1)
        self.lines = Lines(dut)
        self.posted = Source(dut.posted, posted, gap=gap, seed=seed)
        self.reads = Source(dut.reads, reads, gap=gap, seed=seed + 1)
        self.stores = Source(dut.stores, stores, gap=gap, seed=seed + 2)
        self.sink = Sink(dut.completions, stall=stall, until=until, seed=seed + 3)
        self.fabric, self.store = Probes(dut.on_commit_fabric), Probes(dut.on_commit_store)
        self.parts = [
            self.lines,
            self.posted,
            self.reads,
            self.stores,
            self.sink,
            self.fabric,
            self.store,
        ]
        self.setup = [
            (dut.timing, {"commit": 20, "read": 30, "store": 10, **timing}),
            (dut.mps_log2, mps_log2),
        ]

    def run(self, cycles, each=None):
        run(self.dut, self.parts, cycles=cycles, setup=self.setup, each=each)
        return self


def answers(beats):
    """The requests' bytes and the TLPs' lengths out of completion beats; checks each TLP."""
    got, sizes, data, left, at = [], [], bytearray(), 0, None
    for beat in beats:
        assert 1 <= beat["count"] <= 64 - beat["address"] % 64
        if beat["first"]:
            assert left == 0
            left = beat["length"]
            sizes.append((beat["address"], left, beat["final"]))
        if at is not None:
            assert beat["address"] == at % 4096
        lane = beat["address"] % 64
        data += (beat["data"] >> 8 * lane & (1 << 8 * beat["count"]) - 1).to_bytes(
            beat["count"], "little"
        )
        left -= beat["count"]
        assert beat["last"] == (left == 0)
        at = beat["address"] + beat["count"]
        if beat["last"] and beat["final"]:
            got.append((beat["tag"], bytes(data)))
            data, at = bytearray(), None
    assert not data
    return got, sizes


@pytest.mark.parametrize(
    ("gap", "stall", "mps_log2"), [(0, 0, 8), (0.3, 0.5, 8), (0, 0.4, 6), (0.4, 0, 7), (0, 0.1, 12)]
)
def test_reads_give_the_bytes(gap, stall, mps_log2):
    rng = random.Random(mps_log2)
    requests = [
        (rng.randrange(8192), rng.choice([1, 3, 64, rng.randrange(1, 200), rng.randrange(1, 1500)]))
        for _ in range(18)
    ] + [(64 * 7 - 1, 2), (4095, 4096)]
    bench = Bench(
        reads=[read(address, length, tag) for tag, (address, length) in enumerate(requests)],
        gap=gap,
        stall=stall,
        mps_log2=mps_log2,
    )
    bench.run(800 if stall < 0.5 else 1100)
    got, sizes = answers([item for _, item in bench.sink.got])
    assert got == [
        (tag, bytes(bench.lines.bytes[address : address + length]))
        for tag, (address, length) in enumerate(requests)
    ]
    mps, expected = 1 << mps_log2, []
    for address, length in requests:
        while length:
            part = min(mps - address % mps, length)
            expected.append((address % 4096, part, int(part == length)))
            address, length = address + part, length - part
    assert sizes == expected
    assert {item["requester"] for _, item in bench.sink.got} == {Port.NIC.value}


@pytest.mark.parametrize(
    ("address", "length", "tlps"),
    [
        (0, 8, 1),
        (0, 64, 1),
        (0, 256, 1),
        (0, 1024, 4),
        (0, 4096, 16),
        (16, 4096, 17),
    ],
)
def test_completions_of_a_read(address, length, tlps):
    """Rows of the accounting table: completions are cut at MPS boundaries (256)."""
    bench = Bench(reads=[read(address, length)]).run(120)
    assert len(answers([item for _, item in bench.sink.got])[1]) == tlps


@pytest.mark.parametrize("offset", [0, 3312])
def test_completions_of_a_dispatch_token(offset):
    """7408 bytes in requests of 512: 29 completions (30 where the row starts at 3312)."""
    reads, at = [], offset
    while at < offset + 7408:
        size = min(512 - at % 512, offset + 7408 - at)
        reads.append(read(at, size, len(reads)))
        at += size
    bench = Bench(reads=reads).run(220)
    got, sizes = answers([item for _, item in bench.sink.got])
    assert (len(got), len(sizes)) == ((15, 29) if offset == 0 else (15, 30))


def test_writes_change_exactly_their_bytes():
    rng = random.Random(5)
    posted, stores = [], []
    expected = bytearray(Lines(None).bytes)
    for n in range(40):
        # Fabric writes in the lower half, stores in the upper: their order is not defined between
        # the two.
        payload = rng.randbytes(rng.choice([1, 2, 8, 63, 64, rng.randrange(1, 257)]))
        at = rng.randrange(4096)
        posted += posted_beats(BASE + at, payload, mark=3 + 16 * n)
        expected[at : at + len(payload)] = payload
        payload = rng.randbytes(rng.randrange(1, 65))
        at = 8192 + rng.randrange(4096)
        stores += posted_beats(BASE + at, payload, mark=1 + (n << 16))
        expected[at : at + len(payload)] = payload
    bench = Bench(posted=posted, stores=stores, gap=0.2).run(350)
    assert bench.lines.bytes == expected
    for path, source, probe, fabric, latency in (
        ("fw", bench.posted, bench.fabric, 1, 20),
        ("pw", bench.stores, bench.store, 0, 10),
    ):
        writes = [write for write in bench.lines.writes if write[1] == path]
        assert [cycle for cycle, *_ in writes] == [cycle + latency for cycle in source.taken]
        assert [(cycle, event["address"], event["count"]) for cycle, event in probe.got] == [
            (cycle, address, count) for cycle, _, address, count in writes
        ]
        assert [event["last"] for _, event in probe.got] == [beat["last"] for beat in source.items]
        assert {(event["memory"], event["fabric"]) for _, event in probe.got} == {(1, fabric)}
        assert [event["mark"] for _, event in probe.got] == [
            beat["mark"]["kind"] | beat["mark"]["qp"] << 4 | beat["mark"]["index"] << 16
            for beat in source.items
        ]


@pytest.mark.parametrize("latency", [0, 1, 2, 3, 40])
def test_read_latency(latency):
    bench = Bench(reads=[read(60, 8)], read=latency)
    bench.reads.start = 4
    bench.run(60)
    assert bench.sink.offered[0] == 4 + max(2, latency)


@pytest.mark.parametrize(("commit", "read_latency"), [(50, 5), (5, 50), (0, 0), (1, 2)])
def test_read_sees_every_write_accepted_before_it(commit, read_latency):
    rng = random.Random(commit)
    payload = rng.randbytes(256)
    bench = Bench(
        posted=posted_beats(BASE, payload) + posted_beats(BASE, bytes(64)),
        reads=[read(0, 256)],
        commit=commit,
        read=read_latency,
    )
    # The four beats of the first write come at cycles 0 to 3, that of the second with the read: not
    # before it.
    bench.reads.start = 4
    bench.run(150)
    ((_, data),) = answers([item for _, item in bench.sink.got])[0]
    last_commit = bench.lines.writes[3][0]
    assert bench.sink.offered[0] == max(4 + max(2, read_latency), last_commit + 2)
    assert data[64:] == payload[64:]
    # The write of the same cycle is not waited for.
    assert data[:64] == (
        payload[:64] if bench.lines.read_cycles[0] < bench.lines.writes[4][0] else bytes(64)
    )


def test_a_line_per_cycle_without_gaps():
    reads = [read(64 * n, 64, n) for n in range(10)] + [read(32, 256, 10), read(0, 512, 11)]
    bench = Bench(reads=reads).run(90)
    cycles = [cycle for cycle, _ in bench.sink.got]
    assert cycles == list(range(30, 30 + 10 + 5 + 8))


def test_a_write_per_cycle_at_long_latency():
    """150 beats are accepted in a row while the first still waits."""
    posted = [beat for n in range(150) for beat in posted_beats(BASE + 64 * n, bytes(64))]
    bench = Bench(posted=posted, commit=200).run(360)
    assert bench.posted.taken == list(range(150))
    assert [cycle for cycle, *_ in bench.lines.writes] == list(range(200, 350))


def test_reads_hold_under_back_pressure():
    """Nothing is read ahead of what is taken, and reads queue up."""
    bench = Bench(reads=[read(64 * n, 64, n) for n in range(40)], until=100).run(180)
    assert bench.reads.taken == list(range(40))
    assert bench.lines.read_cycles[:2] == [29, 100]
    assert [cycle for cycle, _ in bench.sink.got] == list(range(100, 140))


def test_quiet_means_nothing_before_due():
    rng = random.Random(2)
    bench = Bench(
        posted=[beat for n in range(8) for beat in posted_beats(BASE + 99 * n, rng.randbytes(99))],
        reads=[read(50 * n, 100, n) for n in range(8)],
        stores=posted_beats(BASE + 9000, bytes(64)) * 6,
        gap=0.96,
        stall=0.3,
        commit=60,
        read=25,
        store=15,
    )
    promise, quiets, last = 0, 0, None

    def each(ctx, now):
        nonlocal promise, quiets, last
        dut = bench.dut
        fed = bench.posted.offering or bench.reads.offering or bench.stores.offering
        acts = any(
            ctx.get(signal) for signal in (dut.fw_en, dut.pw_en, dut.fr_en, dut.completions.valid)
        )
        if now < promise and not fed:
            assert not acts
        quiet, due = ctx.get(dut.quiet), ctx.get(dut.due)
        assert not (quiet and (fed or acts))
        assert due > now or not quiet
        promise = due if quiet else 0
        quiets += quiet
        last = quiet, due

    bench.run(700, each)
    assert quiets > 100
    assert bench.posted.done and bench.reads.done and bench.stores.done
    assert last == (1, NEVER)
