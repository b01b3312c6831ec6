"""Scenarios on the real machine, for the end-to-end tests.

All of them use the default structure, so that one binary serves the whole suite.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from pathlib import Path

import pytest

import sim.run
from sim import trace
from sim.job import MemoryCheck, Messages, Status
from sim.launch import Ended, launch
from sim.progress import Progress
from sim.result import validate
from sim.scenario import Scenario, load, loads

__all__ = [
    "CONTRACT_FILES",
    "ROOT",
    "SCENARIOS",
    "Outcome",
    "bellwire",
    "command",
    "environment",
    "run",
    "toml",
]

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = ROOT / "scenarios"
#: Exactly what a run directory holds.
CONTRACT_FILES = ["events.npz", "messages.csv", "result.json", "scenario.toml", "sim.log"]


def _value(value):
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value)


def toml(*, paths=("gda_minimal",), seed=7, preset="h200-cx7-ib200", **tables):
    """Text of a scenario: each keyword is a table, or a list of tables.

    A key that is a word of Python ends in `_`.
    """
    lines = [
        'schema = "bellwire.scenario/1"',
        f"preset = {_value(preset)}",
        f"seed = {seed}",
        f"paths = {_value(list(paths))}",
    ]
    for name, entries in tables.items():
        head = f"[[{name}]]" if isinstance(entries, list) else f"[{name}]"
        for entry in entries if isinstance(entries, list) else [entries]:
            lines += ["", head]
            lines += [f"{key.rstrip('_')} = {_value(value)}" for key, value in entry.items()]
    return "\n".join(lines) + "\n"


@dataclass
class Outcome:
    """A run and what the simulator left of each path."""

    scenario: Scenario
    directory: Path
    result: dict
    memory: dict[str, MemoryCheck] = field(default_factory=dict)
    messages: dict[str, Messages] = field(default_factory=dict)
    status: dict[str, Status] = field(default_factory=dict)
    waveless: tuple[str, ...] = ()

    @cached_property
    def logs(self):
        """Event log of each path."""
        return trace.load(self.directory / "events.npz")

    def table(self, path):
        """Rows of `messages.csv` of a path."""
        with (self.directory / "messages.csv").open() as file:
            return [row for row in csv.DictReader(file) if row["path"] == path]

    def kinds(self):
        """Kinds of all violations."""
        return {violation["kind"] for violation in self.result["violations"]}

    def must_pass(self):
        """All checks held, every message is complete, and every byte of them was compared."""
        assert self.result["verdict"] == "pass", (
            self.result["failures"],
            self.result["violations"][:5],
            (self.result["hang"] or {}).get("waits"),
        )
        assert validate(self.result) == []
        count = len(self.scenario.plan.messages)
        for path, entry in self.result["paths"].items():
            assert entry["messages"]["posted"] == entry["messages"]["completed"] == count, path
            assert entry["messages"]["statuses"] == {"SUCCESS": count}, path
            assert sum(group["wrong"] for group in entry["groups"]) == 0, path
            check = self.memory[path]
            assert check.total == 0 and check.guard_bytes > 0, path
            assert check.payload_bytes == self.written(), path
        return self

    def written(self):
        """Bytes that any message writes."""
        places = {}
        for m in self.scenario.plan.messages:
            key = m.peer, m.remote_region
            places.setdefault(key, []).append((m.remote_offset, m.remote_offset + m.size))
        total = 0
        for runs in places.values():
            end = 0
            for first, stop in sorted(runs):
                total += max(stop - max(first, end), 0)
                end = max(end, stop)
        return total


def run(text, folder, *overrides, seed=None, module=None, tamper=None, reuse=None, **options):
    """Run a scenario (its text, or its file) in this process, into a new folder of `folder`.

    Parameters
    ----------
    module : str, optional
        cocotb module to run instead of the bench.
    tamper : callable, optional
        (path, working directory): changes what the simulator left before it is judged.
    reuse : Path, optional
        Holds the working directory of each path, kept from an earlier run of the same scenario:
        used instead of a simulation.
    options
        Of `RunOptions`.
    """
    scenario = (
        load(text, overrides, seed)
        if isinstance(text, Path)
        else loads(text, "scenario.toml", overrides, seed)
    )
    memory, messages, status = {}, {}, {}

    def watched(binary, bench, work, **more):
        if reuse:
            shutil.copytree(reuse / work.name, work, dirs_exist_ok=True)
            ended = Ended(True, 0, (), work / "sim.log")
        else:
            ended = launch(binary, module or bench, work, **more)
        if tamper:
            tamper(work.name, work)
        for kind, place in ((MemoryCheck, memory), (Messages, messages), (Status, status)):
            if (work / kind.FILE).exists():
                place[work.name] = kind.load(work)
        return ended

    out = folder / f"run{len(list(folder.glob('run*')))}"
    options = sim.run.RunOptions(out=out, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim.run, "launch", watched)
        done = sim.run.execute(scenario, options, Progress(StringIO()))
    return Outcome(scenario, done.directory, done.result, memory, messages, status, done.waveless)


def command(*arguments):
    """The installed command with arguments, as a list of words."""
    script = Path(sys.executable).with_name("bellwire")
    head = [str(script)] if script.exists() else [sys.executable, "-m", "sim.cli"]
    return [*head, *map(str, arguments)]


def environment(**changes):
    """The environment of these tests, in which the command is that of their checkout."""
    return dict(os.environ) | {"PYTHONPATH": str(ROOT)} | changes


def bellwire(*arguments, cwd, timeout=120, **changes):
    """Run the installed command in folder `cwd`; keywords in capitals change its environment."""
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
