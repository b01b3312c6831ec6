"""Drives and records the streams of a block in Amaranth's simulator, one loop for all."""

import random

from amaranth.lib import data, enum
from amaranth.sim import Simulator

__all__ = ["Probes", "Sink", "Source", "pcie_timing", "posted_beats", "run", "values"]


def values(const):
    """Dict of the fields of a struct's value; enums and nested structs as integers."""
    result = {}
    for name, _field in const.shape():
        value = getattr(const, name)
        if isinstance(value, data.Const):
            value = value.as_bits()
        result[name] = value.value if isinstance(value, enum.Enum) else value
    return result


class Source:
    """Offers `items` (dicts) in order from cycle `start`; `gap` is the chance of not offering."""

    def __init__(self, port, items, *, gap=0.0, start=0, seed=0):
        self.port, self.items, self.gap, self.start = port, list(items), gap, start
        self.random = random.Random(seed)
        #: Cycle in which each item was taken.
        self.taken = []
        self.offering = False

    def drive(self, ctx, now):
        index = len(self.taken)
        if (
            index < len(self.items)
            and now >= self.start
            and (self.offering or self.random.random() >= self.gap)
        ):
            if not self.offering:
                ctx.set(self.port.payload, self.items[index])
            self.offering = True
        ctx.set(self.port.valid, self.offering)

    def sample(self, ctx, now):
        if self.offering and ctx.get(self.port.ready):
            self.taken.append(now)
            self.offering = False

    @property
    def done(self):
        return len(self.taken) == len(self.items)


class Sink:
    """Takes what is offered from cycle `until` on; `stall` is the chance of not being ready.

    Also checks that an item, once offered, stays as it is until it is taken.
    """

    def __init__(self, port, *, stall=0.0, until=0, seed=1):
        self.port, self.stall, self.until = port, stall, until
        self.random = random.Random(seed)
        #: (cycle, fields) of each item taken.
        self.got = []
        #: Cycle in which each item was first offered.
        self.offered = []
        self.held = None

    def drive(self, ctx, now):
        self.ready = now >= self.until and self.random.random() >= self.stall
        ctx.set(self.port.ready, self.ready)

    def sample(self, ctx, now):
        if not ctx.get(self.port.valid):
            assert self.held is None, "an offer was withdrawn"
            return
        item = values(ctx.get(self.port.payload))
        if self.held is None:
            self.offered.append(now)
        assert self.held in (None, item), "an offer changed"
        self.held = item
        if self.ready:
            self.got.append((now, item))
            self.held = None


class Probes:
    """Records the events of a probe."""

    def __init__(self, port):
        self.port, self.got = port, []

    def drive(self, ctx, now):
        pass

    def sample(self, ctx, now):
        if ctx.get(self.port.valid):
            self.got.append((now, values(ctx.get(self.port.payload))))


def run(dut, parts, *, cycles, setup=(), each=None, until=None, start=0):
    """Steps `dut` for `cycles` cycles or until `until(now)`, with all `parts` at work.

    `setup` holds (signal, value) pairs; `each(ctx, now)` is called in each cycle after the inputs
    were set. `start` is the first cycle number.
    """

    async def bench(ctx):
        for signal, value in setup:
            ctx.set(signal, value)
        for now in range(start, start + cycles):
            if hasattr(dut, "now"):
                ctx.set(dut.now, now)
            for part in parts:
                part.drive(ctx, now)
            if each:
                each(ctx, now)
            for part in parts:
                part.sample(ctx, now)
            if until and until(now):
                return
            await ctx.tick()

    sim = Simulator(dut)
    sim.add_clock(1e-9)
    sim.add_testbench(bench)
    sim.run()


def posted_beats(address, payload, *, mark=0, extra=None):
    """The beats of one TLP, bytes in lanes."""
    beats, at = [], 0
    while at < len(payload):
        lane = (address + at) % 64
        count = min(64 - lane, len(payload) - at)
        beats.append(
            {
                "data": int.from_bytes(payload[at : at + count], "little") << 8 * lane,
                "address": address + at,
                "count": count,
                "length": len(payload),
                "first": at == 0,
                "last": at + count == len(payload),
                "mark": {"kind": mark & 15, "qp": mark >> 4 & 0xFFF, "index": mark >> 16},
                **(extra or {}),
            }
        )
        at += count
    return beats


def pcie_timing(**changes):
    """Values of `PcieTiming`."""
    interval = {"byte_interval_up": 1 << 20, "byte_interval_down": 1 << 20}
    link = {"latency_up": 10, "latency_down": 20, **interval}
    return {
        "gpu": link,
        "nic": link,
        "host": link,
        "mps_log2": 8,
        "mrrs_log2": 9,
        "mwr_overhead": 24,
        "mrd_overhead": 24,
        "cpld_overhead": 20,
        "posted_header_credits": 32,
        "posted_data_credits": 128,
        "read_header_credits": 16,
        "completion_header_credits": 32,
        "completion_data_credits": 128,
        **changes,
    }
