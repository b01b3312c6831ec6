"""RoCEv2 transport headers, and the beat in which a packet travels between NICs.

Ref: InfiniBand Architecture Specification vol. 1, ch. 9 (transport layer); RoCEv2 annex A17.
"""

from amaranth.hdl import unsigned
from amaranth.lib import data, enum

from .layout import network, size

__all__ = [
    "ACK_SYNDROME",
    "EXTENSIONS",
    "RESPONSES",
    "Aeth",
    "AethClass",
    "AtomicAckEth",
    "AtomicEth",
    "Bth",
    "Deth",
    "Extended",
    "Ieth",
    "ImmDt",
    "NakCode",
    "Reth",
    "RoceOpcode",
    "WireBeat",
]

#: AETH syndrome of a plain ACK with unlimited credits.
ACK_SYNDROME = 0x1F


class AethClass(enum.Enum, shape=3):
    """Bits 7:5 of a syndrome."""

    ACK = 0
    #: Receiver not ready; bits 4:0 are the timer code.
    RNR = 1
    NAK = 3


class NakCode(enum.Enum, shape=5):
    """Bits 4:0 of the syndrome of a NAK."""

    SEQUENCE = 0
    INVALID_REQUEST = 1
    REMOTE_ACCESS = 2
    REMOTE_OPERATION = 3


class RoceOpcode(enum.Enum, shape=8):
    """Opcodes of the reliable connection, and the two of other services that captures hold."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_IMM = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_IMM = 0x05
    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_LAST_IMM = 0x09
    WRITE_ONLY = 0x0A
    WRITE_ONLY_IMM = 0x0B
    READ_REQUEST = 0x0C
    READ_RESPONSE_FIRST = 0x0D
    READ_RESPONSE_MIDDLE = 0x0E
    READ_RESPONSE_LAST = 0x0F
    READ_RESPONSE_ONLY = 0x10
    ACK = 0x11
    ATOMIC_ACK = 0x12
    COMPARE_SWAP = 0x13
    FETCH_ADD = 0x14
    SEND_LAST_INV = 0x16
    SEND_ONLY_INV = 0x17
    #: Masked atomics: of the range that is left to manufacturers (docs/verbs.md).
    MASKED_COMPARE_SWAP = 0xD3
    MASKED_FETCH_ADD = 0xD4
    #: Unreliable datagram, of which connection managers make use.
    UD_SEND_ONLY = 0x64
    #: Congestion notification.
    CNP = 0x81


@network
class Bth:
    """Base transport header."""

    opcode: 8
    solicited: 1
    migration: 1
    pad: 2
    version: 4
    pkey: 16
    fecn: 1
    becn: 1
    _0: 6
    dest_qp: 24
    ack_request: 1
    _1: 7
    psn: 24


assert size(Bth) == 12


@network
class Reth:
    """RDMA extended header: FIRST and ONLY packets of a WRITE."""

    va: 64
    rkey: 32
    #: Length of the whole message.
    length: 32


assert size(Reth) == 16


@network
class Aeth:
    """ACK extended header; in a beat it stands in the last 4 of the 16 extended bytes."""

    syndrome: 8
    msn: 24


assert size(Aeth) == 4


@network
class AtomicEth:
    """Atomic extended header."""

    va: 64
    rkey: 32
    #: Value to swap in, or to add.
    swap_add: 64
    compare: 64


assert size(AtomicEth) == 28


@network
class AtomicAckEth:
    """What an atomic found."""

    original: 64


assert size(AtomicAckEth) == 8


@network
class ImmDt:
    """Immediate data."""

    immediate: 32


assert size(ImmDt) == 4


@network
class Ieth:
    """Key that a SEND invalidates."""

    rkey: 32


assert size(Ieth) == 4


@network
class Deth:
    """Datagram extended header."""

    qkey: 32
    _0: 8
    source_qp: 24


assert size(Deth) == 8

#: Opcode to the headers between BTH and payload, in order; an opcode that is not here has none.
EXTENSIONS = {
    RoceOpcode.SEND_LAST_IMM: (ImmDt,),
    RoceOpcode.SEND_ONLY_IMM: (ImmDt,),
    RoceOpcode.WRITE_FIRST: (Reth,),
    RoceOpcode.WRITE_LAST_IMM: (ImmDt,),
    RoceOpcode.WRITE_ONLY: (Reth,),
    RoceOpcode.WRITE_ONLY_IMM: (Reth, ImmDt),
    RoceOpcode.READ_REQUEST: (Reth,),
    RoceOpcode.READ_RESPONSE_FIRST: (Aeth,),
    RoceOpcode.READ_RESPONSE_LAST: (Aeth,),
    RoceOpcode.READ_RESPONSE_ONLY: (Aeth,),
    RoceOpcode.ACK: (Aeth,),
    RoceOpcode.ATOMIC_ACK: (Aeth, AtomicAckEth),
    RoceOpcode.COMPARE_SWAP: (AtomicEth,),
    RoceOpcode.FETCH_ADD: (AtomicEth,),
    RoceOpcode.MASKED_COMPARE_SWAP: (AtomicEth,),
    RoceOpcode.MASKED_FETCH_ADD: (AtomicEth,),
    RoceOpcode.SEND_LAST_INV: (Ieth,),
    RoceOpcode.SEND_ONLY_INV: (Ieth,),
    RoceOpcode.UD_SEND_ONLY: (Deth,),
}
#: What a responder sends; every other opcode of the reliable connection is a request. (In an order:
#: what is elaborated from a set differs from process to process.)
RESPONSES = (
    RoceOpcode.READ_RESPONSE_FIRST,
    RoceOpcode.READ_RESPONSE_MIDDLE,
    RoceOpcode.READ_RESPONSE_LAST,
    RoceOpcode.READ_RESPONSE_ONLY,
    RoceOpcode.ACK,
    RoceOpcode.ATOMIC_ACK,
)

#: The extended header of a packet: `Reth` (of an atomic, too: its `length` is 4 or 8 and its
#: operands are the beat's payload, as they stand in the WQE), or `Aeth` in its low 32 bits, or
#: nothing. What an atomic ACK carries of memory is payload, too.
Extended = unsigned(128)


class WireBeat(data.Struct):
    """One beat of a packet. Payload starts at lane 0 of the first beat and has no gaps.

    A packet without payload is one beat of count 0.
    """

    data: unsigned(512)
    #: Payload bytes in this beat, 0 to 64.
    count: 7
    first: 1
    last: 1
    #: Valid in the first beat.
    bth: Bth
    ext: Extended
    #: Immediate data, where the opcode has it; valid in the first beat.
    imm: 32
    #: Payload bytes of the whole packet; valid in the first beat.
    length: 13
    #: Node the packet goes to.
    dest: 8
    #: Wire port of the sender's NIC that it leaves by.
    port: 1
    #: Sideband for the event log: sender's QP and WQE it belongs to (decision 5). Steers nothing.
    qp: 12
    wqe_index: 16
