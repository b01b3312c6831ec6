"""Words about keys: what `presets`, `explain` and `schema scenario` print. All of it comes from the
declarations.
"""

import difflib
import inspect
import re
import typing
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from .preset import load_preset, preset_names
from .scenario import LISTS, TABLES
from .schema import BadInput, Check, show

__all__ = ["explain_text", "presets_text", "scenario_text"]

_WORDS = {int: "integer", float: "number", str: "text", bool: "true or false"}


#: Keys whose `#:` comment in `hw/config.py` stands for several fields, or that have none.
_SHARED = {
    "gpu_gbps": "TLP bandwidth of the GPU's link, after encoding and flow-control overhead.",
    "nic_gbps": "TLP bandwidth of the NIC's link.",
    "host_gbps": "TLP bandwidth of the switch's uplink.",
    "gpu_ns": "One-way latency between the GPU's edge and the switch.",
    "nic_ns": "One-way latency between the NIC's edge and the switch.",
    "host_ns": "One-way latency between the root complex and the switch.",
    "mps_bytes": "Largest payload of a TLP.",
    "mrrs_bytes": "Largest read request.",
    "mwr_overhead_bytes": "Bytes of a memory write beside its payload.",
    "mrd_overhead_bytes": "Bytes of a memory read.",
    "cpld_overhead_bytes": "Bytes of a completion beside its payload.",
    "posted_header_credits": "Writes that a receiver grants.",
    "posted_data_credits": "Payload of writes that a receiver grants, in units of 16 bytes.",
    "read_header_credits": "Reads that a receiver grants.",
    "completion_header_credits": "Completions that a receiver grants.",
    "completion_data_credits": "Payload of completions that a receiver grants, in 16-byte units.",
    "gpu_commit_ns": "Fabric write accepted by GPU memory to visible.",
    "gpu_read_ns": "Fabric read accepted by GPU memory to data.",
    "gpu_store_ns": "Store of a GPU thread to visible.",
    "host_commit_ns": "Fabric write accepted by host memory to visible.",
    "host_read_ns": "Fabric read accepted by host memory to data.",
    "host_store_ns": "Store of the CPU to visible.",
    "total_mops": "Ceiling of the NIC's message rate, in millions per second; 0: none.",
    "qp_mops": "Ceiling of one QP's message rate, in millions per second; 0: none.",
    "doorbell_fifo_depth": "Rings that fit in the doorbell FIFO.",
    "push_wait_ns": "How long lines of a BlueFlame push may stay away; then its WQE is fetched.",
    "wqe_tags": "Reads of WQEs under way.",
    "payload_tags": "Reads of payload under way.",
    "gbps": "Data rate.",
    "first_overhead_bytes": "Bytes of a FIRST or ONLY packet beside its payload.",
    "other_overhead_bytes": "Bytes of a MIDDLE or LAST packet beside its payload.",
    "ack_bytes": "Bytes of an acknowledgement.",
    "cable_m": "Length of all cables of one way together.",
    "cable_ns_per_m": "Delay of the cable.",
    "hops": "Network switches on the way.",
    "hop_ns": "Delay of one network switch, its further cable included.",
}


@cache
def _comments(cls: type) -> dict[str, str]:
    """The `#:` comments in front of the fields of a class."""
    comments: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(cls).splitlines():
        text = line.strip()
        if text.startswith("#:"):
            above.append(text[2:].strip())
            continue
        name = text.partition(":")[0]
        if name.isidentifier() and above:
            comments[name] = " ".join(above)
        above = []
    return comments


def _kind(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return f"{_WORDS[typing.get_args(hint)[0]]} or list"
    options = [option for option in typing.get_args(hint) if option is not type(None)] or [hint]
    return " or ".join(_WORDS[option] for option in options)


def _keys(cls: type) -> list[tuple[str, str]]:
    """(key, description) of each field of a section."""
    hints = typing.get_type_hints(cls)
    found = []
    for item in fields(cls):
        check: Check | None = item.metadata.get("check")
        name = check.key if check and check.key else item.name
        doc = check.doc if check else _SHARED.get(item.name) or _comments(cls).get(item.name, "")
        default = "" if item.default in (MISSING, None, ()) else f"; default {show(item.default)}"
        bound = f"; {check.allowed}" if check else ""
        found.append((name, f"{doc} ({_kind(hints[item.name])}{bound}{default})"))
    return found


def _sections() -> list[tuple[str, list[tuple[str, str]]]]:
    tables = [
        (name, [key for cls in classes for key in _keys(cls)]) for name, classes in TABLES.items()
    ]
    return tables + [(name, _keys(cls)) for name, (cls, _) in LISTS.items()]


def scenario_text() -> str:
    """All keys of a scenario."""
    lines = [
        "bellwire.scenario/1: a scenario file. Unknown keys are errors.",
        "The preset gives what a table leaves out.",
        "",
        'schema = "bellwire.scenario/1"',
        f"preset = {' | '.join(show(name) for name in preset_names())}",
        "seed   = 0 to 4294967295 (default 1)",
        "paths  = list of paths, each run on the same machine",
        "name   = name of the run (default: of the file)",
        "",
    ]
    for table, keys in _sections():
        lines += [
            f"[[{table}]]" if table in LISTS else f"[{table}]",
            *(f"  {name}: {doc}" for name, doc in keys),
            "",
        ]
    return "\n".join(lines)


def presets_text() -> str:
    """Each preset with its constants."""
    lines = []
    for name in preset_names():
        preset = load_preset(name)
        lines += [
            f"{name}: {preset.platform}",
            f"  free constants: {len(preset.free)} ({', '.join(preset.free)})",
        ]
        for section, table in preset.constants.items():
            for key, constant in table.items():
                full = f"{section}.{key}"
                lines.append(
                    f"  {full:<34} {constant.value:>9g}  {constant.kind:<11} {constant.source}"
                )
        lines += ["  sources:", *(f"    {tag}: {text}" for tag, text in preset.sources.items())]
    return "\n".join(lines)


def explain_text(key: str) -> str:
    """What one key, or all keys of one table, mean and hold; raises `BadInput`.

    An environment variable of another library finds the key that stands for it.
    """
    known = {f"{table}.{name}": doc for table, keys in _sections() for name, doc in keys}
    wanted = [full for full in known if key in (full, full.split(".")[0], full.split(".")[1])]
    if key.isupper():
        wanted += [full for full, doc in known.items() if key in re.findall(r"\w+", doc)]
    if not wanted:
        near = difflib.get_close_matches(key, [*known, *(full.split(".")[1] for full in known)], 3)
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise BadInput(
            "explain",
            "KEY",
            key,
            f"unknown key; {hint}allowed the keys of `bellwire schema scenario`",
        )
    lines = []
    for full in wanted:
        lines.append(f"{full}: {known[full]}")
        section, name = full.split(".")
        for preset in preset_names():
            constant = load_preset(preset).constants.get(section, {}).get(name)
            if constant:
                low, high = constant.range
                lines += [
                    f"  {preset}: {constant.value:g} ({constant.kind}, may be {low:g} to {high:g})",
                    f"    source: {constant.source}",
                    f"    note: {constant.note}",
                ]
                if constant.free:
                    shared = ", ".join(load_preset(preset).free[constant.free])
                    lines.append(f"    free constant {constant.free!r}, shared by {shared}")
    return "\n".join(lines)
