"""What a result says of the times of a group of messages."""

import numpy as np

from .timeline import NS_PER_CYCLE, ORDER

__all__ = ["group_stats", "latency_stats", "segments_ns"]


def _nearest_rank(ordered, per_mille):
    return ordered[max(-(-per_mille * len(ordered) // 1000), 1) - 1]


def latency_stats(latency):
    """`latency_ns` of a result, from cycles; percentiles are nearest rank. None: no message."""
    if not len(latency):
        return None
    ordered = np.sort(latency) * NS_PER_CYCLE
    ranks = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
    return {
        "min": float(ordered[0]),
        **{name: float(_nearest_rank(ordered, rank)) for name, rank in ranks.items()},
        "max": float(ordered[-1]),
        "mean": float(ordered.mean()),
    }


def segments_ns(table, rows=slice(None)):
    """Means of the segments over the finished messages among some rows, in path order.

    A message without a segment counts as 0, so that the means add up to the mean latency. A segment
    that no message has is left out. `landed` is not among them, unless it ended the measurement.
    """
    whole = table["latency"][rows] >= 0
    means = {}
    for name in ORDER[1:]:
        segment = table[f"segment_{name}"][rows][whole]
        if np.any(segment >= 0):
            means[name] = float(np.maximum(segment, 0).mean() * NS_PER_CYCLE)
    return means


def group_stats(table, rows=slice(None), end="seen"):
    """What `result.json` says of a group, except its limiter and its wrong messages.

    Rate and goodput are over the window from the first issue to the last end.
    """
    latency = table["latency"][rows]
    whole = latency >= 0
    stats = {
        "count": len(latency),
        "finished": int(whole.sum()),
        "latency_ns": latency_stats(latency[whole]),
        "rate_mops": 0.0,
        "goodput_gbps": 0.0,
        "segments_ns": segments_ns(table, rows),
        "landed_ns": None,
    }
    if stats["finished"]:
        issue, ended, size = (table[name][rows][whole] for name in ("issue", end, "size"))
        window_ns = float(ended.max() - issue.min()) * NS_PER_CYCLE
        if window_ns > 0:
            stats["rate_mops"] = stats["finished"] * 1000 / window_ns
            stats["goodput_gbps"] = float(size.sum()) * 8 / window_ns
        landed = table["landed"][rows][whole]
        if np.any(landed >= 0):
            stats["landed_ns"] = float((landed - issue)[landed >= 0].mean() * NS_PER_CYCLE)
    return stats
