"""Tables for people, from a result alone. Units are in the header row and do not change."""

from collections.abc import Iterable
from typing import Any

from ..names import SEGMENTS

__all__ = ["compare_table", "grid", "header", "report", "segment_table"]

_NONE = "-"
#: Lines of one list of a hang report that are printed; `result.json` has all.
_MOST_LINES = 12


def grid(rows: Iterable[Iterable[str]], left: int = 1) -> str:
    """Rows as aligned columns; the first `left` of them to the left, the others to the right."""
    cells = [list(row) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def header(result: dict[str, Any]) -> str:
    """What the numbers depend on, as lines that start with #."""
    versions = " ".join(f"{name} {version}" for name, version in result["versions"].items())
    sim = result["sim"]
    log = f"event log {sim['event_log_sha256'][:16]}"
    speed = f"{sim['cycles_per_s']:.0f} cycles/s, {sim['messages_per_s']:.0f} messages/s"
    return "\n".join(
        [
            f"# {versions}",
            f"# scenario {result['scenario']}, preset {result['preset']}, seed {result['seed']}",
            f"# structure {result['structure_hash']}, timing {result['timing_hash']}, {log}",
            f"# {sim['cycles']} cycles in {sim['wall_s']:.2f} s: {speed}",
        ]
    )


def _pairs(result: dict[str, Any]) -> list[tuple[int, int, dict[str, dict[str, Any]]]]:
    """(size, which of that size, path to group), in order of the groups."""
    table: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    for path, entry in result["paths"].items():
        seen: dict[int, int] = {}
        for group in entry["groups"]:
            size = group["size"]
            seen[size] = seen.get(size, 0) + 1
            table.setdefault((size, seen[size]), {})[path] = group
    return [(size, turn, groups) for (size, turn), groups in table.items()]


def _us(group: dict[str, Any], key: str) -> str:
    latency = group["latency_ns"]
    return _NONE if latency is None else f"{latency[key] / 1000:.3f}"


def compare_table(result: dict[str, Any]) -> str:
    """Per size and path: latency, rate, goodput, limiter, wrong; against the first path of the
    scenario, the ratio of medians.
    """
    first = next(iter(result["paths"]), "")
    rows = [
        [
            "path",
            "size[B]",
            "count",
            "p50[us]",
            "p99[us]",
            "rate[M/s]",
            "goodput[Gb/s]",
            f"p50/{first}",
            "limiter",
            "#wrong",
        ]
    ]
    for size, _, groups in _pairs(result):
        base = groups.get(first)
        for path, group in groups.items():
            ratio = _NONE
            if base and base["latency_ns"] and group["latency_ns"]:
                ratio = f"{group['latency_ns']['p50'] / max(base['latency_ns']['p50'], 1e-9):.2f}"
            count = (
                str(group["count"])
                if group["finished"] == group["count"]
                else f"{group['finished']}/{group['count']}"
            )
            rows.append(
                [
                    path,
                    str(size),
                    count,
                    _us(group, "p50"),
                    _us(group, "p99"),
                    f"{group['rate_mops']:.3f}",
                    f"{group['goodput_gbps']:.2f}",
                    ratio,
                    group["limiter"],
                    str(group["wrong"]),
                ]
            )
    return grid(rows) if len(rows) > 1 else "no path has a result"


def segment_table(result: dict[str, Any]) -> str:
    """Mean time of each segment; the columns add up to their last row, the mean latency."""
    columns = [
        (path, group)
        for path, entry in result["paths"].items()
        for group in entry["groups"]
        if group["latency_ns"]
    ]
    if not columns:
        return "no message has finished"
    names = [name for name in SEGMENTS if any(name in group["segments_ns"] for _, group in columns)]
    rows = [["segment[ns]", *(f"{path} {group['size']}B" for path, group in columns)]]
    for name in names:
        rows.append(
            [
                name,
                *(
                    f"{group['segments_ns'][name]:.0f}" if name in group["segments_ns"] else _NONE
                    for _, group in columns
                ),
            ]
        )
    rows.append(["= mean latency", *(f"{group['latency_ns']['mean']:.0f}" for _, group in columns)])
    return grid(rows)


def _crossover(result: dict[str, Any]) -> list[str]:
    lines = []
    for pair, metrics in result["crossover"].items():
        for metric, entry in metrics.items():
            winners = [winner for winner in entry["winner"].values() if winner]
            if not winners:
                continue
            if entry["changes_at"]:
                parts = ", ".join(
                    f"{winner or 'neither'} at {size} B" for size, winner in entry["winner"].items()
                )
                lines.append(f"{metric}, {pair}: {parts}")
            else:
                lines.append(f"{metric}, {pair}: {winners[0]} is better at every size")
    return lines


def _hang(hang: dict[str, Any]) -> list[str]:
    lines = [f"HANG ({hang.get('path', '')})"]
    for key, value in hang.items():
        if key == "path":
            continue
        if isinstance(value, list):
            shown = value[-_MOST_LINES:]
            more = f" (last {len(shown)} of {len(value)})" if len(shown) < len(value) else ""
            lines += [f"  {key}{more}:", *(f"    {_flat(entry)}" for entry in shown)]
        else:
            lines.append(f"  {key}: {_flat(value)}")
    return lines


def _flat(value: Any) -> str:
    return (
        " ".join(f"{key}={entry}" for key, entry in value.items())
        if isinstance(value, dict)
        else str(value)
    )


def report(result: dict[str, Any]) -> str:
    """Everything that `bellwire run` prints."""
    parts = [header(result), "", compare_table(result), "", segment_table(result), ""]
    parts += _crossover(result)
    if result["hang"]:
        parts += ["", *_hang(result["hang"])]
    shown = result["violations"][:20]
    parts += [f"violation: {_flat(violation)}" for violation in shown]
    if len(result["violations"]) > len(shown):
        parts.append(
            f"and {len(result['violations']) - len(shown)} more violations, in result.json"
        )
    parts += [f"known miss: {text}" for text in result["misses"]]
    parts += [f"failure: {text}" for text in result["failures"]]
    parts.append(f"verdict: {result['verdict']}")
    return "\n".join(parts)
