"""A failure prints the command that replays it; what a test draws follows from its seed alone."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import seed_of

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(path for name in ("hw", "sim", "tests") for path in (ROOT / name).rglob("*.py"))

#: Tests that fail with what they drew.
FAILING = """
import random
import pytest
from hypothesis import Phase, given, settings, strategies as st

@settings(phases=[Phase.generate])
@given(st.integers(0, 1 << 60))
def test_examples(number):
    assert number < 1000, f"drew example {number}"

@pytest.mark.parametrize("name", ["a b", "c"])
def test_numbers(name, seed):
    pytest.fail(f"drew {name} {seed} {random.random()}")

def test_good():
    assert True
"""


@pytest.fixture
def place(tmp_path):
    """A folder with failing tests and our conftest."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_failing.py").write_text(FAILING)
    return tmp_path


def ended(place, words):
    """A command that ran in the folder, with our modules."""
    return subprocess.run(
        words,
        cwd=place,
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def outcome(place, words):
    """What the tests drew, the commands that were printed, and the last line."""
    done = ended(place, words)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    drawn = {found[1] for line in lines if (found := re.match(r"E .*?\b(drew .*)", line))}
    return drawn, [line[8:] for line in lines if line.startswith("replay: ")], lines[-1]


def pytest_words(*more):
    return [sys.executable, "-m", "pytest", "-q", *more]


def test_printed_command_replays_each_failure_alone(place):
    drawn, commands, last = outcome(place, pytest_words("--seed", "3"))
    assert len(drawn) == len(commands) == 3
    assert last.startswith("3 failed, 1 passed")
    alone = set()
    for command in commands:
        assert command.endswith(" --seed 3")
        again, same, _ = outcome(place, shlex.split(command))
        assert same == [command]
        alone |= again
    assert alone == drawn
    # Nor does company, on another process, change what is drawn; another base does.
    assert outcome(place, pytest_words("-n", "2", "--seed", "3"))[0] == drawn
    assert not outcome(place, pytest_words("--seed", "2"))[0] & drawn


def test_file_that_cannot_be_imported_is_replayed_too(place):
    (place / "test_broken.py").write_text("import absent\n")
    done = ended(place, pytest_words("test_broken.py"))
    assert done.returncode == 2
    assert re.search(r"^replay: .* -m pytest test_broken.py --seed 1$", done.stdout, re.M)


@pytest.mark.parametrize("seed", ["x", "-1", "4294967296"])
def test_bad_seed_is_one_line(place, seed):
    done = ended(place, pytest_words(f"--seed={seed}"))
    assert done.returncode == 4
    assert f"--seed = {seed}: allowed 0 to 4294967295" in done.stderr


def test_seeds_are_of_a_test_and_of_the_base(seed, request):
    assert seed == seed_of(request.config.option.seed, request.node.nodeid)
    assert len({seed_of(base, test) for base in range(8) for test in ("a", "a[1]", "b")}) == 24


# Nothing is random without a seed -------------------------------------------------------------


def unseeded(source):
    """Lines of a source that draw from a generator which nobody seeds there."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = ast.unparse(node.func.value), node.func.attr
        generators = {"random": "Random", "np.random": "default_rng", "numpy.random": "default_rng"}
        if owner in generators and not (name == generators[owner] and node.args):
            yield node.lineno


def test_nothing_draws_from_a_generator_without_a_seed():
    # The seeding itself, in one place.
    allowed = {"tests/conftest.py"}
    found = {
        path.relative_to(ROOT).as_posix() for path in FILES if list(unseeded(path.read_text()))
    }
    assert found == allowed


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("random.random()", [1]),
        ("np.random.default_rng()", [1]),
        ("numpy.random.rand(3)", [1]),
        ("random.Random()", [1]),
        ("random.Random(7).random(); np.random.default_rng([1]); rng.random()", []),
    ],
)
def test_generators_without_a_seed_are_seen(source, lines):
    assert list(unseeded(source)) == lines
