"""The regression on the real machine: what is shipped is as before, and one nanosecond shows."""

import shutil

import pytest
from support_run import SCENARIOS, bellwire

from sim.preset import load_preset

pytestmark = pytest.mark.usefixtures("model")

#: The shortest of the shipped scenarios; `make regress` runs all of them.
SHORT = "doorbell-to-cqe.toml"


@pytest.fixture
def place(tmp_path):
    """A copy of one shipped scenario and of its figures."""
    (tmp_path / "scenarios" / "baselines").mkdir(parents=True)
    for name in (SHORT, f"baselines/{SHORT}"):
        shutil.copy(SCENARIOS / name, tmp_path / "scenarios" / name)
    return tmp_path


def test_shipped_figures_come_out_again(place):
    done = bellwire("regress", cwd=place)
    assert done.returncode == 0, done.stdout
    assert done.stdout == "regression: 1 of 1 scenarios as before\n"


def test_one_nanosecond_of_one_constant_is_found_and_named(place):
    nanoseconds = load_preset("h200-cx7-ib200").constants["nic"]["cqe_ns"].value
    text = (SCENARIOS / SHORT).read_text()
    changed = text.replace("[[workload]]", f"[nic]\ncqe_ns = {nanoseconds + 1}\n\n[[workload]]", 1)
    (place / "scenarios" / SHORT).write_text(changed)
    done = bellwire("regress", cwd=place)
    assert done.returncode == 1
    rows = {tuple(line.split()[1:3]): line.split()[3:] for line in done.stdout.splitlines()}
    segment = rows["gda_minimal", "8B.segment.cqe_written"]
    assert segment[2] == "+1" and float(segment[1]) == float(segment[0]) + 1
    # The other segments are as they were.
    assert [metric for _, metric in rows if metric.startswith("8B.segment.")] == [
        "8B.segment.cqe_written"
    ]
