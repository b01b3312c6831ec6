"""Lost, doubled and refused packets: every WQE is executed once, in order, or ends with a status.

Work-queue engine, gatherer and requester run against a peer in plain Python. What the peer executed
must be, packet by packet, what the WQEs say.
"""

import random

import pytest
from support_roce import PSN_MASK, normal
from support_transport import MTU, RNR, START, TIMEOUT, TransportRig
from support_wqe import data_segment, inline_segment, nop, write_wqe

from hw.config import Structure
from hw.formats.context import QpState
from hw.formats.events import DropReason, RetryReason
from hw.formats.op import Status
from hw.formats.roce import RoceOpcode

rig_qpn = TransportRig.peer_qpn
FLUSHED = Status.FLUSHED.value
TIMED_OUT = Status.TRANSPORT_RETRY_EXCEEDED.value


def put(length, number=0, **options):
    """A WRITE of one data segment."""
    return write_wqe(
        data_segment(0x5000_0013 + 0x10000 * number, length), raddr=0x100 * number, **options
    )


def scattered(number=0):
    """A WRITE of 5 packets whose segments end anywhere; 2 blocks."""
    lengths = (100, 300, 0, 256, 1, 399)
    segments = [
        data_segment(0x6000_0000 + 0x1000 * i + 0x10000 * number, length)
        for i, length in enumerate(lengths)
    ]
    return write_wqe(*segments, raddr=7)


def mixed(number=0):
    """A WRITE of 3 packets: inline bytes over two blocks, then memory, then inline; 13 blocks."""
    return write_wqe(
        inline_segment(bytes(i % 251 for i in range(500))),
        data_segment(0x7000_0001 + 0x10000 * number, 130),
        inline_segment(bytes(i % 239 for i in range(77))),
        raddr=9,
    )


def lost(*numbers, qp=0):
    """Faults that drop the requests of a QP of these numbers, counted from 0 as they arrive."""
    count = iter(range(1 << 30))

    def fate(way, qpn, psn, rng):
        mine = way == "request" and qpn == TransportRig.peer_qpn(qp)
        return "drop" if mine and next(count) in numbers else ""

    return fate


def executed(rig, qp):
    return [list(map(normal, packet)) for packet in rig.peer.executed[rig.peer_qpn(qp)]]


def wanted(rig, qp):
    return [list(map(normal, packet)) for packet in rig.reference(qp)]


def check(rig, qps=1, statuses=None):
    """The peer executed what was posted; every WQE retired once, in order, with its status."""
    for qp in range(qps):
        got, whole = executed(rig, qp), wanted(rig, qp)
        assert got == (whole[: len(got)] if statuses else whole)
        assert rig.retired(qp) == [
            (index, (statuses or {}).get((qp, place), 0))
            for place, (index, _) in enumerate(rig.expected[qp])
        ]


def reasons(rig):
    return [RetryReason(event["reason"]) for event in rig.of("on_retransmitted_2")]


def drops(rig):
    return {DropReason(event["reason"]) for event in rig.of("on_dropped_2")}


def test_a_nak_at_every_packet_of_every_kind_of_message():
    """QP n loses its packet n; the NAK comes for whatever follows."""
    wqes = [put(8), scattered(), mixed(), put(3 * MTU, 1), write_wqe(), put(MTU, 2), nop(), put(5)]
    qps = 14
    fates = [lost(number, qp=number) for number in range(qps)]
    rig = TransportRig(
        structure=Structure(qps=16, window_blocks=32, wqe_lines=64, payload_lines=128),
        qps=qps,
        start=65530,
        psn=0xFFFFFA,
        # With so many QPs, packets wait for one another.
        context={"ack_timeout": 5},
        peer={"faults": lambda *packet: max(fate(*packet) for fate in fates)},
    )
    for qp in range(qps):
        for wqe in wqes:
            rig.post(qp, wqe)
        rig.ring(qp)
    rig.finish(10000)
    check(rig, qps)
    assert sorted((e["qp"], e["psn"]) for e in rig.of("on_retransmitted_2")) == [
        (qp, (0xFFFFFA + qp) & PSN_MASK) for qp in range(qps)
    ]
    assert set(reasons(rig)) == {RetryReason.SEQUENCE_NAK}


def test_the_last_packet_is_sent_again_after_the_timeout():
    rig = TransportRig(peer={"faults": lost(2)})
    rig.post(0, put(3 * MTU))
    rig.ring(0)
    rig.finish()
    check(rig)
    assert reasons(rig) == [RetryReason.TIMEOUT]
    sent = [cycle for cycle, beat in rig.taken["packets"] if beat["last"]]
    # The timer runs from the last progress. There was none: from the first packet on.
    (again,) = [cycle for cycle, _ in rig.events["on_retransmitted_2"]]
    assert sent[0] + TIMEOUT <= again <= sent[0] + TIMEOUT + 12
    assert len(sent) == 6, "nothing was acknowledged: the whole message goes again"


def test_packets_that_are_acknowledged_are_not_sent_again():
    rig = TransportRig(peer={"faults": lost(3)})
    rig.post(0, put(6 * MTU))
    rig.ring(0)
    rig.finish()
    check(rig)
    (event,) = rig.of("on_retransmitted_2")
    assert (event["psn"], event["skip"], event["wqe_index"]) == (3, 3, 0)
    again = [beat["bth"] for cycle, beat in rig.taken["packets"] if beat["first"]][6:]
    assert [header["psn"] for header in again] == [3, 4, 5]
    assert [header["opcode"] for header in again] == [
        RoceOpcode.WRITE_MIDDLE.value,
        RoceOpcode.WRITE_MIDDLE.value,
        RoceOpcode.WRITE_LAST.value,
    ]
    read = sum(request["length"] for request in rig.items("payload_requests"))
    assert read == 9 * MTU, "bytes that are acknowledged are not read again"


def test_a_lost_ack_is_made_good_by_that_of_a_duplicate():
    rig = TransportRig(
        peer={
            "faults": lambda way, qpn, psn, rng, seen=[]: (
                "drop" if way == "ack" and not seen and not seen.append(1) else ""
            )
        }
    )
    rig.post(0, put(2 * MTU))
    rig.ring(0)
    rig.finish()
    check(rig)
    assert reasons(rig) == [RetryReason.TIMEOUT]


def chaos(share):
    def fate(way, qpn, psn, rng):
        number = rng.random()
        return "drop" if number < share else "duplicate" if number < 1.5 * share else ""

    return fate


@pytest.mark.parametrize("seed,share,every", [(1, 0.1, 0), (2, 0.25, 1)])
def test_random_loss_and_reordering_lose_nothing(seed, share, every):
    rng = random.Random(seed)
    rig = TransportRig(
        qps=3,
        start=65520,
        psn=0xFFFFF0,
        seed=seed,
        idle={"lines": 0.2, "payload_lines": 0.1},
        stall={"packets": 0.2, "completions": 0.3},
        timing={"ack_every_packet": every},
        peer={"faults": chaos(share), "delay": (10, 60), "seed": seed},
    )
    for qp in range(3):
        for number in range(8):
            kind = rng.randrange(8)
            wqe = (
                nop(flags=8 * rng.randrange(2))
                if kind == 0
                else scattered(number)
                if kind == 1
                else mixed(number)
                if kind == 2 and not number
                else put(rng.choice((0, 1, 64, 255, 256, 257, 700, 1100)), number)
            )
            rig.post(qp, wqe)
            rig.ring(qp, START + 150 * number)
    rig.finish(60000)
    check(rig, 3)
    assert len(reasons(rig)) > 3


def test_skipping_quiet_cycles_changes_nothing():
    def once(skip):
        rig = TransportRig(
            qps=2, skip=skip, read=90, peer={"faults": chaos(0.3), "delay": (30, 99), "seed": 5}
        )
        for number in range(6):
            for qp in range(2):
                rig.post(qp, put(300, number))
        for qp in range(2):
            rig.ring(qp)
        rig.finish(30000)
        return rig

    full, skipped = once(False), once(True)
    assert full.log() == skipped.log()
    assert reasons(full) and skipped.evaluated < 0.6 * skipped.cycle


def test_retries_run_out():
    """As many timeouts as allowed, and one more: the oldest WQE fails, the others are flushed."""
    rig = TransportRig(
        qps=2,
        context={"retry_count": 2},
        peer={"faults": lambda way, qpn, psn, _: "drop" if qpn == 0x9980 and psn >= 1 else ""},
    )
    for number in range(5):
        rig.post(0, put(600 if number == 1 else 8, number, flags=8 * (number < 3)))
    for number in range(3):
        rig.post(1, put(8, number))
    rig.ring(0)
    rig.ring(1, START + 1000)
    rig.post(0, put(8, 7))
    rig.ring(0, START + 4 * TIMEOUT)
    rig.finish(more=20)
    check(rig, 2, {(0, 1): TIMED_OUT, **{(0, place): FLUSHED for place in range(2, 6)}})
    assert reasons(rig) == [RetryReason.TIMEOUT] * 2
    (state,) = rig.of("on_qp_state_2")
    assert state == {
        "qp": 0,
        "old": QpState.RTS.value,
        "new": QpState.ERR.value,
        "cause": TIMED_OUT,
    }
    (failed,) = [cycle for cycle, _ in rig.events["on_qp_state_2"]]
    assert not [
        beat for cycle, beat in rig.taken["packets"] if cycle > failed and beat["qp"] == 0
    ], "nothing is sent in error"
    done = [(c["qp"], c["wqe_index"], c["status"]) for c in rig.items("completions")]
    # Flushed ones are told, signalled or not.
    assert [item[1:] for item in done if item[0] == 0] == [
        (0, 0), (1, TIMED_OUT), (2, FLUSHED), (3, FLUSHED), (4, FLUSHED), (5, FLUSHED)
    ]  # fmt: skip


def test_progress_gives_all_retries_back():
    rig = TransportRig(
        context={"retry_count": 1},
        peer={"faults": lost(0, 2, 4, 6)},
    )
    for number in range(4):
        rig.post(0, put(8, number))
        rig.ring(0, START + 2 * TIMEOUT * number)
    rig.finish()
    check(rig)
    assert reasons(rig) == [RetryReason.TIMEOUT] * 4


def test_no_retry_at_all():
    rig = TransportRig(context={"retry_count": 0}, peer={"faults": lost(1)})
    for number in range(3):
        rig.post(0, put(8, number))
    rig.ring(0)
    rig.finish()
    check(rig, 1, {(0, 1): TIMED_OUT, (0, 2): FLUSHED})
    assert not reasons(rig)


def test_without_a_timeout_a_lost_packet_is_waited_for_for_ever():
    rig = TransportRig(context={"ack_timeout": 0}, peer={"faults": lost(0)}, skip=True)
    rig.post(0, put(8))
    rig.ring(0)
    with pytest.raises(AssertionError, match="not done"):
        rig.finish(1 << 40)
    assert not rig.retired(0) and rig.evaluated < 2000


def test_rnr_waits_as_long_as_the_peer_says():
    codes = {0: (1, 1), 1: (2, 2), 2: (6, 8), 3: (9, 24)}
    rig = TransportRig(
        qps=4,
        context={"ack_timeout": 0},
        peer={
            "refuse": {(rig_qpn(qp), 1): [0x20 | code] for qp, (code, _) in codes.items()},
        },
        skip=True,
    )
    for qp in codes:
        for number in range(3):
            rig.post(qp, put(300, number))
        rig.ring(qp)
    rig.finish(RNR * 40)
    check(rig, 4)
    assert reasons(rig) == [RetryReason.RNR] * 4
    naks = {
        event["qp"]: cycle
        for cycle, event in rig.events["on_ack_received_2"]
        if event["syndrome"] >> 5 == 1
    }
    for cycle, event in rig.events["on_retransmitted_2"]:
        waited = cycle - naks[event["qp"]]
        assert 0 <= waited - codes[event["qp"]][1] * RNR <= 12


def test_rnr_code_0_is_the_longest_wait():
    rig = TransportRig(peer={"refuse": {(0x9980, 0): [0x20]}}, skip=True)
    rig.post(0, put(8))
    rig.ring(0)
    rig.finish(RNR * 70000)
    check(rig)
    (again,) = [cycle for cycle, _ in rig.events["on_retransmitted_2"]]
    assert 65536 * RNR < again < 65536 * RNR + 200


def test_rnr_retries_run_out_unless_they_are_7():
    refuse = {(rig_qpn(qp), 1): [0x21] * times for qp, times in enumerate((3, 2, 9))}
    rig = TransportRig(qps=3, peer={"refuse": refuse})
    for qp, limit in enumerate((2, 2, 7)):
        rig.context = {"rnr_retry": limit}
        rig.connect(qp, 0, 0, at=10)
        for number in range(3):
            rig.post(qp, put(8, number))
        rig.ring(qp)
    rig.finish()
    check(rig, 3, {(0, 1): Status.RNR_RETRY_EXCEEDED.value, (0, 2): FLUSHED})


def test_a_refused_request_fails_its_wqe_and_flushes_the_rest():
    causes = {0: (0x61, 0x12), 1: (0x62, 0x13), 2: (0x63, 0x14)}
    refuse = {(rig_qpn(qp), 2): [syndrome] * 9 for qp, (syndrome, _) in causes.items()}
    rig = TransportRig(qps=4, peer={"refuse": refuse})
    for number in range(5):
        for qp in range(4):
            rig.post(qp, put(300, number))
    for qp in range(4):
        rig.ring(qp)
    for qp in causes:
        rig.post(qp, put(8, 7))
        rig.ring(qp, START + 3000)
    rig.finish(more=100)
    wanted = {(qp, place): FLUSHED for qp in causes for place in range(2, 6)}
    wanted |= {(qp, 1): status for qp, (_, status) in causes.items()}
    check(rig, 4, wanted)
    assert {event["qp"]: event["cause"] for event in rig.of("on_qp_state_2")} == {
        qp: status for qp, (_, status) in causes.items()
    }


def test_a_wqe_that_cannot_be_decoded_ends_its_qp_after_what_is_before_it():
    bad = put(8, opcode=0x77)
    rig = TransportRig(qps=2, peer={"faults": lost(0)})
    for wqe in (put(300), put(8, 1), bad, put(700, 2), bad, nop(), put(8, 3)):
        rig.post(0, wqe)
        rig.post(1, put(8))
    rig.ring(0)
    rig.ring(1, START + 100)
    rig.finish()
    check(rig, 2, {(0, 2): 2, **{(0, place): FLUSHED for place in range(3, 7)}})
    assert reasons(rig), "what is before it is sent again"
    assert [event["cause"] for event in rig.of("on_qp_state_2")] == [2]


def test_acks_that_do_not_fit_are_counted_and_change_nothing():
    rig = TransportRig(peer={"faults": lambda way, *_: "duplicate" if way == "ack" else ""})
    for number in range(4):
        rig.post(0, put(8, number))
    rig.ring(0)
    rig.finish(more=100)
    check(rig)
    assert drops(rig) == {DropReason.ACK_OLD} and not reasons(rig)


def test_naks_while_it_recovers_are_ignored():
    rig = TransportRig(
        read=100,
        peer={
            "faults": lambda way, qpn, psn, rng, count=[]: (
                "drop"
                if way == "request" and not count and not count.append(1)
                else "duplicate"
                if way == "ack"
                else ""
            )
        },
    )
    for number in range(8):
        rig.post(0, put(8, number))
    rig.ring(0, producer=4)
    # These are on their way to the NIC when the NAK comes, so that it has to wait for them.
    rig.ring(0, START + 200)
    rig.finish(more=100)
    check(rig)
    assert reasons(rig) == [RetryReason.SEQUENCE_NAK]
    assert DropReason.NAK_IGNORED in drops(rig)


def test_rings_are_taken_while_it_recovers():
    rig = TransportRig(read=60, timing={"fetch_blocks": 2}, peer={"faults": lost(1, 5)})
    for number in range(12):
        rig.post(0, put(8, number))
        rig.ring(0, START + 40 * number)
    rig.finish()
    check(rig)


def test_a_window_that_is_full_does_not_stop_recovery():
    """Part of a WQE may be in the NIC when nothing more may be fetched."""
    rig = TransportRig(timing={"window_blocks": 16, "fetch_blocks": 7}, peer={"faults": lost(0)})
    for _ in range(3):
        rig.post(0, mixed())
    rig.ring(0)
    rig.finish()
    check(rig)
    assert reasons(rig) == [RetryReason.SEQUENCE_NAK] or reasons(rig) == [RetryReason.TIMEOUT]


def test_a_new_context_recovers_a_qp_in_error():
    rig = TransportRig(peer={"refuse": {(0x9980, 1): [0x62]}})
    old = [rig.post(0, put(8, number)) for number in range(3)]
    rig.ring(0)
    again = 800
    rig.connect(0, 40, 700, at=again)
    new = [rig.post(0, put(300, number)) for number in range(3)]
    rig.ring(0, at=again + 10)

    def connect_peer():
        if rig.cycle == again:
            rig.peer.expected[0x9980], rig.peer.nak_sent[0x9980] = 700, False
            rig.peer.executed[0x9980].clear()

    rig.run(1500, connect_peer)
    failed = zip(old, (0, Status.REMOTE_ACCESS.value, FLUSHED), strict=True)
    assert rig.retired(0) == [*failed, *((index, 0) for index in new)]
    rig.first_psn = 700
    assert executed(rig, 0) == wanted(rig, 0)
    assert [(event["old"], event["new"]) for event in rig.of("on_qp_state_2")] == [
        (QpState.RTS.value, QpState.ERR.value),
        (QpState.ERR.value, QpState.RTS.value),
    ]
    assert not rig.of("on_busy_0")


def test_contexts_of_a_qp_at_work_are_told():
    rig = TransportRig()
    for number in range(3):
        rig.post(0, put(8, number))
    rig.ring(0)
    rig.connect(0, 0, 0, at=START + 10)
    rig.run(300)
    (event,) = rig.of("on_busy_0")
    assert (event["reason"], event["qp"], event["info"]) == (DropReason.SQ_BUSY.value, 0, 3)
