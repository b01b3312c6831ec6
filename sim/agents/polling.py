"""How software reads a completion queue: what it takes for an answer, and what it makes of it.

Two ways. A collapsed queue is one entry that the NIC rewrites; its 16-bit counter says how far the
send queue is done. A ring has an entry for each completion; the owner bit, which toggles with each
lap, tells a new entry from an old one. Nothing here touches a machine: agents read the bytes and
ask these functions. Ref: NVSHMEM (poll of a collapsed queue), DOCA's device verbs as NCCL uses
them, rdma-core's mlx5 provider; `poll_cq`, `poll_cq_at` and consumer vectors.
"""

from dataclasses import dataclass

from hw.formats.mlx5 import CqeOpcode

__all__ = ["COLLAPSED_ERROR", "RING_ERROR", "Polled", "is_ours", "poll_collapsed", "poll_ring"]

#: Status of a poll that found a completion in error: NVSHMEM's, and (-EIO) that of DOCA.
COLLAPSED_ERROR, RING_ERROR = -1, -5

_INVALID, _ERROR = CqeOpcode.INVALID.value, CqeOpcode.REQ_ERR.value


@dataclass(frozen=True, slots=True)
class Polled:
    """A poll that found its answer.

    `consumer` is the consumer index afterwards, 64 bits; `status` is 0, or negative for an error.
    """

    consumer: int
    status: int


def poll_collapsed(*, wait, consumer, producer, counter, opcode, entries):
    """Whether all blocks below index `wait` are done, by the entry of a collapsed queue.

    Parameters
    ----------
    wait, consumer, producer : int
        Index waited for, index up to which all is known to be done, index rung; 64 bits, each one
        above the last block that it covers.
    counter, opcode : int
        Of the entry: `wqe_counter` (16 bits, all ones while nothing is done), and opcode.
    entries : int
        Size of the queue as software counts it. A `wait` further ahead than this of what is done
        is wrongly taken for done, as in the original.

    Returns
    -------
    Polled or None
        None: go on polling.
    """
    if consumer >= wait:
        return Polled(consumer, 0)
    if producer < wait or (wait - counter - 2) & 0xFFFF < entries:
        return None
    done = wait + ((counter + 1 - wait) & 0xFFFF)
    return Polled(max(consumer, done), COLLAPSED_ERROR if opcode == _ERROR else 0)


def is_ours(*, index, opcode, owner, entries):
    """Whether entry `index` (counted from the start) of a ring was written in the index's lap."""
    return opcode != _INVALID and owner == (index // entries & 1)


def poll_ring(*, wait, consumer, opcode, owner, entries):
    """Whether completion number `wait` is there, by its entry in a ring of `entries`.

    `consumer` is the first completion not yet taken. An error leaves it where it is.

    Returns
    -------
    Polled or None
        None: go on polling.
    """
    if wait < consumer:
        return Polled(consumer, 0)
    ours = is_ours(index=wait, opcode=opcode, owner=owner, entries=entries)
    if wait >= consumer + entries or not ours:
        return None
    return Polled(consumer, RING_ERROR) if opcode == _ERROR else Polled(wait + 1, 0)
