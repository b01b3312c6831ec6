"""What registered memory must hold after a run, in plain Python, and the comparison with it.

A message copies bytes of its source region to its target region. Sources and targets of a
workload never overlap; where a scenario lets them, messages act one after the other in the order
in which their last bytes landed. Everything that no message writes, between the targets, in the
sources and around the regions, is a guard: it keeps its initial bytes.
"""

import numpy as np

from hw.formats.op import Status

from . import addresses
from .image import initial
from .job import Difference, MemoryCheck
from .joins import ABSENT, connections_of
from .timeline import timeline
from .trace import Events

__all__ = ["GUARD_BYTES", "check", "compare", "expected", "region_bytes"]

#: Guard looked at before and behind every region, as far as no other region lies there.
GUARD_BYTES = 4096
_MOST = 100
#: Owner of a byte: nobody may write it; a message that is not finished, so that anything goes.
_NOBODY, _OPEN = -1, -2


def expected(before, messages, order=None):
    """Bytes of all regions after the messages.

    Parameters
    ----------
    before : dict of (node, region name) to uint8 array
        Not changed; regions that nobody writes are returned as they are.
    messages : sequence
        With `node`, `peer`, `region`, `offset`, `remote_region`, `remote_offset` and `size`, as in
        a plan.
    order : sequence of int, optional
        Positions in `messages` in the order in which the responders executed them.
    """
    targets = {(message.peer, message.remote_region) for message in messages}
    after = {key: image.copy() if key in targets else image for key, image in before.items()}
    for position in range(len(messages)) if order is None else order:
        m = messages[position]
        source = after[m.node, m.region][m.offset : m.offset + m.size]
        after[m.peer, m.remote_region][m.remote_offset : m.remote_offset + m.size] = source
    return after


def region_bytes(region):
    """First byte of a region in its memory, and the one behind its last."""
    return addresses.DATA + region.offset, addresses.DATA + region.end


def check(plan, seed, memory, records):
    """`MemoryCheck` of a run: order and ends of the messages are taken from its event log.

    A message whose bytes must be there is one that landed, was acknowledged, or was seen complete
    without an error.
    """
    fields = {"message": "number", "node": "node", "peer": "peer", "size": "size"}
    messages = {key: [getattr(m, name) for m in plan.messages] for key, name in fields.items()}
    # Where the WQEs are says the log.
    messages |= {key: [ABSENT] * len(plan.messages) for key in ("qp", "wqe_index", "signaled")}
    table = timeline(Events(records), messages, connections_of(plan))
    # What ended in error may have been done or not, unless it is known to have been.
    complete = (table["seen"] >= 0) & (table["status"] <= Status.SUCCESS.value)
    finished = (table["landed"] >= 0) | (table["ack_rx"] >= 0) | complete
    return compare(plan, seed, memory, table["landed"], finished)


def compare(plan, seed, memory, landed=None, finished=None):
    """`MemoryCheck` of the final memories of a run.

    Parameters
    ----------
    plan : Plan
    seed : int
    memory : callable
        (node, memory name) to the bytes of that memory as uint8 array.
    landed : sequence of int, optional
        Per message the cycle in which its last byte was committed; -1: not seen.
    finished : sequence of bool, optional
        Per message whether its bytes must be there. Of others all, some or none may be.
    """
    count = len(plan.messages)
    done = np.ones(count, bool) if finished is None else np.asarray(finished, bool)
    order = np.arange(count) if landed is None else np.argsort(np.asarray(landed), kind="stable")
    writes = _writes(plan, order, done)
    after = expected(
        {(region.node, region.name): initial(region, seed) for region in plan.regions},
        plan.messages,
        order[done[order]].tolist(),
    )
    report = _Report(plan.messages)
    for region in plan.regions:
        key = region.node, region.name
        first, end = region_bytes(region)
        found = memory(region.node, region.memory)[first:end]
        mine = writes.get(key, np.zeros((0, 3), np.int64))
        free = _union(mine[mine[:, 2] == _OPEN])
        written = _union(mine)
        report.payload += written - free
        report.guard += region.size - written
        report.look(region, first, after[key], found, mine)
    for region in plan.regions:
        for first, end in _outside(region, plan.regions):
            found = memory(region.node, region.memory)[first:end]
            report.guard += len(found)
            report.look(region, first, np.zeros(len(found), np.uint8), found, ())
    return report.check()


def _writes(plan, order, done):
    """Per region its writes in order of execution, as rows (start, stop, position or `_OPEN`)."""
    writes = {}
    for position in order.tolist():
        m = plan.messages[position]
        owner = position if done[position] else _OPEN
        row = (m.remote_offset, m.remote_offset + m.size, owner)
        writes.setdefault((m.peer, m.remote_region), []).append(row)
    return {key: np.array(rows, np.int64) for key, rows in writes.items()}


def _union(writes):
    """Bytes that lie in any of the writes."""
    if not len(writes):
        return 0
    writes = writes[np.argsort(writes[:, 0], kind="stable")]
    reached = np.concatenate(([writes[0, 0]], np.maximum.accumulate(writes[:-1, 1])))
    return int(np.maximum(writes[:, 1] - np.maximum(writes[:, 0], reached), 0).sum())


def _outside(region, regions):
    """Pieces of the guards around a region that lie in no other region of that memory."""
    start, end = region_bytes(region)
    others = [
        region_bytes(other)
        for other in regions
        if (other.node, other.memory) == (region.node, region.memory) and other is not region
    ]
    before = [stop for _, stop in others if stop <= start]
    low = max([start - GUARD_BYTES, addresses.DATA, *before])
    high = min([end + GUARD_BYTES, *(first for first, _ in others if first >= end)])
    return [piece for piece in ((low, start), (end, high)) if piece[0] < piece[1]]


class _Report:
    """Collects differences."""

    def __init__(self, messages):
        self._messages = messages
        self.payload, self.guard = 0, 0
        self._total, self._differences, self._wrong = 0, [], set()

    def check(self):
        return MemoryCheck(
            payload_bytes=self.payload,
            guard_bytes=self.guard,
            differences=tuple(self._differences),
            total=self._total,
            wrong=tuple(sorted(self._wrong)),
        )

    def look(self, region, first, right, found, writes):
        """Compares the bytes from address `first` on."""
        places = np.flatnonzero(found != right)
        if not len(places):
            return
        owners = np.full(len(places), _NOBODY)
        for start, stop, owner in writes:
            owners[slice(*np.searchsorted(places, (start, stop)))] = owner
        places, owners = places[owners != _OPEN], owners[owners != _OPEN]
        if not len(places):
            return
        breaks = np.flatnonzero((np.diff(places) != 1) | (np.diff(owners) != 0)) + 1
        heads = np.concatenate(([0], breaks))
        tails = np.concatenate((breaks, [len(places)])) - 1
        self._total += len(heads)
        self._wrong |= {self._messages[owner].number for owner in np.unique(owners[owners >= 0])}
        for head, tail in list(zip(heads, tails, strict=True))[: _MOST - len(self._differences)]:
            start, stop, owner = int(places[head]), int(places[tail]) + 1, owners[head]
            shown = slice(start, min(stop, start + 16))
            self._differences.append(
                Difference(
                    node=region.node,
                    memory=region.memory,
                    address=first + start,
                    count=stop - start,
                    expected=right[shown].tobytes().hex(),
                    found=found[shown].tobytes().hex(),
                    message=self._messages[owner].number if owner >= 0 else _NOBODY,
                )
            )
