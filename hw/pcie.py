"""One direction of a PCIe link: rate, latency, credits and order (decision 4)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.events import EventKind, Stall, StallCause, TlpSent
from .formats.tlp import ADDRESS_BITS, CompletionBeat, Mark, PostedBeat, ReadBeat, TlpClass
from .lib.delay import NOW_BITS, DelayLine, earliest
from .lib.rate import RateMeter
from .lib.trace import Probe, StallMeter
from .pcie_class import ORDER_BITS, UNIT_BITS, Credits, ReceiveQueue, TlpChoice
from .timing import PcieTiming
from .units import BYTE_FRACTION

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


class _Beat(data.Struct):
    """The beat that is chosen, without its bytes."""

    #: Place of its first byte in a dword.
    offset: 2
    count: 7
    #: Payload of its TLP, the TLP's overhead, and the data credits it needs.
    length: 13
    overhead: 8
    need: UNIT_BITS
    first: 1
    last: 1
    mark: Mark
    address: ADDRESS_BITS


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
        i = [self.i.posted, self.i.reads, self.i.completions]

        # A class whose TLP has all its credits is chosen; its beat goes while the link is free.
        credits = self._credits(m)
        m.submodules.choice = chooser = TlpChoice()
        m.d.comb += [
            chooser.valid.eq(Cat(port.valid for port in i)),
            chooser.may_start.eq(chooser.valid & Cat(credit.enough for credit in credits)),
        ]
        self._room = Signal()
        beat = self._chosen_beat(m, i, credits, chooser.choice)
        take, arrival = self._send(m, chooser, beat)

        # It waits in the receive queue of its class; what is popped there gives credits back.
        queues = self._receive(m, i, chooser, beat, take, arrival)
        for port, queue, credit in zip(i, queues, credits, strict=True):
            m.d.comb += [port.ready.eq(queue.i.valid), credit.take.eq(queue.i.valid & beat.first)]
        returns = self._return_credits(m, queues, credits)

        self._report_sent(m, chooser.choice, beat, take)
        stalls = self._report_stalls(m, i, credits, chooser.inside)
        active = Cat(
            *(port.valid for port in i),
            *(queue.o.valid for queue in queues),
            *(stall.valid for stall in stalls),
            returns.o.valid,
        )
        m.d.comb += [
            self.quiet.eq(~active.any()),
            self.due.eq(earliest(m, [returns.due, *(queue.due for queue in queues)])),
        ]
        return m

    def _credits(self, m):
        """Credits of each class, and what its waiting TLP needs of them."""
        timing = self.timing
        m.submodules.posted_credits = posted = Credits()
        m.submodules.read_credits = reads = Credits(units=False)
        m.submodules.completion_credits = completions = Credits()
        m.d.comb += [
            posted.headers.eq(timing.posted_header_credits),
            posted.data.eq(timing.posted_data_credits),
            reads.headers.eq(timing.read_header_credits),
            completions.headers.eq(timing.completion_header_credits),
            completions.data.eq(timing.completion_data_credits),
        ]
        for port, credit in ((self.i.posted, posted), (self.i.completions, completions)):
            m.d.comb += credit.need.eq((port.payload.length + port.payload.address[:2] + 15) >> 4)
        return [posted, reads, completions]

    def _chosen_beat(self, m, i, credits, choice):
        """What the link must know of the beat that is chosen."""
        timing, beat = self.timing, Signal(_Beat)
        overheads = [timing.mwr_overhead, timing.mrd_overhead, timing.cpld_overhead]
        with m.Switch(choice):
            for index, (port, credit) in enumerate(zip(i, credits, strict=True)):
                payload = port.payload
                with m.Case(index):
                    m.d.comb += [
                        beat.overhead.eq(overheads[index]),
                        beat.length.eq(payload.length),
                        beat.mark.eq(payload.mark),
                        beat.address.eq(payload.address),
                    ]
                    if index == TlpClass.READ.value:
                        m.d.comb += [beat.first.eq(1), beat.last.eq(1)]
                    else:
                        m.d.comb += [
                            beat.offset.eq(payload.address[:2]),
                            beat.count.eq(payload.count),
                            beat.need.eq(credit.need),
                            beat.first.eq(payload.first),
                            beat.last.eq(payload.last),
                        ]
        return beat

    def _send(self, m, chooser, beat):
        """Charges the link; returns when a beat goes, and when it arrives: its last byte sent, plus
        the latency.
        """
        # A read has no payload: its count is 0.
        wire, take, arrival = Signal(9), Signal(), Signal(NOW_BITS)
        m.submodules.meter = meter = RateMeter(BYTE_FRACTION, 37, ahead=2)
        m.d.comb += [
            wire.eq(Mux(beat.first, beat.overhead, 0) + _dwords(beat.count, beat.offset)),
            meter.now.eq(self.now),
            meter.cost.eq(wire * self.byte_interval),
            meter.charge.eq(take),
            arrival.eq(meter.ends + self.latency),
            chooser.taken.eq(take),
            chooser.first.eq(beat.first),
            chooser.last.eq(beat.last),
            take.eq(chooser.goes & meter.open & self._room),
        ]
        return take, arrival

    def _receive(self, m, i, chooser, beat, take, arrival):
        """Receive queues; reads and completions remember how many posted TLPs went before them."""
        beats = self._structure.pcie_beats
        m.submodules.posted = posted = ReceiveQueue(PostedBeat, beats, ordered=False)
        m.submodules.reads = reads = ReceiveQueue(
            ReadBeat, self._structure.pcie_reads, ordered=True
        )
        m.submodules.completions = completions = ReceiveQueue(CompletionBeat, beats, ordered=True)
        queues = [posted, reads, completions]
        with m.Switch(chooser.choice):
            for index, queue in enumerate(queues):
                with m.Case(index):
                    m.d.comb += self._room.eq(queue.i.ready)

        held_need = Signal(UNIT_BITS)
        with m.If(take & beat.first):
            m.d.sync += held_need.eq(beat.need)
        o = [self.o.posted, self.o.reads, self.o.completions]
        for index, queue in enumerate(queues):
            m.d.comb += [
                queue.i.payload.eq(i[index].payload),
                queue.i.valid.eq(take & (chooser.choice == index)),
                queue.arrival.eq(arrival),
                queue.units.eq(Mux(beat.first, beat.need, held_need)),
                queue.now.eq(self.now),
            ]
            wiring.connect(m, queue.o, wiring.flipped(o[index]))

        sent, popped = Signal(ORDER_BITS), Signal(ORDER_BITS)
        m.d.sync += [
            sent.eq(sent + (posted.i.valid & beat.last)),
            popped.eq(popped + posted.freed),
        ]
        for queue in (reads, completions):
            m.d.comb += [queue.before.eq(sent), queue.popped.eq(popped)]
        return queues

    def _return_credits(self, m, queues, credits):
        """Credits go back one latency later; all that are freed in a cycle travel together.

        The line is never full: each entry stands for credits of at least one TLP, and the queues
        hold no more TLPs.
        """
        posted, _, completions = queues
        bundle = data.StructLayout(
            {"headers": 3, "posted_units": UNIT_BITS, "completion_units": UNIT_BITS}
        )
        depth = 1 << (self._structure.pcie_beats + self._structure.pcie_reads - 1).bit_length()
        m.submodules.returns = returns = DelayLine(bundle, depth)
        freed, goes, back = Cat(q.freed for q in queues), returns.i.payload, returns.o.payload
        m.d.comb += [
            returns.now.eq(self.now),
            returns.latency.eq(self.latency),
            returns.i.valid.eq(freed.any()),
            goes.headers.eq(freed),
            goes.posted_units.eq(Mux(posted.freed, posted.freed_units, 0)),
            goes.completion_units.eq(Mux(completions.freed, completions.freed_units, 0)),
            returns.o.ready.eq(1),
            credits[0].back_units.eq(back.posted_units),
            credits[2].back_units.eq(back.completion_units),
        ]
        m.d.comb += [
            credit.back.eq(returns.o.valid & back.headers[index])
            for index, credit in enumerate(credits)
        ]
        return returns

    def _report_sent(self, m, choice, beat, take):
        """A TLP, with its first beat."""
        event, payload_wire = self.on_sent.payload, Signal(13)
        with m.If(choice != TlpClass.READ.value):
            m.d.comb += payload_wire.eq(_dwords(beat.length, beat.offset))
        m.d.comb += [
            self.on_sent.valid.eq(take & beat.first),
            event.link.eq(self._number),
            event.tlp.eq(choice),
            event.payload.eq(beat.length),
            event.wire.eq(beat.overhead + payload_wire),
            event.mark.eq(beat.mark),
            event.address.eq(beat.address),
        ]

    def _report_stalls(self, m, i, credits, inside):
        """Each class waiting for credits; returns the probes."""
        causes = [StallCause.POSTED_CREDITS, StallCause.READ_CREDITS, StallCause.COMPLETION_CREDITS]
        events = [self.on_stall_posted, self.on_stall_reads, self.on_stall_completions]
        for index, (cause, event) in enumerate(zip(causes, events, strict=True)):
            m.submodules[f"stall_{index}"] = stall = StallMeter(cause, self._number)
            starts = i[index].valid & ~inside[index]
            m.d.comb += stall.stalled.eq(starts & ~credits[index].enough)
            wiring.connect(m, stall.event, wiring.flipped(event))
        return events


def _dwords(count, offset):
    """Bytes of the dwords that `count` bytes from `offset` (within a dword) touch."""
    return Cat(Const(0, 2), (count + offset + 3)[2:])
