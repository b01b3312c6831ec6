"""mlx5 WQEs for tests: builders, vectors of real software, and a plain decoder to compare with."""

import json
from pathlib import Path

import pytest

from hw.formats import mlx5
from hw.formats.layout import Codec
from hw.formats.op import Verb

__all__ = [
    "VERBS",
    "blocks",
    "data_segment",
    "inline_segment",
    "load_vectors",
    "nop",
    "real_wqes",
    "reference_decode",
    "verb_wqe",
    "write_wqe",
]

_CTRL, _RADDR, _DATA = Codec(mlx5.Ctrl), Codec(mlx5.Raddr), Codec(mlx5.Data)


def load_vectors():
    """The sets of vectors; skips the test where they are not there."""
    path = Path(__file__).parents[2] / "shared" / "vectors" / "mlx5_vectors.json"
    if not path.exists():
        pytest.skip(f"no vectors at {path.name}")
    return json.loads(path.read_text())["sets"]


def split(raw):
    """WQEs of a run of blocks."""
    while raw:
        size = 64 * max(1, -(-(raw[7] & 63) // 4))
        yield raw[:size]
        raw = raw[size:]


def real_wqes():
    """(name, WQE) of all vectors of reliable connections, but for WAIT, each once."""
    wqes = {}
    for vectors in load_vectors().values():
        for vector in vectors.get("vectors", []):
            name = vector.get("name", "")
            if "wqe" in vector and not name.endswith("_av") and not name.startswith("wait"):
                for wqe in split(bytes.fromhex(vector["wqe"])):
                    wqes[wqe] = name
        for sequence in vectors.get("sequences", []):
            for vector in sequence["wqes"]:
                wqes[bytes.fromhex(vector["wqe"])] = sequence["name"]
    return [(name, wqe) for wqe, name in wqes.items()]


def data_segment(address, length, lkey=0x112233):
    return _DATA.pack(byte_count=length, lkey=lkey, address=address)


def inline_segment(payload):
    raw = (0x80000000 | len(payload)).to_bytes(4, "big") + payload
    return raw + bytes(-len(raw) % 16)


def write_wqe(*segments, opcode=0x08, **options):
    """A WRITE; `opcode` writes another in its stead."""
    return verb_wqe(opcode, *segments, addressed=True, **options)


def nop(qpn=0xABCD, flags=0x08, ds=1):
    raw = _CTRL.pack(opcode=0, qpn=qpn, ds=ds, fm_ce_se=flags)
    return raw + bytes(64 - len(raw))


def blocks(wqe):
    return [wqe[i : i + 64] for i in range(0, len(wqe), 64)]


def verb_wqe(
    opcode,
    *segments,
    opmod=0,
    index=0,
    imm=0,
    addressed=None,
    raddr=0x7FAB12345600,
    rkey=0x445566,
    qpn=0xABCD,
    flags=0x08,
    ds=None,
):
    """A WQE of any verb, of whole blocks; by its opcode it has a remote address segment."""
    addressed = opcode in ADDRESSED if addressed is None else addressed
    body = _RADDR.pack(raddr=raddr, rkey=rkey) * addressed + b"".join(segments)
    true_ds = 1 + len(body) // 16
    raw = (
        _CTRL.pack(
            opmod=opmod,
            wqe_index=index,
            opcode=opcode,
            qpn=qpn,
            ds=true_ds if ds is None else ds,
            fm_ce_se=flags,
            imm=imm,
        )
        + body
    )
    return raw + bytes(-len(raw) % 64)


#: Opcode to verb; a masked atomic's is the same for both of its sizes.
VERBS = {
    0x00: Verb.NOP,
    0x08: Verb.WRITE,
    0x09: Verb.WRITE_IMM,
    0x0A: Verb.SEND,
    0x0B: Verb.SEND_IMM,
    0x10: Verb.READ,
    0x11: Verb.COMPARE_SWAP,
    0x12: Verb.FETCH_ADD,
    0x14: Verb.MASKED_COMPARE_SWAP,
    0x15: Verb.MASKED_FETCH_ADD,
    0x23: Verb.DUMP,
}
ADDRESSED = {0x08, 0x09, 0x10, 0x11, 0x12, 0x14, 0x15}
_LOCAL_LENGTH, _LOCAL_QP_OPERATION = 1, 2


class _Refused(Exception):
    """A WQE that cannot be executed; its status."""


def _runs(wqe, at, ds):
    """Data and inline segments from octoword `at`, as (inline, address, lkey, length)."""
    while at < ds:
        segment = wqe[16 * at : 16 * at + 16]
        length = int.from_bytes(segment[:4], "big")
        if length >> 31:
            length &= 0x7FFFFFFF
            if 16 * at + 4 + length > 16 * ds:
                raise _Refused(_LOCAL_QP_OPERATION)
            yield 1, 16 * at + 4, 0, length
            at += (4 + length + 15) // 16
            continue
        fields = _DATA.unpack(segment)
        if not length and fields["lkey"] == 0x100:
            return
        yield 0, fields["address"], fields["lkey"], length
        at += 1


def _inline_pieces(wqe, start, length):
    """Bytes of the WQE, cut at the ends of blocks."""
    end = start + length
    while start < end:
        until = min((start // 64 + 1) * 64, end)
        line = wqe[start // 64 * 64 : start // 64 * 64 + 64]
        yield {
            "inline": 1,
            "address": start % 64,
            "lkey": 0,
            "length": until - start,
            "data": int.from_bytes(line, "little"),
        }
        start = until


def _without(runs, dropped):
    """Runs (dicts) without their first `dropped` bytes."""
    for run in runs:
        lost = min(dropped, run["length"])
        dropped -= lost
        if lost < run["length"]:
            yield run | {"address": run["address"] + lost, "length": run["length"] - lost}


def _operands(opcode, opmod):
    """(octowords of operands, bytes worked on) of an atomic; zeros for another verb."""
    if opcode in (0x11, 0x12):
        return 1, 8
    if opcode in (0x14, 0x15):
        if opmod not in (8, 9):
            raise _Refused(_LOCAL_QP_OPERATION)
        return (2 if (opcode, opmod) == (0x14, 9) else 1), (4 if opmod == 8 else 8)
    return 0, 0


def _parts(wqe, ctrl, wqe_blocks, max_inline, dropped):
    """(bytes, pieces, landings) of a WQE; raises `_Refused`."""
    ds, opcode = ctrl["ds"], ctrl["opcode"]
    operands, wide = _operands(opcode, ctrl["opmod"])
    start = 1 + (opcode in ADDRESSED)
    if opcode not in VERBS or ds == 0 or -(-ds // 4) > wqe_blocks:
        raise _Refused(_LOCAL_QP_OPERATION)
    if opcode == 0:
        return 0, [], []
    if ds < start + operands:
        raise _Refused(_LOCAL_QP_OPERATION)

    pieces, total, inlined = [], 0, 0
    for inline, address, lkey, length in _runs(wqe, start + operands, ds):
        if inline:
            if opcode not in (0x08, 0x09, 0x0A, 0x0B):
                raise _Refused(_LOCAL_QP_OPERATION)
            inlined += length
            if max_inline and inlined > max_inline:
                raise _Refused(_LOCAL_LENGTH)
            pieces += _inline_pieces(wqe, address, length)
        elif length:
            pieces.append({"inline": 0, "address": address, "lkey": lkey, "length": length})
        total += length
    if total >> 32 or (dropped and ds > start and total <= dropped):
        raise _Refused(_LOCAL_QP_OPERATION)
    if wide and total != wide:
        raise _Refused(_LOCAL_LENGTH)
    pieces = list(_without(pieces, dropped))
    if opcode not in (0x10, 0x11, 0x12, 0x14, 0x15):
        return total, pieces, []
    landings = [{key: piece[key] for key in ("address", "lkey", "length")} for piece in pieces]
    return total, list(_inline_pieces(wqe, 32, 16 * operands)), landings


def reference_decode(
    wqe, *, qp, wqe_index, mtu_log2=12, wqe_blocks=16, max_inline=0, skip=0, failed=False
):
    """(op, pieces, landings) of a whole WQE, as dicts of fields."""
    ctrl = _CTRL.unpack(wqe[:16])
    opcode = ctrl["opcode"]
    op = {
        "verb": VERBS.get(opcode, Verb.NOP).value,
        "qp": qp,
        "wqe_index": wqe_index,
        "blocks": max(1, -(-ctrl["ds"] // 4)),
        "signaled": ctrl["fm_ce_se"] >> 3 & 1,
        "solicited": ctrl["fm_ce_se"] >> 1 & 1,
        "fence": int(ctrl["fm_ce_se"] >> 5 != 0),
        "length": 0,
        "imm": ctrl["imm"] if opcode in (0x09, 0x0B) else 0,
        "skip": 0,
        "raddr": 0,
        "rkey": 0,
        "vendor_opcode": opcode,
        "status": 0,
    }
    if opcode in ADDRESSED:
        raddr = _RADDR.unpack(wqe[16:32])
        op |= {"raddr": raddr["raddr"], "rkey": raddr["rkey"]}
    if failed:
        return op | {"status": 5}, [], []
    try:
        length, pieces, landings = _parts(wqe, ctrl, wqe_blocks, max_inline, skip << mtu_log2)
    except _Refused as refused:
        return op | {"status": refused.args[0]}, [], []
    for part in pieces + landings:
        part |= {"last": 0, "qp": qp, "wqe_index": wqe_index}
    for piece in pieces:
        piece |= {"fence": op["fence"], "mtu_log2": mtu_log2}
    for parts in (pieces, landings):
        if parts:
            parts[-1]["last"] = 1
    return op | {"length": length, "skip": skip if length else 0}, pieces, landings
