"""What the command line asks of waveforms: cycles, blocks, form."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hw.config import Structure

from ..schema import BadInput

__all__ = ["EVERYTHING", "FOREVER", "WaveRequest", "parse", "window_of"]

#: Last cycle of a window without end.
FOREVER = (1 << 64) - 1
#: Scope that leaves nothing out.
EVERYTHING = "all"


@dataclass(frozen=True, kw_only=True)
class WaveRequest:
    """Which cycles and which signals are dumped."""

    #: First and last cycle.
    first: int = 0
    last: int = FOREVER
    #: Numbers of nodes; none: all of them.
    nodes: tuple[int, ...] = ()
    #: Paths of blocks (`nic.wire`), with all below them; none: what is shown by default.
    blocks: tuple[str, ...] = ()
    #: Every signal that has a name.
    everything: bool = False
    #: `fst` or `vcd`; empty: FST where it can be had.
    form: str = ""
    #: First and last cycle of each path that is dumped, where they have their own.
    by_path: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def window(self, path: str) -> tuple[int, int] | None:
        """First and last cycle of a path; None: it is not dumped."""
        return self.by_path.get(path) if self.by_path else (self.first, self.last)


def window_of(text: str, option: str) -> tuple[int, int]:
    """First and last cycle of `FROM:TO`; either may be left out."""
    first, colon, last = text.partition(":")
    numbers = [part for part in (first, last) if part]
    if colon and all(part.isascii() and part.isdecimal() for part in numbers):
        start, end = int(first or 0), int(last) if last else FOREVER
        if start <= end <= FOREVER:
            return start, end
    allowed = "allowed FROM:TO in cycles, FROM up to TO; either may be left out"
    raise BadInput("bellwire", option, text, allowed)


def parse(
    window: str, scope: str, form: str, structure: Structure, nodes: int, option: str = "--waves"
) -> WaveRequest:
    """A request from its words.

    Parameters
    ----------
    window
        `FROM:TO` in cycles.
    scope
        Comma-separated names of blocks and nodes (`n0`), or `all`; empty: the default.
    option
        Names the window in an error.

    Raises
    ------
    BadInput
    """
    first, last = window_of(window, option)
    words = [word.strip() for word in scope.split(",")] if scope else []
    numbers = {f"n{number}": number for number in range(nodes)}
    paths = _paths(structure) if set(words) - {EVERYTHING, *numbers} else {}
    for word in words:
        if word not in numbers and word != EVERYTHING and word not in paths:
            raise BadInput(
                "bellwire",
                "--scope",
                scope,
                f"no {word or 'name'!r}; allowed "
                + ", ".join((EVERYTHING, *numbers, *_paths(structure))),
            )
    if EVERYTHING in words and set(words) & set(paths):
        raise BadInput("bellwire", "--scope", scope, f"allowed {EVERYTHING}, or names of blocks")
    return WaveRequest(
        first=first,
        last=last,
        nodes=tuple(sorted({numbers[word] for word in words if word in numbers})),
        blocks=tuple(path for name, path in paths.items() if name in words),
        everything=EVERYTHING in words,
        form=form,
    )


def _paths(structure: Structure) -> dict[str, str]:
    """Path of each block by its name, which is the path's last part."""
    from hw.node import Node

    return {path.rpartition(".")[2]: path for path in Node(structure).blocks}
