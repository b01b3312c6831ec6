"""Structure to binary: converts, verilates and compiles, once per structure.

`build()` is safe for concurrent callers: each name has a lock file, work happens in a temporary
directory, and a finished directory appears by one rename. What does not depend on the structure
(Verilator's runtime, the bench, the engine without the nodes) is compiled once and shared.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from .toolchain import Verilator, cocotb_libraries, find_compiler, find_verilator, run

__all__ = ["build", "cache_root", "lint"]

ROOT = Path(__file__).resolve().parent.parent
ENGINE = Path(__file__).resolve().parent / "engine"
BINARY = "bellwire-model"
#: Compilers run at a time.
JOBS = 2

#: Parts of the binary that do not depend on the structure.
SHARED_SOURCES = ("engine.cpp", "main.cpp", "sha256.cpp")
RUNTIME_SOURCES = (
    "verilated.cpp",
    "verilated_dpi.cpp",
    "verilated_vpi.cpp",
    "verilated_threads.cpp",
)
VERILATE = (
    "--cc",
    "-O3",
    "--x-assign",
    "fast",
    "--x-initial",
    "fast",
    "--no-timing",
    "--output-split",
    "5000",
    "--output-split-cfuncs",
    "300",
)
#: Measured: -Os is slower by a tenth to a quarter, -march=native faster by less than a tenth.
MODEL_FLAGS = ("-O2",)
#: Verilator's `__Slow` files run once, at time 0.
SLOW_FLAGS = ("-O0",)
SHARED_FLAGS = ("-O2",)
RUNTIME_FLAGS = ("-O1",)
#: A wire that has no name in the hardware's source.
_TEMPORARY = re.compile(r"  (?:wire|reg) (?:signed )?(?:\[\d+:\d+\] )?\\?\$")

Progress = Callable[[str, float | None], None]


def cache_root() -> Path:
    """Where builds are kept: `build/` of a checkout, else a folder of the user's cache."""
    if (ROOT / "pyproject.toml").exists():
        return ROOT / "build"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bellwire"


def _digest(*parts: object) -> str:
    state = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else repr(part).encode()
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()[:12]


def _hardware_sources() -> list[Path]:
    return sorted((ROOT / "hw").rglob("*.py"))


def _engine_sources() -> list[Path]:
    return sorted(path for path in ENGINE.iterdir() if path.suffix in {".cpp", ".h", ".sv", ".vlt"})


def _temporaries(verilog: str) -> str:
    """Verilator configuration that keeps the converter's own wires out of waveforms."""
    lines = ["`verilator_config"]
    for number, line in enumerate(verilog.splitlines(), 1):
        if _TEMPORARY.match(line):
            lines.append(f'tracing_off -file "*node.v" -lines {number}')
    return "\n".join(lines) + "\n"


def _defines(trace: tuple[str, ...]) -> list[str]:
    fst, vcd = "--trace-fst" in trace, "--trace-vcd" in trace
    values = {
        "VERILATOR": 1,
        "VM_COVERAGE": 0,
        "VM_SC": 0,
        "VM_TIMING": 0,
        "VM_TRACE": int(bool(trace)),
        "VM_TRACE_FST": int(fst),
        "VM_TRACE_VCD": int(vcd),
        "VM_TRACE_SAIF": 0,
        "VL_TIME_CONTEXT": 1,
    }
    return [f"-D{name}={value}" for name, value in values.items()]


def _include(verilator: Verilator) -> list[str]:
    return [
        f"-I{verilator.root / 'include'}",
        f"-I{verilator.root / 'include' / 'vltstd'}",
        f"-I{ENGINE}",
    ]


def _verilate(
    verilator: Verilator, top: str, prefix: str, into: Path, files: Iterable[Path], *more: str
) -> None:
    run(
        [
            verilator.binary,
            *VERILATE,
            *more,
            "--prefix",
            prefix,
            "--top-module",
            top,
            "--Mdir",
            into,
            *files,
        ],
        VERILATOR_ROOT=str(verilator.root),
    )


def _compile(
    sources: Iterable[tuple[Path, tuple[str, ...]]], into: Path, flags: list[str]
) -> list[Path]:
    """Compile `sources` (path and its optimisation) to objects in `into`; the largest first."""
    compiler = find_compiler()[0]

    def one(job: tuple[Path, tuple[str, ...]]) -> Path:
        source, optimisation = job
        output = into / f"{source.stem}.o"
        run([compiler, "-c", *optimisation, "-w", *flags, source, "-o", output])
        return output

    jobs = sorted(sources, key=lambda job: -job[0].stat().st_size)
    with ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(one, jobs))


def _precompile(header: Path, optimisations: Iterable[tuple[str, ...]], flags: list[str]) -> None:
    """Precompile `header` once for each set of flags; g++ picks the one that fits by itself."""
    folder = header.with_name(f"{header.name}.gch")
    folder.mkdir()

    def one(optimisation: tuple[str, ...]) -> None:
        output = folder / "".join(optimisation)
        language = ("-x", "c++-header")
        run([find_compiler()[0], *optimisation, "-w", *flags, *language, header, "-o", output])

    with ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(one, optimisations))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Phases:
    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self._progress:
            self._progress(name, None)
        start = time.monotonic()
        yield
        if self._progress:
            self._progress(name, time.monotonic() - start)


def _once(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The directory `cache/name`; if it does not exist, `make` fills it."""
    final = cache / name
    if final.exists():
        return final
    with _locked(cache / f"{name}.lock"):
        if not final.exists():
            with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=cache) as work:
                made = Path(work) / "made"
                made.mkdir()
                make(made)
                made.rename(final)
    return final


def build(
    structure_hash: str,
    verilog: str | Callable[[], str | Mapping[str, str]],
    *,
    trace: str = "",
    sources: Iterable[Path] | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the binary of a structure, building it if it is not in the cache.

    Parameters
    ----------
    structure_hash
        Names the structure; a part of the directory's name.
    verilog
        The node's Verilog (top module `node`), or a function that makes it. A function is called
        only if the binary is missing; it may return several files by name, `node.v` among them,
        which are kept beside the binary.
    trace
        With waveforms in this form (`wave_format`); empty: without.
    sources
        With a function: the files that its Verilog depends on. Default: all of `hw/`.
    cache
        Directory of all builds. Default: `cache_root()`.
    progress
        Called with (phase, None) when a phase starts and (phase, seconds) when it ends.

    Raises
    ------
    BuildError
        If a tool is missing or fails.
    """
    verilator, cache = find_verilator(), cache or cache_root()
    phase = _Phases(progress)
    waveforms = (f"--trace-{trace}",) if trace else ()
    libraries, compiler = cocotb_libraries(), find_compiler()[0]
    flags = [*_defines(waveforms), *_include(verilator)]
    tools = (
        verilator.text,
        find_compiler()[1],
        str(libraries),
        VERILATE,
        MODEL_FLAGS,
        SLOW_FLAGS,
        SHARED_FLAGS,
        RUNTIME_FLAGS,
        waveforms,
    )
    if isinstance(verilog, str):
        origin: tuple[object, ...] = (verilog,)
    else:
        import amaranth

        origin = (amaranth.__version__, *(sources if sources is not None else _hardware_sources()))
    digest = _digest(*tools, *_engine_sources(), *origin)
    name = f"{structure_hash}-{digest}{'-waves' if trace else ''}"

    def make_shared(into: Path) -> None:
        _verilate(
            verilator,
            "bench",
            "Vbench",
            into / "bench",
            [ENGINE / "bench.vlt", ENGINE / "bench.sv"],
            "--vpi",
            *waveforms,
        )
        runtime = list(RUNTIME_SOURCES)
        runtime += ["verilated_fst_c.cpp"] if "--trace-fst" in waveforms else []
        runtime += ["verilated_vcd_c.cpp"] if "--trace-vcd" in waveforms else []
        jobs = [(verilator.root / "include" / name, RUNTIME_FLAGS) for name in runtime]
        jobs += [(ENGINE / name, SHARED_FLAGS) for name in SHARED_SOURCES]
        jobs += [(path, RUNTIME_FLAGS) for path in (into / "bench").glob("*.cpp")]
        _compile(jobs, into, [*flags, f"-I{into / 'bench'}"])
        shutil.rmtree(into / "bench")

    def make(into: Path) -> None:
        model = into / "model"
        # Conversion uses one core for long; the shared part fills the other.
        with ThreadPoolExecutor(1) as side:
            runtime = side.submit(
                _once, cache, f"shared-{_digest(*tools, *_engine_sources())}", make_shared
            )
            with phase("convert"):
                made = verilog if isinstance(verilog, str) else verilog()
                for name, text in ({"node.v": made} if isinstance(made, str) else made).items():
                    (into / name).write_text(text)
            with phase("verilate"):
                unnamed = into / "temporaries.vlt"
                if waveforms:
                    unnamed.write_text(_temporaries((into / "node.v").read_text()))
                sources = [
                    ENGINE / "waivers.vlt",
                    *([unnamed] if waveforms else []),
                    into / "node.v",
                    *sorted(ENGINE.glob("sim_*.sv")),
                ]
                _verilate(verilator, "node", "Vnode", model, sources, *waveforms)
            with phase("runtime"):
                shared = runtime.result()
        with phase("compile"):
            jobs = [
                (path, SLOW_FLAGS if path.stem.endswith("__Slow") else MODEL_FLAGS)
                for path in (*model.glob("*.cpp"), ENGINE / "nodes.cpp")
            ]
            _precompile(model / "Vnode__pch.h", (MODEL_FLAGS, SLOW_FLAGS), [*flags, f"-I{model}"])
            objects = _compile(jobs, model, [*flags, f"-I{model}"])
        with phase("link"):
            compression = ["-llz4", "-lz"] if "--trace-fst" in waveforms else []
            search = [f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
            linked = [*objects, *sorted(shared.glob("*.o")), *search, "-lcocotbvpi_verilator"]
            run([compiler, "-rdynamic", "-o", into / BINARY, *linked, *compression, "-lpthread"])
        shutil.rmtree(model)

    return _once(cache, name, make) / BINARY


def lint(verilog: str) -> None:
    """Run `verilator --lint-only -Wall` over the node and the engine's modules.

    Raises
    ------
    BuildError
        With Verilator's messages, if `sim/engine/waivers.vlt` does not name one of them.
    """
    verilator = find_verilator()
    with tempfile.TemporaryDirectory() as work:
        node = Path(work) / "node.v"
        node.write_text(verilog)
        for top, files in (
            ("node", [ENGINE / "waivers.vlt", node, *sorted(ENGINE.glob("sim_*.sv"))]),
            ("bench", [ENGINE / "waivers.vlt", ENGINE / "bench.sv"]),
        ):
            run(
                [
                    verilator.binary,
                    "--lint-only",
                    "-Wall",
                    "--no-timing",
                    "--top-module",
                    top,
                    *files,
                ],
                VERILATOR_ROOT=str(verilator.root),
            )
