"""Reads the event log (decision 3): decodes it, hashes it, keeps it in the run directory.

A record is 32 bytes. Fields are cut out of it by the layouts of `hw.formats.events`, which are also
stored with a saved log, so that a log can be read when the formats have changed since.
"""

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.lib import data

from hw.formats.events import EVENTS, EventKind

__all__ = ["LAYOUTS", "RECORD", "Events", "TraceError", "load", "read", "save"]

#: One record of the log.
RECORD = np.dtype([("cycle", "<u8"), ("node", "<u2"), ("kind", "<u2"), ("payload", "u1", 20)])
assert RECORD.itemsize == 32
_PAYLOAD_BIT = 96


class TraceError(ValueError):
    """A file is no event log, or not one that this version can read."""


def _fields(layout, prefix="", start=0):
    """Flat {name: (offset, width)} of a layout; members of a struct `a` become `a_<name>`."""
    flat = {}
    members: Any = data.Layout.cast(layout)
    for key, field in members:
        try:
            inner = data.Layout.cast(field.shape)
        except TypeError:
            flat[f"{prefix}{key}"] = (start + field.offset, field.width)
        else:
            flat |= _fields(inner, f"{prefix}{key}_", start + field.offset)
    return flat


#: {kind number: {"name": ..., "fields": {field: [bit offset in the payload, bits]}}}
LAYOUTS = {
    kind.value: {
        "name": kind.name,
        "fields": {key: list(place) for key, place in _fields(layout).items()},
    }
    for kind, layout in EVENTS.items()
}


def _sort(records):
    """Records by (cycle, node, kind, payload bytes): the order that is hashed."""
    words = records.view("<u8").reshape(-1, 4)
    # Node and kind stand above the first four payload bytes, which compare as bytes do.
    where = records["node"].astype("<u8") << 48 | records["kind"].astype("<u8") << 32
    head = where | (words[:, 1] >> 32).astype("<u4").byteswap()
    keys = (words[:, 0], head, words[:, 2].byteswap(), words[:, 3].byteswap())
    before = np.zeros(max(len(records) - 1, 0), bool)
    tied = ~before
    for key in keys:
        before |= tied & (key[:-1] < key[1:])
        tied &= key[:-1] == key[1:]
    if np.all(before | tied):
        return records
    return records[np.lexsort(keys[::-1])]


class Events:
    """The event log of one simulator process, sorted.

    Parameters
    ----------
    records : array of `RECORD`
    path : str
        Name of the software path that ran.
    layouts : dict
        As `LAYOUTS`; those of the file when it was read from one.
    """

    def __init__(self, records, path="", layouts=LAYOUTS):
        self.records = _sort(np.ascontiguousarray(records, RECORD))
        self.path, self.layouts = path, layouts
        self._words = self.records.view("<u8").reshape(-1, 4)
        kinds = self.records["kind"]
        order = np.argsort(kinds, kind="stable")
        present, first = np.unique(kinds[order], return_index=True)
        self._rows = (
            dict(zip(present.tolist(), np.split(order, first[1:]), strict=True))
            if len(kinds)
            else {}
        )
        self._decoded = {}

    def __len__(self):
        return len(self.records)

    @property
    def last_cycle(self):
        """Cycle of the last event; 0 when there is none."""
        return int(self.records["cycle"][-1]) if len(self) else 0

    @property
    def sha256(self):
        """Hash of the sorted records."""
        return hashlib.sha256(self.records.tobytes()).hexdigest()

    def rows(self, kind):
        """Positions in the log of the events of a kind, in order."""
        return self._rows.get(EventKind(kind).value, np.zeros(0, np.int64))

    def of(self, kind):
        """All events of a kind, in order: int64 arrays `cycle`, `node` and the payload's fields."""
        number = EventKind(kind).value
        if number not in self._decoded:
            words = self._words[self.rows(kind)]
            table = {
                "cycle": words[:, 0].astype(np.int64),
                "node": (words[:, 1] & 0xFFFF).astype(np.int64),
            }
            for name, (offset, width) in self.layouts[number]["fields"].items():
                table[name] = _cut(words, _PAYLOAD_BIT + offset, width)
            self._decoded[number] = table
        return self._decoded[number]

    def decode(self, rows):
        """Events at some positions as dicts: `cycle`, `node`, `kind` (name) and the fields."""
        decoded = []
        for row in rows:
            words = self._words[row : row + 1]
            kind = int(self.records["kind"][row])
            layout = self.layouts.get(kind, {"name": f"kind {kind}", "fields": {}})
            event = {
                "cycle": int(words[0, 0]),
                "node": int(self.records["node"][row]),
                "kind": layout["name"],
            }
            event |= {
                name: int(_cut(words, _PAYLOAD_BIT + offset, width)[0])
                for name, (offset, width) in layout["fields"].items()
            }
            decoded.append(event)
        return decoded


def _cut(words, bit, width):
    """Field at a bit of records seen as (n, 4) 64-bit words, as int64."""
    word, shift = divmod(bit, 64)
    value = words[:, word] >> np.uint64(shift)
    if shift + width > 64:
        value |= words[:, word + 1] << np.uint64(64 - shift)
    return (value & np.uint64((1 << width) - 1)).astype(np.int64)


def read(file, path=""):
    """The raw log that a simulator process left (`events.bin`)."""
    raw = np.fromfile(file, np.uint8)
    if raw.size % RECORD.itemsize:
        raise TraceError(
            f"{file}: {raw.size} bytes, no whole number of {RECORD.itemsize}-byte records"
        )
    events = Events(raw.view(RECORD), path)
    unknown = sorted(set(events._rows) - set(events.layouts))
    if unknown:
        raise TraceError(f"{file}: events of unknown kinds {unknown}")
    return events


def save(file, logs):
    """Writes `events.npz`: per path its records, and the layouts that decode them.

    The same logs give the same bytes.
    """
    with zipfile.ZipFile(Path(file), "w") as archive:

        def put(name, array):
            raw = io.BytesIO()
            np.lib.format.write_array(raw, array, allow_pickle=False)
            # A fixed date, so that the same logs give the same file.
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy"), raw.getbuffer(), zipfile.ZIP_DEFLATED, 1
            )

        put(
            "about",
            np.array(
                json.dumps(
                    {
                        "schema": "bellwire.events/1",
                        "record_bits": {
                            "cycle": [0, 64],
                            "node": [64, 16],
                            "kind": [80, 16],
                            "payload": [_PAYLOAD_BIT, 160],
                        },
                        "kinds": {log.path: log.layouts for log in logs},
                    }
                )
            ),
        )
        for log in logs:
            put(f"events_{log.path}", log.records)


def load(file):
    """The logs of an `events.npz` as {path: Events}."""
    try:
        with np.load(Path(file), allow_pickle=False) as archive:
            about = json.loads(str(archive["about"]))
            if about.get("schema") != "bellwire.events/1":
                raise TraceError(
                    f"{file}: schema {about.get('schema')!r}, expected 'bellwire.events/1'"
                )
            return {
                path: Events(
                    archive[f"events_{path}"],
                    path,
                    {int(kind): layout for kind, layout in kinds.items()},
                )
                for path, kinds in about["kinds"].items()
            }
    except (FileNotFoundError, TraceError):
        raise
    except (zipfile.BadZipFile, KeyError, OSError, ValueError) as error:
        raise TraceError(f"{file}: not an event log ({error})") from error
