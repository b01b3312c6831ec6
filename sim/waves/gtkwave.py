"""The layout as a save file of GTKWave, and a filter file for each table of names."""

from itertools import groupby
from pathlib import Path

from vcd.gtkw import GTKWSave, make_translation_filter

from .layout import Group, Layout, Row

__all__ = ["FILTERS", "write"]

#: Folder of the filter files, beside the save file.
FILTERS = "names"
#: Width of the view.
_PIXELS = 1200


def write(layout: Layout, waves: Path, window: tuple[int, int]) -> Path:
    """Write the save file of a waveform file beside it; returns its path.

    Parameters
    ----------
    window
        First cycle and number of cycles that fill the view.
    """
    folder = waves.parent / FILTERS
    folder.mkdir(exist_ok=True)
    for (name, width), table in _tables(layout).items():
        text = make_translation_filter(list(table.items()), datafmt="hex", size=width)
        (folder / _filter(name, width)).write_text(text + "\n")
    place = waves.with_suffix(".gtkw")
    with place.open("w", encoding="utf-8") as file:
        save = GTKWSave(file)
        save.dumpfile(waves.name, abspath=False)
        save.savefile(place.name, abspath=False)
        save.timestart(window[0])
        save.zoom_markers(-float(max(window[1] // _PIXELS, 1).bit_length()))
        save.size(1600, 900)
        save.signals_width(360)
        save.sst_expanded(False)
        for node, groups in groupby(layout.groups, lambda group: group.node):
            with save.group(f"node {node}"):
                for block, parts in groupby(groups, lambda group: group.block):
                    with save.group(f"n{node} {block}", closed=True):
                        for part in parts:
                            _part(save, part)
    return place


def _part(save: GTKWSave, group: Group) -> None:
    save.blank(group.name)
    for row in group.rows:
        save.trace(
            _name(row),
            alias=f"{group.name}.{row.label}".replace(".", "/"),
            datafmt="hex" if row.enum else _format(row),
            translate_filter_file=f"{FILTERS}/{_filter(row.enum, row.width)}" if row.enum else None,
        )


def _name(row: Row) -> str:
    return row.path if row.width == 1 else f"{row.path}[{row.width - 1}:0]"


def _format(row: Row) -> str:
    """Addresses and keys in hexadecimal, numbers in decimal."""
    return "hex" if row.width > 32 or row.label.endswith("key") else "dec"


def _tables(layout: Layout) -> dict[tuple[str, int], dict[int, str]]:
    return {(row.enum, row.width): layout.enums[row.enum] for row in layout.rows if row.enum}


def _filter(name: str, width: int) -> str:
    return f"{name}_{width}.txt"
