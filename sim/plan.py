"""What a scenario asks for, message by message: who sends what from where to where on which QP, and
which registered regions hold it.

Pure arithmetic on the scenario, the same for the bench, the scoreboard and the report. Every
message of a workload has a slot of its own at both ends with at least 64 bytes between two slots,
so that each can be checked after the run.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hw.config import ConfigError

from .feasibility import abilities, depths, inside, reservations, threads
from .paths import PATHS
from .placement import Slots, regions_of
from .work import Operation, Region, Workload

if TYPE_CHECKING:
    from .scenario import Scenario

__all__ = [
    "Connection",
    "Group",
    "Message",
    "Phase",
    "Plan",
    "make_plan",
    "wqe_blocks",
    "wqe_octowords",
]

MAX_MESSAGES = 1 << 22
MAX_QPS = 1024


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    #: Number within the run; what the trace port stamps.
    number: int
    #: Index of its group.
    group: int
    node: int
    peer: int
    #: Thread of `node` that issues it.
    producer: int
    #: Index of the QP between the two nodes (not the context index: see `Plan.connection`). Where
    #: calls pick their QPs (`Path.qp_by`), the picked one counts.
    qp: int
    size: int
    #: First byte in its region, and the same at the peer.
    region: str
    offset: int
    remote_region: str
    remote_offset: int
    signaled: bool
    #: Ends a batch: its doorbell covers the WQEs before it.
    rings: bool
    #: Earliest issue.
    at_ns: float


@dataclass(frozen=True)
class Group:
    """Messages reported together: one size of one workload, or all operations of one size."""

    index: int
    #: "put" or "op".
    kind: str
    size: int
    #: Their workload; None for operations.
    workload: Workload | None
    #: Numbers of its messages.
    messages: tuple[int, ...]

    def inlined(self, path: str) -> bool:
        """Whether they are scalar values that go inside the WQE, whatever the limit of others."""
        return bool(self.workload and self.workload.scalar and PATHS[path].inlines_scalars)


@dataclass(frozen=True)
class Phase:
    """Messages that run together; the next phase begins when all of them are done."""

    #: Their workload; None for operations.
    workload: Workload | None
    #: Numbers of its messages, in the order in which each producer issues its own.
    messages: tuple[int, ...]


@dataclass(frozen=True)
class Connection:
    """One QP between nodes a < b: its index among theirs, and its context at each end.

    Of a single node, a = b: it issues at end a, by port 0, and is written at end b, by port 1.
    """

    a: int
    b: int
    qp: int
    a_context: int
    b_context: int

    def context(self, node: int) -> int:
        """Context index with which `node`, one of the two, issues."""
        return self.a_context if node == self.a else self.b_context

    @property
    def ends(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """(node, context, wire port) of both."""
        return (self.a, self.a_context, 0), (self.b, self.b_context, int(self.a == self.b))


@dataclass(frozen=True)
class Plan:
    """All messages, how they run and are reported, regions and connections."""

    messages: tuple[Message, ...]
    groups: tuple[Group, ...]
    #: One for each size of each workload, then one for all operations.
    phases: tuple[Phase, ...]
    regions: tuple[Region, ...]
    connections: tuple[Connection, ...]
    #: Most payload that goes inside a WQE, by path.
    inline_max: dict[str, int]
    #: Data segments of a WQE that points to its payload, by path.
    segments: dict[str, int]

    @property
    def qps_per_node(self) -> int:
        """Contexts that the busiest node needs."""
        return max(max(c.a_context, c.b_context) for c in self.connections) + 1

    def region(self, node: int, name: str) -> Region:
        """The region of that name."""
        return next(
            region for region in self.regions if region.node == node and region.name == name
        )

    def key(self, node: int, name: str) -> int:
        """Its lkey and rkey."""
        names = [region.name for region in self.regions if region.node == node]
        return (names.index(name) + 1) << 8

    def connection(self, node: int, peer: int, qp: int) -> Connection:
        """The QP `qp` between two nodes."""
        ends = (min(node, peer), max(node, peer))
        return next(c for c in self.connections if (c.a, c.b) == ends and c.qp == qp)

    def inlined(self, message: Message, path: str) -> bool:
        """Whether its payload travels inside the WQE."""
        return self.groups[message.group].inlined(path) or message.size <= self.inline_max[path]

    def blocks(self, size: int, path: str) -> int:
        """Blocks of the WQE of a message of `size` bytes."""
        return wqe_blocks(size, size <= self.inline_max[path], self.segments[path])


def wqe_octowords(size: int, inline: bool, segments: int = 1) -> int:
    """16-byte units of a WRITE's WQE: control, address, then pointers (not more than there are
    bytes) or the payload with its 4-byte head.
    """
    return 2 + ((size + 4 + 15) // 16 if inline else min(segments, size))


def wqe_blocks(size: int, inline: bool, segments: int = 1) -> int:
    """The same in blocks of 64 bytes."""
    return (wqe_octowords(size, inline, segments) + 3) // 4


def _workload(number: int, group: int, work: Workload, size: int, slots: Slots) -> list[Message]:
    local, stride = slots.take(work.node, work.source, work.offset, size, work.count)
    remote, remote_stride = slots.take(work.peer, work.target, work.remote_offset, size, work.count)
    messages = []
    for index in range(work.count):
        producer, turn = index % work.producers, index // work.producers
        final = index + work.producers >= work.count
        rings = final or (turn + 1) % work.batch == 0
        messages.append(
            Message(
                number + index,
                group,
                work.node,
                work.peer,
                producer,
                work.group(producer) % work.qps,
                size,
                work.source,
                local + index * stride,
                work.target,
                remote + index * remote_stride,
                signaled=final
                or (turn + 1) % work.signaled_every == 0
                or (rings and work.batch > 1),
                rings=rings,
                at_ns=work.at_ns,
            )
        )
    return messages


def _operations(
    first: int, first_group: int, operations: tuple[Operation, ...]
) -> tuple[list[Message], list[Group]]:
    sizes = list(dict.fromkeys(op.size for op in operations))
    last = {(op.node, op.producer): index for index, op in enumerate(operations)}
    messages = [
        Message(
            first + index,
            first_group + sizes.index(op.size),
            op.node,
            op.peer,
            op.producer,
            op.qp,
            op.size,
            op.region,
            op.offset,
            op.remote_region,
            op.remote_offset,
            op.signaled or last[op.node, op.producer] == index,
            True,
            op.at_ns,
        )
        for index, op in enumerate(operations)
    ]
    groups = [
        Group(
            first_group + index,
            "op",
            size,
            None,
            tuple(m.number for m in messages if m.size == size),
        )
        for index, size in enumerate(sizes)
    ]
    return messages, groups


def _connections(scenario: "Scenario") -> tuple[Connection, ...]:
    needed: dict[tuple[int, int], int] = {}
    for entry in (*scenario.workloads, *scenario.operations):
        ends = (min(entry.node, entry.peer), max(entry.node, entry.peer))
        qps = entry.qps if isinstance(entry, Workload) else entry.qp + 1
        needed[ends] = max(needed.get(ends, 0), qps)
    used = [0] * scenario.nodes.count
    connections = []
    for (a, b), qps in sorted(needed.items()):
        for qp in range(qps):
            a_context, used[a] = used[a], used[a] + 1
            b_context, used[b] = used[b], used[b] + 1
            connections.append(Connection(a, b, qp, a_context, b_context))
    if max(used) > MAX_QPS:
        key = "workload.0.qps" if scenario.workloads else "op.0.qp"
        raise ConfigError(key, max(used), f"allowed up to {MAX_QPS} QPs in all at one node")
    return tuple(connections)


def make_plan(scenario: "Scenario") -> Plan:
    """Lay out all messages of `scenario`; raises `ConfigError` with the full key."""
    total = len(scenario.operations) + sum(
        len(work.size) * work.count for work in scenario.workloads
    )
    if total > MAX_MESSAGES:
        raise ConfigError(
            "workload.0.count",
            scenario.workloads[0].count if scenario.workloads else 0,
            f"allowed up to {MAX_MESSAGES} messages in all; these are {total}",
        )
    inline_max = {path: PATHS[path].inline_max(scenario) for path in scenario.paths}
    segments = {path: PATHS[path].segments(scenario) for path in scenario.paths}
    depths(
        scenario,
        lambda size, path: wqe_blocks(size, size <= inline_max[path], segments[path]),
    )
    abilities(scenario)
    threads(scenario)
    reservations(scenario)
    connections = _connections(scenario)
    slots = Slots(scenario.operations)
    messages: list[Message] = []
    groups: list[Group] = []
    for work in scenario.workloads:
        for size in work.size:
            added = _workload(len(messages), len(groups), work, size, slots)
            groups.append(Group(len(groups), "put", size, work, tuple(m.number for m in added)))
            messages += added
    added, op_groups = _operations(len(messages), len(groups), scenario.operations)
    phases = [Phase(group.workload, group.messages) for group in groups]
    if added:
        phases.append(Phase(None, tuple(message.number for message in added)))
    regions = regions_of(scenario, slots.ends)
    inside(scenario, regions, slots.ends)
    return Plan(
        tuple(messages + added),
        tuple(groups + op_groups),
        tuple(phases),
        regions,
        connections,
        inline_max,
        segments,
    )
