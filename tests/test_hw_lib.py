"""The stream library: each block against a list, a queue or a formula."""

import random
from fractions import Fraction

import pytest
from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator
from support_streams import Bench, Sink, Source, pack, refuses, unpack

from hw.formats.events import StallCause
from hw.lib.align import Realigner, bytes_to_boundary
from hw.lib.arbiter import Arbiter
from hw.lib.delay import NEVER, DelayLine, earliest
from hw.lib.rate import RateMeter
from hw.lib.stream import Queue, connect, same_shape, skid
from hw.lib.trace import STALL_PART, StallMeter


class Item(data.Struct):
    who: 4
    number: 12
    last: 1


class SameAsItem(data.Struct):
    who: 4
    number: 12
    last: 1


class OtherOfSameWidth(data.Struct):
    number: 12
    who: 4
    last: 1


class Colour(enum.Enum, shape=4):
    RED = 0


class Size(enum.Enum, shape=4):
    SMALL = 0


def items(who, count, ends=lambda i: 1):
    return [{"who": who, "number": i, "last": ends(i)} for i in range(count)]


# connect


@pytest.mark.parametrize(
    "left, right, same",
    [
        (Item, Item, True),
        (Item, SameAsItem, True),
        (Item, OtherOfSameWidth, False),
        (Item, unsigned(17), False),
        (Item, 17, False),
        (8, unsigned(8), True),
        (8, 9, False),
        (8, data.ArrayLayout(1, 8), False),
        (Colour, Colour, True),
        (Colour, Size, False),
        (Colour, 4, False),
        (data.StructLayout({"a": Item}), data.StructLayout({"a": Item}), True),
        (data.StructLayout({"a": Item}), data.StructLayout({"b": Item}), False),
        (data.StructLayout({"a": Item}), data.StructLayout({"a": OtherOfSameWidth}), False),
    ],
)
def test_same_shape_sees_layouts_not_widths(left, right, same):
    assert same_shape(left, right) is same
    assert same_shape(right, left) is same


class Joined(wiring.Component):
    def __init__(self, left, right):
        super().__init__({"i": In(stream.Signature(left)), "o": Out(stream.Signature(right))})

    def elaborate(self, platform):
        m = Module()
        connect(m, self.i, self.o)
        return m


def test_connect_refuses_unlike_layouts_of_equal_width():
    refuses(lambda: Joined(Item, OtherOfSameWidth).elaborate(None), TypeError, "connected to")


def test_connect_joins_alike_layouts():
    dut = Joined(Item, SameAsItem)
    out = Sink(dut.o, stall=0.3)
    Bench(Clocked(dut), [Source(dut.i, items(1, 20), idle=0.3), out]).run(400)
    assert out.words == items(1, 20)


class Clocked(wiring.Component):
    """A combinational block, with a clock for the bench."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.inner = self.inner
        beat = Signal()
        m.d.sync += beat.eq(~beat)
        return m


# Queue


@pytest.mark.parametrize(
    "depth, idle, stall", [(2, 0.0, 0.0), (2, 0.5, 0.2), (8, 0.1, 0.7), (16, 0.3, 0.3)]
)
def test_queue_keeps_order_and_level(depth, idle, stall):
    dut = Queue(Item, depth)
    source, out = Source(dut.i, items(1, 120), idle=idle, seed=1), Sink(dut.o, stall=stall, seed=2)
    levels = []

    def level(ctx, cycle):
        # Before this cycle's transfers, which the drivers have already counted.
        came = sum(at < cycle for at, _ in source.taken)
        left = sum(at < cycle for at, _ in out.items)
        assert ctx.get(dut.level) == came - left
        assert ctx.get(dut.empty) == (came == left)
        levels.append(came - left)

    Bench(dut, [source, out], each_cycle=level).run(2000, done=lambda: len(out.items) == 120)
    assert out.words == items(1, 120)
    assert max(levels) <= depth
    if not idle:
        assert [cycle for cycle, _ in out.items] == list(range(1, 121))
    if stall > 0.5:
        assert max(levels) == depth


def test_skid_passes_one_item_per_cycle_and_cuts_ready():
    dut = skid(Item)
    assert dut.depth == 2
    out = Sink(dut.o)
    Bench(dut, [Source(dut.i, items(1, 50)), out]).run(200)
    assert [cycle for cycle, _ in out.items] == list(range(1, 51))


@pytest.mark.parametrize(
    "build",
    [lambda: Queue(8, 3), lambda: Queue(8, 1), lambda: DelayLine(8, 12), lambda: DelayLine(8, 0)],
)
def test_depths_are_powers_of_two(build):
    refuses(build, ValueError, "power of two")


# DelayLine


@pytest.mark.parametrize("latency", [0, 1, 2, 7, 31])
def test_delay_passes_one_item_per_cycle_at_any_latency_below_its_depth(latency):
    dut = DelayLine(Item, 32)
    out = Sink(dut.o)
    Bench(dut, [Source(dut.i, items(1, 100)), out], {"latency": latency}).run(
        400, done=lambda: len(out.items) == 100
    )
    behind = max(latency, 1)
    assert [cycle for cycle, _ in out.items] == list(range(behind, behind + 100))
    assert out.words == items(1, 100)


def test_delay_at_its_depth_is_full():
    dut = DelayLine(Item, 8)
    out = Sink(dut.o)
    Bench(dut, [Source(dut.i, items(1, 40)), out], {"latency": 20}).run(
        400, done=lambda: len(out.items) == 40
    )
    assert [cycle for cycle, _ in out.items][:10] == [20, 21, 22, 23, 24, 25, 26, 27, 41, 42]


def test_delay_is_kept_under_back_pressure_and_can_be_skipped():
    def run(skip):
        dut = DelayLine(Item, 32)
        source, out = Source(dut.i, items(1, 60), idle=0.9, seed=3), Sink(dut.o, stall=0.4, seed=4)
        bench = Bench(dut, [source, out], {"latency": 25}, skip=skip).run(
            3000, done=lambda: len(out.items) == 60
        )
        assert out.words == items(1, 60)
        assert all(
            left >= came + 25 for (came, _), (left, _) in zip(source.taken, out.items, strict=True)
        )
        return out.items, bench.evaluated

    skipped, full = run(True), run(False)
    assert skipped[0] == full[0]
    assert skipped[1] < 0.6 * full[1]


class Least(wiring.Component):
    def __init__(self, count):
        super().__init__({"dues": In(48).array(count), "least": Out(48)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.least.eq(earliest(m, self.dues))
        return m


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_earliest_is_the_minimum(count):
    dut, source = Least(count), random.Random(count)
    simulator = Simulator(dut)

    async def check(ctx):
        for _ in range(20):
            dues = [source.choice((NEVER, source.getrandbits(48))) for _ in range(count)]
            for port, due in zip(dut.dues, dues, strict=True):
                ctx.set(port, due)
            assert ctx.get(dut.least) == min(dues)

    simulator.add_testbench(check)
    simulator.run()


# Arbiter


def rtl_merge(streams, *, stalls=0.0, idle=0.0, **options):
    dut = Arbiter(Item, len(streams), **options)
    out = Sink(dut.o, stall=stalls, seed=9)
    sources = [
        Source(port, sent, idle=idle, seed=i)
        for i, (port, sent) in enumerate(zip(dut.i, streams, strict=True))
    ]
    bench = Bench(dut, [*sources, out]).run(4000)
    for who, sent in enumerate(streams):
        assert [item for item in out.words if item["who"] == who] == sent
    return out, bench


@pytest.mark.parametrize("count", [2, 3, 5])
def test_arbiter_is_fair_and_wastes_no_cycle(count):
    out, _ = rtl_merge([items(who, 20) for who in range(count)])
    assert [item["who"] for item in out.words] == list(range(count)) * 20
    assert [cycle for cycle, _ in out.items] == list(range(20 * count))


def test_arbiter_serves_a_lone_stream_every_cycle():
    out, _ = rtl_merge([[], items(1, 30), []])
    assert [cycle for cycle, _ in out.items] == list(range(30))


def test_arbiter_keeps_its_offer_while_it_waits():
    # The sink checks that an offer is not exchanged.
    out, _ = rtl_merge([items(who, 40) for who in range(4)], stalls=0.5, idle=0.6)
    assert len(out.items) == 160


@pytest.mark.parametrize("stalls, idle", [(0.0, 0.0), (0.4, 0.5)])
def test_arbiter_never_mixes_packets(stalls, idle):
    streams = [
        items(who, 60, ends=lambda i, who=who: int(i % (who + 2) == who + 1)) for who in range(3)
    ]
    out, _ = rtl_merge(
        [sent[: len(sent) // (who + 2) * (who + 2)] for who, sent in enumerate(streams)],
        stalls=stalls,
        idle=idle,
        packets=True,
    )
    owner, order = None, []
    for item in out.words:
        assert owner in (None, item["who"]), "packets are mixed"
        if owner is None:
            order.append(item["who"])
        owner = None if item["last"] else item["who"]
    if not idle:
        assert order[:30] == [0, 1, 2] * 10


# RateMeter


def run_meter(cost, count, gaps=lambda i: 0, fraction=8, ahead=0):
    """Cycles in which items were charged, each as soon as the meter was open, and their `ends`."""
    dut = RateMeter(fraction, 24, ahead=ahead)
    charged, ends = [], []

    async def charge(ctx):
        ctx.set(dut.cost, cost)
        not_before = 5
        for cycle in range(100_000):
            ctx.set(dut.now, cycle)
            now = ctx.get(dut.open) and cycle >= not_before
            ctx.set(dut.charge, int(now))
            if now:
                charged.append(cycle)
                ends.append(ctx.get(dut.ends))
                not_before = cycle + gaps(len(charged))
                if len(charged) == count:
                    return
            else:
                assert ctx.get(dut.free_at) > cycle + ahead or cycle < not_before
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(charge)
    simulator.run()
    return charged, ends


@pytest.mark.parametrize("cost", [256, 300, 985, 1000, 64, 5 * 256 + 1])
def test_rate_is_exact_on_average(cost):
    charged, ends = run_meter(cost, 400)
    exact = Fraction(cost, 256)
    # Item i starts in the cycle in which the exact time falls, never before the next cycle.
    if exact >= 1:
        assert charged == [5 + int(i * exact) for i in range(400)]
        assert ends == [5 + -int(-(i + 1) * exact // 1) for i in range(400)]
    else:
        assert charged == list(range(5, 405))


def test_rate_does_not_pay_back_idle_time():
    charged, _ = run_meter(3 * 256 + 128, 30, gaps=lambda i: 50 if i == 10 else 0)
    # 3.5 cycles each; after the gap the count starts anew.
    assert charged[:10] == [5 + 7 * i // 2 for i in range(10)]
    restart = charged[9] + 50
    assert charged[10:] == [restart + 7 * i // 2 for i in range(20)]


def test_rate_may_be_charged_ahead():
    charged, ends = run_meter(4 * 256, 20, ahead=2)
    # Only the charge comes early; what it costs does not.
    assert charged == [5, *(5 + 4 * i - 2 for i in range(1, 20))]
    assert ends == [5 + 4 * (i + 1) for i in range(20)]


def test_rate_zero_never_closes():
    charged, ends = run_meter(0, 50)
    assert charged == ends == list(range(5, 55))


# Realigner


def ref_realign(run, start):
    """Lines of one run of (lane, bytes): (lane, bytes, last)."""
    raw = b"".join(piece for _, piece in run)
    lines, lane = [], start
    while True:
        part, raw = raw[: 64 - lane], raw[64 - lane :]
        lines.append((lane, part, not raw))
        if not raw:
            return lines
        lane = 0


class Starts:
    """Gives each run its start lane while the run's pieces are offered."""

    def __init__(self, port, source, starts):
        self.port, self.source, self.starts, self.run = port, source, starts, 0

    def drive(self, ctx, cycle):
        self.run = sum(item["last"] for _, item in self.source.taken)
        ctx.set(self.port, self.starts[min(self.run, len(self.starts) - 1)])

    def sample(self, ctx, cycle):
        pass


def rtl_realign(runs, starts, *, stalls=0.0, seed=1):
    dut = Realigner()
    pieces = [
        {
            "data": int.from_bytes(raw, "little") << 8 * lane,
            "lane": lane,
            "count": len(raw),
            "last": i == len(run) - 1,
        }
        for run in runs
        for i, (lane, raw) in enumerate(run)
    ]
    source, out = (
        Source(dut.i, pieces, idle=stalls, seed=seed),
        Sink(dut.o, stall=stalls, seed=seed + 1),
    )
    bench = Bench(dut, [Starts(dut.start, source, starts), source, out]).run(
        8000, done=lambda: sum(line["last"] for line in out.words) == len(runs)
    )
    lines = [
        (
            line["lane"],
            line["data"].to_bytes(64, "little")[line["lane"] : line["lane"] + line["count"]],
            bool(line["last"]),
        )
        for line in out.words
    ]
    return lines, out, bench


def random_run(source, pieces):
    run = []
    for _ in range(pieces):
        raw = source.randbytes(source.choice((1, 64, source.randint(1, 64))))
        run.append((source.randint(0, 64 - len(raw)) if len(raw) < 64 else 0, raw))
    if source.random() < 0.2:
        run.append((source.randrange(64), b""))
    return run


@pytest.mark.parametrize("seed, stalls", [(1, 0.0), (2, 0.4), (3, 0.0), (4, 0.6)])
def test_realigner_packs_random_runs(seed, stalls):
    source = random.Random(seed)
    runs = [random_run(source, source.randint(1, 6)) for _ in range(60)]
    starts = [source.randrange(64) for _ in runs]
    lines, _, _ = rtl_realign(runs, starts, stalls=stalls, seed=seed)
    assert lines == [
        line for run, start in zip(runs, starts, strict=True) for line in ref_realign(run, start)
    ]


def test_realigner_streams_full_lines():
    runs = [[(0, bytes([i]) * 64) for i in range(50)]]
    _, out, _ = rtl_realign(runs, [0])
    assert [cycle for cycle, _ in out.items] == list(range(50))


def test_realigner_needs_one_more_cycle_for_a_spill():
    _, out, _ = rtl_realign([[(0, b"a" * 64), (0, b"b" * 64)], [(0, b"c" * 8)]], [1, 0])
    assert [cycle for cycle, _ in out.items] == [0, 1, 2, 3]


class Boundary(wiring.Component):
    def __init__(self):
        super().__init__({"address": In(48), "size_log2": In(4), "left": Out(13)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.left.eq(bytes_to_boundary(m, self.address, self.size_log2, "left_now"))
        return m


def test_bytes_to_boundary():
    dut, source = Boundary(), random.Random(1)

    async def check(ctx):
        for size_log2 in range(6, 13):
            for address in (0, 1, 63, 64, 4095, 4096, *(source.getrandbits(48) for _ in range(20))):
                ctx.set(dut.address, address)
                ctx.set(dut.size_log2, size_log2)
                assert ctx.get(dut.left) == (1 << size_log2) - address % (1 << size_log2)

    simulator = Simulator(dut)
    simulator.add_testbench(check)
    simulator.run()


# StallMeter


def test_a_stall_without_end_is_told_in_parts():
    dut = StallMeter(StallCause.WINDOW)
    told = []

    async def check(ctx):
        for cycle in range(10_010):
            ctx.set(dut.stalled, cycle < 10_000)
            if ctx.get(dut.event.valid):
                told.append((cycle, ctx.get(dut.event.payload.cycles)))
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(check)
    simulator.run()
    assert [cycle for cycle, _ in told] == [STALL_PART, 2 * STALL_PART, 10_000]
    assert sum(count for _, count in told) == 10_000


def test_stall_meter_counts_the_cycles_of_each_stall():
    dut = StallMeter(StallCause.WINDOW, where=3)
    pattern = [0, 1, 0, 0, 1, 1, 1, 0, 1, 0, 0]
    events = []

    async def check(ctx):
        for cycle, stalled in enumerate(pattern):
            ctx.set(dut.stalled, stalled)
            if ctx.get(dut.event.valid):
                payload = dut.event.payload
                events.append((cycle, ctx.get(payload.cycles), ctx.get(payload.where)))
                assert ctx.get(payload.cause) == StallCause.WINDOW
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(check)
    simulator.run()
    assert events == [(2, 1, 3), (7, 3, 3), (9, 1, 3)]


# The bench itself.


def test_pack_refuses_what_does_not_fit():
    assert unpack(Item, pack(Item, {"who": 3, "last": 1})) == {"who": 3, "number": 0, "last": 1}
    with pytest.raises(ValueError, match="does not fit"):
        pack(Item, {"who": 16})
    with pytest.raises(ValueError, match="no such"):
        pack(Item, {"when": 1})


class Withdrawing(wiring.Component):
    """Offers an item for one cycle only."""

    def __init__(self):
        super().__init__({"o": Out(stream.Signature(8))})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.o.valid.eq(~self.o.valid)
        return m


class Changing(wiring.Component):
    """Changes what it offers."""

    def __init__(self):
        super().__init__({"o": Out(stream.Signature(8))})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.valid.eq(1)
        m.d.sync += self.o.payload.eq(self.o.payload + 1)
        return m


@pytest.mark.parametrize("build, message", [(Withdrawing, "withdrawn"), (Changing, "changed")])
def test_sink_sees_a_broken_stream_rule(build, message):
    dut = build()
    with pytest.raises(AssertionError, match=message):
        Bench(dut, [Sink(dut.o, stall=1.0)]).run(20, tail=10)
