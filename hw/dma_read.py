"""The NIC's DMA read engine: reads are answered in any order, their lines leave in order."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.dma import ReadLine, ReadRequest
from .formats.events import EventKind, Stall, StallCause
from .formats.tlp import ADDRESS_BITS, CompletionBeat, Port, ReadBeat
from .lib.align import bytes_to_boundary
from .lib.stream import Queue, connect
from .lib.trace import Probe, StallMeter

__all__ = ["DmaRead"]


def _exact_log2(name, value):
    if value < 2 or value & (value - 1):
        raise ValueError(f"{name} = {value}: allowed powers of two from 2")
    return value.bit_length() - 1


class DmaRead(wiring.Component):
    """Reads memory over PCIe and returns the bytes as lines, in the order of the requests.

    A request is split at MRRS-aligned addresses, so that no read crosses 4 KiB. Its first read
    leaves only when the line buffer has room for the whole request, every read only with a free
    tag.

    Parameters
    ----------
    lines : int
        64-byte lines of the buffer, a power of two; not below the most lines one request covers (65
        for 4096 bytes).
    tags : int
        Most reads in flight, a power of two.
    tag_base : int
        The engine's tags are `tag_base` to `tag_base + tags - 1`.
    tags_cause, lines_cause : StallCause
        What the two stall meters report.

    Members
    -------
    requests : In(stream of `ReadRequest`)
        Taken with the last read of the request.
    mrrs_log2 : In(4)
        6 to 12.
    tags : In(10)
        Reads that may be in flight, 1 to the maximum.
    reads : Out(stream of `ReadBeat`)
    completions : In(stream of `CompletionBeat`)
        Those of this engine's tags: in order within a tag, in any order between tags, cut at
        64-byte aligned addresses. Always ready: room was reserved.
    lines : Out(stream of `ReadLine`)
    quiet : Out(1)
    error : Out(1)
        Sticky: a completion came for a tag that is not in flight, not at the next byte of its tag,
        with too many bytes, or its `final` disagreed with the bytes left. Such a beat is ignored,
        so no tag is freed early.
    on_stall_tags, on_stall_lines : Out(Probe)
        A request waited for a tag, or for room in the buffer.

    Timing
    ------
    A read is offered in the cycle in which its request is; a line in the cycle after its beat (or
    after the line before it). One read out, one completion beat in and one line out per cycle.
    """

    def __init__(
        self,
        *,
        lines,
        tags,
        tag_base,
        tags_cause=StallCause.PAYLOAD_TAGS,
        lines_cause=StallCause.PAYLOAD_LINES,
    ):
        self._lines, self._line_bits = lines, _exact_log2("lines", lines)
        self._tags, self._tag_bits = tags, _exact_log2("tags", tags)
        if not 0 <= tag_base <= 1024 - tags:
            raise ValueError(f"tag_base = {tag_base}: allowed 0 to {1024 - tags} for {tags} tags")
        self._tag_base = tag_base
        self._tags_cause, self._lines_cause = tags_cause, lines_cause
        super().__init__(
            {
                "requests": In(stream.Signature(ReadRequest)),
                "mrrs_log2": In(4),
                "tags": In(10),
                "reads": Out(stream.Signature(ReadBeat)),
                "completions": In(stream.Signature(CompletionBeat)),
                "lines": Out(stream.Signature(ReadLine)),
                "quiet": Out(1),
                "error": Out(1),
                "on_stall_tags": Out(Probe(EventKind.STALL, Stall)),
                "on_stall_lines": Out(Probe(EventKind.STALL, Stall)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.splitter = splitter = _Splitter(self._line_bits)
        m.submodules.tracker = tracker = _TagTracker(
            self._tag_bits, self._tag_base, self._line_bits
        )
        m.submodules.buffer = buffer = _LineBuffer(self._line_bits)
        m.submodules.tags_meter = tags_meter = StallMeter(self._tags_cause)
        m.submodules.lines_meter = lines_meter = StallMeter(self._lines_cause)

        # Requests become reads.
        connect(m, self.requests, splitter.requests)
        room, read_taken = Signal(), Signal()
        m.d.comb += [
            splitter.mrrs_log2.eq(self.mrrs_log2),
            tracker.limit.eq(self.tags),
            room.eq(splitter.started | (buffer.free >= splitter.needed)),
            self.reads.valid.eq(self.requests.valid & room & tracker.available),
            read_taken.eq(self.reads.valid & self.reads.ready),
            splitter.take.eq(read_taken),
            self.reads.payload.address.eq(splitter.address),
            self.reads.payload.length.eq(splitter.length),
            self.reads.payload.requester.eq(Port.NIC),
            self.reads.payload.tag.eq(tracker.tag + self._tag_base),
            self.reads.payload.mark.eq(self.requests.payload.mark),
        ]
        # Each read takes a tag; the first of a request takes all its lines.
        m.d.comb += [
            tracker.take.eq(read_taken),
            tracker.address.eq(splitter.address[:12]),
            tracker.length.eq(splitter.length),
            tracker.position.eq(splitter.position),
            buffer.reserve.eq(read_taken & ~splitter.started),
            buffer.needed.eq(splitter.needed),
            buffer.request.eq(self.requests.payload),
            splitter.tail.eq(buffer.tail),
        ]
        # Beats go to their line, lines leave in order.
        connect(m, self.completions, tracker.completions)
        m.d.comb += [
            buffer.write.eq(tracker.accepted),
            buffer.write_position.eq(tracker.write_position),
            buffer.write_data.eq(self.completions.payload.data),
            self.error.eq(tracker.error),
        ]
        connect(m, buffer.lines, self.lines)

        m.d.comb += [
            lines_meter.stalled.eq(self.requests.valid & ~room),
            tags_meter.stalled.eq(self.requests.valid & room & ~tracker.available),
            # A request that waits is counted in every cycle.
            self.quiet.eq(~self.requests.valid & ~self.lines.valid),
        ]
        wiring.connect(m, tags_meter.event, wiring.flipped(self.on_stall_tags))
        wiring.connect(m, lines_meter.event, wiring.flipped(self.on_stall_lines))
        return m


class _Splitter(wiring.Component):
    """Steps through a request, one MRRS-aligned read at a time.

    Members
    -------
    requests, mrrs_log2 : as in `DmaRead`
    tail : In
        Next free position of the line buffer.
    take : In(1)
        The read is taken in this cycle.
    started : Out(1)
        A read of the request was taken before.
    needed : Out(7)
        Lines that the request covers.
    address, length : Out
        The current read.
    position : Out
        Buffer position of the read's first line.
    """

    def __init__(self, line_bits):
        super().__init__(
            {
                "requests": In(stream.Signature(ReadRequest)),
                "mrrs_log2": In(4),
                "tail": In(line_bits + 1),
                "take": In(1),
                "started": Out(1),
                "needed": Out(7),
                "address": Out(ADDRESS_BITS),
                "length": Out(13),
                "position": Out(line_bits + 1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        request = self.requests.payload
        done, base = Signal(13), Signal.like(self.tail)

        left, ends = Signal(13), Signal()
        span, lines_done = Signal(14), Signal(14)
        to_boundary = bytes_to_boundary(m, self.address, self.mrrs_log2, "to_boundary")
        m.d.comb += [
            self.started.eq(done != 0),
            self.address.eq(request.address + done),
            left.eq(request.length - done),
            ends.eq(left <= to_boundary),
            self.length.eq(Mux(ends, left, to_boundary)),
            span.eq(request.address[:6] + request.length + 63),
            self.needed.eq(span[6:]),
            lines_done.eq(request.address[:6] + done),
            self.position.eq(Mux(self.started, base, self.tail) + lines_done[6:]),
            self.requests.ready.eq(self.take & ends),
        ]
        with m.If(self.take):
            m.d.sync += done.eq(Mux(ends, 0, done + self.length))
            with m.If(~self.started):
                m.d.sync += base.eq(self.tail)
        return m


class _TagTracker(wiring.Component):
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
        As in `DmaRead`.
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
        depth = 1 << self._tag_bits
        beat = self.completions.payload

        # Free tags, in the order in which they became free.
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
        ]

        # Where a tag's bytes go: `origin` is the position that an address of line 0 within 4 KiB
        # would have.
        place_layout = data.StructLayout({"origin": self._line_bits + 1, "end": 12})
        m.submodules.places = places = memory.Memory(shape=place_layout, depth=depth, init=[])
        place_in, place = places.write_port(), places.read_port(domain="comb")
        # What a tag still waits for; 0 is a free tag.
        m.submodules.ledger = ledger = memory.Memory(shape=unsigned(13), depth=depth, init=[])
        opened, received = ledger.write_port(), ledger.write_port()
        waiting = ledger.read_port(domain="comb")
        m.d.comb += [
            place_in.addr.eq(self.tag),
            place_in.en.eq(self.take),
            place_in.data.origin.eq(self.position - self.address[6:]),
            place_in.data.end.eq(self.address + self.length),
            opened.addr.eq(self.tag),
            opened.en.eq(self.take),
            opened.data.eq(self.length),
        ]

        # A beat must bring the next bytes of its tag.
        number = Signal(11)
        expected = Signal(12)
        known, ends, agrees = Signal(), Signal(), Signal()
        m.d.comb += [
            number.eq(beat.tag - self._tag_base),
            known.eq(number < depth),
            place.addr.eq(number),
            waiting.addr.eq(number),
            expected.eq(place.data.end - waiting.data),
            ends.eq(waiting.data == beat.count),
            agrees.eq(
                known
                & (waiting.data >= beat.count)
                & (waiting.data != 0)
                & (beat.address == expected)
                & ((beat.final & beat.last) == ends)
            ),
            self.completions.ready.eq(1),
            self.accepted.eq(self.completions.valid & agrees),
            self.write_position.eq(place.data.origin + beat.address[6:]),
            received.addr.eq(number),
            received.en.eq(self.accepted),
            received.data.eq(waiting.data - beat.count),
            freed.addr.eq(back),
            freed.data.eq(number),
            freed.en.eq(self.accepted & ends),
        ]
        with m.If(self.completions.valid & ~agrees):
            m.d.sync += self.error.eq(1)

        m.d.sync += [
            give.eq(give + self.take),
            back.eq(back + freed.en),
            in_flight.eq(in_flight + self.take - freed.en),
        ]
        return m


class _LineBuffer(wiring.Component):
    """Ring of lines that are filled in any order and leave in order.

    A position is a line number below a lap bit. The lap is stored with the data, so a line tells
    whether it was filled in this lap, and nothing is ever cleared.

    Members
    -------
    free, tail : Out
        Lines not reserved; first position not reserved.
    reserve, needed, request : In
        Reserves the lines of a request.
    write, write_position, write_data : In
        Fills a line.
    lines : Out(stream of `ReadLine`)
    """

    def __init__(self, line_bits):
        self._line_bits = line_bits
        super().__init__(
            {
                "free": Out(line_bits + 1),
                "tail": Out(line_bits + 1),
                "reserve": In(1),
                "needed": In(7),
                "request": In(ReadRequest),
                "write": In(1),
                "write_position": In(line_bits + 1),
                "write_data": In(512),
                "lines": Out(stream.Signature(ReadLine)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth = 1 << self._line_bits
        entry = data.StructLayout({"data": unsigned(512), "lap": 1})
        m.submodules.store = store = memory.Memory(shape=entry, depth=depth, init=[])
        fill, oldest = store.write_port(), store.read_port(domain="comb")
        head = Signal(self._line_bits + 1)
        taken = Signal()

        # The first lap stores 1, since the memory starts with 0.
        m.d.comb += [
            fill.addr.eq(self.write_position[:-1]),
            fill.en.eq(self.write),
            fill.data.data.eq(self.write_data),
            fill.data.lap.eq(~self.write_position[-1]),
            oldest.addr.eq(head[:-1]),
            self.free.eq(depth - (self.tail - head)[: self._line_bits + 1]),
        ]
        with m.If(self.reserve):
            m.d.sync += self.tail.eq(self.tail + self.needed)
        m.d.sync += head.eq(head + taken)

        # Requests in flight; each holds at least one line, so there is room for all.
        pending_layout = data.StructLayout({"lane": 6, "length": 13, "context": 32})
        m.submodules.pending = pending = Queue(pending_layout, depth)
        current = pending.o.payload
        m.d.comb += [
            pending.i.valid.eq(self.reserve),
            pending.i.payload.lane.eq(self.request.address[:6]),
            pending.i.payload.length.eq(self.request.length),
            pending.i.payload.context.eq(self.request.context),
        ]

        done, left, most = Signal(13), Signal(13), Signal(7)
        line = self.lines.payload
        m.d.comb += [
            left.eq(current.length - done),
            line.lane.eq(Mux(done == 0, current.lane, 0)),
            most.eq(64 - line.lane),
            line.last.eq(left <= most),
            line.count.eq(Mux(line.last, left, most)),
            line.data.eq(oldest.data.data),
            line.context.eq(current.context),
            self.lines.valid.eq(pending.o.valid & (oldest.data.lap != head[-1])),
            taken.eq(self.lines.valid & self.lines.ready),
            pending.o.ready.eq(taken & line.last),
        ]
        with m.If(taken):
            m.d.sync += done.eq(Mux(line.last, 0, done + line.count))
        return m
