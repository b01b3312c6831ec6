"""All scenarios of a folder against the figures kept beside them.

`FOLDER/*.toml` are the scenarios, `FOLDER/baselines/` holds one file of figures for each. A figure
that differs fails, and so does a scenario without figures or figures without a scenario. Accepting
what came out is a separate command, and the only thing that writes figures.
"""

import os
import shlex
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import TextIO

from . import baseline
from .baseline import Difference
from .progress import Progress
from .report.regression import junit, markdown, table
from .run import RunOptions, binary_for, execute
from .scenario import Scenario, load
from .schema import BadInput

__all__ = ["BASELINES", "Case", "Options", "cores", "regress"]

BASELINES = "baselines"
JUNIT, SUMMARY = "junit.xml", "summary.md"
SAME, DIFFERS, NEW, GONE = "same", "differs", "new", "gone"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is run, and what becomes of it."""

    folder: Path = Path("scenarios")
    #: Names of scenarios; empty: all, and then figures without a scenario count too.
    only: tuple[str, ...] = ()
    accept: bool = False
    #: Scenarios at a time.
    jobs: int = 1
    #: For the run directories, and for the reports that have no place of their own.
    out: Path = Path("runs/regress")
    junit: Path | None = None
    summary: Path | None = None
    #: How this command is called, to say how it is called again.
    command: str = "bellwire"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One scenario, compared."""

    name: str
    #: `same`, `differs`, `new` (nothing kept) or `gone` (no scenario).
    state: str
    figures: baseline.Baseline = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    wall_s: float = 0.0
    #: Its run directory.
    directory: Path | None = None
    #: Why it cannot be accepted.
    refused: str = ""

    @property
    def verdict(self) -> str:
        """The run's own."""
        return str(self.figures.get(baseline.RUN, {}).get("verdict", "-"))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def regress(options: Options, out: TextIO, err: TextIO) -> bool:
    """Run, compare, print and report; whether all is as it was, or is accepted now.

    Raises
    ------
    BadInput
        If a scenario, kept figures or a place cannot be used; nothing is run then.
    sim.toolchain.BuildError, sim.launch.LaunchError
        If the environment lacks something.
    """
    scenarios = _scenarios(options)
    kept = _kept(options, scenarios, err)
    reports = (options.junit or options.out / JUNIT, options.summary or options.out / SUMMARY)
    _make_room(reports)
    progress = Progress(err)
    for structure in {scenario.structure: None for scenario in scenarios.values()}:
        with progress.phase("model"):
            binary_for(structure, progress=progress.build)
    done = {case.name: case for case in _run_all(options, scenarios, kept, progress)}
    cases = [done[name] for name in scenarios]
    cases += [Case(name=name, state=GONE) for name in kept if name not in scenarios]
    again = f"{options.command} regress {shlex.quote(str(options.folder))}"
    replays = {case.name: f"{again} --only {case.name}" for case in cases if case.state == DIFFERS}
    for file, text in zip(reports, (junit(cases, replays), markdown(cases)), strict=True):
        file.write_text(text, encoding="utf-8")
    print(table(cases, reports[1]), file=out)
    if options.accept:
        return _accept(options, cases, out)
    for line in replays.values():
        print(f"replay: {line}", file=out)
    good = all(case.state == SAME for case in cases)
    if not good:
        print(f"accept what came out: {again} --accept", file=out)
    return good


def _scenarios(options: Options) -> dict[str, Scenario]:
    folder = options.folder
    files = {file.stem: file for file in sorted(folder.glob("*.toml"))}
    if not files:
        raise BadInput("regress", "folder", str(folder), "allowed a folder with scenarios, *.toml")
    for name in options.only:
        if name not in files:
            raise BadInput("--only", "name", name, f"allowed {', '.join(files)}")
    return {
        name: load(file) for name, file in files.items() if not options.only or name in options.only
    }


def _kept(
    options: Options, scenarios: dict[str, Scenario], err: TextIO
) -> dict[str, baseline.Baseline]:
    """Kept figures by name; where they are to be replaced, they need not be readable."""
    kept = {}
    for file in sorted((options.folder / BASELINES).glob("*.toml")):
        if options.only and file.stem not in scenarios:
            continue
        try:
            kept[file.stem] = baseline.read(file)
        except BadInput as error:
            if not options.accept:
                raise
            print(f"{error}", file=err)
            if file.stem not in scenarios:
                kept[file.stem] = {}
    return kept


def _make_room(reports: Sequence[Path]) -> None:
    """Folders for the reports; those of an earlier run go."""
    for file in reports:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
        except OSError as error:
            raise BadInput(
                "regress",
                "report",
                str(file),
                f"allowed a file that can be made ({error.strerror})",
            ) from None


def _run_all(
    options: Options,
    scenarios: dict[str, Scenario],
    kept: dict[str, baseline.Baseline],
    progress: Progress,
) -> Iterator[Case]:
    """Run scenarios side by side; yields each as it ends."""
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting: set[Future[Case]] = {
            pool.submit(_case, name, scenario, options.out / name, kept.get(name))
            for name, scenario in scenarios.items()
        }
        try:
            with progress.phase("regress"):
                while waiting:
                    ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in ended:
                        case = future.result()
                        progress.ended(f"{case.name}: {case.state}", case.wall_s)
                        yield case
                    progress.step(len(scenarios) - len(waiting), len(scenarios))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _case(name: str, scenario: Scenario, out: Path, kept: baseline.Baseline | None) -> Case:
    start = time.monotonic()
    run = execute(scenario, RunOptions(out=out), Progress(StringIO()))
    figures = baseline.of_result(run.result)
    found = tuple(baseline.differences(kept, figures)) if kept is not None else ()
    case = Case(
        name=name,
        state=NEW if kept is None else DIFFERS if found else SAME,
        figures=figures,
        differences=found,
        wall_s=time.monotonic() - start,
        directory=run.directory,
    )
    was = str(kept[baseline.RUN].get("verdict")) if kept and baseline.RUN in kept else case.verdict
    if case.verdict == "incomplete" or (was == "pass" != case.verdict):
        return replace(case, refused=f"verdict was {was}, is {case.verdict}")
    return case


def _accept(options: Options, cases: Sequence[Case], out: TextIO) -> bool:
    """Make the figures of the cases those that are kept; whether all of them were."""
    for case in cases:
        file = options.folder / BASELINES / f"{case.name}.toml"
        if case.refused:
            print(f"{file}: not accepted: {case.refused}; mend it, or delete the file", file=out)
        elif case.state == GONE:
            file.unlink()
            print(f"{file}: deleted, there is no such scenario", file=out)
        elif case.state != SAME:
            baseline.write(file, f"{case.name}.toml", case.figures)
            what = f"{len(case.differences)} figures changed" if case.differences else "new"
            print(f"{file}: accepted, {what} (verdict {case.verdict})", file=out)
    return not any(case.refused for case in cases)
