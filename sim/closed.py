"""Closed forms: what an idle machine takes, from the constants alone.

Used to show that a preset reproduces what it was calibrated on and to predict what it was not. A
link costs the bytes of its TLP once per segment, since beats are cut through but single-beat TLPs
are stored.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .scenario import Scenario

__all__ = [
    "SOCKET_NS",
    "loom_cells",
    "one_way_ns",
    "read_ns",
    "ring_to_seen",
    "serial_ns",
    "stages_ns",
]

#: One crossing between sockets: half of what a GPU load of the far socket's memory takes longer (L:
#: 830 - 704 ns). It belongs to the machine that was calibrated on, not to the preset.
SOCKET_NS = (830 - 704) / 2
_WQE = 64
_CQE = 64


def serial_ns(count: float, gbps: float) -> float:
    """Time of `count` bytes."""
    return count * 8 / gbps


def one_way_ns(
    s: "Scenario", source: str, target: str, payload: int, overhead: int | None = None
) -> float:
    """A TLP from one device's edge to another's; devices are "gpu", "nic", "host"."""
    size = (s.pcie.mwr_overhead_bytes if overhead is None else overhead) + payload
    edges = [
        (getattr(s.pcie, f"{device}_ns"), getattr(s.pcie, f"{device}_gbps"))
        for device in (source, target)
    ]
    return sum(ns + serial_ns(size, gbps) for ns, gbps in edges) + s.pcie.switch_ns


def read_ns(s: "Scenario", reader: str, memory: str, payload: int) -> float:
    """A read of at most one beat: request, memory, completion."""
    return (
        one_way_ns(s, reader, memory, 0, s.pcie.mrd_overhead_bytes)
        + getattr(s.memory, f"{memory}_read_ns")
        + one_way_ns(s, memory, reader, payload, s.pcie.cpld_overhead_bytes)
    )


def stages_ns(s: "Scenario", size: int) -> list[tuple[str, float]]:
    """From a WQE in the NIC to the CQE's write leaving, inline payload of one packet: (segment,
    ns).
    """
    flight = s.wire.propagation_ns
    return [
        ("payload", s.nic.wqe_ns),
        ("tx_first", s.nic.tx_ns),
        ("rx_last", serial_ns(size + s.wire.first_overhead_bytes, s.wire.gbps) + flight),
        (
            "ack_rx",
            s.nic.rx_ns
            + s.nic.tx_ns
            + serial_ns(s.wire.ack_bytes, s.wire.gbps)
            + flight
            + s.nic.rx_ns,
        ),
        ("cqe_issued", s.nic.cqe_ns),
    ]


def ring_to_seen(s: "Scenario", size: int = 8) -> list[tuple[str, float]]:
    """Doorbell store of a GPU thread to its CQE seen: inline, all queues in GPU memory. (segment,
    ns)
    """
    return [
        ("ring_seen", one_way_ns(s, "gpu", "nic", 8) + s.nic.doorbell_ns),
        ("fetched", read_ns(s, "nic", "gpu", _WQE)),
        *stages_ns(s, size),
        ("cqe_written", one_way_ns(s, "nic", "gpu", _CQE) + s.memory.gpu_commit_ns),
        ("seen", s.gpu.poll_ns),
    ]


def loom_cells(s: "Scenario") -> dict[str, float]:
    """The cells of source L that the preset `s` was calibrated on, recomputed on L's machine.

    No PCIe switch, no network switch, RoCEv2 packets, 2 m of cable, the CPU posts and polls, NIC on
    the far socket.
    """
    there = replace(
        s,
        pcie=replace(s.pcie, switch_ns=0),
        wire=replace(
            s.wire,
            hops=0,
            cable_m=2,
            first_overhead_bytes=98,
            other_overhead_bytes=82,
            ack_bytes=86,
        ),
    )
    across = 2 * SOCKET_NS
    stages = sum(ns for _, ns in stages_ns(there, 8))
    host_read = read_ns(there, "nic", "host", 64) + across
    # Peer to peer, the read enters and leaves the root complex on its way to the GPU.
    relay = 2 * 2 * there.pcie.host_ns
    return {
        "post_to_seen_inline": (
            one_way_ns(there, "host", "nic", _WQE)
            + there.nic.doorbell_ns
            + stages
            + one_way_ns(there, "nic", "host", _CQE)
            + across
            + there.memory.host_commit_ns
            + there.cpu.poll_ns
        ),
        "wqe_fetch": host_read,
        "payload_read_host": host_read,
        "payload_read_gpu": read_ns(there, "nic", "gpu", 8) + relay + across,
        "gpu_load_host": read_ns(there, "gpu", "host", 8),
    }
