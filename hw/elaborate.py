"""Amaranth component to Verilog, in the form that Verilator runs fastest.

The stock back end folds constants while it lowers processes, which breaks word operators into bits;
Verilator then executes them bit by bit. The passes here keep words whole (`proc -noopt`), keep
multiplexers as processes (`-nomux`) and keep tables as case statements (`-norom`).
"""

from contextlib import contextmanager

from amaranth._toolchain.yosys import find_yosys
from amaranth.back import rtlil
from amaranth.lib import wiring

__all__ = ["manifest", "to_verilog"]

_PASSES = (
    "proc -nomux -norom -noopt",
    "memory_collect",
    "attrmap -remove generator -remove src -remove top",
    "write_verilog -norename",
)


@contextmanager
def _zeros_are_implied():
    """Leave out the initial value of memories that start as zeros, which is the simulator's own
    start value.

    Written out bit by bit they are four fifths of the conversion's time.
    """
    emit = rtlil.ModuleEmitter.emit_memory

    def emit_unless_zero(self, cell_idx, cell):
        if any(cell.init):
            emit(self, cell_idx, cell)

    rtlil.ModuleEmitter.emit_memory = emit_unless_zero
    try:
        yield
    finally:
        rtlil.ModuleEmitter.emit_memory = emit


def to_verilog(component, name="node"):
    """Convert `component` to Verilog with `name` as the top module."""
    with _zeros_are_implied():
        text = rtlil.convert(component, name=name, emit_src=False)
    script = "\n".join((f"read_rtlil <<rtlil\n{text}\nrtlil", *_PASSES))
    return find_yosys(lambda version: version >= (0, 40)).run(
        ["-q", "-"], script, ignore_warnings=True
    )


def manifest(component: wiring.Component):
    """Ports of `component` by Verilog name: direction and width, read from its signature.

    A testbench that takes names and widths from here cannot drift from the hardware.
    """
    ports = {}

    def collect(member):
        if isinstance(member, list):
            for element in member:
                collect(element)
        elif member["type"] == "interface":
            for inner in member["members"].values():
                collect(inner)
        else:
            ports[member["name"]] = {"dir": member["dir"], "width": member["width"]}

    for member in component.metadata.as_json()["interface"]["members"].values():
        collect(member)
    return ports
