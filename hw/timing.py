"""How fast a machine is: registers that are written before cycle 0, one section per block."""

from amaranth.hdl import ShapeCastable
from amaranth.lib import data

from .config import ACK_UNIT_NS, BEAT_BYTES, RNR_UNIT_NS, ConfigError
from .units import CLOCK_MHZ, byte_interval, cycles, item_interval, timer_unit

__all__ = [
    "FAULT_SLOTS",
    "FaultSlot",
    "FaultTiming",
    "LinkTiming",
    "MemoryTiming",
    "NicTiming",
    "PcieTiming",
    "Timing",
    "WireTiming",
    "timing_words",
]

#: Fault slots of a node's wire.
FAULT_SLOTS = 4


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

    #: 0 off, 1 any packet, 2 requests, 3 acknowledgements.
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
    most = structure.wire_beats * BEAT_BYTES * 8 * CLOCK_MHZ / 1000 / wire.gbps
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
