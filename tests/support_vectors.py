"""Files of vectors: bytes that third-party software wrote, as items that tests consume.

A file has `sets`; a set has lists; an item of a list is told by its keys, not by the names round
it, so that any selection of any sets will do.
"""

import fnmatch
import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FORMS", "Item", "VectorError", "load", "waiting_reason"]

#: Keys that tell an item's form; the first form that fits counts.
FORMS = {
    "wqe": ("wqe", "defined"),
    "sequence": ("wqes", "trace"),
    "toggle": ("first_nonzero_uar_off",),
    "consumer": ("cqe", "cons_index"),
    "arm": ("dbrec_arm",),
    "receive": ("rq_wqe",),
    "batching": ("num_wqes", "batch"),
    "collapsed_poll": ("wait_idx", "ncqes"),
    "ring_poll": ("wait_idx", "cqe_num"),
    "submit": ("db_word", "trace"),
    "channel": ("words_le",),
    "descriptor": ("qwords",),
}

#: What waits for a later capability: (form, pattern of the name, reason).
WAITING = (
    *(
        ("wqe", name, reason)
        for name, reason in (
            ("*_half_av", "datagram connections"),
            ("*_full_av", "datagram connections"),
            ("*_dci*", "datagram connections"),
            ("wait_*", "WAIT"),
            ("local_inv*", "memory windows"),
            ("bind_mw*", "memory windows"),
            ("umr*", "memory windows"),
            ("tso*", "segmentation of TCP"),
        )
    ),
    *(
        ("channel", name, reason)
        for name, reason in (
            ("get*", "gets through the proxy"),
            ("p_*", "inline puts through the proxy"),
            ("p", "inline puts through the proxy"),
            ("put_signal*", "put with signal"),
            ("amo_*", "atomics through the proxy"),
            ("fence*", "ordering through the proxy"),
            ("quiet*", "quiet of chosen queues"),
        )
    ),
    ("descriptor", "*", "the path gin_proxy"),
)


class VectorError(ValueError):
    """A directory or file of vectors that cannot be used; one line."""


@dataclass(frozen=True)
class Item:
    """One vector, and where it stands."""

    file: str
    set: str
    list: str
    position: int
    form: str
    data: dict
    #: Of the file: parameters where an item has none of its own.
    common: dict

    @property
    def name(self):
        """Its name, with what else tells it from others of that name."""
        name = self.data.get("name", f"#{self.position}")
        return f"{name} ({self.data['mode']})" if "mode" in self.data else name

    @property
    def where(self):
        return f"{self.file}: {self.set}.{self.list}[{self.position}] {self.name}"

    @property
    def seed(self):
        """Text from which the chance of its test is drawn."""
        return f"{self.set}.{self.list}[{self.position}]"

    def get(self, key):
        """Value of a key that it must have."""
        if key not in self.data:
            raise VectorError(f"{self.where}: no {key!r}")
        return self.data[key]

    def raw(self, key):
        """Bytes of a key in hex."""
        return self.bytes_of(self.get(key), key)

    def bytes_of(self, text, key):
        """Bytes of a text in hex."""
        try:
            return bytes.fromhex(text)
        except (TypeError, ValueError):
            raise VectorError(f"{self.where}: {key} = {text!r}: allowed hex digits") from None

    def mask_of(self, mask, raw, key):
        """Mask of some bytes: a text with 1 for each byte that counts, and 0 for each other."""
        if not isinstance(mask, str) or set(mask) - set("01"):
            raise VectorError(f"{self.where}: mask of {key} = {mask!r}: allowed a text of 0 and 1")
        if len(mask) != len(raw):
            raise VectorError(f"{self.where}: {key} of {len(raw)} bytes, mask of {len(mask)}")
        return mask

    def number(self, value, key):
        """A number, as it stands or as text in hex."""
        try:
            return value if isinstance(value, int) else int(value, 0)
        except (TypeError, ValueError):
            raise VectorError(f"{self.where}: {key} = {value!r}: allowed a number") from None


def _form(data):
    return next((form for form, keys in FORMS.items() if all(key in data for key in keys)), "")


def _read(path):
    try:
        content = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise VectorError(f"{path.name}: cannot be read ({error})") from None
    except json.JSONDecodeError as error:
        raise VectorError(f"{path.name}: line {error.lineno}: no JSON ({error.msg})") from None
    sets = content.get("sets") if isinstance(content, dict) else None
    if not isinstance(sets, dict) or not all(isinstance(lists, dict) for lists in sets.values()):
        raise VectorError(f"{path.name}: no vectors: 'sets' must be a table of tables of lists")
    about = content.get("about", {})
    common = about.get("common_params", {}) if isinstance(about, dict) else {}
    for name, lists in sets.items():
        for list_name, entries in lists.items():
            if not isinstance(entries, list):
                continue
            for position, data in enumerate(entries):
                if not isinstance(data, dict):
                    raise VectorError(
                        f"{path.name}: {name}.{list_name}[{position}] = {data!r}: allowed a table"
                    )
                yield Item(path.name, name, list_name, position, _form(data), data, common)


def load(directory):
    """All items of all files of a directory; raises `VectorError` if there is none."""
    directory = Path(directory)
    if not directory.is_dir():
        raise VectorError(f"{directory}: no directory")
    items = [item for path in sorted(directory.glob("*.json")) for item in _read(path)]
    if not items:
        raise VectorError(f"{directory}: no vectors in files *.json")
    return items


def waiting_reason(item):
    """Which capability an item waits for, by its name; empty if it is to be executed."""
    name = item.data.get("name", "")
    if item.data.get("qp_type", "RC") != "RC":
        return "datagram connections"
    return next(
        (
            reason
            for form, pattern, reason in WAITING
            if form == item.form and fnmatch.fnmatchcase(name, pattern)
        ),
        "",
    )
