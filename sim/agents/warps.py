"""Producers as a GPU runs them: which of them act together, and what each call of theirs puts.

At thread scope producer p is lane p mod 32 of warp p / 32. A full warp of which all lanes post to
one queue in each call acts as one; lanes of any other warp act each for itself. At warp and block
scope a producer is a whole warp or CTA, which issues one message at a time.
"""

from collections import deque

from hw.units import cycles

__all__ = ["LANES", "Warp", "gather"]

LANES = 32


class Warp:
    """Lanes that act together, and what they have to put.

    Parameters
    ----------
    lanes : list of lists of Message
        Messages of each lane, in the order in which it issues them.
    window : int
        Calls between two `quiet`s.
    """

    def __init__(self, lanes, window):
        self.lanes, self.window = len(lanes), window
        longest = max(map(len, lanes))
        #: Messages of each call, those of lanes that have none left missing.
        self.calls = deque(
            [lane[call] for lane in lanes if call < len(lane)] for call in range(longest)
        )

    @property
    def next_at(self):
        """Cycle from which its next call may be made: that of its last lane."""
        return max(cycles(message.at_ns) for message in self.calls[0]) if self.calls else 0


def gather(threads, window, place, *, threaded):
    """The warps of the threads of one agent.

    Parameters
    ----------
    threads : dict of producer to its messages
    window : int
    place : callable
        Message to what must be the same for all lanes of a call that act as one.
    threaded : bool
        Producers are threads, and not warps or CTAs.
    """
    if not threaded:
        return [Warp([messages], window) for messages in threads.values()]
    by_warp = {}
    for producer, messages in sorted(threads.items()):
        by_warp.setdefault(producer // LANES, []).append(messages)
    warps = []
    for lanes in by_warp.values():
        whole = Warp(lanes, window)
        if len(lanes) == LANES and all(len(set(map(place, call))) == 1 for call in whole.calls):
            warps.append(whole)
        else:
            warps += [Warp([lane], window) for lane in lanes]
    return warps
