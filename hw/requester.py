"""Requester: turns operations into packets, and ACKs into retired WQEs."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import TxContext
from .formats.events import (
    AckReceived,
    Dropped,
    EventKind,
    QpStateChanged,
    Retired,
    Retransmitted,
)
from .formats.op import Completion, Op, Retirement
from .formats.roce import Reth, WireBeat
from .lib.align import Line
from .lib.delay import NEVER, NOW_BITS, DelayLine, earliest
from .lib.stream import connect
from .lib.trace import Probe
from .qp_context import ConfigPort, ContextPort
from .recovery import RecoveryPort
from .retirer import Retirer
from .segmenter import Packet, ReadsPort, Segmenter
from .timing import NicTiming

__all__ = ["Requester"]

#: Packets that may wait for the transmit delay or their payload.
_PACKETS = 1024


class Requester(wiring.Component):
    """Sends operations as packets and retires WQEs, per QP in order, when they are acknowledged.

    NOPs and operations with a status send nothing; they retire when all earlier ones of their QP
    have. So does a local read (DUMP), once its payload has come and was dropped. An ACK
    acknowledges every PSN up to its own, a NAK those before it. After a sequence NAK, a timeout, or
    the wait that an RNR NAK asked for, the QP sends again from its oldest unacknowledged packet, by
    executing its WQEs again (decision 9). Where the peer refuses an operation, or after too many
    retries, the oldest WQE ends with a status and the QP is in error: all others end as flushed. So
    it is behind an operation that has a status. No QP is touched by what happens to another.

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
        ends the packet. A local read is packets, too; an atomic is one of its operands.
    acks : In(stream of `WireBeat`)
        ACK packets. Where a READ or an atomic is outstanding, only of what was answered before it.
    reads : Out(ReadsPort)
        For who takes the responses to READs and atomics.
    config : In(ConfigPort)
        Table.TX sets the next PSN and ends any error; nothing is outstanding then. The QP must have
        retired everything that was rung.
    tx : Out(ContextPort(TxContext))
    packets : Out(stream of `WireBeat`)
        One beat as soon as its line is there. `bth` and `ext` are the same in all beats of a
        packet.
    completions : Out(stream of `Completion`)
        Of WQEs that are signaled or have a status.
    retired : Out
        `valid` for one cycle with each retired WQE, `payload: Retirement`.
    timing : In(NicTiming)
        `tx`, `ack_every_packet`, `ack_unit` and `rnr_unit` are used.
    recovery : Out(RecoveryPort)
    now : In
    quiet, due : Out
    on_ack_received, on_retired, on_retransmitted, on_qp_state : Out(Probe)
    on_dropped : Out(Probe)
        An ACK that changes nothing, see `AckChecker`. `qp` is the low bits of the QPN, `info` the
        PSN in bits 23:0 and the syndrome in 31:24.

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
                "reads": Out(ReadsPort()),
                "config": In(ConfigPort()),
                "tx": Out(ContextPort(TxContext)),
                "packets": Out(stream.Signature(WireBeat)),
                "completions": Out(stream.Signature(Completion)),
                "retired": Out(wiring.Signature({"valid": Out(1), "payload": Out(Retirement)})),
                "timing": In(NicTiming),
                "recovery": Out(RecoveryPort()),
                "now": In(NOW_BITS),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
                "on_ack_received": Out(Probe(EventKind.ACK_RECEIVED, AckReceived)),
                "on_retired": Out(Probe(EventKind.RETIRED, Retired)),
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
                "on_retransmitted": Out(Probe(EventKind.RETRANSMITTED, Retransmitted)),
                "on_qp_state": Out(Probe(EventKind.QP_STATE, QpStateChanged)),
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
            self.tx.address.eq(segmenter.tx.address),
            segmenter.tx.data.eq(self.tx.data),
            segmenter.ack_every_packet.eq(self.timing.ack_every_packet),
            segmenter.room.eq(retirer.room),
            retirer.started.valid.eq(segmenter.started.valid & segmenter.started.payload.listed),
            retirer.started.payload.eq(segmenter.started.payload),
            retirer.ask[0].eq(segmenter.qp),
            segmenter.failed.eq(retirer.failed[0]),
            segmenter.recovering.eq(retirer.recovering),
            self.reads.started.valid.eq(segmenter.started.valid),
            self.reads.started.payload.eq(segmenter.started.payload),
            self.reads.ask.eq(segmenter.qp),
            segmenter.outstanding.eq(self.reads.outstanding),
            segmenter.landings_here.eq(self.reads.room),
            retirer.ask[2].eq(self.reads.responding_qp),
            self.reads.failed.eq(retirer.failed[2]),
            retirer.timing.eq(self.timing),
            retirer.now.eq(self.now),
        ]
        for block in (segmenter, retirer):
            m.d.comb += [
                block.config.valid.eq(self.config.valid),
                block.config.payload.eq(self.config.payload),
            ]

        # ACKs to retired WQEs.
        connect(m, wiring.flipped(self.acks), retirer.acks)
        connect(m, retirer.completions, wiring.flipped(self.completions))
        for name in (
            "retired",
            "on_ack_received",
            "on_retired",
            "on_dropped",
            "on_retransmitted",
            "on_qp_state",
        ):
            inner, outer = getattr(retirer, name), getattr(self, name)
            m.d.comb += [outer.valid.eq(inner.valid), outer.payload.eq(inner.payload)]

        self._send(m, delay, retirer)
        self._recover(m, segmenter, retirer)

        # A packet that waits for its payload waits for the outside.
        m.d.comb += [
            self.quiet.eq(~self._moves & ~segmenter.busy & ~retirer.busy),
            self.due.eq(earliest(m, [Mux(delay.o.valid, NEVER, delay.due), retirer.due])),
        ]
        return m

    def _send(self, m, delay, retirer):
        """Packets, after the transmit delay, join their payload; the silent ones drop it."""
        packet, beat = delay.o.payload, self.packets.payload
        empty, fresh, last = Signal(), Signal(init=1), Signal()
        self._moves, sends, taken, drops = Signal(), Signal(), Signal(), Signal()
        reth = Signal(Reth)
        m.d.comb += [
            delay.now.eq(self.now),
            delay.latency.eq(self.timing.tx),
            empty.eq(packet.length == 0),
            last.eq(empty | self.payload.payload.last),
            self._moves.eq(delay.o.valid & (empty | self.payload.valid)),
            self.packets.valid.eq(self._moves & ~packet.silent),
            sends.eq(self.packets.valid & self.packets.ready),
            drops.eq(packet.silent & (~(packet.dumps & last) | retirer.dumped.ready)),
            taken.eq(sends | (self._moves & drops)),
            self.payload.ready.eq(
                delay.o.valid & ~empty & Mux(packet.silent, drops, self.packets.ready)
            ),
            retirer.dumped.valid.eq(self._moves & packet.silent & packet.dumps & last),
            retirer.dumped.payload.eq(packet.qp),
            delay.o.ready.eq(taken & last),
            retirer.sent.valid.eq(sends & last),
            retirer.sent.qp.eq(packet.qp),
            retirer.sent.psn.eq(packet.last_psn),
            reth.va.eq(packet.va),
            reth.rkey.eq(packet.rkey),
            reth.length.eq(packet.message_length),
            beat.data.eq(Mux(empty, 0, self.payload.payload.data)),
            beat.count.eq(Mux(empty, 0, self.payload.payload.count)),
            beat.first.eq(fresh),
            beat.last.eq(last),
            beat.bth.opcode.eq(packet.opcode),
            beat.bth.solicited.eq(packet.solicited),
            beat.bth.pad.eq(-packet.length),
            beat.bth.pkey.eq(0xFFFF),
            beat.bth.dest_qp.eq(packet.peer_qpn),
            beat.bth.ack_request.eq(packet.ack_request),
            beat.bth.psn.eq(packet.psn),
            beat.ext.eq(Mux(packet.reth, reth.as_value(), 0)),
            beat.imm.eq(packet.imm),
            beat.length.eq(packet.length),
            beat.dest.eq(packet.peer_node),
            beat.port.eq(packet.port),
            beat.qp.eq(packet.qp),
            beat.wqe_index.eq(packet.wqe_index),
        ]
        with m.If(sends):
            m.d.sync += fresh.eq(last)

    def _recover(self, m, segmenter, retirer):
        """A QP that starts again: its WQEs are fetched again, and its PSNs counted again."""
        port = self.recovery
        m.d.comb += [
            port.hold.valid.eq(retirer.hold.valid),
            port.hold.qp.eq(retirer.hold.qp),
            port.resume.valid.eq(retirer.resume.valid),
            port.resume.payload.eq(retirer.resume.payload),
            port.finished.valid.eq(segmenter.finished.valid),
            port.finished.payload.eq(segmenter.finished.payload),
            port.unfenced.eq(segmenter.unfenced),
            port.draining_qp.eq(retirer.draining_qp),
            retirer.drained.eq(port.drained),
            retirer.ask[1].eq(port.asked_qp),
            port.failed.eq(retirer.failed[1]),
            segmenter.restart.valid.eq(retirer.resume.valid & retirer.resume.payload.again),
            segmenter.restart.qp.eq(retirer.resume.payload.qp),
            segmenter.restart.psn.eq(retirer.restart_psn),
            self.reads.restart.valid.eq(segmenter.restart.valid),
            self.reads.restart.qp.eq(segmenter.restart.qp),
            self.reads.restart.psn.eq(segmenter.restart.psn),
            segmenter.asked_qp.eq(retirer.resume.payload.qp),
            retirer.silenced.eq(segmenter.silenced),
        ]
