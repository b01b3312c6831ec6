"""Several streams into one, fairly, and without mixing packets."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Arbiter"]


class Arbiter(wiring.Component):
    """Round-robin merge of `count` streams; a packet is never interleaved with another.

    Parameters
    ----------
    shape : payload shape
        With a one-bit field `last` if `packets` is set.
    count : int
    packets : bool
        A grant stays until a beat with `last` has gone through.

    Members
    -------
    i : In(array of `count` streams)
    o : Out(stream)

    Timing
    ------
    Combinational from input to output; one beat per cycle. The grant does not depend on `o.ready`.
    """

    def __init__(self, shape, count, *, packets=False):
        self._count, self._packets = count, packets
        super().__init__(
            {
                "i": In(stream.Signature(shape)).array(count),
                "o": Out(stream.Signature(shape)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        count = self._count
        requests = Cat(*(port.valid for port in self.i))
        turn, choice, grant = Signal(range(count)), Signal(range(count)), Signal(range(count))
        held = Signal()

        # The first request at or after `turn`.
        with m.Switch(turn):
            for start in range(count):
                with m.Case(start):
                    for step in reversed(range(count)):
                        index = (start + step) % count
                        with m.If(requests[index]):
                            m.d.comb += choice.eq(index)
        locked = Signal(range(count))
        m.d.comb += grant.eq(Mux(held, locked, choice))

        # Without a request nothing is chosen: a simulator then skips the wide multiplexer.
        with m.If(requests.any()):
            with m.Switch(grant):
                for index, port in enumerate(self.i):
                    with m.Case(index):
                        m.d.comb += [
                            self.o.payload.eq(port.payload),
                            self.o.valid.eq(port.valid),
                        ]
        m.d.comb += [
            port.ready.eq(self.o.ready & (grant == index)) for index, port in enumerate(self.i)
        ]

        # Once offered, a beat stays offered: the grant is held until it is taken (and, for packets,
        # ended).
        with m.If(self.o.valid):
            m.d.sync += [held.eq(1), locked.eq(grant)]
            ends = self.o.payload.last if self._packets else 1
            with m.If(self.o.ready & ends):
                m.d.sync += held.eq(0)
                m.d.sync += turn.eq(Mux(grant == count - 1, 0, grant + 1))
        return m
