"""The machine that source L measured, in the model's closed forms: what its cells come out as, by
the preset that only borrows from it and by the one that is it.
"""

from dataclasses import replace

from sim.closed_form import PIPELINE_CYCLES, Idle

__all__ = ["SOCKET_NS", "constants_only", "loom_cells", "loopback_cells"]

#: One crossing between sockets: half of what a GPU load of the far socket's memory takes longer (L:
#: 830 - 704 ns). It belongs to the machine that was calibrated on, not to the preset.
SOCKET_NS = (830 - 704) / 2


def constants_only(scenario):
    """Closed forms without the cycles of the RTL's pipelines."""
    return Idle(
        scenario.pcie,
        scenario.memory,
        scenario.nic,
        scenario.wire,
        dict.fromkeys(PIPELINE_CYCLES, 0),
    )


def loom_cells(scenario):
    """The cells of source L that the preset was calibrated on, in ns, recomputed on L's machine.

    No PCIe switch, no network switch, RoCEv2 packets, 2 m of cable, the CPU posts and polls, NIC on
    the far socket.
    """
    there = constants_only(
        replace(
            scenario,
            pcie=replace(scenario.pcie, switch_ns=0),
            wire=replace(
                scenario.wire,
                hops=0,
                cable_m=2,
                first_overhead_bytes=98,
                other_overhead_bytes=82,
                ack_bytes=86,
            ),
        )
    )
    across = 2 * SOCKET_NS
    segments = there.segments(8, inline=True, pushed=True, ringer="host", rings="host")
    segments.pop("landed")
    posted = sum(terms.total for terms in segments.values())
    host_read = there.read("nic", "host", 0, 64)[1].total + across
    # Peer to peer, the read enters and leaves the root complex on its way to the GPU.
    relay = 2 * 2 * scenario.pcie.host_ns
    return {
        "post_to_seen_inline": posted + across + scenario.cpu.poll_ns,
        "wqe_fetch": host_read,
        "payload_read_host": host_read,
        "payload_read_gpu": there.read("nic", "gpu", 0, 8)[1].total + relay + across,
        "gpu_load_host": there.read("gpu", "host", 0, 8)[1].total,
    }


def loopback_cells(scenario):
    """Post to completion in ns by (payload, BlueFlame) of log 20, on the preset of that machine."""
    idle = Idle(scenario.pcie, scenario.memory, scenario.nic, scenario.wire)
    cells = {}
    for push in ("on", "off"):
        for payload in ("inline", "host", "GPU"):
            segments = idle.segments(
                8,
                inline=payload == "inline",
                pushed=push == "on",
                ringer="host",
                rings="host",
                source="host" if payload == "host" else "gpu",
            )
            segments.pop("landed")
            posted = sum(terms.total for terms in segments.values())
            cells[payload, push] = posted + scenario.cpu.poll_ns
    return cells
