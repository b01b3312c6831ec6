"""What the software of one run finds at its nodes: handles, queues, registered memory, and a log of
what was posted. A path's crew (`sim/agents`) is built from it.
"""

from . import addresses, connect
from .agents.channel import PutRequest
from .agents.context import Landmarks
from .agents.queue import SendQueue
from .paths import PATHS

__all__ = ["Site"]


class Site:
    """The surroundings of one path of one scenario.

    Parameters
    ----------
    machine : Machine
    scenario : Scenario
    path : str
    """

    def __init__(self, machine, scenario, path):
        self._machine, self.scenario, self.plan = machine, scenario, scenario.plan
        self.path = PATHS[path]
        #: Of each group: whether its payload goes inside the WQE.
        self._inlined = [
            self.plan.inlined(self.plan.messages[group.messages[0]], path)
            for group in self.plan.groups
        ]
        #: Of each node.
        self.marks = {n: Landmarks(machine.node(n)) for n in range(scenario.nodes.count)}
        #: Send queue by (node, context index).
        self.queues = {}
        #: Producers of the run; each has `time` and `next_at`.
        self.threads = []
        #: Host threads that post for others; each has `time`.
        self.proxies = []
        #: Message number to (context index, its WQE).
        self.posted = {}
        self._regions = {
            (r.node, r.name): (
                addresses.DATA + r.offset,
                addresses.bus(r.memory, addresses.DATA + r.offset),
                r.memory,
                self.plan.key(r.node, r.name),
            )
            for r in self.plan.regions
        }
        self._bytes = {
            (r.node, r.name): memoryview(machine.memory(r.node, r.memory))
            for r in self.plan.regions
        }

    def node(self, number):
        """Handle of a node."""
        return self._machine.node(number)

    def spawn(self, agent, name):
        """Start an agent that serves others until the run ends."""
        self._machine.spawn(agent.run(), name=name, daemon=True)

    def queue(self, number, peer, qp):
        """The send queue of a connection, made when first needed."""
        context = self.plan.connection(number, peer, qp).context(number)
        if (number, context) not in self.queues:
            queues = self.scenario.queues
            self.queues[number, context] = SendQueue(
                self.node(number),
                processor=self.path.processor,
                memory=self.path.memory,
                qp=context,
                qpn=connect.qpn(number, context),
                depth=queues.sq_depth,
                cq_depth=self.path.cq_entries(self.scenario),
                start=queues.start_index,
                on_post=self._on_post,
            )
        return self.queues[number, context]

    def blocks(self, message):
        """Blocks of a message's WQE."""
        return self.plan.blocks(message.size, self.path.name)

    def locate(self, message):
        """(source address, lkey, target address, rkey, payload bytes if inlined or None)."""
        at, base, _, lkey = self._regions[message.node, message.region]
        _, target, _, rkey = self._regions[message.peer, message.remote_region]
        payload = None
        if self._inlined[message.group]:
            at += message.offset
            payload = bytes(self._bytes[message.node, message.region][at : at + message.size])
        return base + message.offset, lkey, target + message.remote_offset, rkey, payload

    def source_memory(self, message):
        """Memory that holds a message's payload."""
        return self._regions[message.node, message.region][2]

    def request(self, message):
        """What a GPU thread asks its proxy for."""
        source, *_ = self._place(message.node, message.region, message.offset)
        _, offset, memory, _ = self._place(
            message.peer, message.remote_region, message.remote_offset
        )
        # The remote offset is relative to the heap, which spans GPU memory here.
        assert memory == "gpu", "a proxied put targets GPU memory"
        return PutRequest(
            roffset=offset,
            laddr=source,
            size=message.size,
            pe=message.peer,
            qp=message.qp << 6 | message.peer,
        )

    def resolver(self, number):
        """Request to (lkey, target address, rkey), as the proxy of a node looks them up."""

        def resolve(request):
            target = addresses.bus("gpu", request.roffset)
            return self._key(number, request.laddr), target, self._key(request.pe, target)

        return resolve

    def busy(self, now):
        """Whether a thread spends time, or waits for the time of its next message."""
        return any(max(thread.time, thread.next_at) > now for thread in self.threads) or any(
            proxy.time > now for proxy in self.proxies
        )

    def _on_post(self, posted, qp):
        self.posted[posted.message.number] = (qp, posted)

    def _place(self, node, name, offset):
        """(bus address, offset in memory, memory, key) of a byte of a region."""
        at, base, memory, key = self._regions[node, name]
        return base + offset, at + offset, memory, key

    def _key(self, node, address):
        """Key of the region that holds a bus address; 0: none."""
        for region in self.plan.regions:
            if region.node == node:
                base, _, _, key = self._place(node, region.name, 0)
                if 0 <= address - base < region.size:
                    return key
        return 0
