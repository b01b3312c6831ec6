"""The bench with a fault in it, chosen by the scenario's name: each must be found by judgement."""

import ctypes

import sim.bench
import sim.site
from sim import addresses
from sim.agents.queue import SendQueue

__all__ = ["main"]

_Bench = sim.bench.Bench


def _flip(memory, offset):
    # Views are read only, so that nothing but this does it.
    place = memory.ctypes.data + addresses.DATA + offset
    ctypes.c_uint8.from_address(place).value ^= 1


def payload(bench):
    """One bit of the last byte of message 3 changes after it has landed."""
    message = bench.plan.messages[3]
    region = bench.plan.region(message.peer, message.remote_region)
    place = region.offset + message.remote_offset + message.size - 1
    _flip(bench.machine.memory(message.peer, region.memory), place)


def between(bench):
    """The byte before message 3's changes."""
    message = bench.plan.messages[3]
    region = bench.plan.region(message.peer, message.remote_region)
    _flip(
        bench.machine.memory(message.peer, region.memory), region.offset + message.remote_offset - 1
    )


def source(bench):
    """A byte that was only to be read changes."""
    region = bench.plan.region(0, "send")
    _flip(bench.machine.memory(0, region.memory), region.offset + 70)


def behind(bench):
    """A byte behind the last region changes."""
    region = bench.plan.region(1, "recv")
    _flip(bench.machine.memory(1, region.memory), region.end)


_AFTER = {"payload": payload, "between": between, "source": source, "behind": behind}


class Bench(_Bench):
    async def run(self, job):
        status = await super().run(job)
        _AFTER.get(self.scenario.name, lambda bench: None)(self)
        return status


class Early(SendQueue):
    """Software that rings at once, before it has written what it rings for."""

    def ring(self, due):
        super().ring(self.node.now + 1)


def _choose():
    from sim.job import Job
    from sim.scenario import load

    if load(Job.load(".").scenario).name == "early":
        sim.site.SendQueue = Early


_choose()
sim.bench.Bench = Bench
main = sim.bench.main
