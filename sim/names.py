"""The frozen names of a result: metrics, segments, counters, limiters, violations, statuses.

`bellwire schema` prints them; `[[expect]]` may use the metrics and nothing else. Names are added,
never changed.
"""

from hw.formats.events import DropReason, RetryReason, StallCause
from hw.formats.tlp import Port, TlpClass

__all__ = [
    "COUNTERS",
    "DIRECTIONS",
    "LANDMARKS",
    "LATENCY",
    "LIMITERS",
    "LINKS",
    "LINK_FIELDS",
    "MESSAGES",
    "METRICS",
    "SEGMENTS",
    "STATUSES",
    "VERDICTS",
    "VIOLATIONS",
]

VERDICTS = ("pass", "fail", "incomplete")

#: Instants of a message, in the order in which they usually happen. `landed` may come after
#: `ack_rx`.
LANDMARKS = (
    "issue",
    "request_written",
    "proxy_seen",
    "wqe_written",
    "proxy_posted",
    "ring",
    "ring_seen",
    "fetch_req",
    "fetched",
    "payload_req",
    "payload",
    "tx_first",
    "tx_last",
    "rx_last",
    "landed",
    "ack_rx",
    "cqe_written",
    "seen",
)
#: A segment is named after the landmark that ends it. `retry` is the time of transmissions that
#: were not the last.
SEGMENTS = (*(name for name in LANDMARKS if name != "issue"), "retry")

#: Percentiles are nearest rank: the smallest value that at least p % of the values do not exceed.
LATENCY = ("min", "p50", "p90", "p99", "p999", "max", "mean")

#: What holds a group's rate down: the ceiling that it comes closest to, or `latency` (window /
#: latency) if it is near none.
LIMITERS = (
    "latency",
    "gpu_issue",
    "proxy_service",
    "nic_total_rate",
    "nic_qp_rate",
    "wire",
    "pcie_gpu",
    "pcie_nic",
    "pcie_host",
    "cpu_post",
)

VIOLATIONS = (
    "wrong_data",
    "guard_overwritten",
    "retired_twice",
    "never_retired",
    "retired_unposted",
    "completion_lost",
    "completion_twice",
    "completion_status",
    "index_out_of_bounds",
    "link_over_rate",
    "dma_ledger",
    "hang",
    "limit",
    "simulator",
)

STATUSES = (
    "SUCCESS",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "LOC_PROT_ERR",
    "WR_FLUSH_ERR",
    "MW_BIND_ERR",
    "BAD_RESP_ERR",
    "LOC_ACCESS_ERR",
    "REM_INV_REQ_ERR",
    "REM_ACCESS_ERR",
    "REM_OP_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "REM_ABORT_ERR",
    "GENERAL_ERR",
)

DIRECTIONS = ("up", "down")
#: PCIe links of a node (`up` is towards the switch), then the wire.
LINKS = (*(f"{port.name.lower()}_{way}" for port in Port for way in DIRECTIONS), "wire")
LINK_FIELDS = ("tlps", "packets", "payload_bytes", "wire_bytes", "utilization")

COUNTERS = (
    *(f"drop_{reason.name.lower()}" for reason in DropReason),
    *(f"stall_{cause.name.lower()}_cycles" for cause in StallCause),
    *(
        f"tlp_{port.name.lower()}_{way}_{kind.name.lower()}"
        for port in Port
        for way in DIRECTIONS
        for kind in TlpClass
    ),
    *(f"retry_{reason.name.lower()}" for reason in RetryReason),
    "qp_errors",
    "packets_request",
    "packets_ack",
    "doorbells",
    "wqe_fetches",
    "wqes_pushed",
    "cqes",
    "commits",
)

MESSAGES = ("posted", "completed")

#: Grammar of `[[expect]]`. Those of the first line exist per group (size); the others per path, or
#: for the run.
METRICS = (
    *(f"latency_ns.{name}" for name in LATENCY),
    "rate_mops",
    "goodput_gbps",
    "wrong",
    "count",
    *(f"segments_ns.{name}" for name in SEGMENTS),
    *(f"messages.{name}" for name in MESSAGES),
    *(f"messages.statuses.{name}" for name in STATUSES),
    *(f"counters.{name}" for name in COUNTERS),
    *(f"links.{link}.{name}" for link in LINKS for name in LINK_FIELDS),
    "violations",
    *(f"violations.{name}" for name in VIOLATIONS),
)
