"""The NIC's DMA write engine: lines become TLPs."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.dma import WriteRequest
from .formats.tlp import MarkKind, PostedBeat
from .lib.align import Line, bytes_to_boundary
from .lib.arbiter import Arbiter

__all__ = ["DmaWrite"]

#: Marks that belong to the end of a message, and what the TLPs before it carry.
_LAST_MARKS = {
    MarkKind.PAYLOAD_LAST: MarkKind.PAYLOAD,
    MarkKind.LANDED_LAST: MarkKind.LANDED,
}


class DmaWrite(wiring.Component):
    """Writes lines to memory over PCIe, as TLPs cut at MPS-aligned addresses.

    The clients take turns, request by request; a request is never mixed with another. A client
    counts once its request and its first line are both there. Line i of a request holds the bytes
    of the i-th 64-byte line it touches, in their lanes. A mark `PAYLOAD_LAST` stays on the last TLP
    of its request only (the others carry `PAYLOAD`), so that the commit of that TLP is the end of
    the message; so do `LANDED_LAST` and `LANDED`.

    Parameters
    ----------
    clients : int
        At least 2.

    Members
    -------
    requests : In(array of `clients` streams of `WriteRequest`)
        Taken with the last line of the request.
    lines : In(array of `clients` streams of `Line`)
    mps_log2 : In(4)
        6 to 12.
    posted : Out(stream of `PostedBeat`)
    quiet : Out(1)
    error : Out(1)
        Sticky: the lane or count of a line was not what its request says.

    Timing
    ------
    Combinational from input to output; one beat per cycle, without a gap between requests.
    """

    def __init__(self, clients):
        if clients < 2:
            raise ValueError(f"clients of a write engine: allowed from 2, not {clients}")
        self._clients = clients
        super().__init__(
            {
                "requests": In(stream.Signature(WriteRequest)).array(clients),
                "lines": In(stream.Signature(Line)).array(clients),
                "mps_log2": In(4),
                "posted": Out(stream.Signature(PostedBeat)),
                "quiet": Out(1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        offer = data.StructLayout({"request": WriteRequest, "line": Line, "last": 1})
        m.submodules.arbiter = arbiter = Arbiter(offer, self._clients, packets=True)
        #: Bytes of the chosen request that are done; `last` of a stream that is not chosen is not
        #: looked at.
        done = Signal(13)

        for request, line, port in zip(self.requests, self.lines, arbiter.i, strict=True):
            left = Signal(13)
            m.d.comb += [
                left.eq(request.payload.length - done),
                port.payload.request.eq(request.payload),
                port.payload.line.eq(line.payload),
                port.payload.last.eq(left <= 64 - (request.payload.address + done)[:6]),
                port.valid.eq(request.valid & line.valid),
                line.ready.eq(port.ready & request.valid),
                request.ready.eq(port.ready & line.valid & port.payload.last),
            ]

        # Where the chosen line lies in its request and its TLP.
        chosen, beat = arbiter.o.payload, self.posted.payload
        left, in_line = Signal(13), Signal(7)
        last_tlp = Signal()
        to_boundary = bytes_to_boundary(m, beat.address, self.mps_log2, "to_boundary")
        m.d.comb += [
            left.eq(chosen.request.length - done),
            in_line.eq(64 - beat.address[:6]),
            last_tlp.eq(left <= to_boundary),
            beat.address.eq(chosen.request.address + done),
            beat.data.eq(chosen.line.data),
            beat.count.eq(Mux(chosen.last, left, in_line)),
            beat.length.eq(Mux(last_tlp, left, to_boundary)),
            beat.first.eq((done == 0) | (to_boundary == Const(1, 1) << self.mps_log2)),
            beat.last.eq(chosen.last | (to_boundary == in_line)),
            beat.mark.eq(chosen.request.mark),
            self.posted.valid.eq(arbiter.o.valid),
            arbiter.o.ready.eq(self.posted.ready),
            self.quiet.eq(~self.posted.valid),
        ]
        for last, other in _LAST_MARKS.items():
            with m.If((chosen.request.mark.kind == last) & ~last_tlp):
                m.d.comb += beat.mark.kind.eq(other)

        with m.If(self.posted.valid & self.posted.ready):
            m.d.sync += done.eq(Mux(chosen.last, 0, done + beat.count))
            with m.If((chosen.line.count != beat.count) | (chosen.line.lane != beat.address[:6])):
                m.d.sync += self.error.eq(1)
        return m
