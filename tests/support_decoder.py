"""The WQE decoder alone: what it makes of a WQE must be what the WQE's work is."""

from collections import defaultdict

from support_asked import Atomic, Other
from support_rig import Rig

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
    ops = rig.items("ops")
    if len(ops) != len(wqes):
        return [[f"{len(ops)} WQEs decoded: expected {len(wqes)}"] for _ in groups]
    parts = {}
    for name in ("pieces", "landings"):
        parts[name] = defaultdict(list)
        for part in rig.items(name):
            parts[name][part["wqe_index"]].append(part)
    numbered = enumerate(zip(ops, wqes, strict=True))
    found = iter(
        [
            list(_problems(op, parts["pieces"][n], parts["landings"][n], wqe.work))
            for n, (op, wqe) in numbered
        ]
    )
    return [[problem for _ in group for problem in next(found)] for group in groups]


def _problems(op, pieces, landings, work):
    wanted = {"status": 0, "verb": work.verb.value, "length": work.size}
    wanted |= {"signaled": int(work.signaled), "fence": int(work.fence), "imm": work.imm or 0}
    wanted["solicited"] = int(work.solicited)
    if isinstance(work, Other):
        wanted = {"status": Status.LOCAL_QP_OPERATION.value, "length": 0}
    wanted |= {key: getattr(work, key) for key in ("raddr", "rkey") if hasattr(work, key)}
    for key, value in wanted.items():
        if op[key] != value:
            yield f"decoded {key} {op[key]:#x}: expected {value:#x}"
    inline = isinstance(work, Atomic) or work.payload is not None
    yield from _runs("landings", landings, work.landings)
    if not inline:
        yield from _runs("runs", pieces, work.runs)
    elif not all(piece["inline"] for piece in pieces) or not _stands(_bytes(pieces), work):
        yield "decoded inline bytes are wrong"
    if not inline and any(piece["inline"] for piece in pieces):
        yield "decoded as inline"


def _runs(what, parts, wanted):
    found = [(part["address"], part["length"], part["lkey"]) for part in parts]
    runs = [run for run in wanted if run[1]]
    if found != runs:
        yield f"decoded {what} (address, length, lkey) {found}: expected {runs}"


def _bytes(pieces):
    return b"".join(
        piece["data"].to_bytes(64, "little")[piece["address"] :][: piece["length"]]
        for piece in pieces
    )


def _stands(found, work):
    """Whether these are the bytes of a payload, or of operands as far as they count."""
    if isinstance(work, Atomic):
        wanted = work.raw_operands
        return len(found) == len(wanted) and found[: work.counts] == wanted[: work.counts]
    return found == work.payload
