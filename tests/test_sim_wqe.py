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


RUN = (0x7F1122334400, 64, 0x112233)
#: As rdma-core writes them for 64 bytes; a receive WQE is what stands before its end.
SEND = "0000050a00abcd020000000800000000000000400011223300007f1122334400"
SEND_IMM = "0000050b00abcd020000000a11223344000000400011223300007f1122334400"
WRITE_IMM = "0000050900abcd0300000008cafe012300007fab123456000044556600000000" + SEND[32:]
RECEIVE = "000000400011223300007f1122334400"


def test_send_and_immediate_data():
    sent = wqe.send(index=5, qpn=0xABCD, runs=[RUN], signaled=True)
    assert sent == bytes.fromhex(SEND).ljust(64, b"\0")
    told = wqe.with_immediate(sent, 0x11223344, solicited=True)
    assert told == bytes.fromhex(SEND_IMM).ljust(64, b"\0")
    head = {"index": 5, "qpn": 0xABCD, "raddr": 0x7FAB12345600, "rkey": 0x445566}
    written = wqe.gather(runs=[RUN], signaled=True, **head)
    assert wqe.with_immediate(written, 0xCAFE0123) == bytes.fromhex(WRITE_IMM).ljust(64, b"\0")


def test_receive_wqe_ends_its_list_where_it_is_not_full():
    end = bytes.fromhex("00000000 00000100 0000000000000000")
    assert wqe.receive(runs=[RUN], stride=16) == bytes.fromhex(RECEIVE)
    assert wqe.receive(runs=[RUN], stride=64) == (bytes.fromhex(RECEIVE) + end).ljust(64, b"\0")
    assert wqe.receive(runs=[RUN] * 4, stride=64) == bytes.fromhex(RECEIVE) * 4
    with pytest.raises(ValueError, match="5 runs: allowed 1 to 4"):
        wqe.receive(runs=[RUN] * 5, stride=64)


def test_an_address_beyond_64_bits_is_refused():
    with pytest.raises(ValueError, match="raddr"):
        wqe.write_inline(index=0, qpn=1, raddr=1 << 64, rkey=0, payload=b"x", signaled=True)


def test_an_atomic_that_does_not_exist_is_refused():
    place = {"index": 0, "qpn": 1, "raddr": 0, "rkey": 0, "laddr": 0, "lkey": 0, "signaled": True}
    with pytest.raises(ValueError, match="FETCH_ADD of 4 bytes: allowed"):
        wqe.atomic(opcode=mlx5.WqeOpcode.FETCH_ADD, size=4, operands={}, **place)
