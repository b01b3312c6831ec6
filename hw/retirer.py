"""The list of WQEs that wait for their acknowledgement, and their retirement."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .ack_checker import AckChecker, Identity
from .ack_timers import AckTimers, TimerAction
from .formats.context import Table, TxContext
from .formats.events import (
    AckReceived,
    Dropped,
    EventKind,
    QpStateChanged,
    Retired,
    Retransmitted,
)
from .formats.op import Completion, Resume, Retirement, Status
from .formats.roce import Aeth, WireBeat
from .lib.delay import NOW_BITS
from .lib.stream import Queue, connect
from .lib.trace import Probe
from .local_reads import LocalReads
from .outstanding import OutstandingList
from .psn_window import PsnWindow
from .qp_context import ConfigPort, configures, context_in
from .qp_state import QpStates
from .qp_table import QpTable
from .recovery import Recovery, Trigger
from .segmenter import Silenced, Started
from .timing import NicTiming

__all__ = ["Retirer"]


class Retirer(wiring.Component):
    """Keeps the outstanding WQEs of all QPs, in order, and retires them as they are acknowledged;
    has a QP start again where packets are lost, and ends it in error where that does not help.

    One thing is done at a time: a visit of a QP, or what starts one: a WQE for which no ACK will
    come, a timer that ran out, a QP that may resume, or an ACK, in this order.

    Parameters
    ----------
    structure : Structure
        `window_blocks` WQEs per QP.

    Members
    -------
    started : In
        `valid` (only with `room`), `payload: Started`.
    room : Out(1)
        One more WQE fits for the QP in `started.payload.qp`.
    sent : In(`valid`, `qp`, `psn`)
        The last beat of a packet left.
    dumped : In(stream of 12)
        All bytes of the oldest local read of a QP have come that lacked them.
    acks : In(stream of `WireBeat`)
    config : In(ConfigPort)
        Table.TX empties a QP and sets the oldest unacknowledged PSN. It takes the cycle.
    completions : Out(stream of `Completion`)
    retired : Out
        `valid`, `payload: Retirement`.
    hold : Out(`valid`, `qp`)
        A recovery begins.
    draining_qp : Out(12), drained : In(1)
        Whether everything fetched of that QP was started.
    resume : Out(`valid`, `payload`: Resume), restart_psn : Out(24)
        A recovery ends: the QP goes on, from that PSN if `again`.
    silenced : In(Silenced)
        What of the QP of `resume` passed in silence.
    recovering : Out(1)
        The QP of `started` recovers.
    ask : In(array of 12), failed : Out(array of 1)
        Whether a QP is in error, for three readers.
    timing : In(NicTiming)
    now : In
    busy : Out(1)
        There is something to do in the next cycle.
    due : Out
    on_ack_received, on_retired, on_dropped, on_retransmitted, on_qp_state : Out(Probe)

    Timing
    ------
    ACK accepted at t: its first WQE retires at t + 1, then one per cycle; the
    completion is offered one cycle later. Another ACK is accepted in the cycle in which nothing
    more is found to retire: one ACK that retires one WQE per 2 cycles. A WQE that sends nothing,
    started at t, retires at t + 2 if none is before it. Retiring stops while the queue of 16
    completions is full.
    """

    def __init__(self, structure):
        self._structure = structure
        pulse = wiring.Signature({"valid": Out(1), "qp": Out(12)})
        super().__init__(
            {
                "started": In(wiring.Signature({"valid": Out(1), "payload": Out(Started)})),
                "room": Out(1),
                "sent": In(wiring.Signature({"valid": Out(1), "qp": Out(12), "psn": Out(24)})),
                "dumped": In(stream.Signature(12)),
                "acks": In(stream.Signature(WireBeat)),
                "config": In(ConfigPort()),
                "completions": Out(stream.Signature(Completion)),
                "retired": Out(wiring.Signature({"valid": Out(1), "payload": Out(Retirement)})),
                "hold": Out(pulse),
                "draining_qp": Out(12),
                "drained": In(1),
                "resume": Out(wiring.Signature({"valid": Out(1), "payload": Out(Resume)})),
                "restart_psn": Out(24),
                "silenced": In(Silenced),
                "recovering": Out(1),
                "ask": In(12).array(3),
                "failed": Out(1).array(3),
                "timing": In(NicTiming),
                "now": In(NOW_BITS),
                "busy": Out(1),
                "due": Out(NOW_BITS),
                "on_ack_received": Out(Probe(EventKind.ACK_RECEIVED, AckReceived)),
                "on_retired": Out(Probe(EventKind.RETIRED, Retired)),
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
                "on_retransmitted": Out(Probe(EventKind.RETRANSMITTED, Retransmitted)),
                "on_qp_state": Out(Probe(EventKind.QP_STATE, QpStateChanged)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.states = self._states = QpStates(self._structure, 6)
        m.submodules.recovery = self._recovery = Recovery(self._structure, 4)
        m.submodules.timers = self._timers = AckTimers(self._structure)
        m.submodules.checker = self._checker = AckChecker()
        m.submodules.wqes = self._list = OutstandingList(self._structure)
        m.submodules.psns = self._psns = PsnWindow(self._structure)
        m.submodules.local_reads = self._local_reads = LocalReads(self._structure)
        m.submodules.visits = self._visits = Queue(self._structure.qp_bits, 16)
        m.submodules.queue = self._completions = Queue(Completion, 16)
        self._configure(m)
        self._start(m)
        self._visit(m)
        self._choose(m)
        self._fail(m)
        self._resume(m)
        self._time(m)
        self._report(m)
        return m

    def _configure(self, m):
        context = context_in(self.config, TxContext)
        self._configuring, identity = Signal(), Signal(Identity)
        self._identities = QpTable(m, "identities", Identity, self._structure)
        m.d.comb += [
            self._configuring.eq(configures(self.config, Table.TX)),
            identity.valid.eq(context.valid),
            identity.qpn.eq(context.qpn),
        ]
        self._identities.write(self.config.payload.index, identity, self._configuring)
        for block in (
            self._list,
            self._psns,
            self._local_reads,
            self._states,
            self._recovery,
            self._timers,
        ):
            m.d.comb += [
                block.config.valid.eq(self.config.valid),
                block.config.payload.eq(self.config.payload),
            ]

    def _start(self, m):
        """A WQE starts: to the end of its QP's list. It asks for a visit if no ACK will come for
        it: it sends nothing, or was acknowledged while it was fetched again. So does a local read
        that has its bytes.
        """
        start, dumped, local_reads = self.started, self.dumped, self._local_reads
        for block in (self._list, self._psns):
            m.d.comb += [
                block.started.valid.eq(start.valid),
                block.started.payload.eq(start.payload),
            ]
        m.d.comb += [
            self.room.eq(self._list.room & self._visits.i.ready),
            self._visits.i.valid.eq(
                Mux(
                    start.valid,
                    ~start.payload.entry.sends | self._psns.started_before,
                    dumped.valid,
                )
            ),
            self._visits.i.payload.eq(Mux(start.valid, start.payload.qp, dumped.payload)),
            dumped.ready.eq(~start.valid & self._visits.i.ready),
            local_reads.begun.valid.eq(start.valid & start.payload.entry.dumps),
            local_reads.begun.qp.eq(start.payload.qp),
            local_reads.came.valid.eq(dumped.valid & dumped.ready),
            local_reads.came.qp.eq(dumped.payload),
            self._recovery.ask[3].eq(start.payload.qp),
            self.recovering.eq(self._recovery.recovering[3]),
        ]

    def _visit(self, m):
        """A QP is visited: its oldest WQE retires if it is acknowledged, or sends nothing and waits
        for no bytes, or the QP is in error, until there is none.
        """
        self._visiting, self._resuming, qp = Signal(), Signal(), Signal(12)
        self._qp, self._ready, self._retires = qp, Signal(), Signal()
        self._oldest, self._any, self._base = (
            self._list.oldest,
            self._list.any,
            self._psns.visited_base,
        )
        self._visited_failed = self._states.failed[0]
        # The status of the next WQE that is found in error.
        self._errors = QpTable(m, "errors", Status, self._structure)
        beyond, acknowledged, lacks = Signal(24), Signal(), Signal()
        self._status, error = Signal(Status), self._errors.read(qp)
        self._takes_error = Signal()
        m.d.comb += [
            self._states.ask[0].eq(qp),
            self._list.qp.eq(qp),
            self._psns.visited_qp.eq(qp),
            # PSNs acknowledged beyond its last, modulo 2^24.
            beyond.eq(self._base - 1 - self._oldest.last_psn),
            self._local_reads.qp.eq(qp),
            lacks.eq(self._oldest.dumps & ~self._local_reads.there),
            acknowledged.eq(~beyond[-1] & ~lacks),
            self._ready.eq(
                self._any & ((~self._oldest.sends & ~lacks) | acknowledged | self._visited_failed)
            ),
            self._retires.eq(
                self._visiting & self._ready & self._completions.i.ready & ~self._configuring
            ),
            self._status.eq(self._oldest.status),
        ]
        with m.If(self._visited_failed & ~((self._oldest.status == Status.SUCCESS) & acknowledged)):
            m.d.comb += [
                # What the peer refuses, or does not answer, was sent.
                self._takes_error.eq((error != Status.SUCCESS) & self._oldest.sends),
                self._status.eq(Mux(self._takes_error, error, Status.FLUSHED)),
            ]
        # A QP that resumes starts with an empty list.
        self._resumes = Signal()
        m.d.comb += [
            self._resumes.eq(
                self._visiting & self._resuming & ~self._ready & self.drained & ~self._configuring
            ),
            self._list.drop.eq(self._retires),
            self._list.clear.eq(self._resumes),
            self._local_reads.drop.eq(self._retires & self._oldest.dumps),
            self._local_reads.clear.eq(self._resumes),
        ]

    def _choose(self, m):
        """What starts the next visit."""
        recovery, timers, checker = self._recovery, self._timers, self._checker
        visits, waiting, expired = self._visits.o, recovery.waiting, timers.expired
        beat = self.acks.payload
        ack_qp = Signal(12)
        idle = Signal()
        self._accepted, self._expires = Signal(), Signal()
        enters, abandons, drained = Signal(), Signal(), Signal()
        m.d.comb += [
            ack_qp.eq(beat.bth.dest_qp[: self._structure.qp_bits]),
            idle.eq((~self._visiting | (~self._ready & ~self._resuming)) & ~self._configuring),
            visits.ready.eq(idle),
            expired.ready.eq(idle & ~visits.valid),
            self._expires.eq(expired.valid & expired.ready),
            # Who may resume: a QP that is drained. One that was set up anew leaves the queue. A
            # local read that waits for its bytes has no PSN, so it must not be the oldest WQE then:
            # what is acknowledged behind it would be executed again.
            self.draining_qp.eq(waiting.payload),
            self._local_reads.asked_qp.eq(waiting.payload),
            drained.eq(self.drained & self._local_reads.settled),
            recovery.ask[0].eq(waiting.payload),
            abandons.eq(
                idle & ~visits.valid & ~expired.valid & waiting.valid & ~recovery.recovering[0]
            ),
            enters.eq(
                idle
                & ~visits.valid
                & ~expired.valid
                & waiting.valid
                & recovery.recovering[0]
                & drained
            ),
            waiting.ready.eq(abandons | self._resumes),
            self.acks.ready.eq(idle & ~visits.valid & ~expired.valid & ~abandons & ~enters),
            checker.beat.eq(beat),
            checker.identity.eq(self._identities.read(ack_qp)),
            self._psns.ack_qp.eq(ack_qp),
            checker.base.eq(self._psns.base),
            checker.end.eq(self._psns.end),
            self._states.ask[1].eq(ack_qp),
            checker.failed.eq(self._states.failed[1]),
            recovery.ask[1].eq(ack_qp),
            checker.recovering.eq(recovery.recovering[1]),
            self._accepted.eq(self.acks.valid & self.acks.ready & checker.good),
            self._psns.acknowledge.valid.eq(self._accepted),
            self._psns.acknowledge.psn.eq(checker.acknowledged),
        ]
        self._waiting_is_due = waiting.valid & (drained | ~recovery.recovering[0])
        self._ack_qp = ack_qp
        self._trigger_qp = Signal(12)
        m.d.comb += self._trigger_qp.eq(Mux(self._expires, expired.payload.qp, ack_qp))
        with m.If(self._resumes):
            m.d.sync += [self._visiting.eq(0), self._resuming.eq(0)]
        with m.Elif(idle):
            m.d.sync += [
                self._visiting.eq(visits.valid | self._expires | enters | self._accepted),
                self._resuming.eq(enters),
                self._qp.eq(
                    Mux(
                        visits.valid, visits.payload, Mux(enters, waiting.payload, self._trigger_qp)
                    )
                ),
            ]

    def _fail(self, m):
        """Retries and errors: what an ACK or a timer sets off, and a WQE that retires in error."""
        recovery, checker, expired = self._recovery, self._checker, self._timers.expired.payload
        trigger, states = recovery.trigger, self._states
        m.d.comb += [
            # A timer has lost its sense where nothing is outstanding any more.
            self._psns.expired_qp.eq(expired.qp),
            trigger.valid.eq(
                self._accepted | (self._expires & (expired.rnr | self._psns.expired_open))
            ),
            trigger.qp.eq(self._trigger_qp),
            trigger.progress.eq(self._accepted & checker.progress),
        ]
        with m.If(self._expires):
            m.d.comb += trigger.kind.eq(Mux(expired.rnr, Trigger.RNR_OVER, Trigger.TIMEOUT))
        with m.Elif(checker.is_error):
            m.d.comb += trigger.kind.eq(Trigger.FAILURE)
        with m.Elif(checker.is_rnr):
            m.d.comb += trigger.kind.eq(Trigger.RNR_NAK)
        with m.Elif(checker.is_sequence):
            m.d.comb += trigger.kind.eq(Trigger.SEQUENCE_NAK)

        given_up, cause, own = Signal(), Signal(Status), Signal()
        m.d.comb += [
            given_up.eq(trigger.valid & (recovery.exhausted | (trigger.kind == Trigger.FAILURE))),
            cause.eq(Status.TRANSPORT_RETRY_EXCEEDED),
            own.eq(self._retires & ~self._visited_failed & (self._oldest.status != Status.SUCCESS)),
            states.fails.valid.eq(given_up | own),
            states.fails.qp.eq(Mux(own, self._qp, self._trigger_qp)),
            states.fails.status.eq(Mux(own, self._oldest.status, cause)),
        ]
        with m.If(trigger.kind == Trigger.FAILURE):
            m.d.comb += cause.eq(checker.status)
        with m.Elif(trigger.kind == Trigger.RNR_NAK):
            m.d.comb += cause.eq(Status.RNR_RETRY_EXCEEDED)
        self._given_up = given_up
        # The oldest WQE takes the cause; those behind it are flushed.
        self._errors.write(self.config.payload.index, Status.SUCCESS, self._configuring)
        self._errors.write(
            Mux(given_up, self._trigger_qp, self._qp),
            Mux(given_up, cause, Status.SUCCESS),
            given_up | (self._retires & self._takes_error),
        )

    def _resume(self, m):
        """A drained QP starts again at its oldest unacknowledged packet, if there is one, or at
        what passed in silence.
        """
        recovery, resume = self._recovery, self.resume.payload
        recovery_ends = Signal()
        m.d.comb += [
            recovery_ends.eq(self._resumes & recovery.recovering[0]),
            self.hold.valid.eq(recovery.hold.valid),
            self.hold.qp.eq(recovery.hold.qp),
            self.resume.valid.eq(recovery_ends),
            resume.qp.eq(self._qp),
            resume.again.eq(self._any | self.silenced.any),
            resume.skip.eq(Mux(self._any, self._base - self._oldest.first_psn, 0)),
            self.restart_psn.eq(self._base),
        ]

    def _time(self, m):
        """The timer of a QP runs while a packet that left is not acknowledged."""
        timers, checker = self._timers, self._checker
        sent, psns = self.sent, self._psns
        m.d.comb += [
            psns.sent.valid.eq(sent.valid),
            psns.sent.qp.eq(sent.qp),
            psns.sent.psn.eq(sent.psn),
            self._recovery.ask[2].eq(sent.qp),
            self._states.ask[2].eq(sent.qp),
            timers.begin.valid.eq(
                sent.valid
                & psns.sent_open
                & ~self._recovery.recovering[2]
                & ~self._states.failed[2]
            ),
            timers.begin.qp.eq(sent.qp),
            timers.set.qp.eq(self._trigger_qp),
            timers.set.code.eq(data.View(Aeth, self.acks.payload.ext[:32]).syndrome[:5]),
            timers.set.valid.eq(
                self._expires
                # While it recovers, the timer rests or is that of an RNR wait.
                | (self._accepted & ~(checker.is_ack & checker.recovering))
            ),
            timers.timing.eq(self.timing),
            timers.now.eq(self.now),
            self.due.eq(timers.due),
        ]
        with m.If(self._accepted & ~self._given_up):
            with m.If(checker.is_rnr):
                m.d.comb += timers.set.action.eq(TimerAction.RNR)
            with m.Elif(checker.is_ack & psns.sent_beyond):
                m.d.comb += timers.set.action.eq(TimerAction.ACK)
        for reader in range(3):
            m.d.comb += [
                self._states.ask[3 + reader].eq(self.ask[reader]),
                self.failed[reader].eq(self._states.failed[3 + reader]),
            ]

    def _report(self, m):
        """What a retired WQE tells, and the events."""
        queue, completion, oldest = self._completions, self._completions.i.payload, self._oldest
        beat, aeth = self.acks.payload, data.View(Aeth, self.acks.payload.ext[:32])
        m.d.comb += [
            self.retired.valid.eq(self._retires),
            self.retired.payload.qp.eq(self._qp),
            self.retired.payload.blocks.eq(oldest.blocks),
            queue.i.valid.eq(self._retires & (oldest.signaled | (self._status != Status.SUCCESS))),
            completion.qp.eq(self._qp),
            completion.wqe_index.eq(oldest.wqe_index),
            completion.vendor_opcode.eq(oldest.vendor_opcode),
            completion.length.eq(oldest.length),
            completion.status.eq(self._status),
            self.on_retired.valid.eq(self._retires),
            self.on_retired.payload.qp.eq(self._qp),
            self.on_retired.payload.wqe_index.eq(oldest.wqe_index),
            self.on_retired.payload.blocks.eq(oldest.blocks),
            self.on_retired.payload.signaled.eq(oldest.signaled),
            self.on_retired.payload.status.eq(self._status),
            self.on_retransmitted.valid.eq(self.resume.valid & self.resume.payload.again),
            self.on_retransmitted.payload.qp.eq(self._qp),
            self.on_retransmitted.payload.psn.eq(self._base),
            self.on_retransmitted.payload.wqe_index.eq(
                Mux(self._any, oldest.wqe_index, self.silenced.wqe_index)
            ),
            self.on_retransmitted.payload.skip.eq(self.resume.payload.skip),
            self.on_retransmitted.payload.reason.eq(self._recovery.reason),
            self.on_ack_received.valid.eq(self._accepted),
            self.on_ack_received.payload.qp.eq(self._ack_qp),
            self.on_ack_received.payload.psn.eq(beat.bth.psn),
            self.on_ack_received.payload.syndrome.eq(aeth.syndrome),
            self.on_dropped.valid.eq(self.acks.valid & self.acks.ready & ~self._checker.good),
            self.on_dropped.payload.reason.eq(self._checker.reason),
            self.on_dropped.payload.qp.eq(beat.bth.dest_qp),
            self.on_dropped.payload.info.eq(Cat(beat.bth.psn, aeth.syndrome)),
            self.busy.eq(
                self._visiting
                | self._visits.o.valid
                | ~queue.empty
                | self._timers.busy
                | self._waiting_is_due
            ),
        ]
        connect(m, queue.o, self.completions)
        wiring.connect(m, self._states.on_qp_state, wiring.flipped(self.on_qp_state))
