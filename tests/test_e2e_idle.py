"""On an idle system every hardware segment of a message equals its closed form, to the cycle."""

from pathlib import Path

import pytest
from support_path import closed, execute, hardware, puts, segments

from sim.paths import PATHS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("path", "sizes", "sets"),
    [
        ("gda_minimal", (1, 8, 28, 29, 64, 65, 500, 512, 4096, 4097, 10000), ()),
        ("gda_minimal", (8, 100, 300), ("gpu.inline_max_bytes=256", "nic.wqe_ns=31")),
        (
            "gda_minimal",
            (8, 4096),
            ("pcie.nic_gbps=200", "pcie.mps_bytes=128", "pcie.mrrs_bytes=4096", "wire.gbps=97.5"),
        ),
        ("ibgda", (1, 8, 64, 65, 4096, 10000), ()),
        ("ibgda", (8, 4096), ("nic.mtu_bytes=1024", "pcie.gpu_ns=77", "memory.gpu_store_ns=900")),
        ("ibrc", (8, 64, 512, 4096), ()),
        ("ibrc", (8, 4096), ("nic.mtu_bytes=1024", "wire.hops=3", "memory.gpu_read_ns=611")),
        ("verbs", (1, 8, 64, 512, 4097), ()),
        ("verbs", (8, 28, 64, 4096), ("cpu.inline_max_bytes=28", "pcie.host_ns=31")),
        # Pushes of two, three and four blocks.
        ("verbs", (29, 64, 93, 156, 157, 220), ("cpu.inline_max_bytes=220",)),
        ("verbs", (8, 4096), ("cpu.inline_max_bytes=28", "cpu.prefer_bf=false")),
        ("verbs", (8, 100, 300), ("cpu.inline_max_bytes=220", "cpu.bf=false")),
        (
            "verbs",
            (8, 9000),
            (
                'cpu.uar="nc"',
                'workload.0.memory="host"',
                'workload.0.remote_memory="host"',
                "memory.host_read_ns=311",
                "memory.host_commit_ns=77",
            ),
        ),
    ],
)
def test_hardware_segments_equal_their_closed_forms(path, sizes, sets, tmp_path):
    loaded, done = execute(puts(path, sizes), tmp_path / "run", sets)
    assert done.result["verdict"] == "pass"
    assert hardware(done, path) == {size: closed(loaded, path, size) for size in sizes}


@pytest.mark.parametrize("path", PATHS)
def test_segments_add_up_to_the_latency(path, tmp_path):
    _, done = execute(puts(path, (8, 4096)), tmp_path / "run")
    for group in done.result["paths"][path]["groups"]:
        assert sum(group["segments_ns"].values()) == group["latency_ns"]["p50"] > 0


def test_doorbell_to_completion_is_what_the_calibration_page_says(tmp_path):
    """Published: 3.30 us. The model's own figure is on the page, and so is the miss."""
    folder = ROOT / "scenarios" / "doorbell-to-cqe.toml"
    _, done = execute(folder.read_text(), tmp_path / "run")
    assert done.result["verdict"] == "pass"
    (group,) = done.result["paths"]["gda_minimal"]["groups"]
    before = group["segments_ns"]["wqe_written"] + group["segments_ns"]["ring"]
    figure = (group["latency_ns"]["p50"] - before) / 1000
    page = (ROOT / "docs" / "calibration-h200-cx7-ib200.md").read_text()
    assert f"The RTL with these constants gives {figure:.2f} us" in page
    assert not 0.85 <= figure / 3.30 <= 1.15, "a hit now: say so on the page"


def test_a_fence_waits_for_its_own_stores(tmp_path):
    """However long a store takes to become visible, the NIC reads the WQE that was written."""
    sets = ("memory.gpu_store_ns=900",)
    _, done = execute(puts("gda_minimal", (8,)), tmp_path / "run", sets)
    assert done.result["verdict"] == "pass"
    # 510 ns is what the fence costs by itself.
    assert segments(done, "gda_minimal")[8]["ring"] == 901
