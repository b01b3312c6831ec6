"""Scenario: one TOML file, its preset and the command line's overrides, as one frozen value.

`load()` reads and checks everything that can be known before a run; what it returns is consistent.
`resolved_toml()` writes it back with every key, so that a run directory needs no preset.
"""

import hashlib
import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hw.config import ConfigError, MemoryConfig, NicConfig, PcieConfig, Structure, WireConfig
from hw.timing import timing_words

from .paths import PATHS
from .plan import Plan, make_plan
from .preset import SECTIONS, load_preset, preset_names
from .schema import BadInput, Reader, show
from .sections import (
    CheckConfig,
    CpuConfig,
    Expect,
    Fault,
    GpuConfig,
    MemorySizes,
    NodesConfig,
    ProxyConfig,
    QueueConfig,
)
from .work import Operation, Region, Workload

__all__ = ["LISTS", "SCHEMA", "TABLES", "Scenario", "load", "loads"]

SCHEMA = "bellwire.scenario/1"
#: Tables, each with the classes that take its keys.
TABLES: dict[str, tuple[type, ...]] = {**SECTIONS, "check": (CheckConfig,)}
#: Lists of tables: key to class and field of `Scenario`.
LISTS: dict[str, tuple[type, str]] = {
    "region": (Region, "regions"),
    "workload": (Workload, "workloads"),
    "op": (Operation, "operations"),
    "fault": (Fault, "faults"),
    "expect": (Expect, "expects"),
}
_TOP = ("schema", "name", "preset", "seed", "paths")
#: Field of `Scenario` that holds each class.
_FIELDS: dict[type, str] = {
    NodesConfig: "nodes",
    GpuConfig: "gpu",
    CpuConfig: "cpu",
    ProxyConfig: "proxy",
    PcieConfig: "pcie",
    MemoryConfig: "memory",
    MemorySizes: "sizes",
    NicConfig: "nic",
    QueueConfig: "queues",
    WireConfig: "wire",
    CheckConfig: "check",
}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Everything that determines a run."""

    name: str
    preset: str
    seed: int
    paths: tuple[str, ...]
    nodes: NodesConfig
    gpu: GpuConfig
    cpu: CpuConfig
    proxy: ProxyConfig
    pcie: PcieConfig
    memory: MemoryConfig
    sizes: MemorySizes
    nic: NicConfig
    queues: QueueConfig
    wire: WireConfig
    check: CheckConfig
    regions: tuple[Region, ...] = ()
    workloads: tuple[Workload, ...] = ()
    operations: tuple[Operation, ...] = ()
    faults: tuple[Fault, ...] = ()
    expects: tuple[Expect, ...] = field(default=(), repr=False)

    @cached_property
    def plan(self) -> Plan:
        """Messages, regions and connections."""
        return make_plan(self)

    @cached_property
    def structure(self) -> Structure:
        """The smallest structure that all of it fits in; the default one wherever possible, so that
        binaries are shared.
        """
        default = Structure(ports=self.nodes.ports)
        qps = default.qps
        while qps < self.plan.qps_per_node:
            qps *= 2
        return default if qps == default.qps else replace(default, qps=qps)

    def timing_words(self, node: int, path: str) -> list[bytes]:
        """Configuration words that load the timing of one node for a path."""
        return timing_words(
            self.structure,
            self.pcie,
            self.memory,
            self.nic,
            self.wire,
            [fault.slot for fault in self.faults if fault.node == node],
            ack_every_packet=PATHS[path].ack_every_packet(self),
        )

    @property
    def structure_hash(self) -> str:
        """12 hex digits of what is elaborated."""
        return self.structure.hash

    @cached_property
    def timing_hash(self) -> str:
        """12 hex digits of everything else that determines the run, but name, seed and
        expectations.
        """
        text = replace(self, name="", seed=0, expects=()).resolved_toml()
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def run_name(self) -> str:
        """Name of the run directory."""
        return f"{self.name}-{self.structure_hash}-{self.timing_hash}-{self.seed}"

    def resolved_toml(self) -> str:
        """The scenario with every key in it; reading it gives an equal scenario."""
        lines = [
            f"schema = {show(SCHEMA)}",
            *(f"{key} = {show(getattr(self, key))}" for key in _TOP[1:]),
            "",
        ]
        for table, classes in TABLES.items():
            lines += [
                f"[{table}]",
                *(line for cls in classes for line in _lines(getattr(self, _FIELDS[cls]))),
                "",
            ]
        for table, (_, name) in LISTS.items():
            for entry in getattr(self, name):
                lines += [f"[[{table}]]", *_lines(entry), ""]
        return "\n".join(lines)


def _lines(section: Any) -> list[str]:
    lines = []
    for item in fields(section):
        value = getattr(section, item.name)
        if value is not None and value != ():
            key = item.metadata["check"].key if "check" in item.metadata else ""
            lines.append(f"{key or item.name} = {show(value)}")
    return lines


def load(file: str | Path, overrides: Iterable[str] = (), seed: int | None = None) -> Scenario:
    """Read a scenario file.

    Parameters
    ----------
    overrides
        `table.key=value` with the value in TOML; `workload.0.count=8` reaches into a list.
    seed
        Instead of the file's.

    Raises
    ------
    BadInput
    """
    file = Path(file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise BadInput(
            file, "file", str(file), f"allowed a readable text file ({reason})"
        ) from None
    return loads(text, file, overrides, seed)


def loads(
    text: str,
    file: str | Path = "scenario.toml",
    overrides: Iterable[str] = (),
    seed: int | None = None,
) -> Scenario:
    """Read a scenario from its text; `file` names it in errors and, by its stem, the run."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Beside what is no TOML: numbers of thousands of digits, and lists as deep.
        raise BadInput(file, "TOML", MISSING, f"{error}; allowed TOML 1.0") from None
    given: dict[str, str] = {}
    for override in overrides:
        given[_override(table, override)] = "--set"
    if seed is not None:
        table["seed"] = seed
        given["seed"] = "--seed"
    return _Loader(Reader(file, given), table, Path(file).stem).scenario()


def _override(table: dict[str, Any], override: str) -> str:
    """Put one `key=value` into `table`; returns the key."""
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key or not all(key.split(".")):
        raise BadInput("--set", override, MISSING, "allowed table.key=value")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    if set(parsed) != {"value"}:
        raise BadInput(
            "--set", key, text, 'allowed a TOML value, such as 8, 1.5, true, "text" or [8, 64]'
        )
    *parents, last = key.split(".")
    place: Any = table
    for depth, part in enumerate(parents):
        if isinstance(place, dict):
            place = place.setdefault(part, {})
        else:
            place = _entry(place, part, key, ".".join(parents[:depth]))
    if isinstance(place, dict):
        place[last] = parsed["value"]
    else:
        _entry(place, last, key, ".".join(parents))
        place[int(last)] = parsed["value"]
    return key


def _entry(place: Any, part: str, key: str, where: str) -> Any:
    if not isinstance(place, list):
        raise BadInput("--set", key, MISSING, f"{where} is no table; allowed table.key=value")
    if not part.isdecimal() or int(part) >= len(place):
        raise BadInput("--set", key, MISSING, f"allowed {where}.0 to {where}.{len(place) - 1}")
    return place[int(part)]


class _Loader:
    """Table to `Scenario`."""

    def __init__(self, reader: Reader, table: dict[str, Any], stem: str) -> None:
        self._reader, self._table, self._stem = reader, table, stem

    def scenario(self) -> Scenario:
        """Read all tables, then check what concerns several of them."""
        reader, table = self._reader, self._table
        reader.unknown(table, [*_TOP, *TABLES, *LISTS])
        if table.get("schema", MISSING) != SCHEMA:
            raise reader.bad("schema", table.get("schema", MISSING), f"allowed {show(SCHEMA)}")
        name = self._name()
        presets = preset_names()
        preset = table.get("preset", MISSING)
        if preset not in presets:
            raise reader.bad(
                "preset", preset, "allowed " + ", ".join(show(item) for item in presets)
            )
        values: dict[str, Any] = {
            "name": name,
            "preset": preset,
            "seed": self._seed(),
            "paths": self._paths(),
        }
        for section, classes in TABLES.items():
            given = reader.table(table, section)
            known = load_preset(preset).values(section)
            keys = [item.name for cls in classes for item in fields(cls)]
            for cls in classes:
                own = {item.name for item in fields(cls)}
                reader.unknown(given, keys, f"{section}.")
                values[_FIELDS[cls]] = reader.read(
                    cls,
                    {key: value for key, value in given.items() if key in own},
                    f"{section}.",
                    known,
                )
        defaults = {"peer": values["nodes"].count - 1}
        for section, (cls, attribute) in LISTS.items():
            values[attribute] = tuple(
                reader.read(cls, entry, f"{section}.{index}.", defaults)
                for index, entry in enumerate(reader.tables(table, section))
            )
        return self._consistent(Scenario(**values))

    def _name(self) -> str:
        name = self._table.get("name", self._stem)
        if (
            not isinstance(name, str)
            or not name
            or not all(c.isalnum() or c in "-_." for c in name)
            or name[0] in "-."
        ):
            key = "name" if "name" in self._table else "file"
            raise self._reader.bad(
                key, name, "allowed letters, digits, '-', '_' and '.', a letter or digit first"
            )
        return name

    def _seed(self) -> int:
        seed = self._table.get("seed", 1)
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 32:
            raise self._reader.bad("seed", seed, f"allowed 0 to {(1 << 32) - 1}; an integer")
        return seed

    def _paths(self) -> tuple[str, ...]:
        paths = self._table.get("paths", MISSING)
        allowed = "allowed a list of " + ", ".join(show(path) for path in PATHS) + ", each once"
        if not isinstance(paths, list) or not paths:
            raise self._reader.bad("paths", paths, allowed)
        for index, path in enumerate(paths):
            if path not in PATHS or path in paths[:index]:
                raise self._reader.bad(f"paths.{index}", path, allowed)
        return tuple(paths)

    def _consistent(self, scenario: Scenario) -> Scenario:
        bad = self._reader.bad
        if not scenario.workloads and not scenario.operations:
            raise bad(
                "workload", MISSING, "nothing to do; allowed at least one [[workload]] or [[op]]"
            )
        last = scenario.nodes.count - 1
        for section, (_, attribute) in LISTS.items():
            for index, entry in enumerate(getattr(scenario, attribute)):
                for key in ("node", "peer"):
                    if getattr(entry, key, 0) > last:
                        shown = "from" if section == "fault" else key
                        raise bad(
                            f"{section}.{index}.{shown}",
                            getattr(entry, key),
                            f"allowed 0 to {last}, the nodes there are",
                        )
        for section, entries in (("workload", scenario.workloads), ("op", scenario.operations)):
            for index, entry in enumerate(entries):
                if last and entry.node == entry.peer:
                    raise bad(
                        f"{section}.{index}.peer",
                        entry.peer,
                        f"allowed any node but {entry.node}, the one that issues",
                    )
        for index, fault in enumerate(scenario.faults):
            if fault.port >= scenario.nodes.ports:
                raise bad(f"fault.{index}.port", fault.port, "allowed 0, the only port there is")
        try:
            plan = scenario.plan
            self._measured(scenario)
            for node in range(scenario.nodes.count):
                scenario.timing_words(node, scenario.paths[0])
        except ConfigError as error:
            raise bad(self._full(error.field), error.value, error.allowed) from None
        assert plan.messages
        return scenario

    @staticmethod
    def _measured(scenario: Scenario) -> None:
        """Every expectation has something that it is about."""
        sizes = {group.size for group in scenario.plan.groups}
        for index, expect in enumerate(scenario.expects):
            if expect.path is not None and expect.path not in scenario.paths:
                raise ConfigError(
                    f"expect.{index}.path",
                    expect.path,
                    "allowed " + ", ".join(map(show, scenario.paths)),
                )
            if expect.size is not None and expect.size not in sizes:
                raise ConfigError(
                    f"expect.{index}.size",
                    expect.size,
                    "allowed " + ", ".join(map(str, sorted(sizes))),
                )
            last = len(scenario.plan.groups) - 1
            if expect.group is not None and expect.group > last:
                raise ConfigError(
                    f"expect.{index}.group",
                    expect.group,
                    f"allowed 0 to {last}, the groups there are",
                )

    @staticmethod
    def _full(key: str) -> str:
        """The full key of a field of `hw.config` that only `timing_words` complained about."""
        if "." in key:
            return key
        for section, classes in TABLES.items():
            if any(item.name == key for cls in classes for item in fields(cls)):
                return f"{section}.{key}"
        return "fault" if key == "faults" else key
