"""Packets and ports that the tests of the transport blocks share."""

from collections import deque

from support_streams import Source, _bits, pack, unpack

from hw.formats.context import RxContext, Table, TxContext
from hw.formats.roce import Aeth, Bth, Reth, RoceOpcode, WireBeat

PSN_MASK = (1 << 24) - 1
WRITES = {
    (1, 0): RoceOpcode.WRITE_FIRST,
    (0, 0): RoceOpcode.WRITE_MIDDLE,
    (0, 1): RoceOpcode.WRITE_LAST,
    (1, 1): RoceOpcode.WRITE_ONLY,
}


class Pulses(Source):
    """Drives `valid` and a payload without `ready`: items are (cycle, dict), one per cycle."""

    def __init__(self, valid, payload=None, shape=None, items=()):
        self.valid, self.shape, self.items = valid, shape, deque(items)
        self.payload = None if payload is None else _bits(payload)
        self.was_valid, self.offering, self.taken = 0, None, []

    def drive(self, ctx, cycle):
        valid = int(bool(self.items) and self.items[0][0] <= cycle)
        if valid:
            _, item = self.items.popleft()
            if self.payload is not None:
                ctx.set(self.payload, pack(self.shape, item))
            self.taken.append((cycle, item))
        if valid != self.was_valid:
            ctx.set(self.valid, valid)
            self.was_valid = valid

    def sample(self, ctx, cycle):
        pass

    @property
    def finished(self):
        return not self.items and not self.was_valid


class Recorder:
    """Records a payload that comes with `valid` alone, as (cycle, dict)."""

    def __init__(self, valid, payload=None, shape=None, on_item=None):
        self.valid, self.payload, self.shape, self.on_item = valid, payload, shape, on_item
        self.items = []

    def drive(self, ctx, cycle):
        pass

    def sample(self, ctx, cycle):
        if ctx.get(self.valid):
            item = (
                None if self.payload is None else unpack(self.shape, ctx.get(_bits(self.payload)))
            )
            self.items.append((cycle, item))
            if self.on_item:
                self.on_item(cycle, item)

    @property
    def words(self):
        return [item for _, item in self.items]


class ContextTable:
    """A context table of `size` entries with one cycle of latency; `table` is a dict of dicts."""

    def __init__(self, port, shape, table, size=4):
        self.port, self.size, self.address = port, size, 0
        self.words = {index: pack(shape, context) for index, context in table.items()}

    def drive(self, ctx, cycle):
        ctx.set(_bits(self.port.data), self.words.get(self.address, 0))

    def sample(self, ctx, cycle):
        self.address = ctx.get(self.port.address) % self.size


def context_writes(table, shape, contexts):
    """Configuration writes, one per cycle from cycle 0, of a dict of contexts."""
    assert (table, shape) in ((Table.TX, TxContext), (Table.RX, RxContext))
    return [
        (cycle, {"table": table, "index": index, "data": pack(shape, context)})
        for cycle, (index, context) in enumerate(contexts.items())
    ]


def packet_beats(
    opcode,
    psn,
    payload=b"",
    *,
    dest_qp=0,
    dest=0,
    port=0,
    ack=0,
    solicited=0,
    reth=None,
    ext=0,
    imm=0,
    qp=0,
    wqe_index=0,
):
    """Beats of one packet as dicts (header in every beat)."""
    if reth is not None:
        ext = pack(Reth, reth)
    header = {
        "bth": {
            "opcode": opcode,
            "solicited": solicited,
            "pad": -len(payload) % 4,
            "pkey": 0xFFFF,
            "dest_qp": dest_qp,
            "ack_request": ack,
            "psn": psn & PSN_MASK,
        },
        "ext": ext,
        "imm": imm,
        "length": len(payload),
        "dest": dest,
        "port": port,
        "qp": qp,
        "wqe_index": wqe_index,
    }
    runs = [payload[i : i + 64] for i in range(0, len(payload), 64)] or [b""]
    return [
        {
            **header,
            "data": int.from_bytes(run, "little"),
            "count": len(run),
            "first": int(i == 0),
            "last": int(i == len(runs) - 1),
        }
        for i, run in enumerate(runs)
    ]


def ack_beat(psn, *, syndrome=0x1F, msn=0, **header):
    ext = pack(Aeth, {"syndrome": syndrome, "msn": msn})
    return packet_beats(RoceOpcode.ACK, psn, ext=ext, **header)[0]


def write_packets(payload, mtu, psn, *, raddr=0, rkey=0, ack_every=0, solicited=0, **header):
    """The packets (lists of beats) of one RDMA WRITE."""
    pieces = [payload[i : i + mtu] for i in range(0, len(payload), mtu)] or [b""]
    packets = []
    for i, piece in enumerate(pieces):
        first, last = int(i == 0), int(i == len(pieces) - 1)
        packets.append(
            packet_beats(
                WRITES[first, last],
                psn + i,
                piece,
                ack=last | ack_every,
                solicited=last & solicited,
                reth={"va": raddr, "rkey": rkey, "length": len(payload)} if first else None,
                **header,
            )
        )
    return packets


def normal(beat):
    """A beat with plain integers, and zeros beyond its bytes, for comparison."""
    beat = unpack(WireBeat, pack(WireBeat, beat))
    beat["data"] &= (1 << 8 * beat["count"]) - 1
    return beat


assert unpack(Bth, pack(Bth, {"opcode": RoceOpcode.ACK}))["opcode"] == 0x11
