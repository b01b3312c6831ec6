"""Typed events: the only thing that judgement reads beside the final memory (decision 3).

Every event has a number (kind) and a Struct of at most 160 bits, emitted in one place.
`qp` is the local QP context index unless said otherwise.
"""

from amaranth.lib import data

from .context import QpState
from .op import Status
from .tlp import ADDRESS_BITS, Mark, TlpClass

__all__ = [
    "EVENTS",
    "AckReceived",
    "Commit",
    "CqeIssued",
    "DropReason",
    "Dropped",
    "EventKind",
    "FetchRequested",
    "Fetched",
    "PayloadArrived",
    "PayloadRequested",
    "QpStateChanged",
    "ReceiveTaken",
    "Retired",
    "Retransmitted",
    "RetryReason",
    "RingSeen",
    "RxLast",
    "SoftwareEvent",
    "Stall",
    "StallCause",
    "TlpSent",
    "TxFirst",
    "TxLast",
]

from amaranth.lib import enum


class EventKind(enum.Enum, shape=16):
    # Software landmarks, through the trace port; payload SoftwareEvent.
    ISSUE = 1
    WQE_WRITTEN = 2
    RING = 3
    SEEN = 4
    REQUEST_WRITTEN = 5
    PROXY_SEEN = 6
    PROXY_POSTED = 7
    # Hardware.
    RING_SEEN = 16
    FETCH_REQUESTED = 17
    FETCHED = 18
    PAYLOAD_REQUESTED = 19
    PAYLOAD_ARRIVED = 20
    TX_FIRST = 21
    TX_LAST = 22
    RX_LAST = 23
    ACK_RECEIVED = 24
    RETIRED = 25
    CQE_ISSUED = 26
    COMMIT = 27
    TLP_SENT = 28
    DROPPED = 29
    STALL = 30
    RETRANSMITTED = 31
    QP_STATE = 32
    RECEIVE_TAKEN = 33


class DropReason(enum.Enum, shape=8):
    #: A doorbell names a QP that has no context.
    DOORBELL_UNKNOWN_QP = 1
    #: A producer index not within (0, depth] ahead of the fetched one.
    DOORBELL_STALE = 2
    #: A write to a UAR offset that is no doorbell register.
    DOORBELL_OFFSET = 3
    #: A BlueFlame push that was not used, since older WQEs were still to be fetched, or since it
    #: could not be kept. Not an error: its WQE is fetched.
    PUSH_NOT_USED = 4
    #: Packet dropped by a fault slot.
    WIRE_FAULT = 5
    PACKET_UNKNOWN_QP = 6
    #: A request behind a gap: an earlier one is missing.
    PACKET_PSN = 7
    #: An opcode that is not served, or one out of place in its message, or with a wrong length, or
    #: an atomic whose address is not a multiple of its size.
    PACKET_OPCODE = 8
    #: ACK or NAK of a packet that was never sent.
    ACK_UNEXPECTED = 9
    #: A completion for a queue that has no CQ context.
    CQ_UNKNOWN = 10
    #: A DMA engine got bytes that it did not ask for, or lines that do not fit their request.
    #: `info` is the engine: 0 WQE reads, 1 payload reads, 2 writes, 3 reads for READs of the peers,
    #: 4 for their atomics, 5 for receive WQEs; 6 is `landing`, where an operation has other
    #: landings than bytes. Never in a sound machine.
    DMA_LEDGER = 11
    #: A later piece of a push that came in several writes: its WQE is fetched. Not an error.
    PUSH_PIECE = 12
    #: A push of several lines of which not all came, or not in a row: its WQE is fetched. Not an
    #: error.
    PUSH_TORN = 13
    #: ACK or NAK of a packet that was acknowledged before. Not an error.
    ACK_OLD = 16
    #: ACK, NAK or response for a QP in error.
    ACK_QP_ERROR = 17
    #: A sequence or RNR NAK while the QP recovers anyway. Not an error.
    NAK_IGNORED = 18
    #: A send queue was set up anew while the NIC was at work on it. `info` is the index up to which
    #: it had asked for blocks, and in bits 31:16 that up to which they were retired.
    SQ_BUSY = 19
    #: A request that was executed before; it is answered again. Not an error.
    PACKET_DUPLICATE = 24
    #: A request for a QP that refused an earlier one.
    PACKET_QP_ERROR = 25
    #: A READ or an atomic beyond those that may wait for their answers.
    PACKET_READS = 26
    #: A request that needs a receive WQE where there was none. Not an error.
    PACKET_NOT_READY = 27
    #: An atomic that was executed before, but whose answer is kept no more.
    PACKET_FORGOTTEN = 28
    #: A SEND that has more bytes than its receive WQE has room for.
    PACKET_TOO_LONG = 29
    #: An ACK or a response beyond the response of a READ or an atomic that has not come. The first
    #: one tells of the gap. Not an error.
    RESPONSE_MISSING = 32
    #: A response that came before. Not an error.
    RESPONSE_OLD = 33
    #: A response that no READ or atomic waits for.
    RESPONSE_UNEXPECTED = 34
    #: A response of another length or kind than was asked for: its QP goes into error.
    RESPONSE_MISFIT = 35


class StallCause(enum.Enum, shape=8):
    DOORBELL_FIFO = 1
    WINDOW = 2
    WQE_TAGS = 3
    PAYLOAD_TAGS = 4
    PAYLOAD_LINES = 5
    WIRE_CREDITS = 6
    POSTED_CREDITS = 7
    READ_CREDITS = 8
    COMPLETION_CREDITS = 9
    TOTAL_RATE = 10
    WQE_LINES = 11
    RESPONSE_TAGS = 12
    RESPONSE_LINES = 13


class RetryReason(enum.Enum, shape=8):
    """Why packets are sent again."""

    SEQUENCE_NAK = 1
    TIMEOUT = 2
    #: The wait that an RNR NAK asked for is over.
    RNR = 3


class SoftwareEvent(data.Struct):
    #: Message number within the run (unique over the nodes).
    message: 32
    #: QP context index and WQE index; valid from `wqe_written` on.
    qp: 12
    wqe_index: 16
    #: Agent that stamped it.
    agent: 16


class RingSeen(data.Struct):
    """A doorbell was taken in by the work-queue engine (after the doorbell delay)."""

    qp: 12
    #: Producer index after the rule index + ceil(ds/4).
    producer: 16
    #: A BlueFlame push came with it and was used.
    pushed: 1


class FetchRequested(data.Struct):
    qp: 12
    wqe_index: 16
    #: Blocks asked for.
    blocks: 8


class Fetched(data.Struct):
    """All blocks of one WQE are in the NIC."""

    qp: 12
    wqe_index: 16
    blocks: 8
    pushed: 1


class PayloadRequested(data.Struct):
    """First read of a message's payload leaves for the DMA engine."""

    qp: 12
    wqe_index: 16


class PayloadArrived(data.Struct):
    """First beat of a message's payload is at the transmitter (inline: from the WQE)."""

    qp: 12
    wqe_index: 16
    inline: 1


class TxFirst(data.Struct):
    """First beat of a packet on the wire."""

    #: QPN the packet is addressed to (low 12 bits), its PSN and opcode.
    dest_qp: 12
    psn: 24
    opcode: 8
    #: Local QP and WQE (requests).
    qp: 12
    wqe_index: 16
    #: Payload bytes and bytes charged to the wire.
    length: 13
    wire_bytes: 13
    dest: 8
    #: Wire port of the NIC.
    port: 1


class TxLast(data.Struct):
    dest_qp: 12
    psn: 24
    opcode: 8
    qp: 12
    wqe_index: 16
    port: 1


class RxLast(data.Struct):
    """Last beat of a packet arrived at the port (before the receive delay)."""

    qp: 12
    psn: 24
    opcode: 8
    length: 13
    port: 1


class AckReceived(data.Struct):
    """An ACK was processed by the requester (after the receive delay)."""

    qp: 12
    psn: 24
    syndrome: 8


class Retired(data.Struct):
    """A WQE left the send queue; exactly once for each."""

    qp: 12
    wqe_index: 16
    blocks: 5
    signaled: 1
    status: 8


class CqeIssued(data.Struct):
    """The CQE's write was handed to DMA."""

    qp: 12
    wqe_index: 16
    address: 48
    owner: 1
    #: It is of a receive WQE.
    receive: 1


class Commit(data.Struct):
    """Bytes became visible in a memory."""

    #: 0 GPU, 1 host.
    memory: 1
    #: 0 processor store, 1 fabric write.
    fabric: 1
    address: 48
    count: 7
    #: Ends its TLP or store.
    last: 1
    mark: Mark


class TlpSent(data.Struct):
    """A TLP entered a link."""

    #: Link number: 2 x device (Port) + direction (0 up to the switch, 1 down).
    link: 4
    tlp: TlpClass
    payload: 13
    wire: 13
    mark: Mark
    #: First byte; of a completion only the low 12 bits.
    address: ADDRESS_BITS


class Dropped(data.Struct):
    reason: DropReason
    qp: 12
    info: 32


class Stall(data.Struct):
    """A stall ended; emitted in the cycle after its last one."""

    cause: StallCause
    #: Which instance: PCIe link, wire port, or 0.
    where: 4
    cycles: 32
    #: High while the stall lasts (then nothing is logged): the node must not sleep, or cycles would
    #: go uncounted.
    active: 1


class Retransmitted(data.Struct):
    """A QP starts again at its oldest unacknowledged packet (which will be on the wire later)."""

    qp: 12
    psn: 24
    #: WQE that the packet belongs to, and the number of the packet within it.
    wqe_index: 16
    skip: 24
    reason: RetryReason


class QpStateChanged(data.Struct):
    """A QP went into error (`cause`: the status that did it), or was set up again after one."""

    qp: 12
    old: QpState
    new: QpState
    cause: Status


class ReceiveTaken(data.Struct):
    """A message asked for the next receive WQE of its QP, and got it if there was one (`found`)."""

    qp: 12
    wqe_index: 16
    found: 1


#: Payload layout of each kind.
EVENTS = {
    **dict.fromkeys(
        (
            EventKind.ISSUE,
            EventKind.WQE_WRITTEN,
            EventKind.RING,
            EventKind.SEEN,
            EventKind.REQUEST_WRITTEN,
            EventKind.PROXY_SEEN,
            EventKind.PROXY_POSTED,
        ),
        SoftwareEvent,
    ),
    EventKind.RING_SEEN: RingSeen,
    EventKind.FETCH_REQUESTED: FetchRequested,
    EventKind.FETCHED: Fetched,
    EventKind.PAYLOAD_REQUESTED: PayloadRequested,
    EventKind.PAYLOAD_ARRIVED: PayloadArrived,
    EventKind.TX_FIRST: TxFirst,
    EventKind.TX_LAST: TxLast,
    EventKind.RX_LAST: RxLast,
    EventKind.ACK_RECEIVED: AckReceived,
    EventKind.RETIRED: Retired,
    EventKind.CQE_ISSUED: CqeIssued,
    EventKind.COMMIT: Commit,
    EventKind.TLP_SENT: TlpSent,
    EventKind.DROPPED: Dropped,
    EventKind.STALL: Stall,
    EventKind.RETRANSMITTED: Retransmitted,
    EventKind.QP_STATE: QpStateChanged,
    EventKind.RECEIVE_TAKEN: ReceiveTaken,
}

for _layout in EVENTS.values():
    assert data.Layout.cast(_layout).size <= 160
