"""A GPU with send queues and no machine, for what `ibgda` does to them."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

from hw.formats.tlp import MarkKind
from sim import addresses
from sim.agents.ibgda import IbgdaWarps
from sim.agents.picks import Given, InTurn
from sim.agents.queue import SendQueue
from sim.agents.sharing import Indices
from sim.agents.warps import gather
from sim.plan import Message
from sim.sections import GpuConfig

LATENCY = 2500
QPN = 0xABCD
COSTS = {
    "issue_ns": 160, "inline_copy_ns_per_16b": 0, "fence_gpu_ns": 510, "store_issue_ns": 30,
    "poll_ns": 150, "fence_sys_ns": 576, "atomic_ns": 143, "load_ns": 141,
    "nvshmem_call_ns": 1800, "nvshmem_api_ns": 1000, "nvshmem_scope_ns": 3000,
}  # fmt: skip
_GPU = GpuConfig(**dict[str, Any](COSTS))


class _Memory:
    """The completion entries, whatever is asked for."""

    def __init__(self, counter, qps):
        # The entry of a QP is a line of its own.
        empty = b"\xff" * 60 + counter.to_bytes(2, "big") + b"\xff\xff"
        self._raw = {addresses.cq_offset(qp, 1) // 64: bytearray(empty) for qp in range(qps)}

    @property
    def data(self):
        return self

    def __getitem__(self, at):
        return self._raw[at // 64][at % 64]

    def complete(self, qp, index):
        """The block before `index` is done."""
        entry = self._raw[addresses.cq_offset(qp, 1) // 64]
        entry[60:64] = (index - 1 & 0xFFFF).to_bytes(2, "big") + b"\0\0"


class _Wait:
    def __init__(self, cycle):
        self.cycle = cycle

    def __await__(self):
        yield (self,)

    def cancel(self):
        """Nothing was armed."""


class Gpu:
    """A node whose NIC answers each doorbell of a QP some cycles later.

    Attributes: `stores` are (cycle, mark kind, data) in the order of the calls; `stamps` are
    (event kind, message, cycle); `picked` is the QP of each message, by the landmarks of its issue.
    """

    def __init__(self, start, latencies=(LATENCY,)):
        self.now, self.stores, self.stamps, self.picked = -1, [], [], {}
        self._memory, self._done = _Memory(start - 1 & 0xFFFF, len(latencies)), []
        self._latencies = latencies

    def store(self, port, address, data, due, mark):
        """Logs it; a doorbell is answered."""
        assert due > self.now
        kind = MarkKind(mark & 15)
        self.stores.append((due, kind, data))
        if kind is MarkKind.DOORBELL:
            qp = int.from_bytes(data[4:7], "big") - QPN
            self._done.append((due + self._latencies[qp], qp, int.from_bytes(data[1:3], "big")))

    def of(self, kind):
        """(cycle, data) of all stores of a kind."""
        return [(cycle, data) for cycle, found, data in self.stores if found is kind]

    def stamp(self, kind, message, due, posted=None, agent=0, qp=0):
        """Logs a landmark."""
        assert due > self.now
        self.stamps.append((kind, message.number, due))
        # All landmarks of a message are of one QP.
        assert self.picked.setdefault(message.number, qp) == qp

    def memory(self, name):
        """Only completion entries are ever read."""
        return self._memory

    def until(self, cycle):
        """Sleep until a cycle."""
        return _Wait(cycle)

    def watch(self, memory, address):
        """Sleep until a completion is written."""
        return _Wait(None)

    async def first(self, *waits):
        """Sleep until one of them has ended."""

        class _Any:
            def __await__(self):
                yield waits

        await _Any()

    def run(self, agent):
        """Drive an agent to its end."""
        coroutine = agent.run()
        while True:
            try:
                waits = coroutine.send(None)
            except StopIteration:
                return
            cycles = [wait.cycle for wait in waits if wait.cycle is not None]
            watched = len(cycles) < len(waits)
            completion = min(self._done, default=None)
            if watched and completion:
                cycles.append(completion[0])
            assert cycles, "it sleeps for ever"
            self.now = max(self.now, min(cycles))
            while self._done and min(self._done)[0] <= self.now:
                self._memory.complete(*min(self._done)[1:])
                self._done.remove(min(self._done))


def message(number, producer, at_ns=0.0, qp=0):
    """One 8-byte put."""
    return Message(number, 0, 0, 1, producer, qp, 8, "send", 0, "recv", 0, True, True, at_ns)


class Watched(Indices):
    """Indices that keep their reservations, as (base, count), and all values of `ready`."""

    def __init__(self, start):
        self.reservations, self.published = [], []
        super().__init__(start)

    def reserve(self, count):
        base = super().reserve(count)
        self.reservations.append((base, count))
        return base

    def __setattr__(self, name, value):
        if name == "ready":
            self.published.append(value)
        super().__setattr__(name, value)


def agent(
    gpu, indices, threads, *, window=1, batch=32, depth=1024, source="gpu", by_call=False, **costs
):
    """The agent of `threads` (producer to its messages) and of as many QPs as there are `indices`;
    each message names its QP, or each call takes the next one.
    """
    section = replace(_GPU, num_requests_in_batch=batch, **costs)
    site = SimpleNamespace(
        scenario=SimpleNamespace(gpu=section, memory=SimpleNamespace(gpu_store_ns=50)),
        node=lambda number: gpu,
        marks=[gpu],
        locate=lambda message: (0x1000 + message.number * 64, 0x100, 0x2000, 0x200, None),
        source_memory=lambda message: source,
    )
    queues = {}
    for qp, of_qp in enumerate(indices):
        queue = SendQueue(
            gpu, processor="gpu", memory="gpu", qp=qp, qpn=QPN + qp, depth=depth, cq_depth=1,
            start=of_qp.start,
        )  # fmt: skip
        queues[1, qp] = queue, of_qp
    picks = InTurn(count(1), len(indices)) if by_call else Given()
    warps = gather(threads, window, picks.place, threaded=True)
    return IbgdaWarps(site, 0, queues, picks, warps, wide=False)


def post(counts, *, start=0, **options):
    """Run producers with so many messages each on one queue; returns (gpu, indices)."""
    gpu, indices, threads, number = Gpu(start), Watched(start), {}, 0
    for producer, calls in enumerate(counts):
        threads[producer] = [message(number + call, producer) for call in range(calls)]
        number += calls
    gpu.run(agent(gpu, [indices], threads, **options))
    return gpu, indices
