"""Operations to packets: cuts them at the MTU and numbers them."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import Table, TxContext
from .formats.op import Op, Retirement, Status, Verb
from .opcodes import ATOMICS, IMMEDIATES, SENDS, is_one_of, request_opcode
from .qp_context import ConfigPort, ContextPort, configures, context_in
from .qp_table import QpTable

__all__ = ["Outstanding", "Packet", "ReadsPort", "Segmenter", "Silenced", "Started"]


class Packet(data.Struct):
    """A packet to be sent, without its payload."""

    opcode: 8
    psn: 24
    #: The PSN up to which it asks for an answer: of a READ that of the last packet of its response.
    last_psn: 24
    #: Payload bytes.
    length: 13
    ack_request: 1
    solicited: 1
    #: It has a RETH, of `va`, `rkey` and `message_length`.
    reth: 1
    va: 64
    rkey: 32
    message_length: 32
    #: Immediate data, where the opcode has it.
    imm: 32
    peer_qpn: 24
    peer_node: 8
    port: 1
    qp: 12
    wqe_index: 16
    #: Not to be sent: its payload is dropped.
    silent: 1
    #: A silent one that is the end of a local read.
    dumps: 1


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


class Silenced(data.Struct):
    """Whether a QP has operations that passed in silence, and the first of them."""

    any: 1
    wqe_index: 16


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

    A READ or an atomic is one packet; a READ takes as many PSNs as its response has packets. A
    local read (DUMP) takes none and is cut into silent packets.

    An operation waits, and with it those of all QPs, while there is no room for it, while its
    landings are not there, while it has a fence and READs or atomics of its QP are outstanding, and
    while it is one of these and as many as the QP may have are. If its QP recovers, it does not
    wait for the latter two, but passes in silence, as does all that follows until the QP restarts:
    no PSN, no place in any list.

    Behind an operation with a status, and in a QP in error, operations are flushed: they send
    nothing and wait for no other; if pieces come for them, their packets are silent.

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
    failed, recovering : In(1)
        The QP of `started` is in error; it recovers.
    outstanding : In(5)
        READs and atomics that the QP of `started` has outstanding.
    tx : Out(ContextPort(TxContext))
    ack_every_packet : In(1)
        ACKs are requested of all packets, not only of a message's last.
    packets : Out(stream of `Packet`)
    started : Out
        `valid` for one cycle with each operation (with its first packet), `payload: Started`.
    qp : Out(12)
        The QP of the operation in work, about which others are asked. (Not from within `started`,
        for what they answer is part of that.)
    finished : Out
        `valid` for one cycle with the last step of each operation, `payload: Retirement`.
    unfenced : Out(1)
        With `started`: the operation has a fence, and pieces.
    asked_qp : In(12), silenced : Out(Silenced)
        What of a QP passed in silence since it restarted (combinational).
    room : In(1)
        One more operation of QP `started.payload.qp` may be started.
    landings_here : In(1)
        The one in `started.payload` may be started, if it is a READ or an atomic.
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
                "recovering": In(1),
                "outstanding": In(5),
                "tx": Out(ContextPort(TxContext)),
                "ack_every_packet": In(1),
                "packets": Out(stream.Signature(Packet)),
                "started": Out(wiring.Signature({"valid": Out(1), "payload": Out(Started)})),
                "qp": Out(12),
                "finished": Out(wiring.Signature({"valid": Out(1), "payload": Out(Retirement)})),
                "unfenced": Out(1),
                "asked_qp": In(12),
                "silenced": Out(Silenced),
                "room": In(1),
                "landings_here": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        psns = QpTable(m, "psns", 24, self._structure)
        stopped = QpTable(m, "stopped", 1, self._structure)
        silenced = QpTable(m, "silenced", Silenced, self._structure)
        m.d.comb += self.silenced.eq(silenced.read(self.asked_qp))

        # An operation waits one cycle for its context.
        self._op, held, done = Signal(Op), Signal(), Signal()
        op = self._op
        m.d.comb += [
            self.ops.ready.eq(~held | done),
            self.tx.address.eq(Mux(self.ops.ready, self.ops.payload.qp, op.qp)),
        ]
        with m.If(self.ops.ready):
            m.d.sync += held.eq(self.ops.valid)
            with m.If(self.ops.valid):
                m.d.sync += op.eq(self.ops.payload)
        m.d.comb += self.qp.eq(op.qp)
        self._psn, mtu_log2 = psns.read(op.qp), self.tx.data.mtu_log2
        self._classify(m)

        # One packet per step; an operation without packets takes one step too. What is flushed is
        # so from its start, or from the packet on before which its QP failed.
        self._first, self._last = Signal(init=1), Signal()
        first, last = self._first, self._last
        self._flushed, was_flushed = Signal(), Signal()
        self._silent, was_silent, quiets = Signal(), Signal(), Signal()
        before = silenced.read(op.qp)
        waits, has_room, possible = Signal(), Signal(), Signal()
        setting, step = Signal(), Signal()
        self._mtu, self._left, left_over = Signal(16), Signal(32), Signal(32)
        m.d.comb += [
            self._flushed.eq(self.failed | Mux(first, stopped.read(op.qp), was_flushed)),
            waits.eq(
                first
                & self._executes
                & ~self._flushed
                & ~before.any
                & (
                    (op.fence & (self.outstanding != 0))
                    | (self._reads & (self.outstanding >= self.tx.data.max_reads))
                )
            ),
            self._silent.eq(Mux(first, before.any | (waits & self.recovering), was_silent)),
            quiets.eq(first & self._silent & ~before.any),
            self._mtu.eq(1 << mtu_log2),
            self._left.eq(Mux(first, op.length - (op.skip << mtu_log2), left_over)),
            last.eq(~self._cuts | (self._left <= self._mtu)),
            has_room.eq(self.room & (self.landings_here | ~self._reads)),
            possible.eq(held & (~first | (has_room & (~waits | self.recovering)))),
            self.busy.eq(possible & (~self._has_packets | self.packets.ready)),
            self.packets.valid.eq(possible & self._has_packets & ~setting),
            step.eq(self.busy & ~setting),
            done.eq(step & last),
            self.finished.valid.eq(done),
            self.finished.payload.qp.eq(op.qp),
            self.finished.payload.blocks.eq(op.blocks),
            self.started.valid.eq(step & first),
            self.unfenced.eq(step & first & op.fence & self._gathers),
        ]
        with m.If(step):
            m.d.sync += [
                first.eq(last),
                left_over.eq(self._left - self._mtu),
                was_flushed.eq(self._flushed),
                was_silent.eq(self._silent),
            ]
        last_psn = self._start(m)
        self._packet(m)
        m.d.comb += self.packets.payload.last_psn.eq(Mux(self._is_read, last_psn, self._psn))

        # Next PSNs, and who has stopped or was silenced.
        context = context_in(self.config, TxContext)
        configuring, target = Signal(), Signal(12)
        m.d.comb += [
            configuring.eq(configures(self.config, Table.TX)),
            setting.eq(configuring | self.restart.valid),
            target.eq(
                Mux(configuring, self.config.payload.index, Mux(setting, self.restart.qp, op.qp))
            ),
        ]
        after = self.packets.payload.last_psn + 1
        psns.write(
            target,
            Mux(configuring, context.start_psn, Mux(setting, self.restart.psn, after)),
            setting | (step & self._sends & ~self._flushed & ~self._silent),
        )
        stopped.write(target, ~setting, setting | (step & (op.status != Status.SUCCESS)))
        entry = Signal(Silenced)
        m.d.comb += [entry.any.eq(~setting), entry.wqe_index.eq(op.wqe_index)]
        silenced.write(target, entry, setting | (step & quiets))
        return m

    def _classify(self, m):
        """What the verb of the operation in work means for it."""
        op = self._op
        self._executes, self._reads, self._is_read = Signal(), Signal(), Signal()
        self._is_atomic, self._is_dump = Signal(), Signal()
        #: It is made of packets; more than one, if it is long; they go to the peer; they have
        #: payload.
        self._has_packets, self._cuts = Signal(), Signal()
        self._sends, self._gathers = Signal(), Signal()
        m.d.comb += [
            self._executes.eq(op.status == Status.SUCCESS),
            self._is_read.eq(op.verb == Verb.READ),
            self._is_atomic.eq(is_one_of(op.verb, ATOMICS)),
            self._is_dump.eq((op.verb == Verb.DUMP) & (op.length != 0)),
            self._reads.eq(self._executes & (self._is_read | self._is_atomic)),
            self._sends.eq(self._executes & ~is_one_of(op.verb, (Verb.NOP, Verb.DUMP))),
            self._has_packets.eq(self._sends | (self._executes & self._is_dump)),
            self._cuts.eq(self._has_packets & ~self._reads),
            self._gathers.eq(self._has_packets & ~self._is_read & (op.length != 0)),
        ]

    def _packet(self, m):
        op, first, last = self._op, self._first, self._last
        packet, begins, operands = self.packets.payload, Signal(), Signal(6)
        # A local read that began before its QP failed ends as one.
        dumps, was_dumping = Signal(), Signal()
        has_imm, is_send = is_one_of(op.verb, IMMEDIATES), is_one_of(op.verb, SENDS)
        m.d.comb += [
            begins.eq(first & (op.skip == 0)),
            operands.eq(Mux((op.verb == Verb.MASKED_COMPARE_SWAP) & (op.length == 8), 32, 16)),
            dumps.eq(Mux(first, self._is_dump & ~self._flushed & ~self._silent, was_dumping)),
            packet.opcode.eq(request_opcode(m, op.verb, begins, last)),
            packet.psn.eq(self._psn),
            packet.length.eq(Mux(last, self._left, self._mtu)),
            packet.ack_request.eq(last | self.ack_every_packet),
            packet.solicited.eq(last & op.solicited & (has_imm | is_send)),
            packet.reth.eq(self._reads | (begins & ~is_send)),
            packet.va.eq(op.raddr),
            packet.rkey.eq(op.rkey),
            packet.message_length.eq(op.length),
            packet.imm.eq(Mux(last & has_imm, op.imm, 0)),
            packet.peer_qpn.eq(self.tx.data.peer_qpn),
            packet.peer_node.eq(self.tx.data.peer_node),
            packet.port.eq(self.tx.data.port),
            packet.qp.eq(op.qp),
            packet.wqe_index.eq(op.wqe_index),
            packet.silent.eq(self._flushed | self._silent | self._is_dump),
            packet.dumps.eq(last & dumps),
        ]
        with m.If(self._is_read):
            # What is left of it is asked for.
            m.d.comb += [
                packet.length.eq(0),
                packet.va.eq(op.raddr + (op.skip << self.tx.data.mtu_log2)),
                packet.message_length.eq(self._left),
            ]
        with m.Elif(self._is_atomic):
            m.d.comb += packet.length.eq(operands)
        with m.If(self.packets.valid & self.packets.ready):
            m.d.sync += was_dumping.eq(dumps)

    def _start(self, m):
        """Fills `started`; returns the last PSN."""
        op, psn = self._op, self._psn
        # PSNs after its first: one less than its packets. (Of nothing sent: the PSN before.)
        further, rest = Signal(24), Signal(16)
        entry, sends = self.started.payload.entry, Signal()
        first_psn, last_psn = Signal(24), Signal(24)
        m.d.comb += [
            rest.eq(op.length & (self._mtu - 1)),
            further.eq((op.length >> self.tx.data.mtu_log2) - ((rest == 0) & (op.length != 0))),
            sends.eq(self._sends & ~self._flushed & ~self._silent),
            first_psn.eq(psn - op.skip),
            last_psn.eq(Mux(sends, first_psn + further, psn - 1)),
            self.started.payload.qp.eq(op.qp),
            self.started.payload.psn.eq(psn),
            self.started.payload.listed.eq(~self._silent),
            entry.wqe_index.eq(op.wqe_index),
            entry.blocks.eq(op.blocks),
            entry.signaled.eq(op.signaled),
            entry.vendor_opcode.eq(op.vendor_opcode),
            entry.first_psn.eq(first_psn),
            entry.last_psn.eq(last_psn),
            entry.length.eq(op.length),
            entry.status.eq(Mux(self._flushed, Status.FLUSHED, op.status)),
            entry.sends.eq(sends),
            entry.reads.eq(self._reads),
            entry.atomic.eq(self._is_atomic),
            entry.dumps.eq(self._is_dump & self._executes & ~self._flushed & ~self._silent),
        ]
        return last_psn
