"""What the NIC's blocks ask of its DMA engines."""

from amaranth.hdl import unsigned
from amaranth.lib import data

from .tlp import ADDRESS_BITS, Mark

__all__ = ["ReadLine", "ReadRequest", "WriteRequest"]


class ReadRequest(data.Struct):
    """Read `length` bytes; the lines come back in the order of the requests."""

    address: ADDRESS_BITS
    #: 1 to 4096; may cross 4 KiB (the engine splits).
    length: 13
    #: Returned with every line of the request.
    context: 32
    mark: Mark


class ReadLine(data.Struct):
    """One line of a finished read; bytes in the lanes of their address."""

    data: unsigned(512)
    lane: 6
    count: 7
    #: Last line of the request.
    last: 1
    context: 32


class WriteRequest(data.Struct):
    """Announces a write; its lines follow on the stream beside it, in their address's lanes."""

    address: ADDRESS_BITS
    #: 1 to 4096.
    length: 13
    mark: Mark
