import csv
import time

import numpy as np
import pytest
from support_log import FAR, STEP, Log, repeat

from hw.formats.events import EventKind, RetryReason
from hw.formats.roce import RoceOpcode
from sim.joins import ABSENT, unwrap
from sim.statistics import group_stats, segments_ns
from sim.timeline import timeline, write_csv

INLINE_PATH = [
    "wqe_written",
    "ring",
    "ring_seen",
    "fetch_req",
    "fetched",
    "payload",
    "tx_first",
    "tx_last",
    "rx_last",
    "ack_rx",
    "cqe_written",
    "seen",
]


def run(log, **options):
    return timeline(log.events(), log.messages, log.connections, **options)


def segments(table, row):
    return {
        key.removeprefix("segment_"): int(values[row])
        for key, values in table.items()
        if key.startswith("segment_") and values[row] != ABSENT
    }


def check_sums(table):
    total = sum(
        np.maximum(values, 0) for key, values in table.items() if key.startswith("segment_")
    )
    whole = table["latency"] >= 0
    assert np.array_equal(total[whole], table["latency"][whole])
    assert all(
        np.all(values >= ABSENT) for key, values in table.items() if key.startswith("segment_")
    )


def test_segments_follow_each_other_and_add_up():
    log = Log()
    log.write(1000, inline=True)
    table = run(log)
    expected = dict.fromkeys(INLINE_PATH, STEP) | {"tx_last": 2}
    assert segments(table, 0) == expected
    assert table["latency"][0] == sum(expected.values()) == table["seen"][0] - 1000
    assert table["landed"][0] > 0 and table["segment_landed"][0] == ABSENT
    check_sums(table)


def test_payload_read_has_its_own_landmarks():
    log = Log()
    log.write(0, size=3 * 4096 + 5)
    table = run(log)
    assert segments(table, 0)["payload_req"] == STEP == segments(table, 0)["payload"]
    assert segments(table, 0)["tx_last"] > 3 * STEP
    check_sums(table)


def test_pushed_wqe_has_no_fetch():
    log = Log()
    log.write(0, pushed=True, proxy=True)
    found = segments(run(log), 0)
    assert "fetch_req" not in found and found["fetched"] == STEP
    assert list(found)[:6] == [
        "request_written",
        "proxy_seen",
        "wqe_written",
        "proxy_posted",
        "ring",
        "ring_seen",
    ]


def test_measurement_may_end_where_the_data_lands():
    log = Log()
    log.write(0, inline=True)
    table = run(log, end="landed")
    found = segments(table, 0)
    assert list(found)[-2:] == ["rx_last", "landed"] and "seen" not in found
    assert table["latency"][0] == table["landed"][0] == sum(found.values())
    with pytest.raises(ValueError, match="end = 'rung'"):
        run(log, end="rung")


def test_batch_shares_ring_fetch_and_completion_and_names_them():
    log = Log()
    for _ in range(3):
        log.write(0, inline=True, rings=False, signaled=False)
    log.write(10, inline=True, batch=4)
    table = run(log)
    assert table["rung_by"].tolist() == [3, 3, 3, ABSENT]
    assert table["covered_by"].tolist() == [3, 3, 3, ABSENT]
    assert table["fetched_by"].tolist() == [ABSENT, 0, 0, 0]
    for name in ("ring", "ring_seen", "fetch_req", "cqe_written", "seen"):
        assert len(set(table[name].tolist())) == 1, name
    check_sums(table)
    # The three of them wait for the last one's ring, not for their own WQE.
    assert segments(table, 0)["ring"] == STEP + 10


def test_a_landmark_before_its_predecessor_costs_nothing():
    log = Log()
    log.write(0, inline=True)
    log.drop(EventKind.FETCHED)
    log.add(EventKind.FETCHED, 50, 0, qp=0, wqe_index=0, blocks=1, pushed=0)
    table = run(log)
    assert table["fetched"][0] == 50 and segments(table, 0)["fetched"] == 0
    check_sums(table)


def test_software_stamp_after_the_bell_was_heard_is_off_the_path():
    log = Log()
    log.write(0, proxy=True, pushed=True)
    log.drop(EventKind.PROXY_POSTED)
    log.software(EventKind.PROXY_POSTED, 900, 0, 0)
    table = run(log)
    assert segments(table, 0)["fetched"] == STEP
    check_sums(table)


@pytest.mark.parametrize("start", [0, 65533, 40000])
def test_indices_and_psns_wrap(start):
    log = Log(start_index=start, start_psn=0xFFFFFE)
    for number in range(20):
        log.write(number * 300, inline=True)
    table = run(log)
    assert np.all(table["latency"] == table["latency"][0]) and table["latency"][0] > 0
    assert np.all(table["landed"] - table["issue"] == table["landed"][0])


def test_a_hundred_thousand_messages_on_one_queue_take_seconds():
    log = Log(start_index=65533, start_psn=0xFFFFF0)
    log.write(0, inline=True)
    events, messages = repeat(log, 100_000, 300)
    begun = time.monotonic()
    table = timeline(events, messages, log.connections)
    assert time.monotonic() - begun < 10
    assert np.all(table["latency"] == table["latency"][0]) and table["latency"][0] > 0
    assert np.all(table["landed"] - table["issue"] == table["landed"][0])
    assert np.all(table["covered_by"] == ABSENT) and np.all(table["rung_by"] == ABSENT)


def test_two_directions_and_queues_are_kept_apart():
    log = Log()
    for number in range(8):
        log.write(
            17 * number,
            node=number & 1,
            peer=1 - (number & 1),
            qp=(number >> 2) + FAR * (number & 1),
            inline=True,
        )
    table = run(log)
    assert np.all(table["latency"] == table["latency"][0])


def test_posting_order_not_message_order_unwraps_indices():
    log = Log(start_index=65535)
    log.write(0, inline=True)
    log.write(20, inline=True)
    # The second index is written first.
    log.messages.reverse()
    table = run(log)
    assert np.all(table["latency"] > 0) and table["latency"][0] == table["latency"][1]


def test_unfinished_message_has_no_latency_and_no_segments():
    log = Log()
    log.write(0)
    log.write(0)
    log.drop(EventKind.SEEN, lambda fields: fields["message"] == 1)
    log.messages.append(dict(log.messages[1], message=2, wqe_index=ABSENT))
    table = run(log)
    assert table["latency"].tolist()[1:] == [ABSENT, ABSENT] and table["latency"][0] > 0
    assert not segments(table, 1) and not segments(table, 2)
    assert table["tx_first"][2] == ABSENT and table["wqe_index"][2] == ABSENT
    stats = group_stats(table)
    assert (stats["count"], stats["finished"]) == (3, 1)


def test_log_without_events_has_no_landmarks():
    log = Log()
    log.write(0)
    log.rows = []
    assert run(log)["latency"].tolist() == [ABSENT]
    assert group_stats(run(log))["latency_ns"] is None


def test_means_of_segments_add_up_to_the_mean_latency():
    log = Log()
    for number in range(10):
        log.write(3000 * number, inline=number % 2 == 0, size=8 + 4096 * (number % 3))
    stats = group_stats(run(log))
    assert sum(stats["segments_ns"].values()) == pytest.approx(stats["latency_ns"]["mean"])
    assert stats["segments_ns"] == segments_ns(run(log), slice(0, 10))
    assert stats["goodput_gbps"] > 0 and stats["landed_ns"] > 0


def test_percentiles_are_nearest_rank():
    log = Log()
    for number in range(4):
        log.write(5000 * number, inline=True)
        log.drop(EventKind.SEEN, lambda fields, number=number: fields["message"] == number)
        log.software(EventKind.SEEN, 5000 * number + 2000 + 10 * number, number, 0)
    latency = group_stats(run(log))["latency_ns"]
    assert (latency["min"], latency["p50"], latency["p90"], latency["max"], latency["mean"]) == (
        2000,
        2010,
        2030,
        2030,
        2015,
    )


def test_csv_has_one_row_per_message_with_units(tmp_path):
    log = Log()
    log.write(0, inline=True)
    log.write(100)
    table = run(log)
    write_csv(tmp_path / "messages.csv", {"gda_minimal": table, "ibrc": table})
    with (tmp_path / "messages.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == ["gda_minimal"] * 2 + ["ibrc"] * 2
    assert rows[0]["payload_req_ns"] == "" and rows[1]["payload_req_ns"] == str(STEP)
    assert int(rows[1]["latency_ns"]) == table["latency"][1] and rows[1]["size_bytes"] == "8"
    assert rows[0]["at_issue_ns"] == "0"


def test_unwrap_keeps_groups_apart_and_accepts_small_steps_back():
    groups = np.array([1, 2, 1, 1, 2, 1])
    values = np.array([65534, 5, 1, 65535, 4, 3])
    assert unwrap(groups, values, 16, np.array([65534, 5, 65534, 65534, 5, 65534])).tolist() == [
        65534,
        5,
        65537,
        65535,
        4,
        65539,
    ]


@pytest.mark.parametrize("skip", [0, 1])
def test_of_a_message_that_is_sent_again_the_last_time_counts(skip):
    """What went before is its segment `retry`; it may go on in its middle."""
    log = Log()
    size = 6000 if skip else 8
    log.write(1000, size=size, inline=True)
    once = run(log)
    seen = int(once["ring_seen"][0])
    wqe = {"qp": 0, "wqe_index": 0}
    sent = {"dest_qp": FAR, "psn": 0, "qp": 0, "wqe_index": 0}
    opcode = RoceOpcode.WRITE_FIRST if skip else RoceOpcode.WRITE_ONLY
    if skip:
        for kind in (EventKind.TX_FIRST, EventKind.TX_LAST):
            log.drop(kind, lambda fields: fields["opcode"] == opcode.value)
    log.add(EventKind.FETCH_REQUESTED, seen + 1, 0, **wqe, blocks=1)
    log.add(EventKind.FETCHED, seen + 2, 0, **wqe, blocks=1, pushed=0)
    log.add(EventKind.PAYLOAD_ARRIVED, seen + 3, 0, **wqe, inline=1)
    shape = {"length": 8, "wire_bytes": 50, "dest": 1}
    log.add(EventKind.TX_FIRST, seen + 4, 0, **sent, opcode=opcode, **shape)
    log.add(EventKind.TX_LAST, seen + 6, 0, **sent, opcode=opcode)
    log.add(
        EventKind.RETRANSMITTED,
        seen + 40,
        0,
        **wqe,
        psn=skip,
        skip=skip,
        reason=RetryReason.TIMEOUT,
    )
    log.rows.sort(key=lambda row: row[0])
    table = run(log)
    again = segments(table, 0)
    before = segments(once, 0)
    assert again["retry"] == 40 and again["fetch_req"] == STEP - 40
    if not skip:
        unchanged = set(before) - {"fetch_req"}
        assert all(again[name] == before[name] for name in unchanged)
    else:
        # The second packet is the first of the last time.
        assert table["tx_first"][0] > once["tx_first"][0]
    check_sums(table)


def test_a_nak_acknowledges_what_is_before_it():
    log = Log()
    log.write(1000, inline=True)
    log.write(4000, inline=True)
    acked = run(log)["ack_rx"]
    log.drop(EventKind.ACK_RECEIVED)
    log.add(EventKind.ACK_RECEIVED, 5000, 0, qp=0, psn=1, syndrome=0x60)
    log.rows.sort(key=lambda row: row[0])
    table = run(log)
    assert np.all(acked > 0) and table["ack_rx"].tolist() == [5000, ABSENT]
