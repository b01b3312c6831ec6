"""Work-queue engine, gatherer, requester and landing together, with a peer in Python that packets
and acknowledgements may miss.
"""

import random

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out
from support_requests import is_sent, request_packets, response_packets
from support_rig import Rig, pack, unpack
from support_roce import PSN_MASK, ack_beat, packet_beats
from support_wqe import blocks, reference_decode

from hw.config import Structure
from hw.formats.context import ConfigWrite, SqContext, Table, TxContext
from hw.formats.op import Verb
from hw.formats.roce import Aeth, Reth, RoceOpcode
from hw.gather import Gather
from hw.landing import ResponseLanding
from hw.lib.delay import NOW_BITS, earliest
from hw.lib.stream import connect
from hw.lib.trace import probes
from hw.qp_context import QpContext
from hw.requester import Requester
from hw.wq_engine import WqEngine

__all__ = ["STRUCTURE", "Peer", "Transport", "TransportRig", "bytes_at"]

STRUCTURE = Structure(qps=4, window_blocks=16, wqe_lines=64, payload_lines=128)
#: Cycle from which rings come; the contexts are there.
START = 20
MTU = 256
#: Opcode of a READ, and of all requests that are answered with bytes.
_READ, _READS = 0x0C, {0x0C, 0x13, 0x14, 0xD3, 0xD4}
_ACK = 0x1F << 24
#: Cycles of the shortest ACK timeout (exponent 1), and of RNR code 1.
TIMEOUT, RNR = 400, 100


class Transport(wiring.Component):
    """The requester's half of a NIC, without its DMA engines."""

    def __init__(self, structure):
        self._engine, self._requester = WqEngine(structure), Requester(structure)
        self._gather = Gather(structure, reads_span_packets=True)
        self._contexts, self._landing = QpContext(structure), ResponseLanding(structure)
        self._blocks = (self._engine, self._gather, self._requester, self._landing)
        engine, gather, requester, landing = (block.signature.members for block in self._blocks)
        super().__init__(
            {
                "payload_requests": gather["requests"],
                "payload_lines": gather["lines"],
                **{name: engine[name] for name in ("rings", "pushes", "requests", "lines")},
                **{
                    name: requester[name]
                    for name in ("packets", "completions", "config", "timing", "now")
                },
                "acks": landing["responses"],
                "land_writes": landing["writes"],
                "land_lines": landing["lines"],
                "quiet": Out(1),
                "due": Out(NOW_BITS),
                **{
                    f"{name}_{number}": block.signature.members[name]
                    for number, block in enumerate(self._blocks)
                    for name, _, _ in probes(block)
                },
            }
        )

    def elaborate(self, platform):
        m = Module()
        engine, gather, requester, landing = self._blocks
        m.submodules.contexts = contexts = self._contexts
        for number, block in enumerate(self._blocks):
            m.submodules[f"block_{number}"] = block
            for name, _, _ in probes(block):
                wiring.connect(
                    m, getattr(block, name), wiring.flipped(getattr(self, f"{name}_{number}"))
                )
        here = wiring.flipped(self)
        for source, sink in (
            (here.rings, engine.rings),
            (here.pushes, engine.pushes),
            (engine.requests, here.requests),
            (here.lines, engine.lines),
            (engine.pieces, gather.pieces),
            (gather.requests, here.payload_requests),
            (here.payload_lines, gather.lines),
            (engine.ops, requester.ops),
            (gather.payload, requester.payload),
            (requester.packets, here.packets),
            (engine.landings, landing.landings),
            (here.acks, landing.responses),
            (landing.acks, requester.acks),
            (landing.writes, here.land_writes),
            (landing.lines, here.land_lines),
            (requester.completions, here.completions),
        ):
            connect(m, source, sink)
        wiring.connect(m, requester.recovery, engine.recovery)
        wiring.connect(m, requester.reads, landing.reads)
        m.d.comb += [
            engine.retired.valid.eq(requester.retired.valid),
            engine.retired.payload.eq(requester.retired.payload),
            self.quiet.eq(engine.quiet & gather.quiet & requester.quiet & landing.quiet),
            self.due.eq(earliest(m, [engine.due, requester.due])),
        ]
        for block in (engine, requester):
            m.d.comb += [block.timing.eq(self.timing), block.now.eq(self.now)]
        for block in (engine, requester, landing, contexts):
            m.d.comb += [
                block.config.valid.eq(self.config.valid),
                block.config.payload.eq(self.config.payload),
            ]
        for reader, port in ((engine.sq, contexts.sq), (requester.tx, contexts.tx)):
            m.d.comb += [port.address.eq(reader.address), reader.data.eq(port.data)]
        return m


def bytes_at(address, length):
    """The source memory: a function of the address."""
    return bytes(
        (37 * at + 11 * (at >> 8) + (at >> 16)) & 0xFF for at in range(address, address + length)
    )


class Peer:
    """A responder for all QPs, in plain Python.

    Parameters
    ----------
    psns : {dest QPN: first PSN}
    qpns : {dest QPN: QPN of the requester}
    faults : callable(direction, qpn, psn, rng) -> "", "drop", "duplicate"
        Directions are "request" and "ack"; an answer with bytes of a READ or an atomic is an ack.
    refuse : {(dest QPN, packets executed): syndromes}
        What it answers to that packet instead of executing it, time after time; then it does.
    """

    def __init__(self, psns, qpns, *, faults=None, refuse=None, delay=(20, 21), seed=0):
        self.expected, self.qpns, self.delay = dict(psns), qpns, delay
        self.faults, self.refuse = faults or (lambda *_: ""), dict(refuse or {})
        self.random = random.Random(seed)
        #: Packets executed by QPN, in order, as lists of beats.
        self.executed = {qpn: [] for qpn in psns}
        self.nak_sent = dict.fromkeys(psns, False)
        self.naks = []

    def receive(self, packet):
        """Answers, as (delay, beat); those of a packet one after the other."""
        header = packet[0]["bth"]
        qpn, psn = header["dest_qp"], header["psn"]
        fate = self.faults("request", qpn, psn, self.random)
        if fate == "drop":
            return []
        answers = self._execute(qpn, psn, packet)
        if fate == "duplicate":
            answers += self._execute(qpn, psn, packet)
        return [answer for each in answers for answer in self._answer(qpn, each)]

    def _respond(self, qpn, psn, packet):
        """Packets that answer one that was executed."""
        header, dest = packet[0]["bth"], self.qpns[qpn]
        if header["opcode"] not in _READS:
            return [ack_beat(psn, dest_qp=dest)] if header["ack_request"] else []
        reth = unpack(Reth, packet[0]["ext"])
        if header["opcode"] != _READ:
            # What it finds never changes here: a duplicate finds it, too.
            value = bytes_at(reth["va"], 8)
            return [packet_beats(0x12, psn, value, ext=_ACK, dest_qp=dest)]
        raw, last = bytes_at(reth["va"], reth["length"]), response_packets(reth["length"], MTU) - 1
        return [
            packet_beats(
                0x10 if last == 0 else {0: 0x0D, last: 0x0F}.get(number, 0x0E),
                psn + number,
                raw[MTU * number : MTU * number + MTU],
                ext=_ACK,
                dest_qp=dest,
            )
            for number in range(last + 1)
        ]

    def _execute(self, qpn, psn, packet):
        ahead = (psn - self.expected[qpn]) & PSN_MASK
        dest = {"dest_qp": self.qpns[qpn]}
        if ahead >> 23:
            if packet[0]["bth"]["opcode"] in _READS:
                return self._respond(qpn, psn, packet)
            return [ack_beat(self.expected[qpn] - 1, **dest)]
        if ahead:
            if self.nak_sent[qpn]:
                return []
            self.nak_sent[qpn] = True
            return [ack_beat(self.expected[qpn], syndrome=0x60, **dest)]
        refusals = self.refuse.get((qpn, len(self.executed[qpn])))
        if refusals:
            syndrome, *rest = refusals
            self.refuse[qpn, len(self.executed[qpn])] = rest
            # What follows is out of order, but no reason for a NAK of its own.
            self.nak_sent[qpn] = True
            return [ack_beat(psn, syndrome=syndrome, **dest)]
        self.nak_sent[qpn] = False
        self.executed[qpn].append(packet)
        taken = 1
        if packet[0]["bth"]["opcode"] == _READ:
            taken = response_packets(unpack(Reth, packet[0]["ext"])["length"], MTU)
        self.expected[qpn] = (psn + taken) & PSN_MASK
        return self._respond(qpn, psn, packet)

    def _answer(self, qpn, answer):
        beats = answer if isinstance(answer, list) else [answer]
        psn = beats[0]["bth"]["psn"]
        fate = self.faults("ack", qpn, psn, self.random)
        if beats[0]["bth"]["opcode"] == RoceOpcode.ACK:
            syndrome = unpack(Aeth, beats[0]["ext"])["syndrome"]
            if syndrome != 0x1F:
                self.naks.append((qpn, psn, syndrome))
        times = {"drop": 0, "duplicate": 2}.get(fate, 1)
        delays = [self.random.randrange(*self.delay) for _ in range(times)]
        return [(delay, beat) for delay in delays for beat in beats]


class TransportRig(Rig):
    """A `Transport` with send queues and a `Peer`.

    Parameters
    ----------
    qps : QPs in use
    start, psn : index and PSN at the start
    context : further fields of the TX contexts
    peer : parameters of the `Peer`
    """

    def __init__(
        self,
        *,
        qps=1,
        start=0,
        psn=0,
        depth_log2=6,
        context=None,
        timing=None,
        peer=None,
        read=15,
        structure=STRUCTURE,
        **options,
    ):
        block = Transport(structure)
        super().__init__(block, pulses={"config": (block.config, ConfigWrite)}, **options)
        self.structure, self.depth, self.read = structure, 1 << depth_log2, read
        self.first_psn, self.context = psn, context or {}
        self.sources, self.posted, self.expected = {}, {}, {}
        values = {
            "wqe": 4,
            "tx": 3,
            "fetch_blocks": 4,
            "window_blocks": structure.window_blocks,
            "ack_unit": TIMEOUT // 2 << 8,
            "rnr_unit": RNR << 8,
            **(timing or {}),
        }
        self.ack_every = values.get("ack_every_packet", 0)
        for field, value in values.items():
            self.set(getattr(block.timing, field), value)
        for qp in range(qps):
            self.connect(qp, start, psn)
        self.peer = Peer(
            dict.fromkeys(map(self.peer_qpn, range(qps)), psn),
            {self.peer_qpn(qp): self.qpn(qp) for qp in range(qps)},
            **(peer or {}),
        )
        self._packet, self._times = [], dict.fromkeys(("lines", "payload_lines"), 0)
        self.on_taken = {
            "requests": self._fetch,
            "payload_requests": self._read_payload,
            "packets": self._beat,
        }

    @staticmethod
    def qpn(qp):
        return 0x1230 + qp

    @staticmethod
    def peer_qpn(qp):
        return 0x9980 + qp

    def connect(self, qp, start, psn, at=0):
        """Writes the contexts of a QP."""
        common = {"valid": 1, "qpn": self.qpn(qp), "mtu_log2": MTU.bit_length() - 1}
        send = {
            "base": 0x1000_0000_0000 + 0x100000 * qp,
            "depth_log2": self.depth.bit_length() - 1,
            "start_index": start,
        }
        transmit = {
            "peer_qpn": self.peer_qpn(qp),
            "peer_node": 1,
            "start_psn": psn,
            "ack_timeout": 1,
            "retry_count": 7,
            "rnr_retry": 7,
            "max_reads": 16,
            **self.context,
        }
        for table, shape, fields in (
            (Table.SQ, SqContext, send),
            (Table.TX, TxContext, transmit),
        ):
            word = pack(shape, common | fields)
            self.put("config", {"table": table, "index": qp, "data": word}, at)
        self.posted[qp], self.expected[qp] = start, []

    def post(self, qp, wqe):
        """Writes a WQE into its ring; returns its index."""
        index = self.posted[qp]
        for offset, block in enumerate(blocks(wqe)):
            self.sources[qp, (index + offset) % self.depth] = block
        self.posted[qp] = (index + len(wqe) // 64) & 0xFFFF
        self.expected[qp].append((index, wqe))
        return index

    def ring(self, qp, at=START, producer=None):
        producer = self.posted[qp] if producer is None else producer
        self.put("rings", {"qp": qp, "qpn": self.qpn(qp), "producer": producer & 0xFFFF}, at)

    def _lines(self, name, cycle, request, raw):
        """Bytes in the lanes of their address, in the order of the requests."""
        self._times[name] = max(self._times[name], cycle + self.read)
        address, end = request["address"], request["address"] + request["length"]
        while address < end:
            count = min(64 - address % 64, end - address)
            part, raw = raw[:count], raw[count:]
            self.put(
                name,
                {
                    "data": int.from_bytes(part, "little") << 8 * (address % 64),
                    "lane": address % 64,
                    "count": count,
                    "last": int(address + count == end),
                    "context": request["context"],
                },
                self._times[name],
            )
            address += count

    def _fetch(self, cycle, request):
        qp = request["context"]
        slot = (request["address"] >> 6) % self.depth
        raw = b"".join(self.sources[qp, slot + i] for i in range(request["length"] // 64))
        self._lines("lines", cycle, request, raw)

    def _read_payload(self, cycle, request):
        self._lines(
            "payload_lines", cycle, request, bytes_at(request["address"], request["length"])
        )

    def _beat(self, cycle, beat):
        self._packet.append(beat)
        if beat["last"]:
            packet, self._packet = self._packet, []
            for delay, answer in self.peer.receive(packet):
                self.put("acks", answer, cycle + delay)

    def reference(self, qp):
        """Packets that the WQEs of a QP make, as (opcode, payload, RETH), in order."""
        packets, psn = [], self.first_psn
        for index, wqe in self.expected[qp]:
            op, pieces, _ = reference_decode(wqe, qp=qp, wqe_index=index, mtu_log2=8)
            if not is_sent(op):
                continue
            raw = b"".join(
                piece["data"].to_bytes(64, "little")[piece["address"] :][: piece["length"]]
                if piece["inline"]
                else bytes_at(piece["address"], piece["length"])
                for piece in pieces
            )
            new, psn = request_packets(
                op | {"verb": Verb(op["verb"])},
                MTU,
                psn,
                payload=raw,
                ack_every=self.ack_every,
                dest_qp=self.peer_qpn(qp),
                dest=1,
            )
            packets += new
        return packets

    def retired(self, qp):
        """(index, status) of the WQEs of a QP that retired, in order."""
        return [
            (event["wqe_index"], event["status"])
            for _, event in self.events["on_retired_2"]
            if event["qp"] == qp
        ]

    def finish(self, cycles=20000, more=0):
        """Runs until everything that was posted has retired, and `more` cycles; fails if not."""
        total, done = sum(map(len, self.expected.values())), None

        def finished():
            nonlocal done
            if done is None and len(self.events["on_retired_2"]) >= total:
                done = self.cycle
            return done is not None and self.cycle >= done + more

        reached = self.run(cycles, finished)
        assert finished(), f"not done in cycle {reached}"

    def of(self, name):
        """Payloads of one probe's events."""
        return [event for _, event in self.events[name]]
