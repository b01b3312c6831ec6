"""Jobs for `bench_conformance`: which bytes go where, and what must come of it."""

import re
from dataclasses import dataclass, field
from random import Random

from support_asked import Atomic, Nop, Other, Read, Write
from support_vectors import VectorError
from support_work import Wqe, sequence_work, work_of

from hw.formats import mlx5
from hw.formats.tlp import Port, claims
from sim import wqe
from sim.addresses import bus, receive_cq_offset
from sim.machine import MEMORY_BYTES

__all__ = ["PEER_QPN", "RECEIVES", "Job", "doorbells_of", "job_of", "lay_out", "place_of"]

#: Receiving QP of all jobs; its low bits are its context.
PEER_QPN = 0x1005
#: WQEs of the peer's receive queue, in its GPU memory; bytes of each one's buffer, which lie there
#: from `_BUFFERS` on.
RECEIVES, _ROOM, _BUFFERS = 4, 0x2000, 0x1000_0000
_REGISTER = mlx5.UAR_REGISTER_OFFSET
_ADDRESS = (1 << 48) - 1
_CQ, _RECORD, _AREA = 0x40_0000, 0x50_0000, 0x60_0000


@dataclass
class Job:
    """One item put into a send queue, rung and executed."""

    item: object
    qpn: int
    start: int
    depth: int
    wqes: list
    #: ("block", slot, bytes), ("record", bytes), ("write", offset, bytes), and waits ("stored",),
    #: ("between",).
    steps: list = field(default_factory=list)
    #: (producer, pushed) of each ring that is taken.
    rings: list = field(default_factory=list)
    #: Names of `DropReason`.
    drops: list = field(default_factory=list)
    #: "gpu" or "host"; set for all jobs together: offsets of queue, completions and record.
    memory: str = "gpu"
    base: int = 0
    #: First PSN, and messages that the peer has counted before.
    psn: int = 0
    msn: int = 0
    mtu_log2: int = 12
    #: What stands at the peer where the WQE of that number reads: of READs and atomics.
    before: dict = field(default_factory=dict)

    @property
    def sq(self):
        return self.base

    @property
    def cq(self):
        return self.base + _CQ

    @property
    def pushed(self):
        return any(pushed for _, pushed in self.rings)

    @property
    def signaled(self):
        """Its WQEs that end in a CQE: those that ask for one, and those in error."""
        return [w for w in self.wqes if w.work.signaled or isinstance(w.work, Other)]

    @property
    def works(self):
        return [w.work for w in self.wqes]

    @property
    def receives(self):
        """Its WQEs that take a receive WQE of the peer, in order."""
        return [w for w in self.wqes if w.work.takes]

    @property
    def targets(self):
        """(number of the WQE, memory, offset, bytes) of what is written at the peer."""
        for number, w in enumerate(self.wqes):
            if w.work.target:
                address, size = w.work.target
                yield number, *place_of(self.item, address), size
            elif w.work.takes and w.work.size:
                offset = _BUFFERS + self.receives.index(w) * _ROOM
                yield number, "gpu", offset, w.work.size

    @property
    def landings(self):
        """(address, length, lkey) of what responses leave at the sender."""
        return [run for work in self.works for run in work.landings if run[1]]

    def slot_address(self, index):
        """Bus address of a block."""
        return bus(self.memory, self.sq + index % self.depth * mlx5.BLOCK_BYTES)

    def plain(self, context):
        """The job as `bench_conformance` reads it."""
        return {
            "context": context,
            "peer_context": PEER_QPN & 0x3F,
            "qpn": self.qpn,
            "peer_qpn": PEER_QPN,
            "start": self.start,
            "depth": self.depth,
            "memory": self.memory,
            "processor": "gpu" if self.memory == "gpu" else "cpu",
            "sq": self.sq,
            "cq": self.cq,
            "record": self.base + _RECORD,
            "psn": self.psn,
            "msn": self.msn,
            "mtu_log2": self.mtu_log2,
            "bytes": sum(work.size for work in self.works),
            "receives": RECEIVES,
            "buffers": [[bus("gpu", _BUFFERS + n * _ROOM), _ROOM] for n in range(self._taken)],
            "before": [
                [self.works[number].raddr & _ADDRESS, raw.hex()]
                for number, raw in self.before.items()
            ],
            "steps": [
                [part.hex() if isinstance(part, bytes) else part for part in step]
                for step in self.steps
            ],
            "keep": [place for places in self.kept.values() for place in places],
        }

    @property
    def kept(self):
        """(node, memory, offset, bytes) of what is looked at afterwards, by names of `Seen`."""
        return {
            "targets": [(1, *place) for _, *place in self.targets],
            "landings": [(0, *place_of(self.item, at), size) for at, size, _ in self.landings],
            "cqes": [(0, self.memory, self.cq, 64 * len(self.signaled))],
            "receive_cqes": [(1, "gpu", self.receive_cq, 64 * self._taken)],
        }

    @property
    def _taken(self):
        return len(self.receives)

    @property
    def receive_cq(self):
        """Offset of the peer's completion queue for what it receives."""
        return receive_cq_offset(PEER_QPN & 0x3F, RECEIVES)


def place_of(item, address):
    """(memory, offset) of a bus address."""
    address &= _ADDRESS
    if claims(Port.NIC, address):
        raise VectorError(f"{item.where}: address {address:#x}: is a doorbell page of the model")
    memory = "gpu" if claims(Port.GPU, address) else "host"
    return memory, address % MEMORY_BYTES


def _qpn(item):
    params = item.data.get("params", {})
    value = params.get("qpn", item.common.get("qpn"))
    if value is None:
        raise VectorError(f"{item.where}: no parameter 'qpn'")
    return item.number(value, "qpn")


def _depth(item, start, blocks):
    """Depth of the send queue: the file's, or the least with which the first slot is right."""
    told = re.search(r"(\d+) WQEBB", str(item.common.get("sq", "")))
    slot = item.data.get("slot", start % int(told[1]) if told else None)
    choices = [int(told[1])] if told else []
    choices += [1 << log for log in range(1, 16)]
    for depth in choices:
        fits = depth >= max(blocks, 2) and depth & (depth - 1) == 0 and depth <= 1 << 15
        if fits and (slot is None or (slot < depth and start % depth == slot)):
            return depth
    raise VectorError(f"{item.where}: slot = {slot}: no ring has its block {start} there")


def _undefined(raw, mask, rng):
    """The bytes as they may be: those that the software does not write are anything."""
    ds = 16 * (raw[7] & 63)
    return bytes(
        byte if mark == "1" and (at < ds or at < 16) else rng.randrange(256)
        for at, (byte, mark) in enumerate(zip(raw, mask, strict=True))
    )


def doorbells_of(item):
    """Doorbell and push writes of an item, as (offset, bytes, mask, record bytes)."""
    data, found = item.data, []
    if item.form == "wqe":
        for number, write in enumerate(data.get("mmio", ())):
            raw = item.bytes_of(write.get("bytes"), f"mmio[{number}].bytes")
            offset = item.number(write.get("uar_off"), f"mmio[{number}].uar_off")
            mask = write.get("defined", "1" * len(raw))
            item.mask_of(mask, raw, f"mmio[{number}].bytes")
            if len(raw) != write.get("len"):
                raise VectorError(f"{item.where}: mmio[{number}]: 'len' is not that of its bytes")
            found.append((offset, raw, mask, item.raw("dbr_snd")))
        if "doorbell_8B" in data:
            found.append((_REGISTER, item.raw("doorbell_8B"), "1" * 8, item.raw("dbr_snd")))
    elif item.form == "batching" and data.get("rang"):
        found.append((_REGISTER, item.raw("doorbell"), "1" * 8, item.raw("dbr_snd")))
    elif item.form == "submit":
        to = wqe.record(item.number(item.get("to_pi"), "to_pi"))
        found.append((_REGISTER, item.raw("db_word"), "1" * 8, to))
    elif item.form == "sequence":
        record = b""
        for kind, value in _trace(item):
            if kind == "record":
                record = value
            elif kind == "doorbell":
                found.append((_REGISTER, value, "1" * 8, record))
    return found


def _trace(item):
    """Steps of a recorded order, as (kind, value): reserve (first block, end), record, doorbell."""
    for text in item.get("trace"):
        reserved = re.search(r"resv_head\) (\d+)->(\d+)", text)
        if reserved:
            yield "reserve", (int(reserved[1]), int(reserved[2]))
        elif text.lower().startswith("dbr4"):
            yield "record", item.bytes_of((re.findall(r"\b[0-9a-f]{8}\b", text) or [""])[-1], text)
        elif text.lower().startswith("doorbell8"):
            yield (
                "doorbell",
                item.bytes_of((re.findall(r"\b[0-9a-f]{16}\b", text) or [""])[-1], text),
            )


def job_of(item):
    """The job of an item that is to be executed; None for forms without WQEs."""
    maker = {
        "wqe": _of_vector,
        "sequence": _of_sequence,
        "submit": _of_submit,
        "toggle": _of_toggle,
    }.get(item.form)
    if maker is None:
        return None
    rng = Random(item.seed)
    job = maker(item, rng)
    if len(job.receives) > RECEIVES:
        raise VectorError(f"{item.where}: {len(job.receives)} receive WQEs: allowed {RECEIVES}")
    for number, work in enumerate(job.works):
        if isinstance(work, (Read, Atomic)) and work.size:
            job.before[number] = _before(work, rng)
    return job


def _before(work, rng):
    """Bytes that a READ or an atomic finds: for a comparison what it is compared with, or not."""
    compared = work.operands.get("compare") if isinstance(work, Atomic) else None
    if compared is not None and rng.random() < 0.5:
        return compared.to_bytes(work.size, "little")
    return rng.randbytes(work.size)


def _blocks(job, wqe, rng):
    """Steps that put a WQE into the ring."""
    raw = _undefined(wqe.raw, wqe.defined, rng)
    for number in range(wqe.blocks):
        slot = (wqe.index + number) % job.depth
        yield "block", slot, raw[64 * number : 64 * number + 64]


def _of_vector(item, rng):
    start = item.number(item.data.get("post_before", item.data.get("post_idx", 0)), "post index")
    wqes = work_of(item, start)
    depth = _depth(item, start, sum(w.blocks for w in wqes))
    host = "mmio" in item.data
    job = Job(item, _qpn(item), start, depth, wqes, memory="host" if host else "gpu")
    end = start + sum(w.blocks for w in wqes)
    for w in wqes:
        job.steps += _blocks(job, w, rng)
    record = item.raw("dbr_snd") if "dbr_snd" in item.data else wqe.record(end)
    job.steps += [("stored",), ("record", record)]
    rung = [(at, _undefined(raw, mask, rng)) for at, raw, mask, _ in doorbells_of(item)]
    rung = rung or [(_REGISTER, wqe.doorbell(qpn=job.qpn, index=end))]
    for number, (at, raw) in enumerate(rung):
        job.steps += [("between",), ("write", at, raw)]
        job.rings += [(end & 0xFFFF, int(len(raw) >= 64))] if number == 0 else []
        job.drops += ["DOORBELL_STALE"] if number else []
    return job


def _of_sequence(item, rng):
    order = list(_trace(item))
    start = next((value[0] for kind, value in order if kind == "reserve"), 0)
    wqes = sequence_work(item, start)
    depth = _depth(item, start, sum(w.blocks for w in wqes))
    job = Job(item, _qpn(item), start, depth, wqes)
    for kind, value in order:
        if kind == "reserve":
            for w in wqes:
                if value[0] <= w.index < value[1]:
                    job.steps += _blocks(job, w, rng)
        elif kind == "record":
            job.steps += [("stored",), ("record", value)]
            job.rings.append((int.from_bytes(value, "big") & 0xFFFF, 0))
        else:
            job.steps += [("between",), ("write", _REGISTER, value), ("stored",)]
    return job


def _of_submit(item, rng):
    """The WQEs are ours; the record, the doorbells and their order are the item's."""
    start, end = (item.number(item.get(key), key) for key in ("from_pi", "to_pi"))
    qpn = _qpn(item)
    wqes = []
    for index in range(start, end):
        work = Nop(signaled=True)
        wqes.append(Wqe(index, work, work.build(index, qpn), "1" * 16 + "0" * 48))
    job = Job(item, qpn, start, _depth(item, start, len(wqes)), wqes)
    for w in wqes:
        job.steps += _blocks(job, w, rng)
    job.steps.append(("stored",))
    for text in item.get("trace"):
        if text.startswith("dbr4"):
            job.steps.append(("record", item.raw("dbr_snd")))
        elif text.startswith("doorbell8"):
            job.drops += ["DOORBELL_STALE"] if job.rings else []
            job.rings = job.rings or [(end & 0xFFFF, 0)]
            job.steps += [("between",), ("write", _REGISTER, item.raw("db_word"))]
    return job


def _of_toggle(item, rng):
    """A push of our own to the half of the register that the item names."""
    qpn, index = _qpn(item), 1 + item.number(item.get("k"), "k") % 200
    work = Write(raddr=0x7FAB_1234_5600, rkey=0x445566, signaled=True, payload=rng.randbytes(12))
    raw = work.build(index, qpn)
    job = Job(item, qpn, index, 64, [Wqe(index, work, raw, "1" * 64)], memory="host")
    offset = item.number(item.get("first_nonzero_uar_off"), "first_nonzero_uar_off") & ~0xFF
    job.steps = [*_blocks(job, job.wqes[0], rng), ("stored",), ("record", wqe.record(index + 1))]
    job.steps += [("between",), ("write", offset, raw)]
    job.rings = [(index + 1, 1)]
    return job


def lay_out(jobs):
    """Chooses places for the queues that no payload lies in, path MTU, first PSN and MSN of each
    job; returns the runs of payload at the sender, merged, as (memory, offset, end).
    """
    runs = []
    for number, job in enumerate(jobs):
        rng = Random(number)
        job.mtu_log2 = rng.choice([10, 12])
        job.psn = rng.choice([0, 0xFFFFFE, rng.randrange(1 << 24)])
        job.msn = rng.choice([0, 0xFFFFFF, rng.randrange(1 << 24)])
        for work in job.works:
            for address, length, _ in (*work.runs, *work.landings):
                memory, offset = place_of(job.item, address)
                if offset + length > MEMORY_BYTES:
                    raise VectorError(f"{job.item.where}: payload crosses the end of memory")
                runs.append((memory, offset, offset + length))
    merged = []
    for memory, first, end in sorted(runs):
        if merged and merged[-1][0] == memory and first <= merged[-1][2]:
            merged[-1][2] = max(end, merged[-1][2])
        else:
            merged.append([memory, first, end])
    for base in range(0xA_0000_0000, 0xF_0000_0000, 0x1000_0000):
        if not any(first < base + _AREA and base < end for _, first, end in merged):
            break
    for job in jobs:
        job.base = base
    return merged
