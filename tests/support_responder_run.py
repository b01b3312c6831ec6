"""A responder between sources and sinks, with a memory behind it."""

from collections import defaultdict
from collections.abc import Callable

from support_responder import RefMemory, RefResponder
from support_roce import ContextTable, Pulses, context_writes, normal
from support_streams import Bench, Sink, Source, pack

from hw.config import Structure
from hw.formats.context import ConfigWrite, RxContext, Table
from hw.responder import Responder
from hw.timing import NicTiming

__all__ = ["MTU", "Run", "contexts_of", "lines_of"]

STRUCTURE = Structure(qps=4, wqe_lines=32, payload_lines=128)
MTU = 256


def contexts_of(qps=4, psn=0, msn=0, **more):
    return {
        qp: {
            "valid": 1,
            "qpn": 0x500 + qp,
            "peer_qpn": 0x900 + qp,
            "peer_node": 3 + qp,
            "expected_psn": (psn + 11 * qp) & 0xFFFFFF,
            "start_msn": msn,
            "mtu_log2": 8,
            "port": qp & 1,
            "rnr_timer": 12,
            "max_reads": 16,
            **more,
        }
        for qp in range(qps)
    }


def lines_of(address, payload):
    """`ReadLine`s that answer a request."""
    lines, end = [], address + len(payload)
    while address < end:
        count = min(64 - address % 64, end - address)
        data = int.from_bytes(payload[:count], "little") << 8 * (address % 64)
        lines.append({"data": data, "lane": address % 64, "count": count})
        address, payload = address + count, payload[count:]
    lines[-1]["last"] = 1
    return lines


class Reader:
    """Answers read requests from a memory as it is when they are taken, `latency` cycles later."""

    def __init__(self, requests, lines, memory, latency, stall, seed):
        self.lines = Source(lines, seed=seed)
        self.requests = Sink(requests, stall, seed, on_item=self._take)
        self.memory, self.latency = memory, latency

    def _take(self, cycle, item):
        payload = self.memory.read(item["address"], item["length"])
        lines = lines_of(item["address"], payload)
        self.lines.items.extend((cycle + self.latency, line) for line in lines)


class ReceiveQueues:
    """Answers a `take` with the next room of its QP, if there is one."""

    def __init__(self, dut, rooms, latency, seed):
        self.rooms = defaultdict(list, {qp: list(left) for qp, left in (rooms or {}).items()})
        self.taken, self.latency = Source(dut.taken, seed=seed), latency
        self.take = Sink(dut.take, on_item=self._take)

    def _take(self, cycle, qp):
        rooms = self.rooms[qp]
        answer = {"qp": qp, "found": int(bool(rooms)), "room": rooms.pop(0) if rooms else 0}
        self.taken.items.append((cycle + self.latency, answer))


class Run:
    """Packets through a responder, compared with `RefResponder`.

    Parameters
    ----------
    rooms : dict of QP to list of int
        Bytes that its receive WQEs have.
    unsettled : range
        Cycles in which placements that were taken have not gone to the write engine.
    full : collection of int
        Places of the packets that come while too much is outstanding.
    until : int, optional
        Runs to that cycle, whatever has come out.
    memory : callable
        Makes the memory: one for the responder, one for the reference.
    """

    def __init__(
        self,
        packets,
        contexts,
        *,
        idle=0.0,
        stall=0.0,
        seed=1,
        tx=5,
        skip=False,
        starts=None,
        acks_stall=None,
        configs=(),
        rooms=None,
        latency=20,
        unsettled=range(0),
        full=(),
        until=None,
        limit=4000,
        memory: Callable[[], RefMemory] = RefMemory,
    ):
        self.dut = dut = Responder(STRUCTURE)
        self.memory, self.runs, self.unsettled = memory(), [], unsettled
        begin = len(contexts) + 1
        beats = []
        for i, packet in enumerate(packets):
            beats += [((starts[i] if starts else begin), beat) for beat in packet]
        self.packets = Source(dut.packets, beats, idle, seed)
        self.placements = Sink(dut.placements, stall, seed + 1, on_item=self._placed)
        self.lines = Sink(dut.lines, stall, seed + 2, on_item=self._lined)
        self.waiting, self.run, self.fresh = [], [], []
        acks_stall = stall if acks_stall is None else acks_stall
        self.acks = Sink(dut.acks, acks_stall, seed + 3)
        self.reads = Reader(
            dut.read_requests, dut.read_lines, self.memory, latency, stall, seed + 4
        )
        self.atomics = Reader(
            dut.atomic_requests, dut.atomic_lines, self.memory, latency, stall, seed + 5
        )
        self.receive = ReceiveQueues(dut, rooms, latency, seed + 6)
        config = Pulses(
            dut.config.valid,
            dut.config.payload,
            ConfigWrite,
            context_writes(Table.RX, RxContext, contexts) + list(configs),
        )
        self.expected = RefResponder(contexts, memory=memory(), rooms=rooms)
        for place, packet in enumerate(packets):
            self.expected.take(packet, reads_full=place in full)
        self.bench = Bench(
            dut,
            [
                config,
                ContextTable(dut.rx, RxContext, contexts),
                self.packets,
                self.placements,
                self.lines,
                self.acks,
                self.reads.requests,
                self.reads.lines,
                self.atomics.requests,
                self.atomics.lines,
                self.receive.take,
                self.receive.taken,
                self,
            ],
            {"timing": pack(NicTiming, {"tx": tx})},
            skip=skip,
        )
        self.bench.run(
            limit,
            lambda: (
                self.bench.cycle >= until
                if until is not None
                else len(self.acks.items) >= len(self.expected.answers)
                and len(self.runs) >= len(self.expected.placements)
            ),
            tail=tx + 20,
        )

    def drive(self, ctx, cycle):
        ctx.set(self.dut.settled, int(cycle not in self.unsettled))

    def sample(self, ctx, cycle):
        pass

    def _placed(self, _, placement):
        self.waiting.append(placement)
        self._pair()

    def _lined(self, _, line):
        self.run.append(line)
        if line["last"]:
            self.fresh.append(self.run)
            self.run = []
        self._pair()

    def _pair(self):
        """Placements and their lines reach memory when both are there."""
        while self.waiting and (self.fresh or not self.waiting[0]["write"]["length"]):
            placement = self.waiting.pop(0)
            write = placement["write"]
            run = self.fresh.pop(0) if write["length"] else []
            payload = self._bytes(placement, run)
            if not placement["scatter"]:
                self.memory.write(write["address"], payload)
            self.runs.append((placement, payload))

    def _bytes(self, placement, run):
        """Bytes of lines that are checked to sit in the lanes of their addresses."""
        address, payload = 0 if placement["scatter"] else placement["write"]["address"], b""
        for line in run:
            assert line["lane"] == address % 64 and line["lane"] + line["count"] <= 64
            payload += line["data"].to_bytes(64, "little")[
                line["lane"] : line["lane"] + line["count"]
            ]
            assert line is run[-1] or (address + line["count"]) % 64 == 0
            address += line["count"]
        assert len(payload) == placement["write"]["length"]
        return payload

    @property
    def written(self):
        """(flat placement, bytes) of all that was handed over."""
        assert not self.waiting and not self.fresh and not self.run
        return [({**placement, **placement["write"]}, data) for placement, data in self.runs]

    @property
    def drops(self):
        return [(event["reason"], event["qp"]) for event in self.bench.of("on_dropped")]

    def check(self):
        expected = self.expected
        assert [normal(beat) for beat in self.acks.words] == expected.answers
        assert self.drops == expected.drops
        written = self.written
        assert [data for _, data in written] == [data for _, data in expected.placements]
        for (placement, _), (wanted, _) in zip(written, expected.placements, strict=True):
            assert {key: placement[key] for key in wanted} == wanted
