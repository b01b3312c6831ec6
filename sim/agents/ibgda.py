"""NVSHMEM's GPU-initiated transport (IBGDA): GPU threads that share send queues post by themselves.

A call: pick a QP; reserve blocks; wait until they are free; write the WQEs, a CQE asked for with
the last one only; fence; publish in the order of the reservations; decide whether to ring or leave
it to a later call; to ring, take the lock, look whether somebody rang further already, fence,
record, fence, doorbell, unlock. After a window of calls, `quiet`: for each QP, one after the other,
wait until everything published is done, by the 16-bit counter of a collapsed completion queue. All
of it is in GPU memory, so all atomics are at GPU scope and nothing but the doorbell crosses PCIe.
Ref: NVSHMEM as read (flows 1.1 to 1.4, 1.7), `nvshmem_ibgda` vectors.
"""

from collections import defaultdict
from itertools import count

from hw.formats.events import EventKind
from hw.units import cycles

from .. import wqe
from .agenda import PARKED, Agenda
from .batching import rings
from .context import Costs
from .crowds import crowds
from .picks import Given, InTurn
from .shared_queue import SharedQueue
from .sharing import Indices
from .warps import LANES, gather

__all__ = ["Crew", "IbgdaWarps"]


class Crew:
    """The agents of this path: one for all threads that share queues, one with the next."""

    def __init__(self, site):
        self._site = site
        #: Of each queue, and of each GPU: they go on from one phase to the next.
        self._indices, self._calls = {}, defaultdict(lambda: count(1))

    def agents(self, by_thread, window):
        """(name, agent) for the messages by (node, peer, QP, producer) of a phase."""
        gpus = defaultdict(lambda: defaultdict(list))
        for (node, _, _, producer), messages in by_thread.items():
            # A producer is one thread, whatever QPs and peers its messages name.
            gpus[node][producer] += messages
        for node, threads in gpus.items():
            for messages in threads.values():
                # Messages are numbered in the order of the file, which is that of issue.
                messages.sort(key=lambda message: message.number)
            yield from self._of_gpu(node, threads, window)

    def _of_gpu(self, node, threads, window):
        site = self._site
        first = next(iter(threads.values()))[0]
        work = site.plan.groups[first.group].workload
        scope = work.scope if work else "thread"
        by_call = work and site.path.qp_by(work) == "call"
        picks = InTurn(self._calls[node], work.qps) if by_call else Given()
        for crowd in crowds(threads, picks.used):
            queues = {key: self._queue(node, *key) for key in crowd.queues}
            warps = gather(crowd.threads, window, picks.place, threaded=scope == "thread")
            agent = IbgdaWarps(site, node, queues, picks, warps, wide=scope != "thread")
            site.threads.append(agent)
            names = ", ".join(str(queue.qp) for queue, _ in queues.values())
            yield f"GPU of node {node}, QP {names}", agent

    def _queue(self, node, peer, qp):
        """A send queue, and its indices."""
        queue = self._site.queue(node, peer, qp)
        return queue, self._indices.setdefault((node, queue.qp), Indices(queue.posted))


class IbgdaWarps:
    """Warps of one GPU, and the QPs that they post to.

    Parameters
    ----------
    site : Site
    number : int
        The GPU's node.
    queues : dict of (peer, QP) to (SendQueue, Indices)
    picks : Given or InTurn
        How a call finds its QP.
    warps : list of Warp
    wide : bool
        Calls are at warp or block scope.
    """

    def __init__(self, site, number, queues, picks, warps, *, wide):
        gpu, memory = site.scenario.gpu, site.scenario.memory
        self._node, self._picks = site.node(number), picks
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
        # In the order in which `quiet` takes them: QP after QP, and of each peer after peer.
        walk = sorted(queues.items(), key=lambda entry: entry[0][::-1])
        self._queues = {
            key: SharedQueue(queue, indices, self.agenda, costs) for key, (queue, indices) in walk
        }
        #: Of each message that is not seen yet: the QP that was picked for it.
        self._picked = {}

    @property
    def time(self):
        """Cycle until which nothing is expected of it: that of its next step."""
        return self.agenda.next or 0

    #: Times of messages are steps like any other.
    next_at = 0

    async def run(self):
        """Let every warp put all it has."""
        agenda, node, queues = self.agenda, self._node, self._queues.values()
        for warp in self._warps:
            agenda.start(self._warp(warp), node.now + 1)
        while True:
            agenda.run(node.now + 1)
            if not agenda.alive:
                return
            polled = [shared for shared in queues if shared.polled]
            if agenda.next is not None and not polled:
                await node.until(agenda.next - 1)
                continue
            # With nobody who polls and nothing due it sleeps for ever here, which is a hang.
            waits = [shared.queue.watch() for shared in polled or queues]
            # Every queue is looked at, not only up to the first that has something.
            over = [shared.look(node.now) for shared in polled]
            if any(over):
                for wait in waits:
                    wait.cancel()
                continue
            if agenda.next is not None:
                waits.append(node.until(agenda.next - 1))
            await node.first(*waits)

    def _warp(self, warp):
        """Flow of one warp: windows of calls, each with a `quiet`."""
        agenda = self.agenda
        time = agenda.time
        used = self._picks.used(message for messages in warp.calls for message in messages)
        queues = [shared for key, shared in self._queues.items() if key in used]
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
            for shared in queues:
                time = yield from shared.quiet(time)
            for message in (message for messages in window for message in messages):
                self._stamp(EventKind.SEEN, message, time, self._picked.pop(message.number))
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
        agenda, costs = self.agenda, self._costs
        shared = self._queues[self._picks.pick(messages[0])]
        indices, depth, qp = shared.indices, shared.queue.depth, shared.queue.qp
        for message in messages:
            self._picked[message.number] = qp
            self._stamp(EventKind.ISSUE, message, time, qp)
        yield time + self._call + self._atomic
        time, lanes = agenda.time, len(messages)
        base = indices.reserve(lanes)
        end = base + lanes
        if end - depth > indices.start:
            time = yield from shared.poll(end - depth, time)
        time += costs.issue
        last = self._write(shared.queue, messages, base, time)
        if any(self._source(message) == "host" for message in messages):
            time += costs.fence_sys
        # The fence ends when all WQEs are visible in memory, if that takes longer than it costs.
        time += max(costs.fence_gpu, lanes - 1 + self._visible)
        yield from shared.publish(base, end, time + self._atomic)
        yield agenda.time + costs.load
        time = agenda.time
        if rings(base=base, count=lanes, reserved=indices.reserved, batch=self._batch):
            time = yield from self._ring(shared, end, last, time)
        return time

    def _write(self, queue, messages, base, time):
        """One WQE for each lane; returns the last."""
        for index, message in enumerate(messages, base):
            signaled = index == base + len(messages) - 1
            raw = self._build(queue.qpn, message, index, signaled)
            posted = queue.place(raw, message, index=index, signaled=signaled, due=time)
            self._stamp(EventKind.WQE_WRITTEN, message, time, queue.qp, posted)
        return posted

    def _build(self, qpn, message, index, signaled):
        source, lkey, target, rkey, payload = self._locate(message)
        head = {"index": index, "qpn": qpn, "raddr": target, "rkey": rkey}
        if payload is not None:
            return wqe.write_inline(payload=payload, signaled=signaled, **head)
        return wqe.write(laddr=source, lkey=lkey, length=message.size, signaled=signaled, **head)

    def _ring(self, shared, end, last, time):
        """Flow: rings up to `end` unless somebody rang beyond; `last` is the WQE before it."""
        costs, queue = self._costs, shared.queue
        yield from shared.lock.take(time + self._atomic)
        time = self.agenda.time + self._atomic
        if shared.indices.produce(end):
            time += costs.fence_gpu
            queue.store_record(time, end)
            time += max(costs.fence_gpu, self._visible)
            queue.ring(time, end)
            self._stamp(EventKind.RING, last.message, time, queue.qp, last)
            time += costs.store_issue
        shared.lock.release(time + self._visible)
        return time

    def _stamp(self, kind, message, time, qp, posted=None):
        self._marks.stamp(kind, message, time, posted, agent=message.producer & 0xFFFF, qp=qp)
