"""Writes completions as mlx5 CQEs."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import CqContext, Table
from .formats.dma import WriteRequest
from .formats.events import CqeIssued, Dropped, DropReason, EventKind
from .formats.layout import reverse_bytes
from .formats.mlx5 import Cqe, CqeError, CqeOpcode, WqeOpcode
from .formats.op import Completion, Received, Status
from .formats.tlp import MarkKind
from .lib.align import Line
from .lib.delay import NOW_BITS, DelayLine
from .lib.stream import connect
from .lib.trace import Probe
from .qp_context import ConfigPort, ContextPort, context_in
from .timing import NicTiming

__all__ = ["DELAY_DEPTH", "CqEngine"]

#: Completions that may be in the CQE delay.
DELAY_DEPTH = 1024
#: The producer index keeps one bit more than the largest depth has, for the owner bit.
_INDEX_BITS = 25
#: What a completion of a receive WQE is called.
_RECEIVED = {
    Received.WRITE_IMM: CqeOpcode.RESP_WR_IMM,
    Received.SEND: CqeOpcode.RESP_SEND,
    Received.SEND_IMM: CqeOpcode.RESP_SEND_IMM,
}
#: Opcodes of WQEs whose completion says how many bytes came back.
_READS = (
    WqeOpcode.READ,
    WqeOpcode.COMPARE_SWAP,
    WqeOpcode.FETCH_ADD,
    WqeOpcode.MASKED_COMPARE_SWAP,
    WqeOpcode.MASKED_FETCH_ADD,
)


class CqEngine(wiring.Component):
    """Writes one 64-byte CQE per completion, in the order in which they came.

    A QP has two CQs, one for what it sends and one for what it receives. Entry and owner bit follow
    the CQ's producer index: entry `index mod depth`, owner `(index / depth) mod 2`. In a collapsed
    CQ each CQE goes to entry 0 with owner 0: its readers look at `wqe_counter` and `opcode` only.
    How much software has read is not known here, so a CQ that is too small is overrun.

    Set in a CQE: `srqn_uidx` (the QP's context index as user index), `send_opcode`, `qpn`,
    `wqe_counter`, `opcode` and `owner`; of a READ or an atomic also `byte_cnt`; of a receive WQE
    `byte_cnt`, `se` and, where there is one, `imm`; in an error CQE also `syndrome`, the
    completion's status. All else is 0: time is not stamped, and `vendor_err_synd` has no meaning
    outside the vendor's silicon.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    completions : In(stream of `Completion`)
    config : In(ConfigPort)
        A write to `Table.CQ` or `Table.RECEIVE_CQ` sets that queue's producer index.
    cq, receive_cq : Out(ContextPort of `CqContext`)
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
                "receive_cq": Out(ContextPort(CqContext)),
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
        work, working, context = self._take(m, delay, done)
        known = working & context.valid
        index = self._indices(m, work, written)
        entry, owner = self._place(m, context, index)

        # Request and line, each taken once.
        request_gone, line_gone = Signal(), Signal()
        self._request(m, work, context, entry, known & ~request_gone)
        self._line(m, work, context, owner, known & ~line_gone)
        request_goes = known & (request_gone | self.writes.ready)
        line_goes = known & (line_gone | self.lines.ready)
        m.d.comb += [
            written.eq(request_goes & line_goes),
            done.eq(written | (working & ~context.valid)),
        ]
        with m.If(done):
            m.d.sync += [request_gone.eq(0), line_gone.eq(0)]
        with m.Else():
            m.d.sync += [request_gone.eq(request_goes), line_gone.eq(line_goes)]

        self._report(m, work, working & ~context.valid, owner)
        m.d.comb += [self.quiet.eq(~working & delay.quiet), self.due.eq(delay.due)]
        return m

    def _take(self, m, delay, done):
        """The completion at work and the context of its CQ, which is read in the cycle in which it
        comes, and held while it waits.
        """
        work, working, context = Signal(Completion), Signal(), Signal(CqContext)
        m.d.comb += [
            delay.now.eq(self.now),
            delay.latency.eq(self.timing.cqe),
            delay.o.ready.eq(~working | done),
            self.cq.address.eq(Mux(delay.o.ready, delay.o.payload.qp, work.qp)),
            self.receive_cq.address.eq(self.cq.address),
            context.eq(Mux(work.receive, self.receive_cq.data, self.cq.data)),
        ]
        with m.If(delay.o.ready):
            m.d.sync += [working.eq(delay.o.valid), work.eq(delay.o.payload)]
        return work, working, context

    def _indices(self, m, work, written):
        """Producer indices of all CQs, of what is sent below those of what is received; that of the
        completion at work is returned, and grows with a write.
        """
        qps, bits = self._structure.qps, self._structure.qp_bits
        m.submodules.indices = indices = memory.Memory(
            shape=unsigned(_INDEX_BITS), depth=2 * qps, init=[]
        )
        start, advance = indices.write_port(), indices.write_port()
        index = indices.read_port(domain="comb")
        table, queue = self.config.payload.table, self.config.payload.index
        configured = context_in(self.config, CqContext)
        m.d.comb += [
            start.addr.eq(Cat(queue[:bits], table == Table.RECEIVE_CQ)),
            start.data.eq(configured.start_index),
            start.en.eq(self.config.valid & ((table == Table.CQ) | (table == Table.RECEIVE_CQ))),
            index.addr.eq(Cat(work.qp[:bits], work.receive)),
            advance.addr.eq(index.addr),
            advance.data.eq(index.data + 1),
            advance.en.eq(written),
        ]
        return index.data

    def _place(self, m, context, index):
        """Entry and owner bit of a producer index."""
        mask, entry, owner = Signal(24), Signal(24), Signal()
        m.d.comb += [
            mask.eq((Const(1, 1) << context.depth_log2) - 1),
            entry.eq(Mux(context.collapsed, 0, index & mask)),
            owner.eq(~context.collapsed & index.bit_select(context.depth_log2, 1)),
        ]
        return entry, owner

    def _request(self, m, work, context, entry, valid):
        """The write of a CQE."""
        request = self.writes.payload
        m.d.comb += [
            self.writes.valid.eq(valid),
            request.address.eq(context.base + (entry << 6)),
            request.length.eq(64),
            request.mark.kind.eq(Mux(work.receive, MarkKind.RECEIVE_CQE, MarkKind.CQE)),
            request.mark.qp.eq(work.qp),
            request.mark.index.eq(work.wqe_index),
        ]

    def _line(self, m, work, context, owner, valid):
        """Its bytes."""
        line = self.lines.payload
        m.d.comb += [
            self.lines.valid.eq(valid),
            line.lane.eq(0),
            line.count.eq(64),
            line.last.eq(1),
        ]
        # Under a condition, so that a simulator skips the byte reversal of no CQE.
        cqe, shown = _cqe(m, self.cqe, work, context, owner), Signal(512)
        with m.If(self.lines.valid):
            m.d.comb += shown.eq(cqe)
        m.d.comb += line.data.eq(shown)

    def _report(self, m, work, unknown, owner):
        """The event of a write, or of a completion whose CQ has no context."""
        issued, dropped = self.on_issued, self.on_dropped
        m.d.comb += [
            issued.valid.eq(self.writes.valid & self.writes.ready),
            issued.payload.qp.eq(work.qp),
            issued.payload.wqe_index.eq(work.wqe_index),
            issued.payload.address.eq(self.writes.payload.address),
            issued.payload.owner.eq(owner),
            issued.payload.receive.eq(work.receive),
            dropped.valid.eq(unknown),
            dropped.payload.reason.eq(DropReason.CQ_UNKNOWN),
            dropped.payload.qp.eq(work.qp),
            dropped.payload.info.eq(work.wqe_index),
        ]


def _cqe(m, good, completion, context, owner):
    """The 64 bytes of a CQE, in memory lanes; `good` shows its fields."""
    bad = Signal(CqeError)
    failed, receive = Signal(), completion.receive
    opcode, counts, has_imm = Signal(CqeOpcode), Signal(), Signal()
    m.d.comb += [
        counts.eq(receive | completion.vendor_opcode.matches(*_READS)),
        has_imm.eq(receive & (completion.received != Received.SEND)),
    ]
    with m.If(receive):
        with m.Switch(completion.received):
            for received, name in _RECEIVED.items():
                with m.Case(received):
                    m.d.comb += opcode.eq(name)
    m.d.comb += [
        failed.eq(completion.status != Status.SUCCESS),
        good.srqn_uidx.eq(completion.qp),
        good.byte_cnt.eq(Mux(counts, completion.length, 0)),
        good.imm.eq(Mux(has_imm, completion.imm, 0)),
        good.se.eq(receive & completion.solicited),
        good.opcode.eq(opcode),
        bad.srqn.eq(completion.qp),
        bad.syndrome.eq(completion.status),
        bad.opcode.eq(Mux(completion.receive, CqeOpcode.RESP_ERR, CqeOpcode.REQ_ERR)),
    ]
    for view in (good, bad):
        m.d.comb += [
            view.send_opcode.eq(completion.vendor_opcode),
            view.qpn.eq(context.qpn),
            view.wqe_counter.eq(completion.wqe_index),
            view.owner.eq(owner),
        ]
    return reverse_bytes(Mux(failed, bad.as_value(), good.as_value()))
