"""The READs and atomics of each queue pair whose response is awaited, in order."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import Table, TxContext
from .qp_context import ConfigPort, configures, context_in
from .qp_table import QpTable
from .segmenter import Started

__all__ = ["Awaited", "AwaitedRead", "AwaitedReads"]

#: READs and atomics that a QP may have outstanding, whatever its context says.
MOST = 16


class AwaitedRead(data.Struct):
    """A READ or an atomic whose response is awaited."""

    wqe_index: 16
    #: PSN of the first and the last packet of its response.
    psn: 24
    last_psn: 24
    #: Bytes of the last packet; of an atomic: 4 or 8, those that it works on.
    last_length: 13
    atomic: 1


class Awaited(data.Struct):
    """What a QP waits for."""

    #: Whether there is a READ or an atomic, and the oldest.
    any: 1
    oldest: AwaitedRead
    #: PSN of the next packet of its response; if there is none: behind the last that came.
    psn: 24
    #: That packet was asked for again.
    reported: 1
    #: The QP has started again, and not yet come to all READs and atomics that it had outstanding.
    behind: 1
    #: PSN behind all that has been started since.
    reached: 24


class _Reach(data.Struct):
    """How far a QP has come since it started last."""

    #: PSN behind the last operation, and behind the last READ or atomic that it has ever started.
    psn: 24
    reads: 24
    behind: 1


class _Progress(data.Struct):
    """How far the response to the oldest READ has come."""

    #: PSN behind the last packet that came, of this READ if `inside`.
    psn: 24
    inside: 1
    reported: 1


class AwaitedReads(wiring.Component):
    """A list per QP.

    Parameters
    ----------
    structure : Structure
        `qps` lists of 16.

    Members
    -------
    config : In(ConfigPort)
        Table.TX empties a list and sets the PSN.
    started : In(`valid`, `payload`: Started)
        READs and atomics that send come to the end of the list; at most 16.
    restart : In(`valid`, `qp`, `psn`)
        Empties a list: all in it will be started again, from that PSN on.
    ask : In(12), outstanding : Out(5)
        How many there are.
    qp : In(12), facts : Out(Awaited)
        What that QP waits for.
    landed : In(`valid`, `psn`)
        The expected packet of `qp` came, so that the oldest leaves if it was its last.
    reported : In(1)
        The expected packet of `qp` was asked for again. Neither this nor `landed` in a cycle in
        which that QP is configured or restarts.

    Timing
    ------
    Combinational; a change shows in the next cycle.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "config": In(ConfigPort()),
                "started": In(wiring.Signature({"valid": Out(1), "payload": Out(Started)})),
                "restart": In(wiring.Signature({"valid": Out(1), "qp": Out(12), "psn": Out(24)})),
                "ask": In(12),
                "outstanding": Out(5),
                "qp": In(12),
                "facts": Out(Awaited),
                "landed": In(wiring.Signature({"valid": Out(1), "psn": Out(24)})),
                "reported": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        context = context_in(self.config, TxContext)
        self._context = context
        self._configuring, self._clears = Signal(), Signal()
        self._cleared = Signal(12)
        m.d.comb += [
            self._configuring.eq(configures(self.config, Table.TX)),
            self._clears.eq(self._configuring | self.restart.valid),
            self._cleared.eq(Mux(self._configuring, self.config.payload.index, self.restart.qp)),
        ]
        # Positions have one bit more than the index, to tell full from empty.
        position_bits = MOST.bit_length()
        self._heads = QpTable(m, "heads", position_bits, self._structure)
        self._tails = QpTable(m, "tails", position_bits, self._structure)
        self._list(m)
        self._progress(m)
        self._reach(m)
        return m

    def _list(self, m):
        """The list itself."""
        heads, tails, qp_bits = self._heads, self._tails, self._structure.qp_bits
        m.submodules.reads = reads = memory.Memory(
            shape=AwaitedRead, depth=self._structure.qps * MOST, init=[]
        )
        mtus = QpTable(m, "mtus", 4, self._structure)
        mtus.write(self.config.payload.index, self._context.mtu_log2, self._configuring)

        new, write = self.started.payload, reads.write_port()
        entry, tail = new.entry, tails.read(new.qp)
        rest, mtu = Signal(13), Signal(13)
        m.d.comb += [
            mtu.eq(1 << mtus.read(new.qp)),
            rest.eq(entry.length & (mtu - 1)),
            write.en.eq(self.started.valid & entry.reads & entry.sends),
            write.addr.eq(Cat(tail[:-1], new.qp[:qp_bits])),
            write.data.wqe_index.eq(entry.wqe_index),
            write.data.psn.eq(new.psn),
            write.data.last_psn.eq(entry.last_psn),
            write.data.last_length.eq(Mux((rest == 0) & (entry.length != 0), mtu, rest)),
            write.data.atomic.eq(entry.atomic),
        ]
        tails.write(new.qp, tail + 1, write.en)

        head, read, facts = heads.read(self.qp), reads.read_port(domain="comb"), self.facts
        m.d.comb += [
            self.outstanding.eq(tails.read(self.ask) - heads.read(self.ask)),
            read.addr.eq(Cat(head[:-1], self.qp[:qp_bits])),
            facts.any.eq(head != tails.read(self.qp)),
            facts.oldest.eq(read.data),
        ]
        self._ends = Signal()
        m.d.comb += self._ends.eq(self.landed.psn == facts.oldest.last_psn)
        heads.write(self.qp, head + 1, self.landed.valid & self._ends)
        heads.write(self._cleared, tails.read(self._cleared), self._clears)

    def _progress(self, m):
        """How far the oldest one's response has come. What was asked for again once is not asked
        for before it came: after a restart, too, much may be under way that was sent before.
        """
        table = QpTable(m, "progress", _Progress, self._structure)
        now, after, fresh = table.read(self.qp), Signal(_Progress), Signal(_Progress)
        before = table.read(self._cleared)
        m.d.comb += [
            self.facts.psn.eq(Mux(self.facts.any & ~now.inside, self.facts.oldest.psn, now.psn)),
            self.facts.reported.eq(now.reported),
            after.eq(now),
            fresh.psn.eq(Mux(self._configuring, self._context.start_psn, before.psn)),
            fresh.reported.eq(before.reported & ~self._configuring),
        ]
        with m.If(self.landed.valid):
            m.d.comb += [
                after.psn.eq(self.landed.psn + 1),
                after.inside.eq(~self._ends),
                after.reported.eq(0),
            ]
        with m.Else():
            m.d.comb += after.reported.eq(1)
        table.write(self.qp, after, self.landed.valid | self.reported)
        table.write(self._cleared, fresh, self._clears)

    def _reach(self, m):
        """How far a QP that starts again has come."""
        table = QpTable(m, "reach", _Reach, self._structure)
        new, fresh, after = self.started.payload, Signal(_Reach), Signal(_Reach)
        now, before = table.read(new.qp), table.read(self._cleared)
        left = self._heads.read(self._cleared) != self._tails.read(self._cleared)
        asked = table.read(self.qp)
        end, to_go = Signal(24), Signal(24)
        m.d.comb += [
            self.facts.behind.eq(asked.behind),
            self.facts.reached.eq(asked.psn),
            end.eq(new.entry.last_psn + 1),
            to_go.eq(now.reads - end),
            after.psn.eq(end),
            after.behind.eq(now.behind & (to_go != 0) & ~to_go[-1]),
            after.reads.eq(Mux(new.entry.reads & ~after.behind, end, now.reads)),
            fresh.psn.eq(Mux(self._configuring, self._context.start_psn, self.restart.psn)),
            fresh.reads.eq(before.reads),
            fresh.behind.eq((before.behind | left) & ~self._configuring),
        ]
        table.write(new.qp, after, self.started.valid & new.entry.sends)
        table.write(self._cleared, fresh, self._clears)
