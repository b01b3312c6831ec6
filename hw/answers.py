"""What a responder answers, in the order of the packets."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.layout import reverse_bytes, size
from .formats.roce import Aeth, AtomicAckEth, RoceOpcode, WireBeat
from .lib.align import Line
from .lib.delay import NEVER, NOW_BITS, DelayLine
from .lib.stream import connect

__all__ = ["ANSWERS", "Answer", "AnswerKind", "Answers"]

#: Answers that may wait: more than the READs and atomics that all peers may have outstanding.
ANSWERS = 2048


class AnswerKind(enum.Enum, shape=2):
    #: An ACK or a NAK.
    ACK = 0
    READ = 1
    ATOMIC = 2


class Answer(data.Struct):
    """An answer on its way to the wire."""

    kind: AnswerKind
    qp: 12
    peer_qpn: 24
    peer_node: 8
    port: 1
    #: Of its first packet.
    psn: 24
    msn: 24
    syndrome: 8
    #: It ends a READ or an atomic that counts as outstanding.
    counted: 1
    #: Bytes of a READ's response, which are cut at the MTU.
    length: 32
    mtu_log2: 4
    #: What an atomic found; of 4 bytes the upper half is 0.
    original: 64


class Answers(wiring.Component):
    """Sends answers in order, each after the transmit delay and as soon as its bytes are there.

    Parameters
    ----------
    none

    Members
    -------
    i : In(stream of `Answer`)
    payload : In(stream of `Line`)
        The bytes of the responses to READs, in the order of their answers: per packet full lines
        from lane 0, `last` ends a packet. None for a READ of no bytes.
    o : Out(stream of `WireBeat`)
        The AETH stands in `ext[0:32]` of every packet but the MIDDLE ones of a READ. The payload of
        an atomic ACK is what the atomic found, as 8 bytes in network order.
    answered : Out(`valid`, `qp`)
        The last beat of an answer that is `counted` leaves.
    latency : In(16)
        Transmit delay.
    now : In
    quiet, due : Out

    Timing
    ------
    Accepted at t: offered from t + max(1, latency) on, if its bytes are there; one beat per cycle.
    2048 may wait.
    """

    def __init__(self):
        super().__init__(
            {
                "i": In(stream.Signature(Answer)),
                "payload": In(stream.Signature(Line)),
                "o": Out(stream.Signature(WireBeat)),
                "answered": Out(wiring.Signature({"valid": Out(1), "qp": Out(12)})),
                "latency": In(16),
                "now": In(NOW_BITS),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.delay = delay = DelayLine(Answer, ANSWERS)
        connect(m, wiring.flipped(self.i), delay.i)
        answer, beat = delay.o.payload, self.o.payload

        # A READ goes packet by packet: `left` counts from the packet's start on.
        begun, inside, further, rest = Signal(), Signal(), Signal(24), Signal(32)
        left, mtu, ends, needs, sent = Signal(32), Signal(13), Signal(), Signal(), Signal()
        length = Signal(13)
        m.d.comb += [
            delay.now.eq(self.now),
            delay.latency.eq(self.latency),
            mtu.eq(1 << answer.mtu_log2),
            left.eq(Mux(begun, rest, answer.length)),
            ends.eq((answer.kind != AnswerKind.READ) | (left <= mtu)),
            needs.eq((answer.kind == AnswerKind.READ) & (left != 0)),
            self.o.valid.eq(delay.o.valid & (self.payload.valid | ~needs)),
            self.payload.ready.eq(delay.o.valid & needs & self.o.ready),
            sent.eq(self.o.valid & self.o.ready & self.o.payload.last),
            delay.o.ready.eq(sent & ends),
            self.answered.valid.eq(sent & ends & answer.counted),
            self.answered.qp.eq(answer.qp),
            self.quiet.eq(~self.o.valid),
            # A READ that waits for its bytes waits for the outside.
            self.due.eq(Mux(delay.o.valid, NEVER, delay.due)),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += inside.eq(~beat.last)
        with m.If(sent):
            m.d.sync += [
                begun.eq(~ends),
                further.eq(Mux(ends, 0, further + 1)),
                rest.eq(left - mtu),
            ]

        aeth, opcode, carried = Signal(Aeth), Signal(8, init=RoceOpcode.ACK.value), Signal(Line)
        bare, last = Signal(), Signal(init=1)
        m.d.comb += [
            aeth.syndrome.eq(answer.syndrome),
            aeth.msn.eq(answer.msn),
            beat.data.eq(carried.data),
            beat.count.eq(carried.count),
            beat.first.eq(~inside),
            beat.last.eq(last),
            beat.bth.opcode.eq(opcode),
            beat.bth.pad.eq(-length),
            beat.bth.pkey.eq(0xFFFF),
            beat.bth.dest_qp.eq(answer.peer_qpn),
            beat.bth.psn.eq(answer.psn + further),
            beat.ext.eq(Mux(bare, 0, aeth.as_value())),
            beat.length.eq(length),
            beat.dest.eq(answer.peer_node),
            beat.port.eq(answer.port),
        ]
        with m.Switch(answer.kind):
            with m.Case(AnswerKind.READ):
                m.d.comb += [
                    length.eq(Mux(ends, left, mtu)),
                    last.eq(self.payload.payload.last | ~needs),
                    bare.eq(begun & ~ends),
                    opcode.eq(
                        Mux(
                            begun,
                            Mux(
                                ends, RoceOpcode.READ_RESPONSE_LAST, RoceOpcode.READ_RESPONSE_MIDDLE
                            ),
                            Mux(
                                ends, RoceOpcode.READ_RESPONSE_ONLY, RoceOpcode.READ_RESPONSE_FIRST
                            ),
                        )
                    ),
                ]
                with m.If(needs):
                    m.d.comb += carried.eq(self.payload.payload)
            with m.Case(AnswerKind.ATOMIC):
                m.d.comb += [
                    opcode.eq(RoceOpcode.ATOMIC_ACK),
                    length.eq(size(AtomicAckEth)),
                    carried.data.eq(reverse_bytes(answer.original)),
                    carried.count.eq(size(AtomicAckEth)),
                ]
        return m
