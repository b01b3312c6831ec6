"""One scenario in, one run directory out.

    resolve -> build -> one simulator process per path -> timeline and judgement -> result, tables

The directory is made under a temporary name beside its place and renamed at the end; bad input is
found before it is made. An interrupted run keeps what it has, with the verdict `incomplete`.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hw.config import Structure

from . import build as builder
from . import timeline, trace
from .job import EVENTS_FILE, Job, MemoryCheck, Messages, Status, parse_progress
from .joins import connections_of
from .launch import Ended, launch
from .limits import ceilings, limiter
from .names import STATUSES
from .progress import Progress
from .result import PathResult, build_result, validate
from .scenario import Scenario
from .schema import BadInput
from .statistics import group_stats
from .toolchain import wave_format
from .waves.dump import Dump, prepare
from .waves.layout import Layout
from .waves.request import WaveRequest

__all__ = ["Run", "RunOptions", "binary_for", "execute"]

BENCH = "sim.bench"
_WORK = "work"
#: Wall time that a simulator process gets beyond the scenario's limit, to end by itself.
_GRACE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a scenario is run, not what it is."""

    #: The run directory; None: `runs/<name of the run>`.
    out: Path | None = None
    waves: WaveRequest | None = None
    skip_idle: bool = True
    record: bool = False
    #: Version of IP in captures of the links; 0: none are made.
    pcap: int = 0


@dataclass(frozen=True)
class Run:
    """A finished run."""

    directory: Path
    result: dict[str, Any]
    #: Waveform file of each path that has one, and what is shown of them.
    waves: Mapping[str, Path] = field(default_factory=dict)
    layout: Layout | None = None
    #: Why there are none of a path, in a line each.
    waveless: tuple[str, ...] = ()

    @property
    def captures(self) -> tuple[Path, ...]:
        """Capture files of all paths and links."""
        return tuple(sorted(self.directory.glob("*.pcap")))


def binary_for(
    structure: Structure,
    trace: str = "",
    progress: Callable[[str, float | None], None] | None = None,
    cache: Path | None = None,
) -> Path:
    """The simulator of a structure, built if need be; raises `sim.toolchain.BuildError`.

    With `trace` (a form of waveforms) the names of its signals lie beside it (`sim.waves.catalog`).
    """

    def files() -> dict[str, str]:
        from hw.elaborate import convert
        from hw.node import Node

        verilog, names = convert(Node(structure))
        return {"node.v": verilog, "names.json": json.dumps(names)}

    return builder.build(structure.hash, files, trace=trace, progress=progress, cache=cache)


class _Directory:
    """The run directory in the making."""

    def __init__(self, final: Path) -> None:
        self.final = final
        self.scratch = final.parent / f".{final.name}.{os.getpid()}"
        #: Folders above it that were not there, the innermost first.
        self._above: list[Path] = []

    def make(self) -> Path:
        """Make the scratch directory."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._above = [folder for folder in self.scratch.parents if not folder.exists()]
        self.scratch.mkdir(parents=True)
        return self.scratch

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        for folder in self._above:
            # Another run may have put something there since.
            with contextlib.suppress(OSError):
                folder.rmdir()

    def finish(self) -> Path:
        """Put it in its place; an earlier run of the same name goes."""
        old = self.scratch.with_name(self.scratch.name + ".old")
        if self.final.exists():
            self.final.rename(old)
        self.scratch.rename(self.final)
        shutil.rmtree(old, ignore_errors=True)
        return self.final


def _place(scenario: Scenario, out: Path | None) -> Path:
    """Where the run goes; refuses to replace what is no run."""
    try:
        # Links are followed: the run goes where they point.
        place = (out or Path("runs") / scenario.run_name).resolve()
        free = not place.exists() or (
            place.is_dir() and ((place / "result.json").exists() or not any(place.iterdir()))
        )
    except OSError as error:
        raise BadInput(
            "--out", "out", str(out), f"allowed a folder that can be made ({error.strerror})"
        ) from None
    if not free:
        raise BadInput(
            "--out",
            "out",
            str(out or place),
            "allowed a new folder, an empty one or an earlier run",
        )
    return place


def execute(scenario: Scenario, options: RunOptions, progress: Progress) -> Run:
    """Run all paths of a scenario.

    Raises
    ------
    BadInput
        If the run directory cannot be had.
    sim.toolchain.BuildError, sim.launch.LaunchError
        If the environment lacks something; nothing is left behind.
    """
    directory = _Directory(_place(scenario, options.out))
    with progress.phase("model"):
        form = wave_format(options.waves.form) if options.waves else ""
        binary = binary_for(scenario.structure, trace=form, progress=progress.build)
        dump = (
            prepare(options.waves, form, scenario.structure, scenario.nodes.count, binary)
            if options.waves
            else None
        )
    try:
        scratch = directory.make()
    except OSError as error:
        raise BadInput(
            "--out",
            "out",
            str(directory.final),
            f"allowed a folder that can be made ({error.strerror})",
        ) from None
    try:
        (scratch / "scenario.toml").write_text(scenario.resolved_toml(), encoding="utf-8")
        result = _paths(scenario, options, progress, binary, dump, scratch)
        (scratch / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        waves, waveless = _waves(scenario, result, dump, scratch)
        _tidy(scenario, scratch)
    except BaseException:
        directory.discard()
        raise
    place = directory.finish()
    files = {path: place / name for path, name in waves.items()}
    return Run(place, result, files, dump.layout if dump else None, waveless)


def _paths(
    scenario: Scenario,
    options: RunOptions,
    progress: Progress,
    binary: Path,
    dump: Dump | None,
    scratch: Path,
) -> dict[str, Any]:
    """Run path after path, then judge what there is."""
    done: list[tuple[str, Ended | None]] = []
    cut = ""
    try:
        for path in scenario.paths:
            done.append((path, None))
            with progress.phase(f"simulate {path}"):
                done[-1] = (
                    path,
                    _simulate(
                        scenario, options, progress, binary, dump, scratch / _WORK / path, path
                    ),
                )
    except KeyboardInterrupt:
        cut = "interrupted"
    with progress.phase("judge"):
        try:
            result = _judged(scenario, scratch, done, cut)
        except KeyboardInterrupt:
            result = _judged(scenario, scratch, done, "interrupted")
    problems = validate(result)
    if problems:
        raise AssertionError("result.json: " + "; ".join(problems))
    return result


def _judged(
    scenario: Scenario, scratch: Path, done: list[tuple[str, Ended | None]], cut: str
) -> dict[str, Any]:
    """The result of what was run; writes the event log and the messages."""
    results, logs, tables = [], [], {}
    for path, ended in done:
        outcome, log, table = _outcome(scenario, scratch / _WORK / path, path, ended)
        results.append(outcome)
        logs.append(log)
        tables[path] = table
    trace.save(scratch / "events.npz", logs)
    timeline.write_csv(scratch / "messages.csv", tables)
    return build_result(scenario, results, log_sha256=_log_hash(logs), incomplete=cut)


def _log_hash(logs: Iterable[trace.Events]) -> str:
    """One hash for the logs of all paths: of each path's name and hash, in order."""
    text = "".join(f"{log.path} {log.sha256}\n" for log in logs)
    return hashlib.sha256(text.encode()).hexdigest()


def _simulate(
    scenario: Scenario,
    options: RunOptions,
    progress: Progress,
    binary: Path,
    dump: Dump | None,
    work: Path,
    path: str,
) -> Ended:
    work.mkdir(parents=True)
    Job(
        scenario="../../scenario.toml",
        path=path,
        seed=scenario.seed,
        skip_idle=options.skip_idle,
        record=options.record,
        pcap=options.pcap,
        waves=(dump and dump.request.window(path)) or (),
        wave_file=dump.file if dump else "",
        wave_names=dump.layout.names if dump else (),
    ).save(work)

    def line(text: str) -> None:
        if step := parse_progress(text):
            progress.step(step[0], step[1], f"cycle {step[2]}")

    return launch(
        binary,
        BENCH,
        work,
        nodes=scenario.nodes.count,
        seed=scenario.seed,
        timeout_s=scenario.check.wall_s + _GRACE_S,
        progress=line,
    )


def _outcome(
    scenario: Scenario, work: Path, path: str, ended: Ended | None
) -> tuple[PathResult, trace.Events, dict[str, Any]]:
    """What a path left, judged as far as it goes."""
    try:
        log = trace.read(work / EVENTS_FILE, path)
    except (OSError, trace.TraceError):
        log = trace.Events(np.zeros(0, trace.RECORD), path)
    messages = _load(Messages, work)
    planned = messages.columns if messages else _planned(scenario)
    table = timeline.timeline(log, planned, connections_of(scenario.plan))
    status = _load(Status, work)
    incomplete, died = "", ""
    if ended is None:
        incomplete = "interrupted"
    elif status is None:
        died = "; ".join(ended.failures) or "the simulator left no status"
    status = status or Status(
        ended="error", cycles=log.last_cycle, wall_s=0.0, reason=died or incomplete
    )
    memory = _load(MemoryCheck, work)
    verdict = (
        _judge(scenario, path, log, table, messages, memory, status)
        if messages and memory
        else None
    )
    violations = list(verdict.violations) if verdict else []
    if died or (status.ended == "error" and not incomplete):
        violations.append({"kind": "simulator", "text": status.reason})
    elif status.ended == "limit":
        violations.append({"kind": "limit", "cycle": status.cycles, "text": status.reason})
    wrong = set(memory.wrong) if memory else set()
    completed = sum(messages.columns["completed"]) if messages else 0
    return (
        PathResult(
            path=path,
            groups=_groups(scenario, path, table, wrong),
            posted=int(np.count_nonzero(table["wqe_index"] >= 0)),
            completed=completed,
            statuses=dict(verdict.statuses)
            if verdict
            else ({STATUSES[0]: completed} if completed else {}),
            counters=dict(verdict.counters) if verdict else {},
            links=dict(verdict.links) if verdict else {},
            violations=violations,
            hang=verdict.hang if verdict else None,
            cycles=status.cycles,
            wall_s=status.wall_s,
            cpu_s=status.cpu_s,
            event_log_sha256=log.sha256,
            incomplete=incomplete,
        ),
        log,
        table,
    )


def _judge(
    scenario: Scenario,
    path: str,
    log: trace.Events,
    table: dict[str, Any],
    messages: Messages,
    memory: MemoryCheck,
    status: Status,
) -> Any:
    """The scoreboard's verdict: `violations`, `statuses`, `counters`, `links`, `hang`."""
    from .scoreboard import judge

    return judge(scenario, path, log, table, messages, memory, status)


def _load(kind: Any, work: Path) -> Any:
    try:
        return kind.load(work)
    except (OSError, ValueError, TypeError):
        return None


def _planned(scenario: Scenario) -> list[dict[str, int]]:
    """Messages as the plan has them, for a path whose software left nothing."""
    plan = scenario.plan
    contexts = {(c.a, c.b, c.qp): c for c in plan.connections}
    return [
        {
            "message": m.number,
            "node": m.node,
            "peer": m.peer,
            "size": m.size,
            "signaled": int(m.signaled),
            "wqe_index": -1,
            "qp": contexts[min(m.node, m.peer), max(m.node, m.peer), m.qp].context(m.node),
        }
        for m in plan.messages
    ]


def _groups(
    scenario: Scenario, path: str, table: dict[str, Any], wrong: set[int]
) -> list[dict[str, Any]]:
    groups = []
    place = {int(number): row for row, number in enumerate(table["message"])}
    for group in scenario.plan.groups:
        rows: Any = np.array(
            [place[number] for number in group.messages if number in place], np.int64
        )
        stats = group_stats(table, rows)
        stats["count"] = len(group.messages)
        limits = ceilings(scenario, path, group)
        groups.append(
            {
                "size": group.size,
                **stats,
                "limiter": limiter(stats["rate_mops"], limits),
                "wrong": len(wrong.intersection(group.messages)),
            }
        )
    return groups


def _waves(
    scenario: Scenario, result: dict[str, Any], dump: Dump | None, scratch: Path
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Waveform files of all paths to their places: name by path, and what is missing."""
    names, missing = {}, []
    for path, entry in result["paths"].items():
        if not dump or not (window := dump.request.window(path)):
            continue
        name, cycles = _named(scenario, path, dump.file), entry["sim"]["cycles"]
        work = scratch / _WORK / path
        if problem := dump.collect(path, work, scratch / name, window, cycles):
            missing.append(problem)
        else:
            names[path] = name
    return names, tuple(missing)


def _named(scenario: Scenario, path: str, name: str) -> str:
    """Name in the run directory of what a path left."""
    return f"{path}-{name}" if len(scenario.paths) > 1 else name


def _tidy(scenario: Scenario, scratch: Path) -> None:
    """Logs and recordings of all paths into the run directory; the working directories go."""
    with (scratch / "sim.log").open("w", encoding="utf-8") as log:
        for path in scenario.paths:
            work = scratch / _WORK / path
            part = work / "sim.log"
            log.write(
                f"=== {path}\n{part.read_text(errors='replace') if part.exists() else 'not run'}\n"
            )
            for extra in (*work.glob("recording.*"), *work.glob("*.pcap")):
                extra.rename(scratch / _named(scenario, path, extra.name))
    shutil.rmtree(scratch / _WORK, ignore_errors=True)
