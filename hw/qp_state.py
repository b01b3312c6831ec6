"""In which state each queue pair is: the one place that knows."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .formats.context import QpState, Table, TxContext
from .formats.events import EventKind, QpStateChanged
from .formats.op import Status
from .lib.trace import Probe
from .qp_context import ConfigPort, configures, context_in
from .qp_table import QpTable

__all__ = ["QpStates"]


class QpStates(wiring.Component):
    """States of all QPs.

    A QP without a context is in RESET. A context brings it to RTS, which is also how software
    recovers one from ERR.

    Parameters
    ----------
    structure : Structure
    readers : int
        QPs that can be asked about in one cycle.

    Members
    -------
    config : In(ConfigPort)
        Table.TX.
    fails : In(`valid`, `qp`, `status`)
        The QP goes to ERR because of `status`. Never in the cycle of a TX context.
    ask : In(array of 12), failed : Out(array of 1)
        Whether a QP is in ERR (combinational).
    on_qp_state : Out(Probe)
        The QP went to ERR or left it. That a QP was set up is not told.

    Timing
    ------
    A change shows in the next cycle.
    """

    def __init__(self, structure, readers):
        self._structure = structure
        super().__init__(
            {
                "config": In(ConfigPort()),
                "fails": In(wiring.Signature({"valid": Out(1), "qp": Out(12), "status": Out(8)})),
                "ask": In(12).array(readers),
                "failed": Out(1).array(readers),
                "on_qp_state": Out(Probe(EventKind.QP_STATE, QpStateChanged)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        states = QpTable(m, "kept", QpState, self._structure)
        for qp, failed in zip(self.ask, self.failed, strict=True):
            m.d.comb += failed.eq(states.read(qp) == QpState.ERR)

        context = context_in(self.config, TxContext)
        configuring, changes, qp = Signal(), Signal(), Signal(12)
        old, new = Signal(QpState), Signal(QpState)
        m.d.comb += [
            configuring.eq(configures(self.config, Table.TX)),
            changes.eq(configuring | self.fails.valid),
            qp.eq(Mux(configuring, self.config.payload.index, self.fails.qp)),
            new.eq(Mux(configuring, Mux(context.valid, QpState.RTS, QpState.RESET), QpState.ERR)),
            old.eq(states.read(qp)),
            self.on_qp_state.valid.eq(
                changes & (old != new) & ((old == QpState.ERR) | (new == QpState.ERR))
            ),
            self.on_qp_state.payload.qp.eq(qp),
            self.on_qp_state.payload.old.eq(old),
            self.on_qp_state.payload.new.eq(new),
            self.on_qp_state.payload.cause.eq(
                Mux(configuring, Status.SUCCESS.value, self.fails.status)
            ),
        ]
        states.write(qp, new, changes)
        return m
