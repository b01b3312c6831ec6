"""The regression: exact figures kept per scenario, compared, accepted, reported."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support_result import SCENARIO, fake_launch, group, path_result

import sim.regress
import sim.run
from sim import baseline, cli
from sim.result import build_result
from sim.scenario import loads
from sim.toolchain import BuildError

ROOT = Path(__file__).resolve().parent.parent


# Figures --------------------------------------------------------------------------------------


def figures(*groups, **changes):
    scenario = loads(SCENARIO.replace('["gda_minimal", "ibrc"]', '["gda_minimal"]'))
    paths = [path_result(groups=list(groups) or None, **changes)]
    return baseline.of_result(build_result(scenario, paths, log_sha256="cd" * 32))


def test_figures_name_cycles_segments_counts_and_hash_and_no_wall_time():
    found = figures(group(p50=1000.25))
    assert found["run"] == {"verdict": "pass"}
    path = found["gda_minimal"]
    assert path["cycles"] == 5000 and path["event_log_sha256"] == "ab" * 32
    assert path["8B.latency.p50"] == 1000.25 and path["8B.segment.ring"] == 250.0625
    assert path["counters.doorbells"] == 2 and path["links.wire.packets"] == 4
    assert path["statuses.SUCCESS"] == 2
    assert not [name for name in path if "wall" in name or "per_s" in name]


def test_groups_of_one_size_are_told_apart():
    path = figures(group(p50=10.0), group(p50=20.0))["gda_minimal"]
    assert (path["8B.latency.p50"], path["8B-2.latency.p50"]) == (10, 20)


def test_figures_come_back_from_their_file_as_they_were(tmp_path):
    found = figures(group(p50=1000 / 3), group(size=64, latency_ns=None, segments_ns={}))
    baseline.write(tmp_path / "a" / "x.toml", "x.toml", found)
    assert baseline.read(tmp_path / "a" / "x.toml") == found
    assert baseline.differences(found, baseline.read(tmp_path / "a" / "x.toml")) == []
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x.toml"]


def test_every_kind_of_difference_is_found():
    was = {"run": {"verdict": "pass"}, "a": {"cycles": 5, "counters.x": 2, "8B.landed": 3}}
    now = {"run": {"verdict": "fail"}, "a": {"cycles": 6, "counters.y": 1}, "b": {"cycles": 0}}
    found = {(d.path, d.name): (d.was, d.now, d.change) for d in baseline.differences(was, now)}
    assert found == {
        ("run", "verdict"): ("pass", "fail", ""),
        ("a", "cycles"): (5, 6, "+1"),
        # A counter that is not there is 0, another figure that is not there is none.
        ("a", "counters.x"): (2, 0, "-2"),
        ("a", "counters.y"): (0, 1, "+1"),
        ("a", "8B.landed"): (3, None, ""),
        ("b", "cycles"): (None, 0, ""),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<<<<<<< HEAD\n", "TOML"),
        ("\xff", "TOML"),
        ("a = 1\n", "schema"),
        ('schema = "bellwire.baseline/2"\n', "schema"),
        ('schema = "bellwire.baseline/1"\ncycles = 4\n', "cycles = 4"),
        ('schema = "bellwire.baseline/1"\n[a]\nb.c = [1]\n', "a.b.c = [1]"),
        ('schema = "bellwire.baseline/1"\n[a]\nb = true\n', "a.b = true"),
    ],
)
def test_file_of_figures_that_is_none_is_bad_input(tmp_path, text, told):
    (tmp_path / "x.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(sim.regress.BadInput, match=r"regress --accept") as caught:
        baseline.read(tmp_path / "x.toml")
    assert f"x.toml: {told}" in str(caught.value)


# The command ----------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Two scenarios in an empty folder, and a model that needs no build; figures are kept."""
    monkeypatch.chdir(tmp_path)
    for module in (sim.run, sim.regress):
        monkeypatch.setattr(module, "binary_for", lambda *args, **more: Path("model"))
    monkeypatch.setattr(sim.run, "launch", fake_launch())
    Path("scenarios").mkdir()
    for name in ("one", "two"):
        Path(f"scenarios/{name}.toml").write_text(SCENARIO)
    assert cli.main(["regress", "--accept"]) == 0
    return tmp_path


def kept():
    return {path.name: path.read_text() for path in Path("scenarios/baselines").iterdir()}


def change(name, old, new):
    file = Path(f"scenarios/baselines/{name}.toml")
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))


def test_same_figures_pass_in_any_number_of_jobs(place, capsys):
    for jobs in ("1", "3"):
        assert cli.main(["regress", "-j", jobs]) == 0
        out, err = capsys.readouterr()
        assert out.splitlines()[-1] == "regression: 2 of 2 scenarios as before"
        assert "one: same" in err and "two: same" in err
    assert Path("runs/regress/one/result.json").exists()


def test_one_cycle_fails_and_is_named_everywhere(place, capsys):
    before = kept()
    change("two", "[ibrc]\ncycles = 30000", "[ibrc]\ncycles = 29999")
    assert cli.main(["regress"]) == 1
    out, err = capsys.readouterr()
    assert ["two", "ibrc", "cycles", "29999", "30000", "+1"] in [s.split() for s in out.split("\n")]
    assert "regression: 1 of 2 scenarios as before" in out
    assert "two: differs" in err and "one: same" in err
    summary = Path("runs/regress/summary.md").read_text()
    assert "| two | ibrc | cycles | 29999 | 30000 | +1 |" in summary.splitlines()
    suite = ElementTree.parse("runs/regress/junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "ibrc cycles was 29999, is 30000"
    # What is printed to replay it finds it again, and nothing was accepted meanwhile.
    (line,) = [line for line in out.splitlines() if line.startswith("replay: ")]
    assert line in (failure.text or "")
    words = line.split()
    assert cli.main(words[words.index("regress") :]) == 1
    assert "ibrc" in capsys.readouterr().out
    assert kept()["one.toml"] == before["one.toml"] and kept() != before


def test_accepting_says_what_changed_and_then_all_is_as_before(place, capsys):
    before = kept()
    change("two", "[ibrc]\ncycles = 30000", "[ibrc]\ncycles = 29999")
    assert cli.main(["regress", "--accept"]) == 0
    out = capsys.readouterr().out
    assert "two.toml: accepted, 1 figures changed (verdict pass)" in out
    assert ["two", "ibrc", "cycles", "29999", "30000", "+1"] in [s.split() for s in out.split("\n")]
    assert "one.toml" not in out
    assert kept() == before


def test_scenario_without_figures_and_figures_without_scenario_fail(place, capsys):
    Path("scenarios/one.toml").rename("scenarios/new.toml")
    assert cli.main(["regress"]) == 1
    out = capsys.readouterr().out
    assert "new: no figures are kept" in out
    assert "one: figures are kept, but there is no such scenario" in out
    assert "regression: 1 of 3 scenarios as before" in out
    assert cli.main(["regress", "--only", "two"]) == 0
    assert cli.main(["regress", "--accept"]) == 0
    assert sorted(kept()) == ["new.toml", "two.toml"]


def test_run_that_fails_now_is_not_accepted(place, capsys, monkeypatch):
    before = kept()
    monkeypatch.setattr(sim.run, "launch", fake_launch(wrong=(1,)))
    assert cli.main(["regress"]) == 1
    assert ["two", "run", "verdict", "pass", "fail"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    assert cli.main(["regress", "--accept"]) == 1
    assert "not accepted: verdict was pass, is fail" in capsys.readouterr().out
    assert kept() == before


def test_figures_that_cannot_be_read_are_bad_input_until_they_are_replaced(place, capsys):
    before = kept()
    Path("scenarios/baselines/one.toml").write_text("<<<<<<<")
    assert cli.main(["regress"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("scenarios/baselines/one.toml: TOML: ")
    assert len(err.splitlines()) == 1
    assert cli.main(["regress", "--accept"]) == 0
    assert kept() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["absent"], 'regress: folder = "absent": allowed a folder with scenarios'),
        (["scenarios/one.toml"], 'regress: folder = "scenarios/one.toml": allowed'),
        (["--only", "three"], '--only: name = "three": allowed one, two'),
        (["-j", "0"], "bellwire regress: argument -j: -j = 0: allowed 1 to 256"),
        (["--junit", "scenarios/one.toml/x"], 'regress: report = "scenarios/one.toml/x": allowed'),
        (["--out", "scenarios/one.toml"], 'regress: report = "scenarios/one.toml/junit.xml"'),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_run(place, capsys, arguments, told):
    capsys.readouterr()
    before = kept()
    assert cli.main(["regress", "--accept", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[0].startswith(told)
    assert kept() == before


def test_bad_scenario_stops_all_of_them(place, capsys):
    Path("scenarios/two.toml").write_text(SCENARIO + "[nic]\nsq_depth = 3\n")
    capsys.readouterr()
    assert cli.main(["regress", "--out", "here"]) == 2
    assert capsys.readouterr().err.startswith("scenarios/two.toml: nic.sq_depth = 3: allowed")
    assert not Path("here").exists()


def test_environment_that_lacks_something_is_exit_3(place, capsys, monkeypatch):
    def lacking(*args, **more):
        raise BuildError("no compiler: apt install g++")

    monkeypatch.setattr(sim.regress, "binary_for", lacking)
    assert cli.main(["regress"]) == 3
    assert "bellwire: no compiler" in capsys.readouterr().err


def test_interrupted_regression_accepts_nothing(place, capsys, monkeypatch):
    def interrupted(*args, **more):
        raise KeyboardInterrupt

    before = kept()
    change("two", "[ibrc]\ncycles = 30000", "[ibrc]\ncycles = 29999")
    monkeypatch.setattr(sim.regress, "execute", interrupted)
    assert cli.main(["regress", "--accept"]) == 1
    assert "interrupted, nothing was accepted" in capsys.readouterr().err
    assert kept()["one.toml"] == before["one.toml"] and kept() != before


# What is shipped ------------------------------------------------------------------------------


def test_every_shipped_scenario_has_figures():
    names = {path.name for path in (ROOT / "scenarios").glob("*.toml")}
    assert {path.name for path in (ROOT / "scenarios" / "baselines").iterdir()} == names
    for name in names:
        assert len(baseline.read(ROOT / "scenarios" / "baselines" / name)) > 1
