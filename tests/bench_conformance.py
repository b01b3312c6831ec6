"""cocotb module: puts the WQEs of vectors into send queues, rings, and keeps what came of it.

Jobs (jobs.json, as `support_execute` writes them) run one after the other; each configures the
queue pair anew, since many vectors name the same one. Nothing is judged here.
"""

import json
from pathlib import Path

import cocotb
import numpy as np

from hw.formats import context
from hw.formats.context import Table
from hw.formats.layout import Codec
from hw.formats.tlp import Port, claims
from sim import addresses
from sim.agents.receive_queue import ReceiveQueue
from sim.machine import Machine

_sq, _tx, _rx, _cq, _rq = (
    Codec(getattr(context, f"{name}Context")) for name in ("Sq", "Tx", "Rx", "Cq", "Rq")
)
#: READs and atomics that may be outstanding.
MAX_READS = 4
#: Cycles for a configuration, for the stores of WQEs, between two doorbells, and for what follows
#: the last.
SETTLE, STORED, BETWEEN, DONE = 200, 3000, 400, 20_000
LINE = 64


def configure(machine, job):
    """Both ends of the job's connection."""
    writes = [
        (
            0,
            Table.SQ,
            job["context"],
            _sq.pack(
                base=addresses.bus(job["memory"], job["sq"]),
                depth_log2=job["depth"].bit_length() - 1,
                start_index=job["start"] & 0xFFFF,
                mtu_log2=job["mtu_log2"],
                valid=1,
                qpn=job["qpn"],
            ),
        ),
        (
            0,
            Table.CQ,
            job["context"],
            _cq.pack(
                base=addresses.bus(job["memory"], job["cq"]), depth_log2=6, valid=1, qpn=job["qpn"]
            ),
        ),
        (
            0,
            Table.TX,
            job["context"],
            _tx.pack(
                valid=1,
                qpn=job["qpn"],
                peer_qpn=job["peer_qpn"],
                peer_node=1,
                start_psn=job["psn"],
                mtu_log2=job["mtu_log2"],
                max_reads=MAX_READS,
            ),
        ),
        (
            1,
            Table.RX,
            job["peer_context"],
            _rx.pack(
                valid=1,
                qpn=job["peer_qpn"],
                peer_qpn=job["qpn"],
                peer_node=0,
                expected_psn=job["psn"],
                start_msn=job["msn"],
                mtu_log2=job["mtu_log2"],
                max_reads=MAX_READS,
            ),
        ),
    ]
    if job["buffers"]:
        writes += receiving(job)
    now = machine.node(0).now
    for offset, (node, table, index, data) in enumerate(writes):
        machine.node(node).configure(table.value, index, data, due=now + 1 + offset)


def receiving(job):
    """Contexts of the peer's receive queue and of its completions."""
    qp, depth = job["peer_context"], job["receives"]
    common = {"valid": 1, "qpn": job["peer_qpn"], "depth_log2": depth.bit_length() - 1}
    rq = _rq.pack(
        base=addresses.bus("gpu", addresses.rq_offset(qp, depth)),
        stride_log2=addresses.RECEIVE_STRIDE.bit_length() - 1,
        record=addresses.bus("gpu", addresses.record_offset(qp)),
        **common,
    )
    cq = _cq.pack(base=addresses.bus("gpu", addresses.receive_cq_offset(qp, depth)), **common)
    return [(1, Table.RQ, qp, rq), (1, Table.RECEIVE_CQ, qp, cq)]


def prepare(machine, job):
    """At the peer: what READs and atomics find, and receive WQEs."""
    peer = machine.node(1)
    for address, raw in job["before"]:
        fill(peer, address, bytes.fromhex(raw))
    if job["buffers"]:
        queue = ReceiveQueue(
            peer,
            processor="gpu",
            memory="gpu",
            qp=job["peer_context"],
            depth=job["receives"],
        )
        for address, size in job["buffers"]:
            queue.post([(address, size, 0x1234)], peer.now + 1)
        queue.store_record(peer.now + 2)


def fill(node, address, raw):
    """Stores some bytes by the processor whose memory they are in."""
    processor = "gpu" if claims(Port.GPU, address) else "cpu"
    while raw:
        size = LINE - address % LINE
        node.store(processor, address, raw[:size])
        address, raw = address + size, raw[size:]


async def execute(machine, job):
    """One job; returns (first cycle, last cycle)."""
    node = machine.node(0)
    begin = node.now + 1
    configure(machine, job)
    prepare(machine, job)
    await node.sleep(SETTLE)
    for step, *arguments in job["steps"]:
        if step == "block":
            slot, raw = arguments
            place = addresses.bus(job["memory"], job["sq"] + slot * LINE)
            node.store(job["processor"], place, bytes.fromhex(raw))
        elif step == "record":
            place = addresses.bus(job["memory"], job["record"] + 4)
            node.store(job["processor"], place, bytes.fromhex(arguments[0]))
        elif step == "write":
            offset, raw = arguments
            data = bytes.fromhex(raw)
            page = Port.NIC.value << 44 | job["context"] * 4096
            for at in range(0, len(data), LINE):
                node.store(job["processor"], page + offset + at, data[at : at + LINE])
        else:
            await node.sleep({"stored": STORED, "between": BETWEEN}[step])
    await node.sleep(DONE + job["bytes"] // 8)
    return begin, node.now


async def everything(machine, plan, results):
    node = machine.node(0)
    words = [bytes.fromhex(word) for word in plan["timing"]]
    for number in (0, 1):
        for index, word in enumerate(words):
            machine.node(number).configure(Table.TIMING.value, index, word, due=1 + index)
    await node.sleep(SETTLE)
    kept = []
    for job in plan["jobs"]:
        begin, end = await execute(machine, job)
        for number, memory, offset, size in job["keep"]:
            kept.append(machine.memory(number, memory)[offset : offset + size].copy())
        results.append((begin, end))
        for address, raw in job["restore"]:
            fill(node, address, bytes.fromhex(raw))
    np.concatenate([*kept, np.empty(0, np.uint8)]).tofile("kept.bin")


@cocotb.test()
async def main(dut):
    plan = json.loads(Path("jobs.json").read_text())
    machine = Machine(dut)
    machine.link(0, 1, 50)
    machine.link(1, 0, 50)
    image = Path("image.bin").read_bytes()
    for memory, offset, at, size in plan["preload"]:
        machine.preload(0, memory, offset, image[at : at + size])
    machine.tap()
    results = []
    machine.spawn(everything(machine, plan, results), name="jobs")
    outcome = await machine.run(cycle_limit=plan["limit"])
    assert outcome.reason == "done", outcome
    Path("results.json").write_text(json.dumps(results))
    machine.events().tofile("events.bin")
    np.save("beats.npy", machine.tapped())
