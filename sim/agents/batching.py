"""When a submission of work to a send queue rings the doorbell.

Ref: NVSHMEM's `ibgda_submit_requests` as read (flows: submit), `batching` vectors.
"""

__all__ = ["rings"]


def rings(*, base, count, reserved, batch):
    """Whether the submission of the blocks `base` to `base + count` rings, or leaves it to a later
    one.

    It rings if nobody has reserved blocks behind it, if it reaches or crosses the end of a batch,
    or if it fills one by itself.

    Parameters
    ----------
    base, count : int
        First block (64-bit index) and number of blocks.
    reserved : int
        Index behind all blocks reserved so far.
    batch : int
        Blocks per batch, a power of two.
    """
    end = base + count
    return end == reserved or base // batch != end // batch or count >= batch
