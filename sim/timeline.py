"""Landmarks and segments of every message, from the event log (design 3.4).

Joins, all vectorised:

- software events carry the message number;
- events of the NIC carry (node, QP, WQE index). An index has 16 bits: in the order of occurrence it
  is unwrapped to a number without end, starting at the first index that software wrote to that QP;
- packets are found by (responder, its QP, PSN): the events of the transmitter say which WQE a PSN
  belongs to, and the connection whose WQE it is; PSNs are unwrapped alike. The low 12 bits of a QPN
  are the index of its context (`sim.connect`);
- what covers several WQEs (a ring, a fetch, an ACK, a CQE) is the first event in time that reaches
  the message's index. Where it belongs to another message, `rung_by`, `fetched_by` and `covered_by`
  name that one.

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

from hw.config import CLOCK_MHZ
from hw.formats.events import EventKind
from hw.formats.roce import RESPONSES, AethClass, RoceOpcode
from hw.formats.tlp import MarkKind

from .names import LANDMARKS, SEGMENTS

__all__ = [
    "ABSENT",
    "MESSAGE_FIELDS",
    "REQUEST_OPCODES",
    "columns",
    "connections_of",
    "group_stats",
    "latency_stats",
    "segments_ns",
    "sending_port",
    "timeline",
    "write_csv",
]

#: Cycle of a landmark that did not happen; message number of nobody.
ABSENT = -1
#: What the joins need to know of a message; `wqe_index` is `ABSENT` where it was never posted.
MESSAGE_FIELDS = ("message", "node", "peer", "qp", "wqe_index", "size", "signaled")
NS_PER_CYCLE = 1000 / CLOCK_MHZ

REQUEST_OPCODES = tuple(opcode.value for opcode in RoceOpcode if opcode not in RESPONSES)
_FIRST = (RoceOpcode.WRITE_FIRST.value, RoceOpcode.WRITE_ONLY.value)
_LAST = (RoceOpcode.WRITE_LAST.value, RoceOpcode.WRITE_ONLY.value)
_SOFTWARE = {
    EventKind.ISSUE: "issue",
    EventKind.WQE_WRITTEN: "wqe_written",
    EventKind.REQUEST_WRITTEN: "request_written",
    EventKind.PROXY_SEEN: "proxy_seen",
    EventKind.PROXY_POSTED: "proxy_posted",
}
#: Ends of the segments in their order on the path.
_ORDER = (
    *LANDMARKS[: LANDMARKS.index("fetch_req")],
    "retry",
    *LANDMARKS[LANDMARKS.index("fetch_req") :],
)
#: A composite key is a group (node and QP) above a number of this many bits.
_BITS = 40


def columns(messages):
    """Messages (dict of arrays, or sequence of dicts) as int64 arrays of `MESSAGE_FIELDS`."""
    if not isinstance(messages, dict):
        rows = list(messages)
        messages = {key: [row[key] for row in rows] for key in MESSAGE_FIELDS}
    return {key: np.asarray(messages[key], np.int64).reshape(-1) for key in MESSAGE_FIELDS}


def group(node, qp):
    """One number for a QP of a node."""
    return node << 12 | qp


def sending_port(packets):
    """One number for the wire port that sent each packet."""
    return packets["node"] << 1 | packets["port"]


def unwrap(groups, values, bits, anchors):
    """Numbers without end from counters of `bits` bits, in order of occurrence within each group.

    `anchors` holds, per element, the number near which its group starts.
    """
    half = 1 << bits - 1
    order = np.argsort(groups, kind="stable")
    g, v, a = groups[order], values[order], anchors[order]
    head = np.ones(len(g), bool)
    head[1:] = g[1:] != g[:-1]
    previous = np.where(head, a, np.concatenate((v[:1], v[:-1])))
    steps = (v - previous + half & (1 << bits) - 1) - half
    total = np.cumsum(steps)
    start = np.maximum.accumulate(np.where(head, np.arange(len(g)), 0))
    unwrapped = np.empty(len(g), np.int64)
    unwrapped[order] = a + total - (total - steps)[start]
    return unwrapped


def lookup(keys, values, wanted, default):
    """`values` of the first of `keys` that equals each of `wanted`, or its default."""
    row = find(keys, wanted, last=False)
    return np.where(row >= 0, np.append(values, 0)[row], default)


def find(keys, wanted, last=True):
    """Position of the last (or first) of `keys` that equals each of `wanted`, or `ABSENT`."""
    if not len(keys):
        return np.full(len(wanted), ABSENT)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    place = (
        np.searchsorted(ordered, wanted, "right") - 1
        if last
        else np.searchsorted(ordered, wanted, "left")
    )
    place = np.clip(place, 0, len(keys) - 1)
    return np.where(ordered[place] == wanted, order[place], ABSENT)


def reach(groups, values, wanted_groups, wanted):
    """First event of the same group in time that reaches the wanted value, or `ABSENT`."""
    if not len(groups):
        return np.full(len(wanted), ABSENT)
    order = np.argsort(groups, kind="stable")
    reached = np.maximum.accumulate(join(groups, values)[order])
    place = np.searchsorted(reached, join(wanted_groups, wanted), "left")
    inside = np.minimum(place, len(groups) - 1)
    return np.where(
        (place < len(groups)) & (groups[order][inside] == wanted_groups), order[inside], ABSENT
    )


def count_up(values):
    """How many equal values stand before each one."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    place = np.arange(len(values))
    head = np.ones(len(values), bool)
    head[1:] = ordered[1:] != ordered[:-1]
    counted = np.empty(len(values), np.int64)
    counted[order] = place - np.maximum.accumulate(np.where(head, place, 0))
    return counted


def join(groups, values):
    """Composite key. Values may be a little below 0 (an anchor is not always the lowest)."""
    return (groups << _BITS) + values + (1 << _BITS - 1)


def at(table, rows):
    """Cycles of rows of an event table, `ABSENT` where the row is."""
    return np.where(rows >= 0, np.append(table["cycle"], 0)[rows], ABSENT)


def pick(table, mask):
    """The rows of an event table for which the mask holds."""
    return {key: values[mask] for key, values in table.items()}


class Joins:
    """The keys that tie messages and events together.

    Parameters
    ----------
    events : Events
    messages : dict of arrays (`columns`)
    connections : sequence of (node, qp, peer, peer's qp)
        Context indices of both ends, once from each end.

    Attributes: `groups` (node and QP), `responders` (the same of the far end) and `index`
    (unwrapped WQE index) of the messages; `posted` says for which the index holds.
    """

    def __init__(self, events, messages, connections):
        self.events, self.messages = events, messages
        ends = np.asarray(connections, np.int64).reshape(-1, 4)
        self._near, self._far = group(ends[:, 0], ends[:, 1]), group(ends[:, 2], ends[:, 3])
        written = events.of(EventKind.WQE_WRITTEN)
        row = find(written["message"], messages["message"], last=False)
        found = row >= 0
        # The event is what happened; the message's own fields stand in where it is missing.
        self.wqe_index = np.where(
            found, np.append(written["wqe_index"], 0)[row], messages["wqe_index"]
        )
        self.qp = np.where(found, np.append(written["qp"], 0)[row], messages["qp"])
        self.posted = self.wqe_index >= 0
        self.groups = group(messages["node"], self.qp)
        self.responders = lookup(self._near, self._far, self.groups, ABSENT)
        order = np.argsort(
            np.where(found, np.append(written["cycle"], 0)[row], np.iinfo(np.int64).max),
            kind="stable",
        )
        order = order[self.posted[order]]
        raw = self.wqe_index[order] & 0xFFFF
        self._anchor_groups, first = np.unique(self.groups[order], return_index=True)
        self._anchors = raw[first]
        self.index = np.full(len(self.wqe_index), ABSENT)
        self.index[order] = self.unwrapped(self.groups[order], raw)

    def unwrapped(self, groups, values):
        """16-bit indices of a stream of events, unwrapped near the first that software wrote."""
        anchors = lookup(self._anchor_groups, self._anchors, groups, values)
        return unwrap(groups, values & 0xFFFF, 16, anchors)

    def of(self, kind, mask=None, qp="qp", index="wqe_index"):
        """Events of a kind with their `group` and unwrapped `index`."""
        table = self.events.of(kind)
        table = dict(table) if mask is None else pick(table, mask(table))
        table["group"] = group(table["node"], table[qp])
        table["index"] = self.unwrapped(table["group"], table[index])
        return table

    def message_at(self, groups, index):
        """Number of the message whose WQE starts at an index; `ABSENT` where there is none."""
        keys = np.where(self.posted, join(self.groups, self.index), ABSENT)
        return lookup(keys, self.messages["message"], join(groups, index), ABSENT)

    def row_at(self, groups, index):
        """Row of the message whose WQE starts at an index; `ABSENT` where there is none."""
        keys = np.where(self.posted, join(self.groups, self.index), ABSENT)
        return find(keys, join(groups, index))

    def own(self, table, last=True):
        """Per message the row of the event with its own WQE index."""
        rows = find(join(table["group"], table["index"]), join(self.groups, self.index), last)
        return np.where(self.posted, rows, ABSENT)

    def covering(self, table, beyond=0):
        """Per message the row of the first event that reaches its WQE index (plus `beyond`)."""
        rows = reach(table["group"], table["index"], self.groups, self.index + beyond)
        return np.where(self.posted, rows, ABSENT)

    def sent(self, kind, opcodes):
        """Packets of requests in TX_FIRST or TX_LAST with their requester's `group` and `index`.

        The transmitter does not know the QP; the QPN that a packet is addressed to names the
        connection. TX_LAST does not say which node that is on, but packets of a port leave one
        behind the other: the n-th last beat ends the n-th first.
        """
        table = dict(self.events.of(kind))
        if kind is EventKind.TX_LAST:
            first = self.events.of(EventKind.TX_FIRST)
            starts, ends = sending_port(first), sending_port(table)
            row = find(join(starts, count_up(starts)), join(ends, count_up(ends)))
            row = np.where(
                (row >= 0) & (np.append(first["psn"], ABSENT)[row] == table["psn"]), row, ABSENT
            )
            table["dest"] = np.where(row >= 0, np.append(first["dest"], 0)[row], ABSENT)
        table = pick(table, np.isin(table["opcode"], opcodes))
        table["group"] = lookup(
            self._far, self._near, group(table["dest"], table["dest_qp"]), ABSENT
        )
        table["index"] = self.unwrapped(table["group"], table["wqe_index"])
        return table

    def packets(self):
        """Per message the end of its last packet (`last`) and its unwrapped PSN (`psn`).

        For `psn`: where PSNs start, by QP (`near`, the requester; `far`, the responder).
        """
        table = self.sent(EventKind.TX_LAST, REQUEST_OPCODES)
        near, first = np.unique(table["group"], return_index=True)
        starts = table["psn"][first]
        table["unwrapped"] = self.psn(table["group"], table["psn"], near, starts)
        table = pick(table, np.isin(table["opcode"], _LAST))
        row = self.own(table)
        return {
            "last": at(table, row),
            "psn": np.where(row >= 0, np.append(table["unwrapped"], 0)[row], ABSENT),
            "near": near,
            "far": lookup(self._near, self._far, near, ABSENT),
            "starts": starts,
        }

    def psn(self, groups, values, known, starts):
        """24-bit PSNs of a stream of events, unwrapped near where the QP's PSNs start."""
        return unwrap(groups, values, 24, lookup(known, starts, groups, values))


def _landmarks(joins):
    """Dict of cycles per landmark, and who shares them."""
    events, messages = joins.events, joins.messages
    numbers = messages["message"]
    marks = {}
    for kind, name in _SOFTWARE.items():
        table = events.of(kind)
        marks[name] = at(table, find(table["message"], numbers, last=False))

    seen_at = joins.of(EventKind.RING_SEEN, index="producer")
    marks["ring_seen"] = at(seen_at, joins.covering(seen_at, beyond=1))

    # The message's own ring; else that of the message whose ring reaches it; else the last one
    # before it was seen.
    ring = events.of(EventKind.RING)
    ringer = find(numbers, ring["message"], last=False)
    ring_groups = np.where(ringer >= 0, np.append(joins.groups, 0)[ringer], ABSENT)
    row = find(ring["message"], numbers, last=False)
    covering = reach(ring_groups, np.append(joins.index, 0)[ringer], joins.groups, joins.index)
    row = np.where((row < 0) & joins.posted, covering, row)
    if len(ring["cycle"]):
        late = (row < 0) & (marks["ring_seen"] >= 0)
        order = np.argsort(ring_groups, kind="stable")
        place = (
            np.searchsorted(
                join(ring_groups, ring["cycle"])[order],
                join(joins.groups, marks["ring_seen"]),
                "right",
            )
            - 1
        )
        before = order[np.maximum(place, 0)]
        row = np.where(late & (place >= 0) & (ring_groups[before] == joins.groups), before, row)
    marks["ring"] = at(ring, row)
    rung_by = np.where(row >= 0, np.append(ring["message"], 0)[row], ABSENT)

    fetch = joins.of(EventKind.FETCH_REQUESTED)
    order = np.argsort(join(fetch["group"], fetch["index"]), kind="stable")
    fetch = pick(fetch, order)
    place = (
        np.searchsorted(
            join(fetch["group"], fetch["index"]), join(joins.groups, joins.index), "right"
        )
        - 1
    )
    inside = np.maximum(place, 0)
    if len(fetch["cycle"]):
        holds = (place >= 0) & joins.posted & (fetch["group"][inside] == joins.groups)
        holds &= joins.index < (fetch["index"] + fetch["blocks"])[inside]
    else:
        holds = np.zeros(len(numbers), bool)
    row = np.where(holds, inside, ABSENT)
    marks["fetch_req"] = at(fetch, row)
    start = np.where(holds, np.append(fetch["index"], 0)[row], joins.index)
    fetched_by = np.where(holds, joins.message_at(joins.groups, start), ABSENT)

    retry = _retries(joins)
    retried = np.flatnonzero(retry >= 0)
    for row in retried.tolist():
        marks["fetch_req"][row] = _fetched_again(joins, fetch, row, retry[row])

    for kind, name in (
        (EventKind.FETCHED, "fetched"),
        (EventKind.PAYLOAD_REQUESTED, "payload_req"),
        (EventKind.PAYLOAD_ARRIVED, "payload"),
    ):
        table = joins.of(kind)
        marks[name] = at(table, joins.own(table))
    table = joins.sent(EventKind.TX_FIRST, _FIRST)
    marks["tx_first"] = at(table, joins.own(table))
    if len(retried):
        # It may have begun in its middle.
        table = joins.sent(EventKind.TX_FIRST, REQUEST_OPCODES)
        message = joins.row_at(table["group"], table["index"])
        table = pick(table, table["cycle"] > np.append(retry, ABSENT)[message])
        first = at(table, joins.own(table, last=False))
        marks["tx_first"] = np.where((retry >= 0) & (first >= 0), first, marks["tx_first"])
    marks["retry"] = retry

    packets = joins.packets()
    marks["tx_last"] = packets["last"]
    sent = packets["psn"] >= 0
    wanted = join(joins.responders, packets["psn"])

    table = joins.of(
        EventKind.RX_LAST, lambda table: np.isin(table["opcode"], REQUEST_OPCODES), index="psn"
    )
    keys = join(
        table["group"], joins.psn(table["group"], table["psn"], packets["far"], packets["starts"])
    )
    marks["rx_last"] = at(table, np.where(sent, find(keys, wanted), ABSENT))

    table = joins.of(
        EventKind.COMMIT,
        lambda table: table["mark_kind"] == MarkKind.PAYLOAD_LAST.value,
        "mark_qp",
        "mark_index",
    )
    keys = join(
        table["group"],
        joins.psn(table["group"], table["mark_index"], packets["far"], packets["starts"]),
    )
    marks["landed"] = at(table, np.where(sent, find(keys, wanted), ABSENT))

    table = joins.of(EventKind.ACK_RECEIVED, index="psn")
    # A NAK acknowledges what is before it.
    last = table["psn"] - (table["syndrome"] >> 5 != AethClass.ACK.value) & (1 << 24) - 1
    psn = joins.psn(table["group"], last, packets["near"], packets["starts"])
    marks["ack_rx"] = at(
        table, np.where(sent, reach(table["group"], psn, joins.groups, packets["psn"]), ABSENT)
    )

    cqe = joins.of(
        EventKind.COMMIT,
        lambda table: (table["mark_kind"] == MarkKind.CQE.value) & (table["last"] == 1),
        "mark_qp",
        "mark_index",
    )
    row = joins.covering(cqe)
    marks["cqe_written"] = at(cqe, row)
    covered_by = joins.message_at(
        joins.groups, np.where(row >= 0, np.append(cqe["index"], 0)[row], joins.index)
    )

    seen = events.of(EventKind.SEEN)
    row = find(seen["message"], numbers, last=False)
    seer = find(numbers, seen["message"], last=False)
    later = reach(
        np.where(seer >= 0, np.append(joins.groups, 0)[seer], ABSENT),
        np.append(joins.index, 0)[seer],
        joins.groups,
        joins.index,
    )
    row = np.where((row < 0) & joins.posted, later, row)
    marks["seen"] = at(seen, row)
    by_seen = np.where(row >= 0, np.append(seen["message"], 0)[row], ABSENT)
    covered_by = np.where((covered_by == numbers) | (covered_by < 0), by_seen, covered_by)

    def other(sharer):
        return np.where((sharer == numbers) | ~joins.posted, ABSENT, sharer)

    retired = joins.of(EventKind.RETIRED)
    row = joins.own(retired)
    status = np.where(row >= 0, np.append(retired["status"], 0)[row], ABSENT)

    return marks, {
        "status": status,
        "rung_by": other(rung_by),
        "fetched_by": other(fetched_by),
        "covered_by": other(covered_by),
    }


def _retries(joins):
    """Per message the cycle of the new start of its QP from which it was executed last; `ABSENT` of
    a message that was executed once.
    """
    retry = np.full(len(joins.index), ABSENT)
    again = joins.of(EventKind.RETRANSMITTED)
    if not len(again["cycle"]):
        return retry
    fetched = joins.of(EventKind.FETCHED)
    first, last = (at(fetched, joins.own(fetched, last=which)) for which in (False, True))
    for key in np.unique(again["group"]).tolist():
        mine = np.flatnonzero((joins.groups == key) & (last > first))
        cycles = again["cycle"][again["group"] == key]
        place = np.searchsorted(cycles, last[mine], "left") - 1
        retry[mine] = np.where(place >= 0, cycles[np.maximum(place, 0)], ABSENT)
    return retry


def _fetched_again(joins, fetch, row, since):
    """Cycle of the first fetch that covers a message since a new start of its QP."""
    holds = (fetch["group"] == joins.groups[row]) & (fetch["cycle"] >= since)
    holds &= (fetch["index"] <= joins.index[row]) & (
        joins.index[row] < fetch["index"] + fetch["blocks"]
    )
    return int(fetch["cycle"][holds].min()) if np.any(holds) else ABSENT


def connections_of(plan):
    """(node, qp, peer, peer's qp) of all connections of a plan, from both ends."""
    return [
        (*near[:2], *far[:2])
        for connection in plan.connections
        for near, far in (connection.ends, connection.ends[::-1])
    ]


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
    marks, sharers = _landmarks(joins)
    table = dict(
        messages,
        qp=joins.qp,
        wqe_index=np.where(joins.posted, joins.wqe_index & 0xFFFF, ABSENT),
        **sharers,
    )
    table |= {name: marks[name] for name in (*LANDMARKS, "retry")}

    path = [name for name in _ORDER if name != "landed"]
    if end == "landed":
        path = [*path[: path.index("ack_rx")], "landed"]
    whole = (marks["issue"] >= 0) & (marks[end] >= marks["issue"])
    limit = marks[end]
    # Software goes on beside the NIC: what it stamps after the bell was heard held nobody up.
    heard = np.where(marks["ring_seen"] >= 0, marks["ring_seen"], limit)
    software = path[: path.index("ring") + 1]
    table["latency"] = np.where(whole, limit - marks["issue"], ABSENT)
    here = marks["issue"]
    for name in _ORDER[1:]:
        segment = np.full(len(here), ABSENT)
        if name in path[1:]:
            there = np.minimum(marks[name], np.minimum(heard, limit) if name in software else limit)
            there = np.maximum(there, here)
            exists = whole & (marks[name] >= 0)
            segment = np.where(exists, there - here, ABSENT)
            here = np.where(exists, there, here)
        table[f"segment_{name}"] = segment
    return table


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
    for name in _ORDER[1:]:
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
