"""Operations to packets: cuts them at the MTU and numbers them."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import Table, TxContext
from .formats.op import Op, Retirement, Status, Verb
from .formats.roce import RoceOpcode
from .qp_context import ConfigPort, ContextPort
from .qp_table import QpTable

__all__ = ["Outstanding", "Packet", "ReadsPort", "Segmenter", "Started"]


class Packet(data.Struct):
    """A packet to be sent, without its payload."""

    opcode: 8
    psn: 24
    #: Payload bytes.
    length: 13
    ack_request: 1
    solicited: 1
    #: First or only packet: it carries `va`, `rkey` and `message_length`.
    starts: 1
    va: 64
    rkey: 32
    message_length: 32
    peer_qpn: 24
    peer_node: 8
    port: 1
    qp: 12
    wqe_index: 16
    #: Not to be sent: its payload is dropped.
    silent: 1


class Outstanding(data.Struct):
    """A WQE between its first packet and its retirement."""

    wqe_index: 16
    blocks: 5
    signaled: 1
    vendor_opcode: 8
    #: PSN of its first and last packet; of a WQE that sends nothing, the last is the one before it.
    first_psn: 24
    last_psn: 24
    length: 32
    status: Status
    #: It has packets, so it waits for an ACK.
    sends: 1
    #: It is a READ or an atomic (of one that is flushed, too): where it has a length, landings come
    #: for it.
    reads: 1
    #: It is a local read that waits for its bytes.
    dumps: 1
    #: It is an atomic.
    atomic: 1


class Started(data.Struct):
    """An operation starts."""

    qp: 12
    #: PSN of the first packet that it sends now, behind those that it skips. Where `entry.sends`
    #: is low, nothing is sent, no response comes, and landings are for nobody.
    psn: 24
    #: It enters the list of outstanding WQEs. Low: it passes in silence, since its QP recovers, and
    #: is executed again.
    listed: 1
    entry: Outstanding


class ReadsPort(wiring.Signature):
    """Between requester and landing, from the requester's side.

    Members
    -------
    started : Out(`valid`, `payload`: Started)
        Each operation, for one cycle. In order over all QPs, so in the order of their landings.
    room : In(1)
        The operation in `started.payload` may start: all its landings are here, if it has any
        (combinational). It comes to be high whatever becomes of other operations.
    restart : Out(`valid`, `qp`, `psn`)
        All that a QP has outstanding is forgotten; what it sends next has that PSN. All that was
        fetched of it before has started.
    ask : Out(12), outstanding : In(5)
        READs and atomics of a QP that have started with `entry.sends` and whose response has not
        been handed on (combinational); one that starts counts from the next cycle on. All ones: no
        more may start, since its landings would not fit.
    responding_qp : In(12), failed : Out(1)
        Whether the QP that a response is for is in error (combinational).
    """

    def __init__(self):
        super().__init__(
            {
                "started": Out(wiring.Signature({"valid": Out(1), "payload": Out(Started)})),
                "room": In(1),
                "restart": Out(wiring.Signature({"valid": Out(1), "qp": Out(12), "psn": Out(24)})),
                "ask": Out(12),
                "outstanding": In(5),
                "responding_qp": In(12),
                "failed": Out(1),
            }
        )


class Segmenter(wiring.Component):
    """Cuts operations into packets of at most one MTU and gives them their PSNs.

    Behind an operation with a status, and in a QP in error, operations are flushed: they send
    nothing; if pieces come for them, their packets are silent.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    ops : In(stream of `Op`)
    config : In(ConfigPort)
        Table.TX sets the next PSN. It takes the cycle.
    restart : In(`valid`, `qp`, `psn`)
        Sets the next PSN of a QP of which nothing is in work. It takes the cycle.
    failed : In(1)
        The QP of `started` is in error.
    tx : Out(ContextPort(TxContext))
    ack_every_packet : In(1)
        ACKs are requested of all packets, not only of a message's last.
    packets : Out(stream of `Packet`)
    started : Out
        `valid` for one cycle with each operation (with its first packet), `payload: Started`.
        `payload.qp` is that of the operation in work.
    finished : Out
        `valid` for one cycle with the last step of each operation, `payload: Retirement`.
    room : In(1)
        One more operation of QP `started.payload.qp` may be started.
    busy : Out(1)
        There is something to do in the next cycle.

    Timing
    ------
    The first packet one cycle after the operation was accepted; one packet per cycle,
    also across operations.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "ops": In(stream.Signature(Op)),
                "config": In(ConfigPort()),
                "restart": In(wiring.Signature({"valid": Out(1), "qp": Out(12), "psn": Out(24)})),
                "failed": In(1),
                "tx": Out(ContextPort(TxContext)),
                "ack_every_packet": In(1),
                "packets": Out(stream.Signature(Packet)),
                "started": Out(wiring.Signature({"valid": Out(1), "payload": Out(Started)})),
                "finished": Out(wiring.Signature({"valid": Out(1), "payload": Out(Retirement)})),
                "room": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        psns = QpTable(m, "psns", 24, self._structure)
        stopped = QpTable(m, "stopped", 1, self._structure)

        # An operation waits one cycle for its context.
        op, held, done = Signal(Op), Signal(), Signal()
        m.d.comb += [
            self.ops.ready.eq(~held | done),
            self.tx.address.eq(Mux(self.ops.ready, self.ops.payload.qp, op.qp)),
        ]
        with m.If(self.ops.ready):
            m.d.sync += held.eq(self.ops.valid)
            with m.If(self.ops.valid):
                m.d.sync += op.eq(self.ops.payload)
        psn, mtu_log2 = psns.read(op.qp), self.tx.data.mtu_log2

        # One packet per step; an operation that sends nothing takes one step too.
        sends, setting = Signal(), Signal()
        first, last = Signal(init=1), Signal()
        mtu, left, left_over = Signal(16), Signal(32), Signal(32)
        possible, step = Signal(), Signal()
        m.d.comb += [
            sends.eq((op.verb == Verb.WRITE) & (op.status == Status.SUCCESS)),
            mtu.eq(1 << mtu_log2),
            left.eq(Mux(first, op.length - (op.skip << mtu_log2), left_over)),
            last.eq(~sends | (left <= mtu)),
            possible.eq(held & (~first | self.room)),
            self.busy.eq(possible & (~sends | self.packets.ready)),
            self.packets.valid.eq(possible & sends & ~setting),
            step.eq(self.busy & ~setting),
            done.eq(step & last),
            self.finished.valid.eq(done),
            self.finished.payload.qp.eq(op.qp),
            self.finished.payload.blocks.eq(op.blocks),
        ]
        with m.If(step):
            m.d.sync += [first.eq(last), left_over.eq(left - mtu)]

        # Flushed: from its start, or from the packet on before which its QP failed.
        flushed, was_flushed = Signal(), Signal()
        m.d.comb += flushed.eq(self.failed | Mux(first, stopped.read(op.qp), was_flushed))
        with m.If(step):
            m.d.sync += was_flushed.eq(flushed)

        self._packet(m, op, psn, mtu, left, first, last, flushed)
        self._start(m, op, psn, mtu, sends, flushed)
        m.d.comb += self.started.valid.eq(step & first)

        # Next PSNs, and who has stopped.
        context = data.View(TxContext, self.config.payload.data[: data.Layout.cast(TxContext).size])
        configuring, target = Signal(), Signal(12)
        m.d.comb += [
            configuring.eq(self.config.valid & (self.config.payload.table == Table.TX)),
            setting.eq(configuring | self.restart.valid),
            target.eq(
                Mux(configuring, self.config.payload.index, Mux(setting, self.restart.qp, op.qp))
            ),
        ]
        psns.write(
            target,
            Mux(configuring, context.start_psn, Mux(setting, self.restart.psn, psn + 1)),
            setting | (step & sends & ~flushed),
        )
        stopped.write(target, ~setting, setting | (step & (op.status != Status.SUCCESS)))
        return m

    def _packet(self, m, op, psn, mtu, left, first, last, flushed):
        packet, begins = self.packets.payload, Signal()
        m.d.comb += [
            begins.eq(first & (op.skip == 0)),
            packet.opcode.eq(
                Mux(
                    begins,
                    Mux(last, RoceOpcode.WRITE_ONLY, RoceOpcode.WRITE_FIRST),
                    Mux(last, RoceOpcode.WRITE_LAST, RoceOpcode.WRITE_MIDDLE),
                )
            ),
            packet.psn.eq(psn),
            packet.length.eq(Mux(last, left, mtu)),
            packet.ack_request.eq(last | self.ack_every_packet),
            packet.solicited.eq(last & op.solicited),
            packet.starts.eq(begins),
            packet.va.eq(op.raddr),
            packet.rkey.eq(op.rkey),
            packet.message_length.eq(op.length),
            packet.peer_qpn.eq(self.tx.data.peer_qpn),
            packet.peer_node.eq(self.tx.data.peer_node),
            packet.port.eq(self.tx.data.port),
            packet.qp.eq(op.qp),
            packet.wqe_index.eq(op.wqe_index),
            packet.silent.eq(flushed),
        ]

    def _start(self, m, op, psn, mtu, sends, flushed):
        # PSNs after its first: one less than its packets. (Of nothing sent: the PSN before.)
        further, rest = Signal(24), Signal(16)
        entry, listed, first_psn = self.started.payload.entry, Signal(), Signal(24)
        m.d.comb += [
            listed.eq(sends & ~flushed),
            first_psn.eq(psn - op.skip),
            rest.eq(op.length & (mtu - 1)),
            further.eq((op.length >> self.tx.data.mtu_log2) - ((rest == 0) & (op.length != 0))),
            self.started.payload.qp.eq(op.qp),
            self.started.payload.psn.eq(psn),
            entry.wqe_index.eq(op.wqe_index),
            entry.blocks.eq(op.blocks),
            entry.signaled.eq(op.signaled),
            entry.vendor_opcode.eq(op.vendor_opcode),
            self.started.payload.listed.eq(1),
            entry.first_psn.eq(first_psn),
            entry.last_psn.eq(Mux(listed, first_psn + further, psn - 1)),
            entry.length.eq(op.length),
            entry.status.eq(Mux(flushed, Status.FLUSHED, op.status)),
            entry.sends.eq(listed),
        ]
