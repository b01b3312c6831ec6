"""Reads signals of a VCD file, word by word, so that only what is wanted is held.

Where lines end does not matter: tools put values behind the time, or a declaration on several
lines. For pictures alone: all judgement is on the event log.
"""

from collections.abc import Collection, Iterator
from pathlib import Path

__all__ = ["read"]


def read(file: Path, wanted: Collection[str]) -> dict[str, list[tuple[int, int]]]:
    """(time, value) of each change of some signals, by their path.

    A signal that is not in the file is not in the answer; bits that are not 1 read as 0.

    Raises
    ------
    ValueError
        If a time, a value or the end of a declaration is missing.
    """
    with file.open(encoding="ascii", errors="replace") as stream:
        words = (word for line in stream for word in line.split())
        try:
            paths = _declarations(words, wanted)
            return _changes(words, paths)
        except (StopIteration, ValueError) as error:
            raise ValueError(
                f"{file}: no VCD that can be read ({error or 'it ends early'})"
            ) from None


def _declarations(words: Iterator[str], wanted: Collection[str]) -> dict[str, list[str]]:
    """Paths of the wanted signals by their code."""
    scopes: list[str] = []
    paths: dict[str, list[str]] = {}
    while (word := next(words)) != "$enddefinitions":
        parts = [word]
        while parts[-1] != "$end":
            parts.append(next(words))
        if word == "$scope":
            scopes.append(parts[2])
        elif word == "$upscope":
            scopes.pop()
        elif word == "$var":
            # Kind, bits, code, name; the range may be a word of its own or hang on the name.
            path = ".".join((*scopes, parts[4].partition("[")[0]))
            if path in wanted:
                paths.setdefault(parts[3], []).append(path)
    return paths


def _changes(words: Iterator[str], paths: dict[str, list[str]]) -> dict[str, list[tuple[int, int]]]:
    changes: dict[str, list[tuple[int, int]]] = {path: [] for all in paths.values() for path in all}
    time = 0
    for word in words:
        head = word[0]
        if head == "#":
            time = int(word[1:])
        elif head in "bB":
            bits = "".join("1" if bit == "1" else "0" for bit in word[1:])
            for path in paths.get(next(words), ()):
                changes[path].append((time, int(bits, 2)))
        elif head in "rRsS":
            next(words)
        elif head in "01xXzZ":
            for path in paths.get(word[1:], ()):
                changes[path].append((time, int(head == "1")))
        elif head != "$":
            raise ValueError(f"{word!r} is no change")
    return changes
