"""The doorbell block alone, in Amaranth's own simulator. Run it: `pytest my_doorbell.py`."""

import struct

from amaranth.sim import Simulator

from hw.config import Structure
from hw.doorbell import Doorbell

QPN, DELAY = 0x1234, 40


def test_two_doorbells_ring_in_order():
    dut, rings = Doorbell(Structure()), []

    async def software(ctx):
        ctx.set(dut.timing.doorbell, DELAY)
        ctx.set(dut.timing.doorbell_fifo_depth, 16)
        ctx.set(dut.sq.data, {"valid": 1, "qpn": QPN})  # the context of every QP that it asks for
        ctx.set(dut.rings.ready, 1)
        ctx.set(dut.writes.valid, 1)
        for index in (1, 2):
            word = int.from_bytes(struct.pack(">II", index << 8, QPN << 8), "little")
            beat = {"data": word, "address": 0x800, "count": 8, "length": 8, "first": 1, "last": 1}
            ctx.set(dut.writes.payload, beat)
            await ctx.tick().until(dut.writes.ready)
        ctx.set(dut.writes.valid, 0)
        await ctx.tick().repeat(2 * DELAY)

    async def watch(ctx):
        cycle = 0
        async for _, _, valid, ring in ctx.tick().sample(dut.rings.valid, dut.rings.payload):
            if valid:
                rings.append((cycle, ring.qpn, ring.producer))
            cycle += 1
            ctx.set(dut.now, cycle)

    sim = Simulator(dut)
    sim.add_clock(1e-9)
    sim.add_testbench(software)
    sim.add_testbench(watch, background=True)
    sim.run()
    assert rings == [(DELAY + 1, QPN, 1), (DELAY + 2, QPN, 2)]
