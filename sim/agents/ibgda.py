"""NVSHMEM's GPU-initiated transport (IBGDA): GPU threads that share send queues post by themselves.

A call: reserve blocks; wait until they are free; write the WQEs, a CQE asked for with the last one
only; fence; publish in the order of the reservations; decide whether to ring or leave it to a later
call; to ring, take the lock, look whether somebody rang further already, fence, record, fence,
doorbell, unlock. After a window of calls, `quiet`: wait until everything published is done, by the
16-bit counter of a collapsed completion queue. All of it is in GPU memory, so all atomics are at
GPU scope and nothing but the doorbell crosses PCIe.
Ref: NVSHMEM as read (flows 1.1 to 1.4, 1.7), `nvshmem_ibgda` vectors.
"""

from collections import defaultdict

from hw.formats.events import EventKind
from hw.units import cycles

from .. import wqe
from .agenda import PARKED, Agenda
from .batching import rings
from .context import Costs
from .polling import poll_collapsed
from .sharing import Indices, Lock, spin
from .warps import LANES, gather

__all__ = ["Crew", "IbgdaQueue"]


class Crew:
    """The agents of this path: one for each QP that is posted to."""

    def __init__(self, site):
        self._site = site
        #: Of each queue; they go on from one phase to the next.
        self._indices = {}

    def agents(self, by_thread, window):
        """(name, agent) for the messages by (node, peer, QP, producer) of a phase."""
        site, queues = self._site, defaultdict(dict)
        for (node, peer, qp, producer), messages in by_thread.items():
            queues[node, peer, qp][producer] = messages
        for (node, peer, qp), threads in queues.items():
            first = next(iter(threads.values()))[0]
            work = site.plan.groups[first.group].workload
            scope = work.scope if work else "thread"
            warps = gather(threads, window, threaded=scope == "thread")
            queue = site.queue(node, peer, qp)
            indices = self._indices.setdefault((node, queue.qp), Indices(queue.posted))
            agent = IbgdaQueue(site, node, queue, indices, warps, wide=scope != "thread")
            site.threads.append(agent)
            yield f"GPU of node {node}, QP {queue.qp}", agent


class IbgdaQueue:
    """One QP of a GPU, and the warps that post to it.

    Parameters
    ----------
    site : Site
    number : int
        The GPU's node.
    queue : SendQueue
        With its rings in GPU memory, and a collapsed completion queue.
    indices : Indices
    warps : list of Warp
    wide : bool
        Calls are at warp or block scope.
    """

    def __init__(self, site, number, queue, indices, warps, *, wide):
        gpu, memory = site.scenario.gpu, site.scenario.memory
        self._node, self._queue, self._indices = site.node(number), queue, indices
        self._warps, self._marks = warps, site.marks[number]
        self._locate, self._source = site.locate, site.source_memory
        self._costs, self._batch = Costs(gpu), gpu.num_requests_in_batch
        costs = self._costs
        self._atomic = max(1, costs.atomic)
        self._call = costs.nvshmem_call + costs.nvshmem_api + (costs.nvshmem_scope if wide else 0)
        # From a store's due cycle: one to the processor, and its delay (see `hw/memory.py`).
        self._visible = 1 + max(1, cycles(memory.gpu_store_ns))
        #: Its flows.
        self.agenda = Agenda()
        self._lock = Lock(self.agenda, self._atomic)
        #: First block to (cycle of its first try, flow) of those whose turn it is not yet.
        self._turns = {}
        #: (index waited for, flow) of those that spin on the completion queue.
        self._polling = []

    @property
    def time(self):
        """Cycle until which nothing is expected of it: that of its next step."""
        return self.agenda.next or 0

    #: Times of messages are steps like any other.
    next_at = 0

    async def run(self):
        """Let every warp put all it has."""
        agenda, node, queue = self.agenda, self._node, self._queue
        for warp in self._warps:
            agenda.start(self._warp(warp), node.now + 1)
        while True:
            agenda.run(node.now + 1)
            if not agenda.alive:
                return
            if agenda.next is not None and not self._polling:
                await node.until(agenda.next - 1)
                continue
            # With nobody who polls and nothing due it sleeps for ever here, which is a hang.
            arrived = queue.watch()
            if self._look():
                arrived.cancel()
            elif agenda.next is None:
                await arrived
            else:
                await node.first(arrived, node.until(agenda.next - 1))

    def _warp(self, warp):
        """Flow of one warp: windows of calls, each with a `quiet`."""
        agenda = self.agenda
        time = agenda.time
        while warp.calls:
            window = [warp.calls[call] for call in range(min(warp.window, len(warp.calls)))]
            for messages in window:
                time = max(time, warp.next_at)
                warp.calls.popleft()
                yield time
                if len(messages) in (1, LANES):
                    time = yield from self.put(messages, time)
                else:
                    time = yield from self._apart(messages, time)
            time = yield from self._quiet(time)
            for message in (message for messages in window for message in messages):
                self._stamp(EventKind.SEEN, message, time)
        # What is stamped in the future is not yet: the agent ends with its last landmark.
        yield time

    def _apart(self, messages, time):
        """Flow: lanes of a warp of which some have nothing to put, each for itself; ends with the
        last of them.
        """
        agenda, ends = self.agenda, []
        warp = agenda.current

        def alone(message):
            ends.append((yield from self.put([message], time)))
            if len(ends) == len(messages):
                agenda.wake(warp, max(agenda.time, *ends))

        for message in messages:
            agenda.start(alone(message), time)
        yield PARKED
        return max(ends)

    def put(self, messages, time):
        """Flow: one call of lanes that act together, a message each; returns its last cycle."""
        agenda, costs, indices, queue = self.agenda, self._costs, self._indices, self._queue
        for message in messages:
            self._stamp(EventKind.ISSUE, message, time)
        yield time + self._call + self._atomic
        time, count = agenda.time, len(messages)
        base = indices.reserve(count)
        end = base + count
        if end - queue.depth > indices.start:
            time = yield from self._poll(end - queue.depth, time)
        time += costs.issue
        last = self._write(messages, base, time)
        if any(self._source(message) == "host" for message in messages):
            time += costs.fence_sys
        # The fence ends when all WQEs are visible in memory, if that takes longer than it costs.
        time += max(costs.fence_gpu, count - 1 + self._visible)
        yield from self._publish(base, end, time + self._atomic)
        yield agenda.time + costs.load
        time = agenda.time
        if rings(base=base, count=count, reserved=indices.reserved, batch=self._batch):
            time = yield from self._ring(end, last, time)
        return time

    def _write(self, messages, base, time):
        """One WQE for each lane; returns the last."""
        queue = self._queue
        for index, message in enumerate(messages, base):
            signaled = index == base + len(messages) - 1
            raw = self._build(message, index, signaled)
            posted = queue.place(raw, message, index=index, signaled=signaled, due=time)
            self._stamp(EventKind.WQE_WRITTEN, message, time, posted)
        return posted

    def _build(self, message, index, signaled):
        source, lkey, target, rkey, payload = self._locate(message)
        head = {"index": index, "qpn": self._queue.qpn, "raddr": target, "rkey": rkey}
        if payload is not None:
            return wqe.write_inline(payload=payload, signaled=signaled, **head)
        return wqe.write(laddr=source, lkey=lkey, length=message.size, signaled=signaled, **head)

    def _publish(self, base, end, first):
        """Flow: compare and swap until everything before `base` is published; ends when it is this
        call's turn, which it hands on.
        """
        agenda, indices = self.agenda, self._indices
        if indices.ready == base:
            yield first
        else:
            self._turns[base] = first, agenda.current
            yield PARKED
        indices.ready = self._queue.posted = end
        if end in self._turns:
            waiting, flow = self._turns.pop(end)
            agenda.wake(flow, spin(waiting, self._atomic, agenda.time + 1))

    def _ring(self, end, last, time):
        """Flow: rings up to `end` unless somebody rang beyond; `last` is the WQE before it."""
        costs, queue, indices = self._costs, self._queue, self._indices
        yield from self._lock.take(time + self._atomic)
        time = self.agenda.time + self._atomic
        if indices.produce(end):
            time += costs.fence_gpu
            queue.store_record(time, end)
            time += max(costs.fence_gpu, self._visible)
            queue.ring(time, end)
            self._stamp(EventKind.RING, last.message, time, last)
            time += costs.store_issue
        self._lock.release(time + self._visible)
        return time

    def _quiet(self, time):
        """Flow: waits until all that is published now is done; returns when that is known."""
        yield time + self._costs.load
        return (yield from self._poll(self._indices.ready, self.agenda.time))

    def _poll(self, wait, time):
        """Flow: waits until all blocks below `wait` are done; returns when that is known."""
        agenda, costs, indices = self.agenda, self._costs, self._indices
        yield time + costs.load
        if indices.consumed >= wait:
            return agenda.time
        # Has it been rung? And what does the completion queue say?
        yield agenda.time + costs.load
        if self._done(wait):
            time = agenda.time + costs.load
        else:
            self._polling.append((wait, agenda.current))
            yield PARKED
            time = agenda.time
        # Tell the others, and look whether it was an error.
        return time + self._atomic + costs.load

    def _look(self):
        """Wake those whose wait is over; whether there are any."""
        over = [(wait, flow) for wait, flow in self._polling if self._done(wait)]
        for entry in over:
            self._polling.remove(entry)
            self.agenda.wake(entry[1], self._node.now + max(1, self._costs.poll))
        return bool(over)

    def _done(self, wait):
        """Whether the completion queue says that all blocks below `wait` are done."""
        indices, queue = self._indices, self._queue
        opcode, _, counter = queue.entry()
        found = poll_collapsed(
            wait=wait,
            consumer=indices.consumed,
            producer=indices.produced,
            counter=counter,
            opcode=opcode,
            entries=queue.depth,
        )
        if found:
            indices.consumed = queue.done = found.consumer
        return found is not None

    def _stamp(self, kind, message, time, posted=None):
        self._marks.stamp(
            kind, message, time, posted, agent=message.producer & 0xFFFF, qp=self._queue.qp
        )
