"""The lines that DMA reads wait for."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.dma import ReadLine, ReadRequest
from .lib.stream import Queue

__all__ = ["LineBuffer"]


class LineBuffer(wiring.Component):
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
