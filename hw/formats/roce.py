"""RoCEv2 transport headers, and the beat in which a packet travels between NICs.

Ref: InfiniBand Architecture Specification vol. 1, ch. 9 (transport layer); RoCEv2 annex A17.
"""

from amaranth.hdl import unsigned
from amaranth.lib import data, enum

from .layout import network, size

__all__ = ["ACK_SYNDROME", "Aeth", "Bth", "Extended", "Reth", "RoceOpcode", "WireBeat"]

#: AETH syndrome of a plain ACK with unlimited credits.
ACK_SYNDROME = 0x1F


class RoceOpcode(enum.Enum, shape=8):
    """RC opcodes."""

    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_ONLY = 0x0A
    ACK = 0x11


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

#: The extended header of a packet: `Reth`, or `Aeth` in its low 32 bits, or nothing.
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
    #: Payload bytes of the whole packet; valid in the first beat.
    length: 13
    #: Node the packet goes to.
    dest: 8
    #: Sideband for the event log: sender's QP and WQE it belongs to (decision 5). Steers nothing.
    qp: 12
    wqe_index: 16
