"""Which blocks of which send queue are fetched next."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import SqContext, Table
from .formats.dma import ReadRequest
from .formats.events import (
    Dropped,
    DropReason,
    EventKind,
    FetchRequested,
    RingSeen,
    Stall,
)
from .formats.op import PushLine, Resume, Retirement, Ring
from .formats.tlp import MarkKind
from .lib.delay import NEVER, NOW_BITS
from .lib.stream import connect, skid
from .lib.trace import Probe
from .qp_context import ConfigPort, ContextPort, configures, context_in
from .qp_table import QpTable
from .timing import NicTiming
from .turn_queue import TurnNap, TurnQueue, WindowMeter
from .units import ITEM_FRACTION
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
        m.submodules.turns = self._turns = TurnQueue(self._structure, 3)
        m.submodules.nap = self._nap = TurnNap(self._structure)
        m.submodules.window_meter = self._window_meter = WindowMeter(self._structure)
        m.submodules.request_queue = self._request_queue = skid(ReadRequest)
        connect(m, self._request_queue.o, self.requests)
        wiring.connect(m, self._window_meter.event, wiring.flipped(self.on_stall_window))
        self._back, self._woken, self._fresh = self._turns.add
        # The QP that has its turn, since one cycle at least: its context is there. `rest`: blocks
        # of its turn behind the end of the ring.
        self._turn, self._turn_qp, self._rest = Signal(), Signal(12), Signal(6)
        self._ends = Signal()

        self._tables(m)
        self._take_rings(m)
        self._pass_pushes(m)
        self._wake(m)
        self._drain(m)
        self._plan(m)
        self._ask(m)
        self._keep_rate(m)
        self._give_turns(m)
        self._report_rings(m)
        self._report_requests(m)
        m.d.comb += [
            self.due.eq(Mux(self._nap.asleep, self._nap.until, NEVER)),
            self.quiet.eq(
                ((self._turns.level == 0) | self._nap.asleep)
                & ~self._turn
                & ~self._passing
                & self._request_queue.empty
                & ~self.on_stall_window.valid
            ),
        ]
        return m

    def _tables(self, m):
        def table(name, shape):
            return QpTable(m, name, shape, self._structure)

        # Indices of blocks: rung, asked for, cut into packets, retired. `pending`: the QP waits for
        # its turn, has it, or is parked.
        self._producer, self._fetched = table("producer", 16), table("fetched", 16)
        self._finished, self._retired = table("finished", 16), table("retired", 16)
        self._pending, self._parked = table("pending", 1), table("parked", 1)
        self._held = table("held", 1)
        # Time from which the rate allows a fetch; followers set off against it so far.
        self._allowed, self._set_off = table("allowed", _TIME), table("set_off", 16)
        self._depth_log2 = table("depth_log2", 4)

        loads, loaded = Signal(), self.config.payload.index
        context = context_in(self.config, SqContext)
        m.d.comb += loads.eq(configures(self.config, Table.SQ))
        for each, start in (
            (self._producer, context.start_index),
            (self._fetched, context.start_index),
            (self._finished, context.start_index),
            (self._retired, context.start_index),
            (self._pending, 0),
            (self._parked, 0),
            (self._held, 0),
            (self._allowed, 0),
            (self._set_off, 0),
            (self._depth_log2, context.depth_log2),
        ):
            each.write(loaded, start, loads)

        fetched, retired = self._fetched.read(loaded), self._retired.read(loaded)
        m.d.comb += [
            self.on_busy.valid.eq(loads & ((fetched != retired) | self._pending.read(loaded))),
            self.on_busy.payload.reason.eq(DropReason.SQ_BUSY),
            self.on_busy.payload.qp.eq(loaded),
            self.on_busy.payload.info.eq(Cat(fetched, retired)),
        ]

    def _take_rings(self, m):
        """A ring moves the producer, and its QP waits for a turn, if its push is not used."""
        ring = self.rings.payload
        self._passing, self._takes = Signal(), Signal()
        self._accepted, self._usable = accepted, usable = Signal(), Signal()
        ahead, known_ahead = Signal(16), Signal(16)
        fetched, pending = self._fetched.read(ring.qp), self._pending.read(ring.qp)
        held = self._held.read(ring.qp)
        room = self._room(m, fetched, self._retired.read(ring.qp), "ring_room")
        m.d.comb += [
            self.asked_qp.eq(ring.qp),
            # Rings are taken whatever fetches wait for: their completions come behind posted
            # writes. A ring waits only in the cycle in which its QP's turn ends, or it resumes.
            self.rings.ready.eq(
                ~self._passing
                & ~(self._ends & (self._turn_qp == ring.qp))
                & ~(self.resume.valid & (self.resume.payload.qp == ring.qp))
            ),
            self._takes.eq(self.rings.valid & self.rings.ready),
            ahead.eq(ring.producer - fetched),
            known_ahead.eq(self._producer.read(ring.qp) - fetched),
            accepted.eq(
                (ahead > known_ahead) & ((ahead - 1) >> self._depth_log2.read(ring.qp) == 0)
            ),
            usable.eq(
                accepted
                & ring.pushed
                & self.push_room
                & ~pending
                & ~held
                & (ring.index == fetched)
                & (self.arrived == fetched)
                & (room >= ring.blocks)
                & (_whole(self._allowed.read(ring.qp)) <= self.now)
            ),
            self._fresh.qp.eq(ring.qp),
            self._fresh.valid.eq(self._takes & accepted & ~usable & ~pending & ~held),
        ]
        uses = self._takes & usable
        self._producer.write(ring.qp, ring.producer, self._takes & accepted)
        self._pending.write(ring.qp, 1, self._fresh.valid)
        self._fetched.write(ring.qp, fetched + ring.blocks, uses)
        self._allowed.write(ring.qp, _fixed(self.now) + self.timing.qp_interval, uses)

    def _pass_pushes(self, m):
        """Lines of a push are passed on or dropped before the next ring is taken."""
        passing, using, qp = self._passing, Signal(), Signal(12)
        with m.If(self._takes):
            m.d.sync += [
                passing.eq(self.rings.payload.pushed),
                using.eq(self._usable),
                qp.eq(self.rings.payload.qp),
            ]
        with m.Elif(self.pushes.valid & self.pushes.ready & self.pushes.payload.last):
            m.d.sync += passing.eq(0)
        m.d.comb += [
            self.pushed.payload.qp.eq(qp),
            self.pushed.payload.data.eq(self.pushes.payload.data),
            self.pushed.valid.eq(passing & using & self.pushes.valid),
            self.pushes.ready.eq(passing & (self.pushed.ready | ~using)),
        ]

    def _wake(self, m):
        """Retirements make room; a QP that resumes waits for its turn as if it had been rung."""
        leaving, resume = self.retired.payload, self.resume
        qp, parked = Signal(12), Signal()
        m.d.comb += [
            qp.eq(Mux(resume.valid, resume.payload.qp, leaving.qp)),
            parked.eq(self._parked.read(qp)),
            self._woken.qp.eq(qp),
            self._woken.valid.eq(
                Mux(
                    resume.valid,
                    parked | ~self._pending.read(qp),
                    self.retired.valid & parked,
                )
            ),
            self._window_meter.wakes.eq(self._woken.valid & parked),
        ]
        self._retired.write(
            leaving.qp, self._retired.read(leaving.qp) + leaving.blocks, self.retired.valid
        )
        self._parked.write(qp, 0, self._woken.valid)
        self._pending.write(qp, 1, resume.valid)

    def _drain(self, m):
        """A QP is held until nothing of it is under way, and started again."""
        done, qp, resume = self.finished.payload, self.draining_qp, self.resume.payload
        starts = Signal()
        m.d.comb += [
            self.drained.eq(
                ~(self._turn & (self._turn_qp == qp))
                & (self._fetched.read(qp) == self.draining_arrived)
                & (self._finished.read(qp) == self.whole)
            ),
            starts.eq(self.resume.valid & resume.again),
            self.restart.valid.eq(starts),
            self.restart.qp.eq(resume.qp),
            self.restart.index.eq(self._retired.read(resume.qp)),
        ]
        self._finished.write(
            done.qp, self._finished.read(done.qp) + done.blocks, self.finished.valid
        )
        self._held.write(self.hold.qp, 1, self.hold.valid)
        self._held.write(resume.qp, 0, self.resume.valid)
        for table in (self._fetched, self._finished):
            table.write(resume.qp, self.restart.index, starts)

    def _plan(self, m):
        """What the QP that has its turn may ask for."""
        qp, rest = self._turn_qp, self._rest
        self._index, self._until = index, until = self._fetched.read(qp), self._allowed.read(qp)
        self._behind, self._window = (
            Signal(16),
            self._room(m, index, self._retired.read(qp), "window"),
        )
        self._wanted, self._count, self._slot = Signal(6), Signal(6), Signal(15)
        first, depth, to_end = Signal(6), Signal(16), Signal(16)
        self._open = Signal()
        m.d.comb += [
            self.turn_qp.eq(qp),
            # Of a QP that is held there is nothing to be done.
            self._behind.eq(Mux(self._held.read(qp), 0, self._producer.read(qp) - index)),
            first.eq(self._least(m, self.timing.fetch_blocks, self._behind, self._window)),
            self._wanted.eq(Mux(rest != 0, rest, first)),
            depth.eq(Const(1, 16) << self.sq.data.depth_log2),
            self._slot.eq(index & (depth - 1)),
            to_end.eq(depth - self._slot),
            self._count.eq(Mux(self._wanted > to_end, to_end, self._wanted)),
            self._open.eq((_whole(until) <= self.now) | (rest != 0)),
        ]

    def _ask(self, m):
        """What it does: nothing left; park; go to the back for the rate; ask."""
        turn, qp, behind, window = self._turn, self._turn_qp, self._behind, self._window
        self._done, self._parks, self._waits = done, parks, waits = Signal(), Signal(), Signal()
        asks, last, more = Signal(), Signal(), Signal()
        self._asked = asked = Signal()
        request_queue = self._request_queue
        m.d.comb += [
            done.eq(turn & (behind == 0)),
            # Room that comes in this very cycle would be missed.
            parks.eq(
                turn
                & (behind != 0)
                & (window == 0)
                & ~(self.retired.valid & (self.retired.payload.qp == qp))
            ),
            waits.eq(turn & (behind != 0) & (window != 0) & ~self._open),
            asks.eq(turn & (behind != 0) & (window != 0) & self._open),
            asked.eq(asks & request_queue.i.ready),
            last.eq(asked & (self._wanted == self._count)),
            more.eq(behind != self._count),
            self._ends.eq(done | parks | waits | last),
            self._back.qp.eq(qp),
            self._back.valid.eq(waits | (last & more)),
            self._window_meter.parks.eq(parks),
            self._window_meter.now.eq(self.now),
        ]
        self._pending.write(qp, 0, done | (last & ~more))
        self._parked.write(qp, 1, parks)
        self._fetched.write(qp, self._index + self._count, asked)
        with m.If(asked):
            m.d.sync += self._rest.eq(self._wanted - self._count)

        request = request_queue.i.payload
        m.d.comb += [
            request_queue.i.valid.eq(asks),
            request.address.eq(self.sq.data.base + Cat(Const(0, 6), self._slot)),
            request.length.eq(Cat(Const(0, 6), self._count)),
            request.context.eq(qp),
            request.mark.kind.eq(MarkKind.FETCH),
            request.mark.qp.eq(qp),
            request.mark.index.eq(self._index),
        ]

    def _keep_rate(self, m):
        """The rate: a QP that comes late only because others had their turns before it keeps its
        place in time.
        """
        qp, until, count = self._turn_qp, self._until, self._count
        start, followers, off, cost = Signal(_TIME), Signal(16), Signal(6), Signal(30)
        level = self._turns.level
        m.d.comb += [
            start.eq(Mux(_whole(until) + level + 1 >= self.now, until, _fixed(self.now))),
            followers.eq(self.followers - self._set_off.read(qp)),
            off.eq(Mux(followers < count, followers, count)),
            cost.eq((count - off)[:6] * self.timing.qp_interval),
        ]
        self._allowed.write(qp, start + cost, self._asked)
        self._set_off.write(qp, self._set_off.read(qp) + off, self._asked)

        nap = self._nap
        m.d.comb += [
            nap.now.eq(self.now),
            nap.level.eq(level),
            nap.moves.eq(
                self._woken.valid | self._fresh.valid | self._asked | self._parks | self._done
            ),
            nap.waits.eq(self._waits),
            nap.allowed.eq(_whole(until)),
        ]

    def _give_turns(self, m):
        """The next QP gets its turn; its context is read at the same time."""
        turns, gives = self._turns.o, Signal()
        m.d.comb += [
            turns.ready.eq((~self._turn | self._ends) & ~self._nap.asleep),
            gives.eq(turns.valid & turns.ready),
            self.sq.address.eq(Mux(gives, turns.payload, self._turn_qp)),
        ]
        with m.If(gives):
            m.d.sync += [self._turn.eq(1), self._turn_qp.eq(turns.payload), self._rest.eq(0)]
        with m.Elif(self._ends):
            m.d.sync += self._turn.eq(0)

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

    def _report_rings(self, m):
        ring, accepted, usable = self.rings.payload, self._accepted, self._usable
        m.d.comb += [
            self.on_ring_seen.valid.eq(self._takes & accepted),
            self.on_ring_seen.payload.qp.eq(ring.qp),
            self.on_ring_seen.payload.producer.eq(ring.producer),
            self.on_ring_seen.payload.pushed.eq(usable),
            self.on_dropped.valid.eq(self._takes & (~accepted | (ring.pushed & ~usable))),
            self.on_dropped.payload.reason.eq(
                Mux(accepted, DropReason.PUSH_NOT_USED, DropReason.DOORBELL_STALE)
            ),
            self.on_dropped.payload.qp.eq(ring.qp),
            self.on_dropped.payload.info.eq(Mux(accepted, ring.index, ring.producer)),
        ]

    def _report_requests(self, m):
        request = self.requests.payload
        m.d.comb += [
            self.on_fetch_requested.valid.eq(self.requests.valid & self.requests.ready),
            self.on_fetch_requested.payload.qp.eq(request.mark.qp),
            self.on_fetch_requested.payload.wqe_index.eq(request.mark.index),
            self.on_fetch_requested.payload.blocks.eq(request.length[6:]),
        ]
