"""Where the bytes that READs and atomics bring go: runs of local memory, per queue pair."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.op import Landing
from .formats.tlp import ADDRESS_BITS
from .lib.stream import Queue
from .qp_table import QpTable

__all__ = ["LandingRuns", "Run"]


class Run(data.Struct):
    """Bytes of a landing that are still free."""

    address: ADDRESS_BITS
    length: 32
    #: Ends what its operation brings.
    last: 1


class LandingRuns(wiring.Component):
    """A ring of runs per QP, and one queue in front of all, for operations that have not started.

    A landing waits in the queue until its operation starts; only then is it known whether a
    response will come for it. If so it goes to the ring of its QP, else nowhere. Nothing waits for
    ever: the queue holds the landings of any WQE, so that they are `complete` at last whatever the
    rings hold; and operations of which there is not place for all (`fits`) do not start, so the way
    from the queue to a ring is never blocked, and a response never waits for another QP's.

    Parameters
    ----------
    structure : Structure
        A ring, and the queue, hold `4 * wqe_blocks` runs: more than any WQE has.

    Members
    -------
    landings : In(stream of `Landing`)
        In the order of the operations.
    complete : Out(1)
        The landings of the next operation that has any are all here, and it may be started.
    started : In(`valid`, `qp`, `keep`)
        That operation starts; only if `complete`, and to be kept only if it `fits`.
    ask : In(12), fits : Out(1)
        There is place for them in the ring of that QP (combinational).
    forget : In(`valid`, `qp`)
        Empties the ring of a QP, and what still comes for it of operations that started.
    qp : In(12), any : Out(1), oldest : Out(Run)
        Whether that QP has a run, and its oldest (combinational).
    use : In(`valid`, `length`)
        So many bytes of the oldest run of `qp` are taken, at most all. Not with `forget` of it.
    busy : Out(1)
        A run moves from the queue.

    Timing
    ------
    A change shows in the next cycle. An operation of n runs takes n + 1 cycles, from its start to
    the first cycle in which the next one may.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "landings": In(stream.Signature(Landing)),
                "complete": Out(1),
                "started": In(wiring.Signature({"valid": Out(1), "qp": Out(12), "keep": Out(1)})),
                "ask": In(12),
                "fits": Out(1),
                "forget": In(wiring.Signature({"valid": Out(1), "qp": Out(12)})),
                "qp": In(12),
                "any": Out(1),
                "oldest": Out(Run),
                "use": In(wiring.Signature({"valid": Out(1), "length": Out(13)})),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        slots = 4 * self._structure.wqe_blocks
        bits, qp_bits = (slots - 1).bit_length(), self._structure.qp_bits
        # Positions have one bit more than the index, to tell full from empty.
        heads = QpTable(m, "heads", bits + 1, self._structure)
        tails = QpTable(m, "tails", bits + 1, self._structure)
        used = QpTable(m, "used", 32, self._structure)
        m.submodules.queue = queue = Queue(Run, slots)
        m.submodules.sizes = sizes = Queue(bits + 1, slots)
        m.submodules.runs = runs = memory.Memory(
            shape=Run, depth=self._structure.qps * slots, init=[]
        )

        # Into the queue; the number of an operation's runs is known with its last one.
        landing, before = self.landings, Signal(bits)
        entered = Signal()
        m.d.comb += [
            landing.ready.eq(queue.i.ready),
            entered.eq(landing.valid & landing.ready),
            queue.i.valid.eq(landing.valid),
            queue.i.payload.address.eq(landing.payload.address),
            queue.i.payload.length.eq(landing.payload.length),
            queue.i.payload.last.eq(landing.payload.last),
            sizes.i.valid.eq(entered & landing.payload.last),
            sizes.i.payload.eq(before + 1),
        ]
        with m.If(entered):
            m.d.sync += before.eq(Mux(landing.payload.last, 0, before + 1))

        # From the queue into the ring of the QP whose operation has started, run by run.
        moving, keep, target = Signal(), Signal(), Signal(12)
        moves, write, tail = Signal(), runs.write_port(), tails.read(target)
        occupied = Signal(bits + 1)
        m.d.comb += [
            occupied.eq(tails.read(self.ask) - heads.read(self.ask)),
            self.fits.eq(occupied + sizes.o.payload <= slots),
            self.complete.eq(sizes.o.valid & ~moving),
            sizes.o.ready.eq(self.started.valid),
            self.busy.eq(moving),
            moves.eq(moving & ~self.forget.valid),
            queue.o.ready.eq(moves),
            write.en.eq(moves & keep),
            write.addr.eq(Cat(tail[:bits], target[:qp_bits])),
            write.data.eq(queue.o.payload),
        ]
        tails.write(target, tail + 1, moves & keep)
        with m.If(self.started.valid):
            m.d.sync += [moving.eq(1), keep.eq(self.started.keep), target.eq(self.started.qp)]
        with m.Elif(moves & queue.o.payload.last):
            m.d.sync += moving.eq(0)
        with m.If(moving & self.forget.valid & (self.forget.qp == target)):
            m.d.sync += keep.eq(0)

        # Out of the ring, from its oldest run on.
        qp, head, gone = self.qp, heads.read(self.qp), used.read(self.qp)
        read, empties = runs.read_port(domain="comb"), Signal()
        m.d.comb += [
            self.any.eq(head != tails.read(qp)),
            read.addr.eq(Cat(head[:bits], qp[:qp_bits])),
            self.oldest.address.eq(read.data.address + gone),
            self.oldest.length.eq(read.data.length - gone),
            self.oldest.last.eq(read.data.last),
            empties.eq(self.use.length == self.oldest.length),
        ]
        heads.write(qp, head + 1, self.use.valid & empties)
        used.write(qp, Mux(empties, 0, gone + self.use.length), self.use.valid)
        heads.write(self.forget.qp, tails.read(self.forget.qp), self.forget.valid)
        used.write(self.forget.qp, 0, self.forget.valid)
        return m
