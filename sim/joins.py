"""Which messages and events belong together.

All vectorised:

- software events carry the message number;
- events of the NIC carry (node, QP, WQE index). An index has 16 bits: in the order of occurrence it
  is unwrapped to a number without end, starting at the first index that software wrote to that QP;
- packets are found by (responder, its QP, PSN): the events of the transmitter say which WQE a PSN
  belongs to, and the connection whose WQE it is; PSNs are unwrapped alike. The low 12 bits of a QPN
  are the index of its context (`sim.connect`);
- what covers several WQEs (a ring, a fetch, an ACK, a CQE) is the first event in time that reaches
  the message's index.
"""

import numpy as np

from hw.formats.events import EventKind
from hw.formats.roce import RESPONSES, RoceOpcode

__all__ = [
    "ABSENT",
    "MESSAGE_FIELDS",
    "REQUEST_OPCODES",
    "Joins",
    "at",
    "columns",
    "connections_of",
    "find",
    "group",
    "join",
    "pick",
    "reach",
    "sending_port",
    "unwrap",
]

#: Cycle of a landmark that did not happen; message number of nobody.
ABSENT = -1
#: What the joins need to know of a message; `wqe_index` is `ABSENT` where it was never posted.
MESSAGE_FIELDS = ("message", "node", "peer", "qp", "wqe_index", "size", "signaled")
REQUEST_OPCODES = tuple(opcode.value for opcode in RoceOpcode if opcode not in RESPONSES)
_LAST = (RoceOpcode.WRITE_LAST.value, RoceOpcode.WRITE_ONLY.value)
#: A composite key is a group (node and QP) above a number of this many bits.
_BITS = 40


def columns(messages):
    """Messages (dict of arrays, or sequence of dicts) as int64 arrays of `MESSAGE_FIELDS`."""
    if not isinstance(messages, dict):
        rows = list(messages)
        messages = {key: [row[key] for row in rows] for key in MESSAGE_FIELDS}
    return {key: np.asarray(messages[key], np.int64).reshape(-1) for key in MESSAGE_FIELDS}


def connections_of(plan):
    """(node, qp, peer, peer's qp) of all connections of a plan, from both ends."""
    return [
        (*near[:2], *far[:2])
        for connection in plan.connections
        for near, far in (connection.ends, connection.ends[::-1])
    ]


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
