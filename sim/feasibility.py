"""Whether software and hardware can do what a scenario asks for; else which key must change."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hw.config import ConfigError

from .paths import PATHS
from .placement import LINE
from .schema import show
from .work import Region, Workload

if TYPE_CHECKING:
    from .scenario import Scenario

__all__ = ["abilities", "depths", "inside", "reservations", "threads"]


def inside(
    scenario: "Scenario", regions: tuple[Region, ...], ends: dict[tuple[int, str], int]
) -> None:
    """Every operation and workload lies in a region that exists."""
    known = {(region.node, region.name): region for region in regions}
    _proxied_targets(scenario, known)
    for index, op in enumerate(scenario.operations):
        same = (op.node, op.region) == (op.peer, op.remote_region)
        if same and abs(op.offset - op.remote_offset) < op.size:
            raise ConfigError(
                f"op.{index}.remote_offset",
                op.remote_offset,
                f"allowed outside of what is read, {op.offset} to {op.offset + op.size - 1}",
            )
        key = f"op.{index}"
        _fits(known, f"{key}.", op.node, op.region, op.offset, op.offset + op.size)
        end = op.remote_offset + op.size
        _fits(known, f"{key}.remote_", op.peer, op.remote_region, op.remote_offset, end)
    for index, work in enumerate(scenario.workloads):
        key = f"workload.{index}"
        end = ends[work.node, work.source] - LINE
        _fits(known, f"{key}.", work.node, work.source, work.offset, end)
        end = ends[work.peer, work.target] - LINE
        _fits(known, f"{key}.remote_", work.peer, work.target, work.remote_offset, end)


def _proxied_targets(scenario: "Scenario", known: dict[tuple[int, str], Region]) -> None:
    """What a proxy writes is GPU memory."""
    proxied = [path for path in scenario.paths if PATHS[path].proxied]
    if not proxied:
        return
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


def _fits(
    known: dict[tuple[int, str], Region], key: str, node: int, name: str, offset: int, end: int
) -> None:
    """A node has a region of that name, and it holds all bytes below `end`."""
    names = [region for owner, region in known if owner == node]
    if name not in names:
        raise ConfigError(
            f"{key}region",
            name,
            f"no such region at node {node}; allowed " + ", ".join(map(show, names)),
        )
    if end > known[node, name].size:
        raise ConfigError(
            f"{key}offset",
            offset,
            f"allowed within region {show(name)} of node {node}, "
            f"{known[node, name].size} bytes; this ends at {end}",
        )


def abilities(scenario: "Scenario") -> None:
    """Every path can do what the work asks for."""
    for index, work in enumerate(scenario.workloads):
        for path in map(PATHS.__getitem__, scenario.paths):
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
            qp_by = path.qp_by(work)
            if qp_by == "call" and not path.picks:
                raise ConfigError(
                    f"workload.{index}.qp_by",
                    qp_by,
                    f'allowed "producer", "warp" or "cta" on path {path.name}',
                )
            if path.reserves and work.full_warps and work.qps > 1 and qp_by == "producer":
                raise ConfigError(
                    f"workload.{index}.qp_by",
                    qp_by,
                    f'allowed "call", "warp" or "cta" on path {path.name}, where 32 threads act as '
                    "one",
                )
    proxied = next((name for name in scenario.paths if PATHS[name].proxied), None)
    proxy, post_ns = scenario.proxy, scenario.cpu.post_ns
    if proxied and proxy.service_ns < post_ns:
        raise ConfigError(
            f"proxy.service_{'warm' if proxy.warm else 'cold'}_ns",
            proxy.service_ns,
            f"allowed at least {post_ns:g} on path {proxied}: cpu.post_ns is part of it",
        )
    reserving = next((name for name in scenario.paths if PATHS[name].reserves), None)
    if reserving and scenario.queues.cq != "collapsed":
        raise ConfigError("nic.cq", scenario.queues.cq, f'allowed "collapsed" on path {reserving}')


def threads(scenario: "Scenario") -> None:
    """Every producer is one thread: where a path's threads post to one QP each, so does it."""
    bound = next((name for name in scenario.paths if not PATHS[name].roams), None)
    if bound is None:
        return
    first: dict[tuple[int, int], int] = {}
    for index, op in enumerate(scenario.operations):
        other = first.setdefault((op.node, op.producer), index)
        for key in ("peer", "qp"):
            value, allowed = getattr(op, key), getattr(scenario.operations[other], key)
            if value != allowed:
                raise ConfigError(
                    f"op.{index}.{key}",
                    value,
                    f"allowed {allowed}, that of op.{other}, or another producer: one of path "
                    f"{bound} posts to one QP",
                )


def reservations(scenario: "Scenario") -> None:
    """Nobody who waits for free blocks holds back the doorbell of what fills them."""
    if not any(PATHS[path].reserves for path in scenario.paths):
        return
    producers = {(op.node, op.producer) for op in scenario.operations}
    warps = any(work.full_warps for work in scenario.workloads) or len(producers) >= 32
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


def depths(scenario: "Scenario", blocks_of: Callable[[int, str], int]) -> None:
    """No WQE is larger than its queue, no batch and no run of unsignalled WQEs fills a send queue
    for ever, and no ring of CQEs is smaller than its send queue.
    """
    depth, cq_depth = scenario.queues.sq_depth, scenario.queues.cq_depth
    rings = any(PATHS[path].cq_entries(scenario) > 1 for path in scenario.paths)
    if rings and cq_depth < depth:
        raise ConfigError(
            "nic.cq_depth", cq_depth, f"allowed at least {depth}, sq_depth: each WQE may need a CQE"
        )
    for index, work in enumerate(scenario.workloads):
        for path in map(PATHS.__getitem__, scenario.paths):
            blocks = max(blocks_of(size, path.name) for size in work.size)
            _runs(f"workload.{index}", work, blocks, depth, path.own_signals)
    sizes = [size for work in scenario.workloads for size in work.size]
    sizes += [op.size for op in scenario.operations]
    most = max((blocks_of(size, path) for path in scenario.paths for size in sizes), default=1)
    for key, bound in (("sq_depth", depth), ("window_blocks", scenario.nic.window_blocks)):
        if most > bound:
            raise ConfigError(
                f"nic.{key}", bound, f"allowed at least {most}, the blocks of the largest WQE"
            )


def _runs(key: str, work: Workload, blocks: int, depth: int, own_signals: bool) -> None:
    """Batches and runs of unsignalled WQEs leave room in a send queue."""
    for name in ("batch", "signaled_every"):
        if getattr(work, name) * blocks > depth:
            raise ConfigError(
                f"{key}.{name}",
                getattr(work, name),
                f"allowed up to {depth // blocks}: sq_depth is {depth}, WQEs take {blocks}",
            )
    # Unsignalled WQEs of all producers of a QP must leave room for one that is signalled.
    sharing = -(-work.producers // work.qps)
    most = (depth // blocks - 1) // sharing + 1
    if work.batch == 1 and not own_signals and work.signaled_every > most:
        raise ConfigError(
            f"{key}.signaled_every",
            work.signaled_every,
            f"allowed up to {most}: {sharing} producers share a queue of {depth} blocks, "
            f"WQEs take {blocks}",
        )
