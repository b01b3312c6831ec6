"""What registered memory must hold after a run, in plain Python, and the comparison with what it does hold.

A message copies bytes of its source region to its target region. Sources and targets of a workload never overlap; where a scenario
lets them, messages act one after the other in the order in which their last bytes landed. Everything that no message writes,
between the targets, in the sources and around the regions, is a guard: it keeps its initial bytes.
"""

import numpy as np

from . import addresses
from .image import initial
from .job import Difference, MemoryCheck
from .timeline import ABSENT, connections_of, timeline
from .trace import Events

__all__ = ["GUARD_BYTES", "check", "compare", "expected", "region_bytes"]

#: Guard looked at before and behind every region, as far as no other region lies there.
GUARD_BYTES = 4096
_MOST = 100


def expected(before, messages, order=None, finished=None):
    """Bytes of all regions after the messages.

    Parameters
    ----------
    before : dict of (node, region name) to uint8 array
        Not changed.
    messages : sequence
        With `node`, `peer`, `region`, `offset`, `remote_region`, `remote_offset` and `size`, as in a plan.
    order : sequence of int, optional
        Positions in `messages` in the order in which the responders executed them.
    finished : sequence of bool, optional
        Messages that are not finished may have written all of their bytes, some, or none.

    Returns
    -------
    after : dict of (node, region name) to uint8 array
    owner : dict of (node, region name) to int32 array
        Per byte the position of the message that wrote it last; -1: nobody may; -2: anything goes.
    """
    after = {key: image.copy() for key, image in before.items()}
    owner = {key: np.full(len(image), -1, np.int32) for key, image in before.items()}
    for position in range(len(messages)) if order is None else order:
        message = messages[position]
        target = message.peer, message.remote_region
        place = slice(message.remote_offset, message.remote_offset + message.size)
        done = finished is None or finished[position]
        if done:
            after[target][place] = after[message.node, message.region][
                message.offset : message.offset + message.size
            ]
        owner[target][place] = position if done else -2
    return after, owner


def region_bytes(region):
    """First byte of a region in its memory, and the one behind its last."""
    return addresses.DATA + region.offset, addresses.DATA + region.end


def check(plan, seed, memory, records):
    """`MemoryCheck` of a run: order and ends of the messages are taken from its event log (raw records).

    A message whose bytes must be there is one that landed, was acknowledged, or was seen complete.
    """
    messages = {
        "message": [m.number for m in plan.messages],
        "node": [m.node for m in plan.messages],
        "peer": [m.peer for m in plan.messages],
        "size": [m.size for m in plan.messages],
        "signaled": [m.signaled for m in plan.messages],
        # The log says where software put the WQE.
        "qp": [ABSENT] * len(plan.messages),
        "wqe_index": [ABSENT] * len(plan.messages),
    }
    table = timeline(Events(records), messages, connections_of(plan))
    finished = (table["landed"] >= 0) | (table["ack_rx"] >= 0) | (table["seen"] >= 0)
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
        Per message whether its bytes must be there.
    """
    before = {(region.node, region.name): initial(region, seed) for region in plan.regions}
    order = None if landed is None else np.argsort(np.asarray(landed), kind="stable").tolist()
    after, owner = expected(before, plan.messages, order, finished)
    payload, guard, total, differences, wrong = 0, 0, 0, [], set()
    for region in plan.regions:
        key = region.node, region.name
        first, end = region_bytes(region)
        found = memory(region.node, region.memory)[first:end]
        payload += int(np.count_nonzero(owner[key] >= 0))
        guard += int(np.count_nonzero(owner[key] == -1))
        bad = (found != after[key]) & (owner[key] != -2)
        if np.any(bad):
            runs, numbers = _runs(bad, owner[key], plan.messages)
            wrong |= numbers
            total += len(runs)
            differences += [
                _difference(region, first, start, stop, after[key], found, number)
                for start, stop, number in runs[: _MOST - len(differences)]
            ]
    for region in plan.regions:
        for first, end in _outside(region, plan.regions):
            found = memory(region.node, region.memory)[first:end]
            guard += len(found)
            zeros = np.zeros(len(found), np.uint8)
            runs, _ = _runs(found != 0, np.full(len(found), -1, np.int32), plan.messages)
            total += len(runs)
            differences += [
                _difference(region, first, start, stop, zeros, found, -1)
                for start, stop, _ in runs[: _MOST - len(differences)]
            ]
    return MemoryCheck(
        payload_bytes=payload,
        guard_bytes=guard,
        differences=tuple(differences),
        total=total,
        wrong=tuple(sorted(wrong)),
    )


def _outside(region, regions):
    """Pieces of the guards around a region that lie in no other region of that memory."""
    start, end = region_bytes(region)
    others = [
        region_bytes(other)
        for other in regions
        if (other.node, other.memory) == (region.node, region.memory) and other is not region
    ]
    low = max([start - GUARD_BYTES, addresses.DATA, *(stop for _, stop in others if stop <= start)])
    high = min([end + GUARD_BYTES, *(first for first, _ in others if first >= end)])
    return [piece for piece in ((low, start), (end, high)) if piece[0] < piece[1]]


def _runs(bad, owner, messages):
    """Runs of bad bytes with one owner as (start, stop, message number or -1), and the numbers of all messages among them."""
    places = np.flatnonzero(bad)
    if not len(places):
        return [], set()
    owners = owner[places]
    breaks = np.flatnonzero((np.diff(places) != 1) | (np.diff(owners) != 0)) + 1
    starts = np.concatenate(([0], breaks))
    stops = np.concatenate((breaks, [len(places)])) - 1
    runs = [
        (
            int(places[start]),
            int(places[stop]) + 1,
            messages[owners[start]].number if owners[start] >= 0 else -1,
        )
        for start, stop in zip(starts, stops, strict=True)
    ]
    return runs, {number for _, _, number in runs if number >= 0}


def _difference(region, first, start, stop, right, found, number):
    shown = slice(start, min(stop, start + 16))
    return Difference(
        node=region.node,
        memory=region.memory,
        address=first + start,
        count=stop - start,
        expected=right[shown].tobytes().hex(),
        found=found[shown].tobytes().hex(),
        message=number,
    )
