"""Queue pairs that wait for their turn."""

from amaranth.hdl import Module, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.events import EventKind, Stall, StallCause
from .lib.delay import NEVER, NOW_BITS
from .lib.trace import Probe

__all__ = ["TurnNap", "TurnQueue", "WindowMeter"]


class TurnQueue(wiring.Component):
    """QPs that wait for their turn, each at most once.

    Parameters
    ----------
    structure : Structure
        `qps` entries.
    sources : int
        QPs that can be added in one cycle; a lower-numbered source comes first.

    Members
    -------
    add : In(array of {`valid`, `qp`})
        There is always room, since a QP is never added twice.
    o : Out(stream of QP indices)
    level : Out
        QPs held.

    Timing
    ------
    A QP is offered from the cycle after it was added, at one per cycle.
    """

    def __init__(self, structure, sources):
        self._structure = structure
        super().__init__(
            {
                "add": In(wiring.Signature({"valid": Out(1), "qp": Out(12)})).array(sources),
                "o": Out(stream.Signature(12)),
                "level": Out(range(structure.qps + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = memory.Memory(shape=12, depth=self._structure.qps, init=[])
        head, tail = Signal(self._structure.qp_bits), Signal(self._structure.qp_bits)
        read, taken = store.read_port(domain="comb"), Signal()
        added = 0
        for source in self.add:
            write = store.write_port()
            m.d.comb += [
                write.addr.eq(tail + added),
                write.data.eq(source.qp),
                write.en.eq(source.valid),
            ]
            added = added + source.valid
        m.d.comb += [
            read.addr.eq(head),
            self.o.payload.eq(read.data),
            self.o.valid.eq(self.level != 0),
            taken.eq(self.o.valid & self.o.ready),
        ]
        m.d.sync += [
            tail.eq(tail + added),
            head.eq(head + taken),
            self.level.eq(self.level + added - taken),
        ]
        return m


class TurnNap(wiring.Component):
    """Once every QP has been sent to the back by its rate, nobody is looked at before the first of
    them may go.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    level : In
        QPs that wait for their turn.
    waits : In(1), allowed : In
        The QP that has its turn goes to the back, until cycle `allowed`.
    moves : In(1)
        Something else happened: all are to be looked at again.
    now : In
    asleep : Out(1)
        Nobody is to get a turn.
    until : Out
        Cycle in which that ends.

    Timing
    ------
    Asleep from the cycle after the last of `level` QPs in succession was sent to the back.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "level": In(range(structure.qps + 1)),
                "waits": In(1),
                "allowed": In(NOW_BITS),
                "moves": In(1),
                "now": In(NOW_BITS),
                "asleep": Out(1),
                "until": Out(NOW_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        looked_at = Signal(range(self._structure.qps + 1))
        soonest = Signal(NOW_BITS, init=NEVER)
        m.d.comb += [
            self.asleep.eq((self.level != 0) & (looked_at >= self.level) & (soonest > self.now)),
            self.until.eq(soonest),
        ]
        with m.If(self.moves | (soonest <= self.now)):
            m.d.sync += [looked_at.eq(0), soonest.eq(NEVER)]
        with m.Elif(self.waits):
            with m.If(looked_at != self._structure.qps):
                m.d.sync += looked_at.eq(looked_at + 1)
            with m.If(self.allowed < soonest):
                m.d.sync += soonest.eq(self.allowed)
        return m


class WindowMeter(wiring.Component):
    """Tells each stretch of time in which at least one QP is parked, since its window is full.

    It is measured with `now`, since a node with parked QPs may be quiet.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    parks, wakes : In(1)
        A QP is parked, one goes on.
    now : In
    event : Out(Probe)
        One cycle after the last one went on.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "parks": In(1),
                "wakes": In(1),
                "now": In(NOW_BITS),
                "event": Out(Probe(EventKind.STALL, Stall)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        count, since, ended = Signal(range(self._structure.qps + 1)), Signal(NOW_BITS), Signal()
        m.d.sync += [
            count.eq(count + self.parks - self.wakes),
            ended.eq((count == 1) & self.wakes & ~self.parks),
        ]
        with m.If((count == 0) & self.parks):
            m.d.sync += since.eq(self.now)
        m.d.comb += [
            self.event.valid.eq(ended),
            self.event.payload.cause.eq(StallCause.WINDOW),
            self.event.payload.cycles.eq(self.now - since),
        ]
        return m
