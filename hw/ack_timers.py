"""One timer per queue pair: how long it waits for an ACK, or after an RNR NAK."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import Table, TxContext
from .lib.delay import NEVER, NOW_BITS, earliest
from .qp_context import ConfigPort, configures, context_in
from .qp_table import QpTable
from .timing import NicTiming
from .units import TIMER_FRACTION

__all__ = ["AckTimers", "Expired", "TimerAction"]


class TimerAction(enum.Enum, shape=2):
    """What becomes of the timer of a QP."""

    STOP = 0
    #: From now, the ACK timeout of its context (stopped, where that is never).
    ACK = 1
    #: From now, the wait of an RNR code.
    RNR = 2


class Expired(data.Struct):
    """A timer ran out."""

    qp: 12
    #: It was the wait after an RNR NAK.
    rnr: 1


class _Timer(data.Struct):
    armed: 1
    rnr: 1


class AckTimers(wiring.Component):
    """The timers of all QPs.

    Nobody looks at a timer while it runs. The earliest time that any of them was set to is kept; it
    is not raised when that timer is stopped or set again. When it comes, all QPs are looked at, one
    per cycle: what has run out is told, and the earliest time of the others is found.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    config : In(ConfigPort)
        Table.TX stops the timer and sets its timeout.
    set : In(`valid`, `qp`, `action`: TimerAction, `code`)
        Goes before `begin`; not in the cycle of a TX context.
    begin : In(`valid`, `qp`)
        As `set` with ACK, unless the timer runs.
    expired : Out(stream of `Expired`)
        Who takes it sets that timer in the same cycle.
    timing : In(NicTiming)
        `ack_unit` and `rnr_unit` are used.
    now : In
    busy : Out(1)
        There is something to do in the next cycle.
    due : Out
        A timer may run out then; `NEVER` if none runs.

    Timing
    ------
    A timer runs out at most `qps` cycles after its time, and what others have to say.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "config": In(ConfigPort()),
                "set": In(
                    wiring.Signature(
                        {"valid": Out(1), "qp": Out(12), "action": Out(TimerAction), "code": Out(5)}
                    )
                ),
                "begin": In(wiring.Signature({"valid": Out(1), "qp": Out(12)})),
                "expired": Out(stream.Signature(Expired)),
                "timing": In(NicTiming),
                "now": In(NOW_BITS),
                "busy": Out(1),
                "due": Out(NOW_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        timers = QpTable(m, "running", _Timer, self._structure)
        dues = QpTable(m, "dues", NOW_BITS, self._structure)
        exponents = QpTable(m, "exponents", 5, self._structure)

        # A new context stops its timer.
        context = context_in(self.config, TxContext)
        configured, configuring = self.config.payload.index, Signal()
        m.d.comb += configuring.eq(configures(self.config, Table.TX))
        exponents.write(configured, context.ack_timeout, configuring)
        timers.write(configured, Const(0, _Timer.as_shape().size), configuring)

        # Timers are set, or begin.
        rnr, sets, begins = Signal(), Signal(), Signal()
        m.d.comb += [
            rnr.eq(self.set.action == TimerAction.RNR),
            sets.eq(
                self.set.valid
                & (
                    rnr
                    | ((self.set.action == TimerAction.ACK) & (exponents.read(self.set.qp) != 0))
                )
            ),
            begins.eq(
                self.begin.valid
                & ~timers.read(self.begin.qp).armed
                & (exponents.read(self.begin.qp) != 0)
                & ~(self.set.valid & (self.set.qp == self.begin.qp))
                & ~(configuring & (configured == self.begin.qp))
            ),
        ]
        set_due, begin_due = Signal(NOW_BITS, init=NEVER), Signal(NOW_BITS, init=NEVER)
        with m.If(sets):
            m.d.comb += set_due.eq(
                self.now + Mux(rnr, self._rnr_wait(m), self._timeout(exponents.read(self.set.qp)))
            )
        with m.If(begins):
            m.d.comb += begin_due.eq(self.now + self._timeout(exponents.read(self.begin.qp)))
        timer, begun = Signal(_Timer), Signal(_Timer)
        m.d.comb += [timer.armed.eq(sets), timer.rnr.eq(sets & rnr), begun.armed.eq(1)]
        timers.write(self.set.qp, timer, self.set.valid)
        timers.write(self.begin.qp, begun, begins)
        dues.write(self.set.qp, set_due, sets)
        dues.write(self.begin.qp, begin_due, begins)

        # How many run.
        count = Signal(range(self._structure.qps + 1))
        m.d.sync += count.eq(
            count
            + begins
            + (sets & ~timers.read(self.set.qp).armed)
            - (self.set.valid & ~sets & timers.read(self.set.qp).armed)
            - (configuring & timers.read(configured).armed)
        )

        # The time has come: all are looked at.
        soonest = Signal(NOW_BITS, init=NEVER)
        starts, scanning, cursor = Signal(), Signal(), Signal(range(self._structure.qps))
        looked, over, passes = timers.read(cursor), Signal(), Signal()
        looked_due = Signal(NOW_BITS)
        m.d.comb += [
            looked_due.eq(dues.read(cursor)),
            starts.eq((count != 0) & (soonest <= self.now) & ~scanning),
            over.eq(scanning & looked.armed & (looked_due <= self.now)),
            self.expired.valid.eq(over),
            self.expired.payload.qp.eq(cursor),
            self.expired.payload.rnr.eq(looked.rnr),
            passes.eq(scanning & (~over | self.expired.ready)),
            self.busy.eq(scanning | starts),
            self.due.eq(Mux(count == 0, NEVER, soonest)),
        ]
        with m.If(starts):
            m.d.sync += [scanning.eq(1), cursor.eq(0)]
        with m.Elif(passes):
            m.d.sync += [
                cursor.eq(cursor + 1),
                scanning.eq(cursor != self._structure.qps - 1),
            ]
        with m.If(starts | scanning | sets | begins | (count == 0)):
            m.d.sync += soonest.eq(
                earliest(
                    m,
                    [
                        Mux(starts | (count == 0), NEVER, soonest),
                        Mux(scanning & looked.armed & ~over, looked_due, NEVER),
                        set_due,
                        begin_due,
                    ],
                )
            )
        return m

    def _timeout(self, exponent):
        """Cycles of an ACK timeout. Ref: InfiniBand vol. 1, 9.7.6.1.3 (4.096 us x 2^t)."""
        return ((self.timing.ack_unit << exponent) >> TIMER_FRACTION)[:NOW_BITS]

    def _rnr_wait(self, m):
        """Cycles of an RNR code: 1, 2, 3, then 4, 6, 8, 12 ... units; code 0 is the one after 31.

        Ref: InfiniBand vol. 1, 9.7.5.2.8 (table of RNR NAK timer values).
        """
        code, units = Signal(6), Signal(17)
        m.d.comb += [
            code.eq(Mux(self.set.code == 0, 32, self.set.code)),
            units.eq(Mux(code == 1, 1, (Const(2, 2) | code[0]) << (code[1:] - 1)[:4])),
        ]
        return (units * self.timing.rnr_unit) >> TIMER_FRACTION
