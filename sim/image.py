"""What registered memory holds before a run: random bytes that follow from the seed, so that no two
places look alike.
"""

import numpy as np

__all__ = ["initial"]


def initial(region, seed):
    """Bytes of a region before cycle 0, as a numpy array.

    The same region of the same seed always has the same bytes, whatever else the scenario holds.
    """
    name = int.from_bytes(region.name.encode(), "little")
    return np.random.default_rng([seed, region.node, name]).integers(
        0, 256, region.size, dtype=np.uint8
    )
