"""Threads of a GPU that share queues, one with the next: as many as one agent must drive."""

__all__ = ["Crowd", "crowds"]


class Crowd:
    """Threads, and the queues that no thread but these uses.

    Attributes
    ----------
    threads : dict of producer to its messages
    queues : dict
        The queues are its keys.
    """

    def __init__(self):
        self.threads, self.queues = {}, {}


def crowds(threads, used):
    """The crowds of a GPU, in the order of their first threads.

    Parameters
    ----------
    threads : dict of producer to its messages
    used : callable
        Messages of a thread to the queues that it uses.
    """
    of = {}
    for producer, messages in threads.items():
        queues = used(messages)
        met = dict.fromkeys(of[queue] for queue in queues if queue in of)
        crowd, *others = met or [Crowd()]
        for other in others:
            crowd.threads |= other.threads
            crowd.queues |= other.queues
        crowd.threads[producer] = messages
        crowd.queues |= dict.fromkeys(queues)
        of |= dict.fromkeys(crowd.queues, crowd)
    return list(dict.fromkeys(of.values()))
