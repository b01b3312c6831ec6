"""mlx5 send WQE segments, CQE, doorbell and doorbell record.

Ref: rdma-core providers/mlx5 (wqe.h, mlx5dv.h), NVSHMEM and DOCA device headers; field meanings as
read there. All big-endian. A WQE is counted in octowords (16 B) by `ds` and in blocks (WQEBB, 64 B)
by indices.
"""

from amaranth.lib import enum

from .layout import network, size

__all__ = [
    "BLOCK_BYTES",
    "CE_ALWAYS",
    "DATA_OFFSET",
    "END_OF_LIST_KEY",
    "INLINE_FLAG",
    "OPMOD_MASKED_4",
    "OPMOD_MASKED_8",
    "SOLICITED",
    "UAR_BF_SIZE",
    "UAR_PAGE_BYTES",
    "UAR_REGISTER_OFFSET",
    "Atomic",
    "Cqe",
    "CqeError",
    "CqeOpcode",
    "Ctrl",
    "Data",
    "Doorbell",
    "DoorbellRecord",
    "InlineHeader",
    "MaskedCompareSwap4",
    "MaskedCompareSwap8",
    "MaskedFetchAdd4",
    "MaskedFetchAdd8",
    "Raddr",
    "WqeOpcode",
    "blocks_of",
]

#: One WQE basic block.
BLOCK_BYTES = 64
#: fm_ce_se bits 3:2: a completion is always wanted.
CE_ALWAYS = 0x08
#: fm_ce_se bit 1: the receiver's completion is one that it may wait for.
SOLICITED = 0x02
#: Bit 31 of a data segment's first word: inline data follows.
INLINE_FLAG = 0x80000000
#: `opmod` of a masked atomic: it works on 4 or on 8 bytes.
OPMOD_MASKED_4 = 0x08
OPMOD_MASKED_8 = 0x09
#: UAR page: registers from 0x800, two BlueFlame halves of 256 B used in turn.
UAR_PAGE_BYTES = 4096
UAR_REGISTER_OFFSET = 0x800
UAR_BF_SIZE = 256
#: Byte offset of the first data segment of a WRITE (behind ctrl and raddr).
DATA_OFFSET = 32
#: Key of a data segment of 0 bytes that ends the list.
END_OF_LIST_KEY = 0x100


class WqeOpcode(enum.Enum, shape=8):
    NOP = 0x00
    WRITE = 0x08
    WRITE_IMM = 0x09
    SEND = 0x0A
    SEND_IMM = 0x0B
    WAIT = 0x0F
    READ = 0x10
    COMPARE_SWAP = 0x11
    FETCH_ADD = 0x12
    MASKED_COMPARE_SWAP = 0x14
    MASKED_FETCH_ADD = 0x15
    DUMP = 0x23


class CqeOpcode(enum.Enum, shape=4):
    REQ = 0
    RESP_WR_IMM = 1
    RESP_SEND = 2
    RESP_SEND_IMM = 3
    REQ_ERR = 13
    RESP_ERR = 14
    INVALID = 15


@network
class Ctrl:
    """Control segment: the first octoword of a WQE."""

    #: Opcode modifier.
    opmod: 8
    #: Index of the WQE's first block, modulo 65536.
    wqe_index: 16
    opcode: 8
    qpn: 24
    _0: 2
    #: Length of the WQE in octowords.
    ds: 6
    signature: 8
    dci_channel: 16
    #: Fence mode [7:5] (0 none), completion [3:2], solicited [1].
    fm_ce_se: 8
    imm: 32


assert size(Ctrl) == 16


@network
class Raddr:
    """Remote address segment."""

    raddr: 64
    rkey: 32
    _0: 32


assert size(Raddr) == 16


@network
class Data:
    """Data segment: where bytes are gathered from."""

    #: Bit 31 clear: a pointer. (Set: see `InlineHeader`.)
    byte_count: 32
    lkey: 32
    address: 64


assert size(Data) == 16


@network
class InlineHeader:
    """Head of inline data; the bytes follow."""

    inline: 1
    byte_count: 31


assert size(InlineHeader) == 4


@network
class Atomic:
    """Operands of an atomic on 8 bytes."""

    #: Value to swap in, or to add.
    swap_add: 64
    compare: 64


assert size(Atomic) == 16


@network
class MaskedFetchAdd4:
    """Operands of a masked fetch-and-add on 4 bytes."""

    add: 32
    #: Bits that carry nothing into the next.
    boundary: 32
    _0: 64


assert size(MaskedFetchAdd4) == 16


@network
class MaskedFetchAdd8:
    """Operands of a masked fetch-and-add on 8 bytes."""

    add: 64
    boundary: 64


assert size(MaskedFetchAdd8) == 16


@network
class MaskedCompareSwap4:
    """Operands of a masked compare-and-swap on 4 bytes."""

    swap: 32
    compare: 32
    swap_mask: 32
    compare_mask: 32


assert size(MaskedCompareSwap4) == 16


@network
class MaskedCompareSwap8:
    """Operands of a masked compare-and-swap on 8 bytes: two octowords."""

    swap: 64
    compare: 64
    swap_mask: 64
    compare_mask: 64


assert size(MaskedCompareSwap8) == 32


@network
class DoorbellRecord:
    """Two words in memory, written by software: counters in WQEBBs modulo 65536."""

    _0: 16
    receive: 16
    _1: 16
    send: 16


assert size(DoorbellRecord) == 8


@network
class Doorbell:
    """The 8 bytes stored to a UAR register.

    Both conventions fit one rule: producer index = index + ceil(ds / 4), modulo 65536.
    """

    #: Not looked at (a producer index above 16 bits spills into it).
    _0: 8
    index: 16
    #: Opcode of the last WQE or 0; not looked at.
    opcode: 8
    qpn: 24
    _1: 2
    ds: 6


assert size(Doorbell) == 8


@network
class Cqe:
    """Completion, 64 B."""

    _0: 16
    wqe_id: 16
    _1: 104
    ml_path: 8
    _2: 32
    slid: 16
    flags_rqpn: 32
    _3: 32
    #: 24-bit user index.
    srqn_uidx: 32
    imm: 32
    _4: 32
    byte_cnt: 32
    timestamp: 64
    send_opcode: 8
    qpn: 24
    #: Index of the completed WQE's first block.
    wqe_counter: 16
    signature: 8
    opcode: 4
    format: 2
    se: 1
    owner: 1


assert size(Cqe) == 64


@network
class CqeError:
    """Completion in error, 64 B."""

    _0: 256
    srqn: 32
    _1: 128
    hw_err_synd: 8
    hw_synd_type: 8
    vendor_err_synd: 8
    syndrome: 8
    send_opcode: 8
    qpn: 24
    wqe_counter: 16
    signature: 8
    opcode: 4
    format: 2
    se: 1
    owner: 1


assert size(CqeError) == 64


def blocks_of(ds):
    """WQEBBs that a WQE of `ds` octowords takes; works on integers and on signals (6 bits)."""
    return (ds + 3) >> 2
