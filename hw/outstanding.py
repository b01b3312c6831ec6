"""The WQEs of each queue pair between their first packet and their retirement, in order."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import Table
from .qp_context import ConfigPort, configures
from .qp_table import QpTable
from .segmenter import Outstanding, Started

__all__ = ["OutstandingList"]


class OutstandingList(wiring.Component):
    """A ring of WQEs per QP.

    Parameters
    ----------
    structure : Structure
        `window_blocks` WQEs per QP.

    Members
    -------
    config : In(ConfigPort)
        Table.TX empties the list of a QP.
    started : In(`valid`, `payload`: Started)
        A WQE comes to the end of its list; only with `room`.
    room : Out(1)
        One more fits for the QP in `started.payload.qp`.
    qp : In(12)
        Whose list is looked at.
    any : Out(1), oldest : Out(Outstanding)
        Whether there is one, and the oldest (combinational).
    drop, clear : In(1)
        The oldest leaves; all leave. Not in the cycle of a TX context, nor both at once.

    Timing
    ------
    A change shows in the next cycle.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "config": In(ConfigPort()),
                "started": In(wiring.Signature({"valid": Out(1), "payload": Out(Started)})),
                "room": Out(1),
                "qp": In(12),
                "any": Out(1),
                "oldest": Out(Outstanding),
                "drop": In(1),
                "clear": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        qps, window = self._structure.qps, self._structure.window_blocks
        bits, qp_bits = (window - 1).bit_length(), self._structure.qp_bits
        m.submodules.entries = entries = memory.Memory(
            shape=Outstanding, depth=qps * window, init=[]
        )
        # Positions have one bit more than the index, to tell full from empty.
        heads = QpTable(m, "heads", bits + 1, self._structure)
        tails = QpTable(m, "tails", bits + 1, self._structure)
        configuring, configured = Signal(), self.config.payload.index
        m.d.comb += configuring.eq(configures(self.config, Table.TX))

        new, write = self.started.payload, entries.write_port()
        new_tail = tails.read(new.qp)
        m.d.comb += [
            self.room.eq((new_tail ^ heads.read(new.qp)) != window),
            write.en.eq(self.started.valid),
            write.addr.eq(Cat(new_tail[:bits], new.qp[:qp_bits])),
            write.data.eq(new.entry),
        ]
        tails.write(
            Mux(configuring, configured, new.qp),
            Mux(configuring, 0, new_tail + 1),
            configuring | self.started.valid,
        )

        head, tail, read = (
            heads.read(self.qp),
            tails.read(self.qp),
            entries.read_port(domain="comb"),
        )
        m.d.comb += [
            self.any.eq(head != tail),
            read.addr.eq(Cat(head[:bits], self.qp[:qp_bits])),
            self.oldest.eq(read.data),
        ]
        heads.write(
            Mux(configuring, configured, self.qp),
            Mux(configuring, 0, Mux(self.clear, tail, head + 1)),
            configuring | self.drop | self.clear,
        )
        return m
