"""What a scenario asks for, message by message: who sends what from where to where on which QP, and
which registered regions hold it.

Pure arithmetic on the scenario, the same for the bench, the scoreboard and the report. Every
message of a workload has a slot of its own at both ends with at least 64 bytes between two slots,
so that each can be checked after the run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hw.config import ConfigError

from .paths import PATHS
from .schema import show
from .work import DATA_BYTES, HOST_SUFFIX, Operation, Region, Workload

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
_PAGE = 4096
_LINE = 64


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
    #: Index of the QP between the two nodes (not the context index: see `Plan.connection`).
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


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class _Slots:
    """Hands out slots of regions: behind explicit operations, one behind the other."""

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        self.ends: dict[tuple[int, str], int] = {}
        for op in operations:
            self._extend(op.node, op.region, op.offset + op.size)
            self._extend(op.peer, op.remote_region, op.remote_offset + op.size)

    def _extend(self, node: int, region: str, end: int) -> None:
        key = node, region
        self.ends[key] = max(self.ends.get(key, 0), _up(end, _LINE) + _LINE)

    def take(self, node: int, region: str, offset: int, size: int, count: int) -> tuple[int, int]:
        """(first byte, stride) of `count` slots that start `offset` behind what is taken."""
        first = self.ends.get((node, region), 0) + offset
        stride = _up(first % _LINE + size, _LINE) + _LINE
        self._extend(node, region, first + (count - 1) * stride + size)
        return first, stride


def _workload(number: int, group: int, work: Workload, size: int, slots: _Slots) -> list[Message]:
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


def _regions(scenario: "Scenario", ends: dict[tuple[int, str], int]) -> tuple[Region, ...]:
    """The given regions, checked against each other; or `send` and `recv` of each node, and the
    same in host memory where they are used.
    """
    if scenario.regions:
        for index, work in enumerate(scenario.workloads):
            for key in ("memory", "remote_memory"):
                if memory := getattr(work, key):
                    raise ConfigError(
                        f"workload.{index}.{key}",
                        memory,
                        "allowed where there is no [[region]]; a region says its own memory",
                    )
        for index, region in enumerate(scenario.regions):
            for other in scenario.regions[:index]:
                if region.node == other.node and region.name == other.name:
                    raise ConfigError(
                        f"region.{index}.name",
                        region.name,
                        "allowed names that the node does not have yet",
                    )
                if (
                    (region.node, region.memory) == (other.node, other.memory)
                    and region.offset < other.end
                    and other.offset < region.end
                ):
                    raise ConfigError(
                        f"region.{index}.offset",
                        region.offset,
                        f"allowed outside of {show(other.name)}: {other.offset} to {other.end - 1}",
                    )
        return scenario.regions
    need = _up(max(ends.values()), _PAGE)
    size = scenario.sizes.buffer_bytes or need
    if need > size:
        raise ConfigError(
            "memory.buffer_bytes", size, f"allowed at least {need}, or 0, for this work"
        )
    recv = _up(size, _PAGE) + _PAGE
    if recv + size > DATA_BYTES:
        raise ConfigError(
            "workload.0.count",
            scenario.workloads[0].count if scenario.workloads else 0,
            f"allowed what fits in {DATA_BYTES // 2} bytes of a region; this needs {size}",
        )
    used = {name for _, name in ends}
    return tuple(
        Region(name=name + suffix, node=node, memory=memory, offset=offset, size=size)
        for node in range(scenario.nodes.count)
        for memory, suffix in (("gpu", ""), ("host", HOST_SUFFIX))
        for name, offset in (("send", 0), ("recv", recv))
        if memory == "gpu" or name + suffix in used
    )


def _inside(
    scenario: "Scenario", regions: tuple[Region, ...], ends: dict[tuple[int, str], int]
) -> None:
    """Every operation and workload lies in a region that exists."""
    known = {(region.node, region.name): region for region in regions}

    def check(
        key: str, entry: Workload | Operation, node: int, region: str, offset: int, end: int
    ) -> None:
        remote = "remote_" if node == entry.peer else ""
        names = [name for owner, name in known if owner == node]
        if region not in names:
            raise ConfigError(
                f"{key}.{remote}region",
                region,
                f"no such region at node {node}; allowed " + ", ".join(map(show, names)),
            )
        if end > known[node, region].size:
            raise ConfigError(
                f"{key}.{remote}offset",
                offset,
                f"allowed within region {show(region)} of node {node}, "
                f"{known[node, region].size} bytes; this ends at {end}",
            )

    proxied = [path for path in scenario.paths if PATHS[path].proxied]
    if proxied:
        entries = [(f"op.{i}", op) for i, op in enumerate(scenario.operations)]
        entries += [(f"workload.{i}", work) for i, work in enumerate(scenario.workloads)]
        for key, entry in entries:
            name = entry.target if isinstance(entry, Workload) else entry.remote_region
            target = known.get((entry.peer, name))
            if target and target.memory != "gpu":
                given = "remote_region" if name == entry.remote_region else "remote_memory"
                raise ConfigError(
                    f"{key}.{given}",
                    getattr(entry, given),
                    f"allowed GPU memory on path {proxied[0]}",
                )

    for index, op in enumerate(scenario.operations):
        same = (op.node, op.region) == (op.peer, op.remote_region)
        if same and abs(op.offset - op.remote_offset) < op.size:
            raise ConfigError(
                f"op.{index}.remote_offset",
                op.remote_offset,
                f"allowed outside of what is read, {op.offset} to {op.offset + op.size - 1}",
            )
        check(f"op.{index}", op, op.node, op.region, op.offset, op.offset + op.size)
        check(
            f"op.{index}",
            op,
            op.peer,
            op.remote_region,
            op.remote_offset,
            op.remote_offset + op.size,
        )
    for index, work in enumerate(scenario.workloads):
        check(
            f"workload.{index}",
            work,
            work.node,
            work.source,
            work.offset,
            ends[work.node, work.source] - _LINE,
        )
        check(
            f"workload.{index}",
            work,
            work.peer,
            work.target,
            work.remote_offset,
            ends[work.peer, work.target] - _LINE,
        )


def _abilities(scenario: "Scenario") -> None:
    """Every path can do what the work asks for."""
    for index, work in enumerate(scenario.workloads):
        for path in map(PATHS.get, scenario.paths):
            assert path
            if work.scope not in path.scopes:
                raise ConfigError(
                    f"workload.{index}.scope",
                    work.scope,
                    f"allowed {', '.join(map(show, path.scopes))} on path {path.name}",
                )
            if work.scalar and not path.scalars:
                raise ConfigError(
                    f"workload.{index}.scalar", True, f"allowed false on path {path.name}"
                )
            inlined = path.inline_max(scenario)
            if work.scalar and path.inlines and max(work.size) > inlined:
                raise ConfigError(
                    "gpu.inline_max_bytes",
                    inlined,
                    f"allowed at least {max(work.size)}, as path {path.name} inlines scalars",
                )
            if path.reserves and work.full_warps and work.qps > 1 and work.qp_by == "producer":
                raise ConfigError(
                    f"workload.{index}.qp_by",
                    work.qp_by,
                    f'allowed "warp" or "cta" on path {path.name}, where 32 threads act as one',
                )
    reserving = next((name for name in scenario.paths if PATHS[name].reserves), None)
    if reserving and scenario.queues.cq != "collapsed":
        raise ConfigError("nic.cq", scenario.queues.cq, f'allowed "collapsed" on path {reserving}')


def _reservations(scenario: "Scenario") -> None:
    """Nobody who waits for free blocks holds back the doorbell of what fills them."""
    if not any(PATHS[path].reserves for path in scenario.paths):
        return
    threads = {(op.node, op.peer, op.producer) for op in scenario.operations}
    warps = any(work.full_warps for work in scenario.workloads) or len(threads) >= 32
    most, depth = 32 if warps else 1, scenario.queues.sq_depth
    if most > depth:
        raise ConfigError(
            "nic.sq_depth", depth, f"allowed at least {most}, what a warp reserves at once"
        )
    # Rung is at least what was published up to the last multiple of a batch; whoever reserves
    # waits for blocks that lie `depth` below the end of his own.
    batch = scenario.gpu.num_requests_in_batch
    if most + batch - 1 > depth:
        raise ConfigError(
            "gpu.num_requests_in_batch",
            batch,
            f"allowed up to {depth - most + 1}: sq_depth is {depth}, up to {most} are reserved at "
            "once, and a full queue must have been rung",
        )


def _depths(scenario: "Scenario", blocks_of: Callable[[int, str], int]) -> None:
    """No batch and no run of unsignalled WQEs fills a send queue for ever; no request ring is
    smaller than a request.
    """
    depth, cq_depth = scenario.queues.sq_depth, scenario.queues.cq_depth
    rings = any(PATHS[path].cq_entries(scenario) > 1 for path in scenario.paths)
    if rings and cq_depth < depth:
        raise ConfigError(
            "nic.cq_depth", cq_depth, f"allowed at least {depth}, sq_depth: each WQE may need a CQE"
        )
    for index, work in enumerate(scenario.workloads):
        for path in scenario.paths:
            blocks = max(blocks_of(size, path) for size in work.size)
            for key in ("batch", "signaled_every"):
                if getattr(work, key) * blocks > depth:
                    raise ConfigError(
                        f"workload.{index}.{key}",
                        getattr(work, key),
                        f"allowed up to {depth // blocks}: sq_depth is {depth}, WQEs take {blocks}",
                    )
            # Unsignalled WQEs of all producers of a QP must leave room for one that is signalled.
            sharing = -(-work.producers // work.qps)
            most = (depth // blocks - 1) // sharing + 1
            loose = work.batch == 1 and not PATHS[path].own_signals
            if loose and work.signaled_every > most:
                raise ConfigError(
                    f"workload.{index}.signaled_every",
                    work.signaled_every,
                    f"allowed up to {most}: {sharing} producers share a queue of {depth} blocks, "
                    f"WQEs take {blocks}",
                )
    most = max(
        (
            blocks_of(size, path)
            for path in scenario.paths
            for size in (
                *(s for w in scenario.workloads for s in w.size),
                *(op.size for op in scenario.operations),
            )
        ),
        default=1,
    )
    if most > depth:
        raise ConfigError(
            "nic.sq_depth", depth, f"allowed at least {most}, the blocks of the largest WQE"
        )
    if most > scenario.nic.window_blocks:
        raise ConfigError(
            "nic.window_blocks",
            scenario.nic.window_blocks,
            f"allowed at least {most}, the blocks of the largest WQE",
        )


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
    _depths(
        scenario,
        lambda size, path: wqe_blocks(size, size <= inline_max[path], segments[path]),
    )
    _abilities(scenario)
    _reservations(scenario)
    connections = _connections(scenario)
    slots = _Slots(scenario.operations)
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
    regions = _regions(scenario, slots.ends)
    _inside(scenario, regions, slots.ends)
    return Plan(
        tuple(messages + added),
        tuple(groups + op_groups),
        tuple(phases),
        regions,
        connections,
        inline_max,
        segments,
    )
