"""Producers as a GPU runs them: which of them act together, and what each call of theirs puts.

At thread scope producer p is lane p mod 32 of warp p / 32. A full warp of which all lanes post to
one queue acts as one; lanes of any other warp act each for itself. At warp and block scope a
producer is a whole warp or CTA, which issues one message at a time.
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


def gather(threads, window, *, threaded):
    """The warps of one queue.

    Parameters
    ----------
    threads : dict of producer to its messages
    window : int
    threaded : bool
        Producers are threads, and not warps or CTAs.
    """
    if not threaded:
        return [Warp([messages], window) for messages in threads.values()]
    warps = {}
    for producer, messages in sorted(threads.items()):
        warps.setdefault(producer // LANES, []).append(messages)
    return [
        Warp(members, window)
        for lanes in warps.values()
        for members in ([lanes] if len(lanes) == LANES else [[lane] for lane in lanes])
    ]
