"""The engine with stub nodes: every test is a simulator process of its own."""

import json
from pathlib import Path

import numpy as np
import pytest
from support_engine import stub_binary

from sim.launch import LaunchError, launch, replay
from sim.trace import RECORD, Events

FOLDER = Path(__file__).parent


def run(scenario, path, *, nodes=2, skip=True, rounds=20):
    return launch(
        stub_binary(),
        "bench_stub",
        path,
        nodes=nodes,
        paths=[FOLDER],
        timeout_s=120,
        plusargs={"scenario": scenario, "rounds": rounds, "skip": int(skip)},
    )


def passed(*arguments, **options):
    ended = run(*arguments, **options)
    assert ended.passed, (ended.failures, ended.log.read_text()[-2000:])


def outcome(path):
    return json.loads((path / "out.json").read_text())


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_commands_beats_and_credits_take_exact_cycles(nodes, tmp_path):
    passed("timing", tmp_path, nodes=nodes)


@pytest.mark.parametrize("nodes", [1, 3])
def test_event_log_is_the_same_without_skipping_and_without_python(nodes, tmp_path):
    for skip in (True, False):
        passed("mixed", tmp_path / str(skip), nodes=nodes, skip=skip)
    on, off = outcome(tmp_path / "True"), outcome(tmp_path / "False")
    assert on["sha256"] == off["sha256"]
    assert on["cycles"] == off["cycles"]
    assert on["node_cycles"] < off["node_cycles"] == off["cycles"] * nodes
    assert set(on["kinds"].values()) == {20 * nodes}
    for skip in (True, False):
        dump = tmp_path / "events.bin"
        answer = json.loads(
            replay(
                stub_binary(),
                tmp_path / "True" / "stimulus.bin",
                nodes=nodes,
                skip=skip,
                events=dump,
            )
        )
        assert answer["event_log_sha256"] == on["sha256"]
        assert answer["cycles"] == on["cycles"]
        events = np.fromfile(dump, RECORD)
        assert len(events) == answer["events"]
        assert (Events(events).records == events).all(), "not sorted"
        assert Events(events).sha256 == on["sha256"]


@pytest.mark.parametrize("skip", [True, False])
def test_a_node_may_be_linked_to_itself_port_by_port(skip, tmp_path):
    passed("loopback", tmp_path, nodes=1, skip=skip)


@pytest.mark.parametrize("skip", [True, False])
def test_late_watch_tells_each_commit_in_its_cycle_and_many_at_a_time(skip, tmp_path):
    passed("late", tmp_path, skip=skip)


def test_command_before_software_was_told_is_refused(tmp_path):
    passed("impatient", tmp_path)


@pytest.mark.parametrize("skip", [True, False])
def test_nothing_due_and_nothing_pending_is_a_hang(skip, tmp_path):
    passed("hang", tmp_path, skip=skip)


def test_hang_that_the_test_ignores_ends_the_process(tmp_path):
    ended = run("ignored_hang", tmp_path)
    assert (ended.passed, ended.status) == (False, 6)


@pytest.mark.parametrize("scenario", ["limit", "past", "no_link", "preload"])
def test_engine_rule(scenario, tmp_path):
    passed(scenario, tmp_path, nodes=3 if scenario == "preload" else 2)


def test_exception_of_an_agent_is_the_failure(tmp_path):
    ended = run("raise", tmp_path)
    assert not ended.passed
    assert "agent went wrong" in ended.failures[0]


def test_crash_is_a_failure(tmp_path):
    ended = run("crash", tmp_path)
    assert (ended.passed, ended.status) == (False, -6)


def test_module_without_tests_is_a_failure(tmp_path):
    ended = launch(stub_binary(), "support_engine", tmp_path, paths=[FOLDER], timeout_s=120)
    assert not ended.passed


def test_old_results_do_not_count(tmp_path):
    passed("timing", tmp_path)
    ended = run("crash", tmp_path)
    assert not ended.passed


def test_damaged_recording_is_refused(tmp_path):
    (tmp_path / "bad.bin").write_bytes(b"BWSTIM01" + bytes(3))
    with pytest.raises(LaunchError, match="not a recording"):
        replay(stub_binary(), tmp_path / "bad.bin")
