"""The exact figures of a scenario, as a file that is kept and compared.

Only what the same inputs give again bit by bit is in it: cycles, counts, hashes, never wall time.
Latencies and segments are in cycles; a mean is the exact quotient, so that one cycle in one message
shows. A figure has a path (of software) and a name, such as `8B.latency.p50`.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from .names import LATENCY, SEGMENTS
from .schema import BadInput, show
from .timeline import NS_PER_CYCLE

__all__ = ["RUN", "Baseline", "Difference", "differences", "of_result", "read", "write"]

SCHEMA = "bellwire.baseline/1"
#: Path of the figures that concern the run as a whole.
RUN = "run"
#: Figures that a baseline leaves out where they are 0, by the start of their names.
_ZERO = ("counters.", "links.", "statuses.", "violations.")
_LINK_FIELDS = ("tlps", "packets", "payload_bytes", "wire_bytes")

Value = int | float | str
#: Path to name to value.
Baseline = dict[str, dict[str, Value]]


@dataclass(frozen=True)
class Difference:
    """A figure that is not what it was; None: it does not exist."""

    path: str
    name: str
    was: Value | None
    now: Value | None

    @property
    def change(self) -> str:
        """By how much it grew, if both are numbers."""
        if isinstance(self.was, int | float) and isinstance(self.now, int | float):
            return f"{self.now - self.was:+.6g}"
        return ""


def of_result(result: dict[str, Any]) -> Baseline:
    """The figures of a `result.json`."""
    whole: dict[str, Value] = {"verdict": result["verdict"]}
    if result["failures"]:
        whole["failures"] = "; ".join(result["failures"])
    figures: Baseline = {RUN: whole}
    for path, entry in result["paths"].items():
        kinds: dict[str, int] = {}
        for violation in result["violations"]:
            if violation["path"] == path:
                kind = violation["kind"]
                kinds[kind] = kinds.get(kind, 0) + violation.get("count", 1)
        figures[path] = _path(entry, kinds)
    return figures


def _path(entry: dict[str, Any], violations: Mapping[str, int]) -> dict[str, Value]:
    figures: dict[str, Value] = {
        "cycles": entry["sim"]["cycles"],
        "event_log_sha256": entry["sim"]["event_log_sha256"],
        "messages.posted": entry["messages"]["posted"],
        "messages.completed": entry["messages"]["completed"],
    }
    counts = {
        "statuses": entry["messages"]["statuses"],
        "violations": violations,
        **{
            f"links.{link}": {name: table[name] for name in _LINK_FIELDS if name in table}
            for link, table in entry["links"].items()
        },
        "counters": entry["counters"],
    }
    seen: dict[int, int] = {}
    for group in entry["groups"]:
        size = group["size"]
        seen[size] = seen.get(size, 0) + 1
        turn = f"-{seen[size]}" if seen[size] > 1 else ""
        figures |= {f"{size}B{turn}.{name}": value for name, value in _group(group).items()}
    for prefix, table in counts.items():
        figures |= {f"{prefix}.{name}": value for name, value in table.items() if value}
    return figures


def _group(group: dict[str, Any]) -> dict[str, Value]:
    figures: dict[str, Value] = {name: group[name] for name in ("count", "finished", "wrong")}
    latency, segments = group["latency_ns"] or {}, group["segments_ns"]
    figures |= {f"latency.{name}": _cycles(latency[name]) for name in LATENCY if name in latency}
    figures |= {f"segment.{name}": _cycles(segments[name]) for name in SEGMENTS if name in segments}
    if group["landed_ns"] is not None:
        figures["landed"] = _cycles(group["landed_ns"])
    return figures | {"rate_mops": group["rate_mops"], "limiter": group["limiter"]}


def _cycles(nanoseconds: float) -> int | float:
    value = nanoseconds / NS_PER_CYCLE
    return int(value) if value == int(value) else value


def differences(was: Baseline, now: Baseline) -> list[Difference]:
    """Where two baselines differ, in the order of the second one."""
    found = []
    for path in {**now, **was}:
        old, new = was.get(path, {}), now.get(path, {})
        for name in {**new, **old}:
            zero = 0 if name.startswith(_ZERO) and old and new else None
            before, after = old.get(name, zero), new.get(name, zero)
            if before != after:
                found.append(Difference(path, name, before, after))
    return found


def write(file: Path, scenario: str, figures: Baseline) -> None:
    """Keep figures of a scenario (its file's name), whole or not at all."""
    lines = [
        f"# Exact figures of {scenario}, in cycles. `bellwire regress --accept` writes this file.",
        "",
        f"schema = {show(SCHEMA)}",
    ]
    for path, table in figures.items():
        lines += ["", f"[{path}]", *(f"{name} = {show(v)}" for name, v in table.items())]
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    scratch.write_text("\n".join(lines) + "\n", encoding="utf-8")
    scratch.replace(file)


def read(file: Path) -> Baseline:
    """Figures that were kept.

    Raises
    ------
    BadInput
    """
    accept = "`bellwire regress --accept` writes it anew"
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(file, "TOML", MISSING, f"{reason}; {accept}") from None
    if table.pop("schema", None) != SCHEMA:
        raise BadInput(file, "schema", MISSING, f"allowed {show(SCHEMA)}; {accept}")
    figures: Baseline = {}
    for path, entry in table.items():
        if not isinstance(entry, dict):
            raise BadInput(file, path, entry, f"allowed a table [{path}]; {accept}")
        figures[path] = dict(_flat(entry))
        for name, value in figures[path].items():
            if not isinstance(value, int | float | str) or isinstance(value, bool):
                raise BadInput(
                    file, f"{path}.{name}", value, f"allowed a number or a text; {accept}"
                )
    return figures


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
