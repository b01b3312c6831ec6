"""Measures the model's own speed, all of it in one run on one machine.

Other work on the machine makes a run slower, never faster. So speeds are those of the best of
several runs, and ratios are medians over pairs of runs, one right after the other. The simulator
is one thread that never waits, so its processor time is the same ratio with less of that noise.
"""

import csv
import datetime
import io
import json
import os
import platform
import resource
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from .. import trace
from ..build import ROOT
from ..launch import LaunchError, replay
from ..progress import Progress
from ..result import versions
from ..run import Run, RunOptions, binary_for, execute
from ..scenario import Scenario, load
from .stock import Runner

__all__ = ["covered", "measure"]

#: Two nodes under load, and messages one after the other.
_LOAD = ("under-load.toml", "workload.0.count=8192")
_LATENCY = ("doorbell-to-cqe.toml", "workload.0.count=2000")
#: Runs of each kind, or pairs of runs.
_ROUNDS, _STOCK_ROUNDS = 5, 3
#: Cycles with a message in a NIC, at least, for a load to be one.
_LOADED = 0.5


def measure(progress: Progress) -> dict[str, Any]:
    """All figures (`bars.BARS`), with date, machine and versions; takes a few minutes.

    Raises
    ------
    sim.toolchain.BuildError, sim.launch.LaunchError
        If the environment lacks something, or a run did not do what it must.
    """
    context = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": _machine(),
        "versions": versions(),
    }
    with tempfile.TemporaryDirectory(prefix="bellwire-bench-") as work:
        folder = Path(work)
        figures = _builds(_scenario(*_LOAD), folder / "cache", progress)
        figures |= _under_load(_scenario(*_LOAD), folder, progress)
        figures |= _latency(_scenario(*_LATENCY), folder, progress)
        figures |= _stock(folder, progress)
    # The largest of this process and all that it waited for, in KiB.
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return context | figures | {"peak_mb": max(one.ru_maxrss for one in usage) * 1024 / 1e6}


def covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Number of cycles within at least one interval (first, last)."""
    count, end = 0, -1
    for first, last in sorted(intervals):
        count += max(last - max(first, end + 1) + 1, 0)
        end = max(end, last)
    return count


def _machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    models = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else [])
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": platform.system(),
    }


def _scenario(name: str, *overrides: str) -> Scenario:
    return load(ROOT / "scenarios" / name, overrides)


def _builds(scenario: Scenario, cache: Path, progress: Progress) -> dict[str, float]:
    """A build into an empty cache, and one that must find everything there."""

    def timed(again: bool) -> float:
        phases: list[str] = []
        start = time.monotonic()

        def told(name: str, seconds: float | None) -> None:
            phases.append(name)
            progress.build(name, seconds)

        binary_for(scenario.structure, progress=told, cache=cache)
        if again and phases:
            raise LaunchError(f"the second build is none: it did {', '.join(phases)}")
        return time.monotonic() - start

    with progress.phase("cold build"):
        cold = timed(again=False)
    return {"build_cold_s": cold, "build_warm_s": timed(again=True)}


def _run(scenario: Scenario, folder: Path, record: bool = False) -> Run:
    options = RunOptions(out=folder / "run", record=record)
    run = execute(scenario, options, Progress(io.StringIO()))
    if run.result["verdict"] != "pass":
        raise LaunchError(f"{scenario.name}: {run.result['failures'][0]}")
    return run


def _under_load(scenario: Scenario, folder: Path, progress: Progress) -> dict[str, float]:
    """With Python and without, in turn."""
    (path,) = scenario.paths
    binary = binary_for(scenario.structure, progress=progress.build)
    with progress.phase("under load: record"):
        recorded = _run(scenario, folder, record=True)
        recording = (recorded.directory / "recording.bin").rename(folder / "recording.bin")
        log = trace.load(recorded.directory / "events.npz")[path].sha256
        loaded = _messages_in_a_nic(recorded) / recorded.result["sim"]["cycles"]
        if loaded < _LOADED:
            raise LaunchError(
                f"{scenario.name}: a message is in a NIC in {loaded:.0%} of the cycles"
            )
    runs, ratios = [], []
    with progress.phase("under load: with and without Python"):
        for done in range(_ROUNDS):
            progress.step(done, _ROUNDS)
            runs.append(_run(scenario, folder).result["sim"])
            alone = json.loads(replay(binary, recording))
            if alone["event_log_sha256"] != log:
                raise LaunchError(f"{scenario.name}: the replay's event log differs")
            ratios.append(alone["cpu_s"] / runs[-1]["cpu_s"])
    best = min(runs, key=lambda sim: sim["wall_s"])
    return {
        "cycles_per_s": best["cycles_per_s"],
        "messages_per_s": best["messages_per_s"],
        "replay_ratio": median(ratios),
    }


def _messages_in_a_nic(run: Run) -> int:
    """Cycles in which some message is between its doorbell's arrival and its completion."""
    with (run.directory / "messages.csv").open(newline="") as file:
        return covered(
            (int(float(row["at_ring_seen_ns"])), int(float(row["at_cqe_written_ns"])))
            for row in csv.DictReader(file)
        )


def _latency(scenario: Scenario, folder: Path, progress: Progress) -> dict[str, float]:
    with progress.phase("one message in flight"):
        speeds = [_run(scenario, folder).result["sim"]["cycles_per_s"] for _ in range(_ROUNDS)]
    return {"latency_cycles_per_s": max(speeds)}


def _stock(folder: Path, progress: Progress) -> dict[str, float]:
    with progress.phase("hw.doorbell: build both ways"):
        runner = Runner(folder)
    with progress.phase("hw.doorbell: run both"):
        return {"stock_ratio": median(runner.pair().ratio for _ in range(_STOCK_ROUNDS))}
