"""The waveform file of each path of a run, with the files that viewers read beside it."""

from dataclasses import dataclass
from pathlib import Path

from hw.config import Structure

from . import gtkwave, surfer
from .catalog import Catalog
from .layout import Layout, layout
from .request import WaveRequest

__all__ = ["Dump", "prepare"]


@dataclass(frozen=True)
class Dump:
    """What is dumped of a run, and in which form."""

    request: WaveRequest
    #: `fst` or `vcd`.
    form: str
    layout: Layout

    @property
    def file(self) -> str:
        """Name of the file in the working directory of a path."""
        return f"waves.{self.form}"

    def collect(
        self, path: str, work: Path, place: Path, window: tuple[int, int], cycles: int
    ) -> str:
        """Put the file of a path to its place, with its layouts.

        Parameters
        ----------
        cycles
            How many the run had.

        Returns
        -------
        str
            Why there is none; empty if there is.
        """
        made = work / self.file
        first, last = window
        if not made.exists() or not made.stat().st_size:
            if first >= cycles:
                return f"path {path} ended in cycle {cycles}, before the window from {first} on"
            return f"path {path} left no waveforms ({self.file})"
        made.rename(place)
        gtkwave.write(self.layout, place, (first, min(last, cycles) - first + 1))
        surfer.write(self.layout, place)
        return ""


def prepare(
    request: WaveRequest, form: str, structure: Structure, nodes: int, binary: Path
) -> Dump:
    """The dump of a request by a model that was built with waveforms."""
    return Dump(request, form, layout(request, structure, nodes, Catalog.load(binary.parent)))
