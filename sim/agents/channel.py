"""The request channel between a GPU and its proxy: 8-byte words in a ring in host memory.

Byte 0 of each word is a flag that is 1 in the first lap and toggles with each lap, so that the
reader knows a word of this lap from an old one. Ref: `nvshmem_proxy_channel` vectors; layouts as
read there.
"""

from dataclasses import dataclass

__all__ = ["DEFAULT_QP", "PUT_BYTES", "PutRequest", "decode_put", "encode_put", "flag_of"]

#: A put request takes four words.
PUT_BYTES = 32
#: The QP that requests go to which do not name one.
DEFAULT_QP = 1
_PUT_OP = 1
#: Added to the operation of a request that names its QP.
_ON_QP = 100
_GROUP = 1


@dataclass(frozen=True, slots=True)
class PutRequest:
    """One put: `size` bytes from `laddr` to offset `roffset` of the heap of `pe`, on QP `qp`."""

    roffset: int
    laddr: int
    size: int
    pe: int
    qp: int


def flag_of(position, ring_bytes):
    """Flag of the word at byte `position` (counted from the start, not wrapped) of a ring."""
    return 1 - (position // ring_bytes & 1)


def encode_put(request, flag):
    """The 32 bytes of a put."""
    op = _PUT_OP if request.qp == DEFAULT_QP else _PUT_OP + _ON_QP
    words = (
        request.roffset << 24 | op << 16 | _GROUP << 8 | flag,
        request.laddr & ~0xFF | flag,
        request.size << 16 | (request.laddr & 0xFF) << 8 | flag,
        request.qp << 32 | request.pe << 16 | flag,
    )
    return b"".join(word.to_bytes(8, "little") for word in words)


def decode_put(raw):
    """The request in 32 bytes; raises `ValueError` for another operation."""
    word = [int.from_bytes(raw[i : i + 8], "little") for i in range(0, PUT_BYTES, 8)]
    op = word[0] >> 16 & 0xFF
    if op not in (_PUT_OP, _PUT_OP + _ON_QP):
        raise ValueError(
            f"channel word {word[0]:#018x}: operation {op}, this proxy serves put ({_PUT_OP})"
        )
    return PutRequest(
        roffset=word[0] >> 24,
        laddr=word[1] & ~0xFF | word[2] >> 8 & 0xFF,
        size=word[2] >> 16,
        pe=word[3] >> 16 & 0xFFFF,
        qp=word[3] >> 32,
    )
