"""Formats against bytes written out by hand from their specifications; the codec and its bounds."""

import inspect

import pytest
from amaranth.hdl import Const
from amaranth.lib import data
from hypothesis import given
from hypothesis import strategies as st

from hw.formats import context, dma, events, mlx5, op, roce, tlp
from hw.formats.layout import Codec, NetworkLayout, size

#: Format, fields, and its bytes.
BY_HAND = [
    (
        mlx5.Ctrl,
        {"wqe_index": 0x1234, "opcode": 0x08, "qpn": 0xABCDEF, "ds": 3, "signature": 0x5A}
        | {"fm_ce_se": 0x08, "imm": 0x01020304},
        "00 12 34 08  ab cd ef 03  5a 00 00 08  01 02 03 04",
    ),
    (
        mlx5.Raddr,
        {"raddr": 0x1122334455667788, "rkey": 0x99AABBCC},
        "11 22 33 44  55 66 77 88  99 aa bb cc  00 00 00 00",
    ),
    (
        mlx5.Data,
        {"byte_count": 4096, "lkey": 0x01020304, "address": 0x1122334455667788},
        "00 00 10 00  01 02 03 04  11 22 33 44  55 66 77 88",
    ),
    (mlx5.InlineHeader, {"inline": 1, "byte_count": 28}, "80 00 00 1c"),
    (mlx5.DoorbellRecord, {"receive": 0x0102, "send": 0x0304}, "00 00 01 02  00 00 03 04"),
    (
        mlx5.Doorbell,
        {"index": 0x1234, "opcode": 0x08, "qpn": 0xABCDEF, "ds": 3},
        "00 12 34 08  ab cd ef 03",
    ),
    (
        roce.Bth,
        {"opcode": 0x0A, "migration": 1, "pad": 2, "pkey": 0xFFFF, "dest_qp": 0x123456}
        | {"ack_request": 1, "psn": 0xABCDEF},
        "0a 60 ff ff  00 12 34 56  80 ab cd ef",
    ),
    (
        roce.Reth,
        {"va": 0x1122334455667788, "rkey": 0x99AABBCC, "length": 8},
        "11 22 33 44  55 66 77 88  99 aa bb cc  00 00 00 08",
    ),
    (roce.Aeth, {"syndrome": 0x1F, "msn": 0x010203}, "1f 01 02 03"),
    # MWr of 64 bytes, 4 DW header.
    (
        tlp.MemoryHeader,
        {"fmt": 3, "length_dw": 16, "requester": 0x0100, "tag": 0x2A, "last_be": 15}
        | {"first_be": 15, "address": 0x100000000040 >> 2},
        "60 00 00 10  01 00 2a ff  00 00 10 00  00 00 00 40",
    ),
    # CplD of 64 bytes, the last of its request.
    (
        tlp.CompletionHeader,
        {"fmt": 2, "type": 10, "length_dw": 16, "completer": 0x0200, "byte_count": 64}
        | {"requester": 0x0100, "tag": 0x2A, "lower_address": 0x40},
        "4a 00 00 10  02 00 00 40  01 00 2a 40",
    ),
]
MODULES = (context, dma, events, mlx5, op, roce, tlp)
FLAT = [
    value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, NetworkLayout)
    or (inspect.isclass(value) and issubclass(value, data.Struct) and value is not data.Struct)
]


def name_of(layout):
    return getattr(layout, "name", getattr(layout, "__name__", ""))


@pytest.mark.parametrize(("layout", "fields", "raw"), BY_HAND, ids=lambda value: name_of(value))
def test_bytes_by_hand(layout, fields, raw):
    raw = bytes.fromhex(raw)
    assert Codec(layout).pack(**fields) == raw
    assert Codec(layout).unpack(raw) == dict.fromkeys(Codec(layout).fields, 0) | fields


@pytest.mark.parametrize(("layout", "fields", "raw"), BY_HAND, ids=lambda value: name_of(value))
def test_hardware_sees_the_same_fields(layout, fields, raw):
    """The constant that RTL would hold is the big-endian number of the bytes."""
    constant = layout.const(fields)
    assert Const.cast(constant).value == int.from_bytes(bytes.fromhex(raw), "big")


@given(st.data())
def test_codec_gives_back_what_it_packed(draw):
    codec = Codec(draw.draw(st.sampled_from(FLAT)))
    values = {key: draw.draw(st.integers(0, most)) for key, (_, most) in codec.fields.items()}
    assert codec.unpack(codec.pack(**values)) == values


def test_codec_refuses_what_does_not_fit():
    codec = Codec(mlx5.Ctrl)
    with pytest.raises(ValueError, match="ds = 64: allowed 0 to 63"):
        codec.pack(ds=64)
    with pytest.raises(ValueError, match="qpn = -1: allowed 0 to"):
        codec.pack(qpn=-1)
    with pytest.raises(ValueError, match="no field 'dss'; there are .*ds"):
        codec.pack(dss=1)
    with pytest.raises(ValueError, match="15 bytes given, the format has 16"):
        codec.unpack(bytes(15))


def test_size_is_whole_bytes():
    assert size(roce.Bth) == 12
    with pytest.raises(ValueError, match="no whole number of bytes"):
        size(events.SoftwareEvent)


def test_blocks_of_a_wqe():
    assert [mlx5.blocks_of(ds) for ds in (0, 1, 4, 5, 8, 63)] == [0, 1, 1, 2, 2, 16]
