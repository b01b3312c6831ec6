"""What the configuration bus writes: contexts of queues and the timing words.

The bus stands for the command interface of a real NIC, which is out of scope. Writing a context
also sets the block's own state of that queue (indices, PSNs) to the start values in it.
"""

from amaranth.hdl import unsigned
from amaranth.lib import data, enum

from .tlp import ADDRESS_BITS

__all__ = [
    "MAX_READS",
    "ConfigWrite",
    "CqContext",
    "MemoryKey",
    "QpState",
    "RqContext",
    "RxContext",
    "SqContext",
    "Table",
    "TxContext",
]

#: READs and atomics that a QP may have outstanding, at most.
MAX_READS = 16


class Table(enum.Enum, shape=4):
    TIMING = 0
    SQ = 1
    TX = 2
    RX = 3
    CQ = 4
    RQ = 5
    RECEIVE_CQ = 6
    #: Memory keys; the index is that of the key, its bits 31:8.
    KEY = 7


class QpState(enum.Enum, shape=3):
    """States of a QP, numbered as verbs do. A QP is in RESET until it has a context, then in RTS;
    the rest of the way there belongs to software.
    """

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    #: Every WQE is completed without being executed.
    ERR = 6


class ConfigWrite(data.Struct):
    """One write on the configuration bus; accepted in the cycle in which it is valid."""

    table: Table
    #: QP or CQ index, or the number of the timing word.
    index: 16
    data: unsigned(512)


class SqContext(data.Struct):
    """Send queue: used by the doorbell and the work-queue engine."""

    valid: 1
    qpn: 24
    #: Address of block 0; 64-byte aligned.
    base: ADDRESS_BITS
    #: log2 of the depth in blocks, 1 to 15.
    depth_log2: 4
    #: Producer index and fetch index at the start.
    start_index: 16
    mtu_log2: 4


class TxContext(data.Struct):
    """Requester side of a connection."""

    valid: 1
    qpn: 24
    peer_qpn: 24
    peer_node: 8
    start_psn: 24
    mtu_log2: 4
    #: Wire port of the QP: its packets leave by it.
    port: 1
    #: Exponent t of the ACK timeout, 4.096 us x 2^t; 0: never.
    ack_timeout: 5
    #: Timeouts and sequence NAKs in succession that are borne, without progress in between.
    retry_count: 3
    #: The same for RNR NAKs; 7: any number.
    rnr_retry: 3
    #: READs and atomics that may be outstanding, 1 to 16.
    max_reads: 5


class RxContext(data.Struct):
    """Responder side of a connection."""

    valid: 1
    qpn: 24
    peer_qpn: 24
    peer_node: 8
    expected_psn: 24
    start_msn: 24
    mtu_log2: 4
    #: Wire port of the QP: its ACKs leave by it.
    port: 1
    #: Code of the wait that an RNR NAK asks for.
    rnr_timer: 5
    #: Atomics whose answers are kept, 1 to 16.
    max_reads: 5


class RqContext(data.Struct):
    """Receive queue of the QP with the same index."""

    valid: 1
    qpn: 24
    #: Address of WQE 0; 64-byte aligned.
    base: ADDRESS_BITS
    #: log2 of the depth in WQEs, 1 to 15, and of the bytes of each, 4 to 8.
    depth_log2: 4
    stride_log2: 4
    #: Address of the receive word of the doorbell record.
    record: ADDRESS_BITS
    #: Index of the next WQE.
    start_index: 16


class CqContext(data.Struct):
    """Completion queue of the QP with the same index (one table for what it sends, one for what it
    receives).
    """

    valid: 1
    qpn: 24
    #: Address of entry 0; 64-byte aligned.
    base: ADDRESS_BITS
    #: log2 of the depth in CQEs.
    depth_log2: 5
    #: Entry 0 is rewritten in place.
    collapsed: 1
    start_index: 24


class MemoryKey(data.Struct):
    """A region of memory, and who may do what in it. One key serves as lkey and as rkey."""

    valid: 1
    #: Bits 7:0 of the key; those of an older key of the same index differ.
    variant: 8
    #: Protection domain.
    pd: 24
    #: First byte, and bytes. The region may end at 2^64, not beyond.
    base: 64
    length: 64
    #: Local reads are always allowed.
    local_write: 1
    remote_read: 1
    remote_write: 1
    remote_atomic: 1


for _context in (SqContext, TxContext, RxContext, RqContext, CqContext, MemoryKey):
    assert data.Layout.cast(_context).size <= 512
