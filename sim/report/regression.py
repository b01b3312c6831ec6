"""What a regression found: a table for people, JUnit XML for machines, Markdown for a page."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..baseline import RUN, Difference, Value
from .tables import grid

if TYPE_CHECKING:
    from ..regress import Case

__all__ = ["junit", "markdown", "table"]

_COLUMNS = ("scenario", "path", "metric", "was", "is", "change")
#: Differences of one scenario that a terminal shows; the summary has all.
_SHOWN = 12
#: Characters of a text, such as a hash, that a table shows.
_WIDE = 24


def _text(value: Value | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value if len(value) <= _WIDE else f"{value[: _WIDE - 4]}..."
    return str(value)


def _row(case: "Case", difference: Difference) -> list[str]:
    d = difference
    return [case.name, d.path, d.name, _text(d.was), _text(d.now), d.change]


def _reason(case: "Case") -> str:
    """Why a case is not as it was, in one line; empty: it is."""
    if case.state == "new":
        return "no figures are kept"
    if case.state == "gone":
        return "figures are kept, but there is no such scenario"
    if not case.differences:
        return ""
    first = case.differences[0]
    more = len(case.differences) - 1
    where = "" if first.path == RUN else f"{first.path} "
    return f"{where}{first.name} was {_text(first.was)}, is {_text(first.now)}" + (
        f" (and {more} more)" if more else ""
    )


def table(cases: "Sequence[Case]", summary: Path) -> str:
    """Every difference (the first ones of each scenario), then one line that counts."""
    rows, notes = [list(_COLUMNS)], []
    for case in cases:
        rows += [_row(case, difference) for difference in case.differences[:_SHOWN]]
        if len(case.differences) > _SHOWN:
            more = len(case.differences) - _SHOWN
            notes.append(f"{case.name}: {more} more differences in {summary}")
        elif case.state in ("new", "gone"):
            notes.append(f"{case.name}: {_reason(case)}")
    same = sum(case.state == "same" for case in cases)
    lines = [grid(rows, left=3)] if len(rows) > 1 else []
    return "\n".join([*lines, *notes, f"regression: {same} of {len(cases)} scenarios as before"])


def junit(cases: "Sequence[Case]", replays: Mapping[str, str]) -> str:
    """A test case per scenario, in the dialect that continuous integration reads.

    Parameters
    ----------
    replays
        Name of a scenario to the command that runs it again.
    """
    failed = sum(case.state != "same" for case in cases)
    wall_s = sum(case.wall_s for case in cases)
    counts = {"tests": str(len(cases)), "failures": str(failed), "errors": "0", "skipped": "0"}
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        suites, "testsuite", {"name": "regression", "time": f"{wall_s:.3f}", **counts}
    )
    for case in cases:
        entry = ElementTree.SubElement(
            suite,
            "testcase",
            {"classname": "regression", "name": case.name, "time": f"{case.wall_s:.3f}"},
        )
        if case.state != "same":
            failure = ElementTree.SubElement(entry, "failure", {"message": _reason(case)})
            rows = [list(_COLUMNS), *(_row(case, difference) for difference in case.differences)]
            lines = [grid(rows, left=3)] if case.differences else []
            lines += [f"replay: {replays[case.name]}"] if case.name in replays else []
            failure.text = "\n".join(lines)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def markdown(cases: "Sequence[Case]") -> str:
    """A row per scenario, then every difference."""
    rows = [["scenario", "state", "verdict", "cycles", "wall[s]", "first difference"]]
    for case in cases:
        cycles = sum(
            value
            for figures in case.figures.values()
            if isinstance(value := figures.get("cycles"), int)
        )
        seconds = f"{case.wall_s:.1f}"
        rows.append([case.name, case.state, case.verdict, str(cycles), seconds, _reason(case)])
    same = sum(case.state == "same" for case in cases)
    lines = [f"## Regression: {same} of {len(cases)} scenarios as before", "", *_markdown(rows)]
    differences = [_row(case, difference) for case in cases for difference in case.differences]
    if differences:
        lines += ["", "### Differences", "", *_markdown([list(_COLUMNS), *differences])]
    return "\n".join(lines) + "\n"
