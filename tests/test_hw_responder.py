"""The responder against plain Python: writes, acknowledgements and drops."""

import random

import pytest
from support_responder_run import MTU, Run, contexts_of
from support_roce import PSN_MASK, context_writes, packet_beats, write_packets
from support_streams import unpack

from hw.formats.context import RxContext, Table
from hw.formats.events import DropReason
from hw.formats.roce import Aeth, RoceOpcode


def messages(seed, count, contexts, *, interleave=True):
    """Packets of WRITEs over all QPs; packets of different QPs are interleaved."""
    rng = random.Random(seed)
    queues = {}
    psns = {qp: context["expected_psn"] for qp, context in contexts.items()}
    for _ in range(count):
        qp = rng.choice(list(contexts))
        length = rng.choice([0, 1, 7, 63, 64, 65, MTU - 1, MTU, MTU + 1, 2 * MTU, 2 * MTU + 1, 900])
        new = write_packets(
            rng.randbytes(length),
            MTU,
            psns[qp],
            raddr=0x2000_0000_0000 + rng.randrange(1 << 20),
            rkey=7,
            ack_every=rng.randrange(2),
            dest_qp=contexts[qp]["qpn"],
            wqe_index=5,
        )
        psns[qp] += len(new)
        queues.setdefault(qp, []).extend(new)
    packets = []
    while queues:
        qp = rng.choice(list(queues))
        packets.append(queues[qp].pop(0))
        if not queues[qp]:
            del queues[qp]
    return packets


def only(
    psn,
    length=8,
    *,
    qp=0,
    va=0x2000_0000_1000,
    opcode=RoceOpcode.WRITE_ONLY,
    ack=1,
    qpn=None,
    message=None,
):
    """One packet of QP `qp` with any opcode; `message` is the length in its header."""
    payload = random.Random(psn).randbytes(length)
    return packet_beats(
        opcode,
        psn,
        payload,
        dest_qp=0x500 + qp if qpn is None else qpn,
        ack=ack,
        reth={"va": va, "rkey": 7, "length": length if message is None else message},
    )


@pytest.mark.parametrize(
    "seed,idle,stall", [(1, 0, 0), (2, 0.4, 0.4), (3, 0.1, 0.7), (4, 0.6, 0.1)]
)
def test_writes_and_acks_match_reference(seed, idle, stall):
    contexts = contexts_of(psn=0xFFFFF0, msn=0xFFFFFE)
    run = Run(messages(seed, 40, contexts), contexts, idle=idle, stall=stall, seed=seed)
    run.check()
    assert not run.drops and run.expected.answers


@pytest.mark.parametrize("lane", [0, 1, 37, 63])
@pytest.mark.parametrize("length", [1, 64, MTU, MTU + 1, 2 * MTU + 63])
def test_bytes_sit_in_the_lanes_of_their_address(lane, length):
    contexts = contexts_of(1)
    packets = write_packets(
        random.Random(length).randbytes(length),
        MTU,
        0,
        raddr=0x1000_0000_0040 + lane,
        dest_qp=0x500,
    )
    run = Run(packets, contexts)
    run.check()
    assert [placed["write"]["address"] for placed in run.placements.words] == [
        0x1000_0000_0040 + lane + MTU * i for i in range(len(packets))
    ]


def test_ack_fields():
    contexts = contexts_of(2, psn=PSN_MASK, msn=PSN_MASK)
    run = Run([only(PSN_MASK)], contexts)
    (ack,) = run.acks.words
    assert ack["bth"] == {
        "opcode": 0x11,
        "solicited": 0,
        "migration": 0,
        "pad": 0,
        "version": 0,
        "pkey": 0xFFFF,
        "fecn": 0,
        "becn": 0,
        "_0": 0,
        "dest_qp": 0x900,
        "ack_request": 0,
        "_1": 0,
        "psn": PSN_MASK,
    }
    assert unpack(Aeth, ack["ext"]) == {"syndrome": 0x1F, "msn": 0}
    assert (ack["first"], ack["last"], ack["count"], ack["length"], ack["dest"]) == (1, 1, 0, 0, 3)


#: A message of three packets at most, of which the last has 8 bytes.
FIRST = {"opcode": RoceOpcode.WRITE_FIRST, "length": MTU, "ack": 0, "message": MTU + 8}
MIDDLE = {"opcode": RoceOpcode.WRITE_MIDDLE, "length": MTU, "ack": 0}
LAST = {"opcode": RoceOpcode.WRITE_LAST}


def begun(left):
    """The first packet of a WRITE of which so many bytes are left."""
    return only(0, **{**FIRST, "message": MTU + left})


#: Packets that do not fit where they stand, with the good ones before them.
MISFITS = {
    "middle of none": [only(0, **MIDDLE)],
    "last of none": [only(0, **LAST)],
    "only, too long": [only(0, MTU + 1)],
    "first, too short": [only(0, opcode=RoceOpcode.WRITE_FIRST, length=MTU - 64, message=MTU)],
    "first, empty": [only(0, opcode=RoceOpcode.WRITE_FIRST, length=0, message=MTU)],
    "only within a message": [begun(8), only(1, 8)],
    "first within a message": [begun(8), only(1, **FIRST)],
    "middle, too short": [begun(72), only(1, opcode=RoceOpcode.WRITE_MIDDLE, length=64)],
    "last, empty": [begun(8), only(1, length=0, **LAST)],
    "last, too long": [begun(MTU + 64), only(1, length=MTU + 64, **LAST)],
    "only, not as long as it says": [only(0, 8, message=9)],
    "last, not as long as the first said": [begun(9), only(1, length=8, **LAST)],
    "last, longer than the first said": [begun(7), only(1, length=8, **LAST)],
    "middle, longer than the first said": [begun(MTU - 1), only(1, **MIDDLE)],
    "unknown opcode": [only(0, opcode=RoceOpcode.SEND_ONLY_INV)],
    "last of a send": [begun(8), only(1, length=8, opcode=RoceOpcode.SEND_LAST)],
}


def syndromes(run):
    return [(ack["bth"]["psn"], unpack(Aeth, ack["ext"])["syndrome"]) for ack in run.acks.words]


def test_packets_for_nobody_are_dropped_and_change_nothing():
    contexts = contexts_of(2)
    packets = [
        only(0, qpn=0x600),
        only(0, qpn=0x502),
        only(0, qpn=0x504, length=200),  # unknown QPs
        only(0, opcode=0x64, length=100),
        only(0, opcode=RoceOpcode.ACK, length=0),  # no request
        begun(MTU),
        only(0, opcode=0x64, length=100),
        only(1, length=MTU, **LAST),
        only(11, qp=1),
    ]
    run = Run(packets, contexts, stall=0.3, idle=0.2)
    run.check()
    assert len(run.drops) == 6 and len(run.written) == 3 and len(run.acks.items) == 2
    assert run.bench.of("on_dropped")[3]["info"] == 0x64000000


@pytest.mark.parametrize("packets", MISFITS.values(), ids=MISFITS)
def test_a_misfit_is_refused_and_its_connection_serves_nothing_more(packets):
    after = [only(i, qp=0) for i in range(3)] + [only(11, qp=1)]
    run = Run(packets + after, contexts_of(2), stall=0.3, idle=0.2)
    run.check()
    place = len(packets) - 1
    assert syndromes(run) == [(place, 0x61), (11, 0x1F)]
    assert run.drops[0][0] == DropReason.PACKET_OPCODE.value
    assert {reason for reason, _ in run.drops[1:]} == {DropReason.PACKET_QP_ERROR.value}


def test_a_gap_is_reported_once_until_the_missing_packet_comes():
    packets = [only(0), only(2), only(3, 100), only(4, 0), only(1), only(3), only(2), only(3)]
    run = Run(packets, contexts_of(1), stall=0.3)
    run.check()
    assert syndromes(run) == [
        (0, 0x1F),
        (1, 0x60),
        (1, 0x1F),
        (2, 0x60),
        (2, 0x1F),
        (3, 0x1F),
    ]
    assert len(run.written) == 4


def test_a_duplicate_is_acknowledged_again_and_not_written():
    contexts = contexts_of(1, psn=PSN_MASK)
    packets = [only(PSN_MASK), only(0), only(1), only(PSN_MASK, 200), only(0, ack=0), only(1, 0)]
    run = Run(packets, contexts, stall=0.5)
    run.check()
    assert syndromes(run) == [(PSN_MASK, 0x1F), (0, 0x1F), (1, 0x1F), (1, 0x1F), (1, 0x1F)]
    assert [unpack(Aeth, ack["ext"])["msn"] for ack in run.acks.words] == [1, 2, 3, 3, 3]
    assert len(run.written) == 3


@pytest.mark.parametrize(
    "distance,reason",
    [
        (1, "PACKET_PSN"),
        ((1 << 23) - 1, "PACKET_PSN"),
        (1 << 23, "PACKET_DUPLICATE"),
        (PSN_MASK, "PACKET_DUPLICATE"),
    ],
)
@pytest.mark.parametrize("psn", [0, 5, 1 << 23, PSN_MASK])
def test_half_of_all_psns_lies_ahead(psn, distance, reason):
    run = Run([only(psn + distance)], contexts_of(1, psn=psn))
    run.check()
    assert run.drops == [(DropReason[reason].value, 0x500)]


NEEDY = {
    "send": [only(0, opcode=RoceOpcode.SEND_ONLY)],
    "send with immediate data": [only(0, opcode=RoceOpcode.SEND_ONLY_IMM)],
    "write with immediate data": [only(0, opcode=RoceOpcode.WRITE_ONLY_IMM)],
    "its last packet": [begun(8), only(1, length=8, opcode=RoceOpcode.WRITE_LAST_IMM)],
}


@pytest.mark.parametrize("packets", NEEDY.values(), ids=NEEDY)
def test_without_a_receive_wqe_a_packet_is_asked_for_later(packets):
    late = len(packets) - 1
    run = Run([*packets, only(late + 1), packets[-1]], contexts_of(1), stall=0.3)
    run.check()
    # What follows is passed over in silence.
    assert syndromes(run) == [(late, 0x2C), (late, 0x2C)]
    assert [reason for reason, _ in run.drops] == [
        DropReason.PACKET_NOT_READY.value,
        DropReason.PACKET_PSN.value,
        DropReason.PACKET_NOT_READY.value,
    ]


def damaged(seed, packets):
    """Packets as a bad network delivers them: lost, twice, late."""
    rng = random.Random(seed)
    for _ in range(len(packets) // 3):
        at = rng.randrange(len(packets))
        match rng.randrange(3):
            case 0:
                del packets[at]
            case 1:
                packets.insert(at, packets[rng.randrange(len(packets))])
            case 2:
                packets.insert(rng.randrange(len(packets)), packets.pop(at))
    return packets


@pytest.mark.parametrize("seed", range(6))
def test_answers_to_a_bad_network_match_reference(seed):
    contexts = contexts_of(psn=0xFFFFF0, msn=0xFFFFFE)
    packets = messages(seed, 20, contexts)
    # All of them once more at the end, as after timeouts.
    packets = damaged(seed, list(packets)) + packets
    run = Run(packets, contexts, idle=0.2 * (seed % 3), stall=0.3 * (seed % 2), seed=seed)
    run.check()
    assert {0x1F, 0x60} <= {syndrome for _, syndrome in syndromes(run)}
    reasons = {DropReason.PACKET_PSN.value, DropReason.PACKET_DUPLICATE.value}
    assert {reason for reason, _ in run.drops} == reasons


def test_a_dropped_packet_does_not_disturb_the_line_that_is_being_written():
    contexts = contexts_of(1)
    packets = [
        only(0, 60, va=0x2000_0000_1030),
        only(7, 200),
        only(1, 0),
        only(9, 0),
        only(2, 60, va=0x2000_0000_1030),
    ]
    Run(packets, contexts, stall=0.8).check()


def test_a_new_context_ends_a_failure():
    contexts = contexts_of(1)
    again = {0: {**contexts[0], "expected_psn": 77}}
    configs = [(60, item) for _, item in context_writes(Table.RX, RxContext, again)]
    run = Run([only(0, **LAST), only(77)], contexts, starts=[10, 70], configs=configs)
    assert syndromes(run) == [(0, 0x61), (77, 0x1F)]


def test_a_new_context_starts_afresh():
    contexts = contexts_of(1)
    again = {0: {**contexts[0], "expected_psn": 77, "start_msn": 9}}
    configs = [(60, item) for _, item in context_writes(Table.RX, RxContext, again)]
    packets = [begun(8), only(77)]
    run = Run(packets, contexts, starts=[10, 70], configs=configs)
    assert not run.drops
    assert unpack(Aeth, run.acks.words[-1]["ext"])["msn"] == 10


@pytest.mark.parametrize("tx", [0, 1, 2, 40])
def test_latency_closed_form(tx):
    for length, lane, spill in ((8, 0, 0), (8, 60, 1), (0, 0, 0), (MTU, 0, 0), (MTU, 1, 1)):
        run = Run([only(0, length, va=0x2000_0000_1000 + lane)], contexts_of(1), tx=tx)
        taken = [cycle for cycle, _ in run.packets.taken]
        if length:
            assert run.placements.items[0][0] == taken[0] + 2
            assert [cycle for cycle, _ in run.lines.items][:1] == [taken[0] + 2]
            assert run.lines.items[-1][0] == taken[-1] + 2 + spill
        assert run.acks.items[0][0] == taken[-1] + 2 + spill + max(1, tx)


def test_small_packets_pass_one_per_cycle_or_per_two_if_they_spill():
    contexts = contexts_of()
    psns = {qp: context["expected_psn"] for qp, context in contexts.items()}
    for lane, per_packet in ((0, 1), (60, 2)):
        packets = [
            only(psns[i % 4] + i // 4, 8, qp=i % 4, va=0x2000_0000_1000 + lane) for i in range(60)
        ]
        run = Run(packets, contexts)
        run.check()
        for stream in (run.lines, run.acks):
            cycles = [cycle for cycle, _ in stream.items]
            assert cycles[-1] - cycles[0] == 59 * per_packet + (
                per_packet - 1 if stream is run.lines else 0
            )


@pytest.mark.parametrize("lane,lost", [(0, 0), (5, 1)])
def test_large_packets_pass_one_beat_per_cycle(lane, lost):
    contexts = contexts_of(1)
    packets = write_packets(bytes(20 * MTU), MTU, 0, raddr=0x2000_0000_1000 + lane, dest_qp=0x500)
    run = Run(packets, contexts)
    taken = [cycle for cycle, _ in run.packets.taken]
    assert taken[-1] - taken[0] == 20 * 4 - 1 + 19 * lost


def test_waiting_acks_hold_packets_but_nothing_is_lost():
    contexts = contexts_of(1)
    run = Run([only(i, 4) for i in range(600)], contexts, tx=600)
    run.check()


def test_skipping_quiet_cycles_changes_nothing():
    def once(skip):
        contexts = contexts_of()
        packets = messages(5, 25, contexts)
        run = Run(
            packets,
            contexts,
            skip=skip,
            tx=60,
            stall=0.5,
            starts=[100 + 60 * i for i in range(len(packets))],
        )
        run.check()
        return (
            run.bench.events,
            run.acks.items,
            run.placements.items,
            run.lines.items,
            run.bench.evaluated,
            run.bench.cycle,
        )

    full, skipped = once(False), once(True)
    assert full[:4] == skipped[:4]
    assert skipped[4] < 0.6 * skipped[5]
