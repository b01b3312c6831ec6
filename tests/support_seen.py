"""What was seen of a job on bus, wire and in memory: taken down here, judged in `support_judge`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amaranth.lib import data

from hw.formats.events import DropReason, EventKind
from hw.formats.layout import Codec
from hw.formats.roce import Aeth, Bth, Reth, RoceOpcode, WireBeat
from hw.formats.tlp import MarkKind, Port, TlpClass

__all__ = ["Packet", "Seen", "seen_of"]

_LAYOUT: Any = data.Layout.cast(WireBeat)
_BEAT = {key: (field.offset, field.width) for key, field in _LAYOUT}
_bth, _reth, _aeth = Codec(Bth), Codec(Reth), Codec(Aeth)
_NIC_UP = 2 * Port.NIC.value
_STARTS = (RoceOpcode.WRITE_FIRST.value, RoceOpcode.WRITE_ONLY.value)


@dataclass(frozen=True)
class Packet:
    """One packet that a node sent: all fields of its BTH, and of the header behind that."""

    #: By the names of `hw.formats.roce`; those of RETH and AETH begin with `reth_` and `aeth_`.
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
    #: Bytes of each target afterwards, and of the completion queue.
    targets: list
    cqes: bytes
    #: (memory, offset, length) to what stood at the sender.
    image: Callable


def seen_of(log, rows, kept, image, begin, end):
    """What the events `log` and the beats `rows` show of the cycles from `begin` to `end`.

    `kept` is what memory held afterwards: the targets', then the completion queue's.
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
        return _packets(rows[inside])

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
        targets=kept[:-1],
        cqes=kept[-1],
        image=image,
    )


def _packets(rows):
    """Packets of the beats of one node."""
    packets = []
    for row in rows:
        word = int.from_bytes(row[2:].tobytes(), "little")
        if _cut(word, "first"):
            packets.append((_fields(word), []))
        packets[-1][1].append(row[2:10].tobytes()[: _cut(word, "count")])
    return [Packet(fields, b"".join(parts)) for fields, parts in packets]


def _cut(word, name):
    offset, width = _BEAT[name]
    return word >> offset & (1 << width) - 1


def _fields(word):
    fields = _bth.unpack(_cut(word, "bth").to_bytes(_bth.size, "big"))
    extended = _cut(word, "ext").to_bytes(_reth.size, "big")
    if fields["opcode"] in _STARTS:
        fields |= {f"reth_{key}": value for key, value in _reth.unpack(extended).items()}
    elif fields["opcode"] == RoceOpcode.ACK.value:
        aeth = _aeth.unpack(extended[-_aeth.size :])
        fields |= {f"aeth_{key}": value for key, value in aeth.items()}
    return fields
