"""cocotb module: the doorbell as cocotb's own runner builds it, driven by its pins.

It sleeps where cocotb lets it: two timers for a doorbell and one edge for a ring, nothing per
clock. Pins change at falling edges, so that no order of callbacks matters.
"""

import json
import time
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer
from cocotb.utils import get_sim_time

from hw.formats.context import ConfigWrite
from hw.formats.layout import Codec
from hw.formats.tlp import PostedBeat

from .stimulus import ADDRESS, CYCLES, FIRST, GAP, contexts, doorbells

_write, _beat = Codec(ConfigWrite), Codec(PostedBeat)


def number(raw):
    """Bytes as the number that a pin takes."""
    return int.from_bytes(raw, "little")


async def watch(dut, rings):
    """Notes each ring with its cycle."""
    while True:
        await RisingEdge(dut.ring_valid)
        rings.append([int(get_sim_time("ns")), dut.ring.value.to_unsigned()])


@cocotb.test()
async def main(dut):
    """Run, and leave how long it took and every ring."""
    words = [
        number(_write.pack(table=table, index=index, data=number(word)))
        for table, index, word in contexts()
    ]
    beats = [
        number(_beat.pack(data=number(raw), address=ADDRESS, count=8, length=8, first=1, last=1))
        for raw in doorbells()
    ]
    rings = []
    dut.rst.value = dut.config__valid.value = dut.writes__valid.value = 0
    start = time.perf_counter()
    Clock(dut.clk, 1, unit="ns").start()
    cocotb.start_soon(watch(dut, rings))
    await FallingEdge(dut.clk)
    dut.config__valid.value = 1
    for word in words:
        dut.config__payload.value = word
        await Timer(1, "ns")
    dut.config__valid.value = 0
    await Timer(FIRST - len(words), "ns")
    for beat in beats:
        dut.writes__payload.value = beat
        dut.writes__valid.value = 1
        await Timer(1, "ns")
        dut.writes__valid.value = 0
        await Timer(GAP - 1, "ns")
    await Timer(CYCLES - FIRST - GAP * len(beats), "ns")
    spent = time.perf_counter() - start
    Path("stock.json").write_text(json.dumps({"cycles": CYCLES, "wall_s": spent, "rings": rings}))
