"""What a machine is built of (structure) and how fast it is (timing).

`Structure` changes the Verilog. The other sections are written into registers before cycle 0
(`Timing`, one section per block) and never change it. Nanoseconds, Gb/s and rates become cycles
here and nowhere else.
"""

import hashlib
from dataclasses import asdict, dataclass, fields

from amaranth.hdl import ShapeCastable
from amaranth.lib import data

__all__ = [
    "ACK_UNIT_NS",
    "BYTE_FRACTION",
    "CLOCK_MHZ",
    "FAULT_SLOTS",
    "ITEM_FRACTION",
    "MAX_DELAY_NS",
    "RNR_UNIT_NS",
    "TIMER_FRACTION",
    "ConfigError",
    "FaultSlot",
    "FaultTiming",
    "LinkTiming",
    "MemoryConfig",
    "MemoryTiming",
    "NicConfig",
    "NicTiming",
    "PcieConfig",
    "PcieTiming",
    "Structure",
    "Timing",
    "WireConfig",
    "WireTiming",
    "byte_interval",
    "cycles",
    "item_interval",
    "timer_unit",
    "timing_words",
]

#: One clock for everything; 1 GHz, so that a cycle reads as a nanosecond.
CLOCK_MHZ = 1000
#: Longest delay that still takes one item per cycle: the depth of the delay lines (1024), less
#: some.
MAX_DELAY_NS = 1000
#: Fraction bits of a cost in cycles per byte.
BYTE_FRACTION = 24
#: Fraction bits of the units of the timers.
TIMER_FRACTION = 8
#: Unit of the ACK timeout, which is multiplied by 2^t, and of the waits after an RNR NAK.
ACK_UNIT_NS, RNR_UNIT_NS = 4096, 10_000
#: Fraction bits of a cost in cycles per item (260 M/s is 3.846 cycles).
ITEM_FRACTION = 8


class ConfigError(ValueError):
    """A configuration value is out of its bounds.

    Attributes: `field`, `value` and `allowed` (text), for a one-line report.
    """

    def __init__(self, field, value, allowed):
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field} = {value!r}: {allowed}")


def _within(owner, name, low, high):
    value = getattr(owner, name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(name, value, f"allowed {low} to {high}")


def _power_of_two(owner, name, low, high):
    value = getattr(owner, name)
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or value & (value - 1)
        or not low <= value <= high
    ):
        raise ConfigError(name, value, f"allowed powers of two from {low} to {high}")


def cycles(ns):
    """Nanoseconds to whole cycles, rounded to the nearest."""
    return round(ns * CLOCK_MHZ / 1000)


def byte_interval(gbps):
    """Gb/s to cycles per byte, fixed point with `BYTE_FRACTION` bits, rounded to nearest."""
    return round((8 * CLOCK_MHZ / (gbps * 1000)) * (1 << BYTE_FRACTION))


def item_interval(millions_per_s):
    """Items per second (in millions) to cycles per item, fixed point; 0 means no limit."""
    return round(CLOCK_MHZ / millions_per_s * (1 << ITEM_FRACTION)) if millions_per_s else 0


def timer_unit(ns):
    """A unit of time in cycles, fixed point with `TIMER_FRACTION` bits."""
    return round(ns * CLOCK_MHZ / 1000 * (1 << TIMER_FRACTION))


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


#: Fault slots of a node's wire.
FAULT_SLOTS = 4
#: Bytes per cycle that the data path carries.
DATA_BYTES = 64
_MAX_GBPS = DATA_BYTES * 8 * CLOCK_MHZ / 1000


def _link_rate(owner, name):
    value = getattr(owner, name)
    if (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or not 1 <= value <= _MAX_GBPS
    ):
        raise ConfigError(name, value, f"allowed 1 to {_MAX_GBPS:g} Gb/s (data path x clock)")


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
    #: 1: AckReq on every packet; 0: on the last packet of a message.
    ack_every_packet: int = 0
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
        _within(self, "ack_every_packet", 0, 1)
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


class LinkTiming(data.Struct):
    """One PCIe link, both directions."""

    #: Cycles from the last byte sent to arrival: device to switch, switch to device.
    latency_up: 16
    latency_down: 16
    #: Cycles per byte, `BYTE_FRACTION` fraction bits.
    byte_interval_up: 28
    byte_interval_down: 28


class PcieTiming(data.Struct):
    gpu: LinkTiming
    nic: LinkTiming
    host: LinkTiming
    mps_log2: 4
    mrrs_log2: 4
    mwr_overhead: 8
    mrd_overhead: 8
    cpld_overhead: 8
    posted_header_credits: 12
    posted_data_credits: 14
    read_header_credits: 12
    completion_header_credits: 12
    completion_data_credits: 14


class MemoryTiming(data.Struct):
    """Cycles; one per memory."""

    commit: 16
    read: 16
    store: 16


class NicTiming(data.Struct):
    doorbell: 16
    wqe: 16
    tx: 16
    rx: 16
    cqe: 16
    #: Cycles per message, `ITEM_FRACTION` fraction bits; 0: no limit.
    total_interval: 24
    qp_interval: 24
    fetch_blocks: 6
    window_blocks: 11
    doorbell_fifo_depth: 11
    wqe_tags: 8
    payload_tags: 10
    push_wait: 16
    ack_every_packet: 1
    #: Bytes; 0: no limit.
    max_inline: 10
    #: Cycles, `TIMER_FRACTION` fraction bits.
    ack_unit: 21
    rnr_unit: 22


class WireTiming(data.Struct):
    byte_interval: 28
    first_overhead: 8
    other_overhead: 8
    ack_bytes: 8
    #: Beats the far receive buffer holds.
    credits: 16


class FaultSlot(data.Struct):
    """Drops packets `first` to `first + count - 1` of those that match, counted from 0 at the
    port that sends them.
    """

    #: 0 off, 1 any packet, 2 requests, 3 what a responder sends.
    match: 2
    first: 32
    #: All ones: without end.
    count: 32
    port: 1


class FaultTiming(data.Struct):
    slots: data.ArrayLayout(FaultSlot, FAULT_SLOTS)


class Timing(data.Struct):
    """All timing registers of a node. The field order is the order of the configuration words."""

    pcie: PcieTiming
    gpu_memory: MemoryTiming
    host_memory: MemoryTiming
    nic: NicTiming
    wire: WireTiming
    faults: FaultTiming


def _pack(layout, values):
    """Dict of the layout's shape -> integer; raises where a value does not fit."""
    layout = data.Layout.cast(layout)
    word = 0
    for key, field in layout:
        value = values[key]
        if isinstance(field.shape, ShapeCastable):
            value = _pack(field.shape, value)
        elif not 0 <= value < 1 << field.width:
            raise ConfigError(
                str(key), value, f"allowed 0 to {(1 << field.width) - 1} in its register"
            )
        word |= value << field.offset
    return word


def _link(pcie, device):
    edge_ns = pcie.edge_ns(device)
    return {
        "latency_up": cycles(edge_ns),
        "latency_down": cycles(edge_ns + pcie.switch_ns),
        "byte_interval_up": byte_interval(pcie.rate_gbps(device, "up")),
        "byte_interval_down": byte_interval(pcie.rate_gbps(device, "down")),
    }


def _check_fit(structure, pcie, nic, wire):
    """Depths and credits in force lie within what is elaborated; raises `ConfigError`."""
    for name, most in (
        ("window_blocks", structure.window_blocks),
        ("wqe_tags", structure.wqe_tags),
        ("payload_tags", structure.payload_tags),
        ("doorbell_fifo_depth", structure.doorbell_fifo),
    ):
        if getattr(nic, name) > most:
            raise ConfigError(
                name, getattr(nic, name), f"allowed up to {most}, the structure's maximum"
            )
    if pcie.read_header_credits > structure.pcie_reads:
        raise ConfigError(
            "read_header_credits",
            pcie.read_header_credits,
            f"allowed up to {structure.pcie_reads}, the structure's maximum",
        )
    # Credits of the wire are end to end: the receive buffer must cover the way there and back.
    way = 2 * cycles(wire.propagation_ns) + cycles(nic.rx_ns)
    most = structure.wire_beats * DATA_BYTES * 8 * CLOCK_MHZ / 1000 / wire.gbps
    if way > most:
        longest = (most - cycles(nic.rx_ns)) / 2 - wire.hops * wire.hop_ns
        raise ConfigError(
            "cable_m",
            wire.cable_m,
            f"allowed up to {max(0, int(longest / max(wire.cable_ns_per_m, 1e-9)))}: the receive "
            f"buffer of {structure.wire_beats} beats must cover the way there and back",
        )
    for kind in ("posted", "completion"):
        # A TLP may start and end in a partial line: at most two beats beyond its full lines.
        headers, units = (
            getattr(pcie, f"{kind}_header_credits"),
            getattr(pcie, f"{kind}_data_credits"),
        )
        if 2 * headers + units // 4 > structure.pcie_beats:
            raise ConfigError(
                f"{kind}_data_credits",
                units,
                f"allowed up to {4 * (structure.pcie_beats - 2 * headers)} beside "
                f"{headers} header credits, the structure's queue",
            )


#: Fields of a fault slot, in the order in which `timing_words` takes them.
_SLOT = ("match", "first", "count", "port")


def timing_words(structure, pcie, memory, nic, wire, faults=()):
    """The configuration words (64 bytes each, in index order) that load `Timing`.

    Parameters
    ----------
    structure : Structure
        Depths in force must not exceed its maxima.
    faults : sequence of (match, first, count, port)
        At most `FAULT_SLOTS` entries.
    """
    _check_fit(structure, pcie, nic, wire)
    slots = [dict(zip(_SLOT, fault, strict=True)) for fault in faults]
    if len(slots) > FAULT_SLOTS:
        raise ConfigError("faults", len(slots), f"allowed up to {FAULT_SLOTS}")
    slots += [dict.fromkeys(_SLOT, 0)] * (FAULT_SLOTS - len(slots))

    word = _pack(
        Timing,
        {
            "pcie": {
                **{device: _link(pcie, device) for device in ("gpu", "nic", "host")},
                "mps_log2": pcie.mps_bytes.bit_length() - 1,
                "mrrs_log2": pcie.mrrs_bytes.bit_length() - 1,
                "mwr_overhead": pcie.mwr_overhead_bytes,
                "mrd_overhead": pcie.mrd_overhead_bytes,
                "cpld_overhead": pcie.cpld_overhead_bytes,
                "posted_header_credits": pcie.posted_header_credits,
                "posted_data_credits": pcie.posted_data_credits,
                "read_header_credits": pcie.read_header_credits,
                "completion_header_credits": pcie.completion_header_credits,
                "completion_data_credits": pcie.completion_data_credits,
            },
            "gpu_memory": {
                "commit": cycles(memory.gpu_commit_ns),
                "read": cycles(memory.gpu_read_ns),
                "store": cycles(memory.gpu_store_ns),
            },
            "host_memory": {
                "commit": cycles(memory.host_commit_ns),
                "read": cycles(memory.host_read_ns),
                "store": cycles(memory.host_store_ns),
            },
            "nic": {
                "doorbell": cycles(nic.doorbell_ns),
                "wqe": cycles(nic.wqe_ns),
                "tx": cycles(nic.tx_ns),
                "rx": cycles(nic.rx_ns),
                "cqe": cycles(nic.cqe_ns),
                "total_interval": item_interval(nic.total_mops),
                "qp_interval": item_interval(nic.qp_mops),
                "fetch_blocks": nic.fetch_blocks,
                "window_blocks": nic.window_blocks,
                "doorbell_fifo_depth": nic.doorbell_fifo_depth,
                "wqe_tags": nic.wqe_tags,
                "payload_tags": nic.payload_tags,
                "push_wait": cycles(nic.push_wait_ns),
                "ack_every_packet": nic.ack_every_packet,
                "max_inline": nic.max_inline_bytes,
                "ack_unit": timer_unit(ACK_UNIT_NS * nic.timer_scale),
                "rnr_unit": timer_unit(RNR_UNIT_NS * nic.timer_scale),
            },
            "wire": {
                "byte_interval": byte_interval(wire.gbps),
                "first_overhead": wire.first_overhead_bytes,
                "other_overhead": wire.other_overhead_bytes,
                "ack_bytes": wire.ack_bytes,
                "credits": structure.wire_beats,
            },
            "faults": {"slots": dict(enumerate(slots))},
        },
    )
    size = data.Layout.cast(Timing).size
    count = -(-size // 512)
    raw = word.to_bytes(64 * count, "little")
    return [raw[64 * i : 64 * i + 64] for i in range(count)]
