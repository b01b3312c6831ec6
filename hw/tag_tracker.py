"""The tags of DMA reads."""

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.tlp import CompletionBeat

__all__ = ["TagTracker"]


class TagTracker(wiring.Component):
    """Hands out tags, and knows what each one still waits for.

    Members
    -------
    limit : In(10)
        Tags in force.
    available, tag : Out
        A tag is free, and its index.
    take, address, length, position : In
        A read of `length` bytes at `address` (low bits) leaves with `tag`; its first line has that
        buffer position.
    completions : In(stream of `CompletionBeat`)
    accepted, write_position : Out
        The beat is in order, and belongs to that buffer position.
    error : Out(1)
        As in `dma_read.DmaRead`.
    """

    def __init__(self, tag_bits, tag_base, line_bits):
        self._tag_bits, self._tag_base, self._line_bits = tag_bits, tag_base, line_bits
        super().__init__(
            {
                "limit": In(10),
                "available": Out(1),
                "tag": Out(tag_bits),
                "take": In(1),
                "address": In(12),
                "length": In(13),
                "position": In(line_bits + 1),
                "completions": In(stream.Signature(CompletionBeat)),
                "accepted": Out(1),
                "write_position": Out(line_bits + 1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        beat, number = self.completions.payload, Signal(11)
        m.d.comb += number.eq(beat.tag - self._tag_base)
        place = self._places(m, number)
        waiting = self._waiting(m, number, beat.count)

        # A beat must bring the next bytes of its tag.
        expected, known, ends, agrees = Signal(12), Signal(), Signal(), Signal()
        m.d.comb += [
            known.eq(number < 1 << self._tag_bits),
            expected.eq(place.end - waiting),
            ends.eq(waiting == beat.count),
            agrees.eq(
                known
                & (waiting >= beat.count)
                & (waiting != 0)
                & (beat.address == expected)
                & ((beat.final & beat.last) == ends)
            ),
            self.completions.ready.eq(1),
            self.accepted.eq(self.completions.valid & agrees),
            self.write_position.eq(place.origin + beat.address[6:]),
        ]
        with m.If(self.completions.valid & ~agrees):
            m.d.sync += self.error.eq(1)

        self._tags(m, number, self.accepted & ends)
        return m

    def _tags(self, m, number, frees):
        """Free tags, in the order in which they became free; `number` is the next one."""
        depth = 1 << self._tag_bits
        m.submodules.free = free = memory.Memory(
            shape=self._tag_bits, depth=depth, init=range(depth)
        )
        freed, next_free = free.write_port(), free.read_port(domain="comb")
        give, back = Signal(self._tag_bits), Signal(self._tag_bits)
        in_flight = Signal(range(depth + 1))
        m.d.comb += [
            next_free.addr.eq(give),
            self.tag.eq(next_free.data),
            self.available.eq((in_flight < self.limit) & (in_flight != depth)),
            freed.addr.eq(back),
            freed.data.eq(number),
            freed.en.eq(frees),
        ]
        m.d.sync += [
            give.eq(give + self.take),
            back.eq(back + frees),
            in_flight.eq(in_flight + self.take - frees),
        ]

    def _places(self, m, number):
        """Where the bytes of tag `number` go, as `origin` (the position that an address of line 0
        within 4 KiB would have) and `end`.
        """
        layout = data.StructLayout({"origin": self._line_bits + 1, "end": 12})
        m.submodules.places = places = memory.Memory(
            shape=layout, depth=1 << self._tag_bits, init=[]
        )
        place_in, place = places.write_port(), places.read_port(domain="comb")
        m.d.comb += [
            place_in.addr.eq(self.tag),
            place_in.en.eq(self.take),
            place_in.data.origin.eq(self.position - self.address[6:]),
            place_in.data.end.eq(self.address + self.length),
            place.addr.eq(number),
        ]
        return place.data

    def _waiting(self, m, number, count):
        """Bytes that tag `number` still waits for, 0 if it is free; `count` of them come with an
        accepted beat.
        """
        m.submodules.ledger = ledger = memory.Memory(
            shape=unsigned(13), depth=1 << self._tag_bits, init=[]
        )
        opened, received = ledger.write_port(), ledger.write_port()
        waiting = ledger.read_port(domain="comb")
        m.d.comb += [
            opened.addr.eq(self.tag),
            opened.en.eq(self.take),
            opened.data.eq(self.length),
            waiting.addr.eq(number),
            received.addr.eq(number),
            received.en.eq(self.accepted),
            received.data.eq(waiting.data - count),
        ]
        return waiting.data
