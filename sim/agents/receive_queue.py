"""What software keeps of a receive queue: WQEs that it posts, and completions that it reads."""

from hw.formats.tlp import MarkKind

from .. import addresses, wqe
from .completions import consumer_record, work_completion
from .polling import is_ours
from .queue import mark

__all__ = ["ReceiveQueue"]


class ReceiveQueue:
    """The receive side of a QP as one processor drives it.

    Indices never wrap here; the machine sees their low 16 bits. That no more than `depth` WQEs are
    posted and not completed is the caller's care.

    Parameters
    ----------
    node : Node
        Handle of the node that owns the QP.
    processor : "gpu" or "cpu"
        Port by which everything is stored.
    memory : "gpu" or "host"
        Memory of the rings.
    qp : int
        Context index.
    depth : int
        WQEs of the queue, CQEs of its completion queue.
    """

    def __init__(self, node, *, processor, memory, qp, depth):
        self.node, self.processor, self.memory = node, processor, memory
        self.qp, self.depth = qp, depth
        self.posted = self.consumed = 0
        self._rq = addresses.bus(memory, addresses.rq_offset(qp, depth))
        self._cq = addresses.receive_cq_offset(qp, depth)
        self._record = addresses.bus(memory, addresses.record_offset(qp))

    def post(self, runs, due):
        """Stores a WQE in cycle `due` that takes a message into `runs`, each (address, length,
        lkey); returns its index. The NIC sees it once the record says so.
        """
        raw = wqe.receive(runs=runs, stride=addresses.RECEIVE_STRIDE)
        address = self._rq + self.posted % self.depth * addresses.RECEIVE_STRIDE
        tag = mark(MarkKind.OTHER, self.qp, self.posted)
        self.node.store(self.processor, address, raw, due, tag)
        self.posted += 1
        return self.posted - 1

    def store_record(self, due):
        """Stores the receive word of the doorbell record: all that was posted."""
        self._store(self._record, wqe.record(self.posted), self.posted, due)

    def watch(self):
        """Waits for a write to the completion entry that is next to be read."""
        return self.node.watch(self.memory, self._entry())

    def completed(self):
        """Takes the completions that are in memory now, oldest first, as `WorkCompletion`."""
        taken, memory = [], self.node.memory(self.memory)
        while True:
            at = self._entry()
            raw = bytes(memory[at : at + 64])
            opcode, owner, _ = wqe.read_cqe(raw, 0)
            if not is_ours(index=self.consumed, opcode=opcode, owner=owner, entries=self.depth):
                break
            taken.append(work_completion(raw))
            self.consumed += 1
        if taken:
            word, at = consumer_record(self.consumed), addresses.RECEIVE_CQ_RECORD
            self._store(self._record + at, word, self.consumed, self.node.now + 1)
        return taken

    def _store(self, address, word, index, due):
        tag = mark(MarkKind.RECORD, self.qp, index & 0xFFFF)
        self.node.store(self.processor, address, word, due, tag)

    def _entry(self):
        return self._cq + self.consumed % self.depth * 64
