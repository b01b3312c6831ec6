from types import SimpleNamespace

import numpy as np
import pytest
from support_log import Log, mark

from hw.formats.events import DropReason, EventKind, StallCause
from hw.formats.roce import RoceOpcode
from hw.formats.tlp import MarkKind, TlpClass
from hw.units import byte_interval
from sim import reference
from sim.court import MOST
from sim.job import Difference, MemoryCheck, QueueState, Status
from sim.names import COUNTERS, LINK_FIELDS, LINKS, STATUSES, VIOLATIONS
from sim.scoreboard import Rules, judge
from sim.timeline import timeline

DONE = Status(ended="done", cycles=10_000, wall_s=1.0)
CLEAN = MemoryCheck(payload_bytes=8, guard_bytes=64)


def verdict(log, *, memory=CLEAN, status=DONE, depth=64):
    rules = Rules(
        connections=tuple(log.connections),
        depth=depth,
        link_intervals=dict.fromkeys(range(6), byte_interval(400)),
        wire_interval=byte_interval(200),
        targets={m["message"]: m["raddr"] for m in log.messages},
    )
    events = log.events()
    table = timeline(events, log.messages, log.connections)
    messages = {key: [m[key] for m in log.messages] for key in log.messages[0]}
    return judge(rules, "gda_minimal", events, table, messages, memory, status)


def kinds(log, **options):
    found = verdict(log, **options).violations
    assert {violation["kind"] for violation in found} <= set(VIOLATIONS)
    return [violation["kind"] for violation in found]


def good_log(count=6):
    log = Log()
    for number in range(count):
        log.write(
            number * 3000,
            size=8 if number % 2 else 9000,
            inline=number % 2 == 1,
            signaled=number % 3 != 1,
            raddr=4096 * number,
        )
    return log


def test_a_good_log_has_no_violation_and_all_names():
    result = verdict(good_log())
    assert result.passed and result.hang is None
    assert list(result.counters) == list(COUNTERS) and list(result.links) == list(LINKS)
    assert all(tuple(link) == LINK_FIELDS for link in result.links.values())
    assert set(result.statuses) <= set(STATUSES) and result.statuses == {"SUCCESS": 6}


def test_a_good_log_of_both_directions_and_wrapping_indices():
    log = Log(start_index=65534, start_psn=0xFFFFFF)
    for number in range(10):
        log.write(number * 1000, inline=True, blocks=2)
        log.write(number * 1000 + 7, node=1, peer=0, qp=5, inline=True)
    assert verdict(log).passed


def test_wrong_data_names_message_byte_and_landing():
    log = good_log()
    check = MemoryCheck(
        payload_bytes=8,
        guard_bytes=64,
        total=1,
        wrong=(2,),
        differences=(
            Difference(
                node=1,
                memory="gpu",
                address=2 * 4096 + 100,
                count=3,
                expected="010203",
                found="040506",
                message=2,
            ),
        ),
    )
    (violation,) = verdict(log, memory=check).violations
    assert violation["kind"] == "wrong_data"
    assert (violation["message"], violation["qp"], violation["wqe_index"], violation["offset"]) == (
        2,
        0,
        2,
        100,
    )
    assert (violation["expected"], violation["found"]) == ("010203", "040506")
    assert (
        violation["cycle"] == timeline(log.events(), log.messages, log.connections)["landed"][2] > 0
    )
    assert "byte 100" in violation["text"]


def test_guard_overwritten():
    check = MemoryCheck(
        payload_bytes=8,
        guard_bytes=64,
        total=7,
        differences=(
            Difference(
                node=1, memory="gpu", address=64, count=1, expected="00", found="01", message=-1
            ),
        ),
    )
    assert kinds(good_log(), memory=check) == ["guard_overwritten"] * 2


def test_never_retired():
    log = good_log()
    assert log.drop(EventKind.RETIRED, lambda fields: fields["wqe_index"] == 4) == 1
    assert kinds(log) == ["never_retired"]
    # A hang says so itself.
    hung = Status(ended="hang", cycles=99, wall_s=1.0, reason="no progress within 1 us")
    assert kinds(log, status=hung) == ["hang"]


def test_retired_twice():
    log = good_log()
    log.add(EventKind.RETIRED, 90_000, 0, qp=0, wqe_index=3, blocks=1, signaled=1, status=0)
    (violation,) = verdict(log).violations
    assert (violation["kind"], violation["message"], violation["cycle"]) == (
        "retired_twice",
        3,
        90_000,
    )


def test_retired_unposted():
    log = good_log()
    log.add(EventKind.RETIRED, 90_000, 0, qp=9, wqe_index=3, blocks=1, signaled=1, status=0)
    assert "retired_unposted" in kinds(log)


def test_completion_lost_without_cqe_and_when_nobody_sees_it():
    log = good_log()
    log.drop(
        EventKind.COMMIT,
        lambda fields: fields["mark"] & 0xF == MarkKind.CQE.value and fields["mark"] >> 16 == 2,
    )
    assert kinds(log) == ["completion_lost"]
    log = good_log()
    log.drop(EventKind.SEEN, lambda fields: fields["message"] == 5)
    assert kinds(log) == ["completion_lost"]


@pytest.mark.parametrize("index", [0, 1, 40])
def test_completion_too_many(index):
    log = good_log()
    log.add(
        EventKind.COMMIT,
        80_000,
        0,
        memory=0,
        fabric=1,
        address=0,
        count=64,
        last=1,
        mark=mark(MarkKind.CQE, 0, index),
    )
    assert kinds(log) == ["completion_twice"]


def test_a_wqe_in_error_is_told_once_signalled_or_not():
    log = good_log()
    log.messages[3]["signaled"] = 0
    log.drop(EventKind.RETIRED, lambda fields: fields["wqe_index"] == 3)
    log.add(EventKind.RETIRED, 10_900, 0, qp=0, wqe_index=3, blocks=1, signaled=0, status=5)
    assert kinds(log) == ["completion_status"]
    dropped = log.drop(
        EventKind.COMMIT,
        lambda fields: fields["mark"] & 0xF == MarkKind.CQE.value and fields["mark"] >> 16 == 3,
    )
    assert dropped == 1 and set(kinds(log)) == {"completion_status", "completion_lost"}


def test_completion_in_error():
    log = good_log()
    log.drop(EventKind.RETIRED, lambda fields: fields["wqe_index"] == 3)
    log.add(EventKind.RETIRED, 10_900, 0, qp=0, wqe_index=3, blocks=1, signaled=1, status=2)
    result = verdict(log)
    assert [violation["kind"] for violation in result.violations] == ["completion_status"]
    assert result.statuses == {"SUCCESS": 5, "LOC_QP_OP_ERR": 1}


def test_ring_beyond_what_is_written():
    log = good_log()
    log.add(EventKind.RING_SEEN, 80_000, 0, qp=0, producer=7, pushed=0)
    assert kinds(log) == ["index_out_of_bounds"]


def test_ring_more_than_the_depth_ahead():
    log = Log()
    for number in range(5):
        log.write(40 * number, inline=True)
    assert kinds(log, depth=4) == ["index_out_of_bounds"]
    assert kinds(log, depth=8) == []


def test_fetch_beyond_the_ring():
    log = good_log()
    log.add(EventKind.FETCH_REQUESTED, 80_000, 0, qp=0, wqe_index=5, blocks=2)
    (violation,) = verdict(log).violations
    assert (violation["kind"], violation["text"]) == (
        "index_out_of_bounds",
        "fetched up to 7, rung up to 6",
    )


def test_retirement_beyond_the_fetch():
    log = good_log()
    log.drop(EventKind.FETCHED, lambda fields: fields["wqe_index"] == 5)
    assert kinds(log) == ["index_out_of_bounds"]


def send_tlps(log, start, gap):
    """Ten TLPs of 280 B, which take 5.6 cycles each, leave the NIC of node 1."""
    fields = {"link": 4, "tlp": TlpClass.POSTED, "payload": 256, "wire": 280, "mark": 0}
    for number in range(10):
        log.add(EventKind.TLP_SENT, start + gap * number, 1, **fields)


def test_link_over_rate():
    log = good_log()
    send_tlps(log, 90_000, 6)
    assert kinds(log) == []
    send_tlps(log, 91_000, 4)
    (violation,) = verdict(log).violations
    assert (violation["kind"], violation["node"]) == ("link_over_rate", 1)
    assert "nic_up" in violation["text"]


def burst(gap, *ports):
    """A good log, and 60 packets of 242 B, which take 9.7 cycles each, by some ports in turn."""
    log = good_log()
    for number in range(60):
        log.add(
            EventKind.TX_FIRST,
            90_000 + number * gap,
            0,
            dest_qp=9,
            psn=number,
            opcode=RoceOpcode.WRITE_ONLY,
            qp=0,
            wqe_index=0,
            length=200,
            wire_bytes=242,
            dest=1,
            port=ports[number % len(ports)],
        )
    return log


def test_wire_over_rate():
    assert kinds(burst(10, 0)) == []
    assert kinds(burst(5, 0)) == ["link_over_rate"]


def test_each_wire_port_has_its_own_rate():
    assert kinds(burst(5, 0, 1)) == []
    (violation,) = verdict(burst(5, 1)).violations
    assert violation["text"].startswith("wire of port 1 of node 0")


def test_hang_is_a_violation_with_its_report():
    log = good_log()
    log.drop(EventKind.ACK_RECEIVED, lambda fields: fields["psn"] > 4)
    log.drop(EventKind.RETIRED, lambda fields: fields["wqe_index"] > 3)
    status = Status(
        ended="hang",
        cycles=50_000,
        wall_s=1.0,
        reason="no progress within 200 us",
        queues=(QueueState(node=0, qp=0, posted=6, rung=6, completed=4),),
        waiting=("GPU of node 0",),
    )
    result = verdict(log, status=status)
    hang = next(violation for violation in result.violations if violation["kind"] == "hang")
    assert (hang["node"], hang["qp"], hang["cycle"], hang["text"]) == (
        0,
        0,
        50_000,
        "no progress within 200 us",
    )
    assert result.hang is not None
    assert result.hang["queues"][0]["posted"] == 6 and result.hang["agents"] == ["GPU of node 0"]


def test_many_violations_of_a_kind_are_summed_up():
    log = Log()
    for number in range(MOST + 5):
        log.write(3000 * number, inline=True)
    log.drop(EventKind.RETIRED)
    found = verdict(log).violations
    assert len(found) == MOST + 1 and found[-1]["text"] == "5 more"


def test_counters_and_links_add_up():
    log = good_log(2)
    log.add(EventKind.DROPPED, 70_000, 0, reason=DropReason.DOORBELL_STALE, qp=0, info=0)
    log.add(EventKind.STALL, 70_000, 0, cause=StallCause.WINDOW, where=0, cycles=11)
    log.add(EventKind.STALL, 70_010, 1, cause=StallCause.WINDOW, where=0, cycles=4)
    result = verdict(log)
    counters = result.counters
    assert counters["drop_doorbell_stale"] == 1 and counters["stall_window_cycles"] == 15
    assert (counters["packets_request"], counters["packets_ack"]) == (4, 2)
    assert (counters["doorbells"], counters["cqes"], counters["wqes_pushed"]) == (2, 1, 0)
    assert counters["tlp_gpu_up_posted"] == 2 and result.links["gpu_up"]["tlps"] == 2
    assert result.links["wire"]["payload_bytes"] == 9008
    assert result.links["wire"]["wire_bytes"] == 9008 + 2 * 42 + 2 * 26 + 2 * 26
    assert result.links["host_up"] == {
        "tlps": 0,
        "packets": 0,
        "payload_bytes": 0,
        "wire_bytes": 0,
        "utilization": 0.0,
    }
    # Node 0 sends the requests; the second message is not signalled, so that the first one's
    # completion ends the window.
    window = log.events().of(EventKind.SEEN)["cycle"][0]
    assert result.links["wire"]["utilization"] == pytest.approx(
        (9008 + 2 * 42 + 2 * 26) * 8 / 200 / window, rel=1e-4
    )


# The reference ------------------------------------------------------------------------------------
# --------------------


def region(name, node, offset, size=256):
    return SimpleNamespace(
        name=name, node=node, memory="gpu", offset=offset, size=size, end=offset + size
    )


def message(number, offset, remote_offset, size=16):
    return SimpleNamespace(
        number=number,
        node=0,
        peer=1,
        size=size,
        region="send",
        offset=offset,
        remote_region="recv",
        remote_offset=remote_offset,
        signaled=True,
    )


def setup():
    plan = SimpleNamespace(
        regions=(region("send", 0, 8192), region("recv", 1, 16384)),
        messages=(message(0, 0, 64), message(1, 100, 70), message(2, 32, 128)),
    )
    memories = {node: np.zeros(1 << 16, np.uint8) for node in (0, 1)}
    for one in plan.regions:
        memories[one.node][one.offset : one.end] = reference.initial(one, 7)
    return plan, memories


def copy(plan, memories, order):
    for number in order:
        one = plan.messages[number]
        memories[1][16384 + one.remote_offset :][: one.size] = memories[0][8192 + one.offset :][
            : one.size
        ]


def compare(plan, memories, **options):
    return reference.compare(plan, 7, lambda node, memory: memories[node], **options)


def test_reference_accepts_what_the_messages_wrote():
    plan, memories = setup()
    copy(plan, memories, (0, 1, 2))
    check = compare(plan, memories)
    assert (check.total, check.wrong, check.payload_bytes) == (0, (), 38)
    assert check.guard_bytes == 2 * 256 - 38 + 4 * reference.GUARD_BYTES


def test_reference_orders_overlapping_writes_by_landing():
    plan, memories = setup()
    copy(plan, memories, (1, 0, 2))
    assert compare(plan, memories, landed=[20, 10, 30]).total == 0
    check = compare(plan, memories, landed=[10, 20, 30])
    assert check.wrong == (1,)


def test_reference_finds_a_wrong_byte_and_whose_it_is():
    plan, memories = setup()
    copy(plan, memories, (0, 1, 2))
    memories[1][16384 + 130] ^= 1
    check = compare(plan, memories)
    (difference,) = check.differences
    assert (check.total, check.wrong) == (1, (2,))
    assert (difference.address, difference.count, difference.message) == (16384 + 130, 1, 2)
    assert int(difference.expected, 16) ^ int(difference.found, 16) == 1


@pytest.mark.parametrize(
    ("node", "address"),
    [(1, 16384 + 63), (1, 16384 + 200), (0, 8192 + 5), (1, 16383), (0, 8192 + 256 + 4095)],
)
def test_reference_finds_an_overwritten_guard(node, address):
    plan, memories = setup()
    copy(plan, memories, (0, 1, 2))
    memories[node][address] ^= 0x55
    check = compare(plan, memories)
    assert check.wrong == () and [d.message for d in check.differences] == [-1]
    assert check.differences[0].address == address


def test_reference_leaves_unfinished_messages_open():
    plan, memories = setup()
    copy(plan, memories, (0, 1))
    assert compare(plan, memories, finished=[True, True, False]).total == 0
    assert compare(plan, memories).wrong == (2,)


def test_dma_ledger():
    log = good_log()
    log.add(EventKind.DROPPED, 500, node=1, reason=DropReason.DMA_LEDGER.value, info=1)
    (violation,) = verdict(log).violations
    assert violation["kind"] == "dma_ledger"
    assert "payload reads of node 1" in violation["text"]
