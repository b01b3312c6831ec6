"""Waveforms as the tests read them: cycle by cycle."""

import re
from bisect import bisect_right

from vcdvcd import VCDVCD

__all__ = ["Waves", "declared"]

_VAR = re.compile(r"^\s*\$var wire (\d+) (\S+) (\S+)(?: \[(\d+):0\])? \$end$")


def declared(file):
    """{path: width} of the signals in a VCD's head, and its identifiers, without a library."""
    scopes, signals, codes = [], {}, set()
    with file.open() as lines:
        for line in lines:
            words = line.split()
            if words[:1] == ["$scope"]:
                scopes.append(words[2])
            elif words[:1] == ["$upscope"]:
                scopes.pop()
            elif found := _VAR.match(line):
                signals[".".join([*scopes, found[3]])] = int(found[1])
                codes.add(found[2])
            elif words[:1] == ["$enddefinitions"]:
                break
        return signals, codes


class Waves:
    """A VCD file.

    Parameters
    ----------
    file : Path
    """

    def __init__(self, file):
        self._data = VCDVCD(str(file))
        self._by_path = {name.partition("[")[0]: name for name in self._data.references_to_ids}
        self._changes = {}

    @property
    def first(self):
        """First cycle."""
        return self._data.begintime

    @property
    def last(self):
        """Last cycle."""
        return self._data.endtime

    def changes(self, path):
        """(cycle, value) of each change of a signal."""
        times, values = self._of(path)
        return [
            (time, value)
            for place, (time, value) in enumerate(zip(times, values, strict=True))
            if place == 0 or value != values[place - 1]
        ]

    def at(self, path, cycle):
        """Value of a signal in a cycle."""
        times, values = self._of(path)
        return values[bisect_right(times, cycle) - 1]

    def events(self, path, member):
        """Each cycle in which `<member>__valid` of a block holds, with the payload's fields."""
        times, values = self._of(f"{path}.{member}__valid")
        prefix = f"{path}.{member}__payload__"
        fields = [name for name in self._by_path if name.startswith(prefix)]
        ends = [*times[1:], self.last + 1]
        for start, end, value in zip(times, ends, values, strict=True):
            for cycle in range(start, end) if value else ():
                yield {"cycle": cycle} | {
                    name.removeprefix(prefix): self.at(name, cycle) for name in fields
                }

    def _of(self, path):
        if path not in self._changes:
            changes = [(t, v) for t, v in self._data[self._by_path[path]].tv if t <= self.last]
            self._changes[path] = (
                [time for time, _ in changes],
                [int(value, 2) for _, value in changes],
            )
        return self._changes[path]
