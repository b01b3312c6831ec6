"""Rates and goodput: the shipped scenarios hold, and with one knob throttled they do not."""

import json
import resource

import pytest
from support_run import SCENARIOS, bellwire, run, toml

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("model")]

RATES = ["message-rate.toml", "nic-ceilings.toml", "goodput-wire.toml", "goodput-pcie.toml"]


def verdict(tmp_path, scenario, *sets):
    words = [word for text in sets for word in ("--set", text)]
    done = bellwire("run", SCENARIOS / scenario, "--json", "--out", "run", *words, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    result = json.loads(done.stdout)
    assert result["violations"] == []
    return done, result


@pytest.mark.parametrize("scenario", RATES)
def test_shipped_expectations_hold(tmp_path, scenario):
    done, result = verdict(tmp_path, scenario)
    assert (done.returncode, result["failures"]) == (0, []), done.stderr


#: Scenario, throttled knobs, metric that fails, and what its value is by the knob's closed form.
THROTTLED = [
    ("message-rate.toml", ["nic.total_mops=100", "workload.0.count=4096"], "rate_mops", (80, 100)),
    ("message-rate.toml", ["nic.wqe_tags=1", "workload.0.count=1024"], "rate_mops", (1, 8)),
    ("nic-ceilings.toml", ["nic.total_mops=100", "workload.0.count=4096"], "rate_mops", (80, 100)),
    ("goodput-wire.toml", ["nic.payload_tags=16", "workload.0.count=4"], "goodput_gbps", (40, 64)),
    ("goodput-wire.toml", ["nic.mtu_bytes=256", "workload.0.count=4"], "goodput_gbps", (170, 182)),
    ("goodput-pcie.toml", ["pcie.mps_bytes=128", "workload.0.count=4"], "goodput_gbps", (170, 192)),
]


@pytest.mark.parametrize(("scenario", "sets", "metric", "within"), THROTTLED)
def test_throttled_knob_breaks_the_expectation(tmp_path, scenario, sets, metric, within):
    done, result = verdict(tmp_path, scenario, *sets)
    assert done.returncode == 1 and result["verdict"] == "fail"
    assert done.stderr.splitlines()[-2].startswith("bellwire: fail: expect.0: ")
    assert any(f"expect.0: {metric}" in failure for failure in result["failures"])
    (group, *_) = result["paths"]["gda_minimal"]["groups"]
    assert within[0] <= group[metric] <= within[1]


def test_limiter_is_named(tmp_path):
    work = {"kind": "put", "producers": 8, "qps": 8, "window": 16}
    found = run(
        toml(
            gpu={"issue_ns": 20, "fence_gpu_ns": 60, "store_issue_ns": 10},
            nic={"total_mops": 20},
            workload=[
                work | {"size": [8], "count": 512},
                work | {"size": [65536], "count": 32, "window": 4},
            ],
        ),
        tmp_path,
    ).must_pass()
    names = [group["limiter"] for group in found.result["paths"]["gda_minimal"]["groups"]]
    assert names == ["nic_total_rate", "wire"]


def test_model_is_fast_and_small(tmp_path):
    """A small part of what two quiet cores reach, so that only a collapse fails."""
    idle = run(toml(workload=[{"kind": "put", "size": [8], "count": 200}]), tmp_path).must_pass()
    assert idle.result["sim"]["cycles_per_s"] > 100_000
    busy = run(SCENARIOS / "message-rate.toml", tmp_path).must_pass()
    assert busy.result["sim"]["cycles_per_s"] > 4_000
    assert busy.result["sim"]["messages_per_s"] > 1_000
    # Of the largest child so far, a simulator or a compiler.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2 << 20
