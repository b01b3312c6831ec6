"""Where things lie in a node's memories, and the bus addresses by which devices reach them.

A memory has 64 GiB of address space, of which only what is touched takes room: it keeps the low 36
bits of a bus address (who owns an address: `hw.formats.tlp.claims`). Offsets are the same in GPU
and host memory, so that a queue can live in either.
"""

from hw.formats.command import MEMORIES
from hw.formats.mlx5 import BLOCK_BYTES, UAR_PAGE_BYTES, UAR_REGISTER_OFFSET
from hw.formats.tlp import BAR_SHIFT, Port

__all__ = [
    "CHANNEL",
    "COMPLETE",
    "CQ",
    "CQ_RECORD",
    "DATA",
    "QUIET_ACK",
    "QUIET_ISSUE",
    "RECEIVE_CQ",
    "RECEIVE_CQ_RECORD",
    "RECEIVE_STRIDE",
    "RECORD",
    "RQ",
    "SQ",
    "bus",
    "cq_offset",
    "receive_cq_offset",
    "record_offset",
    "rq_offset",
    "sq_offset",
    "uar_register",
]

#: Memory name to the device that owns its addresses.
_OWNERS = {name: Port[name.upper()] for name in MEMORIES}

#: Regions that scenarios name lie here, up to 32 GiB; what software needs for itself lies above.
DATA = 0
#: Words that a proxy and its GPU share, each in a line of its own.
COMPLETE, QUIET_ISSUE, QUIET_ACK = 0x8_0000_1000, 0x8_0000_1040, 0x8_0000_1080
#: Request channel of the proxy.
CHANNEL = 0x8_1000_0000
#: Send queues, completion queues, doorbell records.
SQ, CQ, RECORD = 0xA_0000_0000, 0xC_0000_0000, 0xE_0000_0000
#: Receive queues and their completion queues; bytes of a receive WQE.
RQ, RECEIVE_CQ, RECEIVE_STRIDE = 0xB_0000_0000, 0xD_0000_0000, 64
#: The CQs' records lie in the line of their QP's.
CQ_RECORD, RECEIVE_CQ_RECORD = 32, 48


def bus(memory, offset):
    """Bus address of an offset in the memory named."""
    return _OWNERS[memory].value << BAR_SHIFT | offset


def sq_offset(qp, depth):
    """Offset of a QP's send queue (depth in blocks)."""
    return SQ + qp * depth * BLOCK_BYTES


def cq_offset(qp, depth):
    """Offset of a QP's completion queue (depth in CQEs)."""
    return CQ + qp * depth * 64


def rq_offset(qp, depth):
    """Offset of a QP's receive queue (depth in WQEs)."""
    return RQ + qp * depth * RECEIVE_STRIDE


def receive_cq_offset(qp, depth):
    """Offset of the completion queue of what a QP receives (depth in CQEs)."""
    return RECEIVE_CQ + qp * depth * 64


def record_offset(qp):
    """Offset of a QP's doorbell record, one per line."""
    return RECORD + qp * 64


def uar_register(page, offset=0):
    """Bus address of the first doorbell register of a UAR page, plus `offset`."""
    return Port.NIC.value << BAR_SHIFT | page * UAR_PAGE_BYTES + UAR_REGISTER_OFFSET + offset
