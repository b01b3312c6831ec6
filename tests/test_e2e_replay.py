"""Same seed, same event log: alone, in a suite on several processes, and by a printed command."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest
from support_run import ROOT, SCENARIOS, bellwire

pytestmark = pytest.mark.usefixtures("model")

SCENARIO = SCENARIOS / "doorbell-to-cqe.toml"
#: Tests that leave the hash of their event log.
SUITE = """
import json
from pathlib import Path
import pytest
from support_run import SCENARIOS, run

@pytest.mark.parametrize("turn", range(4))
def test_run(turn, tmp_path, worker_id):
    found = run(SCENARIOS / "doorbell-to-cqe.toml", tmp_path)
    left = {"worker": worker_id, "sha256": found.result["sim"]["event_log_sha256"]}
    Path(f"left-{turn}.json").write_text(json.dumps(left))
"""


def test_event_log_is_the_same_alone_and_on_two_processes(tmp_path):
    done = bellwire("run", SCENARIO, "--json", "--out", "alone", cwd=tmp_path)
    alone = json.loads(done.stdout)["sim"]["event_log_sha256"]
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "test_suite.py"],
        cwd=tmp_path,
        env=dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout
    left = [json.loads((tmp_path / f"left-{turn}.json").read_text()) for turn in range(4)]
    assert {entry["sha256"] for entry in left} == {alone}
    assert {entry["worker"] for entry in left} == {"gw0", "gw1"}


def test_command_that_a_failed_run_prints_gives_the_same_log(tmp_path):
    words = ["--set", "workload.0.count=2", "--set", "expect.0.equal=1", "--seed", "9"]
    done = bellwire("run", SCENARIO, *words, "--json", "--out", "a run", cwd=tmp_path)
    assert done.returncode == 1
    *_, line = done.stderr.splitlines()
    assert line.startswith("replay: ")
    again = subprocess.run(
        [*shlex.split(line.removeprefix("replay: ")), "--json"],
        cwd=tmp_path,
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 1
    first, second = json.loads(done.stdout), json.loads(again.stdout)
    assert second["seed"] == 9 and second["failures"] == first["failures"]
    assert second["sim"]["event_log_sha256"] == first["sim"]["event_log_sha256"]
