"""Which blocks of which send queue are fetched next."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .config import ITEM_FRACTION, NicTiming
from .formats.context import SqContext, Table
from .formats.dma import ReadRequest
from .formats.events import (
    Dropped,
    DropReason,
    EventKind,
    FetchRequested,
    RingSeen,
    Stall,
    StallCause,
)
from .formats.op import PushLine, Resume, Retirement, Ring
from .formats.tlp import MarkKind
from .lib.delay import NEVER, NOW_BITS
from .lib.stream import connect, skid
from .lib.trace import Probe
from .qp_context import ConfigPort, ContextPort
from .qp_table import QpTable
from .turn_queue import TurnQueue
from .wqe_intake import PushedBlock

__all__ = ["WqScheduler"]

_TIME = NOW_BITS + ITEM_FRACTION


def _whole(time):
    """Whole cycles of a fixed-point time."""
    return time[ITEM_FRACTION:]


def _fixed(now):
    """A cycle number as fixed-point time."""
    return Cat(Const(0, ITEM_FRACTION), now)


class WqScheduler(wiring.Component):
    """Keeps the indices of all send queues, takes rings, and asks for blocks, QP after QP.

    A ring moves its QP's producer forward, if the new producer is ahead of the known one and at
    most one depth ahead of the fetched index; otherwise it is dropped with a DOORBELL_STALE event.
    A QP with blocks to fetch waits for its turn. In its turn it asks for as many blocks as it has,
    but not more than `fetch_blocks` and than its window has room for; where the run crosses the end
    of the ring, for two requests in succession. If it still has blocks, it goes to the back. A QP
    without room is parked until one of its WQEs retires. One that has used up its message rate goes
    to the back at once.

    A push is used only if nothing of its QP is to be fetched or under way, its window has room and
    its rate allows; otherwise its lines are dropped with a PUSH_NOT_USED event and the WQE is
    fetched.

    A QP that is held gets no turn, and pushes of it are not used. When it resumes, it goes on, or
    starts again with its oldest block that is not retired.

    The rate `qp_interval` counts WQEs, but their number is not known before they arrive: every
    block is charged as a WQE, and blocks which turn out to follow another one in their WQE are set
    off against the QP's next fetches.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    rings : In(stream of `Ring`)
    pushes : In(stream of `PushLine`)
    retired : In(`valid`, `payload`: Retirement)
        Taken in every cycle in which it is valid.
    config : In(ConfigPort)
        A write of an `SqContext` sets all indices of that QP. All that was rung must be retired;
        otherwise what is under way is mistaken for what comes then, and SQ_BUSY is told.
    hold : In(`valid`, `qp`)
    resume : In(`valid`, `payload`: Resume)
        Only if drained, and not in a cycle in which a WQE retires.
    finished : In(`valid`, `payload`: Retirement)
        A WQE was cut into packets.
    draining_qp : In(12), drained : Out(1)
        Whether every block that was asked for came in, and every whole WQE of them is finished
        (combinational).
    draining_arrived, whole : In(16)
        Look-up of `draining_qp` at the `WqeIntake`.
    restart : Out(`valid`, `qp`, `index`)
        To the `WqeIntake`: what comes next of a QP.
    sq : Out(ContextPort(SqContext))
    requests : Out(stream of `ReadRequest`)
        `context` is the QP; the mark is FETCH with the index of the first block.
    pushed : Out(stream of `PushedBlock`)
        Blocks of pushes that are used.
    asked_qp, turn_qp : Out(12), arrived, followers : In(16)
        Look-up at the `WqeIntake`: index of the next block of `asked_qp` to arrive; following
        blocks of `turn_qp` so far.
    now : In
        Cycle number.
    timing : In(NicTiming)
        `fetch_blocks`, `window_blocks` and `qp_interval` are looked at.
    quiet : Out(1)
        Nothing changes before `due`; parked QPs and blocks under way may exist.
    due : Out
        Cycle in which the rate of a QP allows its next fetch, if all that have a turn wait for
        that.
    on_ring_seen : Out(Probe)
        A ring was taken and was not stale.
    on_fetch_requested : Out(Probe)
        A request left.
    on_dropped : Out(Probe)
        `info` is the producer (DOORBELL_STALE) or the index of the push (PUSH_NOT_USED). A stale
        push gives the former only.
    on_busy : Out(Probe)
        DROPPED, SQ_BUSY.
    on_stall_window : Out(Probe)
        From the cycle in which a QP was parked while no other was, to the one in which none is any
        more.

    Timing
    ------
    A ring is taken in the cycle in which it is offered, except while lines of a push are passed on
    (one per cycle) and in the cycle in which the same QP's turn ends. A request is offered 3 cycles
    after the ring. One turn, thus one request, per cycle.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "rings": In(stream.Signature(Ring)),
                "pushes": In(stream.Signature(PushLine)),
                "retired": In(wiring.Signature({"valid": Out(1), "payload": Out(Retirement)})),
                "config": In(ConfigPort()),
                "hold": In(wiring.Signature({"valid": Out(1), "qp": Out(12)})),
                "resume": In(wiring.Signature({"valid": Out(1), "payload": Out(Resume)})),
                "finished": In(wiring.Signature({"valid": Out(1), "payload": Out(Retirement)})),
                "draining_qp": In(12),
                "drained": Out(1),
                "draining_arrived": In(16),
                "whole": In(16),
                "restart": Out(
                    wiring.Signature({"valid": Out(1), "qp": Out(12), "index": Out(16)})
                ),
                "sq": Out(ContextPort(SqContext)),
                "requests": Out(stream.Signature(ReadRequest)),
                "pushed": Out(stream.Signature(PushedBlock)),
                "push_room": In(1),
                "asked_qp": Out(12),
                "arrived": In(16),
                "turn_qp": Out(12),
                "followers": In(16),
                "now": In(NOW_BITS),
                "timing": In(NicTiming),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
                "on_ring_seen": Out(Probe(EventKind.RING_SEEN, RingSeen)),
                "on_fetch_requested": Out(Probe(EventKind.FETCH_REQUESTED, FetchRequested)),
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
                "on_busy": Out(Probe(EventKind.DROPPED, Dropped)),
                "on_stall_window": Out(Probe(EventKind.STALL, Stall)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.turns = turns = TurnQueue(self._structure, 3)
        m.submodules.request_queue = request_queue = skid(ReadRequest)
        connect(m, request_queue.o, self.requests)
        back, woken, fresh = turns.add

        def table(name, shape):
            return QpTable(m, name, shape, self._structure)

        # Indices of blocks: rung, asked for, cut into packets, retired. `pending`: the QP waits for
        # its turn, has it, or is parked.
        producer = table("producer", 16)
        fetched = table("fetched", 16)
        finished = table("finished", 16)
        retired = table("retired", 16)
        pending, parked, held = table("pending", 1), table("parked", 1), table("held", 1)
        # Time from which the rate allows a fetch; followers set off against it so far.
        allowed, set_off = table("allowed", _TIME), table("set_off", 16)
        depth_log2 = table("depth_log2", 4)

        loads = Signal()
        context = data.View(SqContext, self.config.payload.data[: data.Layout.cast(SqContext).size])
        m.d.comb += loads.eq(self.config.valid & (self.config.payload.table == Table.SQ))
        for each, start in (
            (producer, context.start_index),
            (fetched, context.start_index),
            (finished, context.start_index),
            (retired, context.start_index),
            (pending, 0),
            (parked, 0),
            (held, 0),
            (allowed, 0),
            (set_off, 0),
            (depth_log2, context.depth_log2),
        ):
            each.write(self.config.payload.index, start, loads)
        loaded, loaded_fetched = self.config.payload.index, fetched.read(self.config.payload.index)
        self._report_busy(
            m, loads, loaded, loaded_fetched, retired.read(loaded), pending.read(loaded)
        )

        # The QP that has its turn, since one cycle at least: its context is there. `rest`: blocks
        # of its turn behind the end of the ring.
        turn, turn_qp, rest = Signal(), Signal(12), Signal(6)

        # Rings.
        ring = self.rings.payload
        ends = Signal()
        passing, using, unparks = Signal(), Signal(), Signal()
        takes, ahead, known_ahead = Signal(), Signal(16), Signal(16)
        accepted, usable = Signal(), Signal()
        ring_fetched, ring_pending = fetched.read(ring.qp), pending.read(ring.qp)
        ring_held = held.read(ring.qp)
        ring_room = self._room(m, ring_fetched, retired.read(ring.qp), "ring_room")
        m.d.comb += [
            self.asked_qp.eq(ring.qp),
            # Rings are taken whatever fetches wait for: their completions come behind posted
            # writes. A ring waits only in the cycle in which its QP's turn ends, or it resumes.
            self.rings.ready.eq(
                ~passing
                & ~(ends & (turn_qp == ring.qp))
                & ~(self.resume.valid & (self.resume.payload.qp == ring.qp))
            ),
            takes.eq(self.rings.valid & self.rings.ready),
            ahead.eq(ring.producer - ring_fetched),
            known_ahead.eq(producer.read(ring.qp) - ring_fetched),
            accepted.eq((ahead > known_ahead) & ((ahead - 1) >> depth_log2.read(ring.qp) == 0)),
            usable.eq(
                accepted
                & ring.pushed
                & self.push_room
                & ~ring_pending
                & ~ring_held
                & (ring.index == ring_fetched)
                & (self.arrived == ring_fetched)
                & (ring_room >= ring.blocks)
                & (_whole(allowed.read(ring.qp)) <= self.now)
            ),
            fresh.qp.eq(ring.qp),
            fresh.valid.eq(takes & accepted & ~usable & ~ring_pending & ~ring_held),
        ]
        producer.write(ring.qp, ring.producer, takes & accepted)
        pending.write(ring.qp, 1, fresh.valid)
        fetched.write(ring.qp, ring_fetched + ring.blocks, takes & usable)
        allowed.write(ring.qp, _fixed(self.now) + self.timing.qp_interval, takes & usable)

        # Lines of a push are passed on or dropped before the next ring is taken.
        pushed_qp = Signal(12)
        with m.If(takes):
            m.d.sync += [passing.eq(ring.pushed), using.eq(usable), pushed_qp.eq(ring.qp)]
        with m.Elif(self.pushes.valid & self.pushes.ready & self.pushes.payload.last):
            m.d.sync += passing.eq(0)
        m.d.comb += [
            self.pushed.payload.qp.eq(pushed_qp),
            self.pushed.payload.data.eq(self.pushes.payload.data),
            self.pushed.valid.eq(passing & using & self.pushes.valid),
            self.pushes.ready.eq(passing & (self.pushed.ready | ~using)),
        ]

        # Retirements make room; a QP that resumes waits for its turn as if it had been rung.
        leaving, resume = self.retired.payload, self.resume
        waking, waking_parked = Signal(12), Signal()
        m.d.comb += [
            waking.eq(Mux(resume.valid, resume.payload.qp, leaving.qp)),
            waking_parked.eq(parked.read(waking)),
            woken.qp.eq(waking),
            woken.valid.eq(
                Mux(
                    resume.valid,
                    waking_parked | ~pending.read(waking),
                    self.retired.valid & waking_parked,
                )
            ),
            unparks.eq(woken.valid & waking_parked),
        ]
        retired.write(leaving.qp, retired.read(leaving.qp) + leaving.blocks, self.retired.valid)
        parked.write(waking, 0, woken.valid)
        pending.write(waking, 1, resume.valid)
        self._drain(m, fetched, finished, retired, held, turn & (turn_qp == self.draining_qp))

        # What the QP that has its turn may ask for.
        index, until = fetched.read(turn_qp), allowed.read(turn_qp)
        behind, window = Signal(16), self._room(m, index, retired.read(turn_qp), "window")
        first, wanted, count = Signal(6), Signal(6), Signal(6)
        slot, to_end = Signal(15), Signal(16)
        open_ = Signal()
        m.d.comb += [
            # Of a QP that is held there is nothing to be done.
            behind.eq(Mux(held.read(turn_qp), 0, producer.read(turn_qp) - index)),
            first.eq(self._least(m, self.timing.fetch_blocks, behind, window)),
            wanted.eq(Mux(rest != 0, rest, first)),
            to_end.eq((Const(1, 16) << self.sq.data.depth_log2)[:16] - slot),
            slot.eq(index & ((Const(1, 16) << self.sq.data.depth_log2)[:16] - 1)),
            count.eq(Mux(wanted > to_end, to_end, wanted)),
            open_.eq((_whole(until) <= self.now) | (rest != 0)),
        ]

        # What it does: nothing left; park; go to the back for the rate; ask.
        done, parks, waits, asks = Signal(), Signal(), Signal(), Signal()
        asked, more = Signal(), Signal()
        m.d.comb += [
            done.eq(turn & (behind == 0)),
            # Room that comes in this very cycle would be missed.
            parks.eq(
                turn
                & (behind != 0)
                & (window == 0)
                & ~(self.retired.valid & (leaving.qp == turn_qp))
            ),
            waits.eq(turn & (behind != 0) & (window != 0) & ~open_),
            asks.eq(turn & (behind != 0) & (window != 0) & open_),
            asked.eq(asks & request_queue.i.ready),
            more.eq(behind != count),
            ends.eq(done | parks | waits | (asked & (wanted == count))),
            back.qp.eq(turn_qp),
            back.valid.eq(waits | (asked & (wanted == count) & more)),
        ]
        pending.write(turn_qp, 0, done | (asked & (wanted == count) & ~more))
        parked.write(turn_qp, 1, parks)
        fetched.write(turn_qp, index + count, asked)
        with m.If(asked):
            m.d.sync += rest.eq(wanted - count)

        request = request_queue.i.payload
        m.d.comb += [
            request_queue.i.valid.eq(asks),
            request.address.eq(self.sq.data.base + Cat(Const(0, 6), slot)),
            request.length.eq(Cat(Const(0, 6), count)),
            request.context.eq(turn_qp),
            request.mark.kind.eq(MarkKind.FETCH),
            request.mark.qp.eq(turn_qp),
            request.mark.index.eq(index),
        ]

        # The rate: a QP that comes late only because others had their turns before it keeps its
        # place in time.
        start, follower_count, off, cost = Signal(_TIME), Signal(16), Signal(6), Signal(30)
        m.d.comb += [
            self.turn_qp.eq(turn_qp),
            start.eq(Mux(_whole(until) + turns.level + 1 >= self.now, until, _fixed(self.now))),
            follower_count.eq(self.followers - set_off.read(turn_qp)),
            off.eq(Mux(follower_count < count, follower_count, count)),
            cost.eq((count - off)[:6] * self.timing.qp_interval),
        ]
        allowed.write(turn_qp, start + cost, asked)
        set_off.write(turn_qp, set_off.read(turn_qp) + off, asked)

        # Once every QP has been sent to the back by its rate, nobody is looked at before the first
        # may go.
        looked_at, asleep = Signal(range(self._structure.qps + 1)), Signal()
        soonest = Signal(NOW_BITS, init=NEVER)
        m.d.comb += asleep.eq(
            (turns.level != 0) & (looked_at >= turns.level) & (soonest > self.now)
        )
        with m.If(woken.valid | fresh.valid | asked | parks | done | (soonest <= self.now)):
            m.d.sync += [looked_at.eq(0), soonest.eq(NEVER)]
        with m.Elif(waits):
            with m.If(looked_at != self._structure.qps):
                m.d.sync += looked_at.eq(looked_at + 1)
            with m.If(_whole(until) < soonest):
                m.d.sync += soonest.eq(_whole(until))

        # The next QP gets its turn; its context is read at the same time.
        gives = Signal()
        m.d.comb += [
            turns.o.ready.eq((~turn | ends) & ~asleep),
            gives.eq(turns.o.valid & turns.o.ready),
            self.sq.address.eq(Mux(gives, turns.o.payload, turn_qp)),
        ]
        with m.If(gives):
            m.d.sync += [turn.eq(1), turn_qp.eq(turns.o.payload), rest.eq(0)]
        with m.Elif(ends):
            m.d.sync += turn.eq(0)

        self._report_rings(m, takes, ring, accepted, usable)
        self._report_requests(m)
        self._report_window(m, parks, unparks)
        m.d.comb += [
            self.due.eq(Mux(asleep, soonest, NEVER)),
            self.quiet.eq(
                ((turns.level == 0) | asleep)
                & ~turn
                & ~passing
                & request_queue.empty
                & ~self.on_stall_window.valid
            ),
        ]
        return m

    def _drain(self, m, fetched, finished, retired, held, has_turn):
        """Holds a QP until nothing of it is under way, and starts it again."""
        done, qp, resume = self.finished.payload, self.draining_qp, self.resume.payload
        starts = Signal()
        m.d.comb += [
            self.drained.eq(
                ~has_turn
                & (fetched.read(qp) == self.draining_arrived)
                & (finished.read(qp) == self.whole)
            ),
            starts.eq(self.resume.valid & resume.again),
            self.restart.valid.eq(starts),
            self.restart.qp.eq(resume.qp),
            self.restart.index.eq(retired.read(resume.qp)),
        ]
        finished.write(done.qp, finished.read(done.qp) + done.blocks, self.finished.valid)
        held.write(self.hold.qp, 1, self.hold.valid)
        held.write(resume.qp, 0, self.resume.valid)
        for table in (fetched, finished):
            table.write(resume.qp, self.restart.index, starts)

    def _room(self, m, fetched, retired, name):
        """Blocks that the window of a QP has room for."""
        outstanding, room = Signal(16, name=f"{name}_used"), Signal(11, name=name)
        m.d.comb += [
            outstanding.eq(fetched - retired),
            room.eq(
                Mux(
                    outstanding < self.timing.window_blocks,
                    self.timing.window_blocks - outstanding,
                    0,
                )
            ),
        ]
        return room

    @staticmethod
    def _least(m, *values):
        least = values[0]
        for number, value in enumerate(values[1:]):
            smaller = Signal(len(least), name=f"least_{number}")
            m.d.comb += smaller.eq(Mux(value < least, value, least))
            least = smaller
        return least

    def _report_rings(self, m, takes, ring, accepted, usable):
        m.d.comb += [
            self.on_ring_seen.valid.eq(takes & accepted),
            self.on_ring_seen.payload.qp.eq(ring.qp),
            self.on_ring_seen.payload.producer.eq(ring.producer),
            self.on_ring_seen.payload.pushed.eq(usable),
            self.on_dropped.valid.eq(takes & (~accepted | (ring.pushed & ~usable))),
            self.on_dropped.payload.reason.eq(
                Mux(accepted, DropReason.PUSH_NOT_USED, DropReason.DOORBELL_STALE)
            ),
            self.on_dropped.payload.qp.eq(ring.qp),
            self.on_dropped.payload.info.eq(Mux(accepted, ring.index, ring.producer)),
        ]

    def _report_busy(self, m, loads, qp, fetched, retired, pending):
        m.d.comb += [
            self.on_busy.valid.eq(loads & ((fetched != retired) | pending)),
            self.on_busy.payload.reason.eq(DropReason.SQ_BUSY),
            self.on_busy.payload.qp.eq(qp),
            self.on_busy.payload.info.eq(Cat(fetched, retired)),
        ]

    def _report_requests(self, m):
        m.d.comb += [
            self.on_fetch_requested.valid.eq(self.requests.valid & self.requests.ready),
            self.on_fetch_requested.payload.qp.eq(self.requests.payload.mark.qp),
            self.on_fetch_requested.payload.wqe_index.eq(self.requests.payload.mark.index),
            self.on_fetch_requested.payload.blocks.eq(self.requests.payload.length[6:]),
        ]

    def _report_window(self, m, parks, wakes):
        """One event per stretch of time in which a QP is parked.

        It is measured with `now`, since a node with parked QPs may be quiet.
        """
        count, since, ended = Signal(range(self._structure.qps + 1)), Signal(NOW_BITS), Signal()
        m.d.sync += [
            count.eq(count + parks - wakes),
            ended.eq((count == 1) & wakes & ~parks),
        ]
        with m.If((count == 0) & parks):
            m.d.sync += since.eq(self.now)
        m.d.comb += [
            self.on_stall_window.valid.eq(ended),
            self.on_stall_window.payload.cause.eq(StallCause.WINDOW),
            self.on_stall_window.payload.cycles.eq(self.now - since),
        ]
