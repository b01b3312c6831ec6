"""A send queue that GPU threads share: what they count up, the lock of its doorbell, and who waits
for a turn or for a completion.
"""

from .agenda import PARKED
from .polling import poll_collapsed
from .sharing import Lock, spin

__all__ = ["SharedQueue"]


class SharedQueue:
    """One QP of a GPU, for the threads of one agent.

    Parameters
    ----------
    queue : SendQueue
        With its rings in GPU memory, and a collapsed completion queue.
    indices : Indices
    agenda : Agenda
        Of the threads.
    costs : Costs
    """

    def __init__(self, queue, indices, agenda, costs):
        self.queue, self.indices = queue, indices
        self._agenda, self._costs = agenda, costs
        self._atomic = max(1, costs.atomic)
        self.lock = Lock(agenda, self._atomic)
        #: First block to (cycle of its first try, flow) of those whose turn it is not yet.
        self._turns = {}
        #: (index waited for, flow) of those that spin on the completion queue.
        self._polling = []

    @property
    def polled(self):
        """Whether somebody spins on its completion queue."""
        return bool(self._polling)

    def publish(self, base, end, first):
        """Flow: compare and swap until everything before `base` is published; ends when it is this
        call's turn, which it hands on.
        """
        agenda, indices = self._agenda, self.indices
        if indices.ready == base:
            yield first
        else:
            self._turns[base] = first, agenda.current
            yield PARKED
        indices.ready = self.queue.posted = end
        if end in self._turns:
            waiting, flow = self._turns.pop(end)
            agenda.wake(flow, spin(waiting, self._atomic, agenda.time + 1))

    def quiet(self, time):
        """Flow: waits until all that is published now is done; returns when that is known."""
        yield time + self._costs.load
        return (yield from self.poll(self.indices.ready, self._agenda.time))

    def poll(self, wait, time):
        """Flow: waits until all blocks below `wait` are done; returns when that is known."""
        agenda, costs = self._agenda, self._costs
        yield time + costs.load
        if self.indices.consumed >= wait:
            return agenda.time
        # Has it been rung? And what does the completion queue say?
        yield agenda.time + costs.load
        if self._done(wait):
            time = agenda.time + costs.load
        else:
            self._polling.append((wait, agenda.current))
            yield PARKED
            time = agenda.time
        # Tell the others, and look whether it was an error.
        return time + self._atomic + costs.load

    def look(self, now):
        """Wake those whose wait is over; whether there are any."""
        over = [(wait, flow) for wait, flow in self._polling if self._done(wait)]
        for entry in over:
            self._polling.remove(entry)
            self._agenda.wake(entry[1], now + max(1, self._costs.poll))
        return bool(over)

    def _done(self, wait):
        """Whether the completion queue says that all blocks below `wait` are done."""
        indices, queue = self.indices, self.queue
        opcode, _, counter = queue.entry()
        found = poll_collapsed(
            wait=wait,
            consumer=indices.consumed,
            producer=indices.produced,
            counter=counter,
            opcode=opcode,
            entries=queue.depth,
        )
        if found:
            indices.consumed = queue.done = found.consumer
        return found is not None
