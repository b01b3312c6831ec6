"""The NIC's DMA read engine: reads are answered in any order, their lines leave in order."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.dma import ReadLine, ReadRequest
from .formats.events import EventKind, Stall, StallCause
from .formats.tlp import ADDRESS_BITS, CompletionBeat, Port, ReadBeat
from .lib.align import bytes_to_boundary
from .lib.stream import connect
from .lib.trace import Probe, StallMeter
from .line_buffer import LineBuffer
from .tag_tracker import TagTracker

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
        m.submodules.tracker = tracker = TagTracker(self._tag_bits, self._tag_base, self._line_bits)
        m.submodules.buffer = buffer = LineBuffer(self._line_bits)
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
