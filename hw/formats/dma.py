"""What the NIC's blocks ask of its DMA engines."""

from amaranth.hdl import unsigned
from amaranth.lib import data

from .op import Received, Status
from .tlp import ADDRESS_BITS, Mark

__all__ = ["Placement", "ReadLine", "ReadRequest", "WriteRequest"]


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


class Placement(data.Struct):
    """What is to be done with the bytes of a packet, and with the receive WQE that its QP took.

    Its lines follow on the stream beside it: in the lanes of the address, or (`scatter`) from lane
    0; none if there are no bytes.
    """

    #: Where the bytes go; of a `scatter` only `length` and `mark` are looked at.
    write: WriteRequest
    qp: 12
    #: The bytes go to the QP's receive WQE, behind those that went there before.
    scatter: 1
    #: Once the bytes have gone to the write engine, the receive WQE is reported.
    completes: 1
    #: As in `Completion`; valid with `completes`.
    received: Received
    imm: 32
    solicited: 1
    #: Bytes of the whole message.
    message_length: 32
    status: Status
