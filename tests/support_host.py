"""A host thread of the path `verbs` at a node that only writes down what is stored."""

from dataclasses import dataclass

from hw.formats.mlx5 import BLOCK_BYTES
from hw.formats.tlp import MarkKind
from sim import addresses
from sim.agents.context import Landmarks, Thread
from sim.agents.queue import SendQueue
from sim.agents.verbs import HostQueue
from sim.plan import wqe_blocks
from sim.scenario import loads

__all__ = ["QP", "QPN", "Host", "Put", "cpu_of", "records", "registers"]

SCENARIO = """
schema = "bellwire.scenario/1"
preset = "h200-cx7-ib200"
paths = ["verbs"]
[[op]]
size = 8
"""
#: Context index and number of the QP.
QP, QPN = 3, 0xABCD


def cpu_of(*sets):
    """`CpuConfig` of the preset with overrides."""
    return loads(SCENARIO, overrides=[f"cpu.{text}" for text in sets]).cpu


@dataclass
class Put:
    """What a thread is to write; `inline` has its bytes, else it lies at `laddr`."""

    number: int = 0
    size: int = 8
    inline: bytes | None = None
    signaled: bool = True
    rings: bool = True
    at_ns: float = 0.0
    laddr: int = 0x7F1122334400
    lkey: int = 0x112233
    raddr: int = 0x7FAB12345600
    rkey: int = 0x445566


class _Memory:
    """Lines that were put there; all others are ones, as an empty completion queue."""

    def __init__(self):
        self.lines = {}

    @property
    def data(self):
        return self

    def __getitem__(self, at):
        return self.lines.get(at - at % 64, b"\xff" * 64)[at % 64]


class _Node:
    """Keeps (cycle, address, bytes, kind of mark) of each store."""

    def __init__(self):
        self.now, self.stores, self.marks, self.host = 0, [], [], _Memory()

    def memory(self, name):
        assert name == "host"
        return self.host

    def store(self, port, address, data, due, mark):
        assert port == "cpu" and 0 < len(data) <= 64 - address % 64
        self.stores.append((due, address, bytes(data), MarkKind(mark & 15)))

    def trace(self, kind, payload, due):
        self.marks.append((kind, payload, due))


class Host:
    """The queue of a QP, and threads that post to it."""

    def __init__(self, cpu, *, depth=64, cq_depth=64, start=5, store_ns=50):
        self.node, self.depth = _Node(), depth
        self.queue = SendQueue(
            self.node, processor="cpu", memory="host", qp=QP, qpn=QPN, depth=depth,
            cq_depth=cq_depth, start=start,
        )  # fmt: skip
        self.shared = HostQueue(
            self.queue,
            cpu,
            store_ns,
            Landmarks(self.node),
            lambda put: (put.laddr, put.lkey, put.raddr, put.rkey, put.inline),
        )

    def thread(self, *puts, number=0, window=64):
        """A thread with these messages."""
        return Thread(
            number, puts, window, lambda put: wqe_blocks(put.size, put.inline is not None)
        )

    def post(self, *puts, now=0):
        """One post of all of them; what it stored."""
        thread = self.thread(*puts)
        before = len(self.node.stores)
        self.shared.post(thread, now)
        return self.node.stores[before:]

    def ring_of(self, stores):
        """Block of the send queue to its bytes."""
        base = addresses.bus("host", addresses.sq_offset(QP, self.depth))
        return {
            (address - base) // BLOCK_BYTES: data
            for _, address, data, kind in stores
            if kind is MarkKind.WQE
        }

    def complete(self, place, counter, *, opcode=0, owner=0):
        """A CQE in memory."""
        raw = bytes(60) + counter.to_bytes(2, "big") + bytes([0, opcode << 4 | owner])
        self.complete_with(place, raw)

    def complete_with(self, place, raw):
        """These 64 bytes as a CQE."""
        at = addresses.cq_offset(QP, self.queue.cq_depth) + place * 64
        self.node.host.lines[at] = raw


def registers(stores):
    """(offset in the UAR page, bytes) of each store to the doorbell register, in order."""
    page = addresses.uar_register(QP) - 0x800
    return [(at - page, data) for _, at, data, kind in stores if kind is MarkKind.DOORBELL]


def records(stores):
    """Bytes of each store to the send word of the doorbell record."""
    at = addresses.bus("host", addresses.record_offset(QP)) + 4
    return [data for _, address, data, _ in stores if address == at]
