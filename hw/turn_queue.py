"""Queue pairs that wait for their turn."""

from amaranth.hdl import Module, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["TurnQueue"]


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
