"""`bellwire waves`: a recorded run once more, with waveforms of the cycles that matter."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hw.units import CLOCK_MHZ

from ..names import LANDMARKS
from ..progress import Progress
from ..run import Run, RunOptions, execute
from ..scenario import Scenario, load
from ..schema import BadInput
from .picture import draw
from .request import FOREVER, WaveRequest

__all__ = ["MARGIN", "Recorded", "rerun"]

#: Cycles that are dumped before a message's first landmark and after its last.
MARGIN = 50
_ALLOWED = "allowed the folder of an earlier run"


@dataclass(frozen=True)
class Recorded:
    """A run directory, as far as it is needed to repeat the run."""

    directory: Path
    scenario: Scenario
    result: dict[str, Any]

    @classmethod
    def load(cls, directory: Path) -> "Recorded":
        """Read a run directory; raises `BadInput` if it is none."""
        try:
            result = json.loads((directory / "result.json").read_text(encoding="utf-8"))
            hashes = [entry["sim"]["event_log_sha256"] for entry in result["paths"].values()]
            assert hashes
        except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError):
            raise BadInput(
                "bellwire", "RUN", str(directory), f"{_ALLOWED} (no whole result.json in it)"
            ) from None
        return cls(directory, load(directory / "scenario.toml"), result)

    def landmarks(self, message: int) -> dict[str, dict[str, int]]:
        """Cycle of each landmark of a message, per path that issued it.

        Raises
        ------
        BadInput
            If there is no such message, or none of the paths came to issue it.
        """
        count = len(self.scenario.plan.messages)
        if not 0 <= message < count:
            raise BadInput("bellwire", "--message", message, f"allowed 0 to {count - 1}")
        found = {}
        for row in self._rows():
            if row["message"] == str(message):
                marks = {name: row[f"at_{name}_ns"] for name in LANDMARKS}
                cycles = {n: round(float(ns) * CLOCK_MHZ / 1000) for n, ns in marks.items() if ns}
                if "issue" in cycles:
                    found[row["path"]] = cycles
        if not found:
            raise BadInput(
                "bellwire", "--message", message, "allowed a message that was issued in that run"
            )
        return found

    def _rows(self) -> list[dict[str, str]]:
        try:
            with (self.directory / "messages.csv").open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            wanted = {"path", "message", *(f"at_{name}_ns" for name in LANDMARKS)}
            if rows and not wanted <= set(rows[0]):
                raise ValueError
        except (OSError, ValueError):
            raise BadInput(
                "bellwire", "RUN", str(self.directory), f"{_ALLOWED} (no whole messages.csv in it)"
            ) from None
        return rows


def window(marks: Mapping[str, int]) -> tuple[int, int]:
    """First and last cycle around a message; one that nobody has seen complete goes to the end."""
    last = max(marks.values()) + MARGIN if "seen" in marks else FOREVER
    return max(min(marks.values()) - MARGIN, 0), last


def rerun(
    recorded: Recorded,
    request: WaveRequest,
    message: int | None,
    out: Path | None,
    progress: Progress,
) -> tuple[Run, tuple[str, ...]]:
    """Run it again.

    Parameters
    ----------
    request
        What is dumped; of a message, its window is put in.
    message
        Number of the message, or None.

    Returns
    -------
    run : Run
        The repeated run; with pictures, if of a message and as VCD.
    differences : tuple of str
        Why it is not the same run as the recorded one, a line per path.
    """
    marks = recorded.landmarks(message) if message is not None else {}
    scenario = recorded.scenario
    if marks:
        request = replace(request, by_path={path: window(m) for path, m in marks.items()})
    what = f"message-{message}" if marks else f"cycles-{request.first}"
    directory = recorded.directory.resolve()
    place = out or directory.with_name(f"{directory.name}-{what}")
    run = execute(scenario, RunOptions(out=place, waves=request), progress)
    for path, file in run.waves.items():
        if marks and file.suffix == ".vcd" and run.layout:
            title = f"{scenario.name}, path {path}: message {message}"
            picture = draw(run.layout, file, title, marks[path])
            file.with_suffix(".svg").write_text(picture, encoding="utf-8")
    return run, tuple(_differences(recorded, run))


def _differences(recorded: Recorded, run: Run) -> list[str]:
    def hashes(result: dict[str, Any]) -> dict[str, str]:
        return {path: entry["sim"]["event_log_sha256"] for path, entry in result["paths"].items()}

    before, now = hashes(recorded.result), hashes(run.result)
    return [
        f"path {path}: the event log of {recorded.directory} has the hash {before.get(path)}, "
        f"this run {digest}: not the same run (another version, or an edited scenario)"
        for path, digest in now.items()
        if before.get(path) != digest
    ]
