"""The command: exit codes, one-line errors, run directories."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support_result import SCENARIO, fake_launch

import sim.run
from sim import cli, timeline, trace
from sim.launch import LaunchError
from sim.progress import Progress
from sim.scenario import load
from sim.toolchain import BuildError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder to run in, with a good scenario and a model that needs no build."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sim.run, "binary_for", lambda *args, **more: Path("model"))
    monkeypatch.setattr(sim.run, "launch", fake_launch())
    Path("two.toml").write_text(SCENARIO)
    return tmp_path


def left(place):
    return sorted(path.name for path in place.iterdir() if path.name != "two.toml")


BAD = [
    # (arguments, file, key, shown value, part of what is allowed)
    (["absent.toml"], "absent.toml", "file", '"absent.toml"', "readable"),
    (["."], ".", "file", '"."', "readable"),
    (
        ["two.toml", "--set", "nic.sq_depth=48"],
        "--set",
        "nic.sq_depth",
        "48",
        "powers of two from 2",
    ),
    (
        ["two.toml", "--set", "nic.sq_dpeth=64"],
        "--set",
        "nic.sq_dpeth",
        "64",
        "did you mean sq_depth",
    ),
    (["two.toml", "--set", 'nic.sq_depth="64"'], "--set", "nic.sq_depth", '"64"', "an integer"),
    (["two.toml", "--set", "wire.gbps=800"], "--set", "wire.gbps", "800.0", "data path x clock"),
    (["two.toml", "--set", "workload.0.size=0"], "--set", "workload.0.size", "[0]", "allowed 1 to"),
    (["two.toml", "--set", 'workload.0.region="x"'], "--set", "workload.0.region", '"x"', '"send"'),
    (
        ["two.toml", "--set", 'paths=["carrier-pigeon"]'],
        "--set",
        "paths.0",
        '"carrier-pigeon"',
        '"gda_minimal", "ibgda", "ibrc"',
    ),
    (["two.toml", "--set", "preset=h200"], "--set", "preset", '"h200"', "a TOML value"),
    (["two.toml", "--out", "two.toml"], "--out", "out", '"two.toml"', "a new folder"),
]


@pytest.mark.parametrize(("arguments", "file", "key", "value", "allowed"), BAD)
def test_bad_input_is_one_line_exit_2_and_leaves_nothing(
    place, capsys, arguments, file, key, value, allowed
):
    assert cli.main(["run", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    line, *_ = [text for text in err.splitlines() if not text.startswith("model ")]
    assert line.startswith(f"{file}: {key} = {value}: ")
    assert allowed in line
    assert left(place) == []


@pytest.mark.parametrize("text", ["[", "schema = 1\nschema = 2\n", "\xff"])
def test_file_that_is_no_toml_is_bad_input(place, capsys, text):
    Path("bad.toml").write_bytes(text.encode("latin-1"))
    assert cli.main(["run", "bad.toml"]) == 2
    assert capsys.readouterr().err.startswith("bad.toml: ")
    assert left(place) == ["bad.toml"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["run"],
        ["run", "two.toml", "--seed", "x"],
        ["run", "two.toml", "--no"],
        ["schema", "odd"],
        ["explain"],
        ["run", "two.toml", "--js"],
    ],
)
def test_bad_command_line_is_exit_2_with_one_line_first(place, capsys, arguments):
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0].startswith("bellwire")
    assert err.splitlines()[1].startswith("usage:")


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["run", "two.toml", "--seed", "9" * 5000], "allowed 0 to 4294967295"),
        (["run", "two.toml", "--seed", "\u0663"], "allowed 0 to 4294967295"),
        (["waves", "x", "--message", "9" * 5000], "allowed the number of a message"),
        (["regress", "-j", "9" * 5000], "allowed 1 to 256"),
    ],
)
def test_number_that_is_none_or_too_long_is_told_in_a_short_line(place, capsys, arguments, allowed):
    assert cli.main(arguments) == 2
    line = capsys.readouterr().err.splitlines()[0]
    assert allowed in line and len(line) < 200


def test_good_run_leaves_a_complete_directory(place, capsys):
    assert cli.main(["run", "two.toml"]) == 0
    out, err = capsys.readouterr()
    scenario = load("two.toml")
    directory = Path("runs") / scenario.run_name
    assert f"run directory: {directory}" in out
    assert "verdict: pass" in out
    assert sorted(path.name for path in directory.iterdir()) == [
        "events.npz",
        "messages.csv",
        "result.json",
        "scenario.toml",
        "sim.log",
    ]
    assert [path.name for path in Path("runs").iterdir()] == [directory.name]
    result = json.loads((directory / "result.json").read_text())
    assert list(result["paths"]) == ["gda_minimal", "ibrc"]
    assert [g["count"] for g in result["paths"]["ibrc"]["groups"]] == [2, 2]
    assert load(directory / "scenario.toml") == scenario
    assert (
        directory / "sim.log"
    ).read_text() == "=== gda_minimal\nran gda_minimal\n\n=== ibrc\nran ibrc\n\n"
    assert len((directory / "messages.csv").read_text().splitlines()) == 9
    logs = trace.load(directory / "events.npz")
    assert logs["ibrc"].sha256 == result["paths"]["ibrc"]["sim"]["event_log_sha256"]
    assert "simulate ibrc" in err and "simulate gda_minimal: 3/4" in err


def test_second_run_replaces_the_first_with_equal_hash(place, capsys):
    hashes = []
    for _ in range(2):
        assert cli.main(["run", "two.toml", "--json", "--out", "here"]) == 0
        result = json.loads(capsys.readouterr().out)
        hashes.append(result["sim"]["event_log_sha256"])
        assert json.loads(Path("here/result.json").read_text()) == result
    assert hashes[0] == hashes[1]
    assert left(place) == ["here"]


def test_out_folder_that_is_no_run_is_not_replaced(place, capsys):
    Path("mine").mkdir()
    Path("mine/work.txt").write_text("x")
    assert cli.main(["run", "two.toml", "--out", "mine"]) == 2
    assert "--out: out" in capsys.readouterr().err
    assert [path.name for path in Path("mine").iterdir()] == ["work.txt"]


def test_seed_and_set_reach_the_run(place, capsys):
    assert (
        cli.main(["run", "two.toml", "--seed", "9", "--set", "workload.0.count=3", "--json"]) == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["seed"] == 9
    assert result["paths"]["ibrc"]["groups"][0]["count"] == 3


def test_wrong_byte_is_exit_1(place, capsys, monkeypatch):
    monkeypatch.setattr(sim.run, "launch", fake_launch(wrong=(1,)))
    assert cli.main(["run", "two.toml"]) == 1
    out, err = capsys.readouterr()
    assert "verdict: fail" in out
    assert "bellwire: fail: " in err
    assert any("expect.0: wrong" in line for line in out.splitlines())


def test_unmet_expectation_is_exit_1(place, capsys):
    Path("e.toml").write_text(SCENARIO + '[[expect]]\nmetric = "rate_mops"\nabove = 1e6\n')
    assert cli.main(["run", "e.toml"]) == 1
    assert "bellwire: fail: expect.1: rate_mops (gda_minimal, 8 B) is" in capsys.readouterr().err


def test_hang_and_limit_are_exit_1_with_their_report(place, capsys, monkeypatch):
    for ended, kind in (("hang", "hang"), ("limit", "limit"), ("error", "simulator")):
        monkeypatch.setattr(sim.run, "launch", fake_launch(ended=ended))
        assert cli.main(["run", "two.toml", "--json"]) == 1
        result = json.loads(capsys.readouterr().out)
        assert kind in {violation["kind"] for violation in result["violations"]}
        assert (result["hang"] is not None) == (ended == "hang")
        assert result["paths"]["ibrc"]["messages"]["completed"] == 1


def test_simulator_that_dies_is_told(place, capsys, monkeypatch):
    monkeypatch.setattr(sim.run, "launch", fake_launch(die=True))
    assert cli.main(["run", "two.toml", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["violations"][0]["kind"] == "simulator"
    assert "signal 11" in result["violations"][0]["text"]


@pytest.mark.parametrize("where", ["gda_minimal", "ibrc"])
def test_interrupted_run_keeps_what_it_has_and_says_so(place, capsys, monkeypatch, where):
    monkeypatch.setattr(sim.run, "launch", fake_launch(interrupt=where))
    assert cli.main(["run", "two.toml", "--out", "cut"]) == 1
    result = json.loads(Path("cut/result.json").read_text())
    assert result["verdict"] == "incomplete"
    assert "interrupted" in result["failures"]
    finished = [p for p, e in result["paths"].items() if e["messages"]["completed"] == 4]
    assert finished == (["gda_minimal"] if where == "ibrc" else [])
    assert f"ran {where}" in Path("cut/sim.log").read_text()
    assert left(place) == ["cut"]


@pytest.mark.parametrize(
    "error", [BuildError("no compiler: apt install g++"), LaunchError("no shared libpython")]
)
def test_environment_that_lacks_something_is_exit_3(place, capsys, monkeypatch, error):
    def lacking(*args, **more):
        raise error

    monkeypatch.setattr(sim.run, "binary_for", lacking)
    assert cli.main(["run", "two.toml"]) == 3
    assert f"bellwire: {error}" in capsys.readouterr().err
    assert left(place) == []


def test_bug_in_judgement_leaves_nothing_half_done(place, monkeypatch):
    def broken(*args):
        raise RuntimeError("bug")

    monkeypatch.setattr(timeline, "write_csv", broken)
    with pytest.raises(RuntimeError):
        cli.main(["run", "two.toml", "--out", "here"])
    assert left(place) == []


def test_presets_explain_and_schema_speak(capsys):
    assert cli.main(["presets"]) == 0
    out = capsys.readouterr().out
    assert "h200-cx7-ib200" in out and "nic.tx_ns" in out and "arXiv" in out
    assert cli.main(["explain", "nic.tx_ns"]) == 0
    out = capsys.readouterr().out
    assert "source: L nic_post" in out and "free constant 'nic_stage'" in out
    assert cli.main(["explain", "proxy"]) == 0
    assert "proxy.ring_bytes" in capsys.readouterr().out
    assert cli.main(["schema", "scenario"]) == 0
    out = capsys.readouterr().out
    assert "[[fault]]" in out and "sq_depth" in out
    assert ":  (" not in out, "a key has no description"
    assert cli.main(["schema", "result"]) == 0
    assert "links.wire.utilization" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "key"),
    [("MLX5_SHUT_UP_BF", "cpu.bf"), ("MLX5_POST_SEND_PREFER_BF", "cpu.prefer_bf")],
)
def test_explain_knows_what_users_call_a_key(capsys, name, key):
    assert cli.main(["explain", name]) == 0
    assert capsys.readouterr().out.startswith(f"{key}: ")
    assert cli.main(["explain", name[:-1]]) == 2


def test_explain_of_an_unknown_key_is_bad_input(capsys):
    assert cli.main(["explain", "txns"]) == 2
    assert 'explain: KEY = "txns": unknown key; did you mean tx_ns' in capsys.readouterr().err


class _Terminal(io.StringIO):
    def __init__(self, live):
        super().__init__()
        self._live = live

    def isatty(self):
        return self._live


def test_progress_draws_on_a_terminal_and_prints_lines_elsewhere():
    for live in (True, False):
        stream = _Terminal(live)
        progress = Progress(stream)
        with progress.phase("simulate"):
            for done in range(1, 101):
                progress.step(done, 100, "cycle 5")
        progress.build("convert", None)
        progress.build("convert", 1.5)
        assert ("\r" in stream.getvalue()) == live
        assert "build: convert" in stream.getvalue() and "1.5 s" in stream.getvalue()
        assert [name for name, _ in progress.times] == ["simulate", "build: convert"]
        if not live:
            assert stream.getvalue().count("simulate:") == 3
            assert "s to go" in stream.getvalue()


def test_command_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "sim.cli", "schema", "result"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.startswith("bellwire.result/1")
