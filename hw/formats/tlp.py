"""PCIe TLP headers, and the beats in which TLPs travel inside a node (decision 4).

Ref: PCI Express Base Specification, ch. 2 (transaction layer). Header layouts are big-endian
as in the specification's figures; the fabric carries their content in the beat structs below.
"""

from amaranth.hdl import unsigned
from amaranth.lib import data, enum

from .layout import network, size

__all__ = [
    "ADDRESS_BITS",
    "BAR_SHIFT",
    "CompletionBeat",
    "CompletionHeader",
    "Mark",
    "MarkKind",
    "MemoryHeader",
    "Port",
    "PostedBeat",
    "ReadBeat",
    "TlpClass",
    "claims",
]

#: Bus addresses. Software's own 64-bit addresses lose bits 63:48.
ADDRESS_BITS = 48
#: Where the window of a device begins: its `Port` above this many bits.
BAR_SHIFT = 44


class Port(enum.Enum, shape=2):
    """Devices of a node."""

    HOST = 0
    GPU = 1
    NIC = 2


#: Bits of an address within a device's window: 64 GiB of GPU memory, 4096 doorbell pages.
_WINDOW_BITS = {Port.GPU: 36, Port.NIC: 24}


def claims(port, address):
    """Whether an address (integer or signal) belongs to a device of a node.

    As on PCIe, the GPU and the NIC claim their windows and nothing else, and what nobody claims
    goes upstream: to host memory. So user-space addresses of real software are host memory as they
    stand. A memory keeps the low 36 bits of an address: addresses that differ only above are the
    same bytes.
    """
    if port is Port.HOST:
        return (claims(Port.GPU, address) | claims(Port.NIC, address)) == 0
    bits = _WINDOW_BITS[port]
    return (address >> bits) == port.value << BAR_SHIFT - bits


class TlpClass(enum.Enum, shape=2):
    POSTED = 0
    READ = 1
    COMPLETION = 2


class MarkKind(enum.Enum, shape=4):
    """What a write is, for the event log only (decision 5)."""

    NONE = 0
    WQE = 1
    RECORD = 2
    DOORBELL = 3
    PAYLOAD = 4
    #: Payload of a message's last packet: `index` is the PSN.
    PAYLOAD_LAST = 5
    #: `index` is the WQE index.
    CQE = 6
    REQUEST = 7
    FETCH = 8
    OTHER = 9
    #: A CQE of a receive WQE; `index` is that WQE's.
    RECEIVE_CQE = 10
    #: Read of a receive WQE, or of its doorbell record (`index` is that of the WQE wanted).
    RECEIVE_FETCH = 11
    #: Read for the response to a READ or an atomic of the peer; `index` is its PSN.
    RESPONSE = 12
    #: What a READ or an atomic brings, and its last bytes: `index` is the WQE index.
    LANDED = 13
    LANDED_LAST = 14


class Mark(data.Struct):
    """Sideband that tells which message a transfer belongs to; steers nothing."""

    kind: MarkKind
    #: Local QP index at the emitter.
    qp: 12
    #: WQE index, PSN or message number, by kind.
    index: 24


@network
class MemoryHeader:
    """Memory request with a 64-bit address, 4 DW."""

    fmt: 3
    type: 5
    _0: 1
    tc: 3
    _1: 1
    attr_ido: 1
    _2: 1
    th: 1
    td: 1
    ep: 1
    attr: 2
    at: 2
    length_dw: 10
    requester: 16
    tag: 8
    last_be: 4
    first_be: 4
    address: 62
    _3: 2


assert size(MemoryHeader) == 16


@network
class CompletionHeader:
    """Completion, 3 DW."""

    fmt: 3
    type: 5
    _0: 1
    tc: 3
    _1: 1
    attr_ido: 1
    _2: 2
    td: 1
    ep: 1
    attr: 2
    at: 2
    length_dw: 10
    completer: 16
    status: 3
    bcm: 1
    byte_count: 12
    requester: 16
    tag: 8
    _3: 1
    lower_address: 7


assert size(CompletionHeader) == 12


class PostedBeat(data.Struct):
    """One beat of a memory write; the byte of address a sits in lane a mod 64."""

    data: unsigned(512)
    #: Address of the first byte in this beat.
    address: ADDRESS_BITS
    #: Bytes in this beat, 1 to 64; contiguous, within one line.
    count: 7
    #: Payload bytes of the whole TLP; valid in the first beat.
    length: 13
    first: 1
    last: 1
    mark: Mark


class ReadBeat(data.Struct):
    """A memory read request."""

    address: ADDRESS_BITS
    #: Bytes to read, 1 to 4096.
    length: 13
    requester: Port
    tag: 10
    mark: Mark


class CompletionBeat(data.Struct):
    """One beat of a completion with data; lanes as in `PostedBeat`."""

    data: unsigned(512)
    #: Low bits of the address of the first byte in this beat.
    address: 12
    count: 7
    #: Payload bytes of this TLP; valid in the first beat.
    length: 13
    first: 1
    last: 1
    #: This TLP ends the request.
    final: 1
    requester: Port
    tag: 10
    mark: Mark
