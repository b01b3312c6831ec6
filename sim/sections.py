"""The tables of a scenario that are neither hardware nor work: software costs, queues, faults,
expectations, limits.

Hardware sections (`[pcie] [memory] [nic] [wire]`) are the dataclasses of `hw.config`; what is to be
done is in `sim.work`.
"""

from dataclasses import dataclass
from math import inf

from hw.config import ACK_UNIT_NS, ConfigError
from hw.formats.context import MAX_READS

from .names import METRICS
from .paths import BY_PATH, PATHS
from .schema import Checked, choice, flag, number, power_of_two, sequence, text
from .work import DATA_BYTES, MAX_MESSAGE_BYTES

__all__ = [
    "FOREVER",
    "CheckConfig",
    "CpuConfig",
    "Expect",
    "Fault",
    "GpuConfig",
    "MemorySizes",
    "NodesConfig",
    "ProxyConfig",
    "QueueConfig",
]

#: `count` of a fault that never ends.
FOREVER = -1
_NS = 1_000_000.0


@dataclass(frozen=True, kw_only=True)
class NodesConfig(Checked):
    """[nodes]"""

    count: int = choice(
        "Nodes: 2, joined by one wire each way, or 1, whose port 0 is wired to its port 1.",
        1,
        2,
        default=2,
    )

    @property
    def ports(self) -> int:
        """Wire ports of each NIC."""
        return 2 if self.count == 1 else 1

    @property
    def wire(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Both ends of the wire, as (node, port)."""
        return (0, 0), ((0, 1) if self.count == 1 else (1, 0))


@dataclass(frozen=True, kw_only=True)
class GpuConfig(Checked):
    """[gpu]: what posting and polling GPU threads cost.

    One put of `gda_minimal` takes issue_ns + inline copy, then fence_gpu_ns, then store_issue_ns
    (the doorbell); the record's store is part of issue_ns. One of `ibgda` that rings at once takes
    nvshmem_call_ns + nvshmem_api_ns, issue_ns, 3 x fence_gpu_ns, 4 x atomic_ns (reserve, publish,
    lock, maximum), load_ns (has more been reserved?) and store_issue_ns.
    """

    issue_ns: float = number(
        "Building one WQE, storing it and the record; without fence and doorbell.",
        0,
        _NS,
    )
    inline_copy_ns_per_16b: float = number(
        "Copying inline payload into the WQE, per started 16 bytes beyond the first.", 0, _NS
    )
    fence_gpu_ns: float = number("What ordering at GPU scope adds to an issue.", 0, _NS)
    store_issue_ns: float = number(
        "A posted store to another device, until the thread goes on.", 0, _NS
    )
    poll_ns: float = number("CQE committed in GPU memory to seen by the polling thread.", 0, _NS)
    fence_sys_ns: float = number(
        "What ordering at system scope adds, where the payload is in host memory (ibgda).", 0, _NS
    )
    atomic_ns: float = number(
        "An atomic at GPU scope on the GPU's own memory, until it returns (ibgda).", 0, _NS
    )
    load_ns: float = number(
        "A load of the GPU's own memory past its first cache, until it returns (ibgda).", 0, _NS
    )
    nvshmem_call_ns: float = number(
        "Software of one put before it reserves blocks: checks, choice of the QP, keys (ibgda).",
        0,
        _NS,
    )
    nvshmem_api_ns: float = number(
        "What the public call adds to the internal one (ibgda); 0: the internal one.", 0, _NS
    )
    nvshmem_scope_ns: float = number("What warp or block scope adds to a put (ibgda).", 0, _NS)
    num_requests_in_batch: int = power_of_two(
        "Blocks per doorbell where many threads post: NVSHMEM_IBGDA_NUM_REQUESTS_IN_BATCH (ibgda).",
        1,
        32768,
        32,
    )
    inline_max_bytes: int = number(
        "Payload up to this goes inside the WQE (gda_minimal); 0: never.", 0, 972, 28
    )
    segments: int = number(
        "Data segments that point to the payload of a WQE, of nearly equal size (gda_minimal).",
        1,
        30,
        1,
    )
    queues: str = choice(
        "Memory of send and completion queues of GPU-initiated paths.", "gpu", default="gpu"
    )


@dataclass(frozen=True, kw_only=True)
class CpuConfig(Checked):
    """[cpu]: what a host thread costs, and how its library rings.

    One post of `verbs` takes wqe_ns for each work request of its list, then what post_ns has beyond
    one wqe_ns (record, fences), then store_issue_ns (the doorbell).
    """

    poll_ns: float = number(
        "Word or CQE committed in host memory to seen by the polling thread.", 0, _NS
    )
    post_ns: float = number(
        "Posting one work request, up to its doorbell; the last part of a proxy's service time.",
        0,
        _NS,
    )
    wqe_ns: float = number(
        "The part of post_ns that builds the WQE: each further work request of a list adds it.",
        0,
        _NS,
        20.0,
    )
    store_issue_ns: float = number("A posted store to a device, until the thread goes on.", 0, _NS)
    bf: bool = flag(
        "Push single WQEs through the BlueFlame register; false: ring an 8-byte doorbell "
        "(MLX5_SHUT_UP_BF=1).",
        True,
    )
    prefer_bf: bool = flag("Push those that are not inline, too (MLX5_POST_SEND_PREFER_BF).", True)
    uar: str = choice(
        "Doorbell register: BlueFlame, two halves in turn, or non-cached, 8-byte doorbells only.",
        "bf",
        "nc",
        default="bf",
    )
    inline_max_bytes: int = number(
        "Payload up to this goes inside the WQE (verbs; perftest -I); 0: never.", 0, 972, 0
    )
    poll_batch: int = number("CQEs that one poll takes (verbs).", 1, 4096, 16)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wqe_ns > self.post_ns:
            raise ConfigError(
                "wqe_ns", self.wqe_ns, f"allowed up to {self.post_ns:g}, post_ns: it is part of it"
            )


@dataclass(frozen=True, kw_only=True)
class ProxyConfig(Checked):
    """[proxy]: the host thread that posts for GPU threads (`ibrc`)."""

    gpu_issue_ns: float = number(
        "GPU-side enqueue of one request, without its fence and its stores to host memory.", 0, _NS
    )
    service_cold_ns: float = number(
        "All CPU time of one request, post included, on a CPU at rest clock.", 0, _NS
    )
    service_warm_ns: float = number("The same on a warm CPU.", 0, _NS)
    warm: bool = flag("Which of the two holds.", False)
    request_batch_max: int = number("Requests per turn of the loop.", 1, 4096, 32)
    complete_every_bytes: int = number(
        "Bytes of requests taken between two stores of `complete`.", 8, 1 << 22, 1024
    )
    ring_bytes: int = power_of_two("Request ring in host memory.", 256, 1 << 26, 1 << 22)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.complete_every_bytes > self.ring_bytes:
            # Threads that wait for room in a full ring would never be told of any.
            raise ConfigError(
                "complete_every_bytes",
                self.complete_every_bytes,
                f"allowed up to {self.ring_bytes}, ring_bytes",
            )

    @property
    def service_ns(self) -> float:
        """CPU time of one request."""
        return self.service_warm_ns if self.warm else self.service_cold_ns


@dataclass(frozen=True, kw_only=True)
class QueueConfig(Checked):
    """[nic], the keys of the queues: shapes that software gives to each QP and CQ."""

    sq_depth: int = power_of_two("Blocks of 64 bytes in a send queue.", 2, 32768, 1024)
    cq: str = choice(
        "One CQE rewritten in place, or a ring (gda_minimal; ibgda has one CQE, a host a ring).",
        "collapsed",
        "ring",
        default="collapsed",
    )
    cq_depth: int = power_of_two("CQEs of a ring.", 2, 32768, 1024)
    start_index: int = number(
        "Index of the first block of each send queue, so that 16 bits wrap in a short run.",
        0,
        65535,
        0,
    )
    start_psn: int = number(
        "PSN of the first packet of each QP, so that 24 bits wrap in a short run.",
        0,
        (1 << 24) - 1,
        0,
    )
    ack_every_packet: int = number(
        "1: AckReq on every packet; 0: on the last packet of a message; -1: as the path's software "
        "sets up its QPs, every packet for ibgda and the last one for others.",
        0,
        1,
        BY_PATH,
        extra=(BY_PATH,),
    )
    ack_timeout: int = number(
        "Exponent of the ACK timeout, 4.096 us x 2^t x timer_scale; 0: wait for ever.", 0, 31, 14
    )
    retry_count: int = number(
        "Timeouts and sequence NAKs without progress in between that a QP bears.", 0, 7, 7
    )
    rnr_retry: int = number("The same for RNR NAKs; 7: any number.", 0, 7, 7)
    rnr_timer: int = number("Code of the wait that an RNR NAK asks for.", 0, 31, 12)
    max_reads: int = number(
        "READs and atomics that a QP may have outstanding, at both ends.", 1, MAX_READS, MAX_READS
    )

    def ack_timeout_ns(self, timer_scale: float) -> float:
        """How long a QP waits for an ACK; 0: for ever."""
        return ACK_UNIT_NS * timer_scale * (1 << self.ack_timeout) if self.ack_timeout else 0.0


@dataclass(frozen=True, kw_only=True)
class MemorySizes(Checked):
    """[memory], the keys of sizes."""

    buffer_bytes: int = number(
        "Size of the regions `send` and `recv` of each node; 0: as large as the work needs.",
        0,
        DATA_BYTES // 2,
        0,
    )


@dataclass(frozen=True, kw_only=True)
class CheckConfig(Checked):
    """[check]: when a run is given up."""

    watchdog_us: float = number("No progress for this long is a hang.", 1, 1e9, 200.0)
    max_us: float = number("Simulated time of one path.", 1, 1e9, 1e6)
    wall_s: float = number("Wall time of one path.", 1, 1e6, 600.0)


@dataclass(frozen=True, kw_only=True)
class Fault(Checked):
    """[[fault]]: something goes wrong, by schedule."""

    kind: str = choice("What goes wrong.", "drop")
    packet: str = choice("Packets that are counted.", "any", "request", "ack", default="any")
    first: int = number(
        "First packet that is hit, counted from 0 as the port sends them.", 0, 0xFFFFFFFE, 0
    )
    count: int = number(
        "How many in a row; -1: all from there on.", 1, 0xFFFFFFFE, 1, extra=(FOREVER,)
    )
    node: int = number("Node that sends them.", 0, 63, key="from")
    port: int = number(
        "Wire port that sends them: of a single node 0 sends requests, 1 acknowledgements.", 0, 1, 0
    )

    @property
    def slot(self) -> tuple[int, int, int, int]:
        """(match, first, count, port) as `hw.timing.timing_words` takes them."""
        return (
            {"any": 1, "request": 2, "ack": 3}[self.packet],
            self.first,
            0xFFFFFFFF if self.count == FOREVER else self.count,
            self.port,
        )


@dataclass(frozen=True, kw_only=True)
class Expect(Checked):
    """[[expect]]: what must hold for the run to pass. Several bounds in one table must all hold."""

    metric: str = choice("What is looked at.", *METRICS)
    path: str | None = choice("Path it holds for; left out: all.", None, *PATHS, default=None)
    size: int | None = number(
        "Size of the groups it holds for; left out: all.",
        1,
        MAX_MESSAGE_BYTES,
        None,
        extra=(None,),
    )
    group: int | None = number(
        "Group it holds for: one size of one workload, from 0 in their order; left out: all.",
        0,
        1 << 16,
        None,
        extra=(None,),
    )
    below: float | None = number("Value < this.", -inf, None, None, extra=(None,))
    above: float | None = number("Value > this.", -inf, None, None, extra=(None,))
    equal: float | None = number("Value = this.", -inf, None, None, extra=(None,))
    within: tuple[float, ...] = sequence(
        "[low, high]: low <= value <= high.", -inf, None, (0, 2), ()
    )
    miss: str = text(
        "Why it is known not to hold, at none of the values that it covers: the run fails where it "
        "does hold.",
        "",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.within and (len(self.within) != 2 or self.within[0] > self.within[1]):
            raise ConfigError("within", list(self.within), "allowed [low, high] with low <= high")
        if not self.bounds:
            raise ConfigError(
                "metric", self.metric, "allowed with at least one of below, above, equal, within"
            )

    @property
    def bounds(self) -> tuple[str, ...]:
        """The bounds that are given, in words."""
        words = [
            f"{word} {getattr(self, word):g}"
            for word in ("below", "above", "equal")
            if getattr(self, word) is not None
        ]
        return (
            (*words, f"within [{self.within[0]:g}, {self.within[1]:g}]")
            if self.within
            else tuple(words)
        )

    def holds(self, value: float) -> bool:
        """Whether `value` meets all bounds."""
        return (
            (self.below is None or value < self.below)
            and (self.above is None or value > self.above)
            and (self.equal is None or value == self.equal)
            and (not self.within or self.within[0] <= value <= self.within[1])
        )
