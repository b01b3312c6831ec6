"""One direction of a PCIe link: rate, latency, credits and order (decision 4)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .config import BYTE_FRACTION, PcieTiming
from .formats.events import EventKind, Stall, StallCause, TlpSent
from .formats.tlp import CompletionBeat, Mark, PostedBeat, ReadBeat, TlpClass
from .lib.delay import NEVER, NOW_BITS, DelayLine, earliest
from .lib.rate import RateMeter
from .lib.trace import Probe, StallMeter

__all__ = ["Pcie", "PcieLink", "ReceiveQueue"]

#: Data credits of one TLP: 16-byte units, at most 257 (4096 bytes that start within a dword).
UNIT_BITS = 9
#: Count of posted TLPs, modulo; a blocked entry may be passed by half of this many.
ORDER_BITS = 24


class Pcie(wiring.Signature):
    """The three classes of TLPs that leave an initiator.

    Members
    -------
    posted : Out(stream of `PostedBeat`)
        Memory writes. All beats of a TLP but the last end at the end of their line.
    reads : Out(stream of `ReadBeat`)
    completions : Out(stream of `CompletionBeat`)
        As `posted`.
    """

    def __init__(self):
        super().__init__({
            "posted": Out(stream.Signature(PostedBeat)),
            "reads": Out(stream.Signature(ReadBeat)),
            "completions": Out(stream.Signature(CompletionBeat)),
        })


class ReceiveQueue(wiring.Component):
    """Beats of one class, from the cycle in which they were sent until they are taken at the far side.

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
    One beat in and one out per cycle, offered from its arrival on, at the earliest in the cycle after it came in.
    """

    def __init__(self, shape, depth, *, ordered):
        self._shape, self._depth, self._ordered = shape, depth, ordered
        members = {
            "i": In(stream.Signature(shape)),
            "arrival": In(NOW_BITS), "units": In(UNIT_BITS), "now": In(NOW_BITS),
            "o": Out(stream.Signature(shape)),
            "freed": Out(1), "freed_units": Out(UNIT_BITS), "due": Out(NOW_BITS),
        }
        if ordered:
            members |= {"before": In(ORDER_BITS), "popped": In(ORDER_BITS)}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        head, tail = Signal(range(self._depth)), Signal(range(self._depth))
        level = Signal(range(self._depth + 1))
        sent, taken = Signal(), Signal()

        # The wide beat has a store of its own, so that it is copied once on its way in and once on its way out.
        stamp = {"arrival": NOW_BITS, "units": UNIT_BITS}
        values = [self.arrival, self.units]
        if self._ordered:
            stamp["before"] = ORDER_BITS
            values.append(self.before)
        stores = [("beat", self._shape, self.i.payload), ("stamp", data.StructLayout(stamp), Cat(values))]
        oldest = {}
        for name, shape, value in stores:
            m.submodules[name] = store = memory.Memory(shape=shape, depth=self._depth, init=[])
            write, read = store.write_port(), store.read_port(domain="comb")
            m.d.comb += [write.en.eq(sent), write.addr.eq(tail), write.data.eq(value), read.addr.eq(head)]
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
        super().__init__({
            "headers": In(12), "data": In(14), "need": In(UNIT_BITS), "enough": Out(1), "take": In(1),
            "back": In(1), "back_units": In(UNIT_BITS),
        })

    def elaborate(self, platform):
        m = Module()
        # Counted as used, so that the limit may be loaded at any time before the first TLP.
        used_headers, used_data = Signal(12), Signal(14)
        m.d.comb += self.enough.eq(used_headers < self.headers)
        m.d.sync += used_headers.eq(used_headers + self.take - self.back)
        if self._units:
            m.d.comb += self.enough.eq((used_headers < self.headers) & (used_data + self.need <= self.data))
            m.d.sync += used_data.eq(used_data + Mux(self.take, self.need, 0) - Mux(self.back, self.back_units, 0))
        return m


class PcieLink(wiring.Component):
    """Carries TLPs one way over one link, at its rate and with its latency and credits.

    Parameters
    ----------
    number : int
        2 x device (`Port`) + direction (0 up to the switch, 1 down); goes into events.
    structure : Structure
        `pcie_beats` and `pcie_reads` are the depths of the receive queues.

    Members
    -------
    i : In(Pcie)
        What the sender has to send.
    o : Out(Pcie)
        What has arrived at the far side.
    now : In
    latency : In(16)
        Cycles from the last byte sent to arrival.
    byte_interval : In(28)
        Cycles per byte, `BYTE_FRACTION` fraction bits.
    timing : In(PcieTiming)
        Overheads and credits in force.
    on_sent : Out(Probe)
        Once per TLP, with its first beat. `payload` of a read is the length it asks for.
    on_stall_posted, on_stall_reads, on_stall_completions : Out(Probe)
        Cycles in which a TLP of this class waited for credits.
    quiet, due : Out
        As in docs/architecture.md; not quiet while a beat waits to be sent or to be taken.

    Timing
    ------
    A TLP costs `wire` = overhead + the bytes of the dwords its payload touches, times the cycles per byte. Beats are
    taken one per cycle, up to two cycles before their first byte goes, so that the bytes of waiting TLPs follow each
    other without a gap (unless beats that cost less than a cycle come in a row: they go one per cycle). The last beat
    of a TLP whose first beat is taken at cycle t on an idle link, and whose other beats come without a gap, is
    offered at

        t + ceil(wire * cycles_per_byte) + latency

    and no other cycle is added; beat i likewise, with the bytes up to its own end, and at least a cycle after beat
    i - 1. A read or completion behind a posted TLP is offered in the cycle after that was taken, at the earliest.

    The credits of a TLP whose last beat is taken at cycle p at the far side serve a TLP that is sent from
    p + max(latency, 1) + 1 on.
    """

    def __init__(self, number, structure):
        self._number, self._structure = number, structure
        stall = Probe(EventKind.STALL, Stall)
        super().__init__({
            "i": In(Pcie()),
            "o": Out(Pcie()),
            "now": In(NOW_BITS), "latency": In(16), "byte_interval": In(28), "timing": In(PcieTiming),
            "on_sent": Out(Probe(EventKind.TLP_SENT, TlpSent)),
            "on_stall_posted": Out(stall), "on_stall_reads": Out(stall), "on_stall_completions": Out(stall),
            "quiet": Out(1), "due": Out(NOW_BITS),
        })

    def elaborate(self, platform):
        m = Module()
        timing, beats = self.timing, self._structure.pcie_beats

        # What each class wants to send: a TLP starts only with all its credits.
        i = [self.i.posted, self.i.reads, self.i.completions]
        overheads = [timing.mwr_overhead, timing.mrd_overhead, timing.cpld_overhead]
        m.submodules.posted_credits = posted_credits = Credits()
        m.submodules.read_credits = read_credits = Credits(units=False)
        m.submodules.completion_credits = completion_credits = Credits()
        credits = [posted_credits, read_credits, completion_credits]
        m.d.comb += [
            posted_credits.headers.eq(timing.posted_header_credits),
            posted_credits.data.eq(timing.posted_data_credits),
            read_credits.headers.eq(timing.read_header_credits),
            completion_credits.headers.eq(timing.completion_header_credits),
            completion_credits.data.eq(timing.completion_data_credits),
        ]
        for port, credit in ((self.i.posted, posted_credits), (self.i.completions, completion_credits)):
            m.d.comb += credit.need.eq((port.payload.length + port.payload.address[:2] + 15) >> 4)
        ready_to_start = Signal(3)
        m.d.comb += ready_to_start.eq(Cat(port.valid & credit.enough for port, credit in zip(i, credits, strict=True)))

        # The class of this cycle: the one whose TLP is on its way, else the next in turn that may start.
        sending, current, turn, choice = Signal(), Signal(2), Signal(2), Signal(2)
        goes = Signal()
        with m.If(sending):
            m.d.comb += [choice.eq(current), goes.eq(Mux(current[1], i[2].valid, i[0].valid))]
        with m.Else():
            m.d.comb += goes.eq(ready_to_start.any())
            with m.Switch(turn):
                for start in range(3):
                    with m.Case(start):
                        for index in ((start + step) % 3 for step in (2, 1, 0)):
                            with m.If(ready_to_start[index]):
                                m.d.comb += choice.eq(index)

        # Its beat, without the data.
        offset, count, length = Signal(2), Signal(7), Signal(13)
        first, last, mark = Signal(), Signal(), Signal(Mark)
        overhead, need = Signal(8), Signal(UNIT_BITS)
        with m.Switch(choice):
            for index, (port, credit) in enumerate(zip(i, credits, strict=True)):
                beat = port.payload
                with m.Case(index):
                    m.d.comb += [overhead.eq(overheads[index]), length.eq(beat.length), mark.eq(beat.mark)]
                    if index == TlpClass.READ.value:
                        m.d.comb += [first.eq(1), last.eq(1)]
                    else:
                        m.d.comb += [offset.eq(beat.address[:2]), count.eq(beat.count), need.eq(credit.need),
                                     first.eq(beat.first), last.eq(beat.last)]
        payload_wire, beat_wire = Signal(13), Signal(9)
        with m.If(choice != TlpClass.READ.value):
            m.d.comb += payload_wire.eq(Cat(Const(0, 2), (length + offset + 3)[2:]))
        # A read has no payload: its count is 0.
        m.d.comb += beat_wire.eq(Mux(first, overhead, 0) + Cat(Const(0, 2), (count + offset + 3)[2:]))

        # Sent while the link is free; it arrives when its last byte has been sent, plus the latency.
        m.submodules.meter = meter = RateMeter(BYTE_FRACTION, 37, ahead=2)
        take, arrival = Signal(), Signal(NOW_BITS)
        m.d.comb += [
            meter.now.eq(self.now),
            meter.cost.eq(beat_wire * self.byte_interval),
            meter.charge.eq(take),
            arrival.eq(meter.ends + self.latency),
        ]
        with m.If(take):
            m.d.sync += [sending.eq(~last), current.eq(choice)]
            with m.If(first):
                m.d.sync += turn.eq(Mux(choice == 2, 0, choice + 1))

        # Receive queues; reads and completions remember how many posted TLPs went before them.
        m.submodules.posted = posted = ReceiveQueue(PostedBeat, beats, ordered=False)
        m.submodules.reads = reads = ReceiveQueue(ReadBeat, self._structure.pcie_reads, ordered=True)
        m.submodules.completions = completions = ReceiveQueue(CompletionBeat, beats, ordered=True)
        queues, o = [posted, reads, completions], [self.o.posted, self.o.reads, self.o.completions]
        posted_sent, posted_popped, held_need = Signal(ORDER_BITS), Signal(ORDER_BITS), Signal(UNIT_BITS)
        room = Signal()
        with m.Switch(choice):
            for index, queue in enumerate(queues):
                with m.Case(index):
                    m.d.comb += room.eq(queue.i.ready)
        m.d.comb += take.eq(goes & meter.open & room)
        with m.If(take & first):
            m.d.sync += held_need.eq(need)
        for index, (queue, credit) in enumerate(zip(queues, credits, strict=True)):
            chosen = Signal(name=f"sends_{index}")
            m.d.comb += [
                chosen.eq(take & (choice == index)),
                i[index].ready.eq(chosen),
                credit.take.eq(chosen & first),
                queue.i.payload.eq(i[index].payload),
                queue.i.valid.eq(chosen),
                queue.arrival.eq(arrival),
                queue.units.eq(Mux(first, need, held_need)),
                queue.now.eq(self.now),
            ]
            wiring.connect(m, queue.o, wiring.flipped(o[index]))
        for queue in (reads, completions):
            m.d.comb += [queue.before.eq(posted_sent), queue.popped.eq(posted_popped)]
        m.d.sync += [
            posted_sent.eq(posted_sent + (posted.i.valid & last)),
            posted_popped.eq(posted_popped + posted.freed),
        ]

        # Credits go back one latency later; all that are freed in a cycle travel together. Never full: each entry
        # stands for credits of at least one TLP, and the queues hold no more TLPs.
        bundle = data.StructLayout({"headers": 3, "posted_units": UNIT_BITS, "completion_units": UNIT_BITS})
        depth = 1 << (beats + self._structure.pcie_reads - 1).bit_length()
        m.submodules.returns = returns = DelayLine(bundle, depth)
        freed = Cat(queue.freed for queue in queues)
        back = returns.o.payload
        m.d.comb += [
            returns.now.eq(self.now), returns.latency.eq(self.latency),
            returns.i.valid.eq(freed.any()),
            returns.i.payload.headers.eq(freed),
            returns.i.payload.posted_units.eq(Mux(posted.freed, posted.freed_units, 0)),
            returns.i.payload.completion_units.eq(Mux(completions.freed, completions.freed_units, 0)),
            returns.o.ready.eq(1),
            posted_credits.back_units.eq(back.posted_units),
            completion_credits.back_units.eq(back.completion_units),
        ]
        m.d.comb += [credit.back.eq(returns.o.valid & back.headers[index]) for index, credit in enumerate(credits)]

        # Events.
        m.d.comb += [
            self.on_sent.valid.eq(take & first),
            self.on_sent.payload.link.eq(self._number),
            self.on_sent.payload.tlp.eq(choice),
            self.on_sent.payload.payload.eq(length),
            self.on_sent.payload.wire.eq(overhead + payload_wire),
            self.on_sent.payload.mark.eq(mark),
        ]
        causes = [StallCause.POSTED_CREDITS, StallCause.READ_CREDITS, StallCause.COMPLETION_CREDITS]
        events = [self.on_stall_posted, self.on_stall_reads, self.on_stall_completions]
        for index, (cause, event) in enumerate(zip(causes, events, strict=True)):
            m.submodules[f"stall_{index}"] = stall = StallMeter(cause, self._number)
            starts = i[index].valid & ~(sending & (current == index))
            m.d.comb += stall.stalled.eq(starts & ~credits[index].enough)
            wiring.connect(m, stall.event, wiring.flipped(event))

        active = Cat(*(port.valid for port in i), *(port.valid for port in o), *(event.valid for event in events),
                     returns.o.valid)
        m.d.comb += [
            self.quiet.eq(~active.any()),
            self.due.eq(earliest(m, [returns.due, *(queue.due for queue in queues)])),
        ]
        return m
