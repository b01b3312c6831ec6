"""Fetches what READs of the peers ask for."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import MAX_READS
from .formats.dma import ReadLine, ReadRequest
from .formats.tlp import ADDRESS_BITS, MarkKind
from .gather import Gather
from .lib.align import Line
from .lib.stream import Queue, connect

__all__ = ["ReadJob", "ReadServer"]


class ReadJob(data.Struct):
    """A READ that is to be answered."""

    qp: 12
    psn: 24
    address: ADDRESS_BITS
    #: Never 0.
    length: 32
    mtu_log2: 4


class ReadServer(wiring.Component):
    """Turns READs into requests of a DMA read engine, and what that brings into packet payloads.

    Parameters
    ----------
    structure : Structure
        `qps`: that many times 16 READs may wait, so that those of all peers have room.

    Members
    -------
    jobs : In(stream of `ReadJob`)
    requests : Out(stream of `ReadRequest`)
        Of one job after the other, at most 4096 bytes each; the mark is `RESPONSE` with the PSN.
    lines : In(stream of `ReadLine`)
        Answers, in order.
    payload : Out(stream of `Line`)
        Per packet full lines from lane 0; `last` ends a packet.
    quiet : Out(1)

    Timing
    ------
    Job accepted at t: its first request is offered at t + 1, if no job is before it; payload in the
    cycle in which its line is. One request and one line per cycle, as in `Gather`.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "jobs": In(stream.Signature(ReadJob)),
                "requests": Out(stream.Signature(ReadRequest)),
                "lines": In(stream.Signature(ReadLine)),
                "payload": Out(stream.Signature(Line)),
                "quiet": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.waiting = waiting = Queue(ReadJob, MAX_READS * self._structure.qps)
        m.submodules.gather = gather = Gather(self._structure, reads_span_packets=True)
        connect(m, wiring.flipped(self.jobs), waiting.i)
        connect(m, wiring.flipped(self.lines), gather.lines)
        connect(m, gather.payload, wiring.flipped(self.payload))

        job, piece = waiting.o.payload, gather.pieces.payload
        mark = Signal.like(self.requests.payload.mark)
        m.d.comb += [
            gather.pieces.valid.eq(waiting.o.valid),
            waiting.o.ready.eq(gather.pieces.ready),
            piece.address.eq(job.address),
            piece.length.eq(job.length),
            piece.last.eq(1),
            piece.mtu_log2.eq(job.mtu_log2),
            piece.qp.eq(job.qp),
            mark.kind.eq(MarkKind.RESPONSE),
            mark.qp.eq(job.qp),
            mark.index.eq(job.psn),
            self.requests.valid.eq(gather.requests.valid),
            gather.requests.ready.eq(self.requests.ready),
            self.requests.payload.eq(gather.requests.payload),
            self.requests.payload.mark.eq(mark),
            self.quiet.eq(gather.quiet),
        ]
        return m
