"""Amaranth component to Verilog, in the form that Verilator runs fastest.

The stock back end folds constants while it lowers processes, which breaks word operators into bits;
Verilator then executes them bit by bit. The passes here keep words whole (`proc -noopt`), keep
multiplexers as processes (`-nomux`) and keep tables as case statements (`-norom`). Afterwards
`merge_registers` lets a register be touched only where it changes.
"""

import re
from collections import Counter
from contextlib import contextmanager

from amaranth._toolchain.yosys import find_yosys
from amaranth.back import rtlil
from amaranth.lib import wiring

__all__ = ["manifest", "merge_registers", "to_verilog"]

_PASSES = (
    "proc -nomux -norom -noopt",
    "memory_collect",
    "attrmap -remove generator -remove src -remove top",
    "write_verilog -norename",
)


#: A Verilog name as Yosys writes it: an escaped one ends with a space.
_NAME = r"(?:\\\S+ |[A-Za-z_][\w$]*)"
_ANY_NAME = re.compile(r"\\\S+|[A-Za-z_$][\w$]*")
_MODULE = re.compile(r"^(?=module )", re.M)
_REGISTER = re.compile(rf"^  always @\(posedge clk\)\n    ({_NAME}) <= ({_NAME});\n", re.M)
_PROCESS = re.compile(
    r"^  always @\* begin\n(?:    if \(\\\$auto\$\S+ \) begin end\n)?((?:    .*\n)*?)  end\n", re.M
)
_FIRST = re.compile(rf"    (?:\(\* .* \*\)\n    )?({_NAME}) = (.*);\n")
_DECLARATION = re.compile(rf"^  reg (?:\[\d+:\d+\] )?({_NAME});\n", re.M)


def merge_registers(verilog):
    """Move the process that computes a register's next value into the register's clocked process.

    Amaranth writes `next = r; if (enable) next = x;` and `r <= next`: each register is copied twice
    per cycle, and all of this depends on the input `rst`, so a simulator computes it in both halves
    of the clock. `if (enable) r <= x` means the same and costs nothing while nothing changes. A
    process is moved only if it computes one value that nothing else reads, itself included.
    """
    return "".join(_merge_in_module(module) for module in _MODULE.split(verilog))


def _merge_in_module(module):
    registers = {found[2].strip(): found[1].strip() for found in _REGISTER.finditer(module)}
    uses = Counter(_ANY_NAME.findall(module))
    merged = set()

    def clocked(process):
        body = process[1]
        first = _FIRST.match(body)
        value = first[1].strip() if first else None
        if value not in registers:
            return process[0]
        register = registers[value]
        keeps = first[2].strip() == register
        statements = body[first.end() :] if keeps else body
        name = re.escape(value) + (" " if value[0] == "\\" else r"(?![\w$])")
        target = re.compile(rf"^( +){name} ?((?:\[[\d:]+\])?) *= ", re.M)
        statements, assignments = target.subn(
            lambda found: f"{found[1]}{register} {found[2]} <= ", statements
        )
        # All uses: the declaration, the register that takes it, and the assignments.
        if uses[value] != 2 + keeps + assignments:
            return process[0]
        merged.add(value)
        return f"  always @(posedge clk) begin\n{statements}  end\n"

    module = _PROCESS.sub(clocked, module)
    for pattern, group in ((_REGISTER, 2), (_DECLARATION, 1)):
        module = pattern.sub(
            lambda found, group=group: "" if found[group].strip() in merged else found[0], module
        )
    return module


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
    yosys = find_yosys(lambda version: version >= (0, 40))
    return merge_registers(yosys.run(["-q", "-"], script, ignore_warnings=True))


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
