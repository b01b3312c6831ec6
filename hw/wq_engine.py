"""The work-queue engine: from rings to operations."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .fence_gate import FenceGate
from .formats.context import SqContext
from .formats.dma import ReadLine, ReadRequest
from .formats.events import Dropped, EventKind, Fetched, FetchRequested, RingSeen, Stall
from .formats.op import Landing, Op, Piece, PushLine, Retirement, Ring
from .lib.delay import NOW_BITS, DelayLine, earliest
from .lib.stream import connect
from .lib.trace import Probe
from .qp_context import ConfigPort, ContextPort
from .recovery import RecoveryPort
from .timing import NicTiming
from .wq_scheduler import WqScheduler
from .wqe_decoder import WqeDecoder
from .wqe_intake import WqeBlock, WqeIntake

__all__ = ["WqEngine"]


#: Free blocks that a push needs: its own four, and as many that may be under way to the delay.
PUSH_ROOM = 8


class WqEngine(wiring.Component):
    """Fetches WQEs that were rung, or takes them from their push, and decodes them into operations,
    pieces and landings.

    Work of one QP is done in order, that of several QPs in turns. See `WqScheduler` for what is
    fetched when, `WqeIntake` for how blocks become WQEs, and `WqeDecoder` for what a WQE means.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    rings : In(stream of `Ring`)
    pushes : In(stream of `PushLine`)
        Lines of those rings that have `pushed` set.
    lines : In(stream of `ReadLine`)
        Answers to `requests`, in their order.
    retired : In(`valid`, `payload`: Retirement)
        At most one per cycle; always taken.
    config : In(ConfigPort)
    recovery : In(RecoveryPort)
        A QP that is held is not fetched any more; one that resumes may start again. An operation
        that was fenced goes on.
    sq : Out(ContextPort(SqContext))
    requests : Out(stream of `ReadRequest`)
        Runs of whole blocks.
    ops : Out(stream of `Op`)
    pieces : Out(stream of `Piece`)
        Pieces of all operations, in order; an operation is offered no later than its first piece.
        Those of one with a fence come after it has gone on.
    landings : Out(stream of `Landing`)
        Landings of all operations, in order; an operation is offered no later than its first one.
    now : In
        Cycle number.
    timing : In(NicTiming)
        `wqe`, `fetch_blocks`, `window_blocks`, `qp_interval`, `total_interval` and `max_inline` are
        looked at.
    quiet : Out(1)
        Nothing changes before `due` unless an input arrives. Blocks may be under way, QPs may be
        parked.
    due : Out on_ring_seen, on_fetch_requested, on_fetched, on_dropped, on_busy, on_stall_window,
    on_stall_rate : Out(Probe)
        FETCHED is when the last block of a WQE came in, before the delay `wqe`.

    Timing
    ------
    Ring to request 3 cycles, ring to the first block of its push 1 cycle. Last block of a WQE to
    its operation max(1, `wqe`) + 2 cycles if it has one segment in one block, and is taken 2 cycles
    later than the one before. At most `wqe_lines` blocks are in the delay.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "rings": In(stream.Signature(Ring)),
                "pushes": In(stream.Signature(PushLine)),
                "lines": In(stream.Signature(ReadLine)),
                "retired": In(wiring.Signature({"valid": Out(1), "payload": Out(Retirement)})),
                "config": In(ConfigPort()),
                "recovery": In(RecoveryPort()),
                "sq": Out(ContextPort(SqContext)),
                "requests": Out(stream.Signature(ReadRequest)),
                "ops": Out(stream.Signature(Op)),
                "pieces": Out(stream.Signature(Piece)),
                "landings": Out(stream.Signature(Landing)),
                "now": In(NOW_BITS),
                "timing": In(NicTiming),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
                "on_ring_seen": Out(Probe(EventKind.RING_SEEN, RingSeen)),
                "on_fetch_requested": Out(Probe(EventKind.FETCH_REQUESTED, FetchRequested)),
                "on_fetched": Out(Probe(EventKind.FETCHED, Fetched)),
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
                "on_busy": Out(Probe(EventKind.DROPPED, Dropped)),
                "on_stall_window": Out(Probe(EventKind.STALL, Stall)),
                "on_stall_rate": Out(Probe(EventKind.STALL, Stall)),
            }
        )
        self.decoder = WqeDecoder(structure)

    def elaborate(self, platform):
        m = Module()
        m.submodules.scheduler = scheduler = WqScheduler(self._structure)
        m.submodules.intake = intake = WqeIntake(self._structure)
        m.submodules.delay = delay = DelayLine(WqeBlock, self._structure.wqe_lines)
        m.submodules.decoder = decoder = self.decoder
        m.submodules.gate = gate = FenceGate()

        connect(m, self.rings, scheduler.rings)
        connect(m, self.pushes, scheduler.pushes)
        connect(m, scheduler.requests, self.requests)

        connect(m, self.lines, intake.lines)
        connect(m, scheduler.pushed, intake.pushed)
        connect(m, intake.o, delay.i)
        connect(m, delay.o, decoder.blocks)

        # A push is used only if it can go on at once: waiting for the decoder, it would block the
        # doorbells and, behind them, the completions that the decoder may wait for.
        held = Signal(range(self._structure.wqe_lines + 1))
        comes, goes = delay.i.valid & delay.i.ready, delay.o.valid & delay.o.ready
        m.d.sync += held.eq(held + comes - goes)
        m.d.comb += scheduler.push_room.eq(held <= self._structure.wqe_lines - PUSH_ROOM)

        connect(m, decoder.ops, self.ops)
        connect(m, decoder.pieces, gate.i)
        connect(m, gate.o, self.pieces)
        connect(m, decoder.landings, self.landings)

        m.d.comb += [
            scheduler.retired.valid.eq(self.retired.valid),
            scheduler.retired.payload.eq(self.retired.payload),
            self.sq.address.eq(scheduler.sq.address),
            scheduler.sq.data.eq(self.sq.data),
            intake.asked_qp.eq(scheduler.asked_qp),
            scheduler.arrived.eq(intake.arrived),
            intake.turn_qp.eq(scheduler.turn_qp),
            scheduler.followers.eq(intake.followers),
            scheduler.now.eq(self.now),
            delay.now.eq(self.now),
            decoder.now.eq(self.now),
            scheduler.timing.eq(self.timing),
            delay.latency.eq(self.timing.wqe),
            decoder.total_interval.eq(self.timing.total_interval),
            decoder.max_inline.eq(self.timing.max_inline),
            gate.passed.eq(self.recovery.unfenced),
        ]
        for block in (scheduler, intake):
            m.d.comb += [
                block.config.valid.eq(self.config.valid),
                block.config.payload.eq(self.config.payload),
            ]
        for block, name in (
            (scheduler, "on_ring_seen"),
            (scheduler, "on_fetch_requested"),
            (scheduler, "on_dropped"),
            (scheduler, "on_busy"),
            (scheduler, "on_stall_window"),
            (intake, "on_fetched"),
            (decoder, "on_stall_rate"),
        ):
            wiring.connect(m, getattr(block, name), wiring.flipped(getattr(self, name)))
        self._recover(m, scheduler, intake, decoder)
        m.d.comb += [
            self.quiet.eq(scheduler.quiet & delay.quiet & decoder.quiet),
            self.due.eq(earliest(m, [scheduler.due, delay.due])),
        ]
        return m

    def _recover(self, m, scheduler, intake, decoder):
        """Who takes part in a recovery: the scheduler holds and restarts, the intake forgets a part
        of a WQE, the decoder skips what is acknowledged, and asks who is in error.
        """
        port = self.recovery
        m.d.comb += [
            scheduler.hold.valid.eq(port.hold.valid),
            scheduler.hold.qp.eq(port.hold.qp),
            scheduler.finished.valid.eq(port.finished.valid),
            scheduler.finished.payload.eq(port.finished.payload),
            scheduler.draining_qp.eq(port.draining_qp),
            port.drained.eq(scheduler.drained),
            intake.draining_qp.eq(port.draining_qp),
            scheduler.draining_arrived.eq(intake.draining_arrived),
            scheduler.whole.eq(intake.whole),
            intake.restart.valid.eq(scheduler.restart.valid),
            intake.restart.qp.eq(scheduler.restart.qp),
            intake.restart.index.eq(scheduler.restart.index),
            port.asked_qp.eq(decoder.asked_qp),
            decoder.failed.eq(port.failed),
        ]
        for block in (scheduler, decoder):
            m.d.comb += [
                block.resume.valid.eq(port.resume.valid),
                block.resume.payload.eq(port.resume.payload),
            ]
