"""The judge of request packets against plain Python."""

import random
import warnings

import pytest
from amaranth.sim import Simulator
from support_responder import RefState, judge
from support_roce import PSN_MASK
from support_streams import pack

from hw.formats.context import RxContext
from hw.formats.events import DropReason
from hw.formats.roce import Reth, RoceOpcode, WireBeat
from hw.packet_checker import PacketChecker, RequestKind, RxState, Verdict

MTU = 256
CONTEXT = {"valid": 1, "qpn": 0x501, "mtu_log2": 8}
#: Every opcode that is served or answers, and some that are neither.
OPCODES = [*range(0x20), 0x24, 0x64, 0x81, 0xBF, 0xC0, 0xD2, 0xD3, 0xD4, 0xD5, 0xFF]


def beat(opcode, psn=0, *, length=0, qpn=0x501, va=0x1000, message=None):
    message = length if message is None else message
    ext = pack(Reth, {"va": va, "rkey": 9, "length": message})
    opcode = int(getattr(opcode, "value", opcode))
    header = {"opcode": opcode, "psn": psn & PSN_MASK, "dest_qp": qpn}
    return {"bth": header, "ext": ext, "length": length, "first": 1}


def judged(cases):
    """What the block says of (beat, context, `RefState`, reads_full, not_ready, room)."""
    dut, answers = PacketChecker(), []

    async def loop(ctx):
        for head, context, state, full, not_ready, room in cases:
            words = {
                "expected_psn": state.psn,
                "in_message": int(state.in_message),
                "in_send": int(state.in_send),
                "left": state.left,
                "failed": int(state.failed),
            }
            ctx.set(dut.beat.as_value(), pack(WireBeat, head))
            ctx.set(dut.context.as_value(), pack(RxContext, context or {}))
            ctx.set(dut.state.as_value(), pack(RxState, words))
            ctx.set(dut.reads_full, int(full))
            ctx.set(dut.not_ready, int(not_ready))
            ctx.set(dut.room, room)
            await ctx.delay(1e-9)
            names = ("verdict", "reason", "kind", "starts", "ends", "takes", "packets")
            answers.append({name: ctx.get(getattr(dut, name)) for name in names})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulator = Simulator(dut)
    simulator.add_testbench(loop)
    simulator.run()
    return answers


def compare(cases):
    verdicts = set()
    for case, answer in zip(cases, judged(cases), strict=True):
        head, context, state, full, not_ready, room = case
        expected = judge(head, context, state, reads_full=full, not_ready=not_ready, room=room)
        verdicts.add(expected.verdict)
        assert answer["verdict"] == expected.verdict, (case, expected)
        if expected.verdict is not Verdict.EXECUTE:
            assert answer["reason"] == expected.reason, (case, expected)
        if expected.kind is not RequestKind.NONE and expected.verdict is not Verdict.DROP:
            assert answer["kind"] == expected.kind
            assert (answer["starts"], answer["ends"]) == (expected.starts, expected.ends)
        assert answer["takes"] == expected.takes, (case, expected)
        if expected.verdict in (Verdict.EXECUTE, Verdict.RNR):
            assert answer["packets"] == expected.packets
    return verdicts


def random_case(rng):
    """Packets that are mostly nearly right."""
    state = RefState(
        psn=rng.choice([0, 7, PSN_MASK]),
        in_message=rng.random() < 0.5,
        in_send=rng.random() < 0.5,
        left=rng.choice([1, MTU, MTU + 1, 700]),
        failed=rng.random() < 0.05,
    )
    length = rng.choice([0, 1, 16, 16, 32, MTU - 1, MTU, MTU, MTU + 1])
    head = beat(
        rng.choice(OPCODES),
        state.psn + rng.choice([0, 0, 0, 0, 1, -1, (1 << 23) - 1, 1 << 23]),
        length=length,
        qpn=rng.choice([0x501] * 9 + [0x502]),
        va=rng.choice([0x1000, 0x1004, 0x1008, 0x1002, 0xFFF1]),
        message=rng.choice([length, length, 0, 4, 8, MTU, MTU + 1, 900, 1 << 31, (1 << 31) + 1]),
    )
    context = {**CONTEXT, "valid": int(rng.random() < 0.95)}
    room = rng.choice([0, 8, MTU - 1, MTU, 1 << 31])
    return head, context, state, rng.random() < 0.2, rng.random() < 0.3, room


@pytest.mark.parametrize("seed", range(4))
def test_verdicts_match_reference(seed):
    rng = random.Random(seed)
    assert compare([random_case(rng) for _ in range(4000)]) == set(Verdict)


def test_every_opcode_in_and_out_of_a_message():
    compare(
        [
            (beat(opcode, psn, length=length, message=8), CONTEXT, state, False, False, 1 << 31)
            for opcode in range(256)
            for psn in (5, 4, 6)
            for length in (0, 8, 16, 32, MTU)
            for state in (
                RefState(5),
                RefState(5, in_message=True, left=8),
                RefState(5, in_message=True, in_send=True),
            )
        ]
    )


def verdict_of(head, state=None, **flags):
    state = state or RefState(0)
    full, dry, room = (flags.get(*flag) for flag in (("full", 0), ("dry", 0), ("room", 1 << 31)))
    (answer,) = judged([(head, CONTEXT, state, full, dry, room)])
    return Verdict(answer["verdict"]), DropReason(answer["reason"]), answer


WRITE_LENGTHS = {
    "only says more": (beat(RoceOpcode.WRITE_ONLY, length=8, message=9), {}),
    "only says less": (beat(RoceOpcode.WRITE_ONLY, length=8, message=7), {}),
    "first says no more": (beat(RoceOpcode.WRITE_FIRST, length=MTU, message=MTU), {}),
    "middle brings too much": (beat(RoceOpcode.WRITE_MIDDLE, length=MTU), {"left": MTU - 1}),
    "middle leaves nothing": (beat(RoceOpcode.WRITE_MIDDLE, length=MTU), {"left": MTU}),
    "last brings too much": (beat(RoceOpcode.WRITE_LAST, length=8), {"left": 7}),
    "last brings too little": (beat(RoceOpcode.WRITE_LAST, length=8), {"left": 9}),
    "with immediate": (beat(RoceOpcode.WRITE_LAST_IMM, length=8), {"left": 9}),
    "longer than any": (beat(RoceOpcode.WRITE_FIRST, length=MTU, message=(1 << 31) + 1), {}),
}


@pytest.mark.parametrize("head,state", WRITE_LENGTHS.values(), ids=WRITE_LENGTHS)
def test_bytes_of_a_write_must_be_those_that_its_first_packet_said(head, state):
    state = RefState(0, in_message=bool(state), **state)
    assert verdict_of(head, state)[:2] == (Verdict.INVALID, DropReason.PACKET_OPCODE)


def test_an_opcode_that_is_not_served_is_refused_where_it_would_be_executed():
    for opcode in (0x15, RoceOpcode.SEND_LAST_INV, 0x1F, 0xC0, 0xD5):
        expected = [(0, Verdict.INVALID), (-1, Verdict.DROP), (1, Verdict.AHEAD)]
        for psn, verdict in expected:
            assert verdict_of(beat(opcode, psn))[0] is verdict
    for opcode in (0x24, RoceOpcode.UD_SEND_ONLY, RoceOpcode.CNP, RoceOpcode.ACK):
        assert verdict_of(beat(opcode))[:2] == (Verdict.DROP, DropReason.PACKET_OPCODE)


@pytest.mark.parametrize(
    "length,packets", [(0, 1), (1, 1), (MTU, 1), (MTU + 1, 2), (900, 4), (1 << 31, 1 << 23)]
)
def test_a_read_uses_up_the_psns_of_its_response(length, packets):
    verdict, _, answer = verdict_of(beat(RoceOpcode.READ_REQUEST, message=length))
    assert verdict is Verdict.EXECUTE and answer["packets"] == packets


def test_reads_and_atomics_too_many_are_refused_and_duplicates_never():
    for opcode, length in ((RoceOpcode.READ_REQUEST, 0), (RoceOpcode.FETCH_ADD, 16)):
        new, old = (beat(opcode, psn, length=length, message=8) for psn in (0, -1))
        assert verdict_of(new)[0] is Verdict.EXECUTE
        assert verdict_of(new, full=True)[:2] == (Verdict.INVALID, DropReason.PACKET_READS)
        assert verdict_of(old, full=True)[0] is Verdict.DUPLICATE


@pytest.mark.parametrize("va,size,good", [(8, 8, 1), (4, 8, 0), (4, 4, 1), (6, 4, 0), (8, 2, 0)])
def test_an_atomic_is_aligned_to_its_size(va, size, good):
    head = beat(RoceOpcode.MASKED_FETCH_ADD, length=16, va=va, message=size)
    assert verdict_of(head)[0] is (Verdict.EXECUTE if good else Verdict.INVALID)


def test_who_needs_a_receive_wqe_is_told_to_wait_without_one():
    takers = {
        RoceOpcode.SEND_FIRST: MTU,
        RoceOpcode.SEND_ONLY: 8,
        RoceOpcode.SEND_ONLY_IMM: 0,
        RoceOpcode.WRITE_ONLY_IMM: 0,
    }
    for opcode, length in takers.items():
        verdict, reason, answer = verdict_of(beat(opcode, length=length), dry=True)
        assert (verdict, reason) == (Verdict.RNR, DropReason.PACKET_NOT_READY)
        assert answer["takes"]
    late = beat(RoceOpcode.SEND_LAST_IMM, length=8)
    within = RefState(0, in_message=True, in_send=True, left=8)
    assert verdict_of(late, within, dry=True)[0] is Verdict.EXECUTE
    late = beat(RoceOpcode.WRITE_LAST_IMM, length=8)
    assert verdict_of(late, RefState(0, in_message=True, left=8), dry=True)[0] is Verdict.RNR


def test_a_send_that_its_wqe_has_no_room_for_is_refused():
    too_long = (Verdict.INVALID, DropReason.PACKET_TOO_LONG)
    send = beat(RoceOpcode.SEND_ONLY, length=8)
    assert verdict_of(send, room=8)[0] is Verdict.EXECUTE
    assert verdict_of(send, room=7)[:2] == too_long
    last = beat(RoceOpcode.SEND_LAST, length=8)
    for left, verdict in ((8, Verdict.EXECUTE), (7, Verdict.INVALID)):
        assert verdict_of(last, RefState(0, in_message=True, in_send=True, left=left))[0] is verdict
