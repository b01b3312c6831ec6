"""Operations to packets: cuts them at the MTU and numbers them."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import Table, TxContext
from .formats.op import Op, Status, Verb
from .formats.roce import RoceOpcode
from .qp_context import ConfigPort, ContextPort

__all__ = ["Outstanding", "Packet", "Segmenter", "Started"]


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


class Outstanding(data.Struct):
    """A WQE between its first packet and its retirement."""

    wqe_index: 16
    blocks: 5
    signaled: 1
    vendor_opcode: 8
    #: PSN of its last packet; of a WQE that sends nothing, the last one before it.
    last_psn: 24
    length: 32
    status: Status
    #: It has packets, so it waits for an ACK.
    sends: 1


class Started(data.Struct):
    """A WQE enters the list of outstanding ones."""

    qp: 12
    entry: Outstanding


class Segmenter(wiring.Component):
    """Cuts operations into packets of at most one MTU and gives them their PSNs.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    ops : In(stream of `Op`)
    config : In(ConfigPort)
        Table.TX sets the next PSN. It takes the cycle.
    tx : Out(ContextPort(TxContext))
    ack_every_packet : In(1)
        ACKs are requested of all packets, not only of a message's last.
    packets : Out(stream of `Packet`)
    started : Out
        `valid` for one cycle with each operation (with its first packet), `payload: Started`.
        `payload.qp` is that of the operation in work.
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
                "tx": Out(ContextPort(TxContext)),
                "ack_every_packet": In(1),
                "packets": Out(stream.Signature(Packet)),
                "started": Out(wiring.Signature({"valid": Out(1), "payload": Out(Started)})),
                "room": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.psns = psns = memory.Memory(shape=24, depth=self._structure.qps, init=[])
        read, write = psns.read_port(domain="comb"), psns.write_port()
        psn = read.data

        # An operation waits one cycle for its context.
        op, held, done = Signal(Op), Signal(), Signal()
        m.d.comb += [
            self.ops.ready.eq(~held | done),
            self.tx.address.eq(Mux(self.ops.ready, self.ops.payload.qp, op.qp)),
            read.addr.eq(op.qp),
        ]
        with m.If(self.ops.ready):
            m.d.sync += held.eq(self.ops.valid)
            with m.If(self.ops.valid):
                m.d.sync += op.eq(self.ops.payload)

        # One packet per step; an operation that sends nothing takes one step too.
        sends, configuring = Signal(), Signal()
        first, last = Signal(init=1), Signal()
        mtu, left, left_over = Signal(16), Signal(32), Signal(32)
        possible, step = Signal(), Signal()
        m.d.comb += [
            sends.eq((op.verb == Verb.WRITE) & (op.status == Status.SUCCESS)),
            configuring.eq(self.config.valid & (self.config.payload.table == Table.TX)),
            mtu.eq(1 << self.tx.data.mtu_log2),
            left.eq(Mux(first, op.length, left_over)),
            last.eq(~sends | (left <= mtu)),
            possible.eq(held & (~first | self.room)),
            self.busy.eq(possible & (~sends | self.packets.ready)),
            self.packets.valid.eq(possible & sends & ~configuring),
            step.eq(self.busy & ~configuring),
            done.eq(step & last),
        ]
        with m.If(step):
            m.d.sync += [first.eq(last), left_over.eq(left - mtu)]

        packet = self.packets.payload
        m.d.comb += [
            packet.opcode.eq(
                Mux(
                    first,
                    Mux(last, RoceOpcode.WRITE_ONLY, RoceOpcode.WRITE_FIRST),
                    Mux(last, RoceOpcode.WRITE_LAST, RoceOpcode.WRITE_MIDDLE),
                )
            ),
            packet.psn.eq(psn),
            packet.length.eq(Mux(last, left, mtu)),
            packet.ack_request.eq(last | self.ack_every_packet),
            packet.solicited.eq(last & op.solicited),
            packet.starts.eq(first),
            packet.va.eq(op.raddr),
            packet.rkey.eq(op.rkey),
            packet.message_length.eq(op.length),
            packet.peer_qpn.eq(self.tx.data.peer_qpn),
            packet.peer_node.eq(self.tx.data.peer_node),
            packet.port.eq(self.tx.data.port),
            packet.qp.eq(op.qp),
            packet.wqe_index.eq(op.wqe_index),
        ]

        # PSNs after its first: one less than its packets. (Of nothing sent: the PSN before.)
        further, rest = Signal(24), Signal(16)
        m.d.comb += [
            rest.eq(op.length & (mtu - 1)),
            further.eq((op.length >> self.tx.data.mtu_log2) - ((rest == 0) & (op.length != 0))),
        ]
        entry = self.started.payload.entry
        m.d.comb += [
            self.started.valid.eq(step & first),
            self.started.payload.qp.eq(op.qp),
            entry.wqe_index.eq(op.wqe_index),
            entry.blocks.eq(op.blocks),
            entry.signaled.eq(op.signaled),
            entry.vendor_opcode.eq(op.vendor_opcode),
            entry.last_psn.eq(Mux(sends, psn + further, psn - 1)),
            entry.length.eq(op.length),
            entry.status.eq(op.status),
            entry.sends.eq(sends),
        ]

        context = data.View(TxContext, self.config.payload.data[: data.Layout.cast(TxContext).size])
        m.d.comb += [
            write.en.eq(configuring | (step & sends)),
            write.addr.eq(Mux(configuring, self.config.payload.index, op.qp)),
            write.data.eq(Mux(configuring, context.start_psn, psn + 1)),
        ]
        return m
