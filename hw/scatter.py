"""Puts the payload of SENDs where the segments of their receive WQEs say."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats import mlx5
from .formats.dma import Placement, WriteRequest
from .formats.tlp import MarkKind
from .lib.align import Line, Realigner
from .lib.stream import Queue, connect, skid
from .qp_table import QpTable

__all__ = ["Scatter"]


class _Cursor(data.Struct):
    """Where the next byte of a QP's message goes."""

    #: Segment of its WQE, and bytes of it that are filled.
    number: 4
    filled: 31


class Scatter(wiring.Component):
    """Cuts the payload of SENDs at the ends of segments, and asks for a write of each run.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    placements : In(stream of `Placement`)
        Those with `scatter`. The WQE has room for their bytes; segments of 0 bytes are passed over.
    lines : In(stream of `Line`)
        Their payload, from lane 0; `last` ends a packet.
    restart : In(`valid`, `qp`)
        The QP has another WQE, which is empty. Not while it has placements.
    number : Out(4)
        Look-up: segment of the WQE of the first placement's QP.
    segment : In(`mlx5.Data`)
        The answer (combinational).
    writes : Out(stream of `WriteRequest`)
        One per run.
    lines_out : Out(stream of `Line`)
        The bytes of `writes`, in the lanes of its address; `last` ends a run.
    idle : Out(1)
        Nothing is held: all bytes of the placements that were taken have left.

    Timing
    ------
    A run's write is offered 1 cycle after its placement or after the last bytes of the run before
    were taken in, its first line 1 cycle later. One line per cycle; each run takes one more cycle,
    and another if its bytes spill into one more line. A segment of 0 bytes takes a cycle.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "placements": In(stream.Signature(Placement)),
                "lines": In(stream.Signature(Line)),
                "restart": In(wiring.Signature({"valid": Out(1), "qp": Out(12)})),
                "number": Out(4),
                "segment": In(mlx5.Data),
                "writes": Out(stream.Signature(WriteRequest)),
                "lines_out": Out(stream.Signature(Line)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.requests = requests = Queue(WriteRequest, 4)
        m.submodules.realigner = realigner = Realigner()
        m.submodules.buffer = buffer = skid(Line)
        connect(m, requests.o, self.writes)
        connect(m, realigner.o, buffer.i)
        connect(m, buffer.o, self.lines_out)

        # The next run: what is left of the packet, or of the segment. `run` bytes of the run before
        # are still to come.
        head, length = self.placements.payload, self.placements.payload.write.length
        cursors = QpTable(m, "cursors", _Cursor, self._structure)
        cursor, moved = cursors.read(head.qp), Signal(_Cursor)
        placed, run, lane = Signal(13), Signal(13), Signal(6)
        left, room, size = Signal(13), Signal(31), Signal(13)
        fits, opens, skips = Signal(), Signal(), Signal()
        m.d.comb += [
            self.number.eq(cursor.number),
            left.eq(length - placed),
            room.eq(self.segment.byte_count - cursor.filled),
            fits.eq(left <= room),
            size.eq(Mux(fits, left, room)),
            skips.eq(self.placements.valid & (run == 0) & (left != 0) & (room == 0)),
            requests.i.valid.eq(self.placements.valid & (run == 0) & (left != 0) & (room != 0)),
            opens.eq(requests.i.valid & requests.i.ready),
            requests.i.payload.address.eq(self.segment.address + cursor.filled),
            requests.i.payload.length.eq(size),
            requests.i.payload.mark.eq(head.write.mark),
            moved.number.eq(cursor.number + skips),
            moved.filled.eq(Mux(skips, 0, cursor.filled + size)),
            self.placements.ready.eq((run == 0) & (left == 0)),
        ]
        # Only the last write of a message's last packet ends the message.
        with m.If(~fits & (head.write.mark.kind == MarkKind.PAYLOAD_LAST)):
            m.d.comb += requests.i.payload.mark.kind.eq(MarkKind.PAYLOAD)
        restart = self.restart
        cursors.write(head.qp, moved, opens | skips)
        cursors.write(restart.qp, 0, restart.valid)
        with m.If(opens):
            m.d.sync += [placed.eq(placed + size), lane.eq(requests.i.payload.address)]
        with m.If(self.placements.valid & self.placements.ready):
            m.d.sync += placed.eq(0)

        # The part of a line that still belongs to the run.
        line, part, used = self.lines.payload, realigner.i.payload, Signal(6)
        in_line, ends_line, taken = Signal(7), Signal(), Signal()
        m.d.comb += [
            in_line.eq(line.count - used),
            ends_line.eq(in_line <= run),
            part.data.eq(line.data),
            part.lane.eq(line.lane + used),
            part.count.eq(Mux(ends_line, in_line, run)),
            part.last.eq(in_line >= run),
            realigner.start.eq(lane),
            realigner.i.valid.eq(self.lines.valid & (run != 0)),
            taken.eq(realigner.i.valid & realigner.i.ready),
            self.lines.ready.eq(taken & ends_line),
        ]
        with m.If(opens):
            m.d.sync += run.eq(size)
        with m.Elif(taken):
            m.d.sync += [
                run.eq(run - part.count),
                used.eq(Mux(ends_line, 0, used + part.count)),
            ]
        m.d.comb += self.idle.eq((run == 0) & requests.empty & realigner.empty & buffer.empty)
        return m
