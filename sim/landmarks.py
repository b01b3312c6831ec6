"""Landmarks of every message: the cycles of its way, from the event log.

Where an event that covers several WQEs (a ring, a fetch, a CQE) belongs to another message,
`rung_by`, `fetched_by` and `covered_by` name that one.
"""

import numpy as np

from hw.formats.events import EventKind
from hw.formats.roce import AethClass, RoceOpcode
from hw.formats.tlp import MarkKind

from .joins import ABSENT, REQUEST_OPCODES, at, find, join, pick, reach

__all__ = ["landmarks"]

_FIRST = (RoceOpcode.WRITE_FIRST.value, RoceOpcode.WRITE_ONLY.value)
_SOFTWARE = {
    EventKind.ISSUE: "issue",
    EventKind.WQE_WRITTEN: "wqe_written",
    EventKind.REQUEST_WRITTEN: "request_written",
    EventKind.PROXY_SEEN: "proxy_seen",
    EventKind.PROXY_POSTED: "proxy_posted",
}


def landmarks(joins):
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
