"""Amaranth component to Verilog, in the form that Verilator runs fastest.

The stock back end folds constants while it lowers processes, which breaks word operators into bits;
Verilator then executes them bit by bit. The passes here keep words whole (`proc -noopt`), keep
multiplexers as processes (`-nomux`) and keep tables as case statements (`-norom`). Afterwards
`merge_registers` lets a register be touched only where it changes, and `plain_names` gives fields
names that every viewer of waveforms takes.
"""

import re
from collections import Counter
from contextlib import contextmanager

from amaranth._toolchain.yosys import find_yosys
from amaranth.back import rtlil
from amaranth.hdl import Fragment, Signal, ValueCastable
from amaranth.hdl._ir import PortDirection
from amaranth.lib import wiring

__all__ = ["convert", "manifest", "merge_registers", "plain_names", "to_verilog"]

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
_ESCAPED = re.compile(r"\\(\S+) ")
#: A field of a struct or array, which Amaranth declares for waveforms.
_FIELD = re.compile(r"^  wire (?:signed )?(?:\[\d+:\d+\] )?\\([^\s.\[]\S*[.\[]\S*) ;$", re.M)


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


def plain_names(verilog):
    """Write fields of structs as plain identifiers: `payload.mark.kind` as `payload__mark__kind`.

    Dots are levels of hierarchy to the tools that read a dump, and to the simulator's own filter.
    """
    return "".join(_plain_in_module(module) for module in _MODULE.split(verilog))


def plain(name):
    """The plain form of a signal's name."""
    return re.sub(r"\]?[.\[]", "__", name).rstrip("]")


def _plain_in_module(module):
    fields = {name: plain(name) for name in _FIELD.findall(module)}
    taken = {name.lstrip("\\") for name in _ANY_NAME.findall(module)}
    for name in fields.values():
        if name in taken:
            raise ValueError(f"field {name} has the name of another signal")
        taken.add(name)
    # A name of the converter's own begins with a dollar and stays escaped.
    written = {name: f"\\{new}" if new[0] == "$" else new for name, new in fields.items()}
    return _ESCAPED.sub(lambda found: f"{written.get(found[1], found[0][:-1])} ", module)


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


def convert(component, name="node"):
    """Convert `component` to Verilog with `name` as the top module.

    Returns
    -------
    verilog : str
    names : dict
        `members`: path of each component in the hierarchy to {member: Verilog name} of what its
        signature holds; path and member have dots. Members that nothing uses are left out.
        `states`: path of each module with state machines to {Verilog name: {number: state}}.
    """
    ports = {
        "__".join(map(str, path)): (_value(value), _DIRECTIONS[member.flow])
        for path, member, value in component.signature.flatten(component)
    }
    design = Fragment.get(component, None).prepare(ports=ports, hierarchy=(name,))
    with _zeros_are_implied():
        text, _ = rtlil.convert_fragment(design, name=name, emit_src=False)
    script = "\n".join((f"read_rtlil <<rtlil\n{text}\nrtlil", *_PASSES))
    yosys = find_yosys(lambda version: version >= (0, 40))
    verilog = yosys.run(["-q", "-"], script, ignore_warnings=True)
    names = {"members": _members(design), "states": _states(design)}
    return plain_names(merge_registers(verilog)), names


def to_verilog(component, name="node"):
    """The Verilog of `convert` alone."""
    return convert(component, name)[0]


_DIRECTIONS = {wiring.In: PortDirection.Input, wiring.Out: PortDirection.Output}


def _value(value):
    return value.as_value() if isinstance(value, ValueCastable) else value


def _members(design):
    """{path: {member: name}} of the components of a design."""
    members = {}
    for origin, fragment in design.elaboratables.items():
        if not isinstance(origin, wiring.Component):
            continue
        info = design.fragments[fragment]
        members[".".join(info.name)] = {
            ".".join(map(str, path)): info.signal_names[signal]
            for path, _, value in origin.signature.flatten(origin)
            if isinstance(signal := _value(value), Signal) and signal in info.signal_names
        }
    return members


def _states(design):
    """{path: {name: states by number}} of the state machines of a design."""
    states = {}
    for info in design.fragments.values():
        for signal, name in info.signal_names.items():
            if callable(signal.decoder):
                texts = [_state(signal, number) for number in range(1 << len(signal))]
                named = {number: text for number, text in enumerate(texts) if text}
                states.setdefault(".".join(info.name), {})[name] = named
    return states


def _state(signal, number):
    """Name of a state; Amaranth shows it as `name/number`, and raises where there is none."""
    try:
        return signal.decoder(number).rpartition("/")[0]
    except KeyError:
        return ""


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
