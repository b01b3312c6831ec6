"""Two nodes, a WQE of my own bytes, and my own checks. Run it: `pytest my_write.py`."""

import struct

import cocotb

from hw.formats.events import EventKind
from sim.testbench import TwoNodes, simulate

SOURCE, TARGET, SIZE = 0x1000, 0x2000, 48


async def software(nodes):
    """What runs on the GPU of node 0."""
    node, queue = nodes.node(0), nodes.queue(0)
    control = struct.pack(">IIII", 0x08, queue.qpn << 8 | 3, 0x08, 0)  # WRITE, 3 x 16 bytes, signal
    remote = struct.pack(">QII", nodes.address("gpu", TARGET), 0x200, 0)
    data = struct.pack(">IIQ", SIZE, 0x100, nodes.address("gpu", SOURCE))
    wqe = (control + remote + data).ljust(64, b"\0")
    queue.post(wqe, None, signaled=True, due=node.now + 1)
    await node.sleep(500)  # a fence: the doorbell must not overtake the WQE
    queue.ring(node.now + 1)
    await queue.watch()
    assert len(queue.completed()) == 1


@cocotb.test()
async def my_write_arrives(dut):
    nodes = TwoNodes(dut, settings=["nic.mtu_bytes=1024"])
    payload = bytes(range(SIZE))
    nodes.fill(0, "gpu", SOURCE, payload)
    events = await nodes.run(software(nodes))
    assert nodes.read(1, "gpu", TARGET, SIZE) == payload
    assert nodes.read(1, "gpu", TARGET + SIZE, 8) == bytes(8)
    sent, received = events.of(EventKind.TX_FIRST), events.of(EventKind.RX_LAST)
    assert list(sent["node"]) == [0, 1]  # the packet, and its ACK
    assert 200 < received["cycle"][0] - sent["cycle"][0] < 400


def test_my_write():
    simulate(__file__)
