"""How a call of a GPU finds its QP. A QP is (peer, its index between the two nodes) here."""

__all__ = ["Given", "InTurn"]


class Given:
    """The QP that each message names."""

    def pick(self, message):
        """QP of the call that puts a message."""
        return message.peer, message.qp

    #: Lanes act as one while this is the same for all.
    place = pick

    def used(self, messages):
        """QPs that whoever puts the messages may use."""
        return dict.fromkeys(map(self.pick, messages))


class InTurn:
    """The QPs to a peer one after the other, by one count of all calls of the GPU, whoever makes
    them. It counts before it picks: the first call takes QP 1, if there are two.

    Ref: NVSHMEM's choice of an RC queue as read (flows 1.7).

    Parameters
    ----------
    calls : iterator of int
        The count: the number of each call, from 1 on.
    qps : int
        QPs between two nodes.
    """

    def __init__(self, calls, qps):
        self._calls, self._qps = calls, qps

    def pick(self, message):
        """QP of the call that puts a message; each is another call."""
        return message.peer, next(self._calls) % self._qps

    def place(self, message):
        """Lanes act as one while this is the same for all: the first picks for them."""
        return message.peer

    def used(self, messages):
        """QPs that whoever puts the messages may use."""
        peers = dict.fromkeys(map(self.place, messages))
        return {(peer, qp): None for peer in peers for qp in range(self._qps)}
