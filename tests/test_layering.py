"""Who may import whom, and other rules that can be read from the source."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HW = sorted((ROOT / "hw").rglob("*.py"))
SIM = sorted((ROOT / "sim").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
#: Modules that cocotb runs, which export nothing.
ENTRIES = {"sim/bench.py", "sim/speed/engine_bench.py", "sim/speed/stock_bench.py"}
#: Where the test framework may be imported: the modules that it runs, and what starts it.
USERS = {
    "cocotb": ENTRIES,
    "cocotb_tools": {"sim/toolchain.py", "sim/launch.py", "sim/speed/stock.py"},
}
#: The one module that sets environment variables for the simulator.
LAUNCH = "sim/launch.py"


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def imports_of(source, path):
    """Absolute names of the modules that a file imports; `path` resolves the relative ones."""
    package = list(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join(base + (node.module.split(".") if node.module else []))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imports(path):
    return set(imports_of(path.read_text(), path))


def tops(path):
    return {name.split(".")[0] for name in imports(path)}


def is_hw_module(name):
    return (ROOT / (name.replace(".", "/") + ".py")).exists()


def outside(names, *prefixes):
    """Names that have none of the prefixes."""
    return {name for name in names if not name.startswith(prefixes)}


def inside(path):
    """Modules of hw that a file imports."""
    return {name for name in imports(path) if name.startswith("hw.") and is_hw_module(name)}


def offenders(paths, bad):
    """Path to what is wrong with it, for those with something wrong."""
    return {name_of(path): found for path in paths if (found := bad(path))}


def test_hw_imports_amaranth_and_the_standard_library_only():
    allowed = {"amaranth", "hw"} | sys.stdlib_module_names
    assert offenders(HW, lambda path: tops(path) - allowed) == {}


def test_formats_import_formats_only():
    paths = [path for path in HW if path.parent.name == "formats"]
    assert offenders(paths, lambda path: outside(inside(path), "hw.formats.")) == {}


def test_lib_imports_no_block():
    paths = [path for path in HW if path.parent.name == "lib"]
    assert offenders(paths, lambda path: outside(inside(path), "hw.formats.", "hw.lib.")) == {}


def test_blocks_know_neither_nic_nor_node():
    wholes = {"hw.nic", "hw.node", "hw.elaborate"}
    paths = [path for path in HW if path.stem not in ("node", "elaborate")]
    assert offenders(paths, lambda path: imports(path) & wholes) == {}


@pytest.mark.parametrize("package", USERS)
def test_test_framework_is_imported_where_it_runs_only(package):
    found = offenders([*HW, *SIM], lambda path: tops(path) & {package})
    assert set(found) == USERS[package]


def test_sim_imports_no_test():
    ours = {"tests", *(test.stem for test in TESTS)}
    assert offenders(SIM, lambda path: tops(path) & ours) == {}


def test_agents_touch_the_machine_through_their_handles_only():
    """Of hw they know formats and constants; machine and engine are not within their reach."""
    engine = {
        "sim.machine",
        "sim.exchange",
        "sim.node",
        "sim.build",
        "sim.toolchain",
        "sim.launch",
        "sim.bench",
        "ctypes",
    }
    paths = [path for path in SIM if path.parent.name == "agents"]
    assert offenders(paths, lambda path: outside(inside(path), "hw.formats.", "hw.units")) == {}
    assert offenders(paths, lambda path: imports(path) & engine) == {}


def test_hw_annotations_are_objects():
    """Amaranth reads annotations as shapes; as strings they would be none."""
    assert offenders(HW, lambda path: tops(path) & {"__future__"}) == {}


def test_modules_have_docstrings_and_exports():
    def missing(path):
        tree = ast.parse(path.read_text())
        assigned = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        lacks = [] if ast.get_docstring(tree) else ["docstring"]
        exports = "__all__" in assigned or name_of(path) in ENTRIES
        return lacks if exports else [*lacks, "__all__"]

    assert offenders([p for p in [*HW, *SIM] if p.name != "__init__.py"], missing) == {}


def environment_writes(source):
    """Lines of a source that change the environment of the process."""
    calls = {"putenv", "unsetenv"}
    methods = {"update", "setdefault", "pop", "clear", "popitem"}

    def is_environment(node):
        return getattr(node, "attr", getattr(node, "id", "")) in ("environ", "environb")

    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()) if is_environment(value):
                yield node.lineno
            case ast.AugAssign(target=target) if is_environment(target):
                yield node.lineno
            case ast.Call(func=ast.Attribute(value=value, attr=attr)):
                if attr in calls or (attr in methods and is_environment(value)):
                    yield node.lineno


def test_environment_variables_are_set_in_one_place():
    paths = [path for path in [*HW, *SIM] if name_of(path) != LAUNCH]
    assert offenders(paths, lambda path: list(environment_writes(path.read_text()))) == {}


def test_style_is_never_silenced_in_place():
    mark = "# no" + "qa"
    assert offenders([*HW, *SIM, *TESTS], lambda path: mark in path.read_text()) == {}


# The checks themselves ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "os.environ['A'] = '1'",
        "environ['A'] = '1'",
        "del os.environ['A']",
        "os.environ |= {'A': '1'}",
        "os.environ.update(A='1')",
        "os.putenv('A', '1')",
    ],
)
def test_writes_of_the_environment_are_seen(source):
    assert list(environment_writes(source)) == [1]


def test_reads_of_the_environment_are_no_writes():
    assert not list(environment_writes("a = os.environ['A']; b = dict(os.environ) | {'B': '1'}"))


def test_imports_are_seen_at_any_depth_and_level():
    path = ROOT / "hw" / "lib" / "made_up.py"
    source = "import os.path\ndef f():\n    from ..gather import Gather\n    from . import delay\n"
    assert {"os.path", "hw.gather", "hw.lib.delay"} <= set(imports_of(source, path))
