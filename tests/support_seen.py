"""What was seen of a job on bus, wire and in memory: taken down here, judged in `support_judge`."""

from collections.abc import Callable
from dataclasses import dataclass

from hw.formats.events import DropReason, EventKind
from hw.formats.tlp import MarkKind, Port, TlpClass
from sim import captures

__all__ = ["Packet", "Seen", "seen_of"]

_NIC_UP = 2 * Port.NIC.value


@dataclass(frozen=True)
class Packet:
    """One packet that a node sent: all fields of its BTH, and of the headers behind that."""

    #: By the names of `hw.formats.roce`; those behind the BTH begin with their header's: `reth_va`.
    fields: dict
    payload: bytes = b""


@dataclass(frozen=True)
class Seen:
    """What the machine did in the time of one job."""

    #: (producer, pushed) of each ring taken in.
    rings: list
    #: Names of `DropReason`, of both nodes.
    drops: list
    #: (address, length) of the NIC's reads of WQEs, and of payload.
    fetches: list
    reads: list
    #: Packets of the sender and of the peer.
    requests: list
    answers: list
    #: (address, length) of writes by devices at the peer, and at the sender.
    landed: list
    written: list
    #: (index, status) of each WQE that left the queue.
    retired: list
    #: Bytes afterwards: of each target at the peer, of each landing of a response at the sender,
    #: and of both completion queues.
    targets: list
    landings: list
    cqes: bytes
    receive_cqes: bytes
    #: (memory, offset, length) to what stood at the sender.
    image: Callable


def seen_of(log, rows, kept, image, begin, end):
    """What the events `log` and the beats `rows` show of the cycles from `begin` to `end`.

    `kept` is what memory held afterwards, as `Job.kept` names it.
    """

    def of(kind, node, **fields):
        table = log.of(kind)
        mask = (table["cycle"] >= begin) & (table["cycle"] <= end) & (table["node"] == node)
        for name, value in fields.items():
            mask &= table[name] == value
        return {name: column[mask].tolist() for name, column in table.items()}

    def pairs(table, *names):
        return list(zip(*(table[name] for name in names), strict=True))

    def packets(node):
        inside = (rows[:, 0] >= begin) & (rows[:, 0] <= end) & (rows[:, 1] == node)
        return list(_packets(rows[inside]))

    sent = of(EventKind.TLP_SENT, 0, link=_NIC_UP, tlp=TlpClass.READ.value)
    asked = pairs(sent, "mark_kind", "address", "payload")
    fetch = MarkKind.FETCH.value
    dropped = [reason for node in (0, 1) for reason in of(EventKind.DROPPED, node)["reason"]]
    return Seen(
        rings=pairs(of(EventKind.RING_SEEN, 0), "producer", "pushed"),
        drops=[DropReason(reason).name for reason in dropped],
        fetches=[(address, length) for kind, address, length in asked if kind == fetch],
        reads=[(address, length) for kind, address, length in asked if kind != fetch],
        requests=packets(0),
        answers=packets(1),
        landed=pairs(of(EventKind.COMMIT, 1, fabric=1), "address", "count"),
        written=pairs(of(EventKind.COMMIT, 0, fabric=1), "address", "count"),
        retired=pairs(of(EventKind.RETIRED, 0), "wqe_index", "status"),
        targets=kept["targets"],
        landings=kept["landings"],
        cqes=b"".join(kept["cqes"]),
        receive_cqes=b"".join(kept["receive_cqes"]),
        image=image,
    )


def _packets(rows):
    """Packets of the beats of one node."""
    for captured in captures.packets(rows):
        packet, fields = captured.packet, dict(captured.packet.bth)
        for header, values in packet.extended.items():
            fields |= {f"{header.lower()}_{key}": value for key, value in values.items()}
        yield Packet(fields, packet.payload)
