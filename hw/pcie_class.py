"""What a PCIe link holds per class: credits at its sender, and the queue at its receiver."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .lib.delay import NEVER, NOW_BITS

__all__ = ["ORDER_BITS", "UNIT_BITS", "Credits", "ReceiveQueue", "TlpChoice"]

#: Data credits of one TLP: 16-byte units, at most 257 (4096 bytes that start within a dword).
UNIT_BITS = 9
#: Count of posted TLPs, modulo; a blocked entry may be passed by half of this many.
ORDER_BITS = 24


class TlpChoice(wiring.Component):
    """Chooses the class that sends: one whose TLP is on its way, else the next that may start.

    Members
    -------
    may_start : In(3)
        Class has a TLP and the credits for it; by `TlpClass`.
    valid : In(3)
        Class has a beat.
    taken, first, last : In(1)
        The chosen beat is sent in this cycle; it begins, it ends its TLP.
    choice : Out(2)
        Class.
    goes : Out(1)
        The choice has a beat that may be sent.
    inside : Out(3)
        The class has a TLP on its way.

    Timing
    ------
    Combinational.
    """

    def __init__(self):
        super().__init__(
            {
                "may_start": In(3),
                "valid": In(3),
                "taken": In(1),
                "first": In(1),
                "last": In(1),
                "choice": Out(2),
                "goes": Out(1),
                "inside": Out(3),
            }
        )

    def elaborate(self, platform):
        m = Module()
        turn = Signal(2)
        with m.If(self.inside.any()):
            m.d.comb += self.goes.eq((self.valid & self.inside).any())
            for index in range(3):
                with m.If(self.inside[index]):
                    m.d.comb += self.choice.eq(index)
        with m.Else():
            m.d.comb += self.goes.eq(self.may_start.any())
            with m.Switch(turn):
                for start in range(3):
                    with m.Case(start):
                        for index in ((start + step) % 3 for step in (2, 1, 0)):
                            with m.If(self.may_start[index]):
                                m.d.comb += self.choice.eq(index)
        with m.If(self.taken):
            for index in range(3):
                m.d.sync += self.inside[index].eq((self.choice == index) & ~self.last)
            with m.If(self.first):
                m.d.sync += turn.eq(Mux(self.choice == 2, 0, self.choice + 1))
        return m


class ReceiveQueue(wiring.Component):
    """Beats of one class, from the cycle they were sent in until they are taken at the far side.

    Parameters
    ----------
    shape : beat struct
        With a field `last` if a TLP has several beats.
    depth : int
        Beats, a power of two.
    ordered : bool
        Entries wait for the posted TLPs that were sent before them.

    Members
    -------
    i : In(stream)
        Beats as they are sent.
    arrival : In
        Cycle from which the incoming beat is visible; never less than that of the beat before.
    units : In(9)
        Data credits of the TLP that the incoming beat belongs to.
    before, popped : In(24)
        If `ordered`: posted TLPs sent so far, and taken so far at the far side.
    now : In
    o : Out(stream)
        Beats that have arrived.
    freed : Out(1)
        The last beat of a TLP is taken in this cycle; `freed_units` are its data credits.
    due : Out
        Arrival of the oldest beat while it lies ahead, else `NEVER`.

    Timing
    ------
    One beat in and one out per cycle, offered from its arrival on, at the earliest in
    the cycle after it came in.
    """

    def __init__(self, shape, depth, *, ordered):
        self._shape, self._depth, self._ordered = shape, depth, ordered
        members = {
            "i": In(stream.Signature(shape)),
            "arrival": In(NOW_BITS),
            "units": In(UNIT_BITS),
            "now": In(NOW_BITS),
            "o": Out(stream.Signature(shape)),
            "freed": Out(1),
            "freed_units": Out(UNIT_BITS),
            "due": Out(NOW_BITS),
        }
        if ordered:
            members |= {"before": In(ORDER_BITS), "popped": In(ORDER_BITS)}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        head, tail = Signal(range(self._depth)), Signal(range(self._depth))
        level = Signal(range(self._depth + 1))
        sent, taken = Signal(), Signal()

        # The wide beat has a store of its own, so that it is copied once on its way in and once on
        # its way out.
        stamp = {"arrival": NOW_BITS, "units": UNIT_BITS}
        values = [self.arrival, self.units]
        if self._ordered:
            stamp["before"] = ORDER_BITS
            values.append(self.before)
        stores = [
            ("beat", self._shape, self.i.payload),
            ("stamp", data.StructLayout(stamp), Cat(values)),
        ]
        oldest = {}
        for name, shape, value in stores:
            m.submodules[name] = store = memory.Memory(shape=shape, depth=self._depth, init=[])
            write, read = store.write_port(), store.read_port(domain="comb")
            m.d.comb += [
                write.en.eq(sent),
                write.addr.eq(tail),
                write.data.eq(value),
                read.addr.eq(head),
            ]
            oldest[name] = read.data

        arrived, follows = Signal(), Signal(init=1)
        m.d.comb += arrived.eq(oldest["stamp"].arrival <= self.now)
        if self._ordered:
            # Modular: `popped` has reached the stored count unless the difference is negative.
            ahead = Signal(ORDER_BITS)
            m.d.comb += [ahead.eq(self.popped - oldest["stamp"].before), follows.eq(~ahead[-1])]

        several = any(name == "last" for name, _ in data.Layout.cast(self._shape))
        last = self.o.payload.last if several else 1
        m.d.comb += [
            self.i.ready.eq(level != self._depth),
            sent.eq(self.i.valid & self.i.ready),
            self.o.payload.eq(oldest["beat"]),
            self.o.valid.eq((level != 0) & arrived & follows),
            taken.eq(self.o.valid & self.o.ready),
            self.freed.eq(taken & last),
            self.freed_units.eq(oldest["stamp"].units),
            self.due.eq(Mux((level != 0) & ~arrived, oldest["stamp"].arrival, NEVER)),
        ]
        with m.If(sent):
            m.d.sync += tail.eq(tail + 1)
        with m.If(taken):
            m.d.sync += head.eq(head + 1)
        m.d.sync += level.eq(level + sent - taken)
        return m


class Credits(wiring.Component):
    """Credits of one class at the sender.

    Parameters
    ----------
    units : bool
        The class has data credits beside header credits.

    Members
    -------
    headers, data : In
        Credits in force.
    need : In(9)
        Data credits of the TLP that would start.
    enough : Out(1)
        A TLP that needs `need` may start.
    take : In(1)
        It starts.
    back, back_units : In
        A TLP's credits come back.
    """

    def __init__(self, *, units=True):
        self._units = units
        super().__init__(
            {
                "headers": In(12),
                "data": In(14),
                "need": In(UNIT_BITS),
                "enough": Out(1),
                "take": In(1),
                "back": In(1),
                "back_units": In(UNIT_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Counted as used, so that the limit may be loaded at any time before the first TLP.
        used_headers, used_data = Signal(12), Signal(14)
        m.d.comb += self.enough.eq(used_headers < self.headers)
        m.d.sync += used_headers.eq(used_headers + self.take - self.back)
        if self._units:
            m.d.comb += self.enough.eq(
                (used_headers < self.headers) & (used_data + self.need <= self.data)
            )
            m.d.sync += used_data.eq(
                used_data + Mux(self.take, self.need, 0) - Mux(self.back, self.back_units, 0)
            )
        return m
