"""What the agents of one run share: handles, costs in cycles, and the landmarks they stamp."""

from collections import deque
from dataclasses import fields

from hw.formats.events import EventKind
from hw.units import cycles

__all__ = ["Costs", "Landmarks", "Thread"]

#: To find a member of an enumeration takes as long as a call.
_SEEN = EventKind.SEEN


class Costs:
    """A section's `_ns` fields in cycles, under the same names without the unit."""

    def __init__(self, *sections):
        for section in sections:
            for field in fields(section):
                if field.name.endswith("_ns"):
                    setattr(
                        self, field.name.removesuffix("_ns"), cycles(getattr(section, field.name))
                    )


class Landmarks:
    """Stamps software landmarks through the trace port, and counts what was seen."""

    def __init__(self, node):
        self._trace = node.trace
        #: Messages whose completion the producer has seen.
        self.seen = 0

    def stamp(self, kind, message, due, posted=None, agent=0, qp=0):
        """One landmark of `message` in cycle `due`; `posted` is its WQE once there is one."""
        word = message.number | qp << 32 | agent << 60
        if posted:
            word |= (posted.index & 0xFFFF) << 44
        # `_value_` is the plain attribute behind `value`, which is slow.
        self._trace(kind._value_, word, due)
        if kind is _SEEN:
            self.seen += 1


class Thread:
    """A producer: its messages still to be issued, and the cycle until which it is busy.

    Parameters
    ----------
    number : int
    messages : sequence of Message
        In the order in which it issues them.
    window : int
        Messages that it may have outstanding.
    blocks : callable, optional
        Message to the blocks of its WQE; needed where WQEs are posted in batches.
    """

    def __init__(self, number, messages, window, blocks=None):
        self.number, self.pending, self.window = number, deque(messages), window
        self.time, self.outstanding = 0, 0
        #: (messages, blocks) of each batch still to be issued: up to the message that rings.
        self.batches = deque()
        if blocks:
            count = total = 0
            for message in messages:
                count, total = count + 1, total + blocks(message)
                if message.rings:
                    self.batches.append((count, total))
                    count = total = 0

    @property
    def next_at(self):
        """Cycle from which its next message may be issued."""
        at_ns = self.pending[0].at_ns if self.pending else 0
        return cycles(at_ns) if at_ns else 0
