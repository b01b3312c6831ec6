"""Host verbs: CPU threads that post to the NIC by themselves, through rdma-core's mlx5 provider.

A post is one call with a list of work requests (the workload's `batch`). It takes the send queue's
lock; builds each WQE in the host ring; stores the doorbell record; fences; pushes a single WQE
through the BlueFlame register or rings an 8-byte doorbell (`agents/doorbell.py`); and unlocks. A
thread posts while its window has room, then polls: a poll takes up to `cpu.poll_batch` CQEs, stores
the completion queue's record once, and hands each completion to the thread whose WQE it covers.
Ref: rdma-core `mlx5_post_send` and `mlx5_poll_cq`, the loop of perftest; `rdma_core` vectors.
"""

from hw.formats.events import EventKind
from hw.units import cycles

from .. import wqe
from .context import Costs, Thread
from .doorbell import HostRegister

__all__ = ["Crew", "HostQueue", "HostThread"]


class Crew:
    """The agents of this path: one for each thread and QP."""

    def __init__(self, site):
        self._site, self._queues = site, {}

    def agents(self, by_thread, window):
        """(name, agent) for the messages by (node, peer, QP, producer) of a phase."""
        site = self._site
        for (node, peer, qp, producer), messages in by_thread.items():
            thread = Thread(producer, messages, window, site.blocks)
            site.threads.append(thread)
            shared = self._shared(site.queue(node, peer, qp), node)
            yield (
                f"CPU of node {node}, producer {producer}, QP {shared.queue.qp}",
                HostThread(site.node(node), shared, thread),
            )

    def _shared(self, queue, node):
        if queue not in self._queues:
            scenario = self._site.scenario
            self._queues[queue] = HostQueue(
                queue,
                scenario.cpu,
                scenario.memory.host_store_ns,
                self._site.marks[node],
                self._site.locate,
            )
        return self._queues[queue]


class HostQueue:
    """A QP and its completion queue, as the threads of a process share them.

    Parameters
    ----------
    queue : SendQueue
        With its rings in host memory.
    cpu : CpuConfig
    store_ns : float
        Until a store of the CPU is visible to devices.
    marks : Landmarks
    locate : callable
        Message to (source address, lkey, target address, rkey, payload bytes if inlined or None).
    """

    def __init__(self, queue, cpu, store_ns, marks, locate):
        self.queue = queue
        self._register = HostRegister(queue, cpu)
        self._costs, self._poll_batch = Costs(cpu), cpu.poll_batch
        self._visible = max(1, cycles(store_ns))
        self._marks, self._locate = marks, locate
        self._owner = {}
        #: Cycle from which the lock is free.
        self._free_at = 0

    def post(self, thread, now):
        """One post of `thread`: the work requests up to the one that rings."""
        queue, costs, stamp = self.queue, self._costs, self._marks.stamp
        number = thread.number & 0xFFFF
        count, _ = thread.batches.popleft()
        # A store is visible one cycle after the store before it or its own time, and the delay.
        time = stored = max(now + 1, thread.time, self._free_at)
        for _ in range(count):
            message = thread.pending.popleft()
            stamp(EventKind.ISSUE, message, time, agent=number, qp=queue.qp)
            raw, inline = self._build(message)
            time += costs.wqe
            posted = queue.post(raw, message, signaled=message.signaled, due=time)
            stored = max(stored, time) + posted.next_index - posted.index
            stamp(EventKind.WQE_WRITTEN, message, time, posted, number, queue.qp)
            self._owner[posted.index] = thread
        thread.outstanding += count
        queue.store_record(time)
        # The fence ends when WQEs and record are visible, if that is later than the post's end.
        time = max(time + costs.post - costs.wqe, stored + 1 + self._visible)
        self._register.ring(raw, time, count=count, inline=inline)
        stamp(EventKind.RING, message, time, posted, number, queue.qp)
        thread.time = self._free_at = time + costs.store_issue

    def _build(self, message):
        """(the message's WQE, whether its payload stands in it)."""
        source, lkey, target, rkey, payload = self._locate(message)
        common = {
            "index": self.queue.posted,
            "qpn": self.queue.qpn,
            "raddr": target,
            "rkey": rkey,
            "signaled": message.signaled,
        }
        if payload is not None:
            return wqe.write_inline(payload=payload, **common), True
        return wqe.write(laddr=source, lkey=lkey, length=message.size, **common), False

    def poll(self, thread, now):
        """One poll of `thread`, which returns `poll` later if it finds anything."""
        covered = self.queue.completed(self._poll_batch)
        if not covered:
            return
        seen = thread.time = now + max(1, self._costs.poll)
        for posted in covered:
            owner = self._owner.pop(posted.index)
            owner.outstanding -= 1
            owner.time = max(owner.time, seen)
            self._marks.stamp(
                EventKind.SEEN,
                posted.message,
                seen,
                posted,
                owner.number & 0xFFFF,
                self.queue.qp,
            )


class HostThread:
    """One CPU thread that posts to a QP and polls for its completions.

    Parameters
    ----------
    node : Node
    shared : HostQueue
    thread : Thread
    """

    def __init__(self, node, shared, thread):
        self._node, self._shared, self._thread = node, shared, thread

    async def run(self):
        """Post and poll until every message is done."""
        node, shared, thread = self._node, self._shared, self._thread
        queue = shared.queue
        while thread.pending or thread.outstanding:
            # Nobody wakes between this look and the arming of the watch.
            fits, found = self._fits(), queue.has_completion()
            if (fits or found) and thread.time - 1 > node.now:
                await node.until(thread.time - 1)
            elif fits and thread.next_at <= node.now + 1:
                shared.post(thread, node.now)
            elif found:
                shared.poll(thread, node.now)
            elif fits:
                await node.first(queue.watch(), node.until(thread.next_at - 1))
            else:
                await queue.watch()
        await node.until(thread.time - 1)

    def _fits(self):
        """Whether the next post has room in the thread's window and in the ring."""
        thread = self._thread
        if not thread.pending:
            return False
        count, blocks = thread.batches[0]
        return (
            thread.outstanding + count <= thread.window and blocks <= self._shared.queue.free_blocks
        )
