"""Test benches of users: the examples of the documentation, and how they fail."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support_run import environment

from sim.testbench import TwoNodes

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
PAGE = (ROOT / "docs" / "your-own-test-bench.md").read_text()


def started(file, folder, *changes):
    """Runs a copy of an example in a folder of its own; `changes` are pairs (old, new) of text."""
    text = file.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    copy = folder / file.name
    copy.write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", copy],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def example(name):
    return next(file for file in EXAMPLES if file.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_example_runs_where_it_was_copied_to(file, tmp_path):
    done = started(file, tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # The payload goes elsewhere.
        ([('nodes.address("gpu", TARGET)', 'nodes.address("gpu", TARGET + 64)')], "assert"),
        # Nobody rings, so that the completion never comes.
        ([("    queue.ring(node.now + 1)\n", "")], "hang in cycle"),
        # Software awaits what its node did not hand out.
        (
            [
                ("import cocotb\n", "import cocotb\nfrom cocotb.triggers import Timer\n"),
                ("await node.sleep(500)", 'await Timer(500, "ns")'),
            ],
            "an agent awaits only what its node hands out",
        ),
    ],
)
def test_a_bench_that_is_wrong_fails_and_says_why(changes, said, tmp_path):
    done = started(example("my_write.py"), tmp_path, *changes)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SimulationFailed" in done.stdout and said in done.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [("(DELAY + 2, QPN, 2)", "(DELAY + 3, QPN, 2)"), ('"qpn": QPN}', '"qpn": QPN + 1}')],
)
def test_a_block_bench_that_is_wrong_fails(old, new, tmp_path):
    assert started(example("my_doorbell.py"), tmp_path, (old, new)).returncode == 1


def test_page_shows_the_files_as_they_are():
    shown = dict(
        re.findall(r"<!-- file (\S+) -->\n```python\n(.*?)```\n<!-- end of file -->", PAGE, re.S)
    )
    assert shown == {file.name: file.read_text() for file in EXAMPLES}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_example_is_short(file):
    lines = file.read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 45


@pytest.mark.parametrize("qps", [0, 65])
def test_number_of_qps_is_bounded(qps):
    with pytest.raises(ValueError, match=f"qps = {qps}: allowed 1 to 64"):
        TwoNodes(None, qps=qps)


@pytest.mark.parametrize("receives", [1, 3, 1 << 16])
def test_depth_of_receive_queues_is_bounded(receives):
    with pytest.raises(ValueError, match=f"receives = {receives}: allowed 0 and powers of two"):
        TwoNodes(None, receives=receives)
