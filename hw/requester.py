"""Requester: turns operations into packets, and ACKs into retired WQEs."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .config import NicTiming
from .formats.context import Table, TxContext
from .formats.events import AckReceived, Dropped, DropReason, EventKind, Retired
from .formats.op import Completion, Op, Retirement, Status, Verb
from .formats.roce import Aeth, Reth, RoceOpcode, WireBeat
from .lib.align import Line
from .lib.delay import NEVER, NOW_BITS, DelayLine
from .lib.stream import Queue, connect
from .lib.trace import Probe
from .qp_context import ConfigPort, ContextPort

__all__ = ["Outstanding", "Packet", "Requester", "Retirer", "Segmenter", "Started"]

#: Packets that may wait for the transmit delay or their payload.
_PACKETS = 1024


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


class _Identity(data.Struct):
    valid: 1
    qpn: 24


class Retirer(wiring.Component):
    """Keeps the outstanding WQEs of all QPs, in order, and retires them as they are acknowledged.

    Parameters
    ----------
    structure : Structure
        `window_blocks` WQEs per QP.

    Members
    -------
    started : In
        `valid` (only with `room`), `payload: Started`.
    room : Out(1)
        One more WQE fits for the QP in `started.payload.qp`.
    acks : In(stream of `WireBeat`)
    config : In(ConfigPort)
        Table.TX empties a QP and sets the oldest unacknowledged PSN. It takes the cycle.
    completions : Out(stream of `Completion`)
    retired : Out
        `valid`, `payload: Retirement`.
    busy : Out(1)
        There is something to do in the next cycle.
    on_ack_received, on_retired, on_dropped : Out(Probe)

    Timing
    ------
    ACK accepted at t: its first WQE retires at t + 1, then one per cycle; the
    completion is offered one cycle later. Another ACK is accepted in the cycle in which nothing
    more is found to retire: one ACK that retires one WQE per 2 cycles. A WQE that sends nothing,
    started at t, retires at t + 2 if none is before it. Retiring stops while the queue of 16
    completions is full.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "started": In(wiring.Signature({"valid": Out(1), "payload": Out(Started)})),
                "room": Out(1),
                "acks": In(stream.Signature(WireBeat)),
                "config": In(ConfigPort()),
                "completions": Out(stream.Signature(Completion)),
                "retired": Out(wiring.Signature({"valid": Out(1), "payload": Out(Retirement)})),
                "busy": Out(1),
                "on_ack_received": Out(Probe(EventKind.ACK_RECEIVED, AckReceived)),
                "on_retired": Out(Probe(EventKind.RETIRED, Retired)),
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        qps, window = self._structure.qps, self._structure.window_blocks
        qp_bits, index_bits = self._structure.qp_bits, (window - 1).bit_length()
        # A ring per QP. Positions have one bit more than the index, to tell full from empty.
        place = data.StructLayout({"tail": index_bits + 1, "end_psn": 24})
        m.submodules.entries = entries = memory.Memory(
            shape=Outstanding, depth=qps * window, init=[]
        )
        m.submodules.tails = tails = memory.Memory(shape=place, depth=qps, init=[])
        m.submodules.heads = heads = memory.Memory(shape=index_bits + 1, depth=qps, init=[])
        # The oldest unacknowledged PSN of each QP, and who the QP is.
        m.submodules.unacknowledged = unacknowledged = memory.Memory(shape=24, depth=qps, init=[])
        m.submodules.identities = identities = memory.Memory(shape=_Identity, depth=qps, init=[])
        m.submodules.visits = visits = Queue(qp_bits, 16)
        m.submodules.queue = queue = Queue(Completion, 16)

        def read(store, address):
            port = store.read_port(domain="comb")
            m.d.comb += port.addr.eq(address)
            return port.data

        # Configuration.
        configuring, configured = Signal(), Signal(qp_bits)
        context = data.View(TxContext, self.config.payload.data[: data.Layout.cast(TxContext).size])
        identity = identities.write_port()
        m.d.comb += [
            configuring.eq(self.config.valid & (self.config.payload.table == Table.TX)),
            configured.eq(self.config.payload.index),
            identity.en.eq(configuring),
            identity.addr.eq(configured),
            identity.data.valid.eq(context.valid),
            identity.data.qpn.eq(context.qpn),
        ]

        # A WQE starts: to the end of its QP's ring. One that sends nothing asks for a visit, since
        # no ACK will come for it.
        start, entry = self.started, self.started.payload.entry
        start_qp = start.payload.qp[:qp_bits]
        start_place, start_head = read(tails, start_qp), read(heads, start_qp)
        new_entry, new_tail = entries.write_port(), tails.write_port()
        m.d.comb += [
            self.room.eq(((start_place.tail ^ start_head) != window) & visits.i.ready),
            new_entry.en.eq(start.valid),
            new_entry.addr.eq(Cat(start_place.tail[:index_bits], start_qp)),
            new_entry.data.eq(entry),
            new_tail.en.eq(start.valid | configuring),
            new_tail.addr.eq(Mux(configuring, configured, start_qp)),
            new_tail.data.tail.eq(Mux(configuring, 0, start_place.tail + 1)),
            new_tail.data.end_psn.eq(Mux(configuring, context.start_psn, entry.last_psn + 1)),
            visits.i.valid.eq(start.valid & ~entry.sends),
            visits.i.payload.eq(start_qp),
        ]

        # A QP is visited: its oldest WQE retires if it is acknowledged or sends nothing, until
        # there is none.
        visiting, qp = Signal(), Signal(qp_bits)
        head, tail = read(heads, qp), read(tails, qp).tail
        oldest = read(entries, Cat(head[:index_bits], qp))
        beyond = Signal(24)
        ready, retires = Signal(), Signal()
        new_head = heads.write_port()
        m.d.comb += [
            # PSNs acknowledged beyond its last, modulo 2^24.
            beyond.eq(read(unacknowledged, qp) - 1 - oldest.last_psn),
            ready.eq((head != tail) & (~oldest.sends | ~beyond[-1])),
            retires.eq(visiting & ready & queue.i.ready & ~configuring),
            new_head.en.eq(retires | configuring),
            new_head.addr.eq(Mux(configuring, configured, qp)),
            new_head.data.eq(Mux(configuring, 0, head + 1)),
        ]

        # An ACK (or a WQE that sends nothing) starts the next visit.
        beat, aeth = self.acks.payload, data.View(Aeth, self.acks.payload.ext[:32])
        ack_qp = beat.bth.dest_qp[:qp_bits]
        known, base, end_psn = (
            read(identities, ack_qp),
            read(unacknowledged, ack_qp),
            read(tails, ack_qp).end_psn,
        )
        known_qp, expected, positive, accepted = Signal(), Signal(), Signal(), Signal()
        ahead, open_psns = Signal(24), Signal(24)
        idle = Signal()
        new_base = unacknowledged.write_port()
        m.d.comb += [
            idle.eq((~visiting | ~ready) & ~configuring),
            visits.o.ready.eq(idle),
            self.acks.ready.eq(idle & ~visits.o.valid),
            known_qp.eq(known.valid & (known.qpn == beat.bth.dest_qp)),
            positive.eq((beat.bth.opcode == RoceOpcode.ACK) & (aeth.syndrome[5:] == 0)),
            ahead.eq(beat.bth.psn - base),
            open_psns.eq(end_psn - base),
            expected.eq(ahead < open_psns),
            accepted.eq(self.acks.valid & self.acks.ready & known_qp & positive & expected),
            new_base.en.eq(accepted | configuring),
            new_base.addr.eq(Mux(configuring, configured, ack_qp)),
            new_base.data.eq(Mux(configuring, context.start_psn, beat.bth.psn + 1)),
        ]
        with m.If(idle):
            m.d.sync += [
                visiting.eq(visits.o.valid | accepted),
                qp.eq(Mux(visits.o.valid, visits.o.payload, ack_qp)),
            ]

        # What a retired WQE tells.
        m.d.comb += [
            self.retired.valid.eq(retires),
            self.retired.payload.qp.eq(qp),
            self.retired.payload.blocks.eq(oldest.blocks),
            queue.i.valid.eq(retires & (oldest.signaled | (oldest.status != Status.SUCCESS))),
            queue.i.payload.qp.eq(qp),
            queue.i.payload.wqe_index.eq(oldest.wqe_index),
            queue.i.payload.vendor_opcode.eq(oldest.vendor_opcode),
            queue.i.payload.length.eq(oldest.length),
            queue.i.payload.status.eq(oldest.status),
            self.on_retired.valid.eq(retires),
            self.on_retired.payload.qp.eq(qp),
            self.on_retired.payload.wqe_index.eq(oldest.wqe_index),
            self.on_retired.payload.blocks.eq(oldest.blocks),
            self.on_retired.payload.signaled.eq(oldest.signaled),
            self.on_retired.payload.status.eq(oldest.status),
        ]
        connect(m, queue.o, self.completions)
        m.d.comb += [
            self.busy.eq(visiting | visits.o.valid | ~queue.empty),
            self.on_ack_received.valid.eq(accepted),
            self.on_ack_received.payload.qp.eq(ack_qp),
            self.on_ack_received.payload.psn.eq(beat.bth.psn),
            self.on_ack_received.payload.syndrome.eq(aeth.syndrome),
            self.on_dropped.valid.eq(self.acks.valid & self.acks.ready & ~accepted),
            self.on_dropped.payload.reason.eq(
                Mux(
                    ~known_qp,
                    DropReason.PACKET_UNKNOWN_QP,
                    Mux(~positive, DropReason.PACKET_OPCODE, DropReason.ACK_UNEXPECTED),
                )
            ),
            self.on_dropped.payload.qp.eq(beat.bth.dest_qp),
            self.on_dropped.payload.info.eq(Cat(beat.bth.psn, aeth.syndrome)),
        ]
        return m


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
