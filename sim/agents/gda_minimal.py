"""The least that a GPU thread can do: WQE, GPU-scope fence, record, doorbell, poll.

Rings live in GPU memory; the thread polls its own memory. Several threads of one QP take turns:
each holds the queue from its first WQE to its doorbell. A thread checks for a free slot before it
writes one. The doorbell carries the next index, as GPU stacks write it.
Ref: the minimal GPU-initiated path that source A of the preset measured (its Table 3).
"""

from collections import defaultdict

from hw.formats.events import EventKind
from hw.units import cycles

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
        self._poll_cycles = max(1, self._costs.poll)
        # From a store's due cycle: one to the processor, and its delay (see `hw/memory.py`).
        self._visible = 1 + max(1, cycles(store_ns))
        self._marks, self._locate = marks, locate
        self._owner = {}
        #: Messages not known to be done; whether some of them have a time.
        self._open = sum(len(thread.pending) for thread in threads)
        self._timed = any(m.at_ns for thread in threads for m in thread.pending)
        self._free_at = 0
        self._polling_until = 0

    async def run(self):
        """Post and poll until every message of every thread is done."""
        node, queue, polls, line = self._node, self._queue, False, None
        # What a poll finds is news only when the poll returns.
        patience = self._poll_cycles - 1
        plain = self._timed or not queue.collapsed or not patience
        late = None if plain else queue.late_watch(patience)
        while self._open:
            for thread in self._threads:
                while self._batch_fits(thread):
                    self._post(thread)
            if polls:
                # One poll after the other: what came in meanwhile is seen by the next.
                if self._polling_until > node.now:
                    await node.until(self._polling_until)
                    line = None
                self._poll(line)
                polls, line = False, None
                continue
            later = self._next_at() if self._timed else 0
            if later:
                await node.first(queue.watch(), node.until(later - 1))
            elif late:
                line = await late.wait(self._polling_until if self._patient() else None)
            else:
                await queue.watch()
            # While the last poll is under way, none is begun for nothing.
            polls = self._polling_until <= node.now or queue.has_completion(line)
        if late:
            late.cancel()

    def _patient(self):
        """Whether nothing can happen upon a completion before a poll has found it: no thread waits
        for room in the ring, and it is not the last one, upon which others may go on.
        """
        threads = [thread for thread in self._threads if thread.pending]
        return bool(threads) and all(
            thread.outstanding + thread.batches[0][0] > thread.window for thread in threads
        )

    def _next_at(self):
        """The earliest time for which a thread waits; 0: none."""
        soon = self._node.now + 1
        return min((t.next_at for t in self._threads if t.next_at > soon), default=0)

    def _batch_fits(self, thread):
        """Whether the thread's next batch (up to the message that rings) has room in its window and
        in the ring.
        """
        if not thread.pending:
            return False
        batch, blocks = thread.batches[0]
        return (
            thread.outstanding + batch <= thread.window
            and blocks <= self._queue.free_blocks
            and thread.next_at <= self._node.now + 1
        )

    def _post(self, thread):
        """One batch: its WQEs, then fence, record and doorbell once."""
        queue, costs, stamp = self._queue, self._costs, self._marks.stamp
        number = thread.number & 0xFFFF
        time = max(self._node.now + 1, thread.time, self._free_at)
        batch, _ = thread.batches.popleft()
        for _ in range(batch):
            message = thread.pending.popleft()
            stamp(EventKind.ISSUE, message, time, None, number, queue.qp)
            raw, copied = self._build(message, queue.posted)
            time += costs.issue + copied
            posted = queue.post(raw, message, signaled=message.signaled, due=time)
            stamp(EventKind.WQE_WRITTEN, message, time, posted, number, queue.qp)
            self._owner[posted.index] = thread
        thread.outstanding += batch
        # The fence ends when the WQEs are visible in memory, if that takes longer than it costs.
        time += max(costs.fence_gpu, self._visible)
        queue.store_record(time)
        queue.ring(time)
        stamp(EventKind.RING, message, time, posted, number, queue.qp)
        thread.time = self._free_at = time + costs.store_issue

    def _build(self, message, index):
        """The WQE, and the cycles in which its payload is copied into it."""
        source, lkey, target, rkey, payload = self._locate(message)
        qpn, signaled, size = self._queue.qpn, message.signaled, message.size
        if payload is None:
            raw = wqe.write(
                index=index,
                qpn=qpn,
                raddr=target,
                rkey=rkey,
                laddr=source,
                lkey=lkey,
                length=size,
                signaled=signaled,
                segments=self._segments,
            )
            return raw, 0
        raw = wqe.write_inline(
            index=index, qpn=qpn, raddr=target, rkey=rkey, payload=payload, signaled=signaled
        )
        return raw, cycles(self._copy_ns * ((size - 1) // 16)) if size > 16 else 0

    def _poll(self, line=None):
        """Hand completions that are in memory, or in the entry's bytes, to their threads; this poll
        returns `poll` later.
        """
        queue, stamp = self._queue, self._marks.stamp
        covered = queue.completed(line=line)
        if not covered:
            return
        seen = self._polling_until = self._node.now + self._poll_cycles
        self._open -= len(covered)
        for posted in covered:
            thread = self._owner.pop(posted.index)
            thread.outstanding -= 1
            thread.time = max(thread.time, seen)
            number = thread.number & 0xFFFF
            stamp(EventKind.SEEN, posted.message, seen, posted, number, queue.qp)
