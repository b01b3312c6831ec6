"""The bytes that software writes for a NIC: WQEs, doorbells, records; and what it reads back."""

from functools import cache
from itertools import pairwise

from hw.formats import mlx5
from hw.formats.layout import Codec

__all__ = [
    "OPERANDS",
    "atomic",
    "doorbell",
    "dump",
    "gather",
    "nop",
    "read",
    "read_cqe",
    "receive",
    "record",
    "send",
    "send_inline",
    "with_immediate",
    "write",
    "write_inline",
    "write_inline_combined",
]

_ctrl, _raddr, _data = Codec(mlx5.Ctrl), Codec(mlx5.Raddr), Codec(mlx5.Data)
_doorbell = Codec(mlx5.Doorbell)
_WRITE = mlx5.WqeOpcode.WRITE.value
_BLOCK = mlx5.BLOCK_BYTES
_NOP = mlx5.WqeOpcode.NOP.value

_HEAD_BYTES = _ctrl.size + _raddr.size
#: Bit of a field in the head's big-endian number.
_INDEX_BIT = _ctrl.fields["wqe_index"][0] + 8 * _raddr.size
_RADDR_BIT = _raddr.fields["raddr"][0]
#: Bit of the index in a doorbell's.
_RUNG_BIT = _doorbell.fields["index"][0]
#: Fence mode as NVSHMEM asks for it: behind all READs and atomics of before.
_FENCE = 2 << 5
#: Formats of the operands of atomics, by opcode and the bytes that they work on.
OPERANDS = {
    (mlx5.WqeOpcode.COMPARE_SWAP, 8): mlx5.Atomic,
    (mlx5.WqeOpcode.FETCH_ADD, 8): mlx5.Atomic,
    (mlx5.WqeOpcode.MASKED_COMPARE_SWAP, 4): mlx5.MaskedCompareSwap4,
    (mlx5.WqeOpcode.MASKED_COMPARE_SWAP, 8): mlx5.MaskedCompareSwap8,
    (mlx5.WqeOpcode.MASKED_FETCH_ADD, 4): mlx5.MaskedFetchAdd4,
    (mlx5.WqeOpcode.MASKED_FETCH_ADD, 8): mlx5.MaskedFetchAdd8,
}


@cache
def _template(qpn, rkey, octowords, signaled):
    """Control and address segment with index and address 0, as a big-endian number."""
    ctrl = _ctrl.pack(
        opcode=_WRITE, qpn=qpn, ds=octowords, fm_ce_se=mlx5.CE_ALWAYS if signaled else 0
    )
    return int.from_bytes(ctrl + _raddr.pack(rkey=rkey), "big")


def _wqe(index, qpn, raddr, rkey, signaled, segments):
    """A WRITE with these segments behind its head, padded to whole blocks."""
    if not 0 <= raddr < 1 << 64:
        raise ValueError(f"raddr = {raddr:#x}: allowed 64 bits")
    size = _HEAD_BYTES + len(segments)
    head = _template(qpn, rkey, (size + 15) // 16, signaled)
    head |= (index & 0xFFFF) << _INDEX_BIT | raddr << _RADDR_BIT
    raw = head.to_bytes(_HEAD_BYTES, "big") + segments
    return raw.ljust(size + -size % _BLOCK, b"\0")


def _segments(runs):
    """Data segments of runs, each (address, length, lkey)."""
    return b"".join(
        _data.pack(byte_count=length, lkey=lkey, address=address) for address, length, lkey in runs
    )


def _inline(payload):
    """Inline segment of some bytes."""
    return (mlx5.INLINE_FLAG | len(payload)).to_bytes(4, "big") + payload


def gather(*, index, qpn, raddr, rkey, runs, signaled):
    """RDMA WRITE of the bytes of `runs`, each (address, length, lkey), one after the other."""
    return _wqe(index, qpn, raddr, rkey, signaled, _segments(runs))


def write(*, index, qpn, raddr, rkey, laddr, lkey, length, signaled, segments=1):
    """RDMA WRITE that points to its payload: one block (48 bytes count) with one data segment.

    Several segments, not more than there are bytes, cut the payload into nearly equal runs.
    """
    segments = min(segments, length)
    cuts = [length * cut // segments for cut in range(segments + 1)]
    runs = [(laddr + start, end - start, lkey) for start, end in pairwise(cuts)]
    return gather(index=index, qpn=qpn, raddr=raddr, rkey=rkey, runs=runs, signaled=signaled)


def write_inline(*, index, qpn, raddr, rkey, payload, signaled):
    """RDMA WRITE whose bytes stand in the WQE: as many blocks as they need."""
    return _wqe(index, qpn, raddr, rkey, signaled, _inline(payload))


def with_immediate(raw, imm, *, solicited=False):
    """The WQE of a WRITE or a SEND as the one with immediate data."""
    ctrl = _ctrl.unpack(raw[: _ctrl.size])
    plain = mlx5.WqeOpcode(ctrl["opcode"])
    ctrl["opcode"] = mlx5.WqeOpcode[plain.name + "_IMM"].value
    ctrl["fm_ce_se"] |= mlx5.SOLICITED if solicited else 0
    return _ctrl.pack(**ctrl | {"imm": imm}) + raw[_ctrl.size :]


def _local(opcode, index, qpn, flags, segments):
    """A WQE without a remote address, padded to whole blocks."""
    ctrl = _ctrl.pack(
        opcode=opcode.value,
        wqe_index=index & 0xFFFF,
        qpn=qpn,
        ds=(_ctrl.size + len(segments) + 15) // 16,
        fm_ce_se=flags,
    )
    raw = ctrl + segments
    return raw.ljust(len(raw) + -len(raw) % _BLOCK, b"\0")


def _flags(signaled, solicited):
    return (mlx5.CE_ALWAYS if signaled else 0) | (mlx5.SOLICITED if solicited else 0)


def send(*, index, qpn, runs, signaled, solicited=False):
    """SEND of the bytes of `runs`, each (address, length, lkey), one after the other."""
    flags = _flags(signaled, solicited)
    return _local(mlx5.WqeOpcode.SEND, index, qpn, flags, _segments(runs))


def send_inline(*, index, qpn, payload, signaled, solicited=False):
    """SEND whose bytes stand in the WQE."""
    flags = _flags(signaled, solicited)
    return _local(mlx5.WqeOpcode.SEND, index, qpn, flags, _inline(payload))


def dump(*, index, qpn, runs, signaled, fence=False):
    """Local read of `runs`, with `fence` behind all READs and atomics of before."""
    flags = _flags(signaled, False) | (_FENCE if fence else 0)
    return _local(mlx5.WqeOpcode.DUMP, index, qpn, flags, _segments(runs))


def read(*, index, qpn, raddr, rkey, runs, signaled):
    """RDMA READ into `runs`, each (address, length, lkey), one after the other."""
    raw = gather(index=index, qpn=qpn, raddr=raddr, rkey=rkey, runs=runs, signaled=signaled)
    return _as(raw, mlx5.WqeOpcode.READ)


def atomic(*, opcode, size, operands, index, qpn, raddr, rkey, laddr, lkey, signaled):
    """Atomic on `size` bytes, which returns what was there to `laddr`.

    Parameters
    ----------
    opcode : mlx5.WqeOpcode
    operands : mapping
        Fields of their format, `OPERANDS[opcode, size]`.

    Raises
    ------
    ValueError
        If there is no such atomic of that size.
    """
    if (opcode, size) not in OPERANDS:
        allowed = ", ".join(f"{known.name} of {wide}" for known, wide in OPERANDS)
        raise ValueError(f"{opcode.name} of {size} bytes: allowed {allowed}")
    segments = Codec(OPERANDS[opcode, size]).pack(**operands) + _segments([(laddr, size, lkey)])
    masked = OPERANDS[opcode, size] is not mlx5.Atomic
    opmod = {4: mlx5.OPMOD_MASKED_4, 8: mlx5.OPMOD_MASKED_8}[size] if masked else 0
    return _as(_wqe(index, qpn, raddr, rkey, signaled, segments), opcode, opmod)


def _as(raw, opcode, opmod=0):
    """A WRITE's bytes as those of another operation with the same head."""
    return bytes([opmod]) + raw[1:3] + bytes([opcode.value]) + raw[4:]


def receive(*, runs, stride):
    """Receive WQE of `stride` bytes: a message goes into `runs`, each (address, length, lkey)."""
    raw = _segments(runs)
    if len(raw) < stride:
        raw += _data.pack(lkey=mlx5.END_OF_LIST_KEY)
    if len(raw) > stride:
        raise ValueError(f"{len(runs)} runs: allowed 1 to {stride // _data.size}")
    return raw.ljust(stride, b"\0")


def nop(*, index, qpn, signaled, ds=1):
    """A WQE that does nothing: one block, of which software writes 16 bytes.

    (NVSHMEM says `ds` 2 where it posts one by itself.)
    """
    ctrl = _ctrl.pack(
        opcode=_NOP,
        wqe_index=index & 0xFFFF,
        qpn=qpn,
        ds=ds,
        fm_ce_se=mlx5.CE_ALWAYS if signaled else 0,
    )
    return ctrl + bytes(mlx5.BLOCK_BYTES - len(ctrl))


def write_inline_combined(*, index, qpn, raddr, rkey, payload):
    """The inline values of a warp's lanes as NVSHMEM writes them: one WRITE, not signalled, and the
    NOP behind it that carries the completion.
    """
    first = write_inline(
        index=index, qpn=qpn, raddr=raddr, rkey=rkey, payload=payload, signaled=False
    )
    return first + nop(index=index + len(first) // mlx5.BLOCK_BYTES, qpn=qpn, signaled=True)


@cache
def _rung(qpn, opcode, ds):
    """A doorbell with index 0, as a big-endian number."""
    return int.from_bytes(_doorbell.pack(opcode=opcode, qpn=qpn, ds=ds), "big")


def doorbell(*, qpn, index, opcode=0, ds=0):
    """The 8 bytes stored to a UAR register (GPU stacks: the next index, opcode and ds 0)."""
    return (_rung(qpn, opcode, ds) | (index & 0xFFFF) << _RUNG_BIT).to_bytes(8, "big")


def record(index):
    """A word of a doorbell record: the counter of what is posted."""
    return (index & 0xFFFF).to_bytes(4, "big")


def read_cqe(memory, offset):
    """(opcode, owner, wqe_counter) of the CQE at `offset` of some bytes."""
    last = memory[offset + 63]
    return last >> 4, last & 1, memory[offset + 60] << 8 | memory[offset + 61]
