"""Checked values: what a field may hold, and how a TOML table becomes a frozen dataclass.

A section is a frozen dataclass whose fields carry a `Check` in their metadata. It is checked twice
from the same declaration: at construction from Python (`Checked` raises `ConfigError`) and
when read from a file (`Reader` raises `BadInput`, which also knows the file and the full key).
"""

import dataclasses
import difflib
import math
import types
import typing
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from hw.config import ConfigError

__all__ = [
    "BadInput",
    "Check",
    "Checked",
    "Reader",
    "choice",
    "flag",
    "number",
    "power_of_two",
    "sequence",
    "show",
    "text",
]


class BadInput(Exception):
    """The input is bad and nothing was run. Its text is one line: `file: key = value: what is
    allowed`.
    """

    def __init__(self, file: str | Path, key: str, value: Any, allowed: str) -> None:
        self.file, self.key, self.value, self.allowed = str(file), key, value, allowed
        shown = "" if value is MISSING else f" = {show(value)}"
        super().__init__(f"{self.file}: {key}{shown}: {allowed}")


def show(value: Any) -> str:
    """`value` as TOML, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escapes = {
            '"': '\\"',
            "\\": "\\\\",
            "\n": "\\n",
            "\t": "\\t",
            "\r": "\\r",
            "\b": "\\b",
            "\f": "\\f",
        }
        return (
            '"'
            + "".join(escapes.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in value)
            + '"'
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {show(item)}" for key, item in value.items()) + "}"
    return repr(value) if isinstance(value, int | float) else str(value)


#: An error names this many choices at most.
_MANY = 16


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


@dataclass(frozen=True)
class Check:
    """What one field may hold: any of `choices`, or a number from `low` to `high`, perhaps a power
    of two or one of `extra`.
    """

    doc: str
    low: float | None = None
    high: float | None = None
    power: bool = False
    choices: tuple[Any, ...] = ()
    extra: tuple[Any, ...] = ()
    #: For a tuple: the shortest and the longest.
    lengths: tuple[int, int] | None = None
    #: Name of the key in files, if it is not the field's.
    key: str = ""

    @property
    def allowed(self) -> str:
        """The bound in words, as an error says it."""
        if self.choices:
            names = [show(item) for item in self.choices if item is not None]
            words = (
                "allowed "
                + ", ".join(names[:_MANY])
                + (", ...: see `bellwire schema result`" if len(names) > _MANY else "")
            )
        elif self.power:
            words = f"allowed powers of two from {self.low} to {self.high}"
        elif self.low is not None:
            high = f" to {_plain(self.high)}" if self.high is not None else " or more"
            words = (
                "allowed any number"
                if self.low == -math.inf
                else f"allowed {_plain(self.low)}{high}"
            )
        else:
            return "allowed a text that is not empty"
        if extra := [show(item) for item in self.extra if item is not None]:
            words += ", or " + ", ".join(extra)
        if self.lengths:
            words += f" ({self.lengths[0]} to {self.lengths[1]} of them)"
        return words

    def holds(self, value: Any) -> bool:
        """Whether one value (of a tuple: one item) is within the bound; its type is right."""
        if value in self.extra:
            return True
        if self.choices:
            return value in self.choices
        if self.low is None:
            return bool(value)
        if isinstance(value, float) and not math.isfinite(value):
            return False
        if value < self.low or (self.high is not None and value > self.high):
            return False
        return not self.power or not int(value) & (int(value) - 1)


def _field(default: Any, check: Check) -> Any:
    return dataclasses.field(default=default, metadata={"check": check})


def number(doc: str, low: float, high: float | None, default: Any = MISSING, **more: Any) -> Any:
    """A field with a number from `low` to `high`."""
    return _field(default, Check(doc, low, high, **more))


def power_of_two(doc: str, low: int, high: int, default: Any = MISSING) -> Any:
    """A field with a power of two."""
    return _field(default, Check(doc, low, high, power=True))


def choice(doc: str, *choices: Any, default: Any = MISSING, key: str = "") -> Any:
    """A field with one of `choices`."""
    return _field(default, Check(doc, choices=choices, key=key))


def flag(doc: str, default: Any = MISSING) -> Any:
    """A field that is true or false."""
    return _field(default, Check(doc, choices=(True, False)))


def text(doc: str, default: Any = MISSING, **more: Any) -> Any:
    """A field with a text. With a default, it may be empty."""
    return _field(default, Check(doc, extra=() if default is MISSING else (default,), **more))


def sequence(
    doc: str, low: float, high: float | None, lengths: tuple[int, int], default: Any = MISSING
) -> Any:
    """A field with a tuple of numbers; a file may give a single number."""
    return _field(default, Check(doc, low, high, lengths=lengths))


def _checks(cls: type) -> dict[str, Check]:
    return {
        field.name: field.metadata["check"]
        for field in dataclasses.fields(cls)
        if "check" in field.metadata
    }


class Checked:
    """A section. `ConfigError` is raised for its first field that is out of its bound."""

    def __post_init__(self) -> None:
        for name, check in _checks(type(self)).items():
            value, kind, items = getattr(self, name), _hint(type(self), name), None
            if not check.lengths:
                items = (value,)
            elif isinstance(value, tuple) and check.lengths[0] <= len(value) <= check.lengths[1]:
                items, kind = value, typing.get_args(kind)[0]
            if items is None or any(
                _typed(item, kind) is MISSING or not check.holds(item) for item in items
            ):
                raise ConfigError(check.key or name, value, check.allowed)


def _hint(cls: type, name: str) -> Any:
    return typing.get_type_hints(cls)[name]


_WORDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


def _typed(value: Any, kind: Any) -> Any:
    """`value` as type `kind`, or MISSING if it has another type. Nothing is converted but an
    integer to a number.
    """
    if isinstance(kind, types.UnionType):
        for option in typing.get_args(kind):
            if (typed := _typed(value, option)) is not MISSING:
                return typed
        return MISSING
    if kind is types.NoneType:
        return value if value is None else MISSING
    if kind is bool:
        return value if isinstance(value, bool) else MISSING
    if isinstance(value, bool):
        return MISSING
    if kind is float:
        try:
            real = float(value) if isinstance(value, int | float) else math.nan
        except OverflowError:
            return MISSING
        return real if math.isfinite(real) else MISSING
    if kind is int:
        return value if isinstance(value, int) else MISSING
    return value if isinstance(value, kind) else MISSING


def _describe(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        return " or ".join(
            _WORDS[option] for option in typing.get_args(kind) if option is not types.NoneType
        )
    return _WORDS[kind]


class Reader:
    """Reads tables of one file into dataclasses, strictly.

    Parameters
    ----------
    file
        Name for messages.
    given
        Full keys that a command line gave instead of the file, with the name to blame.
    """

    def __init__(self, file: str | Path, given: dict[str, str] | None = None) -> None:
        self.file, self.given = file, given or {}

    def bad(self, key: str, value: Any, allowed: str) -> BadInput:
        """The error for `key`, naming where its value came from."""
        for given, source in self.given.items():
            if key == given or key.startswith(given + ".") or given.startswith(key + "."):
                return BadInput(source, key, value, allowed)
        return BadInput(self.file, key, value, allowed)

    def unknown(
        self, table: dict[str, Any], allowed: typing.Iterable[str], prefix: str = ""
    ) -> None:
        """Raise for the first key of `table` that is not allowed."""
        allowed = list(allowed)
        for key, value in table.items():
            if key not in allowed:
                near = difflib.get_close_matches(key, allowed, 1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise self.bad(
                    prefix + key, value, f"unknown key; {hint}allowed {', '.join(allowed)}"
                )

    def table(self, parent: dict[str, Any], key: str) -> dict[str, Any]:
        """The table `key` of `parent`, empty if it is not there."""
        value = parent.get(key, {})
        if not isinstance(value, dict):
            raise self.bad(key, value, f"allowed a table [{key}]")
        return value

    def tables(self, parent: dict[str, Any], key: str) -> list[dict[str, Any]]:
        """The list of tables `key` of `parent`, empty if it is not there."""
        value = parent.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.bad(key, value, f"allowed tables [[{key}]]")
        return value

    def read(
        self,
        cls: type,
        table: dict[str, Any],
        prefix: str,
        defaults: dict[str, Any] | None = None,
        beside: typing.Iterable[str] = (),
    ) -> Any:
        """Make a `cls` of `table`.

        Parameters
        ----------
        prefix
            Full key of the table, ends with a dot.
        defaults
            Values for keys that the table does not have (the preset's).
        beside
            Keys that are not for this class and are read elsewhere.
        """
        checks = _checks(cls)
        keys = {
            (checks[f.name].key if f.name in checks else "") or f.name: f
            for f in dataclasses.fields(cls)
            if f.init
        }
        self.unknown(table, [*keys, *beside], prefix)
        values = {}
        for key, field in keys.items():
            if key in table:
                values[field.name] = self._value(
                    prefix + key, table[key], _hint(cls, field.name), checks.get(field.name)
                )
            elif defaults and key in defaults:
                values[field.name] = self._value(
                    prefix + key, defaults[key], _hint(cls, field.name), checks.get(field.name)
                )
            elif field.default is MISSING:
                check = checks.get(field.name)
                raise self.bad(
                    prefix + key,
                    MISSING,
                    f"missing; {check.allowed if check else 'allowed a number'}",
                )
        try:
            return cls(**values)
        except ConfigError as error:
            raise self.bad(prefix + error.field, error.value, error.allowed) from None

    def _value(self, key: str, value: Any, kind: Any, check: Check | None) -> Any:
        if typing.get_origin(kind) is tuple:
            item = typing.get_args(kind)[0]
            values = value if isinstance(value, list) else [value]
            typed = tuple(_typed(entry, item) for entry in values)
            if MISSING in typed or not typed:
                raise self.bad(
                    key,
                    value,
                    f"{check.allowed if check else 'allowed a list'}; {_describe(item)} or a list",
                )
            return typed
        typed = _typed(value, kind)
        if typed is MISSING:
            words = f"allowed {_describe(kind)}"
            raise self.bad(
                key,
                value,
                f"{check.allowed}; {_describe(kind)}" if check and kind is not bool else words,
            )
        return typed
