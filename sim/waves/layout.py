"""Which signals are shown, and in which order: the way that a message takes.

Of each block in `hw.node.Node.blocks`: what it reports (events, each with its fields), what it
sends (streams, field by field), its state machines, and the vendor's formats that it shows. Wide
data is left out; the events say what a message does, and `--scope` has the rest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from amaranth.lib import data, wiring

from hw.config import Structure
from hw.formats import mlx5, roce
from hw.formats.events import EventKind, RxLast, TxFirst, TxLast
from hw.formats.layout import NetworkLayout
from hw.formats.tlp import CompletionBeat, PostedBeat, ReadBeat
from hw.lib.trace import Probe
from hw.node import Node
from hw.pcie import PcieLink

from ..names import LANDMARKS
from .catalog import Catalog
from .request import WaveRequest

__all__ = ["Group", "Layout", "Row", "layout"]

#: A signal with more bits is payload, not a field.
WIDEST = 64
#: Events that are not shown: stalls are told when they are over, TLPs are what the links send.
_UNSHOWN = (EventKind.STALL, EventKind.TLP_SENT)
#: TLPs, beat by beat: their fields are shown at the links.
_TLP = (PostedBeat, ReadBeat, CompletionBeat)
#: Streams that a block takes from outside the machine.
_ENTRANCES = ("commands",)
#: Fields that are plain numbers to the hardware, and whose values have names.
_NAMED = {
    (mlx5.Ctrl, "opcode"): mlx5.WqeOpcode,
    (mlx5.Cqe, "opcode"): mlx5.CqeOpcode,
    (roce.Bth, "opcode"): roce.RoceOpcode,
    (TxFirst, "opcode"): roce.RoceOpcode,
    (TxLast, "opcode"): roce.RoceOpcode,
    (RxLast, "opcode"): roce.RoceOpcode,
}


@dataclass(frozen=True)
class Row:
    """A signal as it is shown."""

    #: Field, `valid` or `ready`.
    label: str
    #: Levels of hierarchy, from the node to the signal, with dots.
    path: str
    width: int
    #: Table of the names of its values in `Layout.enums`; empty: a number.
    enum: str = ""


@dataclass(frozen=True)
class Group:
    """Rows that belong together: an event, a stream or a format of a block."""

    node: int
    #: Path of the block within the node.
    block: str
    name: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Layout:
    """What a viewer shows, and what is dumped for it."""

    groups: tuple[Group, ...]
    enums: dict[str, dict[int, str]]
    #: Signals and scopes that are dumped; none: everything.
    names: tuple[str, ...]

    @property
    def rows(self) -> list[Row]:
        """All rows in order."""
        return [row for group in self.groups for row in group.rows]


def layout(request: WaveRequest, structure: Structure, nodes: int, catalog: Catalog) -> Layout:
    """The layout of a request for a model."""
    shown = request.nodes or tuple(range(nodes))
    blocks = {
        path: block
        for path, block in Node(structure).blocks.items()
        if not request.blocks or path in request.blocks
    }
    enums = {name: dict(table) for name, table in catalog.enums.items()}
    for kind in _NAMED.values():
        enums[kind.__name__] = {member.value: member.name for member in kind}
    groups = tuple(
        group
        for number in shown
        for path, block in blocks.items()
        for group in _groups(_Block(number, path, block, catalog), path, blocks)
    )
    return Layout(groups, enums, _names(request, shown, nodes, groups))


def _groups(block: "_Block", path: str, blocks: dict[str, Any]) -> Iterator[Group]:
    # What a part of a shown block sends is the block's own.
    if path.rpartition(".")[0] not in blocks:
        interfaces = block.interfaces()
        yield from sorted(interfaces, key=_instant) if path == "trace" else interfaces
        yield from block.states()
    yield from block.formats()


def _instant(group: Group) -> int:
    """Place of a landmark of software among all landmarks."""
    return LANDMARKS.index(group.name.removeprefix("on_"))


def _names(
    request: WaveRequest, shown: tuple[int, ...], nodes: int, groups: tuple[Group, ...]
) -> tuple[str, ...]:
    if request.everything and not request.nodes:
        return ()
    # The last node's port is always among them: the simulator's filter is sized by the last signal
    # that it lets through, and reads beyond it.
    last = f"n{nodes - 1}.rst"
    if request.everything:
        return (*(f"n{number}" for number in shown), last)
    if request.blocks:
        return (*(f"n{n}.node.{path}" for n in shown for path in request.blocks), last)
    return (*dict.fromkeys(row.path for group in groups for row in group.rows), last)


class _Block:
    """The groups of one block of one node."""

    def __init__(self, number: int, path: str, block: Any, catalog: Catalog) -> None:
        self._number, self._path, self._signature = number, path, block.signature
        self._is_link, self._catalog = isinstance(block, PcieLink), catalog
        self._where = f"n{number}.node.{path}"
        self._members = catalog.members[f"node.{path}"]
        self._wires = catalog.wires[f"node.{path}"]

    def interfaces(self) -> Iterator[Group]:
        """A group for each stream and event."""
        for path, signature in _interfaces(self._signature):
            if isinstance(signature, Probe) and signature.kind in _UNSHOWN:
                continue
            parts = [part for part in ("valid", "ready", "payload") if part in signature.members]
            if signature.members["payload"].shape in _TLP and not self._is_link:
                parts.remove("payload")
            yield self._group(
                path,
                {f"{path}.{part}": (part, signature.members[part].shape) for part in parts},
            )

    def formats(self) -> Iterator[Group]:
        """A group for each of the vendor's formats."""
        for name, member in self._signature.members.items():
            if member.is_port and isinstance(member.shape, NetworkLayout):
                yield self._group(name, {name: (name, member.shape)})

    def states(self) -> Iterator[Group]:
        """A group for each module, the block's or within it, with state machines."""
        top = f"node.{self._path}"
        for path, names in self._catalog.states.items():
            if path == top or path.startswith(f"{top}."):
                wires = [self._catalog.wires[path][name] for name in names]
                where = f"n{self._number}.{path}"
                rows = (Row(w.name, f"{where}.{w.name}", w.width, w.enum) for w in wires)
                yield Group(self._number, self._path, path[len(top) + 1 :] or "state", tuple(rows))

    def _group(self, name: str, members: dict[str, tuple[str, Any]]) -> Group:
        rows = [row for member, part in members.items() for row in self._rows(member, *part)]
        return Group(self._number, self._path, name, tuple(rows))

    def _rows(self, member: str, label: str, shape: Any) -> Iterator[Row]:
        """Rows of a member: its fields, or itself. One that nothing uses is not in the model."""
        if member not in self._members:
            return
        name = self._members[member]
        for field, enum in _fields(shape):
            wire = self._wires["__".join((name, *field))]
            if wire.width <= WIDEST:
                path = f"{self._where}.{wire.name}"
                yield Row(".".join(field) or label, path, wire.width, enum or wire.enum)


def _interfaces(signature: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Streams and events that a block drives, and those that enter the machine with it."""
    for name, member in signature.members.items():
        if member.is_port:
            continue
        inner = member.signature
        for index in product(*map(range, member.dimensions)):
            here = ".".join((*([path] if path else []), name, *map(str, index)))
            if not {"payload", "valid"} <= set(inner.members):
                yield from _interfaces(inner, here)
            elif inner.members["valid"].flow is wiring.Out or name in _ENTRANCES:
                yield here, inner


def _fields(shape: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Path of each field of a payload and the name of its table; reserved bits have none."""
    try:
        members: list[Any] = list(iter(data.Layout.cast(shape)))
    except TypeError:
        yield path, ""
        return
    if isinstance(shape, NetworkLayout):
        members.reverse()
    for key, field in members:
        if str(key).startswith("_"):
            continue
        kinds = [kind for (owner, name), kind in _NAMED.items() if owner is shape and name == key]
        if kinds:
            yield (*path, str(key)), kinds[0].__name__
        else:
            yield from _fields(field.shape, (*path, str(key)))
