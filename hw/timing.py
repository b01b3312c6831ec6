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


#: How a register follows from a field of the same name: what its name ends in, what the field's
#: name ends in instead, and how the value becomes the register's.
_FOLLOWS = (
    ("", "", lambda value: value),
    ("", "_bytes", lambda value: value),
    ("_log2", "_bytes", lambda value: value.bit_length() - 1),
    ("", "_ns", cycles),
    ("_interval", "_mops", item_interval),
)


def _register(section, name):
    """Value of a register, from the field of a section that it follows from."""
    return next(
        convert(getattr(section, field))
        for ending, unit, convert in _FOLLOWS
        if name.endswith(ending) and hasattr(section, field := name.removesuffix(ending) + unit)
    )


def _registers(shape, section, prefix="", **given):
    """Values of the registers of a shape: those given, and those that follow from a section."""
    names = [name for name, _ in data.Layout.cast(shape)]
    return {
        name: given[name] if name in given else _register(section, prefix + name) for name in names
    }


def _link(pcie, device):
    edge_ns = pcie.edge_ns(device)
    return {
        "latency_up": cycles(edge_ns),
        "latency_down": cycles(edge_ns + pcie.switch_ns),
        "byte_interval_up": byte_interval(pcie.rate_gbps(device, "up")),
        "byte_interval_down": byte_interval(pcie.rate_gbps(device, "down")),
    }


def _slots(faults):
    """Values of all fault slots; those without a fault are off."""
    if len(faults) > FAULT_SLOTS:
        raise ConfigError("faults", len(faults), f"allowed up to {FAULT_SLOTS}")
    names = ("match", "first", "count", "port")
    off = [(0,) * len(names)] * (FAULT_SLOTS - len(faults))
    return {
        index: dict(zip(names, fault, strict=True)) for index, fault in enumerate([*faults, *off])
    }


def _check_fit(structure, pcie, nic, wire):
    """Depths and credits in force lie within what is elaborated; raises `ConfigError`."""
    for section, name, most in (
        (nic, "window_blocks", structure.window_blocks),
        (nic, "wqe_tags", structure.wqe_tags),
        (nic, "payload_tags", structure.payload_tags),
        (nic, "doorbell_fifo_depth", structure.doorbell_fifo),
        (pcie, "read_header_credits", structure.pcie_reads),
    ):
        value = getattr(section, name)
        if value > most:
            raise ConfigError(name, value, f"allowed up to {most}, the structure's maximum")
    _check_way(structure, nic, wire)
    _check_credits(structure, pcie)


def _check_way(structure, nic, wire):
    """Credits of the wire are end to end: the receive buffer must cover the way there and back."""
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


def _check_credits(structure, pcie):
    """What credits of a PCIe link let through fits in its receive queues."""
    for kind in ("posted", "completion"):
        headers = getattr(pcie, f"{kind}_header_credits")
        name = f"{kind}_data_credits"
        units = getattr(pcie, name)
        # A TLP may start and end in a partial line: at most two beats beyond its full lines.
        if 2 * headers + units // 4 > structure.pcie_beats:
            raise ConfigError(
                name,
                units,
                f"allowed up to {4 * (structure.pcie_beats - 2 * headers)} beside "
                f"{headers} header credits, the structure's queue",
            )


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


def timing_words(structure, pcie, memory, nic, wire, faults=(), *, ack_every_packet=0):
    """The configuration words (64 bytes each, in index order) that load `Timing`.

    Parameters
    ----------
    structure : Structure
        Depths in force must not exceed its maxima.
    faults : sequence of (match, first, count, port)
        At most `FAULT_SLOTS` entries.
    ack_every_packet : int
        1: AckReq on every packet; 0: on the last packet of a message.
    """
    _check_fit(structure, pcie, nic, wire)
    word = _pack(
        Timing,
        {
            "pcie": _registers(
                PcieTiming, pcie, **{name: _link(pcie, name) for name in ("gpu", "nic", "host")}
            ),
            "gpu_memory": _registers(MemoryTiming, memory, "gpu_"),
            "host_memory": _registers(MemoryTiming, memory, "host_"),
            "nic": _registers(
                NicTiming,
                nic,
                ack_every_packet=ack_every_packet,
                ack_unit=timer_unit(ACK_UNIT_NS * nic.timer_scale),
                rnr_unit=timer_unit(RNR_UNIT_NS * nic.timer_scale),
            ),
            "wire": _registers(
                WireTiming,
                wire,
                byte_interval=byte_interval(wire.gbps),
                credits=structure.wire_beats,
            ),
            "faults": {"slots": _slots(list(faults))},
        },
    )
    raw = word.to_bytes(-(-data.Layout.cast(Timing).size // 512) * 64, "little")
    return [raw[i : i + 64] for i in range(0, len(raw), 64)]
