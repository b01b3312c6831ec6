"""What holds a group's rate down, from closed forms: the ceilings of everything that its messages
pass.

The limiter is the ceiling that the measured rate comes closest to, if it reaches `NEAR` of it; else
`latency`: too few messages are under way to fill anything.
"""

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING

from .agents.doorbell import pushes
from .closed_form import completion_tlps, packets, read_tlps, write_tlps
from .paths import PATHS
from .plan import Group, wqe_octowords

if TYPE_CHECKING:
    from .scenario import Scenario

__all__ = ["NEAR", "ceilings", "limiter", "wire_bytes"]

#: Share of a ceiling from which it counts as reached.
NEAR = 0.85
_REQUEST_BYTES = 32
_WORD = 8
_LINE = 64


def wire_bytes(s: "Scenario", size: int) -> int:
    """Bytes that the packets of one message take on the wire."""
    return sum(charged for _, charged in packets(s.wire, size, s.nic.mtu_bytes))


def _inline(s: "Scenario", path: str, group: Group) -> bool:
    """Whether the payload goes inside the WQE."""
    return group.inlined(path) or group.size <= s.plan.inline_max[path]


def _pcie_bytes(s: "Scenario", path: str, group: Group) -> dict[str, tuple[float, float]]:
    """Bytes per message on each device's link (up to the switch, down from it), at the node that
    issues.
    """
    links = _posting_bytes(s, path, group)
    first = s.plan.messages[group.messages[0]]
    if first.node == first.peer:
        # What is sent comes back to be written.
        written = sum(write_tlps(s.pcie, 0, group.size))
        memory = s.plan.region(first.peer, first.remote_region).memory
        for device, (up, down) in (("nic", (written, 0)), (memory, (0, written))):
            so_far = links.get(device, (0.0, 0.0))
            links[device] = (so_far[0] + up, so_far[1] + down)
    return links


def _posting_bytes(s: "Scenario", path: str, group: Group) -> dict[str, tuple[float, float]]:
    """The same of queues and of payload that is read."""
    size, pcie = group.size, s.pcie
    inline = _inline(s, path, group)
    batch = _per_ring(s, path, group)
    wqe = _LINE * s.plan.blocks(size, path)
    cqe = (pcie.mwr_overhead_bytes + _LINE) / _lanes(path, group)
    reads = 0 if inline else sum(read_tlps(pcie, 0, size))
    payload = 0 if inline else sum(completion_tlps(pcie, 0, size))
    if not PATHS[path].proxied and PATHS[path].processor == "cpu":
        return _host_bytes(s, path, group, reads, payload)
    if not PATHS[path].proxied:
        fetch = wqe + pcie.cpld_overhead_bytes
        bell = (pcie.mwr_overhead_bytes + _WORD) / batch
        to_nic, from_nic = bell + fetch + payload, pcie.mrd_overhead_bytes + reads + cqe
        return {"nic": (from_nic, to_nic), "gpu": (to_nic, from_nic)}
    words = _REQUEST_BYTES // _WORD
    request = words * (pcie.mwr_overhead_bytes + _WORD)
    push = (
        pcie.mwr_overhead_bytes + wqe
        if s.cpu.bf
        else pcie.mwr_overhead_bytes + _WORD + wqe + pcie.cpld_overhead_bytes
    )
    return {
        "nic": (reads + cqe, push + payload),
        "gpu": (request + payload, reads),
        "host": (push, request + cqe),
    }


def _host_bytes(
    s: "Scenario", path: str, group: Group, reads: int, payload: int
) -> dict[str, tuple[float, float]]:
    """The same where the CPU posts: queues are at the host, payload is in either memory.

    `reads` and `payload` are the bytes that ask for and that carry the payload.
    """
    batch, signaled_every = _batch(group)
    pcie, inline = s.pcie, _inline(s, path, group)
    blocks = s.plan.blocks(group.size, path)
    octowords = wqe_octowords(group.size, inline)
    if pushes(s.cpu, count=batch, octowords=octowords, inline=inline):
        ring, asked = float(blocks * (pcie.mwr_overhead_bytes + _LINE)), 0.0
    else:
        ring = (pcie.mwr_overhead_bytes + _WORD) / batch
        # One read may fetch all WQEs of a list.
        ring += blocks * _LINE + pcie.cpld_overhead_bytes / batch
        asked = pcie.mrd_overhead_bytes / batch
    asked += (pcie.mwr_overhead_bytes + _LINE) / signaled_every
    first = s.plan.messages[group.messages[0]]
    memory = s.plan.region(first.node, first.region).memory
    links = {"nic": (asked + reads, ring + payload), "host": (ring, asked)}
    up, down = links.get(memory, (0.0, 0.0))
    return links | {memory: (up + payload, down + reads)}


def _batch(group: Group) -> tuple[int, int]:
    """(WQEs per ring, WQEs per CQE at most) of a path that follows both."""
    work = group.workload
    if not work:
        return 1, 1
    every = work.signaled_every
    return work.batch, every if work.batch == 1 else min(every, work.batch)


def _lanes(path: str, group: Group) -> int:
    """Messages that threads of a path put with one reservation, one CQE and, at most, one ring."""
    work = group.workload
    return 32 if PATHS[path].reserves and work and work.full_warps else 1


def _qps(path: str, group: Group) -> int:
    """QPs that are posted to."""
    work = group.workload
    return work.qps_used(PATHS[path].qp_by(work)) if work else 1


def _per_ring(s: "Scenario", path: str, group: Group) -> int:
    """Most messages that one doorbell covers."""
    work = group.workload
    if PATHS[path].reserves:
        return max(_lanes(path, group), s.gpu.num_requests_in_batch)
    return work.batch if work and PATHS[path].batches else 1


def _posting(s: "Scenario", path: str, group: Group) -> tuple[str, float]:
    """Who issues, and the highest rate of all of them."""
    gpu, cpu, work = s.gpu, s.cpu, group.workload
    producers, qps = work.producers if work else 1, _qps(path, group)
    batch = _per_ring(s, path, group)
    # Threads of one QP take turns.
    poster, posters = "gpu_issue", qps
    if PATHS[path].reserves:
        return poster, _shared_mops(s, path, group, qps)
    if PATHS[path].proxied:
        words = _REQUEST_BYTES // _WORD
        thread_ns = s.proxy.gpu_issue_ns + gpu.fence_gpu_ns + words * gpu.store_issue_ns
        posters = producers
    elif PATHS[path].processor == "cpu":
        fence_ns = max(cpu.post_ns - cpu.wqe_ns, s.memory.host_store_ns)
        thread_ns = cpu.wqe_ns + (fence_ns + cpu.store_issue_ns) / batch
        poster = "cpu_post"
    else:
        extra = (group.size - 1) // 16 if _inline(s, path, group) else 0
        thread_ns = gpu.issue_ns + extra * gpu.inline_copy_ns_per_16b
        thread_ns += (gpu.fence_gpu_ns + gpu.store_issue_ns) / batch
    return poster, posters * 1000 / thread_ns if thread_ns else inf


def _shared_mops(s: "Scenario", path: str, group: Group, qps: int) -> float:
    """The same of threads that share queues: all of them, each on its own; and those that ring, who
    take turns.
    """
    gpu, work = s.gpu, group.workload
    lanes = _lanes(path, group)
    warps = -(-work.producers // lanes) if work else 1
    wide = gpu.nvshmem_scope_ns if work and work.scope != "thread" else 0
    # Reserve, write, publish; who does not ring is through then.
    put = gpu.nvshmem_call_ns + gpu.nvshmem_api_ns + wide + gpu.issue_ns + gpu.fence_gpu_ns
    put += 2 * gpu.atomic_ns + gpu.load_ns
    # With the lock: maximum, fence, record, fence, doorbell.
    ring = gpu.atomic_ns + 2 * gpu.fence_gpu_ns + gpu.store_issue_ns
    return min(
        1000 * warps * lanes / put if put else inf,
        1000 * qps * _per_ring(s, path, group) / ring if ring else inf,
    )


def ceilings(s: "Scenario", path: str, group: Group) -> dict[str, float]:
    """Highest rate (millions of messages per second) that each limiter of `names.LIMITERS` but
    `latency` allows this group.
    """
    limits: dict[str, float] = {}
    if PATHS[path].proxied and s.proxy.service_ns:
        limits["proxy_service"] = 1000 / s.proxy.service_ns
    poster, issue = _posting(s, path, group)
    if issue < inf:
        limits[poster] = issue
    if s.nic.total_mops:
        limits["nic_total_rate"] = s.nic.total_mops
    if s.nic.qp_mops:
        limits["nic_qp_rate"] = s.nic.qp_mops * _qps(path, group)
    limits["wire"] = s.wire.gbps * 1000 / 8 / wire_bytes(s, group.size)
    for device, ways in _pcie_bytes(s, path, group).items():
        rates = [
            s.pcie.rate_gbps(device, way) * 1000 / 8 / count
            for way, count in zip(("up", "down"), ways, strict=True)
            if count
        ]
        if rates:
            limits[f"pcie_{device}"] = min(rates)
    return limits


def limiter(rate_mops: float, limits: dict[str, float]) -> str:
    """Name of what limits."""
    nearest: Iterable[tuple[float, str]] = (
        (rate_mops / limit, name) for name, limit in limits.items()
    )
    share, name = max(nearest, default=(0.0, "latency"))
    return name if share >= NEAR else "latency"
