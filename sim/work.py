"""What a scenario asks for: registered memory, and the work between the nodes."""

from dataclasses import dataclass

from hw.config import ConfigError

from .schema import Checked, choice, flag, number, sequence, text

__all__ = ["DATA_BYTES", "HOST_SUFFIX", "MAX_MESSAGE_BYTES", "Operation", "Region", "Workload"]

#: Bytes of the data area of each memory: the regions lie in it.
DATA_BYTES = 1 << 35
MAX_MESSAGE_BYTES = 1 << 30
#: What the names of the regions in host memory end in, where there is no [[region]].
HOST_SUFFIX = "_host"


@dataclass(frozen=True, kw_only=True)
class Region(Checked):
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
        super().__post_init__()
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
class Workload(Checked):
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
    qp_by: str | None = choice(
        "What takes the QPs in turn: each call (ibgda), producer, warp of 32 threads, or CTA of "
        "cta_threads; left out: each call on ibgda, each producer on other paths.",
        None,
        "call",
        "producer",
        "warp",
        "cta",
        default=None,
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
        super().__post_init__()
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
        """Which of those that take the QPs in turn a producer belongs to, where calls do not."""
        threads = {"thread": 1, "warp": 32, "block": self.cta_threads}[self.scope]
        size = {"warp": 32, "cta": self.cta_threads}.get(self.qp_by or "", threads)
        return producer * threads // size

    def qps_used(self, qp_by: str) -> int:
        """QPs that are posted to on a path where these are taken in turn (`Path.qp_by`)."""
        # With fewer calls than QPs each call has one of its own.
        takers = self.count if qp_by == "call" else self.group(self.producers - 1) + 1
        return min(self.qps, takers)

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
class Operation(Checked):
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
