"""The least that a GPU thread can do: WQE, GPU-scope fence, record, doorbell, poll.

Rings live in GPU memory; the thread polls its own memory. Several threads of one QP take turns:
each holds the queue from its first WQE to its doorbell. A thread checks for a free slot before it
writes one. The doorbell carries the next index, as GPU stacks write it.
Ref: the minimal GPU-initiated path that source A of the preset measured (its Table 3).
"""

from collections import defaultdict

from hw.config import cycles
from hw.formats.events import EventKind

from .. import wqe
from .context import Costs, Thread

__all__ = ["Crew", "GdaQueue"]


class Crew:
    """The agents of this path: one for each QP that is posted to."""

    def __init__(self, site):
        self._site = site

    def agents(self, by_thread, window):
        """(name, agent) for the messages by (node, peer, QP, producer) of a phase."""
        site, threads = self._site, defaultdict(list)
        for (node, peer, qp, producer), messages in by_thread.items():
            thread = Thread(producer, messages, window, site.blocks)
            threads[node, peer, qp].append(thread)
            site.threads.append(thread)
        for (node, peer, qp), members in threads.items():
            queue = site.queue(node, peer, qp)
            yield (
                f"GPU of node {node}, QP {queue.qp}",
                GdaQueue(
                    site.node(node),
                    queue,
                    site.scenario.gpu,
                    site.scenario.memory.gpu_store_ns,
                    members,
                    site.marks[node],
                    site.locate,
                ),
            )


class GdaQueue:
    """One QP of a GPU and the threads that post to it.

    Parameters
    ----------
    node : Node
    queue : SendQueue
        With its rings in GPU memory.
    gpu : GpuConfig
    store_ns : float
        Until a store of the GPU to its own memory is visible.
    threads : list of Thread
    marks : Landmarks
    locate : callable
        Message to (source address, lkey, target address, rkey, payload bytes if inlined or None).
    """

    def __init__(self, node, queue, gpu, store_ns, threads, marks, locate):
        self._node, self._queue, self._threads = node, queue, threads
        self._costs, self._copy_ns = Costs(gpu), gpu.inline_copy_ns_per_16b
        self._segments = gpu.segments
        # From a store's due cycle: one to the processor, and its delay (see `hw/memory.py`).
        self._visible = 1 + max(1, cycles(store_ns))
        self._marks, self._locate = marks, locate
        self._owner = {}
        self._free_at = 0
        self._polling_until = 0

    async def run(self):
        """Post and poll until every message of every thread is done."""
        while any(thread.pending or thread.outstanding for thread in self._threads):
            arrived = self._queue.watch()
            for thread in self._threads:
                while self._batch_fits(thread):
                    self._post(thread)
            if self._queue.has_completion():
                arrived.cancel()
                # One poll after the other: what came in meanwhile is seen by the next.
                await self._node.until(self._polling_until)
                self._poll()
            else:
                later = [t.next_at for t in self._threads if t.next_at > self._node.now + 1]
                if later:
                    await self._node.first(arrived, self._node.until(min(later) - 1))
                else:
                    await arrived

    def _batch_fits(self, thread):
        """Whether the thread's next batch (up to the message that rings) has room in its window and
        in the ring.
        """
        if not thread.pending or thread.next_at > self._node.now + 1:
            return False
        batch, blocks = thread.batches[0]
        return thread.outstanding + batch <= thread.window and blocks <= self._queue.free_blocks

    def _post(self, thread):
        """One batch: its WQEs, then fence, record and doorbell once."""
        queue, costs, stamp = self._queue, self._costs, self._marks.stamp
        time = max(self._node.now + 1, thread.time, self._free_at)
        batch, _ = thread.batches.popleft()
        for _ in range(batch):
            message = thread.pending.popleft()
            stamp(EventKind.ISSUE, message, time, agent=thread.number & 0xFFFF, qp=queue.qp)
            raw, inline = self._build(message, queue.posted)
            time += costs.issue
            if inline:
                time += cycles(self._copy_ns * ((message.size - 1) // 16))
            posted = queue.post(raw, message, signaled=message.signaled, due=time)
            stamp(EventKind.WQE_WRITTEN, message, time, posted, thread.number & 0xFFFF, queue.qp)
            self._owner[posted.index] = thread
        thread.outstanding += batch
        # The fence ends when the WQEs are visible in memory, if that takes longer than it costs.
        time += max(costs.fence_gpu, self._visible)
        queue.store_record(time)
        queue.ring(time)
        stamp(EventKind.RING, message, time, posted, thread.number & 0xFFFF, queue.qp)
        thread.time = self._free_at = time + costs.store_issue

    def _build(self, message, index):
        source, lkey, target, rkey, payload = self._locate(message)
        common = {
            "index": index,
            "qpn": self._queue.qpn,
            "raddr": target,
            "rkey": rkey,
            "signaled": message.signaled,
        }
        if payload is not None:
            return wqe.write_inline(payload=payload, **common), True
        return wqe.write(
            laddr=source, lkey=lkey, length=message.size, segments=self._segments, **common
        ), False

    def _poll(self):
        """Hand completions that are in memory to their threads; this poll returns `poll` later."""
        seen = self._polling_until = self._node.now + max(1, self._costs.poll)
        covered = self._queue.completed()
        for posted in covered:
            thread = self._owner.pop(posted.index)
            thread.outstanding -= 1
            thread.time = max(thread.time, seen)
            self._marks.stamp(
                EventKind.SEEN, posted.message, seen, posted, thread.number & 0xFFFF, self._queue.qp
            )
