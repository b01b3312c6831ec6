"""What a NIC is asked to do and how it ended, free of any vendor's format (decision 6)."""

from amaranth.hdl import unsigned
from amaranth.lib import data, enum

__all__ = [
    "Completion",
    "Landing",
    "Op",
    "Piece",
    "PushLine",
    "Received",
    "Resume",
    "Retirement",
    "Ring",
    "Status",
    "Taken",
    "Verb",
]


class Verb(enum.Enum, shape=4):
    NOP = 0
    WRITE = 1
    WRITE_IMM = 2
    SEND = 3
    SEND_IMM = 4
    READ = 5
    COMPARE_SWAP = 6
    FETCH_ADD = 7
    #: Only bits of a mask are compared and swapped; carries stop at the boundaries of fields.
    MASKED_COMPARE_SWAP = 8
    MASKED_FETCH_ADD = 9
    #: Local read; nothing is sent.
    DUMP = 10


class Status(enum.Enum, shape=8):
    """Completion status; the values are mlx5 syndromes, 0 is success."""

    SUCCESS = 0x00
    LOCAL_LENGTH = 0x01
    LOCAL_QP_OPERATION = 0x02
    LOCAL_PROTECTION = 0x04
    #: The QP was in error before the operation was done.
    FLUSHED = 0x05
    #: The response to a READ or an atomic is not what was asked for.
    BAD_RESPONSE = 0x10
    LOCAL_ACCESS = 0x11
    REMOTE_INVALID_REQUEST = 0x12
    REMOTE_ACCESS = 0x13
    REMOTE_OPERATION = 0x14
    #: The peer did not answer, or asked for the same packets, too often.
    TRANSPORT_RETRY_EXCEEDED = 0x15
    #: The peer was not ready too often.
    RNR_RETRY_EXCEEDED = 0x16


class Op(data.Struct):
    """One operation of a send queue."""

    verb: Verb
    #: QP context index.
    qp: 12
    #: Index of the WQE's first block, and its blocks.
    wqe_index: 16
    blocks: 5
    signaled: 1
    solicited: 1
    #: It waits until earlier READs and atomics of its QP are done.
    fence: 1
    #: Bytes of the message; of an atomic: 4 or 8, the bytes that it works on.
    length: 32
    #: Immediate data of WRITE_IMM and SEND_IMM.
    imm: 32
    #: Packets at its start that the peer has acknowledged: no pieces come for them, and they are
    #: not sent again.
    skip: 24
    raddr: 64
    rkey: 32
    #: Opcode byte of the WQE, returned in the CQE.
    vendor_opcode: 8
    #: Anything but SUCCESS: the WQE is not executed; it has no pieces, is completed so and sends
    #: nothing.
    status: Status


class Piece(data.Struct):
    """A run of a message's bytes: in memory, or inline in lanes of `data`."""

    inline: 1
    #: First byte: bus address, or (inline) its lane in bits 5:0.
    address: 64
    lkey: 32
    #: Bytes; inline at most 64 within one line. Never 0.
    length: 32
    #: Ends the message.
    last: 1
    #: It must not be read before its operation starts.
    fence: 1
    #: log2 of the path MTU.
    mtu_log2: 4
    qp: 12
    wqe_index: 16
    data: unsigned(512)


class Landing(data.Struct):
    """A run of local bytes that the response to a READ or an atomic goes to."""

    qp: 12
    wqe_index: 16
    address: 64
    lkey: 32
    #: Never 0.
    length: 32
    #: Ends the response.
    last: 1


class Received(enum.Enum, shape=2):
    """What a receive WQE was taken for."""

    WRITE_IMM = 0
    SEND = 1
    SEND_IMM = 2


class Taken(data.Struct):
    """Answer of a QP's receive queue, which was asked for its next WQE."""

    qp: 12
    #: Low: none is posted, and none was taken.
    found: 1
    #: Bytes that the WQE's segments have.
    room: 36


class Completion(data.Struct):
    """A retired WQE that is to be reported, of a send queue or (`receive`) a receive queue."""

    qp: 12
    receive: 1
    #: What a receive WQE was taken for, the message's immediate data, and whether its sender asked
    #: for an event.
    received: Received
    imm: 32
    solicited: 1
    wqe_index: 16
    vendor_opcode: 8
    length: 32
    status: Status


class Ring(data.Struct):
    """A doorbell, decoded: send work up to `producer`."""

    #: QP context index and the QPN that was written.
    qp: 12
    qpn: 24
    #: Producer index after the ring, modulo 65536.
    producer: 16
    #: The WQE came with the doorbell (BlueFlame): `blocks` lines follow on the push stream.
    pushed: 1
    #: Index and blocks of the pushed WQE.
    index: 16
    blocks: 3


class PushLine(data.Struct):
    """One 64-byte block of a pushed WQE."""

    data: unsigned(512)
    #: Last block of its push.
    last: 1


class Retirement(data.Struct):
    """A WQE left the send queue; its blocks may be fetched ahead again."""

    qp: 12
    blocks: 5


class Resume(data.Struct):
    """A held QP goes on."""

    qp: 12
    #: From its oldest WQE that is not retired, which is read again; low: from where it stands.
    again: 1
    #: Packets of that WQE that are already acknowledged.
    skip: 24
