"""The doorbell page: posted writes become rings of a send queue."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .config import NicTiming
from .formats import mlx5
from .formats.context import SqContext
from .formats.events import Dropped, DropReason, EventKind, Stall, StallCause
from .formats.layout import lanes
from .formats.op import PushLine, Ring
from .formats.tlp import PostedBeat
from .lib.delay import NOW_BITS, DelayLine
from .lib.stream import Queue, connect
from .lib.trace import Probe, StallMeter
from .qp_context import ContextPort

__all__ = ["PUSH_LINES", "Doorbell"]

#: Lines of pushed WQEs that may wait.
PUSH_LINES = 64
#: Largest push in lines: a whole register.
_REGISTER_LINES = mlx5.UAR_BF_SIZE // mlx5.BLOCK_BYTES


class _Beat(data.Struct):
    """A beat of a write, with what its TLP is."""

    first: 1
    last: 1
    #: The TLP is a doorbell word, or a push of `lines` lines; neither: no doorbell at all.
    word: 1
    push: 1
    lines: 3
    #: Neither, but within a register: a later part of a push that got torn.
    piece: 1
    #: Offset in the page.
    offset: 12
    index: 16
    qpn: 24
    #: Blocks of the WQE.
    blocks: 5
    data: unsigned(512)


class Doorbell(wiring.Component):
    """Takes the posted writes that reach the NIC and rings send queues.

    A write of 8 bytes or more to the start of a register is a doorbell. One of 1 to 4 whole lines
    is a push (BlueFlame): a doorbell with its WQE behind it. A write to another place of a register
    is a later piece of a push that got torn (PUSH_PIECE event); any other is ignored with a
    DOORBELL_OFFSET event. The producer is index + ceil(ds / 4), so that both conventions of
    software fit: the last WQE's index with its ds, or the next index with 0.

    A push whose lines cannot be used (fewer lines than blocks, ds 0, no room for all of them) rings
    as a plain doorbell, with a PUSH_NOT_USED event. A doorbell of a QP without context is dropped
    with a DOORBELL_UNKNOWN_QP event.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    writes : In(stream of `PostedBeat`)
        All posted writes; only the address within the page is looked at.
    sq : Out(ContextPort(SqContext))
        Context of the QP that is rung.
    rings : Out(stream of `Ring`)
    pushes : Out(stream of `PushLine`)
        Lines of those rings that have `pushed` set, in order; all lines of a push are here before
        its ring is.
    now : In
        Cycle number.
    timing : In(NicTiming)
        `doorbell` and `doorbell_fifo_depth` are looked at.
    quiet : Out(1)
        Nothing changes before `due` unless a write comes in or a ring or a line is taken. Lines may
        wait for their ring meanwhile.
    due : Out
        Cycle in which the oldest ring will be offered.
    on_dropped : Out(Probe)
        At most one for each write; `info` is the offset (DOORBELL_OFFSET), the QPN
        (DOORBELL_UNKNOWN_QP) or the index (PUSH_NOT_USED).
    on_stall_fifo : Out(Probe)
        Cycles in which a write waited for room.

    Timing
    ------
    One beat per cycle. A ring is offered max(1, `doorbell`) + 1 cycles after the last beat of its
    write was accepted. Rings that wait, rings in the delay and a write under way together are at
    most `doorbell_fifo_depth`; then `writes` stalls.
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
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
                "on_stall_fifo": Out(Probe(EventKind.STALL, Stall)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.delay = delay = DelayLine(Ring, self._structure.doorbell_fifo)
        m.submodules.lines = lines = Queue(PushLine, PUSH_LINES)
        m.submodules.stall = stall = StallMeter(StallCause.DOORBELL_FIFO)

        # A doorbell needs a place in the FIFO from its first beat until its ring is taken.
        places = Signal(range(self._structure.doorbell_fifo + 1))
        accepted = Signal()
        m.d.comb += [
            self.writes.ready.eq(
                ~self.writes.payload.first | (places < self.timing.doorbell_fifo_depth)
            ),
            accepted.eq(self.writes.valid & self.writes.ready),
            stall.stalled.eq(self.writes.valid & ~self.writes.ready),
        ]
        incoming = self._parse(m, self.writes.payload)
        m.d.comb += self.sq.address.eq(incoming.qpn[: self._structure.qp_bits])

        # One cycle later the context is there: the first beat is judged, the verdict holds for the
        # others.
        beat, beat_valid = Signal(_Beat), Signal()
        m.d.sync += beat_valid.eq(accepted)
        with m.If(accepted):
            m.d.sync += beat.eq(incoming)
        known, pushed, rung = Signal(), Signal(), Signal()
        m.d.comb += [
            known.eq(self.sq.data.valid & (self.sq.data.qpn == beat.qpn)),
            rung.eq((beat.word | beat.push) & known),
            pushed.eq(
                rung
                & beat.push
                & (beat.blocks != 0)
                & (beat.blocks <= beat.lines)
                & (lines.level + beat.blocks <= PUSH_LINES)
            ),
        ]
        judging = beat_valid & beat.first

        ring, held_ring = Signal(Ring), Signal(Ring)
        held_rung = Signal()
        m.d.comb += [
            ring.qp.eq(beat.qpn[: self._structure.qp_bits]),
            ring.qpn.eq(beat.qpn),
            ring.producer.eq(beat.index + beat.blocks),
            ring.pushed.eq(pushed),
            ring.index.eq(beat.index),
            ring.blocks.eq(Mux(pushed, beat.blocks, 0)),
        ]
        with m.If(judging):
            m.d.sync += [held_ring.eq(ring), held_rung.eq(rung)]

        # The write rings when it has arrived whole.
        m.d.comb += [
            delay.i.payload.eq(Mux(beat.first, ring, held_ring)),
            delay.i.valid.eq(beat_valid & beat.last & Mux(beat.first, rung, held_rung)),
            delay.now.eq(self.now),
            delay.latency.eq(self.timing.doorbell),
        ]

        # Lines beyond the WQE's blocks are not kept.
        wanted, left = Signal(3), Signal(3)
        m.d.comb += [
            wanted.eq(Mux(beat.first, Mux(pushed, beat.blocks, 0), left)),
            lines.i.payload.data.eq(beat.data),
            lines.i.payload.last.eq(wanted == 1),
            lines.i.valid.eq(beat_valid & (wanted != 0)),
        ]
        with m.If(beat_valid):
            m.d.sync += left.eq(Mux(wanted == 0, 0, wanted - 1))

        connect(m, delay.o, self.rings)
        connect(m, lines.o, self.pushes)

        takes_place, frees_place, leaves = Signal(), Signal(), Signal()
        m.d.comb += [
            takes_place.eq(accepted & incoming.first & (incoming.word | incoming.push)),
            frees_place.eq(judging & (beat.word | beat.push) & ~known),
            leaves.eq(self.rings.valid & self.rings.ready),
        ]
        m.d.sync += places.eq(places + takes_place - frees_place - leaves)

        self._report(m, judging, beat, known, pushed)
        wiring.connect(m, stall.event, wiring.flipped(self.on_stall_fifo))
        m.d.comb += [
            self.due.eq(delay.due),
            self.quiet.eq(~beat_valid & delay.quiet & ~stall.event.valid),
        ]
        return m

    @staticmethod
    def _parse(m, write):
        """What a beat's write is, by its offset and length."""
        beat = Signal(_Beat)
        word = lanes(mlx5.Doorbell, write.data, 0)
        offset = write.address[:12]
        at_register, whole_lines = Signal(), Signal()
        m.d.comb += [
            # 0x800 + k * 0x100.
            at_register.eq(offset[11] & (offset[:8] == 0)),
            whole_lines.eq(
                at_register
                & (write.length[:6] == 0)
                & (write.length[6:] != 0)
                & (write.length[6:] <= _REGISTER_LINES)
            ),
            beat.first.eq(write.first),
            beat.last.eq(write.last),
            beat.push.eq(whole_lines),
            # A part of a push that got torn rings, too: its WQE is fetched.
            beat.word.eq(
                at_register
                & (write.length >= 8)
                & (write.length <= 64 * _REGISTER_LINES)
                & ~whole_lines
            ),
            beat.piece.eq(offset[11] & ~at_register),
            beat.lines.eq(write.length[6:]),
            beat.offset.eq(offset),
            beat.index.eq(word.index),
            beat.qpn.eq(word.qpn),
            beat.blocks.eq(mlx5.blocks_of(word.ds)),
            beat.data.eq(write.data),
        ]
        return beat

    def _report(self, m, judging, beat, known, pushed):
        """The event of a write that does not, or not fully, do what it asks for."""
        event = self.on_dropped
        qp = beat.qpn[: self._structure.qp_bits]
        with m.If(~beat.word & ~beat.push):
            m.d.comb += [
                event.valid.eq(judging),
                event.payload.reason.eq(
                    Mux(beat.piece, DropReason.PUSH_PIECE, DropReason.DOORBELL_OFFSET)
                ),
                event.payload.info.eq(beat.offset),
            ]
        with m.Elif(~known):
            m.d.comb += [
                event.valid.eq(judging),
                event.payload.reason.eq(DropReason.DOORBELL_UNKNOWN_QP),
                event.payload.qp.eq(qp),
                event.payload.info.eq(beat.qpn),
            ]
        with m.Elif(beat.push & ~pushed):
            m.d.comb += [
                event.valid.eq(judging),
                event.payload.reason.eq(DropReason.PUSH_NOT_USED),
                event.payload.qp.eq(qp),
                event.payload.info.eq(beat.index),
            ]
