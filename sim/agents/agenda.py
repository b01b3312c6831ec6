"""Several flows of one agent, in simulated time.

A flow is a generator. It yields the cycle in which it goes on, or `PARKED` once it has left itself
somewhere for another flow to find and `wake`. An agent that holds an agenda sleeps until the next
flow is due; what happens between two flows needs no machine.
"""

from heapq import heappop, heappush

__all__ = ["PARKED", "Agenda"]

#: Yielded by a flow that somebody else will wake.
PARKED = None


class Agenda:
    """Flows by the cycle in which they go on; those of one cycle in the order of the calls."""

    def __init__(self):
        self._heap, self._calls = [], 0
        #: Flows that have not ended.
        self.alive = 0
        #: Cycle of the flow that runs, and the flow.
        self.time, self.current = 0, None

    @property
    def next(self):
        """Cycle of the next flow; None: all are parked, or there are none."""
        return self._heap[0][0] if self._heap else None

    def start(self, flow, time):
        """Begin a flow in cycle `time`."""
        self.alive += 1
        self.wake(flow, time)

    def wake(self, flow, time):
        """Let a parked flow go on in cycle `time`."""
        self._calls += 1
        heappush(self._heap, (time, self._calls, flow))

    def run(self, until):
        """Run all flows that are due up to and including cycle `until`."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.time, _, flow = heappop(heap)
            self.current = flow
            try:
                time = next(flow)
            except StopIteration:
                self.alive -= 1
                continue
            if time is not PARKED:
                self.wake(flow, time)
