"""What a person sees while a run takes its time: phases with their times, and progress with an ETA
on a terminal.

Everything goes to one stream (stderr, so that stdout holds the result alone). Not on a terminal:
one plain line per phase, and one per quarter of a long phase.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["Progress"]

_REDRAW_S = 0.2


class Progress:
    """Prints phases; `step` and `build` may be called as often as one likes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live = stream, stream.isatty()
        self._name, self._start, self._drawn, self._quarter = "", 0.0, 0.0, 0
        self._width = 0
        #: (phase, seconds), in the order of their ends.
        self.times: list[tuple[str, float]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Around one phase."""
        self._name, self._start, self._drawn, self._quarter = name, time.monotonic(), 0.0, 0
        self._draw(name)
        yield
        self.ended(name, time.monotonic() - self._start)

    def ended(self, name: str, seconds: float) -> None:
        """A phase took so long."""
        self.times.append((name, seconds))
        self._line(f"{name:<28} {seconds:6.1f} s")

    def build(self, name: str, seconds: float | None) -> None:
        """For `sim.build.build`: a phase of the build starts (None) or ended."""
        if seconds is None:
            self._draw(f"build: {name}")
        else:
            self.ended(f"build: {name}", seconds)

    def step(self, done: int, total: int, note: str = "") -> None:
        """So much of the present phase is done."""
        now = time.monotonic()
        spent = now - self._start
        share = done / total if total else 0.0
        eta = f", {spent / share - spent:.0f} s to go" if 0 < share < 1 else ""
        text = f"{self._name}: {done}/{total}{f', {note}' if note else ''}{eta}"
        if self._live:
            if now - self._drawn >= _REDRAW_S:
                self._drawn = now
                self._draw(text)
        elif int(4 * share) > self._quarter and share < 1:
            self._quarter = int(4 * share)
            self._line(text)

    def _draw(self, text: str) -> None:
        if self._live:
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._width = len(text)

    def _line(self, text: str) -> None:
        self._stream.write(("\r" + text.ljust(self._width) if self._live else text) + "\n")
        self._stream.flush()
        self._width = 0
