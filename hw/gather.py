"""Collects the bytes of messages, from memory and from WQEs, into packets."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.dma import ReadLine, ReadRequest
from .formats.events import EventKind, PayloadArrived, PayloadRequested
from .formats.op import Piece
from .formats.tlp import MarkKind
from .lib.align import Line, Realigner
from .lib.stream import Queue, connect
from .lib.trace import Probe

__all__ = ["Gather"]


class Tag(data.Struct):
    """What the lines of a cut belong to; the context of a DMA read."""

    qp: 12
    wqe_index: 16
    #: The cut ends its packet, its message.
    ends_packet: 1
    ends_message: 1


class InlineCut(data.Struct):
    """Inline bytes of one packet, in the lanes where the WQE has them."""

    tag: Tag
    line: Line


class Gather(wiring.Component):
    """Turns pieces into packet payloads: runs of lines without gaps, at most the MTU long.

    Pieces are cut so that no cut crosses the end of a packet: after each MTU bytes of a message, and at its end. A cut from
    memory becomes one DMA read request, an inline cut waits in a queue; they leave in the order of the pieces.

    Parameters
    ----------
    structure : Structure
        `payload_lines` cuts may be on their way, of them `payload_tags` inline ones.

    Members
    -------
    pieces : In(stream of `Piece`)
        Taken with the last cut of the piece.
    requests : Out(stream of `ReadRequest`)
        At most 4096 bytes each; the mark is `PAYLOAD` with the WQE index.
    lines : In(stream of `ReadLine`)
        Answers, in order.
    payload : Out(stream of `Line`)
        Per packet full lines from lane 0; `last` marks the end of a packet.
    quiet : Out(1)
    on_payload_requested : Out(Probe)
        Once per message: its first DMA request was taken.
    on_payload_arrived : Out(Probe)
        Once per message: its first line, of whichever kind, was taken in.

    Timing
    ------
    A request is offered in the cycle in which its piece is, payload in the cycle in which its line is; an inline cut in the
    cycle after its piece. One cut and one line per cycle; a packet whose lines spill over by their lanes takes one more cycle.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__({
            "pieces": In(stream.Signature(Piece)),
            "requests": Out(stream.Signature(ReadRequest)),
            "lines": In(stream.Signature(ReadLine)),
            "payload": Out(stream.Signature(Line)),
            "quiet": Out(1),
            "on_payload_requested": Out(Probe(EventKind.PAYLOAD_REQUESTED, PayloadRequested)),
            "on_payload_arrived": Out(Probe(EventKind.PAYLOAD_ARRIVED, PayloadArrived)),
        })

    def elaborate(self, platform):
        m = Module()
        # Which kind the next cut in order is (1: inline), and the bytes of those that are.
        m.submodules.order = order = Queue(1, self._structure.payload_lines)
        m.submodules.inline = inline = Queue(InlineCut, self._structure.payload_tags)
        m.submodules.realigner = realigner = Realigner()

        self._cut(m, order, inline)
        self._join(m, order, inline, realigner)

        connect(m, realigner.o, self.payload)
        inline_next = order.o.valid & order.o.payload
        m.d.comb += self.quiet.eq(~self.requests.valid & ~self.payload.valid & ~inline_next)
        return m

    def _cut(self, m, order, inline):
        """Pieces to cuts."""
        piece = self.pieces.payload
        #: Bytes of the piece, and of the packet, that are already in cuts.
        done, filled = Signal(32), Signal(13)
        address, left, room, length = Signal(64), Signal(32), Signal(13), Signal(13)
        ends_piece, taken = Signal(), Signal()
        tag = Signal(Tag)
        m.d.comb += [
            address.eq(piece.address + done),
            left.eq(piece.length - done),
            room.eq((Const(1, 1) << piece.mtu_log2) - filled),
            ends_piece.eq(left <= room),
            length.eq(Mux(ends_piece, left, room)),
            tag.qp.eq(piece.qp),
            tag.wqe_index.eq(piece.wqe_index),
            tag.ends_message.eq(ends_piece & piece.last),
            tag.ends_packet.eq(tag.ends_message | (length == room)),
        ]
        m.d.comb += [
            self.requests.valid.eq(self.pieces.valid & ~piece.inline & order.i.ready),
            self.requests.payload.address.eq(address),
            self.requests.payload.length.eq(length),
            self.requests.payload.context.eq(tag.as_value()),
            self.requests.payload.mark.kind.eq(MarkKind.PAYLOAD),
            self.requests.payload.mark.qp.eq(piece.qp),
            self.requests.payload.mark.index.eq(piece.wqe_index),
            inline.i.valid.eq(self.pieces.valid & piece.inline & order.i.ready),
            inline.i.payload.tag.eq(tag),
            inline.i.payload.line.data.eq(piece.data),
            inline.i.payload.line.lane.eq(address),
            inline.i.payload.line.count.eq(length),
            inline.i.payload.line.last.eq(tag.ends_packet),
            taken.eq(Mux(piece.inline, inline.i.ready & inline.i.valid,
                         self.requests.ready & self.requests.valid)),
            order.i.valid.eq(taken),
            order.i.payload.eq(piece.inline),
            self.pieces.ready.eq(taken & ends_piece),
        ]
        with m.If(taken):
            m.d.sync += [
                done.eq(Mux(ends_piece, 0, done + length)),
                filled.eq(Mux(tag.ends_packet, 0, filled + length)),
            ]

        requested = Signal()
        m.d.comb += [
            self.on_payload_requested.valid.eq(taken & ~piece.inline & ~requested),
            self.on_payload_requested.payload.qp.eq(piece.qp),
            self.on_payload_requested.payload.wqe_index.eq(piece.wqe_index),
        ]
        with m.If(taken):
            m.d.sync += requested.eq(~tag.ends_message & (requested | ~piece.inline))

    def _join(self, m, order, inline, realigner):
        """Lines of both kinds, in order, to packets."""
        tag, line = Signal(Tag), realigner.i.payload
        ends_cut, taken = Signal(), Signal()
        with m.If(order.o.payload):
            m.d.comb += [
                tag.eq(inline.o.payload.tag),
                line.eq(inline.o.payload.line),
                ends_cut.eq(1),
                realigner.i.valid.eq(order.o.valid & inline.o.valid),
                inline.o.ready.eq(taken),
            ]
        with m.Else():
            m.d.comb += [
                tag.eq(self.lines.payload.context),
                line.data.eq(self.lines.payload.data),
                line.lane.eq(self.lines.payload.lane),
                line.count.eq(self.lines.payload.count),
                line.last.eq(self.lines.payload.last & tag.ends_packet),
                ends_cut.eq(self.lines.payload.last),
                realigner.i.valid.eq(order.o.valid & self.lines.valid),
                self.lines.ready.eq(order.o.valid & realigner.i.ready),
            ]
        m.d.comb += [
            realigner.start.eq(0),
            taken.eq(realigner.i.valid & realigner.i.ready),
            order.o.ready.eq(taken & ends_cut),
        ]

        # Within a message whose first line has been seen.
        arrived = Signal()
        m.d.comb += [
            self.on_payload_arrived.valid.eq(taken & ~arrived),
            self.on_payload_arrived.payload.qp.eq(tag.qp),
            self.on_payload_arrived.payload.wqe_index.eq(tag.wqe_index),
            self.on_payload_arrived.payload.inline.eq(order.o.payload),
        ]
        with m.If(taken):
            m.d.sync += arrived.eq(~(ends_cut & tag.ends_message))


assert data.Layout.cast(Tag).size <= 32
