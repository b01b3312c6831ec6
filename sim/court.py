"""The checks of a run, each of which can accuse it (the table of `sim.scoreboard`)."""

import numpy as np

from hw.formats.events import DropReason, EventKind
from hw.formats.op import Status as OpStatus
from hw.formats.tlp import MarkKind
from hw.units import BYTE_FRACTION

from .counters import STATUS_NAMES, link_name
from .joins import ABSENT, Joins, join, sending_port

__all__ = ["MOST", "Court"]

#: Violations of one kind that are told one by one; a last one says how many more there are.
MOST = 20

#: Cycles by which a link may take an item before it is free (`ahead` of its `RateMeter`).
_LEAD = 2


def _level(groups, cycles, values, at_groups, at_cycles):
    """Highest value of the same group up to and including a cycle; very low where there is none."""
    nothing = np.full(len(at_groups), np.iinfo(np.int64).min // 2)
    if not len(groups):
        return nothing
    order = np.lexsort((cycles, groups))
    ordered = groups[order]
    highest = np.maximum.accumulate(join(ordered, values[order]))
    place = np.searchsorted(join(ordered, cycles[order]), join(at_groups, at_cycles), "right") - 1
    inside = np.maximum(place, 0)
    return np.where(
        (place >= 0) & (ordered[inside] == at_groups),
        highest[inside] - join(at_groups, np.int64(0)),
        nothing,
    )


class Court:
    """Collects violations. Each public method is one family of checks."""

    def __init__(self, rules, log, table, messages, blocks):
        self._rules, self._log, self._table, self._messages = rules, log, table, messages
        self._joins = Joins(log, messages, rules.connections)
        self._ends = self._joins.index + blocks
        self._found = {}
        self._rows = {number: row for row, number in enumerate(messages["message"].tolist())}

    def accuse(self, kind, text, **where):
        """One violation."""
        self._found.setdefault(kind, []).append({"kind": kind, **where, "text": text})

    def told(self):
        """All violations, those of a kind beyond `MOST` as one."""
        told = []
        for kind, found in self._found.items():
            told += found[:MOST]
            if len(found) > MOST:
                told.append(
                    {"kind": kind, "text": f"{len(found) - MOST} more", "count": len(found) - MOST}
                )
        return told

    def _of(self, row):
        """What identifies the message of a row."""
        return {
            "node": int(self._messages["node"][row]),
            "qp": int(self._joins.qp[row]),
            "message": int(self._messages["message"][row]),
            "wqe_index": int(self._joins.wqe_index[row]) & 0xFFFF,
        }

    def memory(self, check):
        """Bytes, as the bench compared them."""
        for difference in check.differences:
            found = {
                "address": difference.address,
                "count": difference.count,
                "expected": difference.expected,
                "found": difference.found,
                "memory": difference.memory,
            }
            place = f"{difference.memory}:{difference.address:#x} of node {difference.node}"
            bytes_ = f"{difference.count} B from {place}"
            values = f"expected {difference.expected}, found {difference.found}"
            row = self._rows.get(difference.message, ABSENT)
            if row < 0:
                self.accuse(
                    "guard_overwritten", f"{bytes_}: {values}", node=difference.node, **found
                )
                continue
            landed = int(self._table["landed"][row])
            offset = difference.address - self._rules.targets.get(
                difference.message, difference.address
            )
            message = self._of(row)
            self.accuse(
                "wrong_data",
                f"message {message['message']} "
                f"(node {message['node']}, QP {message['qp']}, WQE {message['wqe_index']}) "
                f"from its byte {offset}, {bytes_}: {values}; "
                + (f"landed in cycle {landed}" if landed >= 0 else "nothing of it landed"),
                **message,
                offset=offset,
                **({"cycle": landed} if landed >= 0 else {}),
                **found,
            )
        if check.total > len(check.differences):
            kind = "wrong_data" if check.wrong else "guard_overwritten"
            self.accuse(kind, f"{check.total - len(check.differences)} more runs of wrong bytes")

    def _stray(self, events, kind, text):
        """Events of no posted WQE."""
        number = self._joins.message_at(events["group"], events["index"])
        for row in np.flatnonzero(number < 0).tolist():
            self.accuse(
                kind,
                text.format(events["index"][row] & 0xFFFF),
                cycle=int(events["cycle"][row]),
                node=int(events["node"][row]),
                qp=int(events["group"][row]) & 0xFFF,
                wqe_index=int(events["index"][row]) & 0xFFFF,
            )

    def _times(self, events):
        """How often each message's WQE occurs, and when last."""
        keys = join(events["group"], events["index"])
        present, counts = np.unique(keys, return_counts=True)
        wanted = join(self._joins.groups, self._joins.index)
        place = np.minimum(np.searchsorted(present, wanted), max(len(present) - 1, 0))
        hit = self._joins.posted & (len(present) > 0)
        if len(present):
            hit &= present[place] == wanted
        count = np.where(hit, np.append(counts, 0)[place], 0)
        row = self._joins.own(events)
        return count, np.where(row >= 0, np.append(events["cycle"], ABSENT)[row], ABSENT)

    def retirements(self, done):
        """Exactly one for each posted WQE."""
        events = self._joins.of(EventKind.RETIRED)
        count, when = self._times(events)
        self._retired = count > 0
        failed = {
            key: value[events["status"] != OpStatus.SUCCESS.value] for key, value in events.items()
        }
        # A WQE in error is told, signalled or not.
        self._told = (self._messages["signaled"] != 0) | (self._times(failed)[0] > 0)
        for row in np.flatnonzero(count > 1).tolist():
            self.accuse(
                "retired_twice",
                f"retired {count[row]} times",
                cycle=int(when[row]),
                **self._of(row),
            )
        if done:
            for row in np.flatnonzero(self._joins.posted & (count == 0)).tolist():
                self.accuse("never_retired", "posted and never retired", **self._of(row))
        self._stray(events, "retired_unposted", "WQE {} was retired, but never posted")
        for row in np.flatnonzero(events["status"] != OpStatus.SUCCESS.value).tolist():
            status = int(events["status"][row])
            self.accuse(
                "completion_status",
                f"retired with status {STATUS_NAMES.get(status, status)}",
                cycle=int(events["cycle"][row]),
                node=int(events["node"][row]),
                qp=int(events["qp"][row]),
                wqe_index=int(events["wqe_index"][row]),
            )

    def completions(self, ended):
        """One CQE for each WQE that is signalled or in error, and none else; and software saw it.

        In a run that was stopped, CQEs may be on their way.
        """
        events = self._joins.of(
            EventKind.COMMIT,
            lambda table: (table["mark_kind"] == MarkKind.CQE.value) & (table["last"] == 1),
            "mark_qp",
            "mark_index",
        )
        count, when = self._times(events)
        if ended in ("done", "hang"):
            for row in np.flatnonzero(self._told & self._retired & (count == 0)).tolist():
                self.accuse(
                    "completion_lost",
                    "retired, and signalled or in error, but no CQE was written",
                    **self._of(row),
                )
        for row in np.flatnonzero(count > self._told).tolist():
            text = f"{count[row]} CQEs" + ("" if self._told[row] else ", and it was not signalled")
            self.accuse("completion_twice", text, cycle=int(when[row]), **self._of(row))
        self._stray(events, "completion_twice", "a CQE of WQE {}, which was never posted")
        if ended == "done":
            for row in np.flatnonzero(
                (self._messages["signaled"] != 0) & (count == 1) & (self._table["seen"] < 0)
            ).tolist():
                self.accuse(
                    "completion_lost",
                    "its CQE was written, but never seen",
                    cycle=int(when[row]),
                    **self._of(row),
                )

    def indices(self):
        """Written >= rung >= fetched >= retired, and rung at most the depth beyond retired."""
        joins, depth = self._joins, self._rules.depth
        written = self._log.of(EventKind.WQE_WRITTEN)
        row = np.array(
            [self._rows.get(number, ABSENT) for number in written["message"].tolist()], np.int64
        )
        known = row >= 0
        written_groups, written_ends, written_cycles = (
            joins.groups[row[known]],
            self._ends[row[known]],
            written["cycle"][known],
        )
        retired = joins.of(EventKind.RETIRED)
        retired_ends = retired["index"] + retired["blocks"]
        start = {
            int(g): int(joins.index[(joins.groups == g) & joins.posted].min())
            for g in np.unique(joins.groups[joins.posted])
        }

        rings = joins.of(EventKind.RING_SEEN, index="producer")
        most = _level(written_groups, written_cycles, written_ends, rings["group"], rings["cycle"])
        self._beyond(
            rings,
            rings["index"] > most,
            "rung up to {}, but software had written up to {}",
            rings["index"],
            most,
        )
        base = np.array([start.get(int(g), 0) for g in rings["group"]], np.int64)
        # What retires in this very cycle was out of the queue when the ring came in, or will be at
        # once.
        freed = np.maximum(
            _level(
                retired["group"], retired["cycle"], retired_ends, rings["group"], rings["cycle"]
            ),
            base,
        )
        ahead = rings["index"] - freed
        self._beyond(
            rings,
            (ahead > depth) | (rings["index"] < base),
            f"rung up to {{}} with {{}} retired: not within a depth of {depth}",
            rings["index"],
            freed,
        )

        fetches = joins.of(EventKind.FETCH_REQUESTED)
        ends = fetches["index"] + fetches["blocks"]
        rung = _level(
            rings["group"], rings["cycle"], rings["index"], fetches["group"], fetches["cycle"]
        )
        self._beyond(fetches, ends > rung, "fetched up to {}, rung up to {}", ends, rung)

        fetched = joins.of(EventKind.FETCHED)
        fetched_ends = fetched["index"] + fetched["blocks"]
        most = _level(
            fetched["group"], fetched["cycle"], fetched_ends, retired["group"], retired["cycle"]
        )
        self._beyond(
            retired, retired_ends > most, "retired up to {}, fetched up to {}", retired_ends, most
        )

    def _beyond(self, events, bad, text, value, bound):
        for row in np.flatnonzero(bad).tolist():
            limit = int(bound[row])
            told = text.format(
                int(value[row]) & 0xFFFF, limit & 0xFFFF if limit >= -1 << 32 else "nothing"
            )
            self.accuse(
                "index_out_of_bounds",
                told,
                cycle=int(events["cycle"][row]),
                node=int(events["node"][row]),
                qp=int(events["group"][row]) & 0xFFF,
            )

    def rates(self):
        """No stretch of any link carries more than rate x time, plus one TLP or packet.

        Events are of the cycle in which the link takes an item, up to `_LEAD` before its turn.
        """
        sent = self._log.of(EventKind.TLP_SENT)
        for link, interval in self._rules.link_intervals.items():
            for node in np.unique(sent["node"][sent["link"] == link]).tolist():
                mask = (sent["link"] == link) & (sent["node"] == node)
                self._rate(
                    link_name(link),
                    node,
                    sent["cycle"][mask],
                    sent["wire"][mask],
                    interval,
                    "start",
                )
        packets = self._log.of(EventKind.TX_FIRST)
        senders = sending_port(packets)
        for sender in np.unique(senders).tolist():
            mask = senders == sender
            node, port = divmod(sender, 2)
            self._rate(
                f"wire of port {port}" if port else "wire",
                node,
                packets["cycle"][mask],
                packets["wire_bytes"][mask],
                self._rules.wire_interval,
                "first beat",
            )

    def ledgers(self):
        """No DMA engine reported bytes that do not balance."""
        drops = self._log.of(EventKind.DROPPED)
        for row in np.flatnonzero(drops["reason"] == DropReason.DMA_LEDGER.value).tolist():
            engine = ("WQE reads", "payload reads", "writes")[drops["info"][row]]
            node = int(drops["node"][row])
            self.accuse(
                "dma_ledger",
                f"DMA engine for {engine} of node {node}: bytes that do not balance",
                cycle=int(drops["cycle"][row]),
                node=node,
            )

    def _rate(self, name, node, cycles, wire, interval, what):
        # Cycle of each start less the time that all before it take. It never falls where the rate
        # is kept.
        per_byte = interval / (1 << BYTE_FRACTION)
        spare = cycles - (np.cumsum(wire) - wire) * per_byte
        slack = wire.max(initial=0) * per_byte + _LEAD + 1
        excess = np.maximum.accumulate(spare) - spare - slack
        worst = int(np.argmax(excess)) if len(excess) else 0
        if len(excess) and excess[worst] > 0:
            self.accuse(
                "link_over_rate",
                f"{name} of node {node}: the {what} of item {worst} is {excess[worst]:.0f} cycles "
                "earlier than the rate allows",
                cycle=int(cycles[worst]),
                node=node,
            )
