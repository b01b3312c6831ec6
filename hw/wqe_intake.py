"""Where blocks of WQEs enter the NIC: fetched and pushed ones in one stream, sorted into WQEs."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats import mlx5
from .formats.context import SqContext, Table
from .formats.dma import ReadLine
from .formats.events import EventKind, Fetched
from .formats.layout import lanes
from .lib.trace import Probe
from .qp_context import ConfigPort, configures, context_in
from .qp_table import QpTable

__all__ = ["PushedBlock", "WqeBlock", "WqeIntake"]


class PushedBlock(data.Struct):
    """A block that came with a doorbell."""

    qp: 12
    data: unsigned(512)


class WqeBlock(data.Struct):
    """A block of a WQE, with its place in it."""

    data: unsigned(512)
    qp: 12
    #: Index of the WQE's first block, as counted by the NIC.
    wqe_index: 16
    #: Octowords of the WQE, from its first block.
    ds: 6
    #: Number of this block within the WQE.
    block: 4
    #: Ends the WQE.
    last: 1
    mtu_log2: 4


class WqeIntake(wiring.Component):
    """Merges fetched and pushed blocks and finds out where WQEs begin and end.

    The `ds` of a WQE's first block tells how many blocks follow; a WQE with ds 0 counts as one
    block. Blocks of one QP come in order, those of several QPs in any mixture. A block's index is
    counted here; the index in the WQE is not looked at.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    lines : In(stream of `ReadLine`)
        Fetched blocks: whole lines; `context` bits 11:0 are the QP.
    pushed : In(stream of `PushedBlock`)
        Pushed blocks; they go first.
    o : Out(stream of `WqeBlock`)
    config : In(ConfigPort)
    asked_qp : In(12)
    arrived : Out(16)
        Index of the next block of `asked_qp` to come in (combinational).
    turn_qp : In(12)
    followers : Out(16)
        Fetched blocks of `turn_qp` that were not the first of a WQE, counted modulo 65536
        (combinational).
    restart : In(`valid`, `qp`, `index`)
        What comes next of that QP is the first block of the WQE at `index`. Nothing is under way.
    draining_qp : In(12)
    whole : Out(16)
        Index behind the last WQE of `draining_qp` of which all blocks came in, and
        `draining_arrived : Out(16)` that of its next block (combinational).
    on_fetched : Out(Probe)
        The last block of a WQE came in.

    Timing
    ------
    One block per cycle, combinational from input to output.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "lines": In(stream.Signature(ReadLine)),
                "pushed": In(stream.Signature(PushedBlock)),
                "o": Out(stream.Signature(WqeBlock)),
                "config": In(ConfigPort()),
                "asked_qp": In(12),
                "arrived": Out(16),
                "turn_qp": In(12),
                "followers": Out(16),
                "restart": In(wiring.Signature({"valid": Out(1), "qp": Out(12), "index": Out(16)})),
                "draining_qp": In(12),
                "whole": Out(16),
                "draining_arrived": Out(16),
                "on_fetched": Out(Probe(EventKind.FETCHED, Fetched)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        progress = data.StructLayout({"ds": 6, "left": 5})
        arrived = QpTable(m, "arrived", 16, self._structure)
        whole = QpTable(m, "whole", 16, self._structure)
        followers = QpTable(m, "followers", 16, self._structure)
        under_way = QpTable(m, "under_way", progress, self._structure)
        mtu = QpTable(m, "mtu", 4, self._structure)

        qp, block = Signal(12), Signal(512)
        m.d.comb += [
            qp.eq(Mux(self.pushed.valid, self.pushed.payload.qp, self.lines.payload.context)),
            block.eq(Mux(self.pushed.valid, self.pushed.payload.data, self.lines.payload.data)),
            self.o.valid.eq(self.pushed.valid | self.lines.valid),
            self.pushed.ready.eq(self.o.ready),
            self.lines.ready.eq(self.o.ready & ~self.pushed.valid),
        ]

        # A block begins a WQE if none is under way; then its own ds counts.
        index, before = arrived.read(qp), under_way.read(qp)
        after = Signal(progress)
        begins, blocks, number = Signal(), Signal(5), Signal(4)
        m.d.comb += [
            begins.eq(before.left == 0),
            after.ds.eq(Mux(begins, lanes(mlx5.Ctrl, block, 0).ds, before.ds)),
            blocks.eq(Mux(after.ds == 0, 1, mlx5.blocks_of(after.ds))),
            after.left.eq(Mux(begins, blocks, before.left) - 1),
            number.eq(Mux(begins, 0, blocks - before.left)),
            self.o.payload.data.eq(block),
            self.o.payload.qp.eq(qp),
            self.o.payload.wqe_index.eq(index - number),
            self.o.payload.ds.eq(after.ds),
            self.o.payload.block.eq(number),
            self.o.payload.last.eq(after.left == 0),
            self.o.payload.mtu_log2.eq(mtu.read(qp)),
        ]
        enters = Signal()
        m.d.comb += enters.eq(self.o.valid & self.o.ready)
        arrived.write(qp, index + 1, enters)
        under_way.write(qp, after, enters)
        whole.write(qp, index + 1, enters & (after.left == 0))
        followers.write(qp, followers.read(qp) + 1, enters & ~begins & ~self.pushed.valid)

        m.d.comb += [
            self.arrived.eq(arrived.read(self.asked_qp)),
            self.followers.eq(followers.read(self.turn_qp)),
            self.whole.eq(whole.read(self.draining_qp)),
            self.draining_arrived.eq(arrived.read(self.draining_qp)),
        ]

        # A QP starts again: part of a WQE that came in is forgotten.
        restart = self.restart
        for table, value in ((arrived, restart.index), (whole, restart.index), (under_way, 0)):
            table.write(restart.qp, value, restart.valid)

        loads = Signal()
        context = context_in(self.config, SqContext)
        m.d.comb += loads.eq(configures(self.config, Table.SQ))
        for table, start in (
            (arrived, context.start_index),
            (whole, context.start_index),
            (followers, 0),
            (under_way, 0),
            (mtu, context.mtu_log2),
        ):
            table.write(self.config.payload.index, start, loads)

        m.d.comb += [
            self.on_fetched.valid.eq(enters & self.o.payload.last),
            self.on_fetched.payload.qp.eq(qp),
            self.on_fetched.payload.wqe_index.eq(self.o.payload.wqe_index),
            self.on_fetched.payload.blocks.eq(blocks),
            self.on_fetched.payload.pushed.eq(self.pushed.valid),
        ]
        return m
