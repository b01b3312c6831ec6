"""What GPU threads share of a send queue: the indices that they count up, a lock, and spinning.

Indices are 64-bit and never wrap. Atomics are exact: each takes effect when it returns. Who spins
tries again as soon as the last try has returned, so when he succeeds depends on when he began.
Ref: NVSHMEM's per-QP state as read (flows: objects, submit).
"""

__all__ = ["Indices", "Lock", "spin"]


def spin(first, period, ready):
    """First try at or after `ready`, of tries that return in cycles `first`, `first + period`, ...

    A try takes at least a cycle.
    """
    period = max(1, period)
    return first + max(0, -(-(ready - first) // period)) * period


class Indices:
    """The indices of one queue, in blocks; each is the one above the last block it covers.

    Parameters
    ----------
    start : int
        Index of the first block.
    """

    def __init__(self, start):
        #: Reserved, written and published in order, rung, known to be done.
        self.reserved = self.ready = self.produced = self.consumed = self.start = start

    def reserve(self, count):
        """Atomic add: takes `count` blocks and returns the first."""
        base, self.reserved = self.reserved, self.reserved + count
        return base

    def produce(self, index):
        """Atomic maximum: whether `index` is beyond what has been rung."""
        beyond = index > self.produced
        self.produced = max(self.produced, index)
        return beyond


class Lock:
    """A spin lock. It goes to the try that comes first once it is free, not to who waited longest.

    Parameters
    ----------
    agenda : Agenda
    period : int
        Cycles of a try.
    """

    def __init__(self, agenda, period):
        self._agenda, self._period = agenda, period
        self._free_at = 0

    def take(self, first):
        """Flow: spins from a try that returns in cycle `first`; ends when the lock is taken.

        Who takes it calls `release` in the same step, so that all others know how long it is held.
        """
        yield first
        while self._agenda.time < self._free_at:
            yield spin(first, self._period, self._free_at)

    def release(self, time):
        """Frees it in cycle `time`."""
        self._free_at = time
