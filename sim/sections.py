"""The tables of a scenario that are not hardware: software costs, queues, regions, work, faults,
expectations, limits.

Hardware sections (`[pcie] [memory] [nic] [wire]`) are the dataclasses of `hw.config`.
"""

from dataclasses import dataclass
from math import inf

from hw.config import ACK_UNIT_NS, ConfigError

from .names import METRICS
from .paths import PATHS
from .schema import check_fields, choice, flag, number, power_of_two, sequence, text

__all__ = [
    "DATA_BYTES",
    "FOREVER",
    "HOST_SUFFIX",
    "MAX_MESSAGE_BYTES",
    "CheckConfig",
    "CpuConfig",
    "Expect",
    "Fault",
    "GpuConfig",
    "MemorySizes",
    "NodesConfig",
    "Operation",
    "ProxyConfig",
    "QueueConfig",
    "Region",
    "Workload",
]

#: Bytes of the data area of each memory: the regions lie in it.
DATA_BYTES = 1 << 35
MAX_MESSAGE_BYTES = 1 << 30
#: What the names of the regions in host memory end in, where there is no [[region]].
HOST_SUFFIX = "_host"
#: `count` of a fault that never ends.
FOREVER = -1
_NS = 1_000_000.0


class _Checked:
    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class NodesConfig(_Checked):
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
class GpuConfig(_Checked):
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
class CpuConfig(_Checked):
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
        check_fields(self)
        if self.wqe_ns > self.post_ns:
            raise ConfigError(
                "wqe_ns", self.wqe_ns, f"allowed up to {self.post_ns:g}, post_ns: it is part of it"
            )


@dataclass(frozen=True, kw_only=True)
class ProxyConfig(_Checked):
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
        check_fields(self)
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
class QueueConfig(_Checked):
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
    ack_timeout: int = number(
        "Exponent of the ACK timeout, 4.096 us x 2^t x timer_scale; 0: wait for ever.", 0, 31, 14
    )
    retry_count: int = number(
        "Timeouts and sequence NAKs without progress in between that a QP bears.", 0, 7, 7
    )
    rnr_retry: int = number("The same for RNR NAKs; 7: any number.", 0, 7, 7)

    def ack_timeout_ns(self, timer_scale: float) -> float:
        """How long a QP waits for an ACK; 0: for ever."""
        return ACK_UNIT_NS * timer_scale * (1 << self.ack_timeout) if self.ack_timeout else 0.0


@dataclass(frozen=True, kw_only=True)
class MemorySizes(_Checked):
    """[memory], the keys of sizes."""

    buffer_bytes: int = number(
        "Size of the regions `send` and `recv` of each node; 0: as large as the work needs.",
        0,
        DATA_BYTES // 2,
        0,
    )


@dataclass(frozen=True, kw_only=True)
class CheckConfig(_Checked):
    """[check]: when a run is given up."""

    watchdog_us: float = number("No progress for this long is a hang.", 1, 1e9, 200.0)
    max_us: float = number("Simulated time of one path.", 1, 1e9, 1e6)
    wall_s: float = number("Wall time of one path.", 1, 1e6, 600.0)


@dataclass(frozen=True, kw_only=True)
class Region(_Checked):
    """[[region]]: registered memory. Without any, each node has `send` and `recv` in GPU memory,
    and `send_host` and `recv_host` in host memory where a workload asks for them.
    """

    name: str = text("Name, unique within its node.")
    node: int = number("Node that owns it.", 0, 63)
    memory: str = choice("Memory that holds it.", "gpu", "host", default="gpu")
    offset: int = number(
        "First byte, from the start of the data area of that memory.", 0, DATA_BYTES - 1
    )
    size: int = number("Bytes.", 1, DATA_BYTES)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.offset % 64:
            raise ConfigError("offset", self.offset, "allowed multiples of 64")
        if self.offset + self.size > DATA_BYTES:
            raise ConfigError(
                "size", self.size, f"allowed up to {DATA_BYTES - self.offset} from this offset"
            )

    @property
    def end(self) -> int:
        """First byte behind it."""
        return self.offset + self.size


@dataclass(frozen=True, kw_only=True)
class Workload(_Checked):
    """[[workload]]: `count` puts of each size from one node to another. Sizes, and workloads, run
    one after the other.
    """

    kind: str = choice("What is done.", "put")
    scope: str = choice(
        "Who acts as one producer: a thread, a warp or a block (CTA). All but thread: ibgda.",
        "thread",
        "warp",
        "block",
        default="thread",
    )
    scalar: bool = flag(
        "Put one value (`p`) of 1, 2, 4 or 8 bytes, which stands in the WQE where a GPU builds it.",
        False,
    )
    size: tuple[int, ...] = sequence("Bytes per message.", 1, MAX_MESSAGE_BYTES, (1, 64))
    count: int = number("Messages per size, of all producers together.", 1, 1 << 24)
    producers: int = number(
        "Producers that issue; message i is issued by producer i mod producers.", 1, 65536, 1
    )
    qps: int = number("QPs between the two nodes.", 1, 1024, 1)
    qp_by: str = choice(
        "What takes the QPs in turn: each producer, warp of 32 threads, or CTA of cta_threads.",
        "producer",
        "warp",
        "cta",
        default="producer",
    )
    cta_threads: int = number("Threads of a CTA (block), for qp_by.", 32, 1024, 1024)
    window: int = number(
        "Messages that one producer may have outstanding (perftest -t).", 1, 1 << 16, 1
    )
    batch: int = number(
        "WQEs per doorbell (gda_minimal, verbs: a list of so many, perftest -l).", 1, 1 << 12, 1
    )
    signaled_every: int = number(
        "Every n-th message of a producer asks for a CQE (perftest -Q), and the last of a batch of "
        "several (gda_minimal, verbs).",
        1,
        1 << 12,
        1,
    )
    node: int = number("Node that issues.", 0, 63, 0)
    peer: int = number("Node that is written; by default the last one.", 0, 63, 1)
    region: str = text("Region of `node` that is read.", "send")
    remote_region: str = text("Region of `peer` that is written.", "recv")
    offset: int = number(
        "Of the first message in its region; each further one has a slot of its own behind it.",
        0,
        DATA_BYTES - 1,
        0,
    )
    remote_offset: int = number("The same in the remote region.", 0, DATA_BYTES - 1, 0)
    memory: str | None = choice(
        "Memory of the payload, where there is no [[region]]; left out: GPU memory.",
        None,
        "gpu",
        "host",
        default=None,
    )
    remote_memory: str | None = choice(
        "Memory that is written, where there is no [[region]]; left out: GPU memory.",
        None,
        "gpu",
        "host",
        default=None,
    )
    at_ns: float = number("Earliest start.", 0, 1e9, 0.0)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("batch", "signaled_every"):
            if getattr(self, name) > self.window:
                raise ConfigError(
                    name, getattr(self, name), f"allowed up to {self.window}, the window"
                )
        if self.scalar and not {1, 2, 4, 8}.issuperset(self.size):
            raise ConfigError("size", list(self.size), "allowed 1, 2, 4 and 8 of a scalar put")
        if self.scalar and self.scope != "thread":
            raise ConfigError("scope", self.scope, 'allowed "thread" for a scalar put')
        if self.cta_threads % 32:
            raise ConfigError("cta_threads", self.cta_threads, "allowed multiples of 32")

    def group(self, producer: int) -> int:
        """Which of those that take the QPs in turn a producer belongs to."""
        threads = {"thread": 1, "warp": 32, "block": self.cta_threads}[self.scope]
        size = {"producer": threads, "warp": 32, "cta": self.cta_threads}[self.qp_by]
        return producer * threads // size

    @property
    def qps_used(self) -> int:
        """QPs that are posted to."""
        return min(self.qps, self.group(self.producers - 1) + 1)

    @property
    def full_warps(self) -> bool:
        """Whether there are 32 threads of a warp, which act as one on some paths."""
        return self.scope == "thread" and self.producers >= 32

    @property
    def source(self) -> str:
        """Name of the region that is read."""
        return self.region + HOST_SUFFIX * (self.memory == "host")

    @property
    def target(self) -> str:
        """Name of the region that is written."""
        return self.remote_region + HOST_SUFFIX * (self.remote_memory == "host")


@dataclass(frozen=True, kw_only=True)
class Operation(_Checked):
    """[[op]]: one explicit operation."""

    verb: str = choice("What is done.", "write", default="write")
    node: int = number("Node that issues.", 0, 63, 0)
    peer: int = number("Node that is written; by default the last one.", 0, 63, 1)
    producer: int = number(
        "Thread that issues; its operations are issued in the order of the file.", 0, 4095, 0
    )
    qp: int = number("QP between the two nodes.", 0, 1023, 0)
    size: int = number("Bytes.", 1, MAX_MESSAGE_BYTES)
    region: str = text("Region of `node` that is read.", "send")
    remote_region: str = text("Region of `peer` that is written.", "recv")
    offset: int = number("First byte in its region.", 0, DATA_BYTES - 1, 0)
    remote_offset: int = number("First byte in the remote region.", 0, DATA_BYTES - 1, 0)
    signaled: bool = flag("Ask for a CQE.", True)
    at_ns: float = number("Earliest issue.", 0, 1e9, 0.0)


@dataclass(frozen=True, kw_only=True)
class Fault(_Checked):
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
        """(match, first, count, port) as `hw.config.timing_words` takes them."""
        return (
            {"any": 1, "request": 2, "ack": 3}[self.packet],
            self.first,
            0xFFFFFFFF if self.count == FOREVER else self.count,
            self.port,
        )


@dataclass(frozen=True, kw_only=True)
class Expect:
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

    def __post_init__(self) -> None:
        check_fields(self)
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
