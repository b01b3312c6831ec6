"""The flow of `ibgda` on a queue without a machine: indices, order, decisions, for any number of
threads.
"""

from itertools import pairwise

import pytest
from support_ibgda import COSTS, Gpu, Watched, agent, message, post

from hw.formats.events import EventKind
from hw.formats.tlp import MarkKind
from sim.agents.agenda import PARKED, Agenda
from sim.agents.batching import rings
from sim.agents.crowds import crowds
from sim.agents.sharing import Lock, spin

#: The calls of NVSHMEM's `ibgda_submit_requests` that the vectors hold (their `batching`).
RECORDED = [
    {"base": base, "num_wqes": count, "resv_head": reserved, "batch": batch, "rang": rang}
    | ({"dbr_snd": f"{base + count:08x}", "doorbell": f"{base + count:06x}0000abcd00"})
    for base, count, reserved, batch, rang in (
        (0, 1, 1, 32, 1),
        (0, 1, 2, 32, 0),
        (30, 1, 40, 32, 0),
        (30, 2, 40, 32, 1),
        (1, 31, 64, 32, 1),
        (5, 1, 9, 4, 0),
        (3, 2, 9, 4, 1),
        (0, 1, 5, 1, 1),
    )
]


def rung(gpu):
    """Index of each doorbell, in order of time."""
    return [int.from_bytes(data[1:3], "big") for _, data in sorted(gpu.of(MarkKind.DOORBELL))]


def test_one_put_takes_the_steps_of_the_flow_one_after_the_other():
    gpu, _ = post([1])
    times = {kind: cycle for kind, _, cycle in gpu.stamps}
    c = COSTS
    written = times[EventKind.ISSUE] + c["nvshmem_call_ns"] + c["nvshmem_api_ns"]
    # Reserve, write.
    written += c["atomic_ns"] + c["issue_ns"]
    assert times[EventKind.WQE_WRITTEN] == written
    # Fence, publish, look at the reservations, lock, maximum, fence, record, fence, doorbell.
    record = written + 2 * c["fence_gpu_ns"] + 3 * c["atomic_ns"] + c["load_ns"]
    assert [cycle for cycle, _ in gpu.of(MarkKind.RECORD)] == [record]
    assert times[EventKind.RING] == record + c["fence_gpu_ns"]
    # The completion comes, is polled, told to others, looked at for an error.
    done = times[EventKind.RING] + 2500
    assert times[EventKind.SEEN] == done + c["poll_ns"] + c["atomic_ns"] + c["load_ns"]
    order = [kind for _, kind, _ in gpu.stores]
    assert order == [MarkKind.WQE, MarkKind.RECORD, MarkKind.DOORBELL]


def test_payload_in_host_memory_costs_a_system_fence():
    near, far = (
        post([1], source=source)[0].of(MarkKind.RECORD)[0][0] for source in ("gpu", "host")
    )
    assert far - near == COSTS["fence_sys_ns"]


def test_full_warp_reserves_once_asks_for_one_completion_and_rings_once():
    gpu, indices = post([1] * 32)
    assert indices.reservations == [(0, 32)]
    wqes = [data for _, data in gpu.of(MarkKind.WQE)]
    assert [raw[11] for raw in wqes] == [0] * 31 + [8]
    assert [int.from_bytes(raw[1:3], "big") for raw in wqes] == list(range(32))
    assert rung(gpu) == [32]


def test_lanes_of_a_warp_that_is_not_full_act_alone():
    _, indices = post([1] * 31)
    assert sorted(indices.reservations) == [(base, 1) for base in range(31)]
    # In the second call only 3 lanes of a full warp have something to put.
    _, indices = post([2] * 3 + [1] * 29, window=2)
    assert indices.reservations == [(0, 32), (32, 1), (33, 1), (34, 1)]


CROWDS = [
    ([1], 1, 32, 32),
    ([7] * 5, 3, 4, 16),
    ([3] * 31, 2, 32, 64),
    ([4] * 32, 2, 32, 64),
    ([5] * 100, 5, 16, 256),
    ([2] * 33 + [5] * 31, 2, 1, 64),
    ([3] * 512, 3, 32, 1024),
    ([2] * 1024, 1, 64, 128),
    ([1] * 1000, 1, 512, 1024),
]


@pytest.mark.parametrize("start", [0, 65_500])
@pytest.mark.parametrize(("counts", "window", "batch", "depth"), CROWDS)
def test_indices_of_any_crowd(counts, window, batch, depth, start):
    """Blocks are reserved without a gap, published in that order, written before they are rung,
    each within one doorbell, and never more than the ring has free.
    """
    gpu, indices = post(counts, window=window, batch=batch, depth=depth, start=start)
    total = start + sum(counts)
    assert (indices.reserved, indices.ready, indices.produced) == (total, total, total)
    ends = [base + count for base, count in indices.reservations]
    assert [base for base, _ in indices.reservations] == [start, *ends[:-1]]
    assert indices.published == [start, *ends]
    bells, position = [], start
    for cycle, data in sorted(gpu.of(MarkKind.DOORBELL)):
        position += (int.from_bytes(data[1:3], "big") - position) & 0xFFFF
        bells.append((cycle, position))
    assert all(a[1] < b[1] for a, b in pairwise(bells))
    assert bells[-1][1] == total
    written = {}
    for cycle, data in gpu.of(MarkKind.WQE):
        index = int.from_bytes(data[1:3], "big")
        written[start + (index - start & 0xFFFF)] = cycle
    assert sorted(written) == list(range(start, total))
    below = start
    for cycle, end in bells:
        assert all(written[index] < cycle for index in range(below, end))
        below = end
    # A block is written again only when the doorbell that covered it has been answered.
    for index in range(start + depth, total):
        freed = next(cycle for cycle, end in bells if end > index - depth) + 2500
        assert written[index] > freed
    seen = [number for kind, number, _ in gpu.stamps if kind is EventKind.SEEN]
    assert sorted(seen) == list(range(sum(counts)))


@pytest.mark.parametrize("batch", [1, 4, 32])
def test_a_crowd_rings_as_often_as_the_rule_says(batch, monkeypatch):
    """Every decision is made once for a reservation, with what is reserved at that time."""
    asked = []

    def watched(**facts):
        asked.append((facts["base"], facts["count"], facts["batch"], rings(**facts)))
        return asked[-1][-1]

    monkeypatch.setattr("sim.agents.ibgda.rings", watched)
    gpu, indices = post([6] * 20, window=3, batch=batch)
    assert [ask[:2] for ask in asked] == indices.reservations
    assert {ask[2] for ask in asked} == {batch}
    positive = sum(ask[3] for ask in asked)
    # Somebody may have rung further before a caller has the lock.
    assert 0 < len(rung(gpu)) <= positive
    assert (positive == len(asked)) == (batch == 1)


@pytest.mark.parametrize("case", RECORDED, ids=lambda c: f"{c['base']}+{c['num_wqes']}")
def test_recorded_decisions_are_made_by_the_flow(case):
    """With base, count, reservations and batch as recorded, record and doorbell are, too."""

    class Later(Watched):
        """Others reserve right behind, and get no further."""

        def reserve(self, count):
            base = super().reserve(count)
            self.reserved = case["resv_head"]
            return base

    gpu, indices = Gpu(case["base"]), Later(case["base"])
    call = [message(lane, lane) for lane in range(case["num_wqes"])]
    poster = agent(gpu, [indices], {0: call}, batch=case["batch"])
    poster.agenda.start(poster.put(call, 0), 0)
    poster.agenda.run(100_000)
    rang = bool(case["rang"])
    assert [data.hex() for _, data in gpu.of(MarkKind.RECORD)] == [case["dbr_snd"]] * rang
    assert [data.hex() for _, data in gpu.of(MarkKind.DOORBELL)] == [case["doorbell"]] * rang


def several(threads, qps, latencies=None, **options):
    """Run threads (their messages, each with its QP) on several QPs; returns (gpu, indices)."""
    gpu = Gpu(0, latencies or (2500,) * qps)
    indices = [Watched(0) for _ in range(qps)]
    gpu.run(agent(gpu, indices, threads, **options))
    return gpu, indices


def crowd(threads, calls):
    """So many threads with so many messages each."""
    return {p: [message(calls * p + call, p) for call in range(calls)] for p in range(threads)}


def cycles_of(gpu, kind):
    """Cycle of each message's landmark of a kind."""
    return {number: cycle for found, number, cycle in gpu.stamps if found is kind}


@pytest.mark.parametrize(("threads", "calls", "qps", "window"), [(1, 9, 4, 1), (7, 5, 3, 5)])
def test_calls_take_the_queues_in_turn_whoever_makes_them(threads, calls, qps, window):
    gpu, indices = several(crowd(threads, calls), qps, window=window, by_call=True)
    issued = [number for kind, number, _ in gpu.stamps if kind is EventKind.ISSUE]
    times = cycles_of(gpu, EventKind.ISSUE)
    assert [times[number] for number in issued] == sorted(times.values())
    # The count goes up before it is used.
    assert [gpu.picked[number] for number in issued] == [
        call % qps for call in range(1, threads * calls + 1)
    ]
    # Two calls to one queue are one behind the other, those to different queues share nothing.
    for qp, of_qp in enumerate(indices):
        taken = list(gpu.picked.values()).count(qp)
        assert [base for base, _ in of_qp.reservations] == list(range(taken))
        assert (of_qp.ready, of_qp.produced, of_qp.consumed) == (taken, taken, taken)


def test_the_first_lane_picks_for_a_full_warp():
    gpu, indices = several(crowd(64, 3), 2, window=3, by_call=True)
    assert [sorted(of_qp.reservations) for of_qp in indices] == [[(0, 32), (32, 32), (64, 32)]] * 2
    assert [data[11] for _, data in gpu.of(MarkKind.WQE)].count(8) == 6


@pytest.mark.parametrize("by_call", [True, False])
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_quiet_returns_only_when_every_queue_is_done(slow, by_call):
    latencies = [2500] * 3
    latencies[slow] = 90_000
    calls = [message(number, 0, qp=number) for number in range(3)]
    gpu, _ = several({0: calls}, 3, latencies, window=3, by_call=by_call)
    (late,) = (number for number, qp in gpu.picked.items() if qp == slow)
    (seen,) = set(cycles_of(gpu, EventKind.SEEN).values())
    answered = cycles_of(gpu, EventKind.RING)[late] + 90_000
    found = answered + COSTS["poll_ns"] + COSTS["atomic_ns"] + COSTS["load_ns"]
    # It then walks on: published, known to be done, rung, completed, told to others, no error.
    found += (2 - slow) * (5 * COSTS["load_ns"] + COSTS["atomic_ns"])
    assert seen == found


def test_quiet_of_who_uses_one_queue_is_not_held_up_by_another():
    threads = {0: [message(0, 0, qp=0)], 1: [message(1, 1, qp=0), message(2, 1, qp=1)]}
    gpu, _ = several(threads, 2, (2500, 90_000), window=2)
    seen = cycles_of(gpu, EventKind.SEEN)
    assert seen[0] + 50_000 < seen[1] == seen[2]


@pytest.mark.parametrize("by_call", [True, False])
def test_one_thread_on_two_queues_is_one_thread(by_call):
    calls = [message(number, 0, qp=number % 2) for number in range(8)]
    gpu, _ = several({0: calls}, 2, window=8, by_call=by_call)
    issue, ring = (cycles_of(gpu, kind) for kind in (EventKind.ISSUE, EventKind.RING))
    assert sorted(gpu.picked.values()) == [0] * 4 + [1] * 4
    assert all(issue[a] < ring[a] < issue[b] for a, b in pairwise(range(8)))


def test_a_warp_acts_as_one_where_all_lanes_name_one_queue():
    # All lanes change from QP 0 to QP 1 together.
    alike = {p: [message(p, p, qp=0), message(32 + p, p, qp=1)] for p in range(32)}
    _, indices = several(alike, 2, window=2)
    assert [of_qp.reservations for of_qp in indices] == [[(0, 32)], [(0, 32)]]
    alike[5] = [message(5, 5, qp=1), message(37, 5, qp=1)]
    _, indices = several(alike, 2, window=2)
    assert {count for of_qp in indices for _, count in of_qp.reservations} == {1}
    assert [of_qp.reserved for of_qp in indices] == [31, 33]


def test_crowds_are_those_who_share_a_queue_with_somebody_of_theirs():
    threads = {0: "a", 1: "b", 2: "cd", 3: "a", 4: "ed", 5: "fb"}
    found = [(sorted(c.threads), sorted(c.queues)) for c in crowds(threads, dict.fromkeys)]
    assert found == [([0, 3], ["a"]), ([1, 5], ["b", "f"]), ([2, 4], ["c", "d", "e"])]
    # Two crowds become one by somebody who belongs to both.
    (one,) = crowds(threads | {6: "abc"}, dict.fromkeys)
    assert (sorted(one.threads), sorted(one.queues)) == (list(range(7)), list("abcdef"))


def test_who_spins_tries_again_when_the_last_try_has_returned():
    assert [spin(100, 30, ready) for ready in (0, 100, 101, 130, 131)] == [100, 100, 130, 130, 160]
    assert spin(5, 0, 9) == 9


def test_lock_goes_to_the_first_try_after_it_is_free():
    agenda, order = Agenda(), []
    lock = Lock(agenda, 100)

    def user(name, first):
        yield from lock.take(first)
        order.append((name, agenda.time))
        lock.release(agenda.time + 250)

    agenda.start(user("a", 10), 0)
    agenda.start(user("b", 20), 0)
    # It came later, and tries at a luckier time.
    agenda.start(user("c", 65), 0)
    agenda.run(10_000)
    assert order == [("a", 10), ("c", 265), ("b", 520)]
    assert agenda.alive == 0


def test_agenda_wakes_parked_flows_and_keeps_the_order_of_a_cycle():
    agenda, log = Agenda(), []

    def sleeper():
        log.append("parks")
        yield PARKED
        log.append(agenda.time)

    def other(flow):
        yield 5
        agenda.wake(flow, 9)
        log.append("wakes")

    parked = sleeper()
    agenda.start(parked, 1)
    agenda.start(other(parked), 1)
    agenda.run(8)
    assert log == ["parks", "wakes"] and agenda.next == 9
    agenda.run(9)
    assert log[-1] == 9 and agenda.alive == 0 and agenda.next is None
