"""Executes jobs on the machine, and finds what is not as it must be on bus and wire."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.lib import data
from support_jobs import PEER_QPN, Job, lay_out, place_of
from support_run import toml
from support_work import Nop, Other, Write

from hw.config import Structure
from hw.formats.events import DropReason, EventKind
from hw.formats.layout import Codec
from hw.formats.mlx5 import BLOCK_BYTES, Cqe, CqeOpcode
from hw.formats.op import Status
from hw.formats.roce import Bth, Reth, RoceOpcode, WireBeat
from hw.formats.tlp import MarkKind, Port, TlpClass
from sim.addresses import bus
from sim.launch import launch
from sim.run import binary_for
from sim.scenario import loads
from sim.trace import RECORD, Events

__all__ = ["execute"]

_LAYOUT: Any = data.Layout.cast(WireBeat)
_BEAT = {key: (field.offset, field.width) for key, field in _LAYOUT}
_bth, _reth, _cqe = Codec(Bth), Codec(Reth), Codec(Cqe)
_NIC_UP = 2 * Port.NIC.value
_ADDRESS = (1 << 48) - 1
_STARTS = (RoceOpcode.WRITE_FIRST.value, RoceOpcode.WRITE_ONLY.value)


class Packet:
    """One packet that a node sent."""

    def __init__(self, word):
        def cut(name):
            offset, width = _BEAT[name]
            return word >> offset & (1 << width) - 1

        self.bth = _bth.unpack(cut("bth").to_bytes(_bth.size, "big"))
        self.reth = _reth.unpack(cut("ext").to_bytes(_reth.size, "big"))
        self.length = cut("length")
        self.payload = b""


def _packets(rows):
    """Packets of the beats of one node."""
    packets = []
    first, count = _BEAT["first"][0], _BEAT["count"][0]
    for row in rows:
        word = int.from_bytes(row[2:].tobytes(), "little")
        if word >> first & 1:
            packets.append(Packet(word))
        packets[-1].payload += row[2:10].tobytes()[: word >> count & 0x7F]
    return packets


def _joined(runs):
    """Runs (address, length) in order of address; those that touch are one."""
    joined = []
    for address, length in sorted(runs):
        if joined and sum(joined[-1]) == address:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        elif length:
            joined.append((address, length))
    return joined


def _hex(runs):
    return ", ".join(f"{length} bytes at {address:#x}" for address, length in runs) or "nothing"


@dataclass
class Trial:
    """What the machine did in the time of one job."""

    job: Job
    begin: int
    end: int
    log: Events
    rows: np.ndarray
    kept: list
    #: (memory, offset, length) to what was there.
    image: Callable

    def of(self, kind, node, **fields):
        """Rows of events of a kind within the job's time, as a dict of columns."""
        table = self.log.of(kind)
        mask = (table["cycle"] >= self.begin) & (table["cycle"] <= self.end)
        mask &= table["node"] == node
        for name, value in fields.items():
            mask &= table[name] == value
        return {name: column[mask].tolist() for name, column in table.items()}

    def packets(self, node):
        rows = self.rows
        inside = (rows[:, 0] >= self.begin) & (rows[:, 0] <= self.end) & (rows[:, 1] == node)
        return _packets(rows[inside])

    def problems(self):
        """One line for each thing that is not as it must be."""
        checks = (self._rings, self._drops, self._reads, self._wire, self._landed, self._completed)
        return [problem for check in checks for problem in check()]

    def _rings(self):
        seen = self.of(EventKind.RING_SEEN, 0)
        rings = list(zip(seen["producer"], seen["pushed"], strict=True))
        if rings != self.job.rings:
            yield f"rings (producer, pushed) {rings}: expected {self.job.rings}"

    def _drops(self):
        reasons = [
            DropReason(reason).name
            for node in (0, 1)
            for reason in self.of(EventKind.DROPPED, node)["reason"]
        ]
        if reasons != self.job.drops:
            yield f"dropped {reasons}: expected {self.job.drops}"

    def _reads(self):
        """Blocks of WQEs, unless they were pushed, and payload: each once, and nothing else."""
        sent = self.of(EventKind.TLP_SENT, 0, link=_NIC_UP, tlp=TlpClass.READ.value)
        reads = {True: [], False: []}
        for kind, address, length in zip(
            sent["mark_kind"], sent["address"], sent["payload"], strict=True
        ):
            reads[kind == MarkKind.FETCH.value].append((address, length))
        job = self.job
        blocks = [] if job.pushed else [w.index + n for w in job.wqes for n in range(w.blocks)]
        wanted = {
            True: _joined((job.slot_address(index), BLOCK_BYTES) for index in blocks),
            False: _joined(
                (address & _ADDRESS, length)
                for write in job.writes
                for address, length, _ in write.runs
            ),
        }
        for fetch, what in ((True, "WQEs"), (False, "payload")):
            if _joined(reads[fetch]) != wanted[fetch]:
                yield f"{what} read: {_hex(_joined(reads[fetch]))}: expected {_hex(wanted[fetch])}"

    def _wire(self):
        mtu, psn = 1 << self.job.mtu_log2, self.job.psn
        packets = self.packets(0)
        for wqe in self.job.wqes:
            if not isinstance(wqe.work, Write):
                continue
            count = max(1, -(-wqe.work.size // mtu))
            mine, packets = packets[:count], packets[count:]
            yield from self._message(wqe.work, mine, psn, count)
            psn = (psn + count) & 0xFFFFFF
        if packets:
            yield f"{len(packets)} packets more than there are messages for"
        for packet in self.packets(1):
            found = packet.bth["opcode"], packet.bth["dest_qp"]
            if found != (RoceOpcode.ACK.value, self.job.qpn):
                yield f"the peer answers with opcode {found[0]:#x} to QP {found[1]:#x}"

    def _message(self, write, packets, psn, count):
        psns = [packet.bth["psn"] for packet in packets]
        if psns != [(psn + n) & 0xFFFFFF for n in range(count)]:
            yield f"PSNs {psns[:4]}...: expected {count} from {psn}"
        if not packets:
            return
        starts = [packet.bth["opcode"] in _STARTS for packet in packets]
        if starts != [True] + [False] * (len(packets) - 1):
            yield "RETH not in the first packet alone"
        wanted = {"va": write.raddr, "rkey": write.rkey, "length": write.size}
        for key, value in wanted.items():
            if packets[0].reth[key] != value:
                yield f"RETH {key} {packets[0].reth[key]:#x}: expected {value:#x}"
        if any(packet.bth["dest_qp"] != PEER_QPN for packet in packets):
            yield "a packet goes to another QP"
        if b"".join(packet.payload for packet in packets) != self._payload(write):
            yield "payload on the wire is wrong"

    def _payload(self, write):
        if write.payload is not None:
            return write.payload
        return b"".join(
            self.image(*place_of(self.job.item, address), length)
            for address, length, _ in write.runs
        )

    def _landed(self):
        """Writes by devices at the peer cover the targets and nothing else."""
        commits = self.of(EventKind.COMMIT, 1, fabric=1)
        found = list(zip(commits["address"], commits["count"], strict=True))
        wanted = [(write.raddr & _ADDRESS, write.size) for write in self.job.writes]
        if _joined(found) != _joined(wanted) or sum(n for _, n in found) != sum(
            n for _, n in wanted
        ):
            yield f"landed: {_hex(_joined(found))}: expected {_hex(_joined(wanted))}"
        for write, raw in zip(self.job.writes, self.kept, strict=False):
            if raw != self._payload(write):
                yield f"memory at {write.raddr:#x} does not hold the payload"

    def _completed(self):
        job = self.job
        retired = self.of(EventKind.RETIRED, 0)
        found = list(zip(retired["wqe_index"], retired["status"], strict=True))
        wanted = [(w.index & 0xFFFF, _status(w).value) for w in job.wqes]
        if found != wanted:
            yield f"retired (index, status) {found}: expected {wanted}"
        commits = self.of(EventKind.COMMIT, 0, fabric=1)
        entries = [(bus(job.memory, job.cq + 64 * n), 64) for n in range(len(job.signaled))]
        found = list(zip(commits["address"], commits["count"], strict=True))
        if found != entries:
            yield f"written at the sender: {_hex(found)}: expected {_hex(entries)}"
        for n, wqe in enumerate(job.signaled):
            cqe = _cqe.unpack(self.kept[-1][64 * n : 64 * n + 64])
            opcode = CqeOpcode.REQ_ERR if isinstance(wqe.work, Other) else CqeOpcode.REQ
            wanted = {
                "opcode": opcode.value,
                "qpn": job.qpn,
                "wqe_counter": wqe.index & 0xFFFF,
                "send_opcode": wqe.raw[3],
                "owner": 0,
            }
            for key, value in wanted.items():
                if cqe[key] != value:
                    yield f"CQE {n}: {key} {cqe[key]:#x}: expected {value:#x}"


def _status(wqe):
    known = isinstance(wqe.work, (Write, Nop))
    return Status.SUCCESS if known else Status.LOCAL_QP_OPERATION


def _timing():
    text = toml(op=[{"node": 0, "peer": 1, "size": 8, "verb": "write"}])
    return loads(text, "conformance.toml").timing_words(0)


def execute(jobs, folder):
    """Runs jobs in one simulator process; returns the problems of each, in order.

    Raises `RuntimeError` if the simulator failed.
    """
    if not jobs:
        return []
    runs = lay_out(jobs)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contents, preload, image = {}, [], b""
    for number, (memory, first, end) in enumerate(runs):
        raw = np.random.default_rng(number).bytes(end - first)
        contents[memory, first] = raw
        preload.append((memory, first, len(image), len(raw)))
        image += raw

    def read(memory, offset, length):
        for (name, first), raw in contents.items():
            if name == memory and first <= offset and offset + length <= first + len(raw):
                return raw[offset - first : offset - first + length]
        raise AssertionError("payload outside the image")

    structure = Structure()
    plans = [job.plain(job.qpn % structure.qps) for job in jobs]
    limit = 1_000_000 + sum(40_000 + plan["bytes"] + 5000 * len(plan["steps"]) for plan in plans)
    plan = {"timing": [word.hex() for word in _timing()], "jobs": plans, "preload": preload}
    (folder / "jobs.json").write_text(json.dumps(plan | {"limit": limit}))
    (folder / "image.bin").write_bytes(image)
    ended = launch(
        binary_for(structure),
        "bench_conformance",
        folder,
        paths=[Path(__file__).parent],
        timeout_s=600,
    )
    if not ended.passed:
        raise RuntimeError("; ".join(ended.failures))
    log = Events(np.fromfile(folder / "events.bin", RECORD))
    rows = np.load(folder / "beats.npy")
    kept, at, results = (folder / "kept.bin").read_bytes(), 0, []
    for job, (begin, end) in zip(
        jobs, json.loads((folder / "results.json").read_text()), strict=True
    ):
        mine = []
        for *_, size in job.kept:
            mine.append(kept[at : at + size])
            at += size
        results.append(list(Trial(job, begin, end, log, rows, mine, read).problems()))
    return results
