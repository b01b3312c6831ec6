"""hw.pcie and hw.pcie_switch: rate, latency, credits, order and routing, against closed forms."""

import random
from fractions import Fraction
from math import ceil, floor

import pytest
from amaranth.sim import Simulator
from support_pcie import Probes, Sink, Source, pcie_timing, posted_beats, run

from hw.config import Structure
from hw.formats.tlp import Port, claims
from hw.pcie import PcieLink
from hw.pcie_switch import PcieFabric
from hw.units import BYTE_FRACTION, byte_interval

SMALL = Structure(pcie_beats=128, pcie_reads=16)
GPU, NIC, HOST = (port.value << 44 for port in (Port.GPU, Port.NIC, Port.HOST))
READ_NUMBER, POSTED_NUMBER, COMPLETION_NUMBER = 1, 0, 2


def covered(address, length):
    """Bytes of the dwords that a payload touches."""
    return (address + length + 3) // 4 * 4 - address // 4 * 4


def arrivals(beats, start, interval, latency):
    """Cycles in which the beats of one write are offered at the far side of an idle link."""
    taken, busy, offered = start, Fraction(0), []
    for beat in beats:
        wire = 24 * beat["first"] + covered(beat["address"] % 64, beat["count"])
        taken = max(taken, floor(busy) - 2)
        busy = max(Fraction(taken), busy) + wire * Fraction(interval, 1 << BYTE_FRACTION)
        offered.append(max(ceil(busy) + latency, offered[-1] + 1 if offered else 0))
        taken += 1
    return offered


def read(address, length, tag=0, requester=Port.GPU):
    return {
        "address": address,
        "length": length,
        "requester": requester,
        "tag": tag,
        "mark": {"kind": 0, "qp": 0, "index": 0},
    }


def completion_beats(address, payload, *, tag=0, requester=Port.GPU, final=1):
    beats = posted_beats(
        address, payload, extra={"requester": requester, "tag": tag, "final": final}
    )
    return [{**beat, "address": beat["address"] & 0xFFF} for beat in beats]


class Link:
    """A link with sources and sinks on all three classes."""

    def __init__(
        self,
        *,
        posted=(),
        reads=(),
        completions=(),
        gap=0.0,
        stall=0.0,
        until=(0, 0, 0),
        latency=10,
        interval=1 << 20,
        seed=0,
        **timing,
    ):
        self.dut = PcieLink(5, SMALL)
        i, o = self.dut.i, self.dut.o
        self.sources = [
            Source(port, items, gap=gap, seed=seed + n)
            for n, (port, items) in enumerate(
                zip((i.posted, i.reads, i.completions), (posted, reads, completions), strict=True)
            )
        ]
        self.sinks = [
            Sink(port, stall=stall, until=first, seed=seed + 10 + n)
            for n, (port, first) in enumerate(
                zip((o.posted, o.reads, o.completions), until, strict=True)
            )
        ]
        self.sent = Probes(self.dut.on_sent)
        self.stalls = [
            Probes(getattr(self.dut, f"on_stall_{name}"))
            for name in ("posted", "reads", "completions")
        ]
        self.parts = [*self.sources, *self.sinks, self.sent, *self.stalls]
        self.setup = [
            (self.dut.latency, latency),
            (self.dut.byte_interval, interval),
            (self.dut.timing, pcie_timing(**timing)),
        ]

    def run(self, cycles, *, each=None, full=False, start=0):
        def finished(now):
            return all(source.done for source in self.sources) and all(
                len(sink.got) == len(source.items)
                for sink, source in zip(self.sinks, self.sources, strict=True)
            )

        run(
            self.dut,
            self.parts,
            cycles=cycles,
            setup=self.setup,
            each=each,
            until=None if full else finished,
            start=start,
        )
        return self


@pytest.mark.parametrize(
    ("address", "length"), [(0, 1), (3, 2), (0, 8), (62, 4), (0, 64), (17, 239), (1, 512)]
)
@pytest.mark.parametrize(("latency", "gbps"), [(0, 512), (1, 200), (37, 400), (100, 55)])
def test_write_arrives_by_the_closed_form(address, length, latency, gbps):
    interval = byte_interval(gbps)
    start = 5
    link = Link(
        posted=posted_beats(NIC + address, (bytes(range(256)) * 2)[:length]),
        latency=latency,
        interval=interval,
    )
    link.sources[0].start = start
    link.run(1200)
    expected = arrivals(link.sources[0].items, start, interval, latency)
    assert link.sinks[0].offered == expected
    wire = 24 + covered(address, length)
    if len(expected) == 1 or (length >= 128 and gbps < 400 and expected[-1] > expected[-2] + 1):
        assert expected[-1] == start + ceil(wire * Fraction(interval, 1 << BYTE_FRACTION)) + latency
    ((cycle, event),) = link.sent.got
    assert cycle == start
    assert event == {
        "link": 5,
        "tlp": POSTED_NUMBER,
        "payload": length,
        "wire": wire,
        "mark": 0,
        "address": NIC + address,
    }


def test_read_costs_its_header():
    link = Link(reads=[read(NIC, 512)], interval=byte_interval(200)).run(200)
    assert link.sinks[1].offered == [ceil(Fraction(24 * 8, 200)) + 10]
    assert link.sent.got[0][1] == {
        "link": 5,
        "tlp": READ_NUMBER,
        "payload": 512,
        "wire": 24,
        "mark": 0,
        "address": NIC,
    }


@pytest.mark.parametrize(("size", "tlps"), [(8, 1), (64, 1), (256, 1), (1024, 4), (4096, 16)])
def test_wire_bytes_of_a_payload(size, tlps):
    """Rows of the accounting table: MPS 256, aligned; MWr(n) = 24 + n, CplD(n) = 20 + n."""
    posted, completions = [], []
    for at in range(0, size, 256):
        part = bytes(min(256, size - at))
        posted += posted_beats(NIC + at, part)
        completions += completion_beats(at, part)
    link = Link(posted=posted, completions=completions, interval=byte_interval(500)).run(2000)
    wire = {POSTED_NUMBER: [], COMPLETION_NUMBER: []}
    for _, event in link.sent.got:
        wire[event["tlp"]].append(event["wire"])
    assert (len(wire[POSTED_NUMBER]), sum(wire[POSTED_NUMBER])) == (tlps, 24 * tlps + size)
    assert (len(wire[COMPLETION_NUMBER]), sum(wire[COMPLETION_NUMBER])) == (tlps, 20 * tlps + size)


@pytest.mark.parametrize("gbps", [100, 256, 333])
def test_rate_is_exact_over_many_tlps(gbps):
    """The last of many writes of random sizes arrives when the sum of all bytes has been sent."""
    rng = random.Random(gbps)
    interval = byte_interval(gbps)
    posted, wire = [], 0
    for _ in range(60):
        address, length = rng.randrange(64), rng.randrange(100, 256)
        posted += posted_beats(NIC + address, bytes(length))
        wire += 24 + covered(address, length)
    link = Link(
        posted=posted, interval=interval, posted_header_credits=4095, posted_data_credits=16383
    )
    link.run(3000)
    exact = wire * Fraction(interval, 1 << BYTE_FRACTION) + 10
    assert 0 <= link.sinks[0].offered[-1] - ceil(exact) <= 1


def test_bytes_and_order_survive_random_traffic():
    rng = random.Random(3)
    posted, reads, completions = [], [], []
    for tag in range(25):
        posted += posted_beats(
            NIC + rng.randrange(4096), rng.randbytes(rng.randrange(1, 257)), mark=16 * tag
        )
        completions += completion_beats(
            rng.randrange(2048), rng.randbytes(rng.randrange(1, 257)), tag=tag
        )
        reads.append(read(GPU + rng.randrange(1 << 30), rng.randrange(1, 4097), tag))
    link = Link(
        posted=posted,
        reads=reads,
        completions=completions,
        gap=0.3,
        stall=0.4,
        interval=1 << 18,
        posted_header_credits=3,
        posted_data_credits=40,
        read_header_credits=2,
    )
    link.run(4000)
    for source, sink in zip(link.sources, link.sinks, strict=True):
        assert len(sink.got) == len(source.items) > 0
        for (_, item), wanted in zip(sink.got, source.items, strict=True):
            for name in set(wanted) - {"mark", "requester"}:
                assert item[name] == wanted[name]


def test_tlps_are_not_interleaved():
    """A class that stops within a TLP keeps the link."""
    posted = posted_beats(NIC, bytes(256))
    link = Link(posted=posted, reads=[read(NIC, 4)], interval=1 << 18)
    link.sources[1].start = 2
    link.sources[0].gap = 0.8
    link.run(400)
    assert link.sources[1].taken[0] > link.sources[0].taken[-1]


def test_read_does_not_pass_earlier_write():
    """A write waits at the far side: the read behind it waits too, a write behind does not."""
    posted = posted_beats(NIC, bytes(64)) + posted_beats(NIC + 64, bytes(64))
    link = Link(
        posted=posted,
        reads=[read(NIC, 4)],
        completions=completion_beats(0, bytes(4)),
        until=(100, 0, 0),
    )
    link.sources[1].start = link.sources[2].start = 1
    link.run(300)
    assert link.sources[1].taken[0] > link.sources[0].taken[0]
    last_before = link.sinks[0].got[
        0 if link.sources[1].taken[0] < link.sources[0].taken[1] else 1
    ][0]
    assert link.sinks[1].offered == [last_before + 1]
    assert link.sinks[2].offered[0] > link.sinks[0].got[0][0]


def test_posted_passes_blocked_reads_and_completions():
    """Reads and completions are stuck for want of credits and of a taker; writes go on."""
    reads = [read(NIC, 4, tag) for tag in range(8)]
    completions = [beat for _ in range(8) for beat in completion_beats(0, bytes(16))]
    posted = [beat for n in range(6) for beat in posted_beats(NIC + 256 * n, bytes(200))]
    link = Link(
        posted=posted,
        reads=reads,
        completions=completions,
        until=(0, 2000, 2000),
        interval=1 << 18,
        read_header_credits=2,
        completion_header_credits=3,
    )
    link.sources[0].start = 100
    link.run(400, full=True)
    assert len(link.sinks[0].got) == len(posted)
    assert (len(link.sources[1].taken), len(link.sources[2].taken)) == (2, 3)


@pytest.mark.parametrize("latency", [0, 1, 25])
def test_credits_come_back_after_the_latency(latency):
    """With credits for one TLP the next starts max(latency, 1) + 1 cycles after the pop."""
    posted = posted_beats(NIC, bytes(128)) + posted_beats(NIC, bytes(128))
    link = Link(posted=posted, latency=latency, interval=1 << 18, posted_data_credits=8 + 7)
    link.run(300)
    assert link.sources[0].taken[2] == link.sinks[0].got[1][0] + max(latency, 1) + 1
    ((cycle, event),) = link.stalls[0].got
    assert event["where"] == 5
    assert cycle == link.sources[0].taken[2]
    assert event["cycles"] == link.sources[0].taken[2] - link.sources[0].taken[1] - 1


@pytest.mark.parametrize(
    ("kind", "name", "credits", "fit"),
    [
        (0, "posted_header_credits", 3, 3),
        (0, "posted_data_credits", 35, 3),
        (1, "read_header_credits", 5, 5),
        (2, "completion_header_credits", 2, 2),
        (2, "completion_data_credits", 20, 2),
    ],
)
def test_credits_bound_what_is_sent(kind, name, credits, fit):
    """TLPs of 130 bytes in the middle of a dword cover 132 bytes: 9 units each."""
    for rounds in (1, 2):
        items = {
            "posted": [
                beat for _ in range(2 * fit + 3) for beat in posted_beats(NIC + 1, bytes(130))
            ],
            "reads": [read(NIC, 4) for _ in range(2 * fit + 3)],
            "completions": [
                beat for _ in range(2 * fit + 3) for beat in completion_beats(1, bytes(130))
            ],
        }
        chosen = list(items)[kind]
        until = [0, 0, 0]
        until[kind] = 150
        link = Link(**{chosen: items[chosen]}, until=until, interval=1 << 16, **{name: credits})
        cycles = 120 if rounds == 1 else 350
        link.run(cycles, full=True)
        per_tlp = 1 if kind == 1 else 3
        # All credits are back in the end: everything was sent, and as many again would fit.
        assert len(link.sources[kind].taken) == (
            fit * per_tlp if rounds == 1 else len(items[chosen])
        )


def test_long_latency_takes_a_beat_per_cycle():
    """100 beats are on the way at once."""
    posted = [beat for n in range(50) for beat in posted_beats(NIC, bytes(104))]
    link = Link(
        posted=posted,
        latency=900,
        interval=byte_interval(512),
        posted_header_credits=4095,
        posted_data_credits=16383,
    ).run(1200)
    assert link.sources[0].taken == list(range(100))
    assert [cycle for cycle, _ in link.sinks[0].got] == list(range(901, 1001)) or link.sinks[0].got[
        -1
    ][0] - link.sinks[0].got[0][0] <= 101


def test_quiet_means_nothing_before_due():
    """While the link is quiet it offers nothing before `due`; and it is quiet in the end."""
    rng = random.Random(9)
    posted = [
        beat
        for _ in range(12)
        for beat in posted_beats(NIC + rng.randrange(64), rng.randbytes(rng.randrange(1, 200)))
    ]
    reads = [read(NIC, 4, tag) for tag in range(12)]
    link = Link(
        posted=posted,
        reads=reads,
        gap=0.95,
        stall=0.3,
        latency=40,
        interval=1 << 19,
        posted_header_credits=2,
    )
    promise, quiets, last = 0, 0, None

    def each(ctx, now):
        nonlocal promise, quiets, last
        sources = any(source.offering for source in link.sources)
        offers = any(ctx.get(sink.port.valid) for sink in link.sinks)
        stalls = any(ctx.get(stall.port.valid) for stall in link.stalls)
        if now < promise and not sources:
            assert not offers and not stalls
        quiet, due = ctx.get(link.dut.quiet), ctx.get(link.dut.due)
        assert not (quiet and (sources or offers or stalls))
        assert due > now or not quiet
        promise = due if quiet else 0
        quiets += quiet
        last = quiet, due

    link.run(1200, each=each, full=True)
    assert quiets > 200
    assert all(source.done for source in link.sources)
    assert last == (1, (1 << 48) - 1)


def test_skipped_time_cannot_be_told():
    """Jumping from a quiet cycle to `due` gives the same outcome as stepping there."""
    outcome = []
    for jump in (False, True):
        link = Link(
            posted=posted_beats(NIC, bytes(200)) + posted_beats(NIC, bytes(90)),
            reads=[read(NIC, 8)],
            latency=133,
            posted_header_credits=1,
        )
        dut, parts = link.dut, link.parts
        steps = 0

        async def bench(ctx, jump=jump, link=link, dut=dut, parts=parts):
            nonlocal steps
            for signal, value in link.setup:
                ctx.set(signal, value)
            now = 0
            while now < 1500:
                ctx.set(dut.now, now)
                for part in parts:
                    part.drive(ctx, now)
                for part in parts:
                    part.sample(ctx, now)
                await ctx.tick()
                steps += 1
                for source in link.sources:
                    source.drive(ctx, now + 1)
                quiet, due = ctx.get(dut.quiet), ctx.get(dut.due)
                now = max(now + 1, min(due, 1500)) if jump and quiet else now + 1

        sim = Simulator(dut)
        sim.add_clock(1e-9)
        sim.add_testbench(bench)
        sim.run()
        outcome.append(
            ([sink.got for sink in link.sinks], link.sent.got, [stall.got for stall in link.stalls])
        )
        if jump:
            assert steps < 1000
    assert outcome[0] == outcome[1]
    assert len(outcome[0][0][0]) == 6


def fabric_run(sources, cycles, *, each=None, stall=0.0, **timing):
    """Runs a fabric; `sources` maps (port, class) to items. Returns dut, sources, sinks, events."""
    dut = PcieFabric(SMALL)
    classes = ("posted", "reads", "completions")
    feeding = {
        key: Source(getattr(dut.up[key[0].value], key[1]), items) for key, items in sources.items()
    }
    sinks = {
        (port, name): Sink(getattr(dut.down[port.value], name), stall=stall, seed=port.value)
        for port in Port
        for name in classes
    }
    sent = {number: Probes(link.on_sent) for number, link in enumerate(dut.links)}
    count = sum(len(source.items) for source in feeding.values())
    run(
        dut,
        [*feeding.values(), *sinks.values(), *sent.values()],
        cycles=cycles,
        each=each,
        setup=[(dut.timing, pcie_timing(**timing))],
        until=lambda _: sum(len(sink.got) for sink in sinks.values()) == count,
    )
    return dut, feeding, sinks, sent


def test_fabric_routes_by_address_and_requester():
    sources = {
        (Port.GPU, "posted"): posted_beats(NIC + 8, b"doorbell"),
        (Port.NIC, "reads"): [read(GPU + 64, 64, 7, Port.NIC), read(HOST + 64, 64, 8, Port.NIC)],
        (Port.GPU, "completions"): completion_beats(64, bytes(64), tag=7, requester=Port.NIC),
        (Port.HOST, "completions"): completion_beats(64, bytes(64), tag=9, requester=Port.GPU),
        (Port.NIC, "posted"): posted_beats(HOST + 64, bytes(64)),
    }
    _, _, sinks, sent = fabric_run(sources, 300)
    got = {key: [item for _, item in sink.got] for key, sink in sinks.items() if sink.got}
    assert set(got) == {
        (Port.NIC, "posted"),
        (Port.GPU, "reads"),
        (Port.HOST, "reads"),
        (Port.NIC, "completions"),
        (Port.GPU, "completions"),
        (Port.HOST, "posted"),
    }
    assert got[Port.NIC, "posted"][0]["address"] == NIC + 8
    assert got[Port.NIC, "completions"][0]["tag"] == 7
    assert got[Port.GPU, "completions"][0]["tag"] == 9
    # Each TLP enters one link up and one link down.
    assert [len(sent[number].got) for number in range(6)] == [1, 2, 2, 2, 3, 2]


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        (0x7F11_2233_4400, Port.HOST),
        (0x5555_0000_0000, Port.HOST),
        (GPU, Port.GPU),
        (GPU + (1 << 36) - 1, Port.GPU),
        (GPU + (1 << 36), Port.HOST),
        (GPU - 1, Port.HOST),
        (NIC + 0x100_0000, Port.HOST),
        (NIC + 0xFFF_800, Port.NIC),
        (0xFFFF_FFFF_FFC0, Port.HOST),
    ],
)
def test_what_nobody_claims_goes_to_the_host(address, owner):
    assert [port for port in Port if claims(port, address)] == [owner]
    sources = {(Port.NIC, "posted"): posted_beats(address, b"x")}
    sources[Port.NIC, "reads"] = [read(address, 1, 7, Port.NIC)]
    _, _, sinks, _ = fabric_run(sources, 300)
    assert {key for key, sink in sinks.items() if sink.got} == {(owner, "posted"), (owner, "reads")}


@pytest.mark.parametrize("length", [8, 64])
def test_fabric_crossing_by_the_closed_form(length):
    """A doorbell write GPU to NIC on an idle fabric; both links, and their ways, differ in rate."""
    fast, slow = byte_interval(400), byte_interval(100)
    timing = {
        "gpu": {
            "latency_up": 120,
            "latency_down": 150,
            "byte_interval_up": fast,
            "byte_interval_down": 1,
        },
        "nic": {
            "latency_up": 60,
            "latency_down": 95,
            "byte_interval_up": 1,
            "byte_interval_down": slow,
        },
    }
    _, _, sinks, _ = fabric_run(
        {(Port.GPU, "posted"): posted_beats(NIC, bytes(length))}, 400, **timing
    )
    wire, one = 24 + length, 1 << BYTE_FRACTION
    expected = ceil(Fraction(wire * fast, one)) + 120 + ceil(Fraction(wire * slow, one)) + 95
    assert sinks[Port.NIC, "posted"].offered == [expected]


def test_fabric_keeps_tlps_whole_and_is_fair():
    """Two devices write to a third at once: TLPs alternate and are not mixed."""
    sources = {
        (Port.GPU, "posted"): [
            beat for n in range(12) for beat in posted_beats(NIC + 512 * n, bytes([1]) * 200)
        ],
        (Port.HOST, "posted"): [
            beat for n in range(12) for beat in posted_beats(NIC + 512 * n, bytes([2]) * 200)
        ],
    }
    _, _, sinks, _ = fabric_run(sources, 1500, stall=0.1)
    owners, inside = [], False
    for _, item in sinks[Port.NIC, "posted"].got:
        owner = 1 if item["data"] & 0xFF == 1 else 2
        assert item["first"] == (not inside)
        if inside:
            assert owner == owners[-1]
        else:
            owners.append(owner)
        inside = not item["last"]
    assert sorted(owners) == [1] * 12 + [2] * 12
    assert all(left != right for left, right in zip(owners[2:-2], owners[3:-1], strict=True))


def test_fabric_is_quiet_between_arrivals():
    quiet_cycles = 0

    def each(ctx, now):
        nonlocal quiet_cycles
        quiet_cycles += ctx.get(dut.quiet)

    dut = PcieFabric(SMALL)
    source = Source(dut.up[Port.GPU.value].posted, posted_beats(NIC, bytes(8)))
    sink = Sink(dut.down[Port.NIC.value].posted)
    run(dut, [source, sink], cycles=120, each=each, setup=[(dut.timing, pcie_timing())])
    assert len(sink.got) == 1
    # Not quiet: the cycle it is sent in, the crossing of the switch, the cycle it is taken in, and
    # two credit returns.
    assert quiet_cycles == 120 - 5
