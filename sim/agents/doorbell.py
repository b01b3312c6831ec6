"""How a host thread rings: the doorbell register of a QP as rdma-core's mlx5 provider uses it.

A single work request may be pushed whole (BlueFlame): its blocks are copied to the register, 64
bytes by 64 bytes, and each chunk that the CPU's write combining closes is one posted write. A list,
and what must not or cannot be pushed, rings with the first 8 bytes of its last WQE. A BlueFlame
register has two halves, used in turn by pushes and doorbells alike; a non-cached one has none.
Ref: rdma-core `mlx5_post_send`; `rdma_core` vectors.
"""

from hw.formats.mlx5 import BLOCK_BYTES, UAR_BF_SIZE

__all__ = ["HostRegister", "pushes"]

_OCTOWORD = 16


def pushes(cpu, *, count, octowords, inline):
    """Whether a post is pushed, or rung with 8 bytes.

    Parameters
    ----------
    cpu : CpuConfig
        `bf`, `prefer_bf` and `uar` are looked at.
    count : int
        Work requests of the post.
    octowords : int
        Length of the last one's WQE (`ds`).
    inline : bool
        Whether its payload stands in the WQE.
    """
    return (
        cpu.bf
        and cpu.uar == "bf"
        and count == 1
        and (inline or cpu.prefer_bf)
        and 1 < octowords <= UAR_BF_SIZE // _OCTOWORD
    )


class HostRegister:
    """The register of one QP, and which half of it comes next.

    Parameters
    ----------
    queue : SendQueue
    cpu : CpuConfig
    """

    def __init__(self, queue, cpu):
        self._queue, self._cpu = queue, cpu
        self._half, self._toggle = 0, UAR_BF_SIZE if cpu.uar == "bf" else 0

    def ring(self, raw, due, *, count=1, inline=False):
        """Rings for a post of `count` work requests in cycle `due`; `raw` is its last WQE."""
        octowords = raw[7] & 0x3F
        pushed = pushes(self._cpu, count=count, octowords=octowords, inline=inline)
        step = BLOCK_BYTES if pushed else 8
        for at in range(0, len(raw) if pushed else 8, step):
            self._queue.doorbell(self._half + at, raw[at : at + step], due)
        self._half ^= self._toggle
