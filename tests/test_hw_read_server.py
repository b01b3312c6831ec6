"""The server of READs against plain Python."""

import random

import pytest
from support_responder import RefMemory
from support_responder_run import Reader
from support_streams import Bench, Sink, Source

from hw.config import Structure
from hw.formats.tlp import MarkKind
from hw.read_server import ReadServer

STRUCTURE = Structure(qps=4, wqe_lines=32, payload_lines=128)
BASE = 0x1000_0000_0000


def job(psn, address, length, *, qp=1, mtu_log2=8):
    return {"qp": qp, "psn": psn, "address": address, "length": length, "mtu_log2": mtu_log2}


class Run:
    def __init__(self, jobs, *, idle=0.0, stall=0.0, latency=30, skip=False):
        self.dut = dut = ReadServer(STRUCTURE)
        self.jobs = Source(dut.jobs, jobs, idle, 1)
        memory = RefMemory()
        self.reads = Reader(dut.requests, dut.lines, memory, latency, stall, 2)
        self.payload = Sink(dut.payload, stall, 3)
        plain = [item[1] if isinstance(item, tuple) else item for item in jobs]
        expected = []
        for item in plain:
            payload, mtu = memory.read(item["address"], item["length"]), 1 << item["mtu_log2"]
            expected += [payload[i : i + mtu] for i in range(0, len(payload), mtu)]
        drivers = [self.jobs, self.reads.requests, self.reads.lines, self.payload]
        self.bench = Bench(dut, drivers, skip=skip)
        count = sum(-(-len(packet) // 64) for packet in expected)
        self.bench.run(9000, lambda: len(self.payload.items) >= count, tail=10)
        assert self.packets() == expected

    def packets(self):
        packets, packet = [], b""
        for line in self.payload.words:
            assert line["lane"] == 0 and (line["count"] == 64 or line["last"])
            packet += line["data"].to_bytes(64, "little")[: line["count"]]
            if line["last"]:
                packets.append(packet)
                packet = b""
        assert not packet
        return packets


def some_jobs(seed, count):
    rng = random.Random(seed)
    return [
        job(
            rng.randrange(1 << 24),
            BASE + rng.randrange(5000),
            rng.choice([1, 63, 64, 65, 255, 256, 257, 1000, 5000]),
            qp=rng.randrange(4),
            mtu_log2=rng.choice([8, 9, 12]),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("idle,stall", [(0, 0), (0.5, 0.5)])
def test_payloads_match_reference(idle, stall):
    Run(some_jobs(4, 25), idle=idle, stall=stall)


def test_requests_end_at_4_kib_and_carry_the_psn():
    run = Run([job(0xABCDEF, BASE + 4000, 5000, mtu_log2=10)])
    requests = run.reads.requests.words
    assert [(item["address"] - BASE, item["length"]) for item in requests] == [
        (4000, 96),
        (4096, 4096),
        (8192, 808),
    ]
    mark = {"kind": MarkKind.RESPONSE.value, "qp": 1, "index": 0xABCDEF}
    assert all(item["mark"] == mark for item in requests)


def test_all_reads_of_all_peers_have_room():
    jobs = [job(psn, BASE, 8) for psn in range(64)]
    run = Run(jobs, latency=2000, stall=0.0)
    taken = [cycle for cycle, _ in run.jobs.taken]
    assert taken == list(range(64))


def test_latency_closed_form():
    run = Run([job(1, BASE, 64)], latency=30)
    ((taken, _),) = run.jobs.taken
    assert run.reads.requests.items[0][0] == taken + 1
    assert run.payload.items[0][0] == run.reads.lines.taken[0][0]


def test_skipping_quiet_cycles_changes_nothing():
    def once(skip):
        timed = [(200 * i, item) for i, item in enumerate(some_jobs(2, 10))]
        run = Run(timed, stall=0.3, latency=100, skip=skip)
        kept = (run.payload.items, run.reads.requests.items)
        return kept, run.bench.evaluated, run.bench.cycle

    full, skipped = once(False), once(True)
    assert full[0] == skipped[0]
    assert skipped[1] < 0.6 * skipped[2]
