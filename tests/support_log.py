"""Builds event logs by hand: single events, and the whole chain of an 8-byte or larger write.

Packed with `Codec`, not with what `sim.trace` decodes with.
"""

import numpy as np

from hw.formats.events import EVENTS, EventKind
from hw.formats.layout import Codec
from hw.formats.roce import RoceOpcode
from hw.formats.tlp import MarkKind, TlpClass
from sim.trace import RECORD, Events

_CODECS = {kind: Codec(layout) for kind, layout in EVENTS.items()}

#: Context at node b of QP q of node a < b is q + FAR: the ends of a connection have different
#: indices.
FAR = 5
MTU = 4096
#: Cycles from one landmark to the next in the chain that `write` emits.
STEP = 100


def mark(kind, qp=0, index=0):
    return kind.value | qp << 4 | (index & 0xFFFFFF) << 16


class Log:
    """Events and messages of two nodes under construction."""

    def __init__(self, nodes=2, start_index=0, start_psn=0):
        self.rows, self.messages = [], []
        self.start_index, self.start_psn = start_index, start_psn
        self._posted, self._psn = {}, {}

    @staticmethod
    def far(node, peer, qp):
        """Context at the peer of a QP of a node."""
        return qp + FAR if node < peer else qp - FAR

    @property
    def connections(self):
        ends = {
            (m["node"], m["qp"], m["peer"], self.far(m["node"], m["peer"], m["qp"]))
            for m in self.messages
        }
        return sorted(ends | {(*end[2:], *end[:2]) for end in ends})

    def add(self, kind, cycle, node=0, **fields):
        raw = _CODECS[kind].pack(
            **{key: getattr(value, "value", value) for key, value in fields.items()}
        )
        self.rows.append((cycle, node, kind.value, list(raw.ljust(20, b"\0"))))

    def drop(self, kind, where=lambda fields: True):
        """Removes the events of a kind for which the predicate holds; returns how many."""
        keep = [
            row
            for row in self.rows
            if row[2] != kind.value
            or not where(_CODECS[kind].unpack(bytes(row[3][: _CODECS[kind].size])))
        ]
        count, self.rows = len(self.rows) - len(keep), keep
        return count

    def events(self, path="gda_minimal"):
        return Events(np.array(self.rows, RECORD), path)

    def software(self, kind, cycle, number, node, qp=0, index=0):
        self.add(kind, cycle, node, message=number, qp=qp, wqe_index=index & 0xFFFF, agent=0)

    def write(
        self,
        cycle,
        *,
        node=0,
        peer=1,
        qp=0,
        size=8,
        signaled=True,
        inline=False,
        blocks=1,
        pushed=False,
        rings=True,
        proxy=False,
        batch=1,
        address=0,
        raddr=0,
    ):
        """One WRITE whose landmarks follow each other by `STEP`; returns its number.

        A `batch` is the WQEs that this message's doorbell and fetch cover (those before it with
        `rings=False` have neither).
        """
        number = len(self.messages)
        index = self._posted.get((node, qp), self.start_index)
        self._posted[node, qp] = index + blocks
        end = index + blocks
        self.messages.append(
            {
                "message": number,
                "node": node,
                "peer": peer,
                "qp": qp,
                "wqe_index": index & 0xFFFF,
                "blocks": blocks,
                "size": size,
                "signaled": int(signaled),
                "address": address,
                "raddr": raddr,
                "group": 0,
            }
        )
        wqe = {"qp": qp, "wqe_index": index & 0xFFFF}
        at = cycle

        def step():
            nonlocal at
            at += STEP
            return at

        self.software(EventKind.ISSUE, at, number, node)
        if proxy:
            self.software(EventKind.REQUEST_WRITTEN, step(), number, node)
            self.software(EventKind.PROXY_SEEN, step(), number, node)
        self.software(EventKind.WQE_WRITTEN, step(), number, node, qp, index)
        if proxy:
            self.software(EventKind.PROXY_POSTED, step(), number, node, qp, index)
        if rings:
            self.software(EventKind.RING, step(), number, node, qp, index)
            self.add(
                EventKind.TLP_SENT,
                at + 1,
                node,
                link=2,
                tlp=TlpClass.POSTED,
                payload=8,
                wire=32,
                mark=mark(MarkKind.DOORBELL, qp, end),
            )
            self.add(
                EventKind.RING_SEEN, step(), node, qp=qp, producer=end & 0xFFFF, pushed=int(pushed)
            )
            if not pushed:
                self.add(
                    EventKind.FETCH_REQUESTED,
                    step(),
                    node,
                    qp=qp,
                    wqe_index=(index - batch + 1) & 0xFFFF,
                    blocks=blocks + batch - 1,
                )
        else:
            at += 3 * STEP
        self.add(EventKind.FETCHED, step(), node, **wqe, blocks=blocks, pushed=int(pushed))
        if not inline:
            self.add(EventKind.PAYLOAD_REQUESTED, step(), node, **wqe)
        self.add(EventKind.PAYLOAD_ARRIVED, step(), node, **wqe, inline=int(inline))
        packets = max(-(-size // MTU), 1)
        psn, far = self._psn.get((node, qp), self.start_psn), self.far(node, peer, qp)
        self._psn[node, qp] = psn + packets
        for packet in range(packets):
            first, last = packet == 0, packet == packets - 1
            opcode = {
                (1, 1): RoceOpcode.WRITE_ONLY,
                (1, 0): RoceOpcode.WRITE_FIRST,
                (0, 1): RoceOpcode.WRITE_LAST,
                (0, 0): RoceOpcode.WRITE_MIDDLE,
            }[first, last]
            length = min(MTU, size - packet * MTU)
            where = {"psn": (psn + packet) & 0xFFFFFF, "opcode": opcode}
            overhead = 42 if first else 26
            sent = {"dest_qp": far, **where, "qp": 0, "wqe_index": index & 0xFFFF}
            self.add(
                EventKind.TX_FIRST,
                step(),
                node,
                **sent,
                length=length,
                wire_bytes=length + overhead,
                dest=peer,
            )
            self.add(EventKind.TX_LAST, at + length // 50 + 2, node, **sent)
            at += length // 50 + 2
            self.add(EventKind.RX_LAST, at + STEP, peer, qp=far, **where, length=length)
            kind = MarkKind.PAYLOAD_LAST if last else MarkKind.PAYLOAD
            tag = mark(kind, far, psn + packet)
            self.add(
                EventKind.TLP_SENT,
                at + 2 * STEP,
                peer,
                link=4,
                tlp=TlpClass.POSTED,
                payload=min(length, 256),
                wire=min(length, 256) + 24,
                mark=tag,
            )
            done = 0
            while done < length:
                count = min(64 - (raddr + packet * MTU + done) % 64, length - done)
                done += count
                self.add(
                    EventKind.COMMIT,
                    at + 3 * STEP + done // 64,
                    peer,
                    memory=0,
                    fabric=1,
                    address=raddr + packet * MTU + done - count,
                    count=count,
                    last=int(done == length),
                    mark=tag,
                )
        at += STEP
        ack = {"psn": (psn + packets - 1) & 0xFFFFFF}
        self.add(
            EventKind.TX_FIRST,
            at + 2,
            peer,
            dest_qp=qp,
            **ack,
            opcode=RoceOpcode.ACK,
            qp=0,
            wqe_index=0,
            length=0,
            wire_bytes=26,
            dest=node,
        )
        self.add(
            EventKind.TX_LAST,
            at + 3,
            peer,
            dest_qp=qp,
            **ack,
            opcode=RoceOpcode.ACK,
            qp=0,
            wqe_index=0,
        )
        self.add(EventKind.ACK_RECEIVED, step(), node, qp=qp, **ack, syndrome=0x1F)
        self.add(
            EventKind.RETIRED, at + 1, node, **wqe, blocks=blocks, signaled=int(signaled), status=0
        )
        if signaled:
            self.add(EventKind.CQE_ISSUED, at + 10, node, **wqe, address=0xC0, owner=0)
            self.add(
                EventKind.TLP_SENT,
                at + 11,
                node,
                link=4,
                tlp=TlpClass.POSTED,
                payload=64,
                wire=88,
                mark=mark(MarkKind.CQE, qp, index & 0xFFFF),
            )
            self.add(
                EventKind.COMMIT,
                step(),
                node,
                memory=0,
                fabric=1,
                address=0xC0,
                count=64,
                last=1,
                mark=mark(MarkKind.CQE, qp, index & 0xFFFF),
            )
            self.software(EventKind.SEEN, step(), number, node, qp, index)
        return number


def repeat(log, count, period):
    """Events and messages of `count` copies of a log of one message, `period` cycles apart."""
    one = log.events()
    records = np.tile(one.records, count)
    words = records.view("<u8").reshape(-1, 4)
    turn = np.repeat(np.arange(count, dtype=np.uint64), len(one))
    records["cycle"] += turn * np.uint64(period)
    counted = {"wqe_index": 16, "producer": 16, "psn": 24, "message": 32}
    for kind in np.unique(records["kind"]).tolist():
        rows = np.flatnonzero(records["kind"] == kind)
        fields = one.layouts[kind]["fields"]
        for name in [
            *counted.keys() & fields.keys(),
            *(["mark_index"] if "mark_index" in fields else []),
        ]:
            offset, width = fields[name]
            word, shift = divmod(96 + offset, 64)
            bits = min(width, 64 - shift)
            value = one.of(EventKind(kind))[name]
            value = np.tile(value, count).astype(np.uint64) + turn[rows]
            if name == "mark_index":
                marks = np.tile(one.of(EventKind(kind))["mark_kind"], count)
                # A CQE's mark holds a WQE index; the others of the log a PSN.
                value = np.where(marks == MarkKind.CQE.value, value & np.uint64(0xFFFF), value)
            value &= np.uint64((1 << width) - 1)
            mask = np.uint64(((1 << bits) - 1) << shift)
            words[rows, word] = words[rows, word] & ~mask | value << np.uint64(shift) & mask
            if bits < width:
                mask = np.uint64((1 << width - bits) - 1)
                words[rows, word + 1] = words[rows, word + 1] & ~mask | value >> np.uint64(bits)
    (message,) = log.messages
    messages = {key: np.full(count, value) for key, value in message.items()}
    messages["message"] = np.arange(count)
    messages["wqe_index"] = message["wqe_index"] + np.arange(count) & 0xFFFF
    return Events(records, one.path), messages
