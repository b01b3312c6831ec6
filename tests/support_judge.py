"""Judges what was seen of a job: everything that its bytes ask for, and nothing else."""

from itertools import zip_longest

from support_jobs import PEER_QPN, place_of
from support_seen import Packet
from support_work import Nop, Other, Write

from hw.formats.layout import Codec
from hw.formats.mlx5 import BLOCK_BYTES, Cqe, CqeOpcode
from hw.formats.op import Status
from hw.formats.roce import ACK_SYNDROME, Bth, RoceOpcode
from sim.addresses import bus

__all__ = ["answers_of", "problems_of", "requests_of"]

_ADDRESS = (1 << 48) - 1
_SEQUENCE = (1 << 24) - 1
_cqe = Codec(Cqe)
#: BTH of a packet in which nothing is asked for; its partition is the default one.
_PLAIN = Codec(Bth).unpack(bytes(Codec(Bth).size)) | {"pkey": 0xFFFF}


def problems_of(job, seen):
    """One line, which begins with what it is about, for each thing that is not as it must be."""
    for check in (_rings, _drops, _reads, _wire, _landed, _retired, _completed):
        yield from check(job, seen)


def _rings(job, seen):
    if seen.rings != job.rings:
        yield f"rings (producer, pushed) {seen.rings}: expected {job.rings}"


def _drops(job, seen):
    if seen.drops != job.drops:
        yield f"dropped {seen.drops}: expected {job.drops}"


def _reads(job, seen):
    """Blocks of WQEs, unless they were pushed, and payload: each once, and nothing else."""
    blocks = [] if job.pushed else [w.index + n for w in job.wqes for n in range(w.blocks)]
    fetches = _joined((job.slot_address(index), BLOCK_BYTES) for index in blocks)
    reads = _joined(
        (address & _ADDRESS, length) for write in job.writes for address, length, _ in write.runs
    )
    for what, found, wanted in (
        ("WQEs", _joined(seen.fetches), fetches),
        ("payload", _joined(seen.reads), reads),
    ):
        if found != wanted:
            yield f"{what} read: {_hex(found)}: expected {_hex(wanted)}"


# The wire -------------------------------------------------------------------------------------


def requests_of(job, image):
    """Packets that a job's WRITEs must become."""
    psn, packets = job.psn, []
    for wqe in job.wqes:
        if isinstance(wqe.work, Write):
            message = _message(job, wqe.work, _payload(job, wqe.work, image), psn)
            psn = (psn + len(message)) & _SEQUENCE
            packets += message
    return packets


def _message(job, write, payload, psn):
    mtu = 1 << job.mtu_log2
    parts = [payload[at : at + mtu] for at in range(0, len(payload), mtu)] or [b""]
    packets = []
    for number, part in enumerate(parts):
        first, last = number == 0, number == len(parts) - 1
        fields = _PLAIN | {
            "opcode": _opcode(first, last).value,
            "solicited": int(last and write.solicited),
            "pad": -len(part) % 4,
            "dest_qp": PEER_QPN,
            "ack_request": int(last),
            "psn": (psn + number) & _SEQUENCE,
        }
        if first:
            fields |= {"reth_va": write.raddr, "reth_rkey": write.rkey, "reth_length": write.size}
        packets.append(Packet(fields, part))
    return packets


def _opcode(first, last):
    if first:
        return RoceOpcode.WRITE_ONLY if last else RoceOpcode.WRITE_FIRST
    return RoceOpcode.WRITE_LAST if last else RoceOpcode.WRITE_MIDDLE


def answers_of(job, requests):
    """ACKs that the peer must answer a job's packets with: one for each that asks for one."""
    asking = [packet.fields["psn"] for packet in requests if packet.fields["ack_request"]]
    return [
        Packet(
            _PLAIN
            | {
                "opcode": RoceOpcode.ACK.value,
                "dest_qp": job.qpn,
                "psn": psn,
                "aeth_syndrome": ACK_SYNDROME,
                "aeth_msn": (job.msn + number) & _SEQUENCE,
            }
        )
        for number, psn in enumerate(asking, 1)
    ]


def _wire(job, seen):
    requests = requests_of(job, seen.image)
    yield from _packets("packet", seen.requests, requests)
    yield from _packets("answer", seen.answers, answers_of(job, requests))


def _packets(what, found, wanted):
    """How many there are, the opcodes in a row, and of each other field the first that differs."""
    if len(found) != len(wanted):
        yield f"{what}s: {len(found)}: expected {len(wanted)}"
    told = set()
    for number, (seen, right) in enumerate(zip(found, wanted, strict=False)):
        differing = [key for key in right.fields if seen.fields.get(key) != right.fields[key]]
        differing += ["payload"] * (seen.payload != right.payload)
        for key in differing:
            if key not in told:
                told.add(key)
                yield f"{what} {number} {key} {_differs(key, seen, right)}"


def _differs(key, seen, right):
    if key == "payload":
        pairs = enumerate(zip_longest(seen.payload, right.payload))
        at = next(at for at, (ours, theirs) in pairs if ours != theirs)
        return f"of {len(seen.payload)} bytes: expected {len(right.payload)}, differs at byte {at}"
    if key == "opcode":
        return f"{_name(seen.fields[key])}: expected {_name(right.fields[key])}"
    if key not in seen.fields:
        return f"missing: expected {right.fields[key]:#x}"
    return f"{seen.fields[key]:#x}: expected {right.fields[key]:#x}"


def _name(opcode):
    known = [name.name for name in RoceOpcode if name.value == opcode]
    return known[0] if known else f"{opcode:#04x}"


# Memory and completion ------------------------------------------------------------------------


def _payload(job, write, image):
    if write.payload is not None:
        return write.payload
    return b"".join(
        image(*place_of(job.item, address), length) for address, length, _ in write.runs
    )


def _landed(job, seen):
    """Writes by devices at the peer cover the targets and nothing else."""
    wanted = [(write.raddr & _ADDRESS, write.size) for write in job.writes]
    runs = _joined(seen.landed), _joined(wanted)
    sums = sum(size for _, size in seen.landed), sum(size for _, size in wanted)
    if runs[0] != runs[1] or sums[0] != sums[1]:
        yield f"landed: {_hex(runs[0])}: expected {_hex(runs[1])}, {sums[1]} bytes in all"
    for write, raw in zip(job.writes, seen.targets, strict=True):
        if raw != _payload(job, write, seen.image):
            yield f"memory at {write.raddr:#x} does not hold the payload"


def _retired(job, seen):
    wanted = [(w.index & 0xFFFF, _status(w).value) for w in job.wqes]
    if seen.retired != wanted:
        yield f"retired (index, status) {seen.retired}: expected {wanted}"


def _status(wqe):
    known = isinstance(wqe.work, (Write, Nop))
    return Status.SUCCESS if known else Status.LOCAL_QP_OPERATION


def _completed(job, seen):
    entries = [(bus(job.memory, job.cq + 64 * n), 64) for n in range(len(job.signaled))]
    if seen.written != entries:
        yield f"written at the sender: {_hex(seen.written)}: expected {_hex(entries)}"
    for n, wqe in enumerate(job.signaled):
        cqe = _cqe.unpack(seen.cqes[64 * n : 64 * n + 64])
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
                yield f"CQE {n} {key} {cqe[key]:#x}: expected {value:#x}"


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
