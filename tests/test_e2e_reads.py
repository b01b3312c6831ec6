"""Two nodes: READs, atomics and fences in the whole machine."""

import random
import struct

import cocotb
import pytest

from hw.formats.events import EventKind
from sim.testbench import TwoNodes, simulate

SOURCE, LANDING, COUNTER, RESULT, COPY = 0x10_0003, 0x20_0011, 0x30_0000, 0x40_0000, 0x50_0000
SIZE, MTU, START = 5000, 1024, 0x0123_4567_89AB_CDEF
READ, COMPARE_SWAP, FETCH_ADD, WRITE, DUMP, FENCE = 0x10, 0x11, 0x12, 0x08, 0x23, 0x40


def work(nodes, qpn, index, opcode, *segments, flags=0x08):
    """A WQE: control segment and what follows, 16 bytes each."""
    control = struct.pack(">IIII", index << 8 | opcode, qpn << 8 | 1 + len(segments), flags, 0)
    raw = control + b"".join(segments)
    return raw.ljust(-(-len(raw) // 64) * 64, b"\0")


async def software(nodes):
    """READ, two atomics, a fenced WRITE of what the READ brought, and a DUMP."""
    node, queue = nodes.node(0), nodes.queue(0)

    def data(offset, size):
        return struct.pack(">IIQ", size, 0x100, nodes.address("gpu", offset))

    def remote(offset):
        return struct.pack(">QII", nodes.address("gpu", offset), 0x200, 0)

    counter = remote(COUNTER)
    jobs = [
        (READ, (remote(SOURCE), data(LANDING, 4000), data(LANDING + 0x2000, SIZE - 4000)), 0),
        (FETCH_ADD, (counter, struct.pack(">QQ", 5, 0), data(RESULT, 8)), 0),
        (COMPARE_SWAP, (counter, struct.pack(">QQ", 77, START + 5), data(RESULT + 8, 8)), 0),
        (COMPARE_SWAP, (counter, struct.pack(">QQ", 88, START + 5), data(RESULT + 16, 8)), 0),
        (WRITE, (remote(COPY), data(LANDING, 4000)), FENCE),
        (DUMP, (data(LANDING, 1),), FENCE),
    ]
    for index, (opcode, segments, fence) in enumerate(jobs):
        raw = work(nodes, queue.qpn, index, opcode, *segments, flags=0x08 | fence)
        queue.post(raw, None, signaled=True, due=node.now + 1)
    await node.sleep(500)
    queue.ring(node.now + 1)
    while queue.outstanding:
        queue.completed()
        if queue.outstanding:
            await queue.watch()


async def check(dut):
    nodes = TwoNodes(dut, settings=[f"nic.mtu_bytes={MTU}", "nic.timer_scale=0.001"])
    payload = random.Random(1).randbytes(SIZE)
    nodes.fill(1, "gpu", SOURCE, payload)
    nodes.fill(1, "gpu", COUNTER, START.to_bytes(8, "little"))
    events = await nodes.run(software(nodes))
    assert nodes.read(0, "gpu", LANDING, 4000) == payload[:4000]
    assert nodes.read(0, "gpu", LANDING + 0x2000, SIZE - 4000) == payload[4000:]
    assert nodes.read(0, "gpu", LANDING + 4000, 8) == bytes(8)
    # What each atomic found; the last one compared in vain.
    found = [START, START + 5, 77]
    assert nodes.read(0, "gpu", RESULT, 24) == struct.pack("<QQQ", *found)
    assert nodes.read(1, "gpu", COUNTER, 8) == struct.pack("<Q", 77)
    # The fence: these bytes were not there before.
    assert nodes.read(1, "gpu", COPY, 4000) == payload[:4000]
    retired = events.of(EventKind.RETIRED)
    assert list(retired["wqe_index"]) == list(range(6)) and not retired["status"].any()
    return events


@cocotb.test()
async def every_byte_lands(dut):
    events = await check(dut)
    assert not len(events.of(EventKind.RETRANSMITTED)["cycle"])


@pytest.mark.slow
def test_reads_and_atomics_in_the_machine(tmp_path):
    simulate(__file__, tmp_path)
