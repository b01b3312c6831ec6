"""One direction of a PCIe link: rate, latency, credits and order (decision 4)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .config import BYTE_FRACTION, PcieTiming
from .formats.events import EventKind, Stall, StallCause, TlpSent
from .formats.tlp import CompletionBeat, Mark, PostedBeat, ReadBeat, TlpClass
from .lib.delay import NOW_BITS, DelayLine, earliest
from .lib.rate import RateMeter
from .lib.trace import Probe, StallMeter
from .pcie_class import ORDER_BITS, UNIT_BITS, Credits, ReceiveQueue, TlpChoice

__all__ = ["Pcie", "PcieLink"]


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
        super().__init__(
            {
                "posted": Out(stream.Signature(PostedBeat)),
                "reads": Out(stream.Signature(ReadBeat)),
                "completions": Out(stream.Signature(CompletionBeat)),
            }
        )


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
    A TLP costs `wire` = overhead + the bytes of the dwords its payload touches, times
    the cycles per byte. Beats are taken one per cycle, up to two cycles before their first byte
    goes, so that the bytes of waiting TLPs follow each other without a gap (unless beats that cost
    less than a cycle come in a row: they go one per cycle). The last beat of a TLP whose first beat
    is taken at cycle t on an idle link, and whose other beats come without a gap, is offered at

        t + ceil(wire * cycles_per_byte) + latency

    and no other cycle is added; beat i likewise, with the bytes up to its own end, and at least a
    cycle after beat i - 1. A read or completion behind a posted TLP is offered in the cycle after
    that was taken, at the earliest.

    The credits of a TLP whose last beat is taken at cycle p at the far side serve a TLP that is
    sent from p + max(latency, 1) + 1 on.
    """

    def __init__(self, number, structure):
        self._number, self._structure = number, structure
        stall = Probe(EventKind.STALL, Stall)
        super().__init__(
            {
                "i": In(Pcie()),
                "o": Out(Pcie()),
                "now": In(NOW_BITS),
                "latency": In(16),
                "byte_interval": In(28),
                "timing": In(PcieTiming),
                "on_sent": Out(Probe(EventKind.TLP_SENT, TlpSent)),
                "on_stall_posted": Out(stall),
                "on_stall_reads": Out(stall),
                "on_stall_completions": Out(stall),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
            }
        )

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
        for port, credit in (
            (self.i.posted, posted_credits),
            (self.i.completions, completion_credits),
        ):
            m.d.comb += credit.need.eq((port.payload.length + port.payload.address[:2] + 15) >> 4)
        m.submodules.choice = chooser = TlpChoice()
        choice = chooser.choice
        m.d.comb += [
            chooser.valid.eq(Cat(port.valid for port in i)),
            chooser.may_start.eq(chooser.valid & Cat(credit.enough for credit in credits)),
        ]

        # Its beat, without the data.
        offset, count, length = Signal(2), Signal(7), Signal(13)
        first, last, mark = Signal(), Signal(), Signal(Mark)
        overhead, need = Signal(8), Signal(UNIT_BITS)
        with m.Switch(choice):
            for index, (port, credit) in enumerate(zip(i, credits, strict=True)):
                beat = port.payload
                with m.Case(index):
                    m.d.comb += [
                        overhead.eq(overheads[index]),
                        length.eq(beat.length),
                        mark.eq(beat.mark),
                    ]
                    if index == TlpClass.READ.value:
                        m.d.comb += [first.eq(1), last.eq(1)]
                    else:
                        m.d.comb += [
                            offset.eq(beat.address[:2]),
                            count.eq(beat.count),
                            need.eq(credit.need),
                            first.eq(beat.first),
                            last.eq(beat.last),
                        ]
        payload_wire, beat_wire = Signal(13), Signal(9)
        with m.If(choice != TlpClass.READ.value):
            m.d.comb += payload_wire.eq(Cat(Const(0, 2), (length + offset + 3)[2:]))
        # A read has no payload: its count is 0.
        m.d.comb += beat_wire.eq(
            Mux(first, overhead, 0) + Cat(Const(0, 2), (count + offset + 3)[2:])
        )

        # Sent while the link is free; it arrives when its last byte has been sent, plus the
        # latency.
        m.submodules.meter = meter = RateMeter(BYTE_FRACTION, 37, ahead=2)
        take, arrival = Signal(), Signal(NOW_BITS)
        m.d.comb += [
            meter.now.eq(self.now),
            meter.cost.eq(beat_wire * self.byte_interval),
            meter.charge.eq(take),
            arrival.eq(meter.ends + self.latency),
            chooser.taken.eq(take),
            chooser.first.eq(first),
            chooser.last.eq(last),
        ]

        # Receive queues; reads and completions remember how many posted TLPs went before them.
        m.submodules.posted = posted = ReceiveQueue(PostedBeat, beats, ordered=False)
        m.submodules.reads = reads = ReceiveQueue(
            ReadBeat, self._structure.pcie_reads, ordered=True
        )
        m.submodules.completions = completions = ReceiveQueue(CompletionBeat, beats, ordered=True)
        queues, o = [posted, reads, completions], [self.o.posted, self.o.reads, self.o.completions]
        posted_sent, posted_popped = Signal(ORDER_BITS), Signal(ORDER_BITS)
        held_need = Signal(UNIT_BITS)
        room = Signal()
        with m.Switch(choice):
            for index, queue in enumerate(queues):
                with m.Case(index):
                    m.d.comb += room.eq(queue.i.ready)
        m.d.comb += take.eq(chooser.goes & meter.open & room)
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

        # Credits go back one latency later; all that are freed in a cycle travel together. Never
        # full: each entry stands for credits of at least one TLP, and the queues hold no more TLPs.
        bundle = data.StructLayout(
            {"headers": 3, "posted_units": UNIT_BITS, "completion_units": UNIT_BITS}
        )
        depth = 1 << (beats + self._structure.pcie_reads - 1).bit_length()
        m.submodules.returns = returns = DelayLine(bundle, depth)
        freed = Cat(queue.freed for queue in queues)
        back = returns.o.payload
        m.d.comb += [
            returns.now.eq(self.now),
            returns.latency.eq(self.latency),
            returns.i.valid.eq(freed.any()),
            returns.i.payload.headers.eq(freed),
            returns.i.payload.posted_units.eq(Mux(posted.freed, posted.freed_units, 0)),
            returns.i.payload.completion_units.eq(
                Mux(completions.freed, completions.freed_units, 0)
            ),
            returns.o.ready.eq(1),
            posted_credits.back_units.eq(back.posted_units),
            completion_credits.back_units.eq(back.completion_units),
        ]
        m.d.comb += [
            credit.back.eq(returns.o.valid & back.headers[index])
            for index, credit in enumerate(credits)
        ]

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
            starts = i[index].valid & ~chooser.inside[index]
            m.d.comb += stall.stalled.eq(starts & ~credits[index].enough)
            wiring.connect(m, stall.event, wiring.flipped(event))

        active = Cat(
            *(port.valid for port in i),
            *(port.valid for port in o),
            *(event.valid for event in events),
            returns.o.valid,
        )
        m.d.comb += [
            self.quiet.eq(~active.any()),
            self.due.eq(earliest(m, [returns.due, *(queue.due for queue in queues)])),
        ]
        return m
