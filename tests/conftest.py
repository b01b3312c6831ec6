"""What all tests share: the model, seeds, and the command that replays a failure.

All that is random in a test follows from one number: of the base seed (`--seed`) and the test's own
id, never of the order or the company in which it runs.
"""

import hashlib
import random
import shlex
import sys
from pathlib import Path

import hypothesis
import pytest

from hw.config import Structure
from sim.run import binary_for

#: (Known to pytest already where the package is installed; under the same name, so only once.)
pytest_plugins = ["sim.vectors_option"]
#: Options on which the outcome of a test depends: they are part of its replay.
REPLAYED = ("--seed", "--vectors", "--pcaps")
#: Where vectors and captures lie beside a checkout.
SHARED = Path(__file__).resolve().parents[2] / "shared"

# Examples come from the seed alone, not from those an earlier run kept; to be slow is no failure.
hypothesis.settings.register_profile(
    "bellwire", database=None, derandomize=False, deadline=None, print_blob=False
)
hypothesis.settings.load_profile("bellwire")


@pytest.fixture(scope="session")
def model():
    """The simulator of the default structure: built by the first test that wants it.

    Others that start at the same time, in other processes too, wait for it (`sim.build`).
    """
    return binary_for(Structure())


@pytest.fixture(scope="session")
def loopback():
    """The simulator of a node whose NIC has two ports."""
    return binary_for(Structure(ports=2))


def pytest_collection_modifyitems(config, items):
    """The campaign builds a model per test: it runs where it is asked for by name only."""
    if "campaign" not in config.option.markexpr:
        kept = [item for item in items if not item.get_closest_marker("campaign")]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def _chosen(request, name):
    """Directory of an option, else the one of its name beside the checkout if it is there."""
    chosen = request.config.getoption(f"--{name}")
    if chosen:
        return Path(chosen)
    if not (SHARED / name).is_dir():
        pytest.skip(f"no ../shared/{name}: choose a directory with --{name} DIR")
    return SHARED / name


@pytest.fixture
def vectors(request):
    """Directory of vectors."""
    return _chosen(request, "vectors")


@pytest.fixture
def pcaps(request):
    """Directory of captures."""
    return _chosen(request, "pcaps")


# Seeds ----------------------------------------------------------------------------------------


def _base_seed(text):
    if not text.isdecimal() or int(text) >= 1 << 32:
        raise pytest.UsageError(f"--seed = {text}: allowed 0 to {(1 << 32) - 1}")
    return int(text)


def pytest_addoption(parser):
    parser.addoption("--seed", type=_base_seed, default=1, help="base of the tests' seeds")


def seed_of(base, test):
    """Seed of one test: 32 bits that follow from the base and the test's id."""
    return int.from_bytes(hashlib.sha256(f"{base} {test}".encode()).digest()[:4], "little")


@pytest.fixture
def seed(request):
    """A seed of this test's own."""
    return seed_of(request.config.option.seed, request.node.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Give generators that a test does not seed itself the test's seed."""
    number = seed_of(item.config.option.seed, item.nodeid)
    random.seed(number)
    test = getattr(item, "obj", None)
    if test is not None and hypothesis.is_hypothesis_test(test):
        hypothesis.seed(number)(test)


# What is printed at the end -------------------------------------------------------------------


def replay(config, nodeid):
    """The command that runs one test again, from where pytest was called."""
    python = Path(sys.executable)
    here = config.invocation_params.dir
    words = [str(python.relative_to(here) if python.is_relative_to(here) else python)]
    words += ["-m", "pytest", config.cwd_relative_nodeid(nodeid)]
    if config.option.markexpr:
        words += ["-m", config.option.markexpr]
    for name in REPLAYED:
        if (value := config.getoption(name)) is not None:
            words += [name, str(value)]
    return shlex.join(words)


def pytest_terminal_summary(terminalreporter, config):
    """Tables that tests leave as a property `table`; then, for each failure, the command that
    replays it.
    """
    stats = terminalreporter.stats
    for report in (report for reports in stats.values() for report in reports):
        for name, text in getattr(report, "user_properties", ()):
            if name == "table" and report.when == "call":
                terminalreporter.section(report.nodeid.rpartition("::")[2])
                terminalreporter.line(text)
    failed = dict.fromkeys(
        report.nodeid for kind in ("failed", "error") for report in stats.get(kind, [])
    )
    if failed:
        terminalreporter.section("replay")
    for nodeid in failed:
        terminalreporter.line(f"replay: {replay(config, nodeid)}")
