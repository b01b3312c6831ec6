"""Responses against plain Python: bytes in memory, ACKs for the retirer, and what is dropped."""

import random

import pytest
from support_roce import Pulses, ack_beat, context_writes, normal, packet_beats
from support_streams import Bench, Sink, Source, pack

from hw.config import Structure
from hw.formats.context import ConfigWrite, Table, TxContext
from hw.formats.events import DropReason
from hw.formats.roce import Aeth, RoceOpcode
from hw.formats.tlp import MarkKind
from hw.landing import ResponseLanding
from hw.segmenter import Started

#: 16 runs per ring.
STRUCTURE = Structure(qps=4, wqe_blocks=4)
MTU, PSN_MASK = 256, (1 << 24) - 1
QPN = 0x500
NAK, MISFIT = 0x60, 0x7F
ACKS_ALL = {"ext": pack(Aeth, {"syndrome": 0x1F})}


def contexts_of(qps=4, psn=0):
    return {
        qp: {"valid": 1, "qpn": QPN + qp, "start_psn": psn + 100 * qp & PSN_MASK, "mtu_log2": 8}
        for qp in range(qps)
    }


class Operation:
    """What the segmenter starts, and what a responder answers.

    `lands` are (address, length) of its landings; `atomic` is 0, 4 or 8.
    """

    def __init__(self, qp, psn, lands=(), *, atomic=0, packets=None, sends=1, index=0, seed=0):
        self.qp, self.psn, self.lands, self.atomic = qp, psn & PSN_MASK, lands, atomic
        self.length, self.sends, self.index = sum(length for _, length in lands), sends, index
        self.reads = packets is None
        count = 1 if atomic else max(1, -(-self.length // MTU))
        self.packets = count if self.reads else packets
        self.last_psn = self.psn + (self.packets if sends else 0) - 1 & PSN_MASK
        self.bytes = random.Random(seed + psn).randbytes(self.length)

    @property
    def started(self):
        entry = {
            "wqe_index": self.index,
            "first_psn": self.psn,
            "last_psn": self.last_psn,
            "length": self.length,
            "sends": self.sends,
            "reads": int(self.reads),
            "atomic": int(self.atomic > 0),
        }
        return {"qp": self.qp, "psn": self.psn, "entry": entry}

    @property
    def landings(self):
        return [
            {
                "qp": self.qp,
                "address": address,
                "length": length,
                "last": int(i == len(self.lands) - 1),
            }
            for i, (address, length) in enumerate(self.lands)
        ]

    def responses(self):
        """A list of packets, each a list of beats."""
        ends = {"dest_qp": QPN + self.qp}
        if not self.reads:
            return [[ack_beat(self.last_psn, **ends)]]
        if self.atomic:
            # A value of 4 bytes in the low half; the wire has its highest byte first.
            value = self.bytes[::-1] if self.atomic == 8 else bytes(4) + self.bytes
            return [packet_beats(RoceOpcode.ATOMIC_ACK, self.psn, value, **ACKS_ALL, **ends)]
        parts = [self.bytes[at : at + MTU] for at in range(0, self.length, MTU)] or [b""]
        opcodes = {
            (1, 1): RoceOpcode.READ_RESPONSE_ONLY,
            (1, 0): RoceOpcode.READ_RESPONSE_FIRST,
            (0, 0): RoceOpcode.READ_RESPONSE_MIDDLE,
            (0, 1): RoceOpcode.READ_RESPONSE_LAST,
        }
        return [
            packet_beats(
                opcodes[int(i == 0), int(i == len(parts) - 1)],
                self.psn + i,
                part,
                **ACKS_ALL,
                **ends,
            )
            for i, part in enumerate(parts)
        ]


class Starter(Source):
    """Starts operations in order, as the segmenter does; `on_start` gets each (cycle, operation).

    Items are (cycle not before, operation).
    """

    def __init__(self, port, items, most=16, on_start=lambda cycle, operation: None):
        self.port, self.items, self.most, self.on_start = port, list(items), most, on_start
        self.was_valid, self.waits = 0, 0

    def drive(self, ctx, cycle):
        valid = 0
        if self.items and self.items[0][0] <= cycle:
            operation = self.items[0][1]
            ctx.set(self.port.started.payload.as_value(), pack(Started, operation.started))
            ctx.set(self.port.ask, operation.qp)
            waits = operation.reads and operation.sends
            waits = waits and ctx.get(self.port.outstanding) >= self.most
            valid = int(bool(ctx.get(self.port.room)) and not waits)
            self.waits += 1 - valid
        if valid != self.was_valid:
            ctx.set(self.port.started.valid, valid)
            self.was_valid = valid
        if valid:
            self.items.pop(0)
            self.on_start(cycle, operation)

    def sample(self, ctx, cycle):
        pass

    @property
    def finished(self):
        return not self.items and not self.was_valid


class Run:
    """A landing block among its neighbours.

    `operations` start by themselves; each is answered `delay` cycles later, unless `answers` (a
    list of (cycle, packet)) is given. `failed` is a set of QPs in error.
    """

    def __init__(
        self,
        operations=(),
        answers=None,
        *,
        contexts=None,
        restarts=(),
        configs=(),
        landings=None,
        starts=None,
        failed=(),
        most=16,
        idle=0.0,
        stall=0.0,
        lines_stall=None,
        acks_stall=None,
        seed=1,
        skip=False,
        delay=(20, 60),
        limit=6000,
        expect=None,
    ):
        self.dut = dut = ResponseLanding(STRUCTURE)
        self.contexts = contexts_of() if contexts is None else contexts
        begin = len(self.contexts) + 1
        self.choices, self.delay, self.free = random.Random(seed), delay, {}
        self.failed = failed
        operations = list(operations)
        self.responses = Source(dut.responses, [], idle, seed)
        if answers is not None:
            self.responses.items.extend(
                (begin + cycle, beat) for cycle, packet in answers for beat in packet
            )
        self.automatic = answers is None
        given = [landing for operation in operations for landing in operation.landings]
        self.landings = Source(
            dut.landings,
            [(begin, item) for item in given] if landings is None else landings,
            idle,
            seed + 1,
        )
        times = [0] * len(operations) if starts is None else starts
        self.starter = Starter(
            dut.reads,
            [(begin + at, operation) for at, operation in zip(times, operations, strict=True)],
            most,
            self._started,
        )
        lines_stall = stall if lines_stall is None else lines_stall
        acks_stall = stall if acks_stall is None else acks_stall
        self.writes = Sink(dut.writes, stall, seed + 2)
        self.lines = Sink(dut.lines, lines_stall, seed + 3)
        self.acks = Sink(dut.acks, acks_stall, seed + 4)
        config = Pulses(
            dut.config.valid,
            dut.config.payload,
            ConfigWrite,
            context_writes(Table.TX, TxContext, self.contexts)
            + [(begin + cycle, item) for cycle, item in configs],
        )
        self.restarts = [(begin + cycle, qp, psn) for cycle, qp, psn in restarts]
        self.begin, self.outstanding = begin, []
        self.pending = []
        drivers = [self, config, self.starter, self.responses, self.landings]
        self.bench = Bench(
            dut, [*drivers, self.writes, self.lines, self.acks], skip=skip, each_cycle=self._watch
        )
        self.sound = True
        wanted = sum(op.packets if op.reads else 1 for op in operations if op.sends)
        wanted = wanted if expect is None else expect
        self.bench.run(limit, lambda: len(self.acks.items) >= wanted and not self.restarts, tail=20)

    def _started(self, cycle, operation):
        if self.automatic and operation.sends:
            due = max(self.free.get(operation.qp, 0), cycle + self.choices.randint(*self.delay))
            self.free[operation.qp] = due
            self.pending += [(due, packet) for packet in operation.responses()]

    def drive(self, ctx, cycle):
        """Answers that are due, and restarts."""
        self.pending.sort(key=lambda entry: entry[0])
        while self.pending and self.pending[0][0] <= cycle:
            self.responses.items.extend(self.pending.pop(0)[1])
        restart = self.dut.reads.restart
        due = bool(self.restarts) and self.restarts[0][0] <= cycle
        ctx.set(restart.valid, due)
        if due:
            _, qp, psn = self.restarts.pop(0)
            ctx.set(restart.qp, qp)
            ctx.set(restart.psn, psn)

    def sample(self, ctx, cycle):
        ctx.set(self.dut.reads.failed, ctx.get(self.dut.reads.responding_qp) in self.failed)

    def _watch(self, ctx, cycle):
        self.sound = self.sound and not ctx.get(self.dut.error)
        self.outstanding.append(ctx.get(self.dut.reads.outstanding))

    @property
    def written(self):
        """(address, bytes, mark) of each run, its lines checked to lie in their lanes."""
        written, lines = [], list(self.lines.words)
        for request in self.writes.words:
            address, payload, last = request["address"], b"", False
            assert 1 <= request["length"] <= 4096
            while not last:
                line = lines.pop(0)
                lane, count, last = line["lane"], line["count"], bool(line["last"])
                assert lane == (address + len(payload)) % 64 and 1 <= count <= 64 - lane
                assert last or lane + count == 64
                payload += line["data"].to_bytes(64, "little")[lane : lane + count]
            assert len(payload) == request["length"]
            written.append((address, payload, request["mark"]))
        assert not lines
        return written

    @property
    def memory(self):
        return {
            address + i: byte
            for address, payload, _ in self.written
            for i, byte in enumerate(payload)
        }

    @property
    def handed(self):
        """(QP, PSN, syndrome) of what the retirer gets."""
        return [
            (ack["bth"]["dest_qp"] - QPN, ack["bth"]["psn"], ack["ext"] >> 24 & 0xFF)
            for ack in self.acks.words
        ]

    @property
    def drops(self):
        return [(DropReason(event["reason"]), event["qp"]) for event in self.bench.of("on_dropped")]


def ref_memory(operations):
    """What memory holds when all operations have landed."""
    memory = {}
    for operation in operations:
        at = 0
        for address, length in operation.lands:
            part = operation.bytes[at : at + length]
            memory |= {address + i: byte for i, byte in enumerate(part)}
            at += length
    return memory


def ref_acks(operations, qp):
    """What the retirer gets for one QP."""
    acks = []
    for operation in operations:
        if operation.qp == qp and operation.sends:
            psns = range(operation.packets) if operation.reads else [operation.packets - 1]
            acks += [(qp, operation.psn + i & PSN_MASK, 0x1F) for i in psns]
    return acks


def read(qp, psn, *lengths, address=0x2000_0000_0000, gap=0, **options):
    """A READ into runs of the given lengths, `gap` bytes between them."""
    lands = []
    for length in lengths:
        lands.append((address, length))
        address += length + gap
    return Operation(qp, psn, lands, **options)


def mixed(seed, count, contexts):
    """Operations of all kinds over all QPs, in places of their own."""
    source, operations = random.Random(seed), []
    psns = {qp: context["start_psn"] for qp, context in contexts.items()}
    for i in range(count):
        qp, base = source.choice(list(contexts)), 0x2000_0000_0000 + 0x10000 * i
        kind = source.choice(("read", "read", "read", "atomic", "write", "flushed"))
        options = {"index": i, "seed": seed}
        if kind == "write":
            operation = Operation(qp, psns[qp], packets=source.randint(1, 4), **options)
        elif kind == "atomic":
            size = source.choice((4, 8))
            lands = [(base + source.randrange(64), size)]
            operation = Operation(qp, psns[qp], lands, atomic=size, **options)
        else:
            runs, address = [], base + source.randrange(200)
            for _ in range(source.choice((0, 1, 1, 2, 5, 14))):
                length = source.choice((1, 7, 63, 64, 65, MTU, MTU + 1, source.randint(1, 900)))
                runs.append((address, length))
                address += length + source.randrange(100)
            operation = Operation(qp, psns[qp], runs, sends=int(kind == "read"), **options)
        if operation.sends:
            psns[qp] += operation.packets
        operations.append(operation)
    return operations


@pytest.mark.parametrize(
    "seed, idle, stall", [(1, 0, 0), (2, 0.4, 0.4), (3, 0.1, 0.7), (4, 0.6, 0.1)]
)
def test_bytes_and_acks_match_reference(seed, idle, stall):
    contexts = contexts_of(psn=PSN_MASK - 5)
    operations = mixed(seed, 60, contexts)
    run = Run(operations, contexts=contexts, idle=idle, stall=stall, seed=seed, limit=20000)
    assert run.sound and not run.drops
    assert run.memory == ref_memory([operation for operation in operations if operation.sends])
    for qp in contexts:
        assert [ack for ack in run.handed if ack[0] == qp] == ref_acks(operations, qp)
    assert run.outstanding[-1] == 0


def test_ack_passes_in_its_cycle_and_unchanged():
    acks = [
        ack_beat(7, dest_qp=QPN, msn=3, port=1, dest=2),
        ack_beat(9, syndrome=NAK, dest_qp=QPN + 1),
        ack_beat(9, syndrome=0x2C, dest_qp=QPN + 2),
        ack_beat(1, dest_qp=0x777),
        packet_beats(RoceOpcode.CNP, 4, dest_qp=QPN)[0],
    ]
    run = Run(answers=[(0, [ack]) for ack in acks], expect=len(acks))
    assert [normal(ack) for ack in run.acks.words] == [normal(ack) for ack in acks]
    assert [cycle for cycle, _ in run.acks.items] == [run.begin + i for i in range(len(acks))]
    assert [cycle for cycle, _ in run.responses.taken] == [cycle for cycle, _ in run.acks.items]
    assert not run.drops and not run.writes.items


@pytest.mark.parametrize("lane", [0, 1, 37, 63])
@pytest.mark.parametrize("length", [1, 64, 2 * MTU + 63])
def test_bytes_sit_in_the_lanes_of_their_address(lane, length):
    run = Run([read(0, 0, length, address=0x1000_0000_0040 + lane, index=9)])
    sizes = [min(MTU, length - at) for at in range(0, length, MTU)]
    assert [(address, len(payload)) for address, payload, _ in run.written] == [
        (0x1000_0000_0040 + lane + MTU * i, size) for i, size in enumerate(sizes)
    ]
    assert [mark for _, _, mark in run.written] == [
        {
            "kind": (MarkKind.LANDED_LAST if last else MarkKind.LANDED).value,
            "qp": 0,
            "index": 9,
        }
        for last in [False] * (len(sizes) - 1) + [True]
    ]


def test_a_packet_fills_many_runs_and_a_run_takes_many_packets():
    operation = read(0, 0, 10, 100, 1, 700, 5, gap=33)
    run = Run([operation])
    assert [len(payload) for _, payload, _ in run.written] == [10, 100, 1, 145, 256, 256, 43, 5]
    assert run.memory == ref_memory([operation])
    assert run.written[-1][2]["kind"] == MarkKind.LANDED_LAST.value
    assert run.written[-2][2]["kind"] == MarkKind.LANDED.value


def test_atomics_come_in_native_order_of_8_bytes_and_in_network_order_of_4():
    large = Operation(0, 0, [(0x1003, 8)], atomic=8)
    small = Operation(0, 1, [(0x203E, 4)], atomic=4)
    answers = [
        packet_beats(RoceOpcode.ATOMIC_ACK, psn, value.to_bytes(8, "big"), dest_qp=QPN, **ACKS_ALL)
        for psn, value in enumerate((0x0102030405060708, 0xA1B2C3D4))
    ]
    run = Run([large, small], [(20, answers[0]), (20, answers[1])])
    assert [(address, payload) for address, payload, _ in run.written] == [
        (0x1003, (0x0102030405060708).to_bytes(8, "little")),
        (0x203E, (0xA1B2C3D4).to_bytes(4, "big")),
    ]
    assert run.handed == [(0, 0, 0x1F), (0, 1, 0x1F)]


def test_read_of_nothing_is_acknowledged():
    operations = [read(0, 0), read(0, 1, 8), read(0, 2)]
    run = Run(operations)
    assert run.handed == [(0, 0, 0x1F), (0, 1, 0x1F), (0, 2, 0x1F)]
    assert run.memory == ref_memory(operations)


def test_ack_comes_after_the_last_line_was_taken():
    operations = [read(qp, 100 * qp, 3 * MTU + 1, address=0x5001) for qp in range(4)]
    run = Run(operations, lines_stall=0.9, seed=5)
    ends = [cycle for cycle, line in run.lines.items if line["last"]]
    assert len(ends) == len(run.acks.items) == 16
    assert all(ack > end for (ack, _), end in zip(run.acks.items, ends, strict=True))


def test_outstanding_counts_until_the_response_has_landed():
    operations = [read(0, i, 8, index=i) for i in range(5)]
    run = Run(operations, delay=(200, 200), most=3)
    assert max(run.outstanding) == 3 and run.outstanding[-1] == 0
    # The fourth starts once the first has landed.
    third = run.outstanding.index(3)
    assert run.outstanding[third : third + 150] == [3] * 150


def test_gap_is_told_once_and_nothing_lands_before_it_is_filled():
    operation = read(0, 0, 4 * MTU)
    first, second, third, fourth = operation.responses()
    run = Run(
        [operation],
        [(20, packet) for packet in (first, third, fourth, second, third, fourth)],
        expect=5,
    )
    assert run.handed == [(0, 0, 0x1F), (0, 1, NAK), (0, 1, 0x1F), (0, 2, 0x1F), (0, 3, 0x1F)]
    assert run.drops == [(DropReason.RESPONSE_MISSING, QPN)] * 2
    assert run.memory == ref_memory([operation])


@pytest.mark.parametrize("syndrome", [0x1F, NAK, 0x61, 0x2C])
def test_ack_beyond_a_response_that_did_not_come_is_a_gap(syndrome):
    """A NAK acknowledges what is before its PSN, so that of the response itself passes."""
    operations = [read(1, 100, 2 * MTU), Operation(1, 102, packets=3)]
    is_ack = syndrome == 0x1F
    beyond = ack_beat(101 if is_ack else 102, syndrome=syndrome, dest_qp=QPN + 1)
    at = ack_beat(99 if is_ack else 100, syndrome=syndrome, dest_qp=QPN + 1)
    run = Run(
        operations,
        [(20, [at]), (20, [beyond]), (20, [beyond]), (21, operations[0].responses()[0])],
        expect=3,
    )
    assert run.handed == [
        (1, 99 if is_ack else 100, syndrome),
        (1, 100, NAK),
        (1, 100, 0x1F),
    ]
    assert run.drops == [(DropReason.RESPONSE_MISSING, QPN + 1)] * 2


def test_responses_for_nobody_write_nothing():
    one, late = read(0, 0, MTU + 9), read(2, 250, 8)
    stray = read(3, 400, 8)
    other = packet_beats(RoceOpcode.READ_RESPONSE_ONLY, 0, bytes(8), dest_qp=0x700)
    failed = read(1, 100, 8)
    run = Run(
        [one, failed],
        [
            (20, packet)
            for packet in (
                *one.responses(),
                one.responses()[1],
                late.responses()[0],
                stray.responses()[0],
                other,
                failed.responses()[0],
                [ack_beat(100, dest_qp=QPN + 1)],
            )
        ],
        failed={1},
        expect=3,
    )
    assert run.drops == [
        (DropReason.RESPONSE_OLD, QPN),
        (DropReason.RESPONSE_UNEXPECTED, QPN + 2),
        (DropReason.RESPONSE_UNEXPECTED, QPN + 3),
        (DropReason.PACKET_UNKNOWN_QP, 0x700),
        (DropReason.ACK_QP_ERROR, QPN + 1),
    ]
    assert run.handed == [(0, 0, 0x1F), (0, 1, 0x1F), (1, 100, 0x1F)]
    assert run.memory == ref_memory([one])


def answer(opcode, length, psn=0):
    return packet_beats(opcode, psn, bytes(length), dest_qp=QPN, **ACKS_ALL)


READ_ONLY, READ_FIRST = RoceOpcode.READ_RESPONSE_ONLY, RoceOpcode.READ_RESPONSE_FIRST
MISFITS = {
    "too short": (read(0, 0, 100), answer(READ_ONLY, 99)),
    "too long": (read(0, 0, 100), answer(READ_ONLY, 101)),
    "empty": (read(0, 0, 100), answer(READ_ONLY, 0)),
    "not empty": (read(0, 0), answer(READ_ONLY, 1)),
    "ends too early": (read(0, 0, MTU + 1), answer(READ_ONLY, 1)),
    "no whole MTU": (read(0, 0, MTU + 1), answer(READ_FIRST, MTU - 64)),
    "more than an MTU": (read(0, 0, 2 * MTU), answer(READ_FIRST, 2 * MTU)),
    "an atomic's for a READ": (read(0, 0, 8), answer(RoceOpcode.ATOMIC_ACK, 8)),
    "a READ's for an atomic": (Operation(0, 0, [(0, 8)], atomic=8), answer(READ_ONLY, 8)),
    "half an atomic's": (Operation(0, 0, [(0, 4)], atomic=4), answer(RoceOpcode.ATOMIC_ACK, 4)),
}


@pytest.mark.parametrize("name", MISFITS)
def test_response_that_does_not_fit_writes_nothing_and_is_told(name):
    operation, packet = MISFITS[name]
    run = Run([operation], [(20, packet)], expect=1)
    (ack,) = run.acks.words
    assert ack["bth"]["opcode"] == packet[0]["bth"]["opcode"].value
    assert (ack["first"], ack["last"], ack["count"], ack["length"]) == (1, 1, 0, 0)
    assert run.handed == [(0, 0, MISFIT)]
    assert run.drops == [(DropReason.RESPONSE_MISFIT, QPN)]
    assert not run.writes.items and not run.lines.items


def test_restart_forgets_and_takes_the_rest_of_a_read_that_begins_later():
    whole = read(0, 0, 3 * MTU, seed=1)
    rest = read(0, 1, 2 * MTU, address=0x7000, seed=2)
    # The READ goes on behind what has come: its opcodes begin anew.
    answers = [(20, whole.responses()[0]), (60, whole.responses()[1])]
    answers += [(120, packet) for packet in rest.responses()]
    run = Run([whole, rest], answers, restarts=[(50, 0, 1)], starts=[0, 100], expect=3)
    assert run.drops == [(DropReason.RESPONSE_UNEXPECTED, QPN)]
    assert run.handed == [(0, 0, 0x1F), (0, 1, 0x1F), (0, 2, 0x1F)]
    first = {address: byte for address, byte in ref_memory([whole]).items() if address & 0x300 == 0}
    assert run.memory == first | ref_memory([rest]) and run.sound


def test_late_ack_does_not_pass_before_what_it_acknowledges_is_executed_again():
    """After a restart nothing is outstanding, and an ACK of before may acknowledge a READ whose
    bytes never came.
    """
    write, one = Operation(0, 0, packets=1), read(0, 1, 8)
    late, own = ack_beat(2, dest_qp=QPN), ack_beat(0, dest_qp=QPN)
    answers = [
        (50, [late]),  # nothing has started again
        (70, [late]),  # the WRITE has
        (70, [own]),
        (90, [late]),  # the READ has
        (100, one.responses()[0]),
        (110, [late]),
    ]
    run = Run(
        [write, one, write, one, Operation(0, 2, packets=1)],
        answers,
        restarts=[(40, 0, 0)],
        starts=[0, 0, 60, 80, 80],
        expect=4,
    )
    assert run.handed == [(0, 0, 0x1F), (0, 1, NAK), (0, 1, 0x1F), (0, 2, 0x1F)]
    assert run.drops == [(DropReason.RESPONSE_MISSING, QPN)] * 3


def test_acks_pass_after_a_restart_where_no_read_was_outstanding():
    write, one = Operation(0, 0, packets=3), read(0, 3, 8)
    answers = [(50, one.responses()[0]), (90, [ack_beat(9, dest_qp=QPN)])]
    run = Run([write, one], answers, restarts=[(80, 0, 4)], expect=2)
    assert run.handed == [(0, 3, 0x1F), (0, 9, 0x1F)] and not run.drops


def test_gap_is_not_told_again_after_a_restart():
    """Much that was sent before may still be under way."""
    one = read(0, 0, 3 * MTU)
    packets = one.responses()
    answers = [(20, packets[1]), (80, packets[2])] + [(90, packet) for packet in packets]
    run = Run([one, one], answers, restarts=[(40, 0, 0)], starts=[0, 60], expect=4)
    assert run.handed == [(0, 0, NAK), (0, 0, 0x1F), (0, 1, 0x1F), (0, 2, 0x1F)]


@pytest.mark.parametrize("cycle", range(24, 44, 4))
@pytest.mark.parametrize("configures", [False, True])
def test_packet_of_a_qp_that_is_set_up_or_restarts_is_not_acknowledged(cycle, configures):
    """The run that is begun is written to its end; whatever was written was right."""
    one, two = read(0, 0, 70, 100, 20, gap=7, seed=3), read(1, 100, 80)
    context = {"table": Table.TX, "index": 0, "data": pack(TxContext, contexts_of()[0])}
    run = Run(
        [one, two],
        [(24, one.responses()[0]), (24, two.responses()[0])],
        restarts=[] if configures else [(cycle, 0, 0)],
        configs=[(cycle, context)] if configures else [],
        lines_stall=0.7,
        seed=cycle,
        expect=1,
    )
    expected = ref_memory([one, two])
    assert all(expected[address] == byte for address, byte in run.memory.items())
    assert set(run.memory) >= set(ref_memory([two])) and run.sound
    assert run.handed[-1] == (1, 100, 0x1F)
    if len(run.memory) < len(expected):
        assert (0, 0, 0x1F) not in run.handed


def test_landings_of_what_is_flushed_are_for_nobody():
    flushed = read(0, 0, 5, 6, 7, sends=0, seed=1)
    kept = read(0, 0, 100, address=0x9000)
    run = Run([flushed, read(1, 100, 9, address=0xA000), kept])
    assert run.memory == ref_memory([kept, read(1, 100, 9, address=0xA000)]) and run.sound


def test_operation_waits_for_its_landings():
    one = read(0, 0, 8, 8)
    late = [(40, one.landings[0]), (70, one.landings[1])]
    run = Run([one], landings=late)
    assert run.starter.waits > 60 and run.memory == ref_memory([one])


def test_full_ring_holds_up_its_operation_but_no_response():
    """Nothing of QP 0 is answered before QP 1 is, whose landings stand behind those of QP 0."""
    full = [read(0, i, *[8] * 10, address=0x1000 * i) for i in range(2)]
    other = read(1, 100, *[8] * 14, address=0x9000)
    late, early = [(300, full[0].responses()[0])], [(40, other.responses()[0])]
    run = Run([other, *full], [*early, *late, (340, full[1].responses()[0])])
    assert run.handed == [(1, 100, 0x1F), (0, 0, 0x1F), (0, 1, 0x1F)]
    assert 31 in run.outstanding
    assert run.memory == ref_memory([other, *full])


def test_streams_one_beat_per_cycle_and_one_cycle_per_packet():
    operation = read(0, 0, 8 * MTU, address=0x4000)
    run = Run([operation], [(30, packet) for packet in operation.responses()])
    cycles = [cycle for cycle, _ in run.responses.taken]
    assert cycles[-1] - cycles[0] == 8 * (MTU // 64 + 1) - 2
    # Last beat at t, its line at t + 1, its ACK at t + 2.
    assert [cycle for cycle, _ in run.lines.items] == [cycle + 1 for cycle in cycles]
    assert [cycle for cycle, _ in run.acks.items] == [cycle + 2 for cycle in cycles[3::4]]


def test_small_responses_come_every_other_cycle():
    operations = [read(qp, 100 * qp + i, 8) for i in range(4) for qp in range(4)]
    run = Run(operations, [(120, operation.responses()[0]) for operation in operations])
    cycles = [cycle for cycle, _ in run.acks.items]
    assert cycles == list(range(cycles[0], cycles[0] + 32, 2))


def test_what_is_offered_does_not_change_by_a_restart():
    one = read(0, 0, 2 * MTU)
    run = Run(
        [one],
        [(30, one.responses()[1]), (31, [ack_beat(5, dest_qp=QPN)])],
        restarts=[(cycle, 0, 0) for cycle in range(28, 60)],
        acks_stall=0.95,
        seed=4,
        expect=0,
    )
    assert run.handed in ([(0, 0, NAK)], [])


def test_landings_that_are_not_what_an_operation_brings_are_reported():
    one = read(0, 0, 100)
    wrong = [one.landings[0] | {"length": 101}]
    assert Run([one], landings=wrong).sound is False


@pytest.mark.parametrize("seed", [1, 2])
def test_skipping_quiet_cycles_changes_nothing(seed):
    contexts = contexts_of()
    operations = mixed(seed, 16, contexts)

    def run(skip):
        result = Run(
            operations,
            contexts=contexts,
            stall=0.2,
            seed=seed,
            skip=skip,
            starts=[100 * i for i in range(len(operations))],
        )
        events = (result.acks.items, result.writes.items, result.lines.items, result.bench.events)
        return events, result.bench.evaluated

    skipped, full = run(True), run(False)
    assert skipped[0] == full[0] and skipped[1] < 0.7 * full[1]
