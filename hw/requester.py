"""Requester: turns operations into packets, and ACKs into retired WQEs."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .config import NicTiming
from .formats.context import TxContext
from .formats.events import AckReceived, Dropped, EventKind, Retired
from .formats.op import Completion, Op, Retirement
from .formats.roce import Reth, WireBeat
from .lib.align import Line
from .lib.delay import NEVER, NOW_BITS, DelayLine
from .lib.stream import connect
from .lib.trace import Probe
from .qp_context import ConfigPort, ContextPort
from .retirer import Retirer
from .segmenter import Packet, Segmenter

__all__ = ["Requester"]

#: Packets that may wait for the transmit delay or their payload.
_PACKETS = 1024


class Requester(wiring.Component):
    """Sends RDMA WRITEs as packets and retires WQEs, per QP in order, when they are acknowledged.

    NOPs and operations with a status send nothing; they retire when all earlier ones of their QP
    have. An ACK acknowledges every PSN up to its own. NAKs are reported as dropped and change
    nothing: the wire is lossless; recovery is a later capability, for which each outstanding WQE
    keeps its last PSN and each QP the oldest unacknowledged one.

    Parameters
    ----------
    structure : Structure
        `qps`; `window_blocks` outstanding WQEs per QP, beyond which operations (of all QPs) wait.

    Members
    -------
    ops : In(stream of `Op`)
        Only of QPs with a valid context.
    payload : In(stream of `Line`)
        Per packet with payload a run of full lines from lane 0, but for the end of the last; `last`
        ends the packet.
    acks : In(stream of `WireBeat`)
        ACK packets, after the receive delay.
    config : In(ConfigPort)
        Table.TX sets the next PSN; nothing is outstanding then.
    tx : Out(ContextPort(TxContext))
    packets : Out(stream of `WireBeat`)
        One beat as soon as its line is there. `bth` and `ext` are the same in all beats of a
        packet.
    completions : Out(stream of `Completion`)
        Of WQEs that are signaled or have a status.
    retired : Out
        `valid` for one cycle with each retired WQE, `payload: Retirement`.
    timing : In(NicTiming)
        `tx` and `ack_every_packet` are used.
    now : In
    quiet, due : Out
    on_ack_received, on_retired : Out(Probe)
    on_dropped : Out(Probe)
        PACKET_UNKNOWN_QP; ACK_UNEXPECTED for an ACK of a PSN that is not outstanding; PACKET_OPCODE
        for a NAK. `qp` is the low bits of the QPN, `info` the PSN in bits 23:0 and the syndrome in
        31:24.

    Timing
    ------
    Operation accepted at t: first beat valid at t + 1 + max(1, tx), if its payload is
    there; packet k of it at least k cycles later. One operation or packet per cycle in, one beat
    per cycle out, no gap between packets. 1024 packets may wait for the delay or their payload. ACK
    accepted at t: on_ack_received at t, first WQE retired at t + 1 and one per cycle after,
    completion valid at t + 2; one ACK per 2 cycles if each retires one WQE. A NOP accepted at t
    with nothing before it retires at t + 3 (completion at t + 4).
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "ops": In(stream.Signature(Op)),
                "payload": In(stream.Signature(Line)),
                "acks": In(stream.Signature(WireBeat)),
                "config": In(ConfigPort()),
                "tx": Out(ContextPort(TxContext)),
                "packets": Out(stream.Signature(WireBeat)),
                "completions": Out(stream.Signature(Completion)),
                "retired": Out(wiring.Signature({"valid": Out(1), "payload": Out(Retirement)})),
                "timing": In(NicTiming),
                "now": In(NOW_BITS),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
                "on_ack_received": Out(Probe(EventKind.ACK_RECEIVED, AckReceived)),
                "on_retired": Out(Probe(EventKind.RETIRED, Retired)),
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.segmenter = segmenter = Segmenter(self._structure)
        m.submodules.retirer = retirer = Retirer(self._structure)
        m.submodules.delay = delay = DelayLine(Packet, _PACKETS)

        # Operations to packets and to outstanding WQEs.
        connect(m, wiring.flipped(self.ops), segmenter.ops)
        connect(m, segmenter.packets, delay.i)
        m.d.comb += [
            segmenter.config.valid.eq(self.config.valid),
            segmenter.config.payload.eq(self.config.payload),
            self.tx.address.eq(segmenter.tx.address),
            segmenter.tx.data.eq(self.tx.data),
            segmenter.ack_every_packet.eq(self.timing.ack_every_packet),
            segmenter.room.eq(retirer.room),
            retirer.started.valid.eq(segmenter.started.valid),
            retirer.started.payload.eq(segmenter.started.payload),
            retirer.config.valid.eq(self.config.valid),
            retirer.config.payload.eq(self.config.payload),
        ]

        # Packets, after the transmit delay, join their payload.
        packet, beat = delay.o.payload, self.packets.payload
        empty, fresh = Signal(), Signal(init=1)
        reth = Signal(Reth)
        m.d.comb += [
            delay.now.eq(self.now),
            delay.latency.eq(self.timing.tx),
            empty.eq(packet.length == 0),
            self.packets.valid.eq(delay.o.valid & (empty | self.payload.valid)),
            self.payload.ready.eq(delay.o.valid & ~empty & self.packets.ready),
            delay.o.ready.eq(self.packets.valid & self.packets.ready & beat.last),
            reth.va.eq(packet.va),
            reth.rkey.eq(packet.rkey),
            reth.length.eq(packet.message_length),
            beat.data.eq(Mux(empty, 0, self.payload.payload.data)),
            beat.count.eq(Mux(empty, 0, self.payload.payload.count)),
            beat.first.eq(fresh),
            beat.last.eq(empty | self.payload.payload.last),
            beat.bth.opcode.eq(packet.opcode),
            beat.bth.solicited.eq(packet.solicited),
            beat.bth.pad.eq(-packet.length),
            beat.bth.pkey.eq(0xFFFF),
            beat.bth.dest_qp.eq(packet.peer_qpn),
            beat.bth.ack_request.eq(packet.ack_request),
            beat.bth.psn.eq(packet.psn),
            beat.ext.eq(Mux(packet.starts, reth.as_value(), 0)),
            beat.length.eq(packet.length),
            beat.dest.eq(packet.peer_node),
            beat.port.eq(packet.port),
            beat.qp.eq(packet.qp),
            beat.wqe_index.eq(packet.wqe_index),
        ]
        with m.If(self.packets.valid & self.packets.ready):
            m.d.sync += fresh.eq(beat.last)

        # ACKs to retired WQEs.
        connect(m, wiring.flipped(self.acks), retirer.acks)
        connect(m, retirer.completions, wiring.flipped(self.completions))
        for name in ("retired", "on_ack_received", "on_retired", "on_dropped"):
            inner, outer = getattr(retirer, name), getattr(self, name)
            m.d.comb += [outer.valid.eq(inner.valid), outer.payload.eq(inner.payload)]

        # A packet that waits for its payload waits for the outside.
        m.d.comb += [
            self.quiet.eq(~self.packets.valid & ~segmenter.busy & ~retirer.busy),
            self.due.eq(Mux(delay.o.valid, NEVER, delay.due)),
        ]
        return m
