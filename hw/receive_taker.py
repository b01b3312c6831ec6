"""Takes receive WQEs: finds out what is posted, fetches, and shows the segments."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats import mlx5
from .formats.context import RqContext, Table
from .formats.dma import ReadLine, ReadRequest
from .formats.events import EventKind, ReceiveTaken
from .formats.layout import reverse_bytes
from .formats.op import Taken
from .formats.tlp import MarkKind
from .lib.trace import Probe
from .qp_context import ConfigPort, ContextPort, configures, context_in
from .qp_table import QpTable

__all__ = ["ReceiveTaker"]

#: Lines that the largest WQE has.
_LINES = 4
_LINE_BITS = 2


class _Current(data.Struct):
    """The WQE that a QP took last."""

    index: 16
    #: Octoword of its first line at which it begins.
    start: 2


class ReceiveTaker(wiring.Component):
    """Takes a QP's next receive WQE, reads it, and keeps it until that QP takes another.

    A WQE is a run of data segments, up to the end of its stride or to one of 0 bytes with key
    0x100. The NIC learns from the receive word of the doorbell record what is posted, and reads
    that word only when it knows of no WQE. A word that is not within (0, depth] ahead announces
    nothing.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    take : In(stream of 12)
        QPs; the next is taken once the one before is answered.
    taken : Out(stream of `Taken`)
    busy : In(1)
        WQEs that were taken before may still be looked at; the new one waits with its arrival.
    config : In(ConfigPort)
        `Table.RQ` sets the index of the next WQE, and forgets what was posted.
    rq : Out(ContextPort(RqContext))
    requests : Out(stream of `ReadRequest`), lines : In(stream of `ReadLine`)
        One read at a time.
    asked_qp : In(12), asked_number : In(4)
        Look-up, while nothing is being taken.
    segment : Out(`mlx5.Data`), index : Out(16)
        That segment of the QP's WQE, and the WQE's index.
    quiet : Out(1)
    on_taken : Out(Probe)
        The answer was taken.

    Timing
    ------
    A take of which nothing need be read is answered in 2 cycles (there is no receive queue). Each
    read is offered 2 cycles after the take or in the cycle after the line of the one before; the
    answer follows the last line of a WQE after 1 cycle and one more per segment.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "take": In(stream.Signature(unsigned(12))),
                "taken": Out(stream.Signature(Taken)),
                "busy": In(1),
                "config": In(ConfigPort()),
                "rq": Out(ContextPort(RqContext)),
                "requests": Out(stream.Signature(ReadRequest)),
                "lines": In(stream.Signature(ReadLine)),
                "asked_qp": In(12),
                "asked_number": In(4),
                "segment": Out(mlx5.Data),
                "index": Out(16),
                "quiet": Out(1),
                "on_taken": Out(Probe(EventKind.RECEIVE_TAKEN, ReceiveTaken)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        qp, context = Signal(12), self.rq.data
        m.d.comb += self.rq.address.eq(Mux(self.take.ready, self.take.payload, qp))
        following = QpTable(m, "following", 16, self._structure)
        announced = QpTable(m, "announced", 16, self._structure)
        index, posted = following.read(qp), announced.read(qp)

        # The word of the record, and how many WQEs it is ahead.
        line, word, ahead = self.lines.payload, Signal(32), Signal(16)
        believed, learns, arrives, ends = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            word.eq(reverse_bytes((line.data >> Cat(Const(0, 3), line.lane))[:32])),
            ahead.eq(word - index),
            believed.eq((ahead != 0) & (ahead <= (Const(1, 1) << context.depth_log2))),
        ]

        number, room, found = Signal(4), Signal(36), Signal()
        summing, octowords = Signal(), Signal(5)
        self._keep(
            m,
            qp,
            index,
            arrives,
            Mux(summing, qp, self.asked_qp),
            Mux(summing, number, self.asked_number),
        )
        m.d.comb += [
            octowords.eq(Const(1, 1) << (context.stride_log2 - 4)[:3]),
            ends.eq(
                ((self.segment.byte_count[:31] == 0) & (self.segment.lkey == mlx5.END_OF_LIST_KEY))
                | (number + 1 == octowords)
            ),
        ]

        entry, asks = Signal(16), Signal()
        request = self.requests.payload
        m.d.comb += [
            entry.eq(index & ((Const(1, 1) << context.depth_log2) - 1)),
            request.address.eq(
                Mux(asks, context.record, context.base + (entry << context.stride_log2))
            ),
            request.length.eq(Mux(asks, 4, Const(1, 1) << context.stride_log2)),
            request.mark.kind.eq(MarkKind.RECEIVE_FETCH),
            request.mark.qp.eq(qp),
            request.mark.index.eq(index),
        ]

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [self.take.ready.eq(1), self.quiet.eq(1)]
                m.d.sync += [found.eq(0), room.eq(0), number.eq(0), qp.eq(self.take.payload)]
                with m.If(self.take.valid):
                    m.next = "LOOK"
            with m.State("LOOK"):
                with m.If(~context.valid):
                    m.next = "ANSWER"
                with m.Elif(index != posted):
                    m.next = "FETCH"
                with m.Else():
                    m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += [self.requests.valid.eq(1), asks.eq(1)]
                with m.If(self.requests.ready):
                    m.next = "HEAR"
            with m.State("HEAR"):
                m.d.comb += [self.lines.ready.eq(1), self.quiet.eq(~self.lines.valid)]
                m.d.comb += learns.eq(self.lines.valid & believed)
                with m.If(learns):
                    m.next = "FETCH"
                with m.Elif(self.lines.valid):
                    m.next = "ANSWER"
            with m.State("FETCH"):
                m.d.comb += self.requests.valid.eq(1)
                with m.If(self.requests.ready):
                    m.next = "ARRIVE"
            with m.State("ARRIVE"):
                m.d.comb += [
                    self.lines.ready.eq(~self.busy),
                    self.quiet.eq(~self.lines.valid),
                    arrives.eq(self.lines.valid & ~self.busy),
                ]
                with m.If(arrives & line.last):
                    m.next = "SUM"
            with m.State("SUM"):
                m.d.comb += summing.eq(1)
                m.d.sync += [
                    room.eq(room + self.segment.byte_count[:31]),
                    number.eq(number + 1),
                    found.eq(1),
                ]
                with m.If(ends):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += self.taken.valid.eq(1)
                with m.If(self.taken.ready):
                    m.next = "IDLE"
        answered = Signal()
        m.d.comb += [
            answered.eq(self.taken.valid & self.taken.ready),
            self.taken.payload.qp.eq(qp),
            self.taken.payload.found.eq(found),
            self.taken.payload.room.eq(room),
            self.on_taken.valid.eq(answered),
            self.on_taken.payload.qp.eq(qp),
            self.on_taken.payload.wqe_index.eq(index),
            self.on_taken.payload.found.eq(found),
        ]

        # What is posted, and what comes next.
        loads = Signal()
        given = context_in(self.config, RqContext)
        m.d.comb += loads.eq(configures(self.config, Table.RQ))
        for table in (following, announced):
            table.write(self.config.payload.index, given.start_index, loads)
        announced.write(qp, word, learns)
        following.write(qp, index + 1, answered & found)
        return m

    def _keep(self, m, qp, index, arrives, asked_qp, asked_number):
        """Stores the lines of the WQE that arrives, and shows a segment of one that is kept."""
        line, bits = self.lines.payload, self._structure.qp_bits
        current = QpTable(m, "current", _Current, self._structure)
        m.submodules.wqes = wqes = memory.Memory(
            shape=512, depth=_LINES * self._structure.qps, init=[]
        )
        write, read = wqes.write_port(), wqes.read_port(domain="comb")
        number = Signal(_LINE_BITS)
        with m.If(arrives):
            m.d.sync += number.eq(Mux(line.last, 0, number + 1))
        arrived = Signal(_Current)
        m.d.comb += [
            write.addr.eq(Cat(number, qp[:bits])),
            write.data.eq(line.data),
            write.en.eq(arrives),
            arrived.index.eq(index),
            arrived.start.eq(line.lane[4:]),
        ]
        current.write(qp, arrived, arrives & line.last)

        kept = current.read(asked_qp)
        position, octoword = Signal(4), Signal(128)
        m.d.comb += [
            position.eq(kept.start + asked_number),
            read.addr.eq(Cat(position[2:], asked_qp[:bits])),
            self.segment.eq(reverse_bytes(octoword)),
            self.index.eq(kept.index),
        ]
        with m.Switch(position[:2]):
            for place in range(4):
                with m.Case(place):
                    m.d.comb += octoword.eq(read.data[128 * place : 128 * (place + 1)])
