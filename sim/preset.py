"""Presets: a platform's constants, each with its value, source, class and range."""

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from hw.config import MemoryConfig, NicConfig, PcieConfig, WireConfig

from .schema import BadInput, Checked, Reader, choice, sequence, text
from .sections import CpuConfig, GpuConfig, MemorySizes, NodesConfig, ProxyConfig, QueueConfig

__all__ = ["CLASSES", "PRESETS", "SECTIONS", "Constant", "Preset", "load_preset", "preset_names"]

PRESETS = Path(__file__).resolve().parent / "presets"
SCHEMA = "bellwire.preset/1"
#: measured: published as measured. derived: arithmetic on such. second-hand: quoted. assumed:
#: chosen, with a reason.
CLASSES = ("measured", "derived", "second-hand", "assumed")
#: Tables of a scenario whose keys a preset may set, each with the classes that take them.
SECTIONS: dict[str, tuple[type, ...]] = {
    "nodes": (NodesConfig,),
    "gpu": (GpuConfig,),
    "cpu": (CpuConfig,),
    "proxy": (ProxyConfig,),
    "pcie": (PcieConfig,),
    "memory": (MemoryConfig, MemorySizes),
    "nic": (NicConfig, QueueConfig),
    "wire": (WireConfig,),
}


@dataclass(frozen=True, kw_only=True)
class Constant(Checked):
    """One constant of a platform."""

    value: int | float
    source: str = text("Where the value comes from.")
    kind: str = choice("How good it is.", *CLASSES, key="class")
    range: tuple[float, ...] = sequence("[lowest, highest] that is plausible.", -1e12, 1e12, (2, 2))
    note: str = text("What it means, and how it was got.")
    #: Constants of one group are one free constant; empty: fixed by its source alone.
    free: str = text("Group of free constants.", "")


@dataclass(frozen=True)
class Preset:
    """All constants of one platform."""

    name: str
    platform: str
    #: Tag to citation.
    sources: dict[str, str]
    constants: dict[str, dict[str, Constant]]

    def values(self, section: str) -> dict[str, Any]:
        """Values of one table."""
        return {key: constant.value for key, constant in self.constants.get(section, {}).items()}

    @property
    def free(self) -> dict[str, list[str]]:
        """Free constants: group to the keys that share it."""
        groups: dict[str, list[str]] = {}
        for section, table in self.constants.items():
            for key, constant in table.items():
                if constant.free:
                    groups.setdefault(constant.free, []).append(f"{section}.{key}")
        return groups


def preset_names() -> list[str]:
    """Names of the presets that are shipped."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


@cache
def load_preset(name: str, folder: Path = PRESETS) -> Preset:
    """Read a preset; raises `BadInput`."""
    path = folder / f"{name}.toml"
    try:
        table = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise BadInput(path.name, "TOML", str(error), "allowed TOML 1.0") from None
    reader = Reader(path.name)
    reader.unknown(table, ["schema", "platform", "sources", *SECTIONS])
    if table.get("schema") != SCHEMA:
        raise reader.bad("schema", table.get("schema", ""), f'allowed "{SCHEMA}"')
    constants: dict[str, dict[str, Constant]] = {}
    for section, classes in SECTIONS.items():
        keys = [field.name for cls in classes for field in fields(cls)]
        given = reader.table(table, section)
        reader.unknown(given, keys, f"{section}.")
        constants[section] = {
            key: reader.read(Constant, reader.table(given, key), f"{section}.{key}.")
            for key in given
        }
    return Preset(name, str(table.get("platform", "")), reader.table(table, "sources"), constants)
