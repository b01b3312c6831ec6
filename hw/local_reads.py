"""Which local reads (DUMP) of each queue pair have their bytes."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .formats.context import Table
from .qp_context import ConfigPort, configures
from .qp_table import QpTable

__all__ = ["LocalReads"]

#: Counters may differ by what is in the list of outstanding WQEs and in the transmit delay.
_COUNT_BITS = 16


class LocalReads(wiring.Component):
    """Counts the local reads of each QP: those that were begun, those whose bytes have come, and
    those that have left the list of outstanding WQEs, in whatever way.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    config : In(ConfigPort)
        Table.TX forgets the local reads of a QP that are in the list; their bytes may still come.
    begun, came : In(`valid`, `qp`)
        A local read enters the list; all bytes of one have come. In order per QP.
    qp : In(12)
        Whose list is looked at.
    there : Out(1)
        The oldest local read in it has its bytes (combinational).
    asked_qp : In(12), settled : Out(1)
        Whether all local reads of a QP that were begun have their bytes (combinational).
    drop, clear : In(1)
        The oldest leaves the list; all leave. Not in the cycle of a TX context, nor both at once.

    Timing
    ------
    A change shows in the next cycle.
    """

    def __init__(self, structure):
        self._structure = structure
        pulse = wiring.Signature({"valid": Out(1), "qp": Out(12)})
        super().__init__(
            {
                "config": In(ConfigPort()),
                "begun": In(pulse),
                "came": In(pulse),
                "qp": In(12),
                "there": Out(1),
                "asked_qp": In(12),
                "settled": Out(1),
                "drop": In(1),
                "clear": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        begun, came, left = (
            QpTable(m, name, _COUNT_BITS, self._structure) for name in ("begun", "came", "left")
        )
        for table, event in ((begun, self.begun), (came, self.came)):
            table.write(event.qp, table.read(event.qp) + 1, event.valid)

        configuring, qp, ahead = Signal(), Signal(12), Signal(_COUNT_BITS)
        m.d.comb += [
            configuring.eq(configures(self.config, Table.TX)),
            qp.eq(Mux(configuring, self.config.payload.index, self.qp)),
            ahead.eq(came.read(self.qp) - left.read(self.qp)),
            self.there.eq((ahead != 0) & ~ahead[-1]),
            self.settled.eq(begun.read(self.asked_qp) == came.read(self.asked_qp)),
        ]
        left.write(
            qp,
            Mux(configuring | self.clear, begun.read(qp), left.read(qp) + 1),
            configuring | self.drop | self.clear,
        )
        return m
