"""Starts the simulator's process and judges how it ended.

This is the only place that sets environment variables: those that cocotb forces on us. A run is
judged by cocotb's results file, never by the exit status alone (cocotb leaves 0 after a failed
test).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Ended", "LaunchError", "launch", "replay"]

RESULTS = "results.xml"
LOG = "sim.log"
#: Exit codes of sim/engine/main.cpp.
_CODES = {
    2: "bad arguments",
    3: "Python did not start",
    5: "the cycle limit was reached",
    6: "nothing can happen any more (deadlock)",
    7: "the engine stopped the run",
}


class LaunchError(Exception):
    """The environment lacks something that a run needs."""


@dataclass(frozen=True)
class Ended:
    """How a simulator process ended."""

    #: All tests of the module ran and passed.
    passed: bool
    #: Exit status of the process; negative: a signal.
    status: int
    #: Why not, one line for each failure.
    failures: tuple[str, ...]
    #: The process's output.
    log: Path


def _environment(module: str, results: Path, paths: Iterable[str], seed: int) -> dict[str, str]:
    import find_libpython
    from cocotb_tools import config

    library = find_libpython.find_libpython()
    if library is None:
        raise LaunchError(
            f"{sys.executable} has no shared libpython: apt install libpython3-dev, "
            "or build Python with --enable-shared"
        )
    return dict(os.environ) | {
        "GPI_USERS": f"{library};{config.pygpi_entry_point()}",
        "PYGPI_PYTHON_BIN": sys.executable,
        "PYTHONPATH": os.pathsep.join([*paths, *(path for path in sys.path if path)]),
        "COCOTB_TEST_MODULES": module,
        "COCOTB_TOPLEVEL": "bench",
        "TOPLEVEL_LANG": "verilog",
        "COCOTB_RESULTS_FILE": str(results),
        "COCOTB_TRUST_INERTIAL_WRITES": "1",
        "COCOTB_RANDOM_SEED": str(seed),
        "COCOTB_ANSI_OUTPUT": "0",
    }


def _judge(results: Path) -> tuple[int, tuple[str, ...]]:
    """Number of tests in a results file, and its failures."""
    try:
        tree = ElementTree.parse(results)
    except (OSError, ElementTree.ParseError):
        return 0, ()
    cases = list(tree.iter("testcase"))
    failures = []
    for case in cases:
        for kind in ("failure", "error"):
            for entry in case.iter(kind):
                text = (
                    entry.get("error_msg")
                    or entry.get("message")
                    or (entry.text or "").strip().splitlines()[-1:]
                    or kind
                )
                failures.append(f"{case.get('name')}: {text if isinstance(text, str) else text[0]}")
    return len(cases), tuple(failures)


def launch(
    binary: Path,
    test_module: str,
    run_dir: Path,
    *,
    nodes: int = 2,
    plusargs: Mapping[str, object] | None = None,
    paths: Iterable[Path] = (),
    seed: int = 1,
    timeout_s: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Ended:
    """Run the cocotb tests of `test_module` on `nodes` nodes, in `run_dir`, and wait.

    Parameters
    ----------
    plusargs
        What the test finds in `cocotb.plusargs`, as text.
    paths
        Folders to search for modules before this process's own.
    timeout_s
        Wall time after which the process is killed.
    progress
        Called with each line that the process prints. All of them are also in `run_dir/sim.log`.
    """
    run_dir = Path(run_dir).resolve()
    run_dir.mkdir(parents=True, exist_ok=True)
    results, log = run_dir / RESULTS, run_dir / LOG
    results.unlink(missing_ok=True)
    command = [
        str(Path(binary).resolve()),
        "--nodes",
        str(nodes),
        *(f"+{key}={value}" for key, value in (plusargs or {}).items()),
    ]
    environment = _environment(test_module, results, [str(path) for path in paths], seed)
    expired = False
    with (
        log.open("w") as file,
        subprocess.Popen(
            command,
            cwd=run_dir,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):

        def expire() -> None:
            nonlocal expired
            expired = True
            process.kill()

        timer = threading.Timer(timeout_s, expire) if timeout_s else None
        if timer:
            timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                if progress:
                    progress(line.rstrip("\n"))
        except BaseException:
            process.kill()
            raise
        finally:
            if timer:
                timer.cancel()
        status = process.wait()
    tests, failures = _judge(results)
    if expired:
        failures = (*failures, f"killed after {timeout_s:g} s")
    elif status and not failures:
        reason = _CODES.get(status, f"signal {-status}" if status < 0 else f"status {status}")
        failures = (f"the simulator ended: {reason}",)
    elif not tests:
        failures = ("no test ran",)
    return Ended(not failures, status, failures, log)


def replay(
    binary: Path, recording: Path, *, nodes: int = 2, skip: bool = True, events: Path | None = None
) -> str:
    """Run a recording without Python; returns the JSON line with hash, cycles and speed.

    Parameters
    ----------
    events
        File to which the event log is written (records of 32 bytes).
    """
    command = [str(binary), "--nodes", str(nodes), "--replay", str(recording)]
    command += [] if skip else ["--no-skip"]
    command += ["--events", str(events)] if events else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"replay failed with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()
