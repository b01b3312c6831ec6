"""Collects the bytes of messages, from memory and from WQEs, into packets."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.dma import ReadLine, ReadRequest
from .formats.events import EventKind, PayloadArrived, PayloadRequested
from .formats.op import Piece
from .formats.tlp import MarkKind
from .lib.align import Line, Realigner, bytes_to_boundary
from .lib.stream import Queue, connect
from .lib.trace import Probe

__all__ = ["Gather"]


class Cut(data.Struct):
    """A part of a piece whose bytes are on their way: one DMA read request, or inline bytes."""

    inline: 1
    qp: 12
    wqe_index: 16
    mtu_log2: 4
    #: The cut ends its message.
    ends_message: 1


class Gather(wiring.Component):
    """Turns pieces into packet payloads: runs of lines without gaps, at most the MTU long.

    A piece in memory becomes read requests, an inline piece waits in a queue; their bytes are
    joined in the order of the pieces and cut into packets after each MTU bytes of a message, and at
    its end.

    Parameters
    ----------
    structure : Structure
        `payload_lines` cuts may be on their way, of them `payload_tags` inline ones.
    reads_span_packets : bool
        False: a request never reaches past the end of a packet, so a packet that ends within an
        MRRS block makes the next one start with one read more. True: requests are cut at
        4 KiB-aligned addresses only, so a message costs the reads of its run of addresses, at
        any MTU.

    Members
    -------
    pieces : In(stream of `Piece`)
        Taken with the last cut of the piece.
    requests : Out(stream of `ReadRequest`)
        At most 4096 bytes each; the mark is `PAYLOAD` with the WQE index, the context is not used.
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
    A request is offered in the cycle in which its piece is, payload in the cycle in which its line
    is, an inline cut in the cycle after its piece. One cut and one line per cycle; a line that
    holds the end of a packet and the start of the next takes two, as does a packet's last line if
    its bytes spill into one more.
    """

    def __init__(self, structure, *, reads_span_packets=False):
        self._structure, self._reads_span_packets = structure, reads_span_packets
        super().__init__(
            {
                "pieces": In(stream.Signature(Piece)),
                "requests": Out(stream.Signature(ReadRequest)),
                "lines": In(stream.Signature(ReadLine)),
                "payload": Out(stream.Signature(Line)),
                "quiet": Out(1),
                "on_payload_requested": Out(Probe(EventKind.PAYLOAD_REQUESTED, PayloadRequested)),
                "on_payload_arrived": Out(Probe(EventKind.PAYLOAD_ARRIVED, PayloadArrived)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Cuts in order, and the bytes of those that are inline.
        m.submodules.order = order = Queue(Cut, self._structure.payload_lines)
        m.submodules.inline = inline = Queue(Line, self._structure.wqe_lines)
        m.submodules.realigner = realigner = Realigner()

        self._cut(m, order, inline)
        self._join(m, order, inline, realigner)

        connect(m, realigner.o, self.payload)
        inline_next = order.o.valid & order.o.payload.inline
        m.d.comb += self.quiet.eq(~self.requests.valid & ~self.payload.valid & ~inline_next)
        return m

    def _cut(self, m, order, inline):
        """Pieces to cuts."""
        piece, cut = self.pieces.payload, order.i.payload
        # Bytes of the piece that are already in cuts.
        done = Signal(32)
        address, left, length = Signal(64), Signal(32), Signal(13)
        ends_piece, taken = Signal(), Signal()
        m.d.comb += [address.eq(piece.address + done), left.eq(piece.length - done)]
        room = self._room(m, order, address, length, taken)
        m.d.comb += [
            ends_piece.eq(piece.inline | (left <= room)),
            length.eq(Mux(ends_piece, left, room)),
            cut.inline.eq(piece.inline),
            cut.qp.eq(piece.qp),
            cut.wqe_index.eq(piece.wqe_index),
            cut.mtu_log2.eq(piece.mtu_log2),
            cut.ends_message.eq(ends_piece & piece.last),
        ]
        m.d.comb += [
            self.requests.valid.eq(self.pieces.valid & ~piece.inline & order.i.ready),
            self.requests.payload.address.eq(address),
            self.requests.payload.length.eq(length),
            self.requests.payload.mark.kind.eq(MarkKind.PAYLOAD),
            self.requests.payload.mark.qp.eq(piece.qp),
            self.requests.payload.mark.index.eq(piece.wqe_index),
            inline.i.valid.eq(self.pieces.valid & piece.inline & order.i.ready),
            inline.i.payload.data.eq(piece.data),
            inline.i.payload.lane.eq(piece.address[:6]),
            inline.i.payload.count.eq(length),
            taken.eq(
                (inline.i.valid & inline.i.ready) | (self.requests.valid & self.requests.ready)
            ),
            order.i.valid.eq(taken),
            self.pieces.ready.eq(taken & ends_piece),
        ]
        with m.If(taken):
            m.d.sync += done.eq(Mux(ends_piece, 0, done + length))

        # A message that has asked for bytes, or is about to: told when its first request is
        # offered.
        requested = Signal()
        m.d.comb += [
            self.on_payload_requested.valid.eq(self.requests.valid & ~requested),
            self.on_payload_requested.payload.qp.eq(piece.qp),
            self.on_payload_requested.payload.wqe_index.eq(piece.wqe_index),
        ]
        with m.If(taken):
            m.d.sync += requested.eq(~cut.ends_message & (requested | ~piece.inline))
        with m.Elif(self.requests.valid):
            m.d.sync += requested.eq(1)

    def _room(self, m, order, address, length, taken):
        """Most bytes that the next request may have."""
        if self._reads_span_packets:
            return bytes_to_boundary(m, address, Const(12, 4), "to_boundary")
        piece = self.pieces.payload
        # Bytes of the packet that are already in cuts; inline cuts may reach past its end.
        mtu, filled, reached = Signal(13), Signal(13), Signal(13)
        ends_message = order.i.payload.ends_message
        m.d.comb += [mtu.eq(Const(1, 1) << piece.mtu_log2), reached.eq(filled + length)]
        with m.If(taken):
            m.d.sync += filled.eq(Mux(ends_message, 0, Mux(reached >= mtu, reached - mtu, reached)))
        return mtu - filled

    def _join(self, m, order, inline, realigner):
        """Lines of both kinds, in order, to packets."""
        cut, line, part = order.o.payload, Signal(Line), realigner.i.payload
        # `line.last` ends its cut.
        m.d.comb += line.eq(inline.o.payload)
        with m.If(cut.inline):
            m.d.comb += [line.last.eq(1), realigner.i.valid.eq(order.o.valid & inline.o.valid)]
        with m.Else():
            m.d.comb += [
                line.data.eq(self.lines.payload.data),
                line.lane.eq(self.lines.payload.lane),
                line.count.eq(self.lines.payload.count),
                line.last.eq(self.lines.payload.last),
                realigner.i.valid.eq(order.o.valid & self.lines.valid),
            ]

        # The part of the line that still belongs to this packet.
        used, filled = Signal(6), Signal(13)
        left, room = Signal(7), Signal(13)
        ends_line, ends_message, taken = Signal(), Signal(), Signal()
        m.d.comb += [
            left.eq(line.count - used),
            room.eq((Const(1, 1) << cut.mtu_log2) - filled),
            ends_line.eq(left <= room),
            ends_message.eq(ends_line & line.last & cut.ends_message),
            part.data.eq(line.data),
            part.lane.eq(line.lane + used),
            part.count.eq(Mux(ends_line, left, room)),
            part.last.eq(ends_message | (left >= room)),
            realigner.start.eq(0),
            taken.eq(realigner.i.valid & realigner.i.ready),
            inline.o.ready.eq(taken & ends_line & cut.inline),
            self.lines.ready.eq(taken & ends_line & ~cut.inline),
            order.o.ready.eq(taken & ends_line & line.last),
        ]
        with m.If(taken):
            m.d.sync += [
                used.eq(Mux(ends_line, 0, part.count)),
                filled.eq(Mux(part.last, 0, filled + part.count)),
            ]

        # A message whose first line is there: told when it is offered, not when it can be sent.
        arrived = Signal()
        m.d.comb += [
            self.on_payload_arrived.valid.eq(realigner.i.valid & ~arrived),
            self.on_payload_arrived.payload.qp.eq(cut.qp),
            self.on_payload_arrived.payload.wqe_index.eq(cut.wqe_index),
            self.on_payload_arrived.payload.inline.eq(cut.inline),
        ]
        with m.If(taken):
            m.d.sync += arrived.eq(~ends_message)
        with m.Elif(realigner.i.valid):
            m.d.sync += arrived.eq(1)
