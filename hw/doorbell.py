"""The doorbell page: posted writes become rings of a send queue."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats import mlx5
from .formats.context import SqContext
from .formats.events import Dropped, DropReason, EventKind, Stall, StallCause
from .formats.layout import lanes
from .formats.op import PushLine, Ring
from .formats.tlp import ADDRESS_BITS, PostedBeat
from .lib.delay import NEVER, NOW_BITS, DelayLine
from .lib.stream import connect
from .lib.trace import Probe, StallMeter
from .push_store import PushStore
from .qp_context import ContextPort
from .timing import NicTiming

__all__ = ["PUSH_LINES", "Doorbell"]

#: Lines of pushed WQEs that may wait.
PUSH_LINES = 64
#: Largest push in lines: a whole register.
_REGISTER_LINES = mlx5.UAR_BF_SIZE // mlx5.BLOCK_BYTES


class _Beat(data.Struct):
    """A beat of a write, with what it is."""

    #: First of its TLP.
    first: 1
    #: A doorbell: the first beat of a TLP that begins at a register and is not longer than it.
    asks: 1
    #: A whole line.
    whole: 1
    address: ADDRESS_BITS
    index: 16
    qpn: 24
    #: Blocks of the WQE.
    blocks: 5
    data: unsigned(512)


class _Push(data.Struct):
    """A push whose lines are still coming."""

    #: What it rings when it is whole.
    ring: Ring
    #: Number of the line that is next, and lines still to come.
    line: ADDRESS_BITS - 6
    left: 3
    #: Cycle from which it is no longer waited for.
    until: NOW_BITS


class Doorbell(wiring.Component):
    """Takes the posted writes that reach the NIC and rings send queues.

    A write of 8 bytes or more to the start of a register is a doorbell. If it brings a whole line,
    it begins a push (BlueFlame): a doorbell with its WQE behind it, as many lines as the WQE has
    blocks, up to the register's 4. They come in one write or in several, one after the other to
    consecutive lines of the register, as a processor's write-combining buffers send them. Lines
    beyond the WQE are old ring content. The producer is index + ceil(ds / 4), so that both
    conventions of software fit: the last WQE's index with its ds, or the next index with 0.

    One push at a time is collected. It is torn if another write to its register, a doorbell of its
    QP or another push comes before its next line, or if it is not whole after `push_wait`. No ring
    is lost by that: a torn push rings as a plain doorbell, before what tore it, with a PUSH_TORN
    event, and its WQE is fetched. So does a push that cannot be used (ds 0, more blocks than a
    register has lines, no room for all of them), with a PUSH_NOT_USED event. A write to another
    place of a register is a later piece of such a push (PUSH_PIECE event); any other is ignored
    with a DOORBELL_OFFSET event, a doorbell of a QP without context with a DOORBELL_UNKNOWN_QP
    event.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    writes : In(stream of `PostedBeat`)
        All posted writes; only the address within the page tells what they are.
    sq : Out(ContextPort(SqContext))
        Context of the QP that is rung.
    rings : Out(stream of `Ring`)
    pushes : Out(stream of `PushLine`)
        Lines of those rings that have `pushed` set, in order; all lines of a push are here before
        its ring is.
    now : In
        Cycle number.
    timing : In(NicTiming)
        `doorbell`, `doorbell_fifo_depth` and `push_wait` are looked at.
    quiet : Out(1)
        Nothing changes before `due` unless a write comes in or a ring or a line is taken. Lines may
        wait for their ring, and a push for its next line, meanwhile.
    due : Out
        Cycle in which the oldest ring will be offered, or the push under way is given up.
    word : Out(`mlx5.Doorbell`)
        For waveforms: the first 8 bytes of the offered beat, read as a doorbell.
    on_dropped : Out(Probe)
        At most one for each write and each push; `info` is the offset (DOORBELL_OFFSET,
        PUSH_PIECE), the QPN (DOORBELL_UNKNOWN_QP) or the index (PUSH_NOT_USED, PUSH_TORN).
    on_stall_fifo : Out(Probe)
        Cycles in which a doorbell waited for room.

    Timing
    ------
    One beat per cycle; a write that tears a push takes one more, for its ring. A ring is offered
    max(1, `doorbell`) + 1 cycles after its write's first beat, a push's last line, was accepted.
    `push_wait` counts from the cycle after the push's first line was accepted. Rings that wait,
    rings in the delay and the push under way together are at most `doorbell_fifo_depth`; then
    doorbells, and what is behind them, wait.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "writes": In(stream.Signature(PostedBeat)),
                "sq": Out(ContextPort(SqContext)),
                "rings": Out(stream.Signature(Ring)),
                "pushes": Out(stream.Signature(PushLine)),
                "now": In(NOW_BITS),
                "timing": In(NicTiming),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
                "word": Out(mlx5.Doorbell),
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
                "on_stall_fifo": Out(Probe(EventKind.STALL, Stall)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.delay = delay = DelayLine(Ring, self._structure.doorbell_fifo)
        m.submodules.lines = lines = PushStore(PUSH_LINES)
        m.submodules.stall = stall = StallMeter(StallCause.DOORBELL_FIFO)
        connect(m, delay.o, self.rings)
        connect(m, lines.o, self.pushes)

        # A beat is looked at, and taken if there is a place for its ring.
        tears = Signal()
        incoming = self._parse(m, self.writes.payload)
        places, accepted = self._accept(m, incoming, tears, stall)

        # One cycle later the context is there, and the beat is judged.
        beat, held, judged = self._hold(m, incoming, accepted, tears)
        known, usable, begins = self._judge(m, beat, judged, lines.level)
        ring = self._ring(m, beat, usable)

        # It may begin, continue or end the push whose lines are still coming.
        push, under_way, continues = Signal(_Push), Signal(), Signal()
        ends, expired = Signal(), Signal()
        self._follow(m, push, under_way, beat, held, continues, expired, tears)
        m.d.comb += ends.eq(continues & (push.left == 1))
        self._collect(m, push, beat, ring, begins, continues)
        with m.If(begins | ends | tears):
            m.d.sync += under_way.eq(begins)
        m.d.comb += [
            lines.i.payload.data.eq(beat.data),
            lines.i.payload.last.eq(Mux(continues, push.left == 1, beat.blocks == 1)),
            lines.i.valid.eq((judged & usable) | continues),
            lines.revoke.eq(tears),
        ]

        # What rings: a torn push, a whole one, or the doorbell itself.
        m.d.comb += [
            delay.i.payload.eq(Mux(tears | ends, self._late(m, push, tears), ring)),
            delay.i.valid.eq(tears | ends | (judged & known & ~begins)),
            delay.now.eq(self.now),
            delay.latency.eq(self.timing.doorbell),
        ]
        self._count(m, places, accepted & incoming.asks, judged & beat.asks & ~known)

        self._report(m, beat, judged & beat.first & ~continues, known, usable, push, tears)
        wiring.connect(m, stall.event, wiring.flipped(self.on_stall_fifo))
        given_up = Signal(NOW_BITS)
        m.d.comb += [
            given_up.eq(Mux(under_way, push.until, NEVER)),
            self.due.eq(Mux(delay.due < given_up, delay.due, given_up)),
            self.quiet.eq(~held & delay.quiet & ~expired & ~stall.event.valid),
        ]
        return m

    def _parse(self, m, write):
        """What a beat is, by its place and length."""
        beat = Signal(_Beat)
        word = lanes(mlx5.Doorbell, write.data, 0)
        m.d.comb += self.word.eq(word)
        m.d.comb += [
            beat.first.eq(write.first),
            # 0x800 + k * 0x100.
            beat.asks.eq(
                write.first
                & write.address[11]
                & (write.address[:8] == 0)
                & (write.length >= 8)
                & (write.length <= mlx5.UAR_BF_SIZE)
            ),
            beat.whole.eq(write.count == mlx5.BLOCK_BYTES),
            beat.address.eq(write.address),
            beat.index.eq(word.index),
            beat.qpn.eq(word.qpn),
            beat.blocks.eq(mlx5.blocks_of(word.ds)),
            beat.data.eq(write.data),
        ]
        return beat

    def _accept(self, m, incoming, tears, stall):
        """Takes a beat. A doorbell needs a place in the FIFO until its ring is taken; while a torn
        push rings, the beat that tore it waits.
        """
        places, has_place = Signal(range(self._structure.doorbell_fifo + 1)), Signal()
        accepted = Signal()
        m.d.comb += [
            has_place.eq(~incoming.asks | (places < self.timing.doorbell_fifo_depth)),
            self.writes.ready.eq(has_place & ~tears),
            accepted.eq(self.writes.valid & self.writes.ready),
            stall.stalled.eq(self.writes.valid & ~has_place),
        ]
        return places, accepted

    def _hold(self, m, incoming, accepted, tears):
        """The beat that is judged, from the cycle after it was accepted; with its context."""
        beat, held, judged = Signal(_Beat), Signal(), Signal()
        m.d.sync += held.eq(accepted | (held & tears))
        with m.If(accepted):
            m.d.sync += beat.eq(incoming)
        m.d.comb += [
            self.sq.address.eq(Mux(tears, beat.qpn, incoming.qpn)[: self._structure.qp_bits]),
            judged.eq(held & ~tears),
        ]
        return beat, held, judged

    def _judge(self, m, beat, judged, waiting_lines):
        """Whether a beat is a doorbell of a known QP, brings lines that can be used, and is the
        first of several.
        """
        known, usable, begins = Signal(), Signal(), Signal()
        m.d.comb += [
            known.eq(beat.asks & self.sq.data.valid & (self.sq.data.qpn == beat.qpn)),
            usable.eq(
                known
                & beat.whole
                & (beat.blocks != 0)
                & (beat.blocks <= _REGISTER_LINES)
                & (waiting_lines + beat.blocks <= PUSH_LINES)
            ),
            begins.eq(judged & usable & (beat.blocks != 1)),
        ]
        return known, usable, begins

    def _ring(self, m, beat, usable):
        """What a doorbell rings, once its push is whole."""
        ring = Signal(Ring)
        m.d.comb += [
            ring.qp.eq(beat.qpn[: self._structure.qp_bits]),
            ring.qpn.eq(beat.qpn),
            ring.producer.eq(beat.index + beat.blocks),
            ring.pushed.eq(usable),
            ring.index.eq(beat.index),
            ring.blocks.eq(Mux(usable, beat.blocks, 0)),
        ]
        return ring

    def _follow(self, m, push, under_way, beat, held, continues, expired, tears):
        """Whether the beat is the next line of the push under way, or the end of it."""
        same_register, meets = Signal(), Signal()
        m.d.comb += [
            same_register.eq(beat.address[8:] == push.line[2:]),
            meets.eq(same_register | (beat.asks & (beat.whole | (beat.qpn == push.ring.qpn)))),
            continues.eq(under_way & held & beat.whole & (beat.address[6:] == push.line)),
            expired.eq(under_way & (push.until <= self.now)),
            tears.eq(under_way & ~continues & (expired | (held & meets))),
        ]

    def _collect(self, m, push, beat, ring, begins, continues):
        """Begins a push with the beat, or goes on to its next line."""
        with m.If(begins):
            m.d.sync += [
                push.ring.eq(ring),
                push.line.eq(beat.address[6:] + 1),
                push.left.eq(beat.blocks - 1),
                push.until.eq(self.now + self.timing.push_wait),
            ]
        with m.Elif(continues):
            m.d.sync += [push.line.eq(push.line + 1), push.left.eq(push.left - 1)]

    def _late(self, m, push, tears):
        """What a push rings at its end; torn, it is a plain doorbell."""
        late = Signal(Ring)
        m.d.comb += late.eq(push.ring)
        with m.If(tears):
            m.d.comb += [late.pushed.eq(0), late.blocks.eq(0)]
        return late

    def _count(self, m, places, takes, frees):
        """Places of the FIFO in use: of all that ask, until they ring nothing or their ring is
        taken.
        """
        takes_place, frees_place, leaves = Signal(), Signal(), Signal()
        m.d.comb += [
            takes_place.eq(takes),
            frees_place.eq(frees),
            leaves.eq(self.rings.valid & self.rings.ready),
        ]
        m.d.sync += places.eq(places + takes_place - frees_place - leaves)

    def _report(self, m, beat, first, known, usable, push, tears):
        """The event of a write or push that does not, or not fully, do what it asks for."""
        event = self.on_dropped
        with m.If(tears):
            m.d.comb += [
                event.valid.eq(1),
                event.payload.reason.eq(DropReason.PUSH_TORN),
                event.payload.qp.eq(push.ring.qp),
                event.payload.info.eq(push.ring.index),
            ]
        with m.Elif(~beat.asks):
            elsewhere = beat.address[11] & (beat.address[:8] != 0)
            m.d.comb += [
                event.valid.eq(first),
                event.payload.reason.eq(
                    Mux(elsewhere, DropReason.PUSH_PIECE, DropReason.DOORBELL_OFFSET)
                ),
                event.payload.info.eq(beat.address[:12]),
            ]
        with m.Elif(~known):
            m.d.comb += [
                event.valid.eq(first),
                event.payload.reason.eq(DropReason.DOORBELL_UNKNOWN_QP),
                event.payload.qp.eq(beat.qpn[: self._structure.qp_bits]),
                event.payload.info.eq(beat.qpn),
            ]
        with m.Elif(beat.whole & ~usable):
            m.d.comb += [
                event.valid.eq(first),
                event.payload.reason.eq(DropReason.PUSH_NOT_USED),
                event.payload.qp.eq(beat.qpn[: self._structure.qp_bits]),
                event.payload.info.eq(beat.index),
            ]
