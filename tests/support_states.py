"""A small design with all that has named values: a state machine, an enumeration, a struct."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Machine"]


class Colour(enum.Enum, shape=2):
    RED = 1
    BLUE = 2


class Pair(data.Struct):
    colour: Colour
    count: data.ArrayLayout(3, 2)


class Machine(wiring.Component):
    """A state machine, and a struct with an enumeration and an array."""

    def __init__(self):
        super().__init__({"pair": In(Pair), "go": In(1), "done": Out(1), "unused": Out(4)})

    def elaborate(self, platform):
        m = Module()
        kept = Signal(Pair)
        m.d.sync += kept.eq(self.pair)
        with m.FSM():
            with m.State("REST"):
                with m.If(self.go & (kept.count[1] != 0)):
                    m.next = "WORK"
            with m.State("WORK"):
                m.d.comb += self.done.eq(1)
                m.next = "REST"
        return m
