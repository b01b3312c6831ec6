"""Writes completions as mlx5 CQEs."""

from amaranth.hdl import Const, Module, Mux, Signal, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import CqContext, Table
from .formats.dma import WriteRequest
from .formats.events import CqeIssued, Dropped, DropReason, EventKind
from .formats.layout import reverse_bytes
from .formats.mlx5 import Cqe, CqeError, CqeOpcode
from .formats.op import Completion, Status
from .formats.tlp import MarkKind
from .lib.align import Line
from .lib.delay import NOW_BITS, DelayLine
from .lib.stream import connect
from .lib.trace import Probe
from .qp_context import ConfigPort, ContextPort
from .timing import NicTiming

__all__ = ["DELAY_DEPTH", "CqEngine"]

#: Completions that may be in the CQE delay.
DELAY_DEPTH = 1024
#: The producer index keeps one bit more than the largest depth has, for the owner bit.
_INDEX_BITS = 25


class CqEngine(wiring.Component):
    """Writes one 64-byte CQE per completion, in the order in which they came.

    Entry and owner bit follow the producer index: entry `index mod depth`, owner `(index / depth)
    mod 2`. In a collapsed CQ each CQE goes to entry 0 with owner 0: its readers look at
    `wqe_counter` and `opcode` only.

    Set in a CQE: `srqn_uidx` (the QP's context index as user index), `send_opcode`, `qpn`,
    `wqe_counter`, `opcode` and `owner`; in an error CQE also `syndrome`, the completion's status.
    All else is 0: a send completion has no `byte_cnt`, time is not stamped, and `vendor_err_synd`
    has no meaning outside the vendor's silicon.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    completions : In(stream of `Completion`)
    config : In(ConfigPort)
        A write to `Table.CQ` sets that queue's producer index.
    cq : Out(ContextPort of `CqContext`)
    writes : Out(stream of `WriteRequest`)
    lines : Out(stream of `Line`)
        One per write; the two are taken independently.
    now : In
    timing : In(NicTiming)
        `cqe`: cycles that each completion waits.
    quiet : Out(1)
    due : Out
    cqe : Out(`mlx5.Cqe`)
        For waveforms: the completion under work, without an error's fields.
    on_issued : Out(Probe)
        The write was taken.
    on_dropped : Out(Probe)
        `CQ_UNKNOWN`: the CQ has no context; `info` is the WQE index.

    Timing
    ------
    A completion taken in cycle t is offered as a write in cycle t + max(cqe, 1) + 1. One CQE per
    cycle while `cqe` is below `DELAY_DEPTH`; beyond, `DELAY_DEPTH` per `cqe` cycles.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "completions": In(stream.Signature(Completion)),
                "config": In(ConfigPort()),
                "cq": Out(ContextPort(CqContext)),
                "writes": Out(stream.Signature(WriteRequest)),
                "lines": Out(stream.Signature(Line)),
                "now": In(NOW_BITS),
                "timing": In(NicTiming),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
                "cqe": Out(Cqe),
                "on_issued": Out(Probe(EventKind.CQE_ISSUED, CqeIssued)),
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.delay = delay = DelayLine(Completion, DELAY_DEPTH)
        connect(m, self.completions, delay.i)

        # After the delay one completion is at work, until it is written or found unknown.
        done, written = Signal(), Signal()
        work, working, known = self._take(m, delay, done)
        index = self._indices(m, work.qp, written)
        entry, owner = self._place(m, index)

        # Request and line, each taken once.
        request_gone, line_gone = Signal(), Signal()
        self._request(m, work, entry, known & ~request_gone)
        self._line(m, work, owner, known & ~line_gone)
        request_goes = known & (request_gone | self.writes.ready)
        line_goes = known & (line_gone | self.lines.ready)
        m.d.comb += [
            written.eq(request_goes & line_goes),
            done.eq(written | (working & ~self.cq.data.valid)),
        ]
        with m.If(done):
            m.d.sync += [request_gone.eq(0), line_gone.eq(0)]
        with m.Else():
            m.d.sync += [request_gone.eq(request_goes), line_gone.eq(line_goes)]

        self._report(m, work, working, owner)
        m.d.comb += [self.quiet.eq(~working & delay.quiet), self.due.eq(delay.due)]
        return m

    def _take(self, m, delay, done):
        """The completion at work. Its context is read in the cycle in which it comes, and held
        while it waits.
        """
        work, working, known = Signal(Completion), Signal(), Signal()
        m.d.comb += [
            delay.now.eq(self.now),
            delay.latency.eq(self.timing.cqe),
            delay.o.ready.eq(~working | done),
            self.cq.address.eq(Mux(delay.o.ready, delay.o.payload.qp, work.qp)),
            known.eq(working & self.cq.data.valid),
        ]
        with m.If(delay.o.ready):
            m.d.sync += [working.eq(delay.o.valid), work.eq(delay.o.payload)]
        return work, working, known

    def _indices(self, m, qp, written):
        """Producer indices of all CQs; that of `qp` is returned, and grows with a write."""
        m.submodules.indices = indices = memory.Memory(
            shape=unsigned(_INDEX_BITS), depth=self._structure.qps, init=[]
        )
        start, advance = indices.write_port(), indices.write_port()
        index = indices.read_port(domain="comb")
        configured = CqContext(self.config.payload.data[: CqContext.as_shape().size])
        m.d.comb += [
            start.addr.eq(self.config.payload.index),
            start.data.eq(configured.start_index),
            start.en.eq(self.config.valid & (self.config.payload.table == Table.CQ)),
            index.addr.eq(qp),
            advance.addr.eq(qp),
            advance.data.eq(index.data + 1),
            advance.en.eq(written),
        ]
        return index.data

    def _place(self, m, index):
        """Entry and owner bit of a producer index."""
        context, mask, entry, owner = self.cq.data, Signal(24), Signal(24), Signal()
        m.d.comb += [
            mask.eq((Const(1, 1) << context.depth_log2) - 1),
            entry.eq(Mux(context.collapsed, 0, index & mask)),
            owner.eq(~context.collapsed & index.bit_select(context.depth_log2, 1)),
        ]
        return entry, owner

    def _request(self, m, work, entry, valid):
        """The write of a CQE."""
        request = self.writes.payload
        m.d.comb += [
            self.writes.valid.eq(valid),
            request.address.eq(self.cq.data.base + (entry << 6)),
            request.length.eq(64),
            request.mark.kind.eq(MarkKind.CQE),
            request.mark.qp.eq(work.qp),
            request.mark.index.eq(work.wqe_index),
        ]

    def _line(self, m, work, owner, valid):
        """Its bytes."""
        line = self.lines.payload
        m.d.comb += [
            self.lines.valid.eq(valid),
            line.lane.eq(0),
            line.count.eq(64),
            line.last.eq(1),
        ]
        # Under a condition, so that a simulator skips the byte reversal of no CQE.
        cqe, shown = _cqe(m, self.cqe, work, self.cq.data, owner), Signal(512)
        with m.If(self.lines.valid):
            m.d.comb += shown.eq(cqe)
        m.d.comb += line.data.eq(shown)

    def _report(self, m, work, working, owner):
        """The event of a write, or of a completion whose CQ has no context."""
        issued, dropped = self.on_issued, self.on_dropped
        m.d.comb += [
            issued.valid.eq(self.writes.valid & self.writes.ready),
            issued.payload.qp.eq(work.qp),
            issued.payload.wqe_index.eq(work.wqe_index),
            issued.payload.address.eq(self.writes.payload.address),
            issued.payload.owner.eq(owner),
            dropped.valid.eq(working & ~self.cq.data.valid),
            dropped.payload.reason.eq(DropReason.CQ_UNKNOWN),
            dropped.payload.qp.eq(work.qp),
            dropped.payload.info.eq(work.wqe_index),
        ]


def _cqe(m, good, completion, context, owner):
    """The 64 bytes of a CQE, in memory lanes; `good` shows its fields."""
    bad = Signal(CqeError)
    failed = Signal()
    m.d.comb += [
        failed.eq(completion.status != Status.SUCCESS),
        good.srqn_uidx.eq(completion.qp),
        good.opcode.eq(CqeOpcode.REQ),
        bad.srqn.eq(completion.qp),
        bad.syndrome.eq(completion.status),
        bad.opcode.eq(CqeOpcode.REQ_ERR),
    ]
    for view in (good, bad):
        m.d.comb += [
            view.send_opcode.eq(completion.vendor_opcode),
            view.qpn.eq(context.qpn),
            view.wqe_counter.eq(completion.wqe_index),
            view.owner.eq(owner),
        ]
    return reverse_bytes(Mux(failed, bad.as_value(), good.as_value()))
