"""The queue of answers against plain Python."""

import random

import pytest
from support_roce import ack_beat, normal, packet_beats
from support_streams import Bench, Sink, Source

from hw.answers import AnswerKind, Answers
from hw.formats.roce import RoceOpcode

MTU = 256
MIDDLE = RoceOpcode.READ_RESPONSE_MIDDLE


def answer(kind, psn, *, qp=1, length=0, original=0, syndrome=0x1F, counted=0):
    return {
        "kind": kind,
        "qp": qp,
        "peer_qpn": 0x900 + qp,
        "peer_node": 4,
        "port": qp & 1,
        "psn": psn,
        "msn": psn + 1,
        "syndrome": syndrome,
        "counted": counted,
        "length": length,
        "mtu_log2": 8,
        "original": original,
    }


def ref_answers(items, payloads):
    """Beats of a list of answers; `payloads` are the bytes of the READs among them."""
    beats, payloads = [], list(payloads)
    for item in items:
        ends = {"dest_qp": item["peer_qpn"], "dest": 4, "port": item["port"]}
        ext = item["syndrome"] << 24 | item["msn"]
        if item["kind"] is AnswerKind.ACK:
            syndrome, msn = item["syndrome"], item["msn"]
            beats.append(ack_beat(item["psn"], syndrome=syndrome, msn=msn, **ends))
        elif item["kind"] is AnswerKind.ATOMIC:
            found = item["original"].to_bytes(8, "big")
            beats += packet_beats(RoceOpcode.ATOMIC_ACK, item["psn"], found, ext=ext, **ends)
        else:
            payload = payloads.pop(0)
            pieces = [payload[i : i + MTU] for i in range(0, len(payload), MTU)] or [b""]
            for i, piece in enumerate(pieces):
                opcode = {
                    (1, 1): RoceOpcode.READ_RESPONSE_ONLY,
                    (1, 0): RoceOpcode.READ_RESPONSE_FIRST,
                    (0, 1): RoceOpcode.READ_RESPONSE_LAST,
                    (0, 0): MIDDLE,
                }[int(i == 0), int(i == len(pieces) - 1)]
                aeth = 0 if opcode is MIDDLE else ext
                beats += packet_beats(opcode, item["psn"] + i, piece, ext=aeth, **ends)
    return [normal(beat) for beat in beats]


def lines(payload):
    """Lines of one response, as a gather makes them."""
    made = []
    for start in range(0, len(payload), MTU):
        piece = payload[start : start + MTU]
        for i in range(0, len(piece), 64):
            run = piece[i : i + 64]
            word = {"data": int.from_bytes(run, "little"), "count": len(run)}
            made.append({**word, "last": int(i + 64 >= len(piece))})
    return made


class Run:
    def __init__(self, items, payloads, *, latency=5, idle=0.0, stall=0.0, skip=False, late=0):
        self.dut = dut = Answers()
        self.i = Source(dut.i, items, idle, 1)
        words = [(late, line) for payload in payloads for line in lines(payload)]
        self.payload = Source(dut.payload, words, idle, 2)
        self.o = Sink(dut.o, stall, 3)
        self.answered = []
        expected = ref_answers([i[1] if isinstance(i, tuple) else i for i in items], payloads)

        def each(ctx, cycle):
            if ctx.get(dut.answered.valid):
                self.answered.append((cycle, ctx.get(dut.answered.qp)))

        self.bench = Bench(
            dut, [self.i, self.payload, self.o], {"latency": latency}, skip=skip, each_cycle=each
        )
        self.bench.run(4000, lambda: len(self.o.items) >= len(expected), tail=10)
        assert [normal(beat) for beat in self.o.words] == expected


def mixed(seed, count):
    rng = random.Random(seed)
    items, payloads = [], []
    for psn in range(count):
        kind = rng.choice(list(AnswerKind))
        more = {"syndrome": rng.choice([0x1F, 0x60, 0x2C])} if kind is AnswerKind.ACK else {}
        if kind is AnswerKind.READ:
            payloads.append(rng.randbytes(rng.choice([0, 1, 64, 65, MTU, MTU + 1, 3 * MTU])))
            more = {"length": len(payloads[-1])}
        counted = int(kind is not AnswerKind.ACK and rng.random() < 0.7)
        original = rng.getrandbits(64)
        items.append(
            answer(kind, psn, qp=rng.randrange(4), counted=counted, original=original, **more)
        )
    return items, payloads


@pytest.mark.parametrize("idle,stall", [(0, 0), (0.5, 0.1), (0.1, 0.6)])
def test_answers_match_reference(idle, stall):
    items, payloads = mixed(7, 40)
    run = Run(items, payloads, idle=idle, stall=stall)
    counted = [item["qp"] for item in items if item["counted"]]
    assert [qp for _, qp in run.answered] == counted


def test_an_answer_waits_for_the_bytes_of_a_read_before_it():
    items = [
        answer(AnswerKind.READ, 0, length=MTU + 8, counted=1),
        answer(AnswerKind.ACK, 2, qp=2),
    ]
    run = Run(items, [bytes(MTU + 8)], late=300)
    assert [cycle for cycle, _ in run.o.items] == list(range(300, 306))
    # It is outstanding until its last beat has left.
    assert run.answered == [(304, 1)]


@pytest.mark.parametrize("latency", [0, 1, 2, 40])
def test_latency_closed_form(latency):
    items = [answer(AnswerKind.ACK, psn) for psn in range(50)]
    run = Run(items, [], latency=latency)
    for (taken, _), (left, _) in zip(run.i.taken, run.o.items, strict=True):
        assert left == taken + max(1, latency)


def test_skipping_quiet_cycles_changes_nothing():
    def once(skip):
        items, payloads = mixed(3, 15)
        timed = [(40 * i, item) for i, item in enumerate(items)]
        run = Run(timed, payloads, latency=30, stall=0.3, late=200, skip=skip)
        return (run.o.items, run.answered), run.bench.evaluated, run.bench.cycle

    full, skipped = once(False), once(True)
    assert full[0] == skipped[0]
    assert skipped[1] < 0.6 * skipped[2]
