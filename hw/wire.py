"""The NIC's port: faults, credits and rate on the way out; a buffer and a delay on the way in."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .fault_injector import FaultInjector
from .formats.events import (
    Dropped,
    DropReason,
    EventKind,
    RxLast,
    Stall,
    StallCause,
    TxFirst,
    TxLast,
)
from .formats.layout import size
from .formats.roce import EXTENSIONS, AtomicAckEth, AtomicEth, Reth, RoceOpcode, WireBeat
from .lib.delay import NOW_BITS, DelayLine
from .lib.rate import RateMeter
from .lib.stream import Queue
from .lib.trace import Probe, StallMeter
from .opcodes import is_response
from .timing import FAULT_SLOTS, FaultTiming, WireTiming
from .units import BYTE_FRACTION

__all__ = ["Wire", "WirePort", "of_port"]

#: Bytes charged with one beat: 64 of payload and an overhead of up to 255 and some headers.
_BYTES_BITS = 9
#: Operands of an AtomicETH, and the value of an AtomicAckETH: in a beat they are payload.
_IN_PAYLOAD = {AtomicEth: 16, AtomicAckEth: 8}


def _extra(opcode):
    """Bytes of the headers behind the BTH that no other charge has in it."""
    headers = EXTENSIONS.get(opcode, ())
    return sum(size(header) - _IN_PAYLOAD.get(header, 0) for header in headers if header != Reth)


class _Header(data.Struct):
    """What the events of a packet tell; taken from its first beat."""

    dest_qp: 12
    psn: 24
    opcode: 8
    length: 13
    qp: 12
    wqe_index: 16


class _Departure(data.Struct):
    """A beat that is being sent, and the cycle in which its last byte has been."""

    beat: WireBeat
    ends: NOW_BITS


def _packet_header(m, beat, taken, name):
    """Header of the packet that `beat` belongs to; kept from the first beat to the last."""
    header, kept = Signal(_Header, name=f"{name}_header"), Signal(_Header, name=f"{name}_kept")
    with m.If(beat.first):
        m.d.comb += [
            header.dest_qp.eq(beat.bth.dest_qp),
            header.psn.eq(beat.bth.psn),
            header.opcode.eq(beat.bth.opcode),
            header.length.eq(beat.length),
            header.qp.eq(beat.qp),
            header.wqe_index.eq(beat.wqe_index),
        ]
    with m.Else():
        m.d.comb += header.eq(kept)
    with m.If(taken):
        m.d.sync += kept.eq(header)
    return header


def _rounded(count):
    """Payload bytes with pad: the next multiple of 4."""
    return Cat(Const(0, 2), ((count + 3) >> 2))


def of_port(name, port):
    """Name of what a NIC has once per port: port 0 has it as it is, port 1 with its number."""
    return f"{name}_{port}" if port else name


class WirePort(wiring.Signature):
    """A port towards its link, from the NIC's side.

    Members
    -------
    tx_valid, tx_beat, rx_credit : Out
        A beat leaves; one beat of the receive buffer was freed.
    rx_valid, rx_beat, tx_credit : In
        A beat arrives; one beat of the far buffer was freed.
    """

    def __init__(self):
        super().__init__(
            {
                "tx_valid": Out(1),
                "tx_beat": Out(WireBeat),
                "tx_credit": In(1),
                "rx_valid": In(1),
                "rx_beat": In(WireBeat),
                "rx_credit": Out(1),
            }
        )


class Wire(wiring.Component):
    """Sends packets at the wire's rate into the far buffer, and buffers and delays what comes in.

    A packet that leaves is charged `ack_bytes` (ACK), or `first_overhead` (with RETH) or
    `other_overhead` plus its other headers behind the BTH and its payload with pad; all of the
    overhead with its first beat. A beat leaves when its last byte has been sent.

    Parameters
    ----------
    structure : Structure
        `wire_beats` of receive buffer.
    port : int
        Number of the port, which goes into events.

    Members
    -------
    requests, acks : In(stream of `WireBeat`)
        Packets to send, those of a responder at `acks`; all beats of a packet but the last are
        full. Never interleaved; one at `acks` goes before a request that has not begun.
    tx_valid, tx_beat : Out
        A beat leaves in this cycle (registers).
    tx_credit : In(1)
        One beat of the far buffer was freed.
    rx_valid, rx_beat : In
        A beat arrives. It must find room: the sender keeps the credits.
    rx_credit : Out(1)
        One beat of the receive buffer was freed (register).
    rx_requests, rx_acks : Out(stream of `WireBeat`)
        Packets that arrived, by the opcode of their first beat: what responders send are `rx_acks`.
        In order: one that is not taken holds up the other kind.
    timing : In(WireTiming)
    rx : In(16)
        Receive delay in cycles: from arrival to the packet's processing.
    faults : In(FaultTiming)
        Packets to lose. They are swallowed before credits and rate, one beat per cycle.
    now : In
    quiet, due : Out
    on_tx_first, on_tx_last : Out(Probe)
        A packet's first and last beat; in the cycle in which the beat enters the output register,
        that is when its last byte has been sent.
        `qp` and `wqe_index` are the sender's.
    on_rx_last : Out(Probe)
        The last beat of a packet arrived (in the cycle of `rx_valid`). `qp` is the low bits of the
        packet's QPN.
    on_dropped : Out(Probe)
        WIRE_FAULT; `qp` is the low bits of the QPN the packet is addressed to, `info` the slot in
        bits 7:0, the opcode in 15:8 and the port in 16.
    on_stall_credits : Out(Probe)

    Timing
    ------
    On an idle wire a packet of B charged bytes, its first beat accepted at t and its
    beats offered without a gap, has its last beat enter the output register (`on_tx_last`) at t +
    ceil(B * cycles per byte) and on `tx_valid` one cycle later; at least 1 and 2 cycles. (One cycle
    more if its last two beats end within one cycle: one beat leaves per cycle.) On a busy wire the
    fractions carry over: n packets take the sum of their bytes times the interval, within one
    cycle. A beat that arrives in cycle t is offered from t + max(1, rx); one beat per cycle.
    `rx_credit` follows one cycle after its beat was taken.
    """

    def __init__(self, structure, port=0):
        self._structure, self._port = structure, port
        beats = stream.Signature(WireBeat)
        super().__init__(
            {
                "requests": In(beats),
                "acks": In(beats),
                "tx_valid": Out(1),
                "tx_beat": Out(WireBeat),
                "tx_credit": In(1),
                "rx_valid": In(1),
                "rx_beat": In(WireBeat),
                "rx_credit": Out(1),
                "rx_requests": Out(beats),
                "rx_acks": Out(beats),
                "timing": In(WireTiming),
                "rx": In(16),
                "faults": In(FaultTiming),
                "now": In(NOW_BITS),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
                "on_tx_first": Out(Probe(EventKind.TX_FIRST, TxFirst)),
                "on_tx_last": Out(Probe(EventKind.TX_LAST, TxLast)),
                "on_rx_last": Out(Probe(EventKind.RX_LAST, RxLast)),
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
                "on_stall_credits": Out(Probe(EventKind.STALL, Stall)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.sending = sending = Queue(_Departure, 4)
        m.submodules.arriving = arriving = DelayLine(WireBeat, self._structure.wire_beats)
        self._accept(m, sending)
        self._depart(m, sending)
        self._receive(m, arriving)

        # What is being sent waits for its last byte, what has arrived for the receive delay.
        leaves = sending.o.payload.ends
        m.d.comb += [
            self.quiet.eq(
                ~self.requests.valid
                & ~self.acks.valid
                & ~self.tx_valid
                & ~self.rx_credit
                & arriving.quiet
                & (sending.empty | (leaves > self.now))
            ),
            self.due.eq(Mux(~sending.empty & (leaves < arriving.due), leaves, arriving.due)),
        ]
        return m

    def _overhead(self, m, opcode, name):
        """Bytes that a packet costs beside its payload."""
        timing, overhead = self.timing, Signal(_BYTES_BITS, name=f"{name}_overhead")
        m.d.comb += overhead.eq(timing.other_overhead)
        with m.Switch(opcode):
            for member, headers in EXTENSIONS.items():
                base = timing.first_overhead if Reth in headers else timing.other_overhead
                with m.Case(member):
                    if member == RoceOpcode.ACK:
                        m.d.comb += overhead.eq(timing.ack_bytes)
                    else:
                        m.d.comb += overhead.eq(base + _extra(member))
        return overhead

    def _accept(self, m, sending):
        """Choice of a packet, faults, credits, charge."""
        # An ACK first, but not into a packet.
        inside, inside_ack, take_ack = Signal(), Signal(), Signal()
        beat, offered, taken = Signal(WireBeat), Signal(), Signal()
        m.d.comb += take_ack.eq(Mux(inside, inside_ack, self.acks.valid))
        with m.If(take_ack):
            m.d.comb += [
                beat.eq(self.acks.payload),
                offered.eq(self.acks.valid),
                self.acks.ready.eq(taken),
            ]
        with m.Else():
            m.d.comb += [
                beat.eq(self.requests.payload),
                offered.eq(self.requests.valid),
                self.requests.ready.eq(taken),
            ]
        with m.If(taken):
            m.d.sync += [inside.eq(~beat.last), inside_ack.eq(take_ack)]

        # A packet that is lost is swallowed here.
        slots = FAULT_SLOTS
        m.submodules.injector = injector = FaultInjector(slots, self._port)
        drop, dropping = Signal(), Signal()
        m.d.comb += [
            injector.faults.eq(self.faults),
            injector.opcode.eq(beat.bth.opcode),
            injector.step.eq(taken & beat.first),
            drop.eq(Mux(beat.first, injector.hit, dropping)),
            self.on_dropped.valid.eq(injector.step & injector.hit),
            self.on_dropped.payload.reason.eq(DropReason.WIRE_FAULT),
            self.on_dropped.payload.qp.eq(beat.bth.dest_qp),
            self.on_dropped.payload.info.eq(
                Cat(injector.slot, beat.bth.opcode, Const(self._port, 1))
            ),
        ]
        with m.If(taken):
            m.d.sync += dropping.eq(drop)

        # Credits are counted as beats not yet given back, so that no load is needed at the start.
        used, credit = Signal(16), Signal()
        m.submodules.meter = meter = RateMeter(BYTE_FRACTION, _BYTES_BITS + 28)
        m.submodules.stall = stall = StallMeter(StallCause.WIRE_CREDITS, self._port)
        goes = Signal()
        m.d.comb += [
            credit.eq(used < self.timing.credits),
            goes.eq(offered & ~drop & meter.open & credit & sending.i.ready),
            taken.eq(goes | (offered & drop)),
            stall.stalled.eq(offered & ~drop & meter.open & ~credit),
            self.on_stall_credits.valid.eq(stall.event.valid),
            self.on_stall_credits.payload.eq(stall.event.payload),
        ]
        m.d.sync += used.eq(used + goes - self.tx_credit)

        charged, overhead = Signal(_BYTES_BITS), self._overhead(m, beat.bth.opcode, "charged")
        with m.If(beat.first):
            m.d.comb += charged.eq(_rounded(beat.count) + overhead)
        with m.Else():
            m.d.comb += charged.eq(_rounded(beat.count))
        m.d.comb += [
            meter.now.eq(self.now),
            meter.cost.eq(charged * self.timing.byte_interval),
            meter.charge.eq(goes),
            sending.i.valid.eq(goes),
            sending.i.payload.beat.eq(beat),
            sending.i.payload.ends.eq(meter.ends),
        ]

    def _depart(self, m, sending):
        """Beats whose last byte has been sent, through the output register."""
        beat, departs = sending.o.payload.beat, Signal()
        m.d.comb += [
            departs.eq(sending.o.valid & (sending.o.payload.ends <= self.now)),
            sending.o.ready.eq(departs),
        ]
        m.d.sync += self.tx_valid.eq(departs)
        with m.If(departs):
            m.d.sync += self.tx_beat.eq(beat)

        header = _packet_header(m, beat, departs, "tx")
        first, last = self.on_tx_first.payload, self.on_tx_last.payload
        m.d.comb += [
            self.on_tx_first.valid.eq(departs & beat.first),
            first.dest_qp.eq(header.dest_qp),
            first.psn.eq(header.psn),
            first.opcode.eq(header.opcode),
            first.qp.eq(header.qp),
            first.wqe_index.eq(header.wqe_index),
            first.length.eq(header.length),
            first.wire_bytes.eq(_rounded(header.length) + self._overhead(m, header.opcode, "tx")),
            first.dest.eq(beat.dest),
            first.port.eq(self._port),
            self.on_tx_last.valid.eq(departs & beat.last),
            last.dest_qp.eq(header.dest_qp),
            last.psn.eq(header.psn),
            last.opcode.eq(header.opcode),
            last.qp.eq(header.qp),
            last.wqe_index.eq(header.wqe_index),
            last.port.eq(self._port),
        ]

    def _receive(self, m, arriving):
        """Arrivals, the receive delay, and the way to the requester or the responder."""
        m.d.comb += [
            arriving.now.eq(self.now),
            arriving.latency.eq(self.rx),
            arriving.i.valid.eq(self.rx_valid),
            arriving.i.payload.eq(self.rx_beat),
        ]
        header = _packet_header(m, self.rx_beat, self.rx_valid, "rx")
        event = self.on_rx_last.payload
        m.d.comb += [
            self.on_rx_last.valid.eq(self.rx_valid & self.rx_beat.last),
            event.qp.eq(header.dest_qp),
            event.psn.eq(header.psn),
            event.opcode.eq(header.opcode),
            event.length.eq(header.length),
            event.port.eq(self._port),
        ]

        beat, to_acks, kept = arriving.o.payload, Signal(), Signal()
        m.d.comb += to_acks.eq(Mux(beat.first, is_response(beat.bth.opcode), kept))
        m.d.comb += [
            self.rx_acks.payload.eq(beat),
            self.rx_acks.valid.eq(arriving.o.valid & to_acks),
            self.rx_requests.payload.eq(beat),
            self.rx_requests.valid.eq(arriving.o.valid & ~to_acks),
            arriving.o.ready.eq(Mux(to_acks, self.rx_acks.ready, self.rx_requests.ready)),
        ]
        leaves = arriving.o.valid & arriving.o.ready
        m.d.sync += self.rx_credit.eq(leaves)
        with m.If(leaves):
            m.d.sync += kept.eq(to_acks)
