"""Which queue pairs send again, since when, and how often they have."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import Table, TxContext
from .formats.events import RetryReason
from .formats.op import Resume, Retirement
from .lib.stream import Queue, connect
from .qp_context import ConfigPort, configures, context_in
from .qp_table import QpTable

__all__ = ["Recovery", "RecoveryPort", "Trigger"]


class RecoveryPort(wiring.Signature):
    """Between requester and work-queue engine, from the requester's side (decision 9).

    Members
    -------
    hold : Out(`valid`, `qp`)
        Nothing more of the QP is to be fetched.
    resume : Out(`valid`, `payload`: Resume)
        A held QP goes on. Only when it is drained, and in a cycle without a retirement.
    finished : Out(`valid`, `payload`: Retirement)
        An operation was cut into packets, all of them.
    unfenced : Out(1)
        An operation with a fence goes on that has pieces; they may be read.
    draining_qp : Out(12), drained : In(1)
        Whether everything that was fetched of a QP is finished (combinational).
    asked_qp : In(12), failed : Out(1)
        Whether a QP is in error (combinational).
    """

    def __init__(self):
        super().__init__(
            {
                "hold": Out(wiring.Signature({"valid": Out(1), "qp": Out(12)})),
                "resume": Out(wiring.Signature({"valid": Out(1), "payload": Out(Resume)})),
                "finished": Out(wiring.Signature({"valid": Out(1), "payload": Out(Retirement)})),
                "unfenced": Out(1),
                "draining_qp": Out(12),
                "drained": In(1),
                "asked_qp": In(12),
                "failed": Out(1),
            }
        )


class Trigger(enum.Enum, shape=3):
    """What happened to a QP."""

    ACK = 0
    SEQUENCE_NAK = 1
    TIMEOUT = 2
    RNR_NAK = 3
    #: The wait after an RNR NAK is over.
    RNR_OVER = 4
    #: It went into error.
    FAILURE = 5


class _Limits(data.Struct):
    retries: 3
    rnr: 3


class _Progress(data.Struct):
    #: From the trigger to the resumption.
    recovering: 1
    reason: RetryReason
    #: In the queue of those that may resume once they are drained.
    queued: 1


#: `rnr_retry` that never ends.
_FOR_EVER = 7


class Recovery(wiring.Component):
    """Counts retries and keeps the QPs that recover, until they may resume.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    config : In(ConfigPort)
        Table.TX ends a recovery and sets the limits.
    trigger : In(`valid`, `qp`, `kind`: Trigger, `progress`)
        `progress`: something was acknowledged by it, too, so that all counters start again. Not in
        the cycle of a TX context. SEQUENCE_NAK, TIMEOUT and RNR_NAK only while it is not
        recovering.
    exhausted : Out(1)
        Too often: it does not recover (combinational, of this trigger).
    hold : Out(`valid`, `qp`)
        A recovery begins.
    ask : In(array of 12), recovering : Out(array of 1)
        Whether a QP recovers (combinational).
    waiting : Out(stream of 12)
        The QP that is next to resume; taken when it has.
    reason : Out(RetryReason)
        Why that QP recovers.

    Timing
    ------
    A change shows in the next cycle.
    """

    def __init__(self, structure, readers):
        self._structure = structure
        super().__init__(
            {
                "config": In(ConfigPort()),
                "trigger": In(
                    wiring.Signature(
                        {"valid": Out(1), "qp": Out(12), "kind": Out(Trigger), "progress": Out(1)}
                    )
                ),
                "exhausted": Out(1),
                "hold": Out(wiring.Signature({"valid": Out(1), "qp": Out(12)})),
                "ask": In(12).array(readers),
                "recovering": Out(1).array(readers),
                "waiting": Out(stream.Signature(12)),
                "reason": Out(RetryReason, init=RetryReason.TIMEOUT),
            }
        )

    def elaborate(self, platform):
        m = Module()
        limits = QpTable(m, "limits", _Limits, self._structure)
        counters = QpTable(m, "counters", _Limits, self._structure)
        states = QpTable(m, "states", _Progress, self._structure)
        m.submodules.queue = queue = Queue(12, self._structure.qps)
        connect(m, queue.o, self.waiting)
        for qp, recovering in zip(self.ask, self.recovering, strict=True):
            m.d.comb += recovering.eq(states.read(qp).recovering)

        context = context_in(self.config, TxContext)
        configuring, configured = Signal(), self.config.payload.index
        fresh = Signal(_Limits)
        m.d.comb += [
            configuring.eq(configures(self.config, Table.TX)),
            fresh.retries.eq(context.retry_count),
            fresh.rnr.eq(context.rnr_retry),
        ]
        limits.write(configured, fresh, configuring)

        # How often it may still be. Progress starts all counters again.
        qp, kind = self.trigger.qp, self.trigger.kind
        left, spent = Signal(_Limits), Signal(_Limits)
        is_rnr, retries = kind == Trigger.RNR_NAK, Signal()
        begins = Signal()
        m.d.comb += [
            left.eq(Mux(self.trigger.progress, limits.read(qp), counters.read(qp))),
            retries.eq((kind == Trigger.SEQUENCE_NAK) | (kind == Trigger.TIMEOUT) | is_rnr),
            self.exhausted.eq(retries & (Mux(is_rnr, left.rnr, left.retries) == 0)),
            begins.eq(self.trigger.valid & retries & ~self.exhausted),
            spent.retries.eq(left.retries - (retries & ~is_rnr)),
            spent.rnr.eq(left.rnr - (is_rnr & (left.rnr != _FOR_EVER))),
            self.hold.valid.eq(begins),
            self.hold.qp.eq(qp),
        ]
        counters.write(
            Mux(configuring, configured, qp),
            Mux(configuring, fresh, spent),
            configuring | (self.trigger.valid & (begins | self.trigger.progress)),
        )

        # It queues to resume: at once, or when its wait is over or has lost its sense.
        before, after = states.read(qp), Signal(_Progress)
        queues = Signal()
        m.d.comb += [
            queues.eq(
                self.trigger.valid
                & ~before.queued
                & (
                    (begins & ~is_rnr)
                    | (before.recovering & (kind == Trigger.RNR_OVER))
                    | (before.recovering & (kind == Trigger.FAILURE))
                )
            ),
            queue.i.valid.eq(queues),
            queue.i.payload.eq(qp),
            after.recovering.eq(before.recovering | begins),
            after.reason.eq(before.reason),
            after.queued.eq(before.queued | queues),
        ]
        with m.If(begins):
            m.d.comb += after.reason.eq(
                Mux(
                    is_rnr,
                    RetryReason.RNR,
                    Mux(kind == Trigger.TIMEOUT, RetryReason.TIMEOUT, RetryReason.SEQUENCE_NAK),
                )
            )

        # Who resumes recovers no more. A new context ends a recovery, but not its place in the
        # queue.
        resumes, kept, done = Signal(), Signal(_Progress), Signal(_Progress)
        m.d.comb += [
            resumes.eq(queue.o.valid & queue.o.ready),
            self.reason.eq(states.read(queue.o.payload).reason),
            kept.reason.eq(RetryReason.TIMEOUT),
            kept.queued.eq(states.read(configured).queued),
            done.reason.eq(RetryReason.TIMEOUT),
        ]
        states.write(
            Mux(configuring, configured, Mux(resumes, queue.o.payload, qp)),
            Mux(configuring, kept, Mux(resumes, done, after)),
            configuring | resumes | self.trigger.valid,
        )
        return m
