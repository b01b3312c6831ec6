"""Receive queues: receive WQEs are taken, filled and completed."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import RqContext
from .formats.dma import Placement, ReadLine, ReadRequest, WriteRequest
from .formats.events import EventKind, ReceiveTaken
from .formats.op import Completion, Taken
from .lib.align import Line
from .lib.stream import connect
from .lib.trace import Probe
from .qp_context import ConfigPort, ContextPort
from .receive_taker import ReceiveTaker
from .scatter import Scatter

__all__ = ["ReceiveQueue"]


class ReceiveQueue(wiring.Component):
    """Stands between responder and write engine: gives out receive WQEs, puts the payload of SENDs
    into them, and reports them behind all that went before.

    See `ReceiveTaker` for how a WQE is taken and `Scatter` for how one is filled.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    take : In(stream of 12), taken : Out(stream of `Taken`)
        As in `ReceiveTaker`. Of one QP, a WQE is taken after the placements of the message that
        took the one before.
    placements : In(stream of `Placement`)
    lines : In(stream of `Line`)
        Their bytes, in order: in the lanes of the address or, with `scatter`, from lane 0; `last`
        ends a placement.
    config : In(ConfigPort)
    rq : Out(ContextPort(RqContext))
    requests : Out(stream of `ReadRequest`), fetched : In(stream of `ReadLine`)
        Reads of records and WQEs.
    writes : Out(stream of `WriteRequest`), lines_out : Out(stream of `Line`)
        As from the responder; both are taken independently.
    completions : Out(stream of `Completion`)
    settled : Out(1)
        All bytes of the placements that came have gone to the write engine, and their completions
        have left.
    quiet : Out(1)
    on_taken : Out(Probe)

    Timing
    ------
    A placement without `scatter` and its lines pass in the cycle in which they come, and it is
    taken with the last of its lines and its write; it waits only while bytes of a SEND before it
    are held. One that completes a WQE takes 1 cycle more, and offers the completion then.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "take": In(stream.Signature(unsigned(12))),
                "taken": Out(stream.Signature(Taken)),
                "placements": In(stream.Signature(Placement)),
                "lines": In(stream.Signature(Line)),
                "config": In(ConfigPort()),
                "rq": Out(ContextPort(RqContext)),
                "requests": Out(stream.Signature(ReadRequest)),
                "fetched": In(stream.Signature(ReadLine)),
                "writes": Out(stream.Signature(WriteRequest)),
                "lines_out": Out(stream.Signature(Line)),
                "completions": Out(stream.Signature(Completion)),
                "settled": Out(1),
                "quiet": Out(1),
                "on_taken": Out(Probe(EventKind.RECEIVE_TAKEN, ReceiveTaken)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.taker = taker = ReceiveTaker(self._structure)
        m.submodules.scatter = scatter = Scatter(self._structure)
        self._take(m, taker, scatter)

        # The first placement goes one of two ways. `moved`: its bytes have gone.
        head, moved = self.placements.payload, Signal()
        direct, scattered, finished = Signal(), Signal(), Signal()
        m.d.comb += [
            direct.eq(self.placements.valid & ~head.scatter & scatter.idle & ~moved),
            scattered.eq(self.placements.valid & head.scatter & ~moved),
            scatter.placements.valid.eq(scattered),
            scatter.placements.payload.eq(head),
        ]
        passed = self._pass(m, head, direct, scatter)

        # A WQE is reported when its bytes have left, and so have all before it.
        with m.If(self.placements.valid & head.completes):
            m.d.comb += finished.eq(self.completions.valid & self.completions.ready)
            with m.If(passed | (scattered & scatter.placements.ready)):
                m.d.sync += moved.eq(1)
            with m.Elif(finished):
                m.d.sync += moved.eq(0)
        with m.Else():
            m.d.comb += finished.eq(passed | (scattered & scatter.placements.ready))
        completion = self.completions.payload
        m.d.comb += [
            self.placements.ready.eq(finished),
            self.completions.valid.eq(moved & scatter.idle),
            completion.qp.eq(head.qp),
            completion.receive.eq(1),
            completion.received.eq(head.received),
            completion.imm.eq(head.imm),
            completion.solicited.eq(head.solicited),
            completion.wqe_index.eq(taker.index),
            completion.length.eq(head.message_length),
            completion.status.eq(head.status),
            self.settled.eq(~self.placements.valid & scatter.idle),
            self.quiet.eq(self.settled & taker.quiet),
        ]
        return m

    def _take(self, m, taker, scatter):
        """WQEs from memory, and the look-up of their segments."""
        wiring.connect(m, wiring.flipped(self.take), taker.take)
        connect(m, taker.taken, self.taken)
        connect(m, taker.requests, self.requests)
        connect(m, self.fetched, taker.lines)
        wiring.connect(m, taker.on_taken, wiring.flipped(self.on_taken))
        m.d.comb += [
            taker.config.valid.eq(self.config.valid),
            taker.config.payload.eq(self.config.payload),
            self.rq.address.eq(taker.rq.address),
            taker.rq.data.eq(self.rq.data),
            taker.busy.eq(~self.settled),
            taker.asked_qp.eq(self.placements.payload.qp),
            taker.asked_number.eq(scatter.number),
            scatter.segment.eq(taker.segment),
            scatter.restart.valid.eq(taker.on_taken.valid & taker.on_taken.payload.found),
            scatter.restart.qp.eq(taker.on_taken.payload.qp),
        ]

    def _pass(self, m, head, direct, scatter):
        """A placement that says its address, past the scatter's writes; returns when it is
        through.
        """
        bytes_left = direct & (head.write.length != 0)
        written, copied = Signal(), Signal()
        write_goes, line_goes, passed = Signal(), Signal(), Signal()
        m.d.comb += [
            self.writes.valid.eq(scatter.writes.valid | (bytes_left & ~written)),
            self.writes.payload.eq(Mux(scatter.writes.valid, scatter.writes.payload, head.write)),
            scatter.writes.ready.eq(self.writes.ready),
            self.lines_out.valid.eq(
                scatter.lines_out.valid | (bytes_left & ~copied & self.lines.valid)
            ),
            scatter.lines_out.ready.eq(self.lines_out.ready),
            write_goes.eq(bytes_left & ~written & self.writes.ready),
            line_goes.eq(bytes_left & ~copied & self.lines.valid & self.lines_out.ready),
            passed.eq(
                direct
                & (
                    ~bytes_left
                    | ((written | write_goes) & (copied | (line_goes & self.lines.payload.last)))
                )
            ),
        ]
        with m.If(scatter.lines_out.valid):
            m.d.comb += self.lines_out.payload.eq(scatter.lines_out.payload)
        with m.Elif(self.lines.valid):
            m.d.comb += self.lines_out.payload.eq(self.lines.payload)
        m.d.sync += [
            written.eq(~passed & (written | write_goes)),
            copied.eq(~passed & (copied | (line_goes & self.lines.payload.last))),
        ]
        m.d.comb += [
            scatter.lines.payload.eq(self.lines.payload),
            scatter.lines.valid.eq(self.lines.valid & self.placements.valid & head.scatter),
            self.lines.ready.eq(line_goes | (scatter.lines.valid & scatter.lines.ready)),
        ]
        return passed
