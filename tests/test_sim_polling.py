"""Software's decisions about completions and doorbells."""

import pytest

from sim.agents.batching import rings
from sim.agents.polling import Polled, is_ours, poll_collapsed, poll_ring

COLLAPSED = {"wait": 10, "consumer": 3, "producer": 12, "opcode": 0, "entries": 64}
RING = {"wait": 70, "consumer": 70, "opcode": 0, "owner": 1, "entries": 64}


def test_collapsed_poll_waits_until_the_counter_reaches_the_index():
    answers = [poll_collapsed(counter=counter, **COLLAPSED) for counter in (8, 9, 11)]
    assert answers == [None, Polled(10, 0), Polled(12, 0)]


def test_collapsed_poll_asks_nothing_when_it_knows_and_waits_for_the_doorbell():
    assert poll_collapsed(counter=0xFFFF, **COLLAPSED | {"consumer": 11}) == Polled(11, 0)
    assert poll_collapsed(counter=9, **COLLAPSED | {"producer": 9}) is None


def test_collapsed_poll_counts_beyond_16_bits():
    far = COLLAPSED | {"wait": (5 << 16) + 1, "consumer": (5 << 16) - 3, "producer": (5 << 16) + 1}
    assert poll_collapsed(counter=0xFFFF, **far) is None
    assert poll_collapsed(counter=0, **far) == Polled((5 << 16) + 1, 0)


def test_collapsed_poll_of_an_error_goes_on_and_says_so():
    assert poll_collapsed(counter=9, **COLLAPSED | {"opcode": 13}) == Polled(10, -1)


def test_collapsed_poll_is_wrong_beyond_its_queue_as_the_original():
    """The counter is ambiguous if the index waited for is further ahead than the queue is long."""
    near, far = ({"wait": 6 + n, "producer": 6 + n, "consumer": 6} for n in (64, 65))
    assert poll_collapsed(counter=5, **COLLAPSED | near) is None
    assert poll_collapsed(counter=5, **COLLAPSED | far) is not None


def test_ring_poll_takes_an_entry_of_its_lap_only():
    assert poll_ring(**RING) == Polled(71, 0)
    assert poll_ring(**RING | {"owner": 0}) is None
    assert poll_ring(**RING | {"opcode": 15}) is None
    assert poll_ring(**RING | {"consumer": 71}) == Polled(71, 0)
    # A lap ahead the entry stands for another completion.
    assert poll_ring(**RING | {"wait": 70 + 128, "owner": 1}) is None


def test_ring_poll_of_an_error_stays_where_it_is():
    assert poll_ring(**RING | {"opcode": 13}) == Polled(70, -5)


@pytest.mark.parametrize(("index", "owner"), [(0, 0), (63, 0), (64, 1), (128, 0)])
def test_owner_toggles_with_each_lap(index, owner):
    assert is_ours(index=index, opcode=0, owner=owner, entries=64)
    assert not is_ours(index=index, opcode=0, owner=1 - owner, entries=64)


@pytest.mark.parametrize(
    ("base", "count", "reserved", "rang"),
    [
        (0, 1, 1, True),  # nobody behind
        (0, 1, 2, False),  # somebody is
        (30, 1, 40, False),
        (30, 2, 40, True),  # reaches the end of a batch
        (1, 40, 99, True),  # fills one
    ],
)
def test_a_submission_rings_last_at_the_end_of_a_batch_or_when_it_fills_one(
    base, count, reserved, rang
):
    assert rings(base=base, count=count, reserved=reserved, batch=32) is rang
