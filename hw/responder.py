"""Responder: takes RDMA WRITE packets, writes their payload, acknowledges them."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import RxContext, Table
from .formats.dma import WriteRequest
from .formats.events import Dropped, EventKind
from .formats.roce import ACK_SYNDROME, Aeth, AethClass, NakCode, Reth, RoceOpcode, WireBeat
from .formats.tlp import ADDRESS_BITS, MarkKind
from .lib.align import Line, Realigner
from .lib.delay import NOW_BITS, DelayLine
from .lib.stream import Queue, connect, skid
from .lib.trace import Probe
from .packet_checker import PacketChecker, Verdict
from .qp_context import ConfigPort, ContextPort
from .timing import NicTiming

__all__ = ["Responder"]

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
    #: The gap before the expected packet was reported.
    reported: 1
    #: A packet was refused; nothing more is served.
    failed: 1


class _Ack(data.Struct):
    """An ACK or NAK on its way to the wire."""

    peer_qpn: 24
    peer_node: 8
    port: 1
    psn: 24
    msn: 24
    syndrome: 8


def _nak(code):
    """AETH syndrome of a NAK."""
    return AethClass.NAK.value << 5 | code.value


class Responder(wiring.Component):
    """Executes RDMA WRITE packets in PSN order and acknowledges those that ask for it.

    Any other packet writes nothing. A duplicate that asks for an ACK gets one for all that was
    executed. The first packet behind a gap is answered with a sequence NAK of the expected PSN, the
    others until that one has come with nothing. A packet that does not fit its message is refused
    with an invalid-request NAK; from then on the connection serves nothing until it gets a new
    context.

    Parameters
    ----------
    structure : Structure
        `qps` connections.

    Members
    -------
    packets : In(stream of `WireBeat`)
        Requests, after the receive delay. Beats of a packet add up to its `length`.
    config : In(ConfigPort)
        Table.RX sets expected PSN and MSN, leaves any message and ends a failure. It takes the
        cycle.
    rx : Out(ContextPort(RxContext))
    acks : Out(stream of `WireBeat`)
        One beat each, with the AETH in `ext[0:32]`; NAKs among them.
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
        Of each packet that is not executed: PACKET_UNKNOWN_QP, PACKET_OPCODE, PACKET_PSN,
        PACKET_DUPLICATE, PACKET_QP_ERROR; `qp` is the low bits of the QPN, `info` the PSN in bits
        23:0 and the opcode in 31:24.

    Timing
    ------
    First beat accepted at t: its first full or only line and its WriteRequest are valid at t +
    2. ACK: last line of the packet buffered at s (s = t + 1 for the last beat accepted at t,
    one more if the bytes spill into one more line; for the first beat of a packet that is
    empty or not executed t + 1): valid at s + 1 + max(1, tx). One beat per cycle; a packet
    whose bytes spill into one more line takes one
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
            checker.failed.eq(state.failed),
            good.eq(Mux(beat.first, checker.verdict == Verdict.EXECUTE, executing)),
            configuring.eq(self.config.valid & (self.config.payload.table == Table.RX)),
        ]

        # A beat goes on when all that it starts can be started: its request, its line, and (a
        # packet ends in order) its ACK.
        reth = data.View(Reth, beat.ext)
        address = Signal(ADDRESS_BITS)
        ack, ack_wanted, ack_pending = Signal(_Ack), Signal(), Signal()
        empty, starts, blocked, answers = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            address.eq(Mux(checker.starts, reth.va, state.address)),
            empty.eq(beat.first & (beat.length == 0)),
            answers.eq(
                beat.first
                & (
                    ((checker.verdict == Verdict.DUPLICATE) & beat.bth.ack_request)
                    | ((checker.verdict == Verdict.AHEAD) & ~state.reported)
                    | (checker.verdict == Verdict.INVALID)
                )
            ),
            blocked.eq(
                beat.first
                & (
                    configuring
                    | ~requests.i.ready
                    | (ack_pending & ~delay.i.ready)
                    | ((empty | answers) & ~realigner.empty)
                )
            ),
            realigner.i.valid.eq(held & good & ~blocked & ~empty),
            taken.eq(
                held & Mux(good, ~blocked & (empty | realigner.i.ready), ~(answers & blocked))
            ),
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
            with m.If(taken & answers):
                m.d.comb += [
                    write.en.eq(1),
                    write.data.eq(state),
                    write.data.reported.eq(state.reported | (checker.verdict == Verdict.AHEAD)),
                    write.data.failed.eq(checker.verdict == Verdict.INVALID),
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

        # The ACK starts when the packet's last line has been handed over; what is not executed is
        # answered at once.
        done = Signal()
        m.d.comb += [
            done.eq(
                (starts & empty)
                | (taken & answers)
                | (realigner.o.valid & realigner.o.ready & realigner.o.payload.last)
            ),
            delay.i.valid.eq(ack_pending),
            delay.i.payload.eq(ack),
        ]
        with m.If(starts | (taken & answers)):
            m.d.sync += [
                ack.peer_qpn.eq(self.rx.data.peer_qpn),
                ack.peer_node.eq(self.rx.data.peer_node),
                ack.port.eq(self.rx.data.port),
                ack.psn.eq(beat.bth.psn),
                ack.msn.eq(Mux(starts, msn, state.msn)),
                ack.syndrome.eq(ACK_SYNDROME),
                ack_wanted.eq(beat.bth.ack_request),
            ]
            with m.Switch(checker.verdict):
                with m.Case(Verdict.DUPLICATE):
                    m.d.sync += ack.psn.eq(state.expected_psn - 1)
                with m.Case(Verdict.AHEAD):
                    m.d.sync += [
                        ack.psn.eq(state.expected_psn),
                        ack.syndrome.eq(_nak(NakCode.SEQUENCE)),
                    ]
                with m.Case(Verdict.INVALID):
                    m.d.sync += ack.syndrome.eq(_nak(NakCode.INVALID_REQUEST))
        with m.If(done):
            m.d.sync += ack_pending.eq(
                Mux(starts, beat.bth.ack_request, (taken & answers) | ack_wanted)
            )
        with m.Elif(delay.i.ready):
            m.d.sync += ack_pending.eq(0)

        aeth = Signal(Aeth)
        m.d.comb += [
            delay.now.eq(self.now),
            delay.latency.eq(self.timing.tx),
            aeth.syndrome.eq(delay.o.payload.syndrome),
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
            self.acks.payload.port.eq(delay.o.payload.port),
            self.quiet.eq(~held & ~ack_pending & requests.empty & ~self.lines.valid & delay.quiet),
            self.due.eq(delay.due),
        ]
        return m
