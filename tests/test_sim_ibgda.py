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
    poster = agent(gpu, indices, {0: call}, batch=case["batch"])
    poster.agenda.start(poster.put(call, 0), 0)
    poster.agenda.run(100_000)
    rang = bool(case["rang"])
    assert [data.hex() for _, data in gpu.of(MarkKind.RECORD)] == [case["dbr_snd"]] * rang
    assert [data.hex() for _, data in gpu.of(MarkKind.DOORBELL)] == [case["doorbell"]] * rang


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
