"""Drives a block's streams in Amaranth's simulator: random idle and back-pressure, stream rules,
quiet.

A bench runs all drivers in one loop, one turn per cycle. With `skip` it does what the engine does:
a cycle in which the block is quiet, no input is valid and nothing is due is not clocked. What comes
out, and when, must not change by that.
"""

import gc
import random
import warnings
from collections import deque

import pytest
from amaranth.hdl import Shape
from amaranth.lib import data
from amaranth.sim import Simulator

from hw.lib.trace import probes

__all__ = ["Bench", "Sink", "Source", "pack", "refuses", "unpack"]


def _fields(shape):
    try:
        return list(data.Layout.cast(shape))
    except TypeError:
        return None


def pack(shape, values):
    """Nested dict to the integer of a layout; a field not given is 0, a misfit raises."""
    fields = _fields(shape)
    if fields is None:
        word = int(getattr(values, "value", values))
        if not 0 <= word < 1 << Shape.cast(shape).width:
            raise ValueError(f"{values} does not fit {shape}")
        return word
    values = dict(values)
    word = 0
    for key, field in fields:
        if key in values:
            word |= pack(field.shape, values.pop(key)) << field.offset
    if values:
        raise ValueError(f"no such fields: {', '.join(values)}")
    return word


def unpack(shape, word):
    """Integer of a layout to a nested dict of integers."""
    fields = _fields(shape)
    if fields is None:
        return word
    return {
        key: unpack(field.shape, word >> field.offset & (1 << Shape.cast(field.shape).width) - 1)
        for key, field in fields
    }


def _shape(stream):
    return stream.signature.members["payload"].shape


def _bits(signal):
    return signal.as_value() if hasattr(signal, "as_value") else signal


def refuses(build, error, match):
    """`build()` raises; no warning of Amaranth's that what it left half-made was not used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(error, match=match):
            build()
        gc.collect()


class Source:
    """Sends items (dicts, or (cycle not before, dict)); more may be appended on the way."""

    def __init__(self, stream, items=(), idle=0.0, seed=0):
        self.stream, self.shape, self.idle = stream, _shape(stream), idle
        self.payload = _bits(stream.payload)
        self.items, self.random = deque(items), random.Random(seed)
        self.offering, self.was_valid, self.taken = None, 0, []

    def drive(self, ctx, cycle):
        wants = self.random.random() >= self.idle
        if self.offering is None and self.items and wants:
            item = self.items[0]
            not_before, item = item if isinstance(item, tuple) else (0, item)
            if cycle >= not_before:
                self.items.popleft()
                self.offering = item
                ctx.set(self.payload, pack(self.shape, item))
        valid = int(self.offering is not None)
        if valid != self.was_valid:
            ctx.set(self.stream.valid, valid)
            self.was_valid = valid

    def sample(self, ctx, cycle):
        if self.was_valid and ctx.get(self.stream.ready):
            self.taken.append((cycle, self.offering))
            self.offering = None

    @property
    def idle_now(self):
        return self.offering is None

    @property
    def finished(self):
        return self.offering is None and not self.items


class Sink:
    """Takes (cycle, dict) into `items`, and checks that an offer stays until it is taken."""

    def __init__(self, stream, stall=0.0, seed=0, on_item=None):
        self.stream, self.shape, self.stall = stream, _shape(stream), stall
        self.payload = _bits(stream.payload)
        self.items, self.random, self.on_item = [], random.Random(seed), on_item
        self.was_ready, self.offered = 0, None

    def drive(self, ctx, cycle):
        ready = int(self.random.random() >= self.stall)
        if ready != self.was_ready:
            ctx.set(self.stream.ready, ready)
            self.was_ready = ready

    def sample(self, ctx, cycle):
        if not ctx.get(self.stream.valid):
            assert self.offered is None, f"cycle {cycle}: an offer was withdrawn"
            return
        word = ctx.get(self.payload)
        assert self.offered in (None, word), f"cycle {cycle}: an offer changed"
        self.offered = word
        if self.was_ready:
            self.offered = None
            item = unpack(self.shape, word)
            self.items.append((cycle, item))
            if self.on_item:
                self.on_item(cycle, item)

    @property
    def words(self):
        return [item for _, item in self.items]


class Bench:
    """Runs a block with its drivers.

    Parameters
    ----------
    dut : Component
        Its `now`, `quiet` and `due` are used if it has them; its probes are recorded in `events`.
    constants : dict
        Member name to value, set before the first cycle.
    skip : bool
        Do not clock what the engine would skip.
    """

    def __init__(self, dut, drivers, constants=None, *, skip=False, each_cycle=None):
        self.dut, self.drivers, self.skip, self.each_cycle = dut, drivers, skip, each_cycle
        self.constants = constants or {}
        self.events, self.evaluated, self.cycle = [], 0, 0

    def run(self, limit, done=lambda: True, tail=4):
        """Until all sources are finished, `done()` holds and `tail` more cycles have passed."""
        members = self.dut.signature.members
        sources = [driver for driver in self.drivers if isinstance(driver, Source)]
        watched = [(name, kind, _bits(port.payload), port) for name, kind, port in probes(self.dut)]

        async def loop(ctx):
            for name, value in self.constants.items():
                ctx.set(_bits(getattr(self.dut, name)), value)
            left = tail
            for cycle in range(limit):
                self.cycle = cycle
                if "now" in members:
                    ctx.set(self.dut.now, cycle)
                for driver in self.drivers:
                    driver.drive(ctx, cycle)
                for driver in self.drivers:
                    driver.sample(ctx, cycle)
                for name, _, payload, port in watched:
                    if ctx.get(port.valid):
                        self.events.append(
                            (cycle, name, unpack(port.signature.layout, ctx.get(payload)))
                        )
                if self.each_cycle:
                    self.each_cycle(ctx, cycle)
                active = any(source.was_valid for source in sources)
                due = ctx.get(self.dut.due) <= cycle if "due" in members else False
                if not (self.skip and ctx.get(self.dut.quiet) and not active and not due):
                    self.evaluated += 1
                    await ctx.tick()
                if all(source.finished for source in sources) and done():
                    left -= 1
                    if left < 0:
                        return
            raise AssertionError(f"not done after {limit} cycles")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            simulator = Simulator(self.dut)
        simulator.add_clock(1e-9)
        simulator.add_testbench(loop)
        simulator.run()
        return self

    def of(self, name):
        """Payloads of one probe's events."""
        return [payload for _, probe, payload in self.events if probe == name]
