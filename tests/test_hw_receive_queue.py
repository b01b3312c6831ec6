"""Receive queues against plain Python: what is taken, where bytes go, what is reported and when."""

import random

import pytest
from support_roce import ContextTable, Pulses
from support_streams import Bench, Sink, Source, pack

from hw.config import Structure
from hw.formats.context import ConfigWrite, RqContext, Table
from hw.formats.layout import Codec
from hw.formats.mlx5 import END_OF_LIST_KEY, Data
from hw.formats.op import Received, Status
from hw.formats.tlp import MarkKind
from hw.receive_queue import ReceiveQueue

STRUCTURE = Structure(qps=4)
MTU = 256
RECORDS, QUEUES, BUFFERS = 0x100, 0x1_0000, 0x10_0000


class Host:
    """Software's receive queues in memory, and a read engine that answers from it.

    `strides`, `depths` and `starts` are per QP: log2 of bytes, log2 of WQEs, index.
    """

    def __init__(self, strides=(4, 5, 6, 8), depths=(2, 1, 3, 4), starts=(0, 0xFFFF, 7, 0x7FFE)):
        self.strides, self.depths, self.starts = strides, depths, starts
        self.memory = bytearray(random.Random(3).randbytes(QUEUES + 0x1_0000))
        self.posted, self.wqes = list(starts), {}
        for qp, start in enumerate(starts):
            self._record(qp, start)

    def contexts(self):
        return {
            qp: {
                "valid": 1,
                "qpn": qp,
                "base": QUEUES + 0x2000 * qp,
                "depth_log2": self.depths[qp],
                "stride_log2": self.strides[qp],
                "record": RECORDS + 8 * qp,
                "start_index": self.starts[qp],
            }
            for qp in range(4)
        }

    def _record(self, qp, value):
        at = RECORDS + 8 * qp
        self.memory[at : at + 4] = (0xABCD << 16 | value).to_bytes(4, "big")

    def post(self, qp, segments):
        """A WQE of (address, bytes) segments; one that is not full ends with the key for it."""
        index, stride = self.posted[qp], 1 << self.strides[qp]
        raw = b"".join(Codec(Data).pack(byte_count=n, lkey=7, address=a) for a, n in segments)
        if len(raw) < stride:
            raw += Codec(Data).pack(lkey=END_OF_LIST_KEY)
        at = QUEUES + 0x2000 * qp + (index % (1 << self.depths[qp])) * stride
        self.memory[at : at + len(raw)] = raw
        self.wqes[qp, index] = segments
        self.posted[qp] = index + 1 & 0xFFFF

    def announce(self, qp):
        self._record(qp, self.posted[qp])

    def lines(self, request):
        """What the read engine answers."""
        at, left = request["address"], request["length"]
        while left:
            count = min(left, 64 - at % 64)
            data = int.from_bytes(self.memory[at : at + count], "little") << 8 * (at % 64)
            left -= count
            yield {"data": data, "lane": at % 64, "count": count, "last": int(not left)}
            at += count


def send(qp, payload, *, imm=None, solicited=0):
    kind = Received.SEND if imm is None else Received.SEND_IMM
    return {"qp": qp, "kind": kind, "payload": payload, "imm": imm or 0, "solicited": solicited}


def write(qp, address, payload, *, imm=None):
    """Without immediate: a WRITE, which takes nothing."""
    kind = None if imm is None else Received.WRITE_IMM
    return {"qp": qp, "kind": kind, "payload": payload, "address": address, "imm": imm or 0}


def post(qp, *segments):
    return {"qp": qp, "post": segments}


def packets_of(message):
    """(placement, lines) of each packet, as the responder makes them of a message that fits."""
    payload, kind = message["payload"], message["kind"]
    scatter = kind in (Received.SEND, Received.SEND_IMM)
    runs = [payload[i : i + MTU] for i in range(0, len(payload), MTU)] or [b""]
    at = message.get("address", 0)
    for number, run in enumerate(runs):
        last = number == len(runs) - 1
        mark = {"kind": (MarkKind.PAYLOAD_LAST if last else MarkKind.PAYLOAD).value}
        placement = {
            "write": {"address": at, "length": len(run), "mark": {**mark, "qp": message["qp"]}},
            "qp": message["qp"],
            "scatter": int(scatter),
            "completes": int(last and kind is not None),
        }
        if placement["completes"]:
            placement |= {
                "received": kind.value,
                "imm": message["imm"],
                "solicited": message.get("solicited", 0),
                "message_length": len(payload),
            }
        lines, lane = [], 0 if scatter else at % 64
        while run:
            count = min(len(run), 64 - lane)
            data = int.from_bytes(run[:count], "little") << 8 * lane
            run, last_line = run[count:], count == len(run)
            lines.append({"data": data, "lane": lane, "count": count, "last": int(last_line)})
            lane = 0
        at += placement["write"]["length"]
        yield placement, lines


REFUSED = {"scatter": 0, "completes": 1, "status": Status.LOCAL_LENGTH.value}


class Responder:
    """Plays messages into the block: takes a WQE where one is needed, then sends what it leaves.

    A message that finds none leaves nothing; one that is too long is refused.
    """

    def __init__(self, dut, host, *, gap, idle, seed):
        self.host, self.gap, self.script = host, gap, []
        self.take = Source(dut.take, idle=idle, seed=seed)
        self.placements = Source(dut.placements, idle=idle, seed=seed + 1)
        self.lines = Source(dut.lines, idle=idle, seed=seed + 2)
        self.waiting = None

    def begin(self, cycle):
        """Up to the next message that needs a WQE, for which it asks `gap` cycles later."""
        while self.script:
            step = self.script.pop(0)
            if "post" in step:
                self.host.post(step["qp"], step["post"])
                self.host.announce(step["qp"])
            elif step["kind"] is None:
                self.play(step)
            else:
                self.waiting = step
                self.take.items.append((cycle + self.gap, step["qp"]))
                return

    def play(self, message):
        for placement, lines in packets_of(message):
            self.placements.items.append(placement)
            self.lines.items.extend(lines)

    def answered(self, cycle, answer):
        message, self.waiting = self.waiting, None
        if answer["found"]:
            scatter = message["kind"] is not Received.WRITE_IMM
            if scatter and len(message["payload"]) > answer["room"]:
                refused = {"qp": message["qp"], "received": message["kind"].value, **REFUSED}
                self.placements.items.append(refused)
            else:
                self.play(message)
        self.begin(cycle)


def ref_receive(script, host):
    """(answers, writes with their bytes, completions) of a script, WQE by WQE."""
    taken, posted = list(host.starts), {qp: [] for qp in range(4)}
    answers, writes, completions = [], [], []
    for step in script:
        qp = step["qp"]
        if "post" in step:
            posted[qp].append(step["post"])
            continue
        payload, kind, segments = step["payload"], step["kind"], []
        if kind is not None:
            found = bool(posted[qp])
            segments = list(posted[qp].pop(0)) if found else []
            room = sum(n for _, n in segments)
            answers.append({"qp": qp, "found": int(found), "room": room})
            if not found:
                continue
            index, taken[qp] = taken[qp], taken[qp] + 1 & 0xFFFF
            scatters = kind is not Received.WRITE_IMM
            fits = not scatters or len(payload) <= room
            completions.append(
                {
                    "qp": qp,
                    "receive": 1,
                    "received": kind.value,
                    "imm": step["imm"] if fits else 0,
                    "solicited": step.get("solicited", 0) if fits else 0,
                    "wqe_index": index,
                    "vendor_opcode": 0,
                    "length": len(payload) if fits else 0,
                    "status": 0 if fits else Status.LOCAL_LENGTH.value,
                }
            )
            if not fits:
                continue
        at = step.get("address")
        for start in range(0, len(payload), MTU):
            packet = payload[start : start + MTU]
            if kind in (None, Received.WRITE_IMM):
                writes.append((at, packet))
                at += len(packet)
                continue
            while packet:
                while not segments[0][1]:
                    segments.pop(0)
                address, room = segments[0]
                run = packet[:room]
                writes.append((address, run))
                segments[0] = (address + len(run), room - len(run))
                packet = packet[len(run) :]
    return answers, writes, completions


class Run:
    def __init__(self, script, host=None, *, idle=0.0, stall=0.0, seed=1, gap=0, skip=False):
        self.script, self.host = list(script), host or Host()
        host = self.host
        self.expected = self.reference()
        self.dut = dut = ReceiveQueue(STRUCTURE)
        self.responder = Responder(dut, host, gap=gap, idle=idle, seed=seed)
        self.taken = Sink(dut.taken, stall, seed + 3, self.responder.answered)
        self.writes = Sink(dut.writes, stall, seed + 4)
        self.lines = Sink(dut.lines_out, stall, seed + 5)
        self.completions = Sink(dut.completions, stall, seed + 6)
        self.fetched = Source(dut.fetched, idle=idle, seed=seed + 7)
        self.reads = []

        def read(cycle, request):
            self.reads.append(request)
            self.fetched.items.extend((cycle + 9, line) for line in host.lines(request))

        requests = Sink(dut.requests, stall, seed + 8, read)
        config = Pulses(
            dut.config.valid,
            dut.config.payload,
            ConfigWrite,
            [
                (0, {"table": Table.RQ, "index": qp, "data": pack(RqContext, context)})
                for qp, context in host.contexts().items()
            ],
        )
        responder = self.responder
        drivers = [config, responder.take, responder.placements, responder.lines, self.fetched]
        drivers += [requests, self.taken, self.writes, self.lines, self.completions]
        drivers += [ContextTable(dut.rq, RqContext, host.contexts())]
        self.bench = Bench(dut, drivers, skip=skip, each_cycle=self.start)
        self.bench.run(8000, done=self.done, tail=6)

    def reference(self):
        return ref_receive(self.script, self.host)

    def start(self, ctx, cycle):
        """The script begins once the contexts are there."""
        if cycle == 6:
            self.responder.script = self.script
            self.responder.begin(cycle)

    def done(self):
        answers, writes, completions = self.expected
        lines_last = sum(line["last"] for line in self.lines.words)
        return (
            self.bench.cycle > 8
            and not self.responder.script
            and len(self.taken.items) == len(answers)
            and len(self.writes.items) == lines_last == len(writes)
            and len(self.completions.items) == len(completions)
        )

    @property
    def placed(self):
        """(address, bytes) of each write."""
        lines, placed = iter(self.lines.words), []
        for request in self.writes.words:
            data, at = b"", request["address"]
            while True:
                line = next(lines)
                assert line["lane"] == (at + len(data)) % 64
                raw = line["data"].to_bytes(64, "little")
                data += raw[line["lane"] : line["lane"] + line["count"]]
                if line["last"]:
                    break
            assert len(data) == request["length"]
            placed.append((at, data))
        return placed

    def check(self):
        answers, writes, completions = self.expected
        assert self.taken.words == answers
        assert self.placed == writes
        assert self.completions.words == completions
        events = self.bench.of("on_taken")
        assert [(e["qp"], e["found"]) for e in events] == [(a["qp"], a["found"]) for a in answers]
        return self


def data(count, seed=0):
    return random.Random(seed).randbytes(count)


def test_send_fills_the_segments_of_its_wqe():
    segments = [(BUFFERS + 3, 5), (BUFFERS + 0x1001, 100), (BUFFERS + 0x2000, 400)]
    run = Run([post(3, *segments), send(3, data(300), solicited=1)]).check()
    assert [(address, len(raw)) for address, raw in run.placed] == [
        (BUFFERS + 3, 5),
        (BUFFERS + 0x1001, 100),
        (BUFFERS + 0x2000, 151),
        (BUFFERS + 0x2000 + 151, 44),
    ]
    assert [w["mark"]["kind"] for w in run.writes.words] == [MarkKind.PAYLOAD.value] * 3 + [
        MarkKind.PAYLOAD_LAST.value
    ]
    # The record, then the WQE: its index on both.
    assert [(r["length"], r["mark"]["index"]) for r in run.reads] == [(4, 0x7FFE), (256, 0x7FFE)]
    assert {r["mark"]["kind"] for r in run.reads} == {MarkKind.RECEIVE_FETCH.value}


@pytest.mark.parametrize("qp", range(4))
def test_one_record_read_announces_all_that_is_posted(qp):
    script = [post(qp, (BUFFERS + 100 * i, 64)) for i in range(2)]
    script += [send(qp, data(64, i)) for i in range(2)]
    run = Run(script).check()
    assert [r["length"] for r in run.reads] == [4, *[1 << run.host.strides[qp]] * 2]


def test_none_is_posted_until_the_record_says_so():
    run = Run([send(2, data(8)), post(2, (BUFFERS, 8)), send(2, data(8)), send(2, b"")]).check()
    assert [a["found"] for a in run.taken.words] == [0, 1, 0]


class Claims(Host):
    """Says that QP 0, whose queue has 4 entries, has `beyond` WQEs more than were taken."""

    beyond = 0

    def announce(self, qp):
        self._record(qp, self.starts[qp] + self.beyond & 0xFFFF)


class Unseen(Run):
    """What is posted is not seen."""

    def reference(self):
        return ref_receive([step for step in self.script if "post" not in step], self.host)


@pytest.mark.parametrize("beyond, kind", [(4, Run), (0, Unseen), (5, Unseen), (0xFFFF, Unseen)])
def test_a_record_out_of_bounds_announces_nothing(beyond, kind):
    host = Claims()
    host.beyond = beyond
    kind([post(0, (BUFFERS, 8)), send(0, data(8))], host).check()


class Bare(Host):
    """No QP has a receive queue."""

    def contexts(self):
        return {}


def test_without_a_receive_queue_none_is_found_and_nothing_read():
    run = Unseen([post(1, (BUFFERS, 8)), send(1, data(8))], Bare()).check()
    (asked,) = run.responder.take.taken
    assert (run.taken.items[0][0] - asked[0], run.reads) == (2, [])


def test_a_message_that_fits_exactly_and_one_byte_more():
    segments = [(BUFFERS, 0), (BUFFERS, 200), (BUFFERS + 0x800, 0), (BUFFERS + 0x900, 56)]
    script = [post(2, *segments)] * 2
    script += [send(2, data(256)), send(2, data(257), imm=9)]
    run = Run(script).check()
    assert [c["status"] for c in run.completions.words] == [0, Status.LOCAL_LENGTH.value]


def test_empty_messages_take_a_wqe():
    script = [post(1, (BUFFERS, 8)), post(1, (BUFFERS, 8)), send(1, b"", imm=0xDEADBEEF)]
    run = Run([*script, write(1, 0x55, b"", imm=7)]).check()
    assert [c["imm"] for c in run.completions.words] == [0xDEADBEEF, 7]


def test_write_with_immediate_takes_a_wqe_and_leaves_it_alone():
    script = [post(0, (BUFFERS, 4)), write(0, 0x5003, data(700), imm=0x11223344)]
    run = Run(script).check()
    assert [address for address, _ in run.placed] == [0x5003, 0x5103, 0x5203]
    assert run.completions.words[0]["length"] == 700


def script_of(seed, messages=40):
    """Everything mixed over four QPs, with WQEs of every form."""
    source = random.Random(seed)
    host, script, free = Host(), [], [1 << depth for depth in Host().depths]
    for number in range(messages):
        qp = source.randrange(4)
        most = 1 << host.strides[qp] - 4
        if source.random() < 0.7 and free[qp]:
            sizes = [source.choice((0, 1, 7, 64, 100, 255, 256, 513)) for _ in range(most)]
            count = source.randint(1, most)
            script.append(post(qp, *((source.getrandbits(20), n) for n in sizes[:count])))
            free[qp] -= 1
        length = source.choice((0, 1, 8, 63, 64, 65, 250, 256, 257, 600))
        imm = source.choice((None, source.getrandbits(32)))
        if source.random() < 0.5:
            script.append(write(qp, source.getrandbits(20), data(length, number), imm=imm))
        else:
            message = send(qp, data(length, number), imm=imm, solicited=source.getrandbits(1))
            script.append(message)
        if script[-1]["kind"] is not None:
            # One is gone, if one was there.
            free[qp] = min(free[qp] + 1, 1 << host.depths[qp])
    return script


@pytest.mark.parametrize("idle, stall", [(0.0, 0.0), (0.3, 0.0), (0.0, 0.5), (0.4, 0.4)])
def test_random_messages(idle, stall, seed):
    run = Run(script_of(seed), idle=idle, stall=stall, seed=seed).check()
    assert len(run.placed) > 10


@pytest.mark.parametrize("stall", [0.0, 0.6])
def test_no_completion_before_the_bytes_ahead_of_it(stall, seed):
    script = script_of(seed)
    run = Run(script, stall=stall, seed=seed).check()
    _, writes, _ = run.expected
    ends = [cycle for cycle, line in run.lines.items if line["last"]]
    assert len(ends) == len(writes)
    for cycle, completion in run.completions.items:
        before = ref_writes_before(script, completion, run.host)
        assert before == 0 or ends[before - 1] < cycle


def ref_writes_before(script, completion, host):
    """Writes up to the one that a completion reports, itself included."""
    for length in range(len(script) + 1):
        _, writes, completions = ref_receive(script[:length], host)
        if completion in completions:
            return len(writes)
    raise AssertionError("no such completion")


def test_writes_pass_in_the_cycle_in_which_they_come():
    script = [write(0, 0x40 * i, data(256, i)) for i in range(20)]
    run = Run(script).check()
    given = [cycle for cycle, _ in run.responder.lines.taken]
    assert [cycle for cycle, _ in run.lines.items] == given
    assert given == list(range(given[0], given[0] + 80))
    assert [c for c, _ in run.writes.items] == given[::4]


def test_quiet_cycles_can_be_skipped(seed):
    def run(skip):
        got = Run(script_of(seed, 16), skip=skip, gap=100, stall=0.2, seed=seed).check()
        return got.bench.evaluated, got.lines.items, got.completions.items, got.bench.events

    skipped, full = run(True), run(False)
    assert skipped[1:] == full[1:]
    assert skipped[0] < 0.5 * full[0]
