"""Responder: takes RDMA WRITE packets, writes their payload, acknowledges them."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .config import NicTiming
from .formats.context import RxContext, Table
from .formats.dma import WriteRequest
from .formats.events import Dropped, DropReason, EventKind
from .formats.roce import ACK_SYNDROME, Aeth, Reth, RoceOpcode, WireBeat
from .formats.tlp import ADDRESS_BITS, MarkKind
from .lib.align import Line, Realigner
from .lib.delay import NOW_BITS, DelayLine
from .lib.stream import Queue, connect, skid
from .lib.trace import Probe
from .qp_context import ConfigPort, ContextPort

__all__ = ["PacketChecker", "Responder"]

#: ACKs that may wait for the transmit delay.
_ACKS = 1024


class _RxState(data.Struct):
    """What a connection has received."""

    expected_psn: 24
    #: Messages completed, modulo 2^24.
    msn: 24
    #: Where the message's next byte goes; valid within a message.
    address: ADDRESS_BITS
    in_message: 1


class _Ack(data.Struct):
    """An ACK on its way to the wire."""

    peer_qpn: 24
    peer_node: 8
    psn: 24
    msn: 24


class PacketChecker(wiring.Component):
    """Judges a packet by its first beat.

    Parameters
    ----------
    none

    Members
    -------
    beat : In(WireBeat)
        First beat of the packet.
    context : In(RxContext)
    expected_psn, in_message : In
        State of its connection.
    good : Out(1)
        The packet is to be executed. If not, `reason` says why: first of unknown QP, unknown
        opcode, wrong PSN, and (as PACKET_OPCODE) wrong place in a message or wrong length for the
        opcode.
    reason : Out(DropReason)
    starts, ends : Out(1)
        It is the first, the last packet of its message.

    Timing
    ------
    Combinational.
    """

    def __init__(self):
        super().__init__(
            {
                "beat": In(WireBeat),
                "context": In(RxContext),
                "expected_psn": In(24),
                "in_message": In(1),
                "good": Out(1),
                "reason": Out(DropReason, init=DropReason.PACKET_UNKNOWN_QP),
                "starts": Out(1),
                "ends": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bth, length = self.beat.bth, self.beat.length
        known, known_opcode, fits = Signal(), Signal(), Signal()
        mtu = Signal(16)
        m.d.comb += [
            known.eq(self.context.valid & (self.context.qpn == bth.dest_qp)),
            mtu.eq(1 << self.context.mtu_log2),
        ]
        with m.Switch(bth.opcode):
            with m.Case(RoceOpcode.WRITE_FIRST):
                m.d.comb += [known_opcode.eq(1), self.starts.eq(1), fits.eq(length == mtu)]
            with m.Case(RoceOpcode.WRITE_MIDDLE):
                m.d.comb += [known_opcode.eq(1), fits.eq(length == mtu)]
            with m.Case(RoceOpcode.WRITE_LAST):
                m.d.comb += [
                    known_opcode.eq(1),
                    self.ends.eq(1),
                    fits.eq((length != 0) & (length <= mtu)),
                ]
            with m.Case(RoceOpcode.WRITE_ONLY):
                m.d.comb += [
                    known_opcode.eq(1),
                    self.starts.eq(1),
                    self.ends.eq(1),
                    fits.eq(length <= mtu),
                ]

        with m.If(~known):
            m.d.comb += self.reason.eq(DropReason.PACKET_UNKNOWN_QP)
        with m.Elif(~known_opcode):
            m.d.comb += self.reason.eq(DropReason.PACKET_OPCODE)
        with m.Elif(bth.psn != self.expected_psn):
            m.d.comb += self.reason.eq(DropReason.PACKET_PSN)
        with m.Elif((self.starts == self.in_message) | ~fits):
            m.d.comb += self.reason.eq(DropReason.PACKET_OPCODE)
        with m.Else():
            m.d.comb += self.good.eq(1)
        return m


class Responder(wiring.Component):
    """Executes RDMA WRITE packets in PSN order and acknowledges those that ask for it.

    A packet that is not good is dropped whole and changes nothing. (No NAK and no second ACK for a
    duplicate: the wire is lossless; recovery is a later capability.)

    Parameters
    ----------
    structure : Structure
        `qps` connections.

    Members
    -------
    packets : In(stream of `WireBeat`)
        Requests, after the receive delay. Beats of a packet add up to its `length`.
    config : In(ConfigPort)
        Table.RX sets expected PSN and MSN and leaves any message. It takes the cycle.
    rx : Out(ContextPort(RxContext))
    acks : Out(stream of `WireBeat`)
        One beat each, with the AETH in `ext[0:32]`.
    writes : Out(stream of `WriteRequest`)
        One per packet with payload: where it goes; the mark holds its PSN.
    lines : Out(stream of `Line`)
        The payload of the packets of `writes`, in the lanes of its address; `last` ends a packet.
        Two lines are taken whatever `writes` waits for.
    timing : In(NicTiming)
        `tx` is used.
    now : In
    quiet, due : Out
    on_dropped : Out(Probe)
        PACKET_UNKNOWN_QP, PACKET_OPCODE, PACKET_PSN; `qp` is the low bits of the QPN, `info` the
        PSN in bits 23:0 and the opcode in 31:24.

    Timing
    ------
    First beat accepted at t: its first full or only line and its WriteRequest are valid at t +
    2. ACK: last line of the packet buffered at s (s = t + 1 for the last beat accepted at t,
    one more if the bytes spill into one more line; for an empty packet t + 1): valid at s + 1 +
    max(1, tx). One beat per cycle; a packet whose bytes spill into one more line takes one
    cycle more. 1024 ACKs may wait: beyond them packets wait.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "packets": In(stream.Signature(WireBeat)),
                "config": In(ConfigPort()),
                "rx": Out(ContextPort(RxContext)),
                "acks": Out(stream.Signature(WireBeat)),
                "writes": Out(stream.Signature(WriteRequest)),
                "lines": Out(stream.Signature(Line)),
                "timing": In(NicTiming),
                "now": In(NOW_BITS),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bits = self._structure.qp_bits
        m.submodules.states = states = memory.Memory(
            shape=_RxState, depth=self._structure.qps, init=[]
        )
        m.submodules.checker = checker = PacketChecker()
        m.submodules.requests = requests = Queue(WriteRequest, 4)
        m.submodules.realigner = realigner = Realigner()
        m.submodules.delay = delay = DelayLine(_Ack, _ACKS)

        # A beat waits one cycle for its context.
        beat, held, taken = Signal(WireBeat), Signal(), Signal()
        m.d.comb += [
            self.packets.ready.eq(~held | taken),
            self.rx.address.eq(
                Mux(self.packets.ready, self.packets.payload.bth.dest_qp, beat.bth.dest_qp)
            ),
        ]
        with m.If(self.packets.ready):
            m.d.sync += held.eq(self.packets.valid)
            with m.If(self.packets.valid):
                m.d.sync += beat.eq(self.packets.payload)

        # The first beat decides for its packet.
        qp = Signal(bits)
        read, write = states.read_port(domain="comb"), states.write_port()
        state, configuring = read.data, Signal()
        good, executing = Signal(), Signal()
        m.d.comb += [
            qp.eq(beat.bth.dest_qp),
            read.addr.eq(qp),
            checker.beat.eq(beat),
            checker.context.eq(self.rx.data),
            checker.expected_psn.eq(state.expected_psn),
            checker.in_message.eq(state.in_message),
            good.eq(Mux(beat.first, checker.good, executing)),
            configuring.eq(self.config.valid & (self.config.payload.table == Table.RX)),
        ]

        # A beat goes on when all that it starts can be started: its request, its line, and (a
        # packet ends in order) its ACK.
        reth = data.View(Reth, beat.ext)
        address = Signal(ADDRESS_BITS)
        ack, ack_wanted, ack_pending = Signal(_Ack), Signal(), Signal()
        empty, starts, blocked = Signal(), Signal(), Signal()
        m.d.comb += [
            address.eq(Mux(checker.starts, reth.va, state.address)),
            empty.eq(beat.first & (beat.length == 0)),
            blocked.eq(
                beat.first
                & (
                    configuring
                    | ~requests.i.ready
                    | (ack_pending & ~delay.i.ready)
                    | (empty & ~realigner.empty)
                )
            ),
            realigner.i.valid.eq(held & good & ~blocked & ~empty),
            taken.eq(held & Mux(good, ~blocked & (empty | realigner.i.ready), 1)),
            starts.eq(taken & good & beat.first),
        ]
        with m.If(taken):
            m.d.sync += executing.eq(good)
        m.d.comb += [
            self.on_dropped.valid.eq(taken & beat.first & ~good),
            self.on_dropped.payload.reason.eq(checker.reason),
            self.on_dropped.payload.qp.eq(beat.bth.dest_qp),
            self.on_dropped.payload.info.eq(Cat(beat.bth.psn, beat.bth.opcode)),
        ]

        # State of the connection.
        context = data.View(RxContext, self.config.payload.data[: data.Layout.cast(RxContext).size])
        msn = Signal(24)
        m.d.comb += msn.eq(state.msn + checker.ends)
        with m.If(configuring):
            m.d.comb += [
                write.en.eq(1),
                write.addr.eq(self.config.payload.index),
                write.data.expected_psn.eq(context.expected_psn),
                write.data.msn.eq(context.start_msn),
            ]
        with m.Else():
            m.d.comb += [
                write.en.eq(starts),
                write.addr.eq(qp),
                write.data.expected_psn.eq(state.expected_psn + 1),
                write.data.msn.eq(msn),
                write.data.address.eq(address + beat.length),
                write.data.in_message.eq(~checker.ends),
            ]

        # Payload to the DMA engine.
        m.d.comb += [
            requests.i.valid.eq(starts & ~empty),
            requests.i.payload.address.eq(address),
            requests.i.payload.length.eq(beat.length),
            requests.i.payload.mark.kind.eq(
                Mux(checker.ends, MarkKind.PAYLOAD_LAST, MarkKind.PAYLOAD)
            ),
            requests.i.payload.mark.qp.eq(qp),
            requests.i.payload.mark.index.eq(beat.bth.psn),
            realigner.start.eq(address),
            realigner.i.payload.data.eq(beat.data),
            realigner.i.payload.count.eq(beat.count),
            realigner.i.payload.last.eq(beat.last),
        ]
        # A line is taken before its request is there (one cycle later): the engine waits for both.
        m.submodules.buffer = buffer = skid(Line)
        connect(m, requests.o, self.writes)
        connect(m, realigner.o, buffer.i)
        connect(m, buffer.o, self.lines)

        # The ACK starts when the packet's last line has been handed over.
        done = Signal()
        m.d.comb += [
            done.eq(
                (starts & empty)
                | (realigner.o.valid & realigner.o.ready & realigner.o.payload.last)
            ),
            delay.i.valid.eq(ack_pending),
            delay.i.payload.eq(ack),
        ]
        with m.If(starts):
            m.d.sync += [
                ack.peer_qpn.eq(self.rx.data.peer_qpn),
                ack.peer_node.eq(self.rx.data.peer_node),
                ack.psn.eq(beat.bth.psn),
                ack.msn.eq(msn),
                ack_wanted.eq(beat.bth.ack_request),
            ]
        with m.If(done):
            m.d.sync += ack_pending.eq(Mux(starts, beat.bth.ack_request, ack_wanted))
        with m.Elif(delay.i.ready):
            m.d.sync += ack_pending.eq(0)

        aeth = Signal(Aeth)
        m.d.comb += [
            delay.now.eq(self.now),
            delay.latency.eq(self.timing.tx),
            aeth.syndrome.eq(ACK_SYNDROME),
            aeth.msn.eq(delay.o.payload.msn),
            self.acks.valid.eq(delay.o.valid),
            delay.o.ready.eq(self.acks.ready),
            self.acks.payload.first.eq(1),
            self.acks.payload.last.eq(1),
            self.acks.payload.bth.opcode.eq(RoceOpcode.ACK),
            self.acks.payload.bth.pkey.eq(0xFFFF),
            self.acks.payload.bth.dest_qp.eq(delay.o.payload.peer_qpn),
            self.acks.payload.bth.psn.eq(delay.o.payload.psn),
            self.acks.payload.ext.eq(aeth),
            self.acks.payload.dest.eq(delay.o.payload.peer_node),
            self.quiet.eq(~held & ~ack_pending & requests.empty & ~self.lines.valid & delay.quiet),
            self.due.eq(delay.due),
        ]
        return m
