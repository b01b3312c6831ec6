"""Docs printed from the code: `docs/formats.md`, `docs/assumptions.md`, and the tables of README.

Formats come from the layouts in `hw/formats`, with the `#:` comments of their source. Assumptions
come from the presets, from the defaults of the configuration, and from `docs/assumptions.toml`,
which holds what is no constant. The tables of README come from a run of the main job.
`python -m sim.docs` writes all of them; `--check` names what is stale of the first two.
"""

import argparse
import ast
import enum
import importlib
import inspect
import io
import sys
import tempfile
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import data

from hw import config
from hw.config import Structure
from hw.formats import events
from hw.formats.layout import NetworkLayout

from . import closed_form
from .explain import explain_text
from .preset import SECTIONS, Preset, load_preset, preset_names
from .progress import Progress
from .report.tables import compare_table, segment_table
from .run import RunOptions, execute
from .scenario import load
from .schema import show

__all__ = ["assumptions_text", "comments", "formats_text", "main", "readme_text", "render"]

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_TABLE, _TABLE_END = "<!-- main-job table -->", "<!-- end of table -->"
#: Modules of hw/formats in the order in which a message meets them.
MODULES = ("command", "mlx5", "op", "dma", "tlp", "roce", "ethernet", "context", "events")
_HEAD = "<!-- Printed by `make docs`; edit the source instead. -->"

#: Unit of a key by how its name ends; the longest that fits counts.
_UNITS = {
    "_ns_per_16b": "ns / 16 B",
    "_ns_per_m": "ns / m",
    "_ns": "ns",
    "_gbps": "Gb/s",
    "_mops": "M/s",
    "_bytes": "B",
    "_m": "m",
    "_count": "nodes",
    "_hops": "switches",
}


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
    ]


# Source ---------------------------------------------------------------------------------------


def _lines_of_comments(source: str, marker: str) -> dict[int, str]:
    """Line number to text of each comment that stands alone on its line and starts so."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        alone = not token.line[: token.start[1]].strip()
        if token.type == tokenize.COMMENT and alone and token.string.startswith(marker):
            found[token.start[0]] = token.string[len(marker) :].strip()
    return found


def _above(texts: dict[int, str], line: int) -> str:
    """The comment right above a line."""
    first = line
    while first - 1 in texts:
        first -= 1
    return " ".join(texts[number] for number in range(first, line))


def comments(module: ModuleType) -> dict[str, str]:
    """The `#:` comments of a module: of its names, and of members as `Class.member`."""
    source = inspect.getsource(module)
    texts = _lines_of_comments(source, "#:")
    found = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            names: list[ast.expr] = []
            if isinstance(node, ast.AnnAssign):
                names = [node.target]
            elif isinstance(node, ast.Assign):
                names = node.targets
            for name in names:
                text = _above(texts, node.lineno)
                if isinstance(name, ast.Name) and text:
                    found[prefix + name.id] = text

    visit(ast.parse(source).body, "")
    return found


# Formats --------------------------------------------------------------------------------------


def _bits(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}:{last}"


def _type(shape: object) -> str:
    """Name of a field's shape, where it has one."""
    if isinstance(shape, NetworkLayout):
        return f"[{shape.name}](#{shape.name.lower()})"
    if isinstance(shape, type):
        return f"[{shape.__name__}](#{shape.__name__.lower()})"
    return ""


def _meaning(name: str, field: data.Field, comment: str) -> str:
    if name.startswith("_"):
        return f"reserved; {comment[0].lower()}{comment[1:]}" if comment else "reserved"
    return " ".join(part for part in (_type(field.shape), comment) if part)


def _network_rows(layout: NetworkLayout, told: dict[str, str]) -> Iterator[Sequence[object]]:
    """Rows in the order of bytes; bits are those of the bytes read as one big-endian number."""
    total = layout.size
    for name in layout.members_in_order:
        field = layout[name]
        top = total - field.offset - field.width
        first, last = top // 8, (top + field.width - 1) // 8
        low = 8 * (last + 1) - top - field.width
        place = str(first) if first == last else f"{first} to {last}"
        comment = told.get(f"{layout.name}.{name}", "")
        yield (
            place,
            _bits(low + field.width - 1, low),
            "" if name.startswith("_") else name,
            field.width,
            _meaning(name, field, comment),
        )


def _struct_rows(cls: type, told: dict[str, str]) -> Iterator[Sequence[object]]:
    layout: Any = data.Layout.cast(cls)
    for name, field in layout:
        comment = told.get(f"{cls.__name__}.{name}", "")
        yield (
            _bits(field.offset + field.width - 1, field.offset),
            name,
            field.width,
            _meaning(str(name), field, comment),
        )


def _format(name: str, value: Any, told: dict[str, str]) -> list[str]:
    """The section of one exported name; empty if it is no format."""
    doc = inspect.cleandoc(value.doc or "") if isinstance(value, NetworkLayout) else ""
    if isinstance(value, type) and value.__doc__ and "__doc__" in vars(value):
        doc = inspect.cleandoc(value.__doc__)
    head = [f"### {name}", "", *([doc, ""] if doc else [])]
    if isinstance(value, NetworkLayout):
        size = f"{value.size // 8} bytes, network byte order."
        rows = _network_rows(value, told)
        return [*head, size, "", *_table(("byte", "bits", "field", "width", "meaning"), rows)]
    if isinstance(value, type) and issubclass(value, enum.Enum):
        width = Shape.cast(value).width
        digits = -(-width // 4)
        rows = [
            (f"0x{member.value:0{digits}x}", member.name, told.get(f"{name}.{member.name}", ""))
            for member in value
        ]
        return [*head, f"{width} bits.", "", *_table(("value", "name", "meaning"), rows)]
    if isinstance(value, type) and issubclass(value, data.Struct):
        size = f"{data.Layout.cast(value).size} bits."
        rows = _struct_rows(value, told)
        return [*head, size, "", *_table(("bits", "field", "width", "meaning"), rows)]
    return []


def _constants(module: ModuleType) -> list[str]:
    told = comments(module)
    values = {name: vars(module)[name] for name in _in_order(module, ast.Assign)}
    numbers = {name: value for name, value in values.items() if type(value) is int}
    if not numbers:
        return []
    rows = [(name, f"{value} (0x{value:x})", told.get(name, "")) for name, value in numbers.items()]
    return ["### Constants", "", *_table(("name", "value", "meaning"), rows)]


def _in_order(module: ModuleType, kind: type) -> list[str]:
    """Exported names of classes or constants in the order of the source."""
    names = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, kind):
            targets = node.targets if isinstance(node, ast.Assign) else [node]
            names += [getattr(target, "name", getattr(target, "id", "")) for target in targets]
    return [name for name in names if name in module.__all__]


def _kinds() -> list[str]:
    rows = [
        (kind.value, kind.name, f"[{layout.__name__}](#{layout.__name__.lower()})")
        for kind, layout in events.EVENTS.items()
    ]
    text = "A record of the log is 32 bytes: cycle (8), node (2), kind (2), payload (20)."
    return ["### Kinds and their payload", "", text, "", *_table(("kind", "name", "payload"), rows)]


def formats_text() -> str:
    """`docs/formats.md`."""
    lines = [
        "# Formats",
        "",
        _HEAD,
        "",
        "Every format is declared once, in `hw/formats`; the RTL uses it as a shape and Python",
        "packs bytes by it (`hw.formats.layout.Codec`). Formats in network byte order have a byte",
        "column: bits are those of the named bytes, read as one big-endian number. All others are",
        "registers and beats of the machine, bit 0 first.",
        "",
    ]
    modules = [importlib.import_module(f"hw.formats.{name}") for name in MODULES]
    for module in modules:
        lines.append(f"- [{module.__name__.split('.')[-1]}](#{module.__name__.split('.')[-1]})")
    for module in modules:
        told = comments(module)
        doc = inspect.cleandoc(module.__doc__ or "")
        lines += ["", f"## {module.__name__.split('.')[-1]}", "", doc, ""]
        lines += _constants(module)
        lines += _kinds() if module is events else []
        for name in _in_order(module, ast.ClassDef):
            lines += _format(name, vars(module)[name], told)
    return "\n".join(lines).rstrip() + "\n"


# Assumptions ----------------------------------------------------------------------------------


def _unit(key: str) -> str:
    ends = [end for end in _UNITS if f"_{key}".endswith(end)]
    if not ends:
        raise ValueError(f"{key}: its name does not end with a unit ({', '.join(_UNITS)})")
    return _UNITS[max(ends, key=len)]


def _preset(preset: Preset) -> list[str]:
    rows = []
    for section, table in preset.constants.items():
        for key, constant in table.items():
            low, high = constant.range
            rows.append(
                (
                    f"`{section}.{key}`",
                    f"{constant.value:g}",
                    _unit(key),
                    constant.kind,
                    f"{low:g} to {high:g}",
                    constant.source,
                    constant.note,
                    constant.free,
                )
            )
    groups = [(group, ", ".join(f"`{key}`" for key in keys)) for group, keys in preset.free.items()]
    head = ("key", "value", "unit", "class", "range", "source", "note", "free group")
    return [
        f"## Constants of `{preset.name}`",
        "",
        f"{preset.platform}.",
        "",
        *_table(head, rows),
        f"Free constants, {len(groups)} of at most 8 (no source fixes them alone):",
        "",
        *_table(("group", "keys that share it"), groups),
        "Sources:",
        "",
        *_table(("tag", "source"), preset.sources.items()),
    ]


def _defaults() -> dict[str, Any]:
    """Keys that some preset leaves alone, with their defaults."""
    given = set.intersection(
        *(
            {f"{section}.{key}" for section, table in preset.constants.items() for key in table}
            for preset in map(load_preset, preset_names())
        )
    )
    return {
        key: field.default
        for section, classes in SECTIONS.items()
        for cls in classes
        for field in fields(cls)
        if (key := f"{section}.{field.name}") not in given and field.default is not MISSING
    }


def _explained(key: str) -> str:
    """What `bellwire explain` says of a key, without its type and bounds."""
    return explain_text(key).splitlines()[0].removeprefix(f"{key}: ").rpartition(" (")[0]


def _choices(table: dict[str, dict[str, str]]) -> list[str]:
    defaults = _defaults()
    if missing := defaults.keys() ^ table.keys():
        names = ", ".join(sorted(missing))
        raise ValueError(f"docs/assumptions.toml: [choice] and the defaults differ in {names}")
    rows = [
        (f"`{key}`", show(value), table[key].get("unit", ""), _explained(key), table[key]["why"])
        for key, value in defaults.items()
    ]
    return [
        "## Choices of the model",
        "",
        "Keys that a preset leaves alone; a scenario may set them.",
        "",
        *_table(("key", "default", "unit", "meaning", "why this value"), rows),
    ]


def _structure() -> list[str]:
    told = comments(config)
    rows = [
        (f"`{field.name}`", show(field.default), told.get(f"Structure.{field.name}", ""))
        for field in fields(Structure)
    ]
    text = "Maxima that are elaborated. They bound the depths in force and cost no time."
    return ["## Structure", "", text, "", *_table(("field", "default", "meaning"), rows)]


def _pipeline() -> list[str]:
    """Cycles that a block takes whatever the constants are, with the comments above them."""
    source = inspect.getsource(closed_form)
    texts = _lines_of_comments(source, "#")
    places = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and key.value in closed_form.PIPELINE_CYCLES:
                    places[key.value] = _above(texts, key.lineno)
    rows, told = [], ""
    for place, count in closed_form.PIPELINE_CYCLES.items():
        told = places.get(place) or told
        rows.append((place, count, told))
    text = (
        "Cycles that a block takes beside the constants, as its docstring states them under "
        "Timing. They are ours, not the vendor's: a few nanoseconds of each segment."
    )
    return ["## Pipeline", "", text, "", *_table(("place", "cycles", "where from"), rows)]


def _simplifications(entries: Sequence[dict[str, str]]) -> list[str]:
    rows = [(entry["is"], entry["effect"], entry["where"]) for entry in entries]
    return [
        "## How the model is simpler than the machine",
        "",
        *_table(("in the model", "how wrong that may be", "where"), rows),
    ]


def assumptions_text() -> str:
    """`docs/assumptions.md`; raises `ValueError` where `docs/assumptions.toml` lacks a row."""
    kept = tomllib.loads((DOCS / "assumptions.toml").read_text())
    lines = [
        "# Assumptions",
        "",
        _HEAD,
        "",
        "One row for each number and for each way in which the model is simpler than the machine.",
        "A constant's class: *measured* was published as measured; *derived* is arithmetic on",
        "such; *second-hand* is quoted; *assumed* was chosen, with a reason. The range is what is",
        "plausible: its ends say how wrong the value may be.",
        "",
    ]
    for name in preset_names():
        lines += _preset(load_preset(name))
    lines += _choices(kept["choice"])
    lines += _simplifications(kept["simplification"])
    lines += _pipeline()
    lines += _structure()
    return "\n".join(lines).rstrip() + "\n"


# Command --------------------------------------------------------------------------------------


def render() -> dict[Path, str]:
    """Every generated file, with its text."""
    return {DOCS / "formats.md": formats_text(), DOCS / "assumptions.md": assumptions_text()}


def readme_text() -> str:
    """README.md with the tables of the main job, which is run for it."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = load(ROOT / "scenarios" / "main-job.toml")
        options = RunOptions(out=Path(folder) / "run")
        result = execute(scenario, options, Progress(io.StringIO())).result
    tables = f"{compare_table(result)}\n\n{segment_table(result)}"
    before, _, rest = (ROOT / "README.md").read_text().partition(_TABLE)
    _, end, after = rest.partition(_TABLE_END)
    assert end, f"README.md has no {_TABLE} ... {_TABLE_END}"
    return f"{before}{_TABLE}\n```\n{tables.strip()}\n```\n{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or (`--check`) name those that are stale; 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m sim.docs", allow_abbrev=False)
    parser.add_argument("--check", action="store_true", help="write nothing, name what is stale")
    check = parser.parse_args(arguments).check
    stale = [
        (path, text)
        for path, text in render().items()
        if not path.exists() or path.read_text() != text
    ]
    if not check:
        stale.append((ROOT / "README.md", readme_text()))
    for path, text in stale:
        if check:
            print(f"docs/{path.name} is stale: make docs", file=sys.stderr)
        else:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)} written")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
