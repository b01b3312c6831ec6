"""What software keeps of a QP: its rings in memory and the indices it counts.

Indices are 64-bit and never wrap here; the machine sees their low 16 bits.
"""

from collections import deque

from hw.formats.mlx5 import BLOCK_BYTES
from hw.formats.tlp import MarkKind

from .. import addresses, wqe
from .completions import consumer_record
from .polling import is_ours

__all__ = ["PostedWqe", "SendQueue", "mark"]


#: Bit of the index in the sideband of a store.
INDEX_BIT = 16


def mark(kind, qp=0, index=0):
    """The sideband of a store (decision 5)."""
    return kind.value | (qp & 0xFFF) << 4 | (index & 0xFFFFFF) << INDEX_BIT


class PostedWqe:
    """A WQE in a send queue and the message it stands for."""

    __slots__ = ("index", "message", "next_index", "signaled")

    def __init__(self, message, index, blocks, signaled):
        self.message, self.signaled = message, signaled
        self.index, self.next_index = index, index + blocks


class SendQueue:
    """A QP as one processor drives it: builds WQEs, stores them, rings, and reads completions.

    Parameters
    ----------
    node : Node
        Handle of the node that owns the QP.
    processor : "gpu" or "cpu"
        Port by which everything is stored.
    memory : "gpu" or "host"
        Memory of the rings.
    qp, qpn : int
        Context index and number.
    depth, cq_depth : int
        Blocks of the send queue, entries of the completion queue. One entry is a collapsed queue:
        it is rewritten in place.
    start : int
        Index of the first block.
    on_post : callable, optional
        Told of each WQE posted, with the QP's context index.
    """

    def __init__(self, node, *, processor, memory, qp, qpn, depth, cq_depth, start=0, on_post=None):
        self._on_post = on_post
        self.node, self.processor, self.memory = node, processor, memory
        self.qp, self.qpn, self.depth, self.cq_depth = qp, qpn, depth, cq_depth
        self.collapsed = cq_depth == 1
        #: Next block to be written; blocks below `done` are free again; producer index last rung.
        self.posted = self.done = self.rung = start
        #: WQEs posted and not known to be done, oldest first.
        self.outstanding = deque()
        self._consumed = 0
        # Bytes of a memory view are numbers at once, those of an array are not.
        self._bytes = node.memory(memory).data
        self._sq = addresses.bus(memory, addresses.sq_offset(qp, depth))
        self._cq = addresses.cq_offset(qp, cq_depth)
        self._record = addresses.bus(memory, addresses.record_offset(qp))
        self._register = addresses.uar_register(qp)
        self._wqe_mark, self._record_mark, self._doorbell_mark = (
            mark(kind, qp) for kind in (MarkKind.WQE, MarkKind.RECORD, MarkKind.DOORBELL)
        )

    @property
    def free_blocks(self):
        """Blocks that can be written without overtaking a WQE in flight."""
        return self.depth - (self.posted - self.done)

    def post(self, raw, message, *, signaled, due):
        """Stores the blocks of the next WQE in cycle `due` and returns it; `raw` carries the index
        `posted`.
        """
        posted = self.place(raw, message, index=self.posted, signaled=signaled, due=due)
        self.posted = posted.next_index
        self.outstanding.append(posted)
        return posted

    def place(self, raw, message, *, index, signaled, due):
        """Stores the blocks of a WQE at an index, whatever else is posted, and returns it."""
        blocks = len(raw) // BLOCK_BYTES
        posted = PostedWqe(message, index, blocks, signaled)
        tag = self._wqe_mark | (index & 0xFFFF) << INDEX_BIT
        for block in range(blocks):
            address = self._sq + (index + block) % self.depth * BLOCK_BYTES
            data = raw[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
            self.node.store(self.processor, address, data, due, tag)
        if self._on_post:
            self._on_post(posted, self.qp)
        return posted

    def store_record(self, due, index=None):
        """Stores the send doorbell record, up to `index` or all that was posted."""
        index = self.posted if index is None else index
        tag = self._record_mark | (index & 0xFFFF) << INDEX_BIT
        self.node.store(self.processor, self._record + 4, wqe.record(index), due, tag)

    def ring(self, due, index=None):
        """Stores the 8-byte doorbell with the next index: `index`, or that of all posted."""
        index = self.posted if index is None else index
        self.doorbell(0, wqe.doorbell(qpn=self.qpn, index=index), due, index)

    def doorbell(self, offset, data, due, index=None):
        """Stores up to a line at `offset` of the doorbell register, for all up to `index`."""
        index = self.posted if index is None else index
        tag = self._doorbell_mark | (index & 0xFFFF) << INDEX_BIT
        self.node.store(self.processor, self._register + offset, data, due, tag)
        self.rung = index

    def watch(self):
        """Waits for a write to the completion entry that is next to be read."""
        return self.node.watch(self.memory, self._entry())

    def late_watch(self, patience):
        """Waits for writes to the entry of a collapsed completion queue, told late."""
        return self.node.late_watch(self.memory, self._entry(), patience)

    def has_completion(self, line=None):
        """Whether a completion that was not taken yet is in memory, or in an entry's bytes."""
        return bool(self.outstanding) and self._valid(*self.entry(line))

    def completed(self, most=None, line=None):
        """Takes the completions that are in memory now, `most` of them, or in an entry's bytes;
        returns the WQEs that they cover, oldest first.

        One in error covers its WQE, too: what it means is judged after the run.
        """
        covered, outstanding = [], self.outstanding
        last = None if most is None else self._consumed + most
        while outstanding and self._consumed != last:
            opcode, owner, counter = self.entry(line)
            if not self._valid(opcode, owner, counter):
                break
            # The 64-bit index whose low 16 bits are the counter, at or above the oldest outstanding
            # one.
            index = outstanding[0].index + ((counter - outstanding[0].index) & 0xFFFF)
            while outstanding and outstanding[0].index <= index:
                covered.append(outstanding.popleft())
            self._consumed += 1
            if self.collapsed:
                break
        if covered:
            self.done = covered[-1].next_index
            if not self.collapsed:
                self._store_consumer_index()
        return covered

    def _store_consumer_index(self):
        """The CQ's record, as host verbs keep it: 24 bits. (A collapsed CQ has no consumer.)"""
        self.node.store(
            self.processor,
            self._record + addresses.CQ_RECORD,
            consumer_record(self._consumed),
            self.node.now + 1,
            mark(MarkKind.RECORD, self.qp, self._consumed & 0xFFFF),
        )

    def _entry(self):
        return self._cq if self.collapsed else self._cq + self._consumed % self.cq_depth * 64

    def entry(self, line=None):
        """(opcode, owner, counter) of the entry that is next to be read, or of an entry's bytes."""
        if line is None:
            return wqe.read_cqe(self._bytes, self._entry())
        return wqe.read_cqe(line, 0)

    def _valid(self, opcode, owner, counter):
        if self.collapsed:
            # An empty slot is all ones; a counter below what is outstanding was read before.
            return opcode != 15 and (counter - self.outstanding[0].index) & 0xFFFF < 0x8000
        return is_ours(index=self._consumed, opcode=opcode, owner=owner, entries=self.cq_depth)
