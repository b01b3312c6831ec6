"""The list of WQEs that wait for their acknowledgement, and their retirement."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import Table, TxContext
from .formats.events import AckReceived, Dropped, DropReason, EventKind, Retired
from .formats.op import Completion, Retirement, Status
from .formats.roce import Aeth, RoceOpcode, WireBeat
from .lib.stream import Queue, connect
from .lib.trace import Probe
from .qp_context import ConfigPort
from .segmenter import Outstanding, Started

__all__ = ["Retirer"]


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
