"""Which packets of each queue pair are acknowledged, were sent, and are outstanding."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .formats.context import Table, TxContext
from .qp_context import ConfigPort, configures, context_in
from .qp_table import QpTable
from .segmenter import Started

__all__ = ["PsnWindow"]


class PsnWindow(wiring.Component):
    """Three PSNs per QP, modulo 2^24: the oldest unacknowledged one, the one behind the last that
    any WQE has, and the one behind the packet that left last.

    A QP that sends again starts none of them again: what it sends lies within the window.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    config : In(ConfigPort)
        Table.TX sets all three.
    started : In(`valid`, `payload`: Started)
        A WQE starts; `started_before : Out(1)`: all its packets are already acknowledged.
    sent : In(`valid`, `qp`, `psn`)
        A packet left; `sent_open : Out(1)`: it is not acknowledged.
    ack_qp : In(12)
    base, end : Out(24)
        Window of `ack_qp`: the oldest unacknowledged PSN, and that behind the last.
    acknowledge : In(`valid`, `psn`)
        Sets the oldest unacknowledged PSN of `ack_qp`. Not in the cycle of a TX context.
    sent_beyond : Out(1)
        Packets of `ack_qp` from `acknowledge.psn` on have left, this cycle's included.
    visited_qp : In(12), visited_base : Out(24)
        The oldest unacknowledged PSN of another QP.
    expired_qp : In(12), expired_open : Out(1)
        Whether a QP has anything outstanding.

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
                "started_before": Out(1),
                "sent": In(wiring.Signature({"valid": Out(1), "qp": Out(12), "psn": Out(24)})),
                "sent_open": Out(1),
                "ack_qp": In(12),
                "base": Out(24),
                "end": Out(24),
                "acknowledge": In(wiring.Signature({"valid": Out(1), "psn": Out(24)})),
                "sent_beyond": Out(1),
                "visited_qp": In(12),
                "visited_base": Out(24),
                "expired_qp": In(12),
                "expired_open": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bases, ends, sents = (
            QpTable(m, name, 24, self._structure) for name in ("bases", "ends", "sents")
        )
        configuring, configured = Signal(), self.config.payload.index
        context = context_in(self.config, TxContext)
        m.d.comb += configuring.eq(configures(self.config, Table.TX))

        def write(table, qp, value, when):
            table.write(
                Mux(configuring, configured, qp),
                Mux(configuring, context.start_psn, value),
                configuring | when,
            )

        # A WQE moves the end, unless it is executed again.
        new, after = self.started.payload, Signal(24)
        further, before = Signal(24), Signal(24)
        m.d.comb += [
            after.eq(new.entry.last_psn + 1),
            further.eq(after - ends.read(new.qp)),
            before.eq(bases.read(new.qp) - after),
            self.started_before.eq(~before[-1]),
        ]
        write(ends, new.qp, after, self.started.valid & new.entry.sends & ~further[-1])

        # A packet leaves.
        sent, sent_base = self.sent, bases.read(self.sent.qp)
        m.d.comb += self.sent_open.eq(
            (sent.psn - sent_base)[:24] < (ends.read(sent.qp) - sent_base)[:24]
        )
        sents.write(configured, context.start_psn, configuring)
        sents.write(sent.qp, sent.psn + 1, sent.valid)

        # Packets are acknowledged.
        left, sent_end = Signal(24), Signal(24)
        m.d.comb += [
            self.base.eq(bases.read(self.ack_qp)),
            self.end.eq(ends.read(self.ack_qp)),
            sent_end.eq(
                Mux(sent.valid & (sent.qp == self.ack_qp), sent.psn + 1, sents.read(self.ack_qp))
            ),
            left.eq(sent_end - self.acknowledge.psn),
            self.sent_beyond.eq((left != 0) & ~left[-1]),
            self.visited_base.eq(bases.read(self.visited_qp)),
            self.expired_open.eq(bases.read(self.expired_qp) != ends.read(self.expired_qp)),
        ]
        write(bases, self.ack_qp, self.acknowledge.psn, self.acknowledge.valid)
        return m
