"""Judges a run: event log, timeline and memory in, violations and counters out.

| violation | found when |
|---|---|
| `wrong_data` | a payload byte is not what the reference says |
| `guard_overwritten` | a byte that nobody may write has changed |
| `retired_twice`, `never_retired` | a posted WQE left the send queue not exactly once |
| `retired_unposted` | a WQE left that was never posted |
| `completion_lost` | a signalled WQE was retired, but no CQE was committed, or it was never seen |
| `completion_twice` | more CQEs than asked for: two of a WQE, one of an unsignalled or of none |
| `completion_status` | a WQE was retired with an error |
| `index_out_of_bounds` | rung beyond written or depth, fetched beyond rung, retired beyond that |
| `link_over_rate` | over some stretch a link carried more than its rate allows plus one item |
| `dma_ledger` | a DMA engine's bytes did not balance: unknown tag, wrong byte, misplaced line |
| `hang` | the run ended with nothing going on |

What a hang leaves unfinished is told by its report, not by `never_retired`.
"""

from dataclasses import dataclass, field

import numpy as np

from hw.config import BYTE_FRACTION, byte_interval
from hw.formats.context import QpState
from hw.formats.events import DropReason, EventKind, RetryReason, StallCause
from hw.formats.op import Status as OpStatus
from hw.formats.roce import RoceOpcode
from hw.formats.tlp import MarkKind, Port, TlpClass

from . import addresses
from .hang import hang_report
from .joins import ABSENT, Joins, columns, connections_of, join, sending_port
from .names import COUNTERS, DIRECTIONS, LINKS

__all__ = ["MOST", "Rules", "Verdict", "judge"]

#: Violations of one kind that are told one by one; a last one says how many more there are.
MOST = 20

#: Cycles by which a link may take an item before it is free (`ahead` of its `RateMeter`).
_LEAD = 2

#: Names of the statuses that a retirement can carry.
STATUS_NAMES = {
    OpStatus.SUCCESS.value: "SUCCESS",
    OpStatus.LOCAL_QP_OPERATION.value: "LOC_QP_OP_ERR",
    OpStatus.FLUSHED.value: "WR_FLUSH_ERR",
    OpStatus.REMOTE_INVALID_REQUEST.value: "REM_INV_REQ_ERR",
    OpStatus.REMOTE_ACCESS.value: "REM_ACCESS_ERR",
    OpStatus.REMOTE_OPERATION.value: "REM_OP_ERR",
    OpStatus.TRANSPORT_RETRY_EXCEEDED.value: "RETRY_EXC_ERR",
    OpStatus.RNR_RETRY_EXCEEDED.value: "RNR_RETRY_EXC_ERR",
}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the judgement needs to know of a scenario."""

    #: (node, qp, peer, peer's qp), from both ends.
    connections: tuple[tuple[int, int, int, int], ...]
    #: Blocks of a send queue.
    depth: int
    #: Cycles per byte (fixed point) of each PCIe link by its number, and of the wire.
    link_intervals: dict[int, int]
    wire_interval: int
    #: Address in its memory of the first byte that a message writes, by number.
    targets: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, scenario):
        """Rules of a scenario."""
        pcie, plan = scenario.pcie, scenario.plan
        bases = {
            (region.node, region.name): addresses.DATA + region.offset for region in plan.regions
        }
        return cls(
            connections=tuple(connections_of(plan)),
            depth=scenario.queues.sq_depth,
            link_intervals={
                2 * port.value + number: byte_interval(pcie.rate_gbps(port.name.lower(), way))
                for port in Port
                for number, way in enumerate(DIRECTIONS)
            },
            wire_interval=byte_interval(scenario.wire.gbps),
            targets={
                m.number: bases[m.peer, m.remote_region] + m.remote_offset for m in plan.messages
            },
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the judgement found."""

    #: Dicts with `kind`, `text` and, where known, `cycle`, `node`, `qp`, `message` and more.
    violations: list
    #: Retired WQEs by status.
    statuses: dict
    #: Every counter of `names.COUNTERS`, over all nodes.
    counters: dict
    #: Every link of `names.LINKS`: sums over all nodes, and the utilization of the busiest.
    links: dict
    hang: dict | None

    @property
    def passed(self):
        """Whether every check held."""
        return not self.violations


def judge(scenario, path, log, table, messages, memory, status):
    """Verdict on a path of a scenario.

    Parameters
    ----------
    scenario : Scenario, or Rules
    path : str
    log : Events
    table : dict of arrays
        The messages' `timeline`.
    messages : Messages, or its columns
    memory : MemoryCheck
    status : Status
    """
    rules = scenario if isinstance(scenario, Rules) else Rules.of(scenario)
    rows = getattr(messages, "columns", messages)
    blocks = np.asarray(rows["blocks"], np.int64)
    court = _Court(rules, log, table, columns(rows), blocks)
    court.memory(memory)
    court.retirements(status.ended == "done")
    court.completions(status.ended)
    court.indices()
    court.rates()
    court.ledgers()
    hang = None
    if status.ended == "hang":
        hang = hang_report(log, columns(rows), rules.connections, status)
        court.accuse("hang", status.reason, cycle=status.cycles, **_first_queue(hang))
    return Verdict(
        violations=court.told(),
        statuses=_statuses(log),
        counters=_counters(log),
        links=_links(log, rules),
        hang=hang,
    )


def _first_queue(hang):
    return {key: hang["queues"][0][key] for key in ("node", "qp")} if hang["queues"] else {}


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


class _Court:
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
        """One CQE for each signalled WQE, and none else; and software saw it.

        In a run that was stopped, CQEs may be on their way.
        """
        events = self._joins.of(
            EventKind.COMMIT,
            lambda table: (table["mark_kind"] == MarkKind.CQE.value) & (table["last"] == 1),
            "mark_qp",
            "mark_index",
        )
        count, when = self._times(events)
        signaled = self._messages["signaled"] != 0
        if ended in ("done", "hang"):
            for row in np.flatnonzero(signaled & self._retired & (count == 0)).tolist():
                self.accuse(
                    "completion_lost",
                    "retired and signalled, but no CQE was written",
                    **self._of(row),
                )
        for row in np.flatnonzero(count > signaled).tolist():
            text = f"{count[row]} CQEs" + ("" if signaled[row] else ", and it was not signalled")
            self.accuse("completion_twice", text, cycle=int(when[row]), **self._of(row))
        self._stray(events, "completion_twice", "a CQE of WQE {}, which was never posted")
        if ended == "done":
            for row in np.flatnonzero(signaled & (count == 1) & (self._table["seen"] < 0)).tolist():
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
                    _link_name(link),
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


def _link_name(link):
    return f"{Port(link >> 1).name.lower()}_{DIRECTIONS[link & 1]}"


def _statuses(log):
    values, counts = np.unique(log.of(EventKind.RETIRED)["status"], return_counts=True)
    return {
        STATUS_NAMES.get(value, "GENERAL_ERR"): count
        for value, count in zip(values.tolist(), counts.tolist(), strict=True)
    }


def _counters(log):
    counters = dict.fromkeys(COUNTERS, 0)
    drops, stalls, sent, packets = (
        log.of(kind)
        for kind in (EventKind.DROPPED, EventKind.STALL, EventKind.TLP_SENT, EventKind.TX_FIRST)
    )
    for reason in DropReason:
        counters[f"drop_{reason.name.lower()}"] = int(
            np.count_nonzero(drops["reason"] == reason.value)
        )
    for cause in StallCause:
        counters[f"stall_{cause.name.lower()}_cycles"] = int(
            stalls["cycles"][stalls["cause"] == cause.value].sum()
        )
    for link in range(2 * len(Port)):
        for kind in TlpClass:
            mask = (sent["link"] == link) & (sent["tlp"] == kind.value)
            counters[f"tlp_{_link_name(link)}_{kind.name.lower()}"] = int(np.count_nonzero(mask))
    again = log.of(EventKind.RETRANSMITTED)["reason"]
    for reason in RetryReason:
        counters[f"retry_{reason.name.lower()}"] = int(np.count_nonzero(again == reason.value))
    states = log.of(EventKind.QP_STATE)["new"]
    counters["qp_errors"] = int(np.count_nonzero(states == QpState.ERR.value))
    acks = int(np.count_nonzero(packets["opcode"] == RoceOpcode.ACK.value))
    return counters | {
        "packets_request": len(packets["cycle"]) - acks,
        "packets_ack": acks,
        "doorbells": len(log.rows(EventKind.RING_SEEN)),
        "wqe_fetches": len(log.rows(EventKind.FETCH_REQUESTED)),
        "wqes_pushed": int(log.of(EventKind.FETCHED)["pushed"].sum()),
        "cqes": len(log.rows(EventKind.CQE_ISSUED)),
        "commits": len(log.rows(EventKind.COMMIT)),
    }


def _window(log):
    """Cycles from the first issue to the last completion seen, or to the last event."""
    issue, seen = log.of(EventKind.ISSUE)["cycle"], log.of(EventKind.SEEN)["cycle"]
    end = seen[-1] if len(seen) else log.last_cycle
    return max(int(end - issue[0]), 1) if len(issue) else max(log.last_cycle, 1)


def _links(log, rules):
    window = _window(log)
    sent, packets = log.of(EventKind.TLP_SENT), log.of(EventKind.TX_FIRST)
    links = {}
    for name in LINKS:
        if name == "wire":
            senders, payload, wire, interval = (
                sending_port(packets),
                packets["length"],
                packets["wire_bytes"],
                rules.wire_interval,
            )
        else:
            number = next(link for link in range(2 * len(Port)) if _link_name(link) == name)
            mask = sent["link"] == number
            senders, payload, wire, interval = (
                sent["node"][mask],
                sent["payload"][mask],
                sent["wire"][mask],
                rules.link_intervals[number],
            )
        busiest = max(
            (int(wire[senders == sender].sum()) for sender in np.unique(senders)), default=0
        )
        count = len(senders)
        links[name] = {
            "tlps": 0 if name == "wire" else count,
            "packets": count if name == "wire" else 0,
            "payload_bytes": int(payload.sum()),
            "wire_bytes": int(wire.sum()),
            "utilization": busiest * interval / (1 << BYTE_FRACTION) / window,
        }
    return links
