"""The regression catches one-cycle changes to the RTL.

Each change is made in a copy of the tree, built into a cache of its own, and run against the kept
figures. A build takes a minute or two, so this is no part of `make test`: `make campaign` runs it.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]
#: What each campaign leaves: the table that docs/regression.md shows.
TABLE = ROOT / "runs" / "campaign.md"
#: Short scenarios that between them use every part of the machine, idle and full. What they catch,
#: all of them catch.
SCENARIOS = ("main-job", "message-rate", "full-queues", "both-ways")
_HEAD = ["| change | file | caught by | first figure that moves |", "|---|---|---|---|"]


def mutated(text, mutant):
    """The text of a file with the change; it must apply exactly once."""
    found = text.count(mutant["old"])
    assert found == 1, f"{mutant['name']}: {mutant['file']} has the old text {found} times"
    return text.replace(mutant["old"], mutant["new"])


def copied(folder):
    """A copy of what a regression needs, with a cache of its own.

    The parts of a build that do not depend on `hw` are shared.
    """
    for name in ("hw", "sim", "scenarios"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "build").mkdir()
    for shared in (ROOT / "build").glob("shared-*[0-9a-f]"):
        (folder / "build" / shared.name).symlink_to(shared.resolve())
    return folder


def regress(folder, **environment):
    """`bellwire regress` in a copy of the tree; returns exit code, output, and what moved.

    The latter: scenario to rows of path, metric, was, is.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sim.cli", "regress"),
            *(word for name in SCENARIOS for word in ("--only", name)),
        ],
        cwd=folder,
        env=dict(os.environ) | {"PYTHONPATH": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    moved = {}
    if done.returncode in (0, 1):
        for case in ElementTree.parse(folder / "runs" / "regress" / "junit.xml").iter("testcase"):
            for failure in case.iter("failure"):
                rows = [line.split()[1:] for line in (failure.text or "").splitlines()[1:]]
                moved[case.get("name")] = [row for row in rows if len(row) >= 4]
    return done.returncode, done.stdout + done.stderr, moved


@pytest.fixture(scope="session")
def rows():
    """Rows of the table, written at the end."""
    found = []
    yield found
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join([*_HEAD, *found]) + "\n")


@pytest.mark.campaign
def test_unchanged_copy_passes(tmp_path):
    status, output, moved = regress(copied(tmp_path))
    assert (status, moved) == (0, {}), output


@pytest.mark.campaign
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["name"])
def test_one_cycle_change_is_caught(mutant, tmp_path, rows):
    file = copied(tmp_path) / mutant["file"]
    file.write_text(mutated(file.read_text(), mutant))
    status, output, moved = regress(tmp_path)
    # A latency, a rate or a count moves, not only the hash of the log.
    named = [
        f"`{scenario}`, {path}: `{metric}` {was} to {now}"
        for scenario, differences in moved.items()
        for path, metric, was, now, *_ in differences
        if metric not in ("event_log_sha256", "cycles")
    ]
    caught = "all" if len(moved) == len(SCENARIOS) else ", ".join(f"`{name}`" for name in moved)
    rows.append(
        f"| {mutant['name']} | `{mutant['file']}` | {caught if named else 'NOTHING'} | "
        f"{named[0] if named else '-'} |"
    )
    assert status == 1 and named, output


#: Verilator gives what nobody sets a value that the seed in X_SEED decides.
UNSET_IS_RANDOM = [
    {
        "name": "unset values",
        "file": "sim/build.py",
        "old": '"--x-assign",\n    "fast",\n    "--x-initial",\n    "fast",',
        "new": '"--x-assign",\n    "unique",\n    "--x-initial",\n    "unique",',
    },
    {
        "name": "unset values",
        "file": "sim/engine/main.cpp",
        "old": "context.commandArgs(argc, argv);",
        "new": "context.commandArgs(argc, argv);\n    context.randReset(2);\n"
        '    context.randSeed(std::atoi(std::getenv("X_SEED")));',
    },
]


@pytest.mark.campaign
def test_nothing_depends_on_what_nobody_sets(tmp_path):
    """Other values of unset bits, the same event logs."""
    folder = copied(tmp_path)
    for mutant in UNSET_IS_RANDOM:
        file = folder / mutant["file"]
        file.write_text(mutated(file.read_text(), mutant))
    for x_seed in (1, 2, 3):
        status, output, moved = regress(folder, X_SEED=str(x_seed))
        assert (status, moved) == (0, {}), output


# The list itself ------------------------------------------------------------------------------


def test_there_are_at_least_ten_changes_and_each_applies_exactly_once():
    assert len(MUTANTS) >= 10
    assert len({mutant["name"] for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in UNSET_IS_RANDOM:
        mutated((ROOT / mutant["file"]).read_text(), mutant)
    for mutant in MUTANTS:
        assert mutant.keys() == {"name", "file", "old", "new"}
        compile(mutated((ROOT / mutant["file"]).read_text(), mutant), mutant["file"], "exec")


def test_text_that_is_not_there_once_is_refused():
    mutant = {"name": "x", "file": "f", "old": "a", "new": "b"}
    for text in ("", "aa"):
        with pytest.raises(AssertionError, match=f"x: f has the old text {len(text)} times"):
            mutated(text, mutant)
