"""Judges what was seen of a job: everything that its bytes ask for, and nothing else."""

from itertools import zip_longest

from support_asked import Atomic, Other, Read, Send
from support_jobs import PEER_QPN, place_of
from support_packets import answers_of, requests_of

from hw.formats.layout import Codec
from hw.formats.mlx5 import BLOCK_BYTES, Cqe, CqeOpcode
from hw.formats.op import Status
from hw.formats.roce import RoceOpcode
from sim.addresses import bus

__all__ = ["problems_of"]

_ADDRESS = (1 << 48) - 1
_cqe = Codec(Cqe)


def problems_of(job, seen):
    """One line, which begins with what it is about, for each thing that is not as it must be."""
    for check in (_rings, _drops, _reads, _wire, _landed, _retired, _completed, _received):
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
        (address & _ADDRESS, length) for work in job.works for address, length, _ in work.runs
    )
    for what, found, wanted in (
        ("WQEs", _joined(seen.fetches), fetches),
        ("payload", _joined(seen.reads), reads),
    ):
        if found != wanted:
            yield f"{what} read: {_hex(found)}: expected {_hex(wanted)}"


# The wire -------------------------------------------------------------------------------------


def _wire(job, seen):
    payloads = [_payload(job, work, seen.image) for work in job.works]
    requests = requests_of(job, payloads)
    yield from _packets("packet", seen.requests, requests)
    yield from _packets("answer", seen.answers, answers_of(job))


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


def _payload(job, work, image):
    if work.payload is not None:
        return work.payload
    return b"".join(image(*place_of(job.item, address), length) for address, length, _ in work.runs)


def _landed(job, seen):
    """Writes by devices at the peer cover the targets, the CQEs of what it received, and nothing
    else.
    """
    wanted = [(bus("gpu", job.receive_cq + 64 * n), 64) for n in range(len(job.receives))]
    for number, memory, offset, size in job.targets:
        work = job.works[number]
        place = bus(memory, offset) if isinstance(work, Send) else work.raddr & _ADDRESS
        wanted.append((place, size))
    yield from _written("landed", seen.landed, wanted)
    for (number, _, offset, _), raw in zip(job.targets, seen.targets, strict=True):
        work = job.works[number]
        if isinstance(work, Atomic):
            found = int.from_bytes(job.before[number], "little")
            held = work.after(found).to_bytes(work.size, "little")
        else:
            held = _payload(job, work, seen.image)
        if raw != held:
            place = offset if isinstance(work, Send) else work.raddr
            what = "what the atomic makes of it" if isinstance(work, Atomic) else "the payload"
            yield f"memory at {place:#x} does not hold {what}"


def _written(what, found, wanted):
    """Runs that were written are just those wanted, each byte as often."""
    runs = _joined(found), _joined(wanted)
    sums = sum(size for _, size in found), sum(size for _, size in wanted)
    if runs[0] != runs[1] or sums[0] != sums[1]:
        yield f"{what}: {_hex(runs[0])}: expected {_hex(runs[1])}, {sums[1]} bytes in all"


def _responses(job):
    """What responses leave at the sender: the bytes of all its landings, one after the other."""
    for number, raw in job.before.items():
        work = job.works[number]
        # Of an atomic the value: of 8 bytes in native order, of 4 as it came.
        yield raw[::-1] if isinstance(work, Atomic) and work.size == 4 else raw


def _retired(job, seen):
    wanted = [(w.index & 0xFFFF, _status(w).value) for w in job.wqes]
    if seen.retired != wanted:
        yield f"retired (index, status) {seen.retired}: expected {wanted}"


def _status(wqe):
    return Status.LOCAL_QP_OPERATION if isinstance(wqe.work, Other) else Status.SUCCESS


def _completed(job, seen):
    """The sender's CQEs and what responses left there, and nothing else."""
    entries = [(bus(job.memory, job.cq + 64 * n), 64) for n in range(len(job.signaled))]
    landings = [(address & _ADDRESS, length) for address, length, _ in job.landings]
    yield from _written("written at the sender", seen.written, [*entries, *landings])
    responses = b"".join(_responses(job))
    for (address, length, _), raw in zip(job.landings, seen.landings, strict=True):
        if raw != responses[:length]:
            yield f"memory of the sender at {address:#x} does not hold the response"
        responses = responses[length:]
    for n, wqe in enumerate(job.signaled):
        opcode = CqeOpcode.REQ_ERR if isinstance(wqe.work, Other) else CqeOpcode.REQ
        wanted = {
            "opcode": opcode.value,
            "qpn": job.qpn,
            "wqe_counter": wqe.index & 0xFFFF,
            "send_opcode": wqe.raw[3],
            "owner": 0,
        }
        if not isinstance(wqe.work, Other):
            answered = isinstance(wqe.work, (Read, Atomic))
            wanted["byte_cnt"] = wqe.work.size if answered else 0
        yield from _cqe_problems("CQE", n, seen.cqes, wanted)


def _received(job, seen):
    """The peer's CQEs, one for each receive WQE that was taken."""
    for n, wqe in enumerate(job.receives):
        work = wqe.work
        if not isinstance(work, Send):
            opcode = CqeOpcode.RESP_WR_IMM
        else:
            opcode = CqeOpcode.RESP_SEND if work.imm is None else CqeOpcode.RESP_SEND_IMM
        wanted = {
            "opcode": opcode.value,
            "qpn": PEER_QPN,
            "wqe_counter": n,
            "byte_cnt": work.size,
            "imm": work.imm or 0,
            "se": int(work.solicited),
            "owner": 0,
        }
        yield from _cqe_problems("receive CQE", n, seen.receive_cqes, wanted)


def _cqe_problems(what, n, entries, wanted):
    """Fields of the CQE at place `n` of some bytes."""
    cqe = _cqe.unpack(entries[64 * n : 64 * n + 64])
    for key, value in wanted.items():
        if cqe[key] != value:
            yield f"{what} {n} {key} {cqe[key]:#x}: expected {value:#x}"


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
