"""What a built model calls its signals: read from its Verilog and from what the converter kept.

The Verilog has every wire with its width and, where it is an enumeration, the names of its values;
`names.json` has the name of each member of each block, and the states of state machines.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Catalog", "Wire"]

_MODULE = re.compile(r"^module \\?([\w.$]+) ?\(")
_VALUE = re.compile(r'^  \(\* enum_value_([01]+) = "(\w+)" \*\)$')
_BASE = re.compile(r'^  \(\* enum_base_type = "(\w+)" \*\)$')
_WIRE = re.compile(r"^  (?:wire|reg) (?:signed )?(?:\[(\d+):0\] )?\\?([^\s\[;]+) *(?:=.*)?;$")


@dataclass(frozen=True)
class Wire:
    """A signal of a module."""

    name: str
    width: int
    #: Name of its values' table in `Catalog.enums`; empty: a number.
    enum: str = ""


@dataclass(frozen=True)
class Catalog:
    """Signals by the path of their module (`node.nic.wire`)."""

    wires: Mapping[str, Mapping[str, Wire]]
    #: Path of a block to {member: signal}, `rings.payload` to `rings__payload`.
    members: Mapping[str, Mapping[str, str]]
    #: Path of a module to its state machines: the signals that hold a state.
    states: Mapping[str, tuple[str, ...]]
    #: Name of a table to {value: name}.
    enums: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> "Catalog":
        """The catalog of the model in the folder of a build."""
        names = json.loads((folder / "names.json").read_text())
        return cls.parse((folder / "node.v").read_text(), names)

    @classmethod
    def parse(cls, verilog: str, names: Mapping[str, Any]) -> "Catalog":
        """The catalog of what `hw.elaborate.convert` made."""
        wires: dict[str, dict[str, Wire]] = {}
        tables: dict[str, dict[int, str]] = {}
        here: dict[str, Wire] = {}
        base, values = "", {}
        for line in verilog.splitlines():
            if found := _WIRE.match(line):
                enum = _table(tables, base or found[2], values) if values else ""
                here[found[2]] = Wire(found[2], int(found[1] or 0) + 1, enum)
                base, values = "", {}
            elif found := _VALUE.match(line):
                values[int(found[1], 2)] = found[2]
            elif found := _BASE.match(line):
                base = found[1]
            elif found := _MODULE.match(line):
                here = wires.setdefault(found[1], {})
        for path, machines in names["states"].items():
            for name, states in machines.items():
                values = {int(number): text for number, text in states.items()}
                here, width = wires[path], wires[path][name].width
                here[name] = Wire(name, width, _table(tables, f"{path}.{name}", values))
        machines = {path: tuple(table) for path, table in names["states"].items()}
        return cls(wires, names["members"], machines, tables)


def _table(tables: dict[str, dict[int, str]], name: str, values: dict[int, str]) -> str:
    """Name of the table with these values; the second of a name gets a number."""
    number, chosen = 1, name
    while tables.setdefault(chosen, values) != values:
        number += 1
        chosen = f"{name}_{number}"
    return chosen
