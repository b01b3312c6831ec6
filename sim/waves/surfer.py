"""The layout as a command file of Surfer, and a mapping for each table of names.

Surfer's state files follow its internals from version to version; its command files do not.
"""

from pathlib import Path

from .layout import Layout, Row

__all__ = ["MAPPINGS", "write"]

#: Where Surfer looks for mappings, from the folder in which it was started.
MAPPINGS = ".surfer/mappings"
#: Surfer writes places with hexadecimal digits from a to p.
_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")


def write(layout: Layout, waves: Path) -> Path:
    """Write the command file of a waveform file beside it; returns its path."""
    folder = waves.parent / MAPPINGS
    folder.mkdir(parents=True, exist_ok=True)
    for name, width in sorted({(row.enum, row.width) for row in layout.rows if row.enum}):
        lines = [f"Name = {_mapping(name, width)}", f"Bits = {width}"]
        lines += [f"{value} {text}" for value, text in layout.enums[name].items()]
        (folder / f"{_mapping(name, width)}.txt").write_text("\n".join(lines) + "\n")
    place = waves.with_suffix(".sucl")
    place.write_text("\n".join(_commands(layout)) + "\n", encoding="utf-8")
    return place


def _commands(layout: Layout) -> list[str]:
    """One command a line: a divider for each group, a variable for each row, then the formats.

    A format goes to the item that has the focus, which is named by its place among all.
    """
    lines: list[str] = []
    named: list[tuple[int, Row]] = []
    for group in layout.groups:
        lines.append(f"divider_add n{group.node}.{group.block}.{group.name}")
        for row in group.rows:
            if row.enum:
                named.append((len(lines), row))
            lines.append(f"variable_add {row.path}")
    digits = len(f"{len(lines):x}")
    for place, row in named:
        letters = f"{place:0{digits}x}".translate(_LETTERS)
        lines += [
            f"item_focus {letters}_{row.path}",
            f"item_set_format {_mapping(row.enum, row.width)}",
        ]
    return [*lines, "item_unfocus", "zoom_fit"]


def _mapping(name: str, width: int) -> str:
    return f"{name}_{width}"
