"""The NIC's DMA engines: reads that come back in order, and writes cut into TLPs."""

from .dma_read import DmaRead
from .dma_write import DmaWrite

__all__ = ["DmaRead", "DmaWrite"]
