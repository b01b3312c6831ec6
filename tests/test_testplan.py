"""The test plan and the tests agree, both ways."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLAN = tomllib.loads((ROOT / "docs" / "testplan.toml").read_text())
POINTS = PLAN["testpoint"]
KEYS = {"name", "description", "stage", "tests", "planned", "awaits"}


def functions_of(path):
    """Names of the test functions of a file, without running it."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test_")
    }


def missing(reference):
    """What is not there of `file::function` or `file`; empty if all is."""
    file, _, function = reference.partition("::")
    path = ROOT / "tests" / file
    if not path.exists():
        return f"{file} does not exist"
    return "" if not function or function in functions_of(path) else f"{reference} does not exist"


def referenced():
    return {reference.partition("::")[0] for point in POINTS for reference in point["tests"]}


def test_points_are_well_formed():
    names = [point["name"] for point in POINTS]
    assert len(names) == len(set(names))
    for point in POINTS:
        assert point.keys() <= KEYS, point["name"]
        assert point["description"].endswith("."), point["name"]
        assert point["stage"] in PLAN["stages"], point["name"]


def test_every_listed_test_exists():
    found = [missing(reference) for point in POINTS for reference in point["tests"]]
    assert [problem for problem in found if problem] == []


def test_every_test_file_is_in_the_plan():
    files = {path.name for path in (ROOT / "tests").glob("test_*.py")}
    assert files - referenced() == set()


def test_every_point_has_tests_unless_they_are_for_later_or_awaited():
    """A point that awaits a file must name its tests once the file is there."""
    for point in POINTS:
        assert point.keys() & {"planned", "awaits"} != {"planned", "awaits"}, point["name"]
        assert point.get("planned", True) is True, point["name"]
        awaited = "awaits" in point and not (ROOT / "tests" / point["awaits"]).exists()
        assert bool(point["tests"]) != ("planned" in point or awaited), point["name"]


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("test_testplan.py", ""),
        ("test_testplan.py::test_every_listed_test_exists", ""),
        ("test_testplan.py::test_made_up", "test_testplan.py::test_made_up does not exist"),
        ("test_made_up.py::test_x", "test_made_up.py does not exist"),
    ],
)
def test_missing_tests_are_told(reference, told):
    assert missing(reference) == told
