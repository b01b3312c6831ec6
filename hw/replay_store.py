"""What the latest atomics of each queue pair found."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import MAX_READS, Table
from .qp_context import ConfigPort, configures
from .qp_table import QpTable

__all__ = ["ReplayStore"]


class ReplayStore(wiring.Component):
    """Keeps the answers of the latest atomics of each QP.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    config : In(ConfigPort)
        Table.RX forgets those of its QP.
    qp : In(12)
    kept : In(5)
        Answers that its QP keeps, 1 to 16; the same in all uses of a QP between two contexts.
    keep : In(`valid`, `psn`, `original`)
        One more. Not in the cycle of an RX context.
    distance : In(5)
        Which one is looked at: 1 is the latest.
    there, psn, original : Out
        The QP has as many, and that one.

    Timing
    ------
    Combinational; a change shows in the next cycle.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "config": In(ConfigPort()),
                "qp": In(12),
                "kept": In(5),
                "keep": In(
                    wiring.Signature({"valid": Out(1), "psn": Out(24), "original": Out(64)})
                ),
                "distance": In(5),
                "there": Out(1),
                "psn": Out(24),
                "original": Out(64),
            }
        )

    def elaborate(self, platform):
        m = Module()
        ring = data.StructLayout({"level": 5, "next": 4})
        entry = data.StructLayout({"psn": 24, "original": 64})
        rings = QpTable(m, "rings", ring, self._structure)
        m.submodules.store = store = memory.Memory(
            shape=entry, depth=MAX_READS * self._structure.qps, init=[]
        )
        read, write = store.read_port(domain="comb"), store.write_port()

        mine, after = rings.read(self.qp), Signal(ring)
        row, place, wraps = self.qp[: self._structure.qp_bits], Signal(5), Signal()
        m.d.comb += [
            wraps.eq(mine.next < self.distance),
            place.eq(mine.next - self.distance + Mux(wraps, self.kept, 0)),
            self.there.eq(self.distance <= mine.level),
            read.addr.eq(Cat(place[:4], row)),
            self.psn.eq(read.data.psn),
            self.original.eq(read.data.original),
            write.addr.eq(Cat(mine.next, row)),
            write.data.psn.eq(self.keep.psn),
            write.data.original.eq(self.keep.original),
            write.en.eq(self.keep.valid),
            after.level.eq(Mux(mine.level < self.kept, mine.level + 1, mine.level)),
            after.next.eq(Mux(mine.next + 1 == self.kept, 0, mine.next + 1)),
        ]
        configuring = Signal()
        m.d.comb += configuring.eq(configures(self.config, Table.RX))
        rings.write(
            Mux(configuring, self.config.payload.index, self.qp),
            Mux(configuring, 0, after.as_value()),
            configuring | self.keep.valid,
        )
        return m
