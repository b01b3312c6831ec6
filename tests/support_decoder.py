"""The WQE decoder alone: what it makes of a WQE must be what the WQE's work is."""

from collections import defaultdict

from support_rig import Rig
from support_work import Write

from hw.config import Structure
from hw.formats.op import Status
from hw.wqe_decoder import WqeDecoder

__all__ = ["decoded_problems"]

_STRUCTURE = Structure(qps=2)


def decoded_problems(groups):
    """Problems of each group of WQEs: fields of an operation or its pieces that are not as they
    must be.
    """
    rig, wqes = Rig(WqeDecoder(_STRUCTURE)), [wqe for group in groups for wqe in group]
    blocks = sum(wqe.blocks for wqe in wqes)
    for position, wqe in enumerate(wqes):
        for number in range(wqe.blocks):
            block = wqe.raw[64 * number : 64 * number + 64]
            rig.put(
                "blocks",
                {
                    "data": int.from_bytes(block, "little"),
                    # Not looked at by the decoder: tells whose a piece is.
                    "wqe_index": position,
                    "ds": wqe.raw[7] & 63,
                    "block": number,
                    "last": int(number == wqe.blocks - 1),
                    "mtu_log2": 12,
                },
            )
    rig.run(100 + 10 * blocks, lambda: len(rig.items("ops")) > len(wqes))
    ops, pieces = rig.items("ops"), defaultdict(list)
    if len(ops) != len(wqes):
        return [[f"{len(ops)} WQEs decoded: expected {len(wqes)}"] for _ in groups]
    for piece in rig.items("pieces"):
        pieces[piece["wqe_index"]].append(piece)
    numbered = enumerate(zip(ops, wqes, strict=True))
    found = iter([list(_problems(op, pieces[n], wqe.work)) for n, (op, wqe) in numbered])
    return [[problem for _ in group for problem in next(found)] for group in groups]


def _problems(op, pieces, work):
    if not isinstance(work, Write):
        known = hasattr(work, "build")
        wanted = Status.SUCCESS if known else Status.LOCAL_QP_OPERATION
        if (op["status"], op["length"], pieces) != (wanted.value, 0, []):
            yield f"decoded as status {op['status']}, {op['length']} bytes"
        return
    wanted = {"raddr": work.raddr, "rkey": work.rkey, "length": work.size}
    wanted |= {"signaled": int(work.signaled), "status": 0}
    for key, value in wanted.items():
        if op[key] != value:
            yield f"decoded {key} {op[key]:#x}: expected {value:#x}"
    if work.payload is None:
        found = [(piece["address"], piece["length"], piece["lkey"]) for piece in pieces]
        runs = [run for run in work.runs if run[1]]
        if found != runs or any(piece["inline"] for piece in pieces):
            yield f"decoded runs (address, length, lkey) {found}: expected {runs}"
    else:
        inline = b"".join(
            piece["data"].to_bytes(64, "little")[piece["address"] :][: piece["length"]]
            for piece in pieces
        )
        if inline != work.payload or not all(piece["inline"] for piece in pieces):
            yield "decoded inline bytes are wrong"
