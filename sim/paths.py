"""The software paths: for each, what plan, bring-up and limits need to know of it.

What a path does, step by step, is in its file in `sim/agents`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .scenario import Scenario
    from .work import Workload

__all__ = ["BY_PATH", "PATHS", "Path"]

#: `nic.ack_every_packet` as the path's software sets up its QPs.
BY_PATH = -1


@dataclass(frozen=True, kw_only=True)
class Path:
    """One way for a message from the thread that wants it to the NIC."""

    name: str
    #: Processor that builds WQEs and rings: "gpu" or "cpu".
    processor: str
    #: GPU threads ask a host thread to post.
    proxied: bool = False
    #: Payload up to `inline_max_bytes` of its processor goes inside the WQE.
    inlines: bool = False
    #: The payload of a WQE may be cut into `gpu.segments` runs.
    gathers: bool = False
    #: Follows the workload's `batch`: WQEs per doorbell.
    batches: bool = False
    #: Decides itself which WQEs ask for a CQE, whatever the workload says.
    own_signals: bool = False
    #: Who may be a producer (`workload.scope`).
    scopes: tuple[str, ...] = ("thread",)
    #: Its QPs ask for an ACK with every packet, not only with the last one of a message.
    acks_every_packet: bool = False
    #: A producer may have explicit operations on several QPs and peers.
    roams: bool = False
    #: Puts scalar values; inside the WQE, where a GPU builds it.
    scalars: bool = False
    #: Threads reserve blocks of shared queues, 32 at once where a full warp acts as one.
    reserves: bool = False
    #: Each call picks its QP, unless the workload says who takes them in turn.
    picks: bool = False

    @property
    def memory(self) -> str:
        """Memory of its rings."""
        return "gpu" if self.processor == "gpu" else "host"

    @property
    def inlines_scalars(self) -> bool:
        """Whether a scalar value goes inside the WQE."""
        return self.scalars and not self.proxied

    def qp_by(self, work: "Workload") -> str:
        """What takes the QPs in turn, one of `Workload.qp_by`."""
        return work.qp_by or ("call" if self.picks else "producer")

    def inline_max(self, scenario: "Scenario") -> int:
        """Most payload that goes inside a WQE."""
        owner = scenario.gpu if self.processor == "gpu" else scenario.cpu
        return owner.inline_max_bytes if self.inlines else 0

    def segments(self, scenario: "Scenario") -> int:
        """Data segments of a WQE that points to its payload."""
        return scenario.gpu.segments if self.gathers else 1

    def ack_every_packet(self, scenario: "Scenario") -> int:
        """1: AckReq on every packet; 0: on the last packet of a message."""
        given = scenario.queues.ack_every_packet
        return int(self.acks_every_packet) if given == BY_PATH else given

    def cq_entries(self, scenario: "Scenario") -> int:
        """CQEs of its completion queues; 1 means collapsed, which host verbs never are."""
        collapsed = self.processor == "gpu" and scenario.queues.cq == "collapsed"
        return 1 if collapsed else scenario.queues.cq_depth


#: Paths that exist, by name.
PATHS: dict[str, Path] = {
    path.name: path
    for path in (
        Path(
            name="gda_minimal",
            processor="gpu",
            inlines=True,
            gathers=True,
            batches=True,
            scalars=True,
        ),
        Path(
            name="ibgda",
            processor="gpu",
            scopes=("thread", "warp", "block"),
            scalars=True,
            reserves=True,
            picks=True,
            own_signals=True,
            roams=True,
            # Ref: NVSHMEM's `log_ack_req_freq` of 0 as read (flows 1.1, 3.5).
            acks_every_packet=True,
        ),
        Path(
            name="ibrc",
            processor="cpu",
            proxied=True,
            scalars=True,
            own_signals=True,
            roams=True,
        ),
        Path(name="verbs", processor="cpu", inlines=True, batches=True),
    )
}
