"""WQEs made from a template are those that the formats' codecs pack."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.formats import mlx5
from hw.formats.layout import Codec
from sim import wqe

HEADS = st.fixed_dictionaries(
    {
        "index": st.integers(0, 1 << 40),
        "qpn": st.integers(0, (1 << 24) - 1),
        "raddr": st.integers(0, (1 << 64) - 1),
        "rkey": st.integers(0, (1 << 32) - 1),
        "signaled": st.booleans(),
    }
)


def packed(head, segments):
    ctrl = Codec(mlx5.Ctrl).pack(
        wqe_index=head["index"] & 0xFFFF,
        opcode=mlx5.WqeOpcode.WRITE.value,
        qpn=head["qpn"],
        ds=2 + len(segments) // 16,
        fm_ce_se=mlx5.CE_ALWAYS if head["signaled"] else 0,
    )
    raw = ctrl + Codec(mlx5.Raddr).pack(raddr=head["raddr"], rkey=head["rkey"]) + segments
    return raw + bytes(-len(raw) % mlx5.BLOCK_BYTES)


@given(HEADS, st.binary(min_size=1, max_size=220))
def test_inline(head, payload):
    segment = (mlx5.INLINE_FLAG | len(payload)).to_bytes(4, "big") + payload
    segment += bytes(-len(segment) % 16)
    assert wqe.write_inline(payload=payload, **head) == packed(head, segment)


@given(HEADS, st.integers(1, 1 << 30), st.integers(0, 1 << 60), st.integers(0, (1 << 32) - 1))
def test_pointer(head, length, laddr, lkey):
    segment = Codec(mlx5.Data).pack(byte_count=length, lkey=lkey, address=laddr)
    raw = wqe.write(length=length, laddr=laddr, lkey=lkey, **head)
    assert raw == packed(head, segment)


def test_an_address_beyond_64_bits_is_refused():
    with pytest.raises(ValueError, match="raddr"):
        wqe.write_inline(index=0, qpn=1, raddr=1 << 64, rkey=0, payload=b"x", signaled=True)
