"""Lost packets and limits: a run that cannot go on ends in time, with a report."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support_run import CONTRACT_FILES, SCENARIOS, bellwire, command, environment, run, toml

from sim import trace
from sim.paths import PATHS

BOTH = ("gda_minimal", "ibrc")
LOST = SCENARIOS / "lost-acks.toml"

pytestmark = pytest.mark.usefixtures("model")


def cpu_seconds():
    """CPU time of all processes that this one has started and waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("packet", ["ack", "request"])
@pytest.mark.parametrize("path", PATHS)
def test_lost_packets_end_in_a_report_that_names_the_queue(tmp_path, path, packet):
    drops = {"ack": 1, "request": 0}
    before = cpu_seconds()
    done = bellwire(
        *("run", LOST, "--json", "--out", "run", "--set", f'paths=["{path}"]'),
        *("--set", f'fault.0.packet="{packet}"', "--set", f"fault.0.from={drops[packet]}"),
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    # All of it is computing: so long it takes where nothing else runs.
    assert cpu_seconds() - before < 10
    result = json.loads(done.stdout)
    assert result["failures"][0] == "hang" and "bellwire: fail: hang" in done.stderr
    assert {violation["kind"] for violation in result["violations"]} == {"hang"}
    hang, (violation,) = result["hang"], result["violations"]
    events = len(trace.load(tmp_path / "run" / "events.npz")[path])
    assert hang["path"] == path and len(hang["last_events"]) == min(events, 50)
    if packet == "ack" and path in BOTH:
        # The report keeps the last of them. (Host verbs push: fewer events.)
        assert events > 50
    assert {(queue["node"], queue["qp"]) for queue in hang["queues"]} == {(0, 0), (0, 1)}
    assert (violation["node"], violation["qp"]) in {(0, 0), (0, 1)}
    for queue in hang["queues"]:
        # One put on each QP, and its producer waits for it.
        assert [queue[k] for k in ("posted", "rung", "fetched", "acked", "completed")] == [
            1, 1, 1, 0, 0
        ]  # fmt: skip
        if packet == "ack":
            assert "ACKs of node 1 dropped by a wire fault" in queue["waits"]
        else:
            assert "no packet sent; 1 packets of node 0 dropped by a wire fault" in queue["waits"]
    assert [f"node {q['node']} qp {q['qp']}" for q in hang["queues"]] == [
        wait.partition(":")[0] for wait in hang["waits"] if wait.startswith("node")
    ]
    assert hang["agents"]
    counters = result["paths"][path]["counters"]
    assert counters["drop_wire_fault"] == 2
    assert result["paths"][path]["messages"]["completed"] == 0
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == CONTRACT_FILES


def test_report_is_printed_for_people(tmp_path):
    done = bellwire("run", LOST, "--out", "run", "--set", 'paths=["gda_minimal"]', cwd=tmp_path)
    assert done.returncode == 1
    for word in ("node 0 qp 0", "posted", "rung", "fetched", "acked", "completed"):
        assert word in done.stdout
    assert "verdict: fail" in done.stdout


def test_shipped_scenario_finds_two_hangs_and_nothing_else(tmp_path):
    found = run(LOST, tmp_path)
    assert [(v["path"], v["kind"]) for v in found.result["violations"]] == [
        (path, "hang") for path in BOTH
    ]
    assert not any("expect" in failure for failure in found.result["failures"])


@pytest.mark.parametrize("path", PATHS)
def test_one_lost_ack_is_made_good_by_the_next(tmp_path, path):
    """An ACK covers all before it: nothing is lost but time."""
    text = toml(
        paths=[path],
        workload=[{"kind": "put", "size": [64], "count": 16, "window": 4}],
        fault=[{"kind": "drop", "from": 1, "packet": "ack", "first": 0, "count": 1}],
    )
    found = run(text, tmp_path).must_pass()
    counters = found.result["paths"][path]["counters"]
    assert counters["drop_wire_fault"] == 1 and counters["packets_ack"] >= 15


def test_lost_request_in_the_middle_stops_its_qp_alone(tmp_path):
    text = toml(
        workload=[{"kind": "put", "size": [64], "count": 16, "producers": 2, "qps": 2}],
        fault=[{"kind": "drop", "from": 0, "packet": "request", "first": 5, "count": 1}],
        nic={"ack_timeout": 0},
    )
    found = run(text, tmp_path)
    # It was the last of its window, so no NAK told of it.
    assert found.kinds() == {"hang"}
    (queue,) = found.result["hang"]["queues"]
    other = 1 - queue["qp"]
    done = found.messages["gda_minimal"].columns
    finished = [done["completed"][i] for i in range(16) if done["producer"][i] == other]
    assert finished == [1] * 8
    assert found.status["gda_minimal"].ended == "hang"


@pytest.mark.parametrize("path", BOTH)
def test_lost_packets_are_sent_again(tmp_path, path):
    """Both directions, small and large; the shipped scenario holds its expectations, too."""
    done = bellwire(
        *("run", SCENARIOS / "lost-packets.toml", "--json", "--out", "run"),
        *("--set", f'paths=["{path}"]'),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (group, _) = json.loads(done.stdout)["paths"][path]["groups"]
    segments = group["segments_ns"]
    assert segments["retry"] > 0
    assert sum(segments.values()) == pytest.approx(group["latency_ns"]["mean"])


def test_the_default_timeout_makes_a_lost_packet_good(tmp_path):
    """67 ms pass, far more than the watchdog's patience with a machine that does nothing."""
    text = toml(
        workload=[{"kind": "put", "size": [5000], "count": 2}],
        fault=[{"kind": "drop", "from": 0, "packet": "request", "first": 1, "count": 1}],
    )
    found = run(text, tmp_path).must_pass()
    group = found.result["paths"]["gda_minimal"]["groups"][0]
    assert 67.1e6 < group["latency_ns"]["max"] < 67.2e6
    assert group["segments_ns"]["retry"] == pytest.approx(67.1e6 / 2, rel=0.01)
    assert found.result["paths"]["gda_minimal"]["counters"]["retry_timeout"] == 1


@pytest.mark.parametrize("path", BOTH)
def test_retries_that_run_out_end_with_their_status(tmp_path, path):
    done = bellwire(
        *("run", LOST, "--json", "--out", "run", "--set", f'paths=["{path}"]'),
        *("--set", "nic.ack_timeout=14", "--set", "nic.retry_count=2"),
        *("--set", "nic.timer_scale=0.01"),
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert {violation["kind"] for violation in result["violations"]} == {"completion_status"}
    outcome = result["paths"][path]
    assert outcome["messages"]["statuses"] == {"RETRY_EXC_ERR": 2, "WR_FLUSH_ERR": 6}
    assert outcome["counters"]["retry_timeout"] == 4 and outcome["counters"]["qp_errors"] == 2
    # Two QPs at once, each three times the timeout.
    assert 3 * 671e3 < outcome["sim"]["cycles"] < 3.1 * 671e3


def test_simulated_time_is_limited(tmp_path):
    text = toml(workload=[{"kind": "put", "size": [64], "count": 100}], check={"max_us": 30})
    found = run(text, tmp_path)
    assert found.kinds() == {"limit"} and found.result["verdict"] == "fail"
    (violation,) = found.result["violations"]
    assert "30 us are used up" in violation["text"]
    assert found.result["paths"]["gda_minimal"]["sim"]["cycles"] <= 30_001
    completed = found.result["paths"]["gda_minimal"]["messages"]["completed"]
    assert 0 < completed < 100
    assert found.result["paths"]["gda_minimal"]["groups"][0]["finished"] == completed


def test_wall_time_is_limited(tmp_path):
    work = {"kind": "put", "size": [8], "count": 1 << 15, "producers": 2, "qps": 2}
    start = time.monotonic()
    found = run(toml(workload=[work], check={"wall_s": 1, "watchdog_us": 10}), tmp_path)
    assert found.kinds() == {"limit"}
    assert "wall time is used up (1 s)" in found.result["violations"][0]["text"]
    # Judging and the log of what was done take the rest.
    assert time.monotonic() - start < 60


def children(pid):
    """All processes below a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def simulates(pid):
    """Whether a process is a simulator (one that has just ended is none)."""
    try:
        return b"bellwire-model" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("path", BOTH)
def test_ctrl_c_leaves_what_there_is_and_no_process(tmp_path, path):
    """As a terminal does: the signal goes to the simulator, too."""
    other = BOTH[1 - BOTH.index(path)]
    (tmp_path / "long.toml").write_text(
        toml(
            paths=[path, other],
            workload=[{"kind": "put", "size": [8], "count": 1 << 17, "producers": 4, "qps": 4}],
        )
    )
    process = subprocess.Popen(
        command("run", "long.toml", "--out", "run"),
        cwd=tmp_path,
        env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that starts things in the background has them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        end = time.monotonic() + 60
        # Tools that are asked for their versions are children, too, and gone at once.
        while not any(map(simulates, children(process.pid))) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(3)
        below = children(process.pid)
        assert below
        process.send_signal(signal.SIGINT)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1, err
    assert "bellwire: incomplete: interrupted" in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in below)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["long.toml", "run"]
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == CONTRACT_FILES
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["verdict"] == "incomplete" and "interrupted" in result["failures"]
    assert f"{other}: not run" in result["failures"] and list(result["paths"]) == [path]
    assert "verdict: incomplete" in out
