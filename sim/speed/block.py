"""The doorbell alone, in two shells: as a node of our engine, and as a top for any test bench.

What both hold is the same: the block of `hw/doorbell.py` and the contexts that it looks up.
"""

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.config import Structure
from hw.doorbell import Doorbell
from hw.formats.command import MAILBOXES, Command
from hw.formats.context import ConfigWrite
from hw.formats.op import Ring
from hw.formats.tlp import PostedBeat
from hw.lib.delay import NOW_BITS
from hw.lib.stream import connect
from hw.qp_context import ConfigPort, QpContext

__all__ = ["RING_EVENT", "DoorbellNode", "DoorbellTop"]

#: Delay of a ring: what may wait at a doorbell every 4 cycles.
_DELAY_CYCLES = 40
_DEPTH = 16
#: Kind of the event that a ring of `DoorbellNode` is.
RING_EVENT = 1


class _Parts(wiring.Component):
    """The doorbell and its contexts; rings are always taken, nothing is pushed."""

    config: In(ConfigPort())
    writes: In(stream.Signature(PostedBeat))
    now: In(NOW_BITS)
    ring_valid: Out(1)
    ring: Out(Ring)
    quiet: Out(1)
    due: Out(NOW_BITS)

    def elaborate(self, platform):
        m = Module()
        structure = Structure()
        m.submodules.contexts = contexts = QpContext(structure)
        m.submodules.doorbell = doorbell = Doorbell(structure)
        wiring.connect(m, wiring.flipped(self.config), contexts.config)
        wiring.connect(m, doorbell.sq, contexts.doorbell)
        connect(m, wiring.flipped(self.writes), doorbell.writes)
        m.d.comb += [
            doorbell.now.eq(self.now),
            doorbell.timing.doorbell.eq(_DELAY_CYCLES),
            doorbell.timing.doorbell_fifo_depth.eq(_DEPTH),
            doorbell.rings.ready.eq(1),
            doorbell.pushes.ready.eq(1),
            self.ring_valid.eq(doorbell.rings.valid),
            self.ring.eq(doorbell.rings.payload),
            self.quiet.eq(doorbell.quiet),
            self.due.eq(doorbell.due),
        ]
        return m


class DoorbellTop(wiring.Component):
    """For a bench that drives pins: configuration and writes in, rings out; it counts its own
    cycles.
    """

    config: In(ConfigPort())
    writes: In(stream.Signature(PostedBeat))
    ring_valid: Out(1)
    ring: Out(Ring)

    def elaborate(self, platform):
        m = Module()
        m.submodules.parts = parts = _Parts()
        now = Signal(NOW_BITS)
        m.d.sync += now.eq(now + 1)
        wiring.connect(m, wiring.flipped(self.config), parts.config)
        connect(m, wiring.flipped(self.writes), parts.writes)
        m.d.comb += [
            parts.now.eq(now),
            self.ring_valid.eq(parts.ring_valid),
            self.ring.eq(parts.ring),
        ]
        return m


class DoorbellNode(wiring.Component):
    """A node of the engine (decision 2) that is nothing but a doorbell: a store of the GPU is a
    write of one beat, a configuration command a context, and a ring an event.
    """

    node_id: In(8)
    now: In(NOW_BITS)
    mailbox_due: In(len(MAILBOXES))
    rx_valid: In(1)
    rx_beat: In(data.ArrayLayout(8, 16))
    tx_credit: In(1)
    tx_valid: Out(1)
    tx_beat: Out(data.ArrayLayout(8, 16))
    rx_credit: Out(1)
    quiet: Out(1)
    next_due: Out(NOW_BITS)

    def elaborate(self, platform):
        m = Module()
        m.submodules.parts = parts = _Parts()
        m.d.sync += parts.now.eq(self.now)
        store, store_valid = self._mailbox(m, "gpu", parts.writes.ready)
        context, context_valid = self._mailbox(m, "config", Const(1))
        beat, write = parts.writes.payload, Signal(ConfigWrite)
        m.d.comb += [
            parts.writes.valid.eq(store_valid),
            beat.data.eq(store.data),
            beat.address.eq(store.address),
            beat.count.eq(store.length),
            beat.length.eq(store.length),
            beat.first.eq(1),
            beat.last.eq(1),
            write.index.eq(context.address[:16]),
            write.table.eq(context.address[32:36]),
            write.data.eq(context.data),
            parts.config.valid.eq(context_valid),
            parts.config.payload.eq(write),
        ]
        m.submodules.rings = Instance(
            "sim_event",
            i_clk=ClockSignal(),
            i_node=self.node_id,
            i_kind=Const(RING_EVENT, 16),
            i_valid=parts.ring_valid,
            i_payload=Cat(parts.ring.as_value(), Const(0, 160 - len(parts.ring.as_value()))),
        )
        m.d.comb += [
            self.quiet.eq(parts.quiet & ~store_valid & ~context_valid),
            self.next_due.eq(parts.due),
        ]
        return m

    def _mailbox(self, m, name, ready):
        number = MAILBOXES.index(name)
        command, valid = Signal(Command, name=f"{name}_command"), Signal(name=f"{name}_valid")
        m.submodules[f"mailbox_{name}"] = Instance(
            "sim_mailbox",
            i_clk=ClockSignal(),
            i_node=self.node_id,
            i_port=Const(number, 8),
            i_due=self.mailbox_due[number],
            i_ready=ready,
            o_valid=valid,
            **{
                f"o_{field}": getattr(command, field)
                for field in ("op", "address", "length", "token", "data")
            },
        )
        return command, valid
