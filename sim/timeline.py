"""The way of every message in segments, from landmark to landmark.

A segment ends at the landmark it is named after and begins where the previous one ended; a landmark
that does not exist (no fetch of a pushed WQE, no payload read of inline data) has no segment. Where
a landmark lies before its predecessor (a shared one, or work done ahead), it caused no delay: it is
moved onto its predecessor and its segment is 0. Segments are thus never negative and always add up
to the latency. `landed` lies beside the sum, unless it ends the measurement.

Of a message that was executed more than once, the last time counts. What went before, from its ring
to the last new start of its QP, is its segment `retry`.
"""

from pathlib import Path

import numpy as np

from hw.units import CLOCK_MHZ

from .joins import ABSENT, Joins, columns
from .landmarks import landmarks
from .names import LANDMARKS, SEGMENTS

__all__ = ["NS_PER_CYCLE", "ORDER", "timeline", "write_csv"]

NS_PER_CYCLE = 1000 / CLOCK_MHZ
#: Ends of the segments in their order on the path.
ORDER = (
    *LANDMARKS[: LANDMARKS.index("fetch_req")],
    "retry",
    *LANDMARKS[LANDMARKS.index("fetch_req") :],
)


def timeline(events, messages, connections, *, end="seen"):
    """Landmarks and segments of every message, as dict of int64 columns in cycles.

    Parameters
    ----------
    events : Events
    messages : dict of arrays or sequence of dicts, with at least `MESSAGE_FIELDS`
    connections : sequence of (node, qp, peer, peer's qp)
        As `connections_of` gives.
    end : str
        Landmark that ends the measurement: `seen`, or `landed`.

    Columns: `MESSAGE_FIELDS`; `covered_by`, `rung_by`, `fetched_by` (message number, `ABSENT`:
    nobody else); one per landmark (its cycle, or `ABSENT`); `latency`; one `segment_<landmark>`
    each (`ABSENT`: no such segment). A message without issue or without end has no latency and no
    segments.
    """
    if end not in ("seen", "landed"):
        raise ValueError(f"end = {end!r}: allowed 'seen' or 'landed'")
    messages = columns(messages)
    joins = Joins(events, messages, connections)
    marks, sharers = landmarks(joins)
    table = dict(
        messages,
        qp=joins.qp,
        wqe_index=np.where(joins.posted, joins.wqe_index & 0xFFFF, ABSENT),
        **sharers,
    )
    table |= {name: marks[name] for name in (*LANDMARKS, "retry")}

    path = [name for name in ORDER if name != "landed"]
    if end == "landed":
        path = [*path[: path.index("ack_rx")], "landed"]
    whole = (marks["issue"] >= 0) & (marks[end] >= marks["issue"])
    limit = marks[end]
    # Software goes on beside the NIC: what it stamps after the bell was heard held nobody up.
    heard = np.where(marks["ring_seen"] >= 0, marks["ring_seen"], limit)
    software = path[: path.index("ring") + 1]
    table["latency"] = np.where(whole, limit - marks["issue"], ABSENT)
    here = marks["issue"]
    for name in ORDER[1:]:
        segment = np.full(len(here), ABSENT)
        if name in path[1:]:
            there = np.minimum(marks[name], np.minimum(heard, limit) if name in software else limit)
            there = np.maximum(there, here)
            exists = whole & (marks[name] >= 0)
            segment = np.where(exists, there - here, ABSENT)
            here = np.where(exists, there, here)
        table[f"segment_{name}"] = segment
    return table


def write_csv(file, tables):
    """`messages.csv`: a row per message of each path's timeline ({path: table}); empty: absent.

    `at_<landmark>_ns` is the instant; `<segment>_ns` the time spent in the segment.
    """
    plain = {
        "message": "message",
        "node": "node",
        "peer": "peer",
        "qp": "qp",
        "wqe_index": "wqe_index",
        "size": "size_bytes",
        "signaled": "signaled",
        "covered_by": "covered_by_message",
        "rung_by": "rung_by_message",
        "fetched_by": "fetched_by_message",
    }
    timed = {
        "latency": "latency_ns",
        **{name: f"at_{name}_ns" for name in LANDMARKS},
        **{f"segment_{name}": f"{name}_ns" for name in SEGMENTS},
    }
    with Path(file).open("w", encoding="utf-8", newline="") as out:
        out.write(",".join(("path", *plain.values(), *timed.values())) + "\n")
        for path, table in tables.items():
            if not len(table["message"]):
                continue
            texts = [[path] * len(table["message"])]
            for key in (*plain, *timed):
                scale = 1 if key in plain or NS_PER_CYCLE == 1 else NS_PER_CYCLE
                texts.append(
                    ["" if value == ABSENT else str(value * scale) for value in table[key].tolist()]
                )
            out.write("\n".join(map(",".join, zip(*texts, strict=True))) + "\n")
