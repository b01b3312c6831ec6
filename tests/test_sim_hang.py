import json

import pytest
from support_log import FAR, Log

from hw.formats.events import DropReason, EventKind, RetryReason
from hw.formats.roce import RoceOpcode
from hw.formats.tlp import MarkKind
from sim.hang import LAST_EVENTS, hang_report
from sim.job import QueueState, Status


def good_log(count=6):
    log = Log()
    for number in range(count):
        log.write(number * 3000, inline=True)
    return log


def report(log, **queue):
    queues = (QueueState(node=0, qp=0, **queue),) if queue else ()
    status = Status(ended="hang", cycles=1, wall_s=1, queues=queues, waiting=("GPU of node 0",))
    found = hang_report(log.events(), log.messages, log.connections, status)
    json.dumps(found)
    return found


def cut(log, first, *kinds):
    """Removes events of some kinds from WQE `first` on; PSNs are numbered alike here."""
    for kind in kinds:
        log.drop(
            kind,
            lambda fields: (
                fields.get("wqe_index", fields.get("psn")) >= first and fields.get("opcode") != 0x11
            ),
        )


def drop_acks(log, first):
    """All from PSN `first` on are swallowed where they leave node 1."""
    for kind in (EventKind.TX_FIRST, EventKind.TX_LAST):
        log.drop(
            kind, lambda fields: fields["opcode"] == RoceOpcode.ACK.value and fields["psn"] >= first
        )
    log.drop(EventKind.ACK_RECEIVED, lambda fields: fields["psn"] >= first)
    cut(log, first, EventKind.RETIRED, EventKind.CQE_ISSUED)
    log.drop(
        EventKind.COMMIT,
        lambda fields: fields["mark"] & 0xF == MarkKind.CQE.value and fields["mark"] >> 16 >= first,
    )
    for number in range(first, len(log.messages)):
        log.add(
            EventKind.DROPPED,
            20_000 + number,
            1,
            reason=DropReason.WIRE_FAULT,
            qp=0,
            info=RoceOpcode.ACK.value << 8,
        )


def test_starts_again_are_counted():
    log = good_log()
    drop_acks(log, 2)
    for cycle in (21_000, 22_000):
        log.add(
            EventKind.RETRANSMITTED,
            cycle,
            0,
            qp=0,
            wqe_index=2,
            psn=2,
            skip=0,
            reason=RetryReason.TIMEOUT,
        )
    (wait,) = report(log, posted=6, rung=6, completed=2)["waits"]
    assert "PSN 1; started again 2 times, the last in cycle 22000; node 1 received" in wait


def test_dropped_acks_are_named_with_queue_and_indices():
    log = good_log()
    drop_acks(log, 2)
    found = report(log, posted=6, rung=6, completed=2)
    (queue,) = found["queues"]
    assert {
        key: queue[key] for key in ("node", "qp", "posted", "rung", "fetched", "acked", "completed")
    } == {"node": 0, "qp": 0, "posted": 6, "rung": 6, "fetched": 6, "acked": 2, "completed": 2}
    (wait,) = found["waits"]
    assert wait.startswith(
        "node 0 qp 0: 4 blocks on the wire up to PSN 5, last ACK processed is for PSN 1"
    )
    assert (
        "node 1 received up to PSN 5" in wait
        and "4 ACKs of node 1 dropped by a wire fault, the last in cycle 20005" in wait
    )
    assert found["agents"] == ["GPU of node 0"]


def test_every_ack_dropped_from_the_start():
    log = good_log()
    drop_acks(log, 0)
    (wait,) = report(log, posted=6, rung=6, completed=0)["waits"]
    assert (
        "no ACK processed" in wait
        and "no ACK of it left" in wait
        and "6 ACKs of node 1 dropped" in wait
    )


def test_dropped_requests_are_named():
    log = good_log(1)
    cut(log, 0, EventKind.RX_LAST, EventKind.ACK_RECEIVED, EventKind.RETIRED)
    log.drop(EventKind.TX_FIRST)
    log.drop(EventKind.TX_LAST)
    log.add(
        EventKind.DROPPED,
        777,
        0,
        reason=DropReason.WIRE_FAULT,
        qp=FAR,
        info=RoceOpcode.WRITE_ONLY.value << 8,
    )
    (wait,) = report(log, posted=1, rung=1, completed=0)["waits"]
    assert (
        "no packet sent" in wait
        and "1 packets of node 0 dropped by a wire fault, the last in cycle 777" in wait
    )


def test_refused_packets_are_named():
    log = good_log(2)
    drop_acks(log, 1)
    log.drop(EventKind.DROPPED)
    log.add(EventKind.DROPPED, 888, 1, reason=DropReason.PACKET_PSN, qp=FAR, info=1)
    assert "refused: 1 packet_psn" in report(log, posted=2, rung=2, completed=1)["waits"][0]


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (
            (EventKind.FETCHED, EventKind.RETIRED),
            "rung up to 6, fetched up to 4: reads of WQEs up to 6 are unanswered",
        ),
        (
            (EventKind.FETCHED, EventKind.RETIRED, EventKind.FETCH_REQUESTED),
            "rung up to 6, fetched up to 4: the work-queue engine does not",
        ),
    ],
)
def test_fetches_that_do_not_come_back(kinds, words):
    log = good_log()
    cut(log, 4, *kinds)
    assert words in report(log, posted=6, rung=6, completed=4)["waits"][0]


@pytest.mark.parametrize(
    ("rung", "words"),
    [(4, "no doorbell was rung for them"), (6, "a doorbell is on its way or lost")],
)
def test_rings_that_do_not_arrive(rung, words):
    log = good_log()
    cut(log, 4, EventKind.FETCHED, EventKind.RETIRED, EventKind.FETCH_REQUESTED)
    log.drop(EventKind.RING_SEEN, lambda fields: fields["producer"] > 4)
    log.add(EventKind.DROPPED, 99, 0, reason=DropReason.DOORBELL_STALE, qp=0, info=0)
    (wait,) = report(log, posted=6, rung=rung, completed=4)["waits"]
    assert f"posted up to 6, the NIC knows of 4: {words} (1 doorbell_stale)" in wait


def test_unseen_completions_and_unposted_messages():
    log = good_log(2)
    log.messages.append(dict(log.messages[0], message=2, wqe_index=-1))
    waits = report(log, posted=2, rung=2, completed=1)["waits"]
    assert "software has seen completions up to 1" in waits[0]
    assert waits[1] == "1 messages were never posted: their software waits"


def test_nothing_blocked_says_so():
    assert report(good_log(), posted=6, rung=6, completed=6)["waits"] == [
        "every posted WQE is complete: software waits for something that nobody will write"
    ]


def test_an_empty_log_is_reported():
    log = Log()
    found = hang_report(log.events(), [], [])
    assert found["queues"] == [] and found["last_events"] == []


def test_last_events_are_decoded():
    found = report(good_log())
    assert len(found["last_events"]) == LAST_EVENTS
    assert found["last_events"][-1]["kind"] == "SEEN" and found["last_events"][-1]["message"] == 5


def test_queues_without_software_state_come_from_the_log():
    log = good_log()
    drop_acks(log, 2)
    (queue,) = report(log)["queues"]
    assert (queue["posted"], queue["completed"]) == (6, 2)
