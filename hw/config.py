"""What a machine is built of, and what is known of its speed.

`Structure` changes the Verilog. The other sections become registers (`hw.timing`) that never change
it.
"""

import hashlib
from dataclasses import asdict, dataclass, fields

from .units import CLOCK_MHZ

__all__ = [
    "ACK_UNIT_NS",
    "BEAT_BYTES",
    "MAX_DELAY_NS",
    "RNR_UNIT_NS",
    "ConfigError",
    "MemoryConfig",
    "NicConfig",
    "PcieConfig",
    "Structure",
    "WireConfig",
]

#: Longest delay that still takes one item per cycle: the depth of the delay lines (1024), less
#: some.
MAX_DELAY_NS = 1000
#: Unit of the ACK timeout, which is multiplied by 2^t, and of the waits after an RNR NAK.
ACK_UNIT_NS, RNR_UNIT_NS = 4096, 10_000
#: Bytes per cycle that the data path carries.
BEAT_BYTES = 64
_MAX_GBPS = BEAT_BYTES * 8 * CLOCK_MHZ // 1000


class ConfigError(ValueError):
    """A configuration value is out of its bounds.

    Attributes: `field`, `value` and `allowed` (text), for a one-line report.
    """

    def __init__(self, field, value, allowed):
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field} = {value!r}: {allowed}")


def _within(owner, name, low, high, note=""):
    value = getattr(owner, name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(name, value, f"allowed {low} to {high}{note}")


def _power_of_two(owner, name, low, high):
    value = getattr(owner, name)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value & (value - 1) or not low <= value <= high:
        raise ConfigError(name, value, f"allowed powers of two from {low} to {high}")


def _link_rate(owner, name):
    _within(owner, name, 1, _MAX_GBPS, " Gb/s (data path x clock)")


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Maxima and widths: everything that is elaborated."""

    #: Wire ports of the NIC.
    ports: int = 1
    #: QPs (and CQs) a NIC has contexts for.
    qps: int = 64
    #: Most WQEBBs (64 B) one WQE may have.
    wqe_blocks: int = 16
    #: WQEBBs a QP may have between fetch and retirement.
    window_blocks: int = 256
    #: Read tags for WQE fetches.
    wqe_tags: int = 128
    #: 64-byte lines of the WQE reassembly buffer.
    wqe_lines: int = 1024
    #: Read tags for payload.
    payload_tags: int = 256
    #: 64-byte lines of the payload reassembly buffer.
    payload_lines: int = 2048
    #: Read tags for the responses to READs of the peers.
    response_tags: int = 256
    #: 64-byte lines of the buffer in which they are put together.
    response_lines: int = 1024
    #: Entries of the doorbell FIFO, those in its delay included.
    doorbell_fifo: int = 1024
    #: Entries (beats) of a PCIe receive queue for posted writes and for completions.
    pcie_beats: int = 1024
    #: Entries of a PCIe receive queue for reads.
    pcie_reads: int = 512
    #: Beats of the wire's receive buffer.
    wire_beats: int = 1024

    def __post_init__(self):
        _power_of_two(self, "ports", 1, 2)
        _power_of_two(self, "qps", 2, 1024)
        _power_of_two(self, "wqe_blocks", 4, 16)
        _power_of_two(self, "window_blocks", 16, 1024)
        _power_of_two(self, "wqe_tags", 4, 128)
        _power_of_two(self, "wqe_lines", 2 * self.wqe_blocks, 4096)
        _power_of_two(self, "payload_tags", 4, 512)
        _power_of_two(self, "payload_lines", 128, 8192)
        _power_of_two(self, "response_tags", 4, 256)
        _power_of_two(self, "response_lines", 128, 8192)
        _power_of_two(self, "doorbell_fifo", 2, 1024)
        _power_of_two(self, "pcie_beats", 128, 4096)
        _power_of_two(self, "pcie_reads", 16, 1024)
        _power_of_two(self, "wire_beats", 128, 4096)

    @property
    def qp_bits(self):
        return (self.qps - 1).bit_length()

    @property
    def hash(self):
        """12 hex digits that change when any field changes."""
        text = repr(sorted(asdict(self).items()))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class PcieConfig:
    """The fabric of one node: a switch with the GPU, the NIC and the root complex."""

    #: TLP bandwidth of each link, after encoding and flow-control overhead.
    gpu_gbps: float
    nic_gbps: float
    host_gbps: float
    #: One-way latency of the segment between that device's edge and the switch.
    gpu_ns: float
    nic_ns: float
    host_ns: float
    #: Cut-through latency of the switch, paid once per crossing.
    switch_ns: float
    #: One way between the NIC's socket and that of GPU and host; 0: they share one.
    socket_ns: float = 0.0
    #: TLP bandwidth towards the GPU where it is less than its link's, such as from one socket to
    #: the other; 0: that of the link.
    to_gpu_gbps: float = 0.0
    #: Largest payload of a TLP; largest read request.
    mps_bytes: int = 256
    mrrs_bytes: int = 512
    #: Wire bytes of a TLP beside its payload (framing, sequence, header, LCRC).
    mwr_overhead_bytes: int = 24
    mrd_overhead_bytes: int = 24
    cpld_overhead_bytes: int = 20
    #: Credits a receiver grants: TLP headers, and payload in units of 16 bytes.
    posted_header_credits: int = 256
    posted_data_credits: int = 2048
    read_header_credits: int = 256
    completion_header_credits: int = 256
    completion_data_credits: int = 2048

    def __post_init__(self):
        for name in ("gpu_gbps", "nic_gbps", "host_gbps"):
            _link_rate(self, name)
        for name in ("gpu_ns", "nic_ns", "host_ns", "switch_ns", "socket_ns"):
            _within(self, name, 0, 20_000)
        if self.to_gpu_gbps != 0:
            _within(self, "to_gpu_gbps", 1, self.gpu_gbps)
        _power_of_two(self, "mps_bytes", 64, 4096)
        _power_of_two(self, "mrrs_bytes", 64, 4096)
        for name in ("mwr_overhead_bytes", "mrd_overhead_bytes", "cpld_overhead_bytes"):
            _within(self, name, 0, 255)
        for name in ("posted_header_credits", "read_header_credits", "completion_header_credits"):
            _within(self, name, 1, 4095)
        for name in ("posted_data_credits", "completion_data_credits"):
            # A TLP that can never have its credits would hang the link.
            _within(self, name, self.mps_bytes // 16 + 1, 16383)

    def edge_ns(self, device):
        """One-way latency between a device ("gpu", "nic", "host") and the switch."""
        return getattr(self, f"{device}_ns") + (self.socket_ns if device == "nic" else 0)

    def rate_gbps(self, device, way):
        """TLP bandwidth of a device's link, "up" to the switch or "down" from it."""
        if (device, way) == ("gpu", "down") and self.to_gpu_gbps:
            return self.to_gpu_gbps
        return getattr(self, f"{device}_gbps")


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """Latencies of the two memories of a node."""

    #: Fabric write accepted to committed; fabric read accepted to data; local store to committed.
    gpu_commit_ns: float
    gpu_read_ns: float
    gpu_store_ns: float
    host_commit_ns: float
    host_read_ns: float
    host_store_ns: float

    def __post_init__(self):
        for field in fields(self):
            # A write holds a place of its delay line; reads are few and may take long.
            _within(self, field.name, 0, 20_000 if "read" in field.name else MAX_DELAY_NS)


@dataclass(frozen=True, kw_only=True)
class NicConfig:
    """Depths in force, ceilings, and the lumped delays of closed silicon."""

    #: Doorbell write at the NIC's edge to the work-queue engine.
    doorbell_ns: float
    #: WQE in the NIC to its first packet's request of the transmitter or its payload read.
    wqe_ns: float
    #: Packet ready to first beat on the wire.
    tx_ns: float
    #: Packet at the receiver's edge to its checks and its writes, or to the ACK's processing.
    rx_ns: float
    #: Retirement of a WQE to its CQE's write leaving.
    cqe_ns: float
    #: Ceilings of message rate; 0 means none.
    total_mops: float = 0
    qp_mops: float = 0
    #: WQEBBs one fetch may read ahead, never past the rung index.
    fetch_blocks: int = 4
    #: WQEBBs a QP may have between fetch and retirement.
    window_blocks: int = 256
    doorbell_fifo_depth: int = 1024
    wqe_tags: int = 128
    payload_tags: int = 256
    #: For how long the lines of a push may stay away, from its first one.
    push_wait_ns: float = 200.0
    #: Path MTU in payload bytes.
    mtu_bytes: int = 4096
    #: Most inline bytes of a WQE, beyond which it ends with LOC_LEN_ERR; 0: as many as it holds.
    max_inline_bytes: int = 0
    #: Factor on the ACK timeout and the RNR waits, so that a short run sees them.
    timer_scale: float = 1.0

    def __post_init__(self):
        for name in ("doorbell_ns", "wqe_ns", "tx_ns", "rx_ns", "cqe_ns"):
            _within(self, name, 0, MAX_DELAY_NS)
        _within(self, "push_wait_ns", 0, 20_000)
        for name in ("total_mops", "qp_mops"):
            value = getattr(self, name)
            if value != 0:
                _within(self, name, 0.1, CLOCK_MHZ)
        _within(self, "fetch_blocks", 1, 32)
        _within(self, "window_blocks", 16, 1024)
        _within(self, "doorbell_fifo_depth", 1, 1024)
        _within(self, "wqe_tags", 1, 128)
        _within(self, "payload_tags", 1, 512)
        _power_of_two(self, "mtu_bytes", 256, 4096)
        _within(self, "max_inline_bytes", 0, 1023)
        _within(self, "timer_scale", 0.0001, 1)


@dataclass(frozen=True, kw_only=True)
class WireConfig:
    """One link between two NIC ports, through at most one network switch."""

    gbps: float
    #: Bytes beside the payload: FIRST and ONLY packets of a WRITE (with RETH), its MIDDLE and LAST
    #: ones, and a whole ACK. Others follow from them by the size of their headers.
    first_overhead_bytes: int
    other_overhead_bytes: int
    ack_bytes: int
    #: Propagation: cable and switch hops, one way.
    cable_m: float = 2.0
    cable_ns_per_m: float = 5.0
    hops: int = 1
    hop_ns: float = 0.0

    def __post_init__(self):
        _link_rate(self, "gbps")
        for name in ("first_overhead_bytes", "other_overhead_bytes", "ack_bytes"):
            _within(self, name, 0, 255)
        _within(self, "cable_m", 0, 100_000)
        _within(self, "cable_ns_per_m", 0, 100)
        _within(self, "hops", 0, 16)
        _within(self, "hop_ns", 0, 100_000)

    @property
    def propagation_ns(self):
        return self.cable_m * self.cable_ns_per_m + self.hops * self.hop_ns
