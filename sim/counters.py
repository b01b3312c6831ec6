"""What happened in a run, counted: statuses, counters and links, from the event log."""

import numpy as np

from hw.formats.context import QpState
from hw.formats.events import DropReason, EventKind, RetryReason, StallCause
from hw.formats.op import Status as OpStatus
from hw.formats.roce import RoceOpcode
from hw.formats.tlp import Port, TlpClass
from hw.units import BYTE_FRACTION

from .joins import sending_port
from .names import COUNTERS, DIRECTIONS, LINKS

__all__ = ["STATUS_NAMES", "counters_of", "link_name", "links_of", "statuses_of"]

#: Names of the statuses that a retirement can carry.
STATUS_NAMES = {
    OpStatus.SUCCESS.value: "SUCCESS",
    OpStatus.LOCAL_LENGTH.value: "LOC_LEN_ERR",
    OpStatus.LOCAL_QP_OPERATION.value: "LOC_QP_OP_ERR",
    OpStatus.LOCAL_PROTECTION.value: "LOC_PROT_ERR",
    OpStatus.FLUSHED.value: "WR_FLUSH_ERR",
    OpStatus.BAD_RESPONSE.value: "BAD_RESP_ERR",
    OpStatus.LOCAL_ACCESS.value: "LOC_ACCESS_ERR",
    OpStatus.REMOTE_INVALID_REQUEST.value: "REM_INV_REQ_ERR",
    OpStatus.REMOTE_ACCESS.value: "REM_ACCESS_ERR",
    OpStatus.REMOTE_OPERATION.value: "REM_OP_ERR",
    OpStatus.TRANSPORT_RETRY_EXCEEDED.value: "RETRY_EXC_ERR",
    OpStatus.RNR_RETRY_EXCEEDED.value: "RNR_RETRY_EXC_ERR",
}


def link_name(link):
    """Name of a PCIe link by its number, such as `gpu_up`."""
    return f"{Port(link >> 1).name.lower()}_{DIRECTIONS[link & 1]}"


def statuses_of(log):
    """Retired WQEs by the name of their status."""
    values, counts = np.unique(log.of(EventKind.RETIRED)["status"], return_counts=True)
    return {
        STATUS_NAMES.get(value, "GENERAL_ERR"): count
        for value, count in zip(values.tolist(), counts.tolist(), strict=True)
    }


def counters_of(log):
    """Every counter of `names.COUNTERS`, over all nodes."""
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
            counters[f"tlp_{link_name(link)}_{kind.name.lower()}"] = int(np.count_nonzero(mask))
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


def links_of(log, rules):
    """Every link of `names.LINKS`: sums over all nodes, and the utilization of the busiest.

    Parameters
    ----------
    log : Events
    rules : Rules
        For the rates of the links (`sim.scoreboard`).
    """
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
            number = next(link for link in range(2 * len(Port)) if link_name(link) == name)
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
