"""cocotb module: the doorbell as a node of our engine; software sleeps, rings are events."""

import json
from pathlib import Path

import cocotb

from ..machine import Machine
from .block import RING_EVENT
from .stimulus import ADDRESS, CYCLES, FIRST, GAP, contexts, doorbells

#: Doorbells handed over at a time.
_BATCH = 50


async def software(node):
    """Hands doorbells over, each with its cycle, a batch at a time."""
    for due, (table, index, word) in enumerate(contexts()):
        node.configure(table, index, word, due=due)
    raw = doorbells()
    for first in range(0, len(raw), _BATCH):
        await node.until(FIRST + GAP * first - 1)
        for number, data in enumerate(raw[first : first + _BATCH], first):
            node.store("gpu", ADDRESS, data, due=FIRST + GAP * number)
    await node.until(CYCLES - 1)


@cocotb.test()
async def main(dut):
    """Run, and leave how long it took and every ring."""
    machine = Machine(dut)
    machine.spawn(software(machine.node(0)), name="software")
    # Every cycle is evaluated, as it is under the stock runner.
    outcome = await machine.run(drain=False, skip=False)
    events = machine.events()
    rings = events[events["kind"] == RING_EVENT]
    Path("ours.json").write_text(
        json.dumps(
            {
                "cycles": outcome.cycles,
                "wall_s": outcome.wall_s,
                "rings": [
                    [int(event["cycle"]), int.from_bytes(event["payload"].tobytes(), "little")]
                    for event in rings
                ],
            }
        )
    )
