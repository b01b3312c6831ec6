"""The report of a hang: which queues are blocked, how far each got, who waits for whom."""

import numpy as np

from hw.formats.events import DropReason, EventKind
from hw.formats.roce import RoceOpcode

from .joins import REQUEST_OPCODES, Joins, columns, group

__all__ = ["LAST_EVENTS", "hang_report"]

LAST_EVENTS = 50
_ACK = RoceOpcode.ACK.value


def hang_report(log, messages, connections, status=None):
    """What is blocked at the end of a log.

    Parameters
    ----------
    log : Events
    messages : dict of arrays or sequence of dicts
    connections : sequence of (node, qp, peer, peer's qp)
    status : Status, optional
        Its `queues` add what software knows, its `waiting` the agents that wait.

    Returns
    -------
    dict
        `queues`: of each blocked one `node`, `qp`, its indices in blocks without wrapping
        (`posted`, `rung`, `fetched`, `acked`, `completed`: all below are in that state) and `waits`
        in words; `waits`: all of those; `agents`; `last_events`.
    """
    joins = Joins(log, columns(messages), connections)
    software = {(queue.node, queue.qp): queue for queue in status.queues} if status else {}
    places = sorted(
        {
            *software,
            *zip(
                joins.messages["node"][joins.posted].tolist(),
                joins.qp[joins.posted].tolist(),
                strict=True,
            ),
        }
    )
    far = {(node, qp): (peer, peer_qp) for node, qp, peer, peer_qp in connections}
    streams = _Streams(joins)
    queues = []
    for node, qp in places:
        queue = _queue(streams, node, qp, far.get((node, qp)), software.get((node, qp)))
        if queue["waits"]:
            queues.append(queue)
    # The most complete picture first: the queue with most posted and not completed.
    queues.sort(
        key=lambda queue: (queue["completed"] - queue["posted"], queue["node"], queue["qp"])
    )
    unposted = int(np.count_nonzero(~joins.posted))
    waits = [f"node {queue['node']} qp {queue['qp']}: {queue['waits']}" for queue in queues]
    if unposted:
        waits.append(f"{unposted} messages were never posted: their software waits")
    if not waits:
        waits.append(
            "every posted WQE is complete: software waits for something that nobody will write"
        )
    return {
        "queues": queues,
        "waits": waits,
        "agents": list(status.waiting) if status else [],
        "last_events": log.decode(range(max(len(log) - LAST_EVENTS, 0), len(log))),
    }


class _Streams:
    """Events with their queue, decoded once for all queues."""

    def __init__(self, joins):
        self.joins = joins
        self.rings = joins.of(EventKind.RING_SEEN, index="producer")
        self.requested = joins.of(EventKind.FETCH_REQUESTED)
        self.fetched = joins.of(EventKind.FETCHED)
        self.retired = joins.of(EventKind.RETIRED)
        self.sent = joins.sent(EventKind.TX_LAST, REQUEST_OPCODES)
        self.acks = joins.of(EventKind.ACK_RECEIVED, index="psn")
        self.drops = joins.events.of(EventKind.DROPPED)
        self.retries = joins.of(EventKind.RETRANSMITTED)
        self.received = joins.events.of(EventKind.RX_LAST)
        self.transmitted = joins.events.of(EventKind.TX_FIRST)


def _top(events, key, blocks: str | None = "blocks"):
    """Index behind the furthest event of a queue, or None."""
    mask = events["group"] == key
    if not np.any(mask):
        return None
    return int((events["index"] + (events[blocks] if blocks else 0))[mask].max())


def _queue(streams, node, qp, far, software):
    joins, key = streams.joins, int(group(node, qp))
    mine = joins.posted & (joins.groups == key)
    first = int(joins.index[mine].min()) if np.any(mine) else 0
    rung = _top(streams.rings, key, None)
    fetched, retired = _top(streams.fetched, key), _top(streams.retired, key)
    requested = _top(streams.requested, key)
    written = int(joins.index[mine].max()) + 1 if np.any(mine) else first
    queue = {
        "node": node,
        "qp": qp,
        "posted": software.posted if software else max(written, rung or first),
        "rung": first if rung is None else rung,
        "fetched": first if fetched is None else fetched,
        "acked": first if retired is None else retired,
        "completed": software.completed if software else (first if retired is None else retired),
    }
    queue["waits"] = _why(streams, queue, key, far, software, requested)
    return queue


def _why(streams, queue, key, far, software, requested):
    """Who waits for whom, from the back of the pipe; empty if all is done."""
    posted, rung, fetched, acked, completed = (
        queue[name] for name in ("posted", "rung", "fetched", "acked", "completed")
    )
    reasons = []
    if completed < acked:
        reasons.append(
            f"blocks up to {acked} are retired, software has seen completions up to {completed}: "
            "it waits for a CQE, or does not look"
        )
    if acked < fetched:
        reasons.append(_on_the_wire(streams, queue, key, far))
    if fetched < rung:
        asked = requested is not None and requested > fetched
        reasons.append(
            f"rung up to {rung}, fetched up to {fetched}: "
            + (
                f"reads of WQEs up to {requested} are unanswered"
                if asked
                else "the work-queue engine does not fetch"
            )
        )
    if rung < posted:
        told = software is not None and software.rung > rung
        dropped = _drops(
            streams,
            queue["node"],
            queue["qp"],
            (DropReason.DOORBELL_STALE, DropReason.DOORBELL_UNKNOWN_QP, DropReason.DOORBELL_OFFSET),
        )
        reasons.append(
            f"posted up to {posted}, the NIC knows of {rung}: "
            + ("a doorbell is on its way or lost" if told else "no doorbell was rung for them")
            + (f" ({dropped})" if dropped else "")
        )
    return "; ".join(reasons)


def _on_the_wire(streams, queue, key, far):
    """Fetched and not retired: what was sent, what arrived, what was acknowledged."""
    node, qp = queue["node"], queue["qp"]
    waiting = queue["fetched"] - queue["acked"]
    sent = streams.sent["group"] == key
    if not np.any(sent):
        return f"{waiting} blocks fetched, no packet sent" + (
            _lost(streams, node, far, requests=True)
            or ": the requester or the payload reads do not move"
        )
    psn = int(streams.sent["psn"][sent][-1])
    acks = streams.acks["group"] == key
    answer = (
        f"last ACK processed is for PSN {int(streams.acks['psn'][acks][-1])}"
        if np.any(acks)
        else "no ACK processed"
    )
    text = f"{waiting} blocks on the wire up to PSN {psn}, {answer}"
    again = streams.retries["cycle"][streams.retries["group"] == key]
    if len(again):
        text += f"; started again {len(again)} times, the last in cycle {int(again[-1])}"
    if far is None:
        return text
    peer, peer_qp = far
    arrived = (
        (streams.received["node"] == peer)
        & (streams.received["qp"] == peer_qp)
        & np.isin(streams.received["opcode"], REQUEST_OPCODES)
    )
    if not np.any(arrived):
        return (
            text
            + f"; none of its packets arrived at node {peer}"
            + _lost(streams, node, far, requests=True)
        )
    last, cycle = (
        int(streams.received["psn"][arrived][-1]),
        int(streams.received["cycle"][arrived][-1]),
    )
    text += f"; node {peer} received up to PSN {last} (cycle {cycle})"
    answered = (streams.transmitted["node"] == peer) & (streams.transmitted["opcode"] == _ACK)
    answered &= (streams.transmitted["dest"] == node) & (streams.transmitted["dest_qp"] == qp)
    if np.any(answered):
        text += (
            f" and sent its last ACK for PSN {int(streams.transmitted['psn'][answered][-1])} "
            f"in cycle {int(streams.transmitted['cycle'][answered][-1])}"
        )
    else:
        text += " and no ACK of it left"
    refused = _drops(
        streams,
        peer,
        peer_qp,
        (DropReason.PACKET_PSN, DropReason.PACKET_UNKNOWN_QP, DropReason.PACKET_OPCODE),
    )
    return (
        text
        + _lost(streams, node, far, requests=True)
        + _lost(streams, node, far, requests=False, qp=qp)
        + (f"; refused: {refused}" if refused else "")
    )


def _lost(streams, node, far, *, requests, qp=None):
    """Packets of a connection that a fault swallowed, where they leave."""
    if far is None:
        return ""
    drops, (peer, peer_qp) = streams.drops, far
    mask = drops["reason"] == DropReason.WIRE_FAULT.value
    is_ack = (drops["info"] >> 8 & 0xFF) == _ACK
    mask &= (
        (drops["node"] == node) & (drops["qp"] == peer_qp) & ~is_ack
        if requests
        else (drops["node"] == peer) & (drops["qp"] == qp) & is_ack
    )
    if not np.any(mask):
        return ""
    what, whose = ("packets", node) if requests else ("ACKs", peer)
    return (
        f"; {np.count_nonzero(mask)} {what} of node {whose} dropped by a wire fault, "
        f"the last in cycle {int(drops['cycle'][mask][-1])}"
    )


def _drops(streams, node, qp, reasons):
    """Counts of some drops at a node for a QP, in words."""
    drops = streams.drops
    here = (drops["node"] == node) & (drops["qp"] == qp)
    counts = {
        reason.name.lower(): int(np.count_nonzero(here & (drops["reason"] == reason.value)))
        for reason in reasons
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)
