"""The NIC: from a doorbell to packets, and from packets to memory and completions."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .cq_engine import CqEngine
from .dma_read import DmaRead
from .dma_write import DmaWrite
from .doorbell import Doorbell
from .formats.events import Dropped, DropReason, EventKind, StallCause
from .formats.op import Completion
from .formats.roce import WireBeat
from .formats.tlp import ReadBeat
from .gather import Gather
from .landing import ResponseLanding
from .lib.arbiter import Arbiter
from .lib.delay import NOW_BITS, earliest
from .lib.stream import connect
from .lib.trace import Alarm, Probe
from .pcie import Pcie
from .qp_context import ConfigPort, QpContext
from .receive_queue import ReceiveQueue
from .requester import Requester
from .responder import Responder
from .timing import FaultTiming, NicTiming, WireTiming
from .wire import Wire, WirePort, of_port
from .wq_engine import WqEngine

__all__ = ["Nic"]

#: First tag of each reader, and how many are set aside for it; a power of two, as aligned.
READERS = {
    "wqe_read": (0, 128),
    "payload_read": (512, 512),
    "response_read": (256, 256),
    "atomic_read": (128, 64),
    "receive_read": (192, 64),
}
#: DMA engines, in the order of their numbers in `DMA_LEDGER`.
ENGINES = (
    "wqe_read",
    "payload_read",
    "write",
    "response_read",
    "atomic_read",
    "receive_read",
    "landing",
)

LEDGER = Probe(EventKind.DROPPED, Dropped)


class Nic(wiring.Component):
    """An RDMA NIC with one PCIe port and one or two wire ports, each QP on one of them.

    Parameters
    ----------
    structure : Structure
        `ports` on the wire.

    Members
    -------
    up, down : the PCIe port, towards the fabric and from it
        Reads that target the NIC are not served: nothing in a BAR of it is readable.
    config : In(ConfigPort)
    now : In
    timing, wire_timing, faults : In
        Sections of `Timing`.
    mps_log2, mrrs_log2 : In(4)
    ports : Out(array of `WirePort`)
    quiet, due : Out
        Nothing changes before `due` unless an input arrives.
    on_ledger_<engine> : Out(Probe)
        A DMA engine's bytes do not balance; a bug of the machine.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "up": Out(Pcie()),
                "down": In(Pcie()),
                "config": In(ConfigPort()),
                "now": In(NOW_BITS),
                "timing": In(NicTiming),
                "wire_timing": In(WireTiming),
                "faults": In(FaultTiming),
                "mps_log2": In(4),
                "mrrs_log2": In(4),
                "ports": Out(WirePort()).array(structure.ports),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
                **{f"on_ledger_{engine}": Out(LEDGER) for engine in ENGINES},
            }
        )
        self.contexts = QpContext(structure)
        self.doorbell = Doorbell(structure)
        self.wq_engine = WqEngine(structure)
        self.gather = Gather(structure, reads_span_packets=True)
        self.requester = Requester(structure)
        self.landing = ResponseLanding(structure)
        self.responder = Responder(structure)
        self.receive_queue = ReceiveQueue(structure)
        self.cq_engine = CqEngine(structure)
        self.wqe_read = DmaRead(
            lines=structure.wqe_lines,
            tags=structure.wqe_tags,
            tag_base=READERS["wqe_read"][0],
            tags_cause=StallCause.WQE_TAGS,
            lines_cause=StallCause.WQE_LINES,
        )
        self.payload_read = DmaRead(
            lines=structure.payload_lines,
            tags=structure.payload_tags,
            tag_base=READERS["payload_read"][0],
            tags_cause=StallCause.PAYLOAD_TAGS,
            lines_cause=StallCause.PAYLOAD_LINES,
        )
        self.response_read = DmaRead(
            lines=structure.response_lines,
            tags=structure.response_tags,
            tag_base=READERS["response_read"][0],
            tags_cause=StallCause.RESPONSE_TAGS,
            lines_cause=StallCause.RESPONSE_LINES,
        )
        # Atomics come one at a time.
        self.atomic_read = DmaRead(
            lines=2,
            tags=2,
            tag_base=READERS["atomic_read"][0],
            tags_cause=StallCause.RESPONSE_TAGS,
            lines_cause=StallCause.RESPONSE_LINES,
        )
        # One receive WQE, or a record, at a time.
        self.receive_read = DmaRead(
            lines=8,
            tags=4,
            tag_base=READERS["receive_read"][0],
            tags_cause=StallCause.WQE_TAGS,
            lines_cause=StallCause.WQE_LINES,
        )
        self.write = DmaWrite(clients=3)
        self.wires = [Wire(structure, port) for port in range(structure.ports)]
        #: Name and block, in the order of the data path.
        self.blocks = {
            "doorbell": self.doorbell,
            "wq_engine": self.wq_engine,
            "wqe_read": self.wqe_read,
            "gather": self.gather,
            "payload_read": self.payload_read,
            "requester": self.requester,
            **{of_port("wire", port): wire for port, wire in enumerate(self.wires)},
            "landing": self.landing,
            "responder": self.responder,
            "response_read": self.response_read,
            "atomic_read": self.atomic_read,
            "receive_queue": self.receive_queue,
            "receive_read": self.receive_read,
            "cq_engine": self.cq_engine,
            "write": self.write,
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.contexts = self.contexts
        for name, block in self.blocks.items():
            m.submodules[name] = block
        self._distribute(m)

        # A doorbell becomes a ring, a ring becomes WQE fetches, WQEs become operations.
        connect(m, wiring.flipped(self.down).posted, self.doorbell.writes)
        connect(m, self.doorbell.rings, self.wq_engine.rings)
        connect(m, self.doorbell.pushes, self.wq_engine.pushes)
        connect(m, self.wq_engine.requests, self.wqe_read.requests)
        connect(m, self.wqe_read.lines, self.wq_engine.lines)

        # An operation's bytes are gathered, cut at the MTU, and joined with its headers.
        connect(m, self.wq_engine.pieces, self.gather.pieces)
        connect(m, self.gather.requests, self.payload_read.requests)
        connect(m, self.payload_read.lines, self.gather.lines)
        connect(m, self.wq_engine.ops, self.requester.ops)
        wiring.connect(m, self.requester.recovery, self.wq_engine.recovery)
        connect(m, self.gather.payload, self.requester.payload)
        self._to_wires(m, self.requester.packets, [wire.requests for wire in self.wires])

        # What comes in is placed and answered, or it answers.
        self._from_wires(
            m, "arrived", [wire.rx_requests for wire in self.wires], self.responder.packets
        )
        self._to_wires(m, self.responder.acks, [wire.acks for wire in self.wires])
        self._from_wires(
            m, "answered", [wire.rx_acks for wire in self.wires], self.landing.responses
        )
        connect(m, self.wq_engine.landings, self.landing.landings)
        wiring.connect(m, self.requester.reads, self.landing.reads)
        connect(m, self.landing.acks, self.requester.acks)

        # A retired WQE frees its window and, if signalled, becomes a CQE; so does a receive WQE.
        m.d.comb += [
            self.wq_engine.retired.valid.eq(self.requester.retired.valid),
            self.wq_engine.retired.payload.eq(self.requester.retired.payload),
        ]
        m.submodules.completed = completed = Arbiter(Completion, 2)
        for turn, block in enumerate((self.requester, self.receive_queue)):
            connect(m, block.completions, completed.i[turn])
        connect(m, completed.o, self.cq_engine.completions)

        # What the responder reads, for READs and atomics.
        for kind, reader in (("read", self.response_read), ("atomic", self.atomic_read)):
            connect(m, getattr(self.responder, f"{kind}_requests"), reader.requests)
            connect(m, reader.lines, getattr(self.responder, f"{kind}_lines"))

        # What it receives passes the receive queue, which fills WQEs and completes them.
        connect(m, self.responder.take, self.receive_queue.take)
        connect(m, self.receive_queue.taken, self.responder.taken)
        connect(m, self.responder.placements, self.receive_queue.placements)
        connect(m, self.responder.lines, self.receive_queue.lines)
        connect(m, self.receive_queue.requests, self.receive_read.requests)
        connect(m, self.receive_read.lines, self.receive_queue.fetched)
        m.d.comb += self.responder.settled.eq(self.receive_queue.settled)

        # Writes: payload and completions share one engine, so that nothing overtakes within the
        # NIC.
        connect(m, self.receive_queue.writes, self.write.requests[0])
        connect(m, self.receive_queue.lines_out, self.write.lines[0])
        for client, block in ((1, self.cq_engine), (2, self.landing)):
            connect(m, block.writes, self.write.requests[client])
            connect(m, block.lines, self.write.lines[client])
        connect(m, self.write.posted, self.up.posted)

        self._reads(m)

        # The wire ports.
        for port, wire in zip(self.ports, self.wires, strict=True):
            m.d.comb += [
                wire.rx_valid.eq(port.rx_valid),
                wire.rx_beat.eq(port.rx_beat),
                wire.tx_credit.eq(port.tx_credit),
                port.rx_credit.eq(wire.rx_credit),
                port.tx_valid.eq(wire.tx_valid),
                port.tx_beat.eq(wire.tx_beat),
            ]

        # An engine whose ledger of bytes does not balance says so, once.
        alarms = Signal(len(ENGINES))
        for index, engine in enumerate(ENGINES):
            m.submodules[f"ledger_{engine}"] = alarm = Alarm(DropReason.DMA_LEDGER, index)
            m.d.comb += [
                alarm.raised.eq(self.blocks[engine].error),
                alarms[index].eq(alarm.event.valid),
            ]
            wiring.connect(m, alarm.event, wiring.flipped(getattr(self, f"on_ledger_{engine}")))

        blocks = self.blocks.values()
        m.d.comb += [
            self.quiet.eq(Cat(*(block.quiet for block in blocks)).all() & ~alarms.any()),
            self.due.eq(earliest(m, [block.due for block in blocks if hasattr(block, "due")])),
        ]
        return m

    def _reads(self, m):
        """Reads take turns; the tag says whose a completion is."""
        m.submodules.reads = reads = Arbiter(ReadBeat, len(READERS))
        connect(m, reads.o, self.up.reads)
        arrived = self.down.completions
        for turn, (name, (base, count)) in enumerate(READERS.items()):
            reader, mine = self.blocks[name], Signal(name=f"{name}_mine")
            connect(m, reader.reads, reads.i[turn])
            m.d.comb += [
                mine.eq(arrived.payload.tag >> (count - 1).bit_length() == base // count),
                reader.completions.payload.eq(arrived.payload),
                reader.completions.valid.eq(arrived.valid & mine),
            ]
            with m.If(mine):
                m.d.comb += arrived.ready.eq(reader.completions.ready)

    def _to_wires(self, m, source, sinks):
        """Packets to the wire of their port."""
        if len(sinks) == 1:
            return connect(m, source, sinks[0])
        for port, sink in enumerate(sinks):
            mine = source.payload.port == port
            m.d.comb += [sink.payload.eq(source.payload), sink.valid.eq(source.valid & mine)]
            with m.If(mine):
                m.d.comb += source.ready.eq(sink.ready)

    def _from_wires(self, m, name, sources, sink):
        """Packets of all wires, whole ones in turn."""
        if len(sources) == 1:
            return connect(m, sources[0], sink)
        m.submodules[name] = arbiter = Arbiter(WireBeat, len(sources), packets=True)
        for source, port in zip(sources, arbiter.i, strict=True):
            connect(m, source, port)
        connect(m, arbiter.o, sink)

    def _distribute(self, m):
        """Time, configuration and contexts to the blocks that have a port for them."""
        sections = {
            "timing": dict.fromkeys(self.wires, self.wire_timing),
            "mps_log2": {},
            "mrrs_log2": {},
            "now": {},
        }
        for block in self.blocks.values():
            for name in sections:
                if hasattr(block, name):
                    m.d.comb += getattr(block, name).eq(
                        sections[name].get(block, getattr(self, name))
                    )
            if hasattr(block, "config"):
                m.d.comb += [
                    block.config.valid.eq(self.config.valid),
                    block.config.payload.eq(self.config.payload),
                ]
        m.d.comb += [
            self.contexts.config.valid.eq(self.config.valid),
            self.contexts.config.payload.eq(self.config.payload),
            self.wqe_read.tags.eq(self.timing.wqe_tags),
            self.payload_read.tags.eq(self.timing.payload_tags),
            self.response_read.tags.eq(self._structure.response_tags),
            self.atomic_read.tags.eq(2),
            self.receive_read.tags.eq(4),
            *(wire.rx.eq(self.timing.rx) for wire in self.wires),
            *(wire.faults.eq(self.faults) for wire in self.wires),
        ]
        for reader, port in (
            (self.doorbell.sq, self.contexts.doorbell),
            (self.wq_engine.sq, self.contexts.sq),
            (self.requester.tx, self.contexts.tx),
            (self.responder.rx, self.contexts.rx),
            (self.cq_engine.cq, self.contexts.cq),
            (self.cq_engine.receive_cq, self.contexts.receive_cq),
            (self.receive_queue.rq, self.contexts.rq),
        ):
            m.d.comb += [port.address.eq(reader.address), reader.data.eq(port.data)]
