"""mlx5 WQEs for tests: builders, vectors of real software, and a plain decoder to compare with."""

import json
from pathlib import Path

import pytest

from hw.formats import mlx5
from hw.formats.layout import Codec

__all__ = [
    "blocks",
    "data_segment",
    "inline_segment",
    "load_vectors",
    "nop",
    "reference_decode",
    "write_wqe",
]

_CTRL, _RADDR, _DATA = Codec(mlx5.Ctrl), Codec(mlx5.Raddr), Codec(mlx5.Data)


def load_vectors():
    """The sets of vectors; skips the test where they are not there."""
    path = Path(__file__).parents[2] / "shared" / "vectors" / "mlx5_vectors.json"
    if not path.exists():
        pytest.skip(f"no vectors at {path.name}")
    return json.loads(path.read_text())["sets"]


def data_segment(address, length, lkey=0x112233):
    return _DATA.pack(byte_count=length, lkey=lkey, address=address)


def inline_segment(payload):
    raw = (0x80000000 | len(payload)).to_bytes(4, "big") + payload
    return raw + bytes(-len(raw) % 16)


def write_wqe(
    *segments,
    index=0,
    qpn=0xABCD,
    raddr=0x7FAB12345600,
    rkey=0x445566,
    flags=0x08,
    opcode=0x08,
    ds=None,
):
    """A WQE of whole blocks; `ds` overrides the true count."""
    body = _RADDR.pack(raddr=raddr, rkey=rkey) + b"".join(segments)
    true_ds = 1 + len(body) // 16
    raw = (
        _CTRL.pack(
            wqe_index=index,
            opcode=opcode,
            qpn=qpn,
            ds=true_ds if ds is None else ds,
            fm_ce_se=flags,
        )
        + body
    )
    return raw + bytes(-len(raw) % 64)


def nop(qpn=0xABCD, flags=0x08, ds=1):
    raw = _CTRL.pack(opcode=0, qpn=qpn, ds=ds, fm_ce_se=flags)
    return raw + bytes(64 - len(raw))


def blocks(wqe):
    return [wqe[i : i + 64] for i in range(0, len(wqe), 64)]


def reference_decode(wqe, *, qp, wqe_index, mtu_log2=12, wqe_blocks=16):
    """(op, pieces) of a whole WQE, as dicts of fields."""
    ctrl = _CTRL.unpack(wqe[:16])
    ds, opcode = ctrl["ds"], ctrl["opcode"]
    count = max(1, -(-ds // 4))
    op = {
        "verb": int(opcode == 8),
        "qp": qp,
        "wqe_index": wqe_index,
        "blocks": count,
        "signaled": ctrl["fm_ce_se"] >> 3 & 1,
        "solicited": ctrl["fm_ce_se"] >> 1 & 1,
        "length": 0,
        "skip": 0,
        "raddr": 0,
        "rkey": 0,
        "vendor_opcode": opcode,
        "status": 0,
    }
    if opcode == 8:
        raddr = _RADDR.unpack(wqe[16:32])
        op |= {"raddr": raddr["raddr"], "rkey": raddr["rkey"]}
    if ds == 0 or count > wqe_blocks or opcode not in (0, 8) or (opcode == 8 and ds < 2):
        return op | {"status": 2}, []
    if opcode == 0:
        return op, []

    pieces, total, at = [], 0, 2
    while at < ds:
        segment = wqe[16 * at : 16 * at + 16]
        length = int.from_bytes(segment[:4], "big")
        if length >> 31:
            length &= 0x7FFFFFFF
            if 16 * at + 4 + length > 16 * ds:
                return op | {"status": 2}, []
            start = 16 * at + 4
            while start < 16 * at + 4 + length:
                end = min((start // 64 + 1) * 64, 16 * at + 4 + length)
                line = wqe[start // 64 * 64 : start // 64 * 64 + 64]
                pieces.append(
                    {
                        "inline": 1,
                        "address": start % 64,
                        "lkey": 0,
                        "length": end - start,
                        "data": int.from_bytes(line, "little"),
                    }
                )
                start = end
            at += (4 + length + 15) // 16
        else:
            fields = _DATA.unpack(segment)
            if length:
                pieces.append(
                    {
                        "inline": 0,
                        "address": fields["address"],
                        "lkey": fields["lkey"],
                        "length": length,
                    }
                )
            elif fields["lkey"] == 0x100:
                break
            at += 1
        total += length
    if total >> 32:
        return op | {"status": 2}, []
    for piece in pieces:
        piece |= {"last": 0, "fence": 0, "mtu_log2": mtu_log2, "qp": qp, "wqe_index": wqe_index}
    if pieces:
        pieces[-1]["last"] = 1
    return op | {"length": total}, pieces
