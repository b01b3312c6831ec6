"""The speed of the model itself: figures, bars, the page; and that each check can fail."""

import json
from io import StringIO
from pathlib import Path

import pytest
from amaranth.sim import Simulator
from support_rig import pack

from hw.formats.context import ConfigWrite
from hw.formats.tlp import PostedBeat
from sim import cli
from sim.launch import LaunchError
from sim.progress import Progress
from sim.report.page import replace_section
from sim.scenario import load
from sim.speed import bars, block, measure, stimulus, stock

ROOT = Path(__file__).resolve().parent.parent
KEYS = (
    "cycles_per_s messages_per_s latency_cycles_per_s replay_ratio stock_ratio build_cold_s "
    "build_warm_s peak_mb"
).split()
CONTEXT = {
    "date": "2026-01-31",
    "machine": {"cpu": "a CPU", "cores": 2, "load": 0.3, "system": "Linux"},
    "versions": {"python": "3.11.2", "cocotb": "2.1.0"},
}
GOOD = CONTEXT | {
    "cycles_per_s": 123456.7,
    "messages_per_s": 5678.9,
    "latency_cycles_per_s": 2.5e6,
    "replay_ratio": 0.756,
    "stock_ratio": 33.3,
    "build_cold_s": 59.96,
    "build_warm_s": 0.013,
    "peak_mb": 396.4,
}
#: Just beyond each bound.
BAD = {
    "cycles_per_s": 79_999,
    "messages_per_s": 2_999,
    "latency_cycles_per_s": 999_999,
    "replay_ratio": 0.699,
    "stock_ratio": 4.99,
    "build_cold_s": 150.1,
    "build_warm_s": 5.01,
    "peak_mb": 2001,
}


def silent():
    return Progress(StringIO())


@pytest.fixture
def canned(monkeypatch):
    figures = dict(GOOD)
    monkeypatch.setattr(measure, "measure", lambda progress: figures)
    return figures


def test_json_has_exactly_the_figures_and_their_context(canned, capsys):
    assert cli.main(["bench", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == GOOD
    assert [key for key in told if key not in CONTEXT] == KEYS == [bar.key for bar in bars.BARS]


def test_table_has_value_bound_and_verdict_of_each_figure(canned, capsys):
    assert cli.main(["bench"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# 2026-01-31, a CPU, 2 cores, Linux, load average 0.3 at the start"
    assert lines[1] == "# python 3.11.2 cocotb 2.1.0"
    assert [line.split()[0] for line in lines[3:]] == KEYS
    assert all(line.endswith("ok") for line in lines[3:])
    assert lines[6].split() == ["replay_ratio", "0.76", ">=", "0.70", "-", "ok"]


@pytest.mark.parametrize("key", KEYS)
def test_each_bar_can_be_missed(key, canned, capsys):
    canned[key] = BAD[key]
    assert cli.main(["bench"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"bellwire: {key} = ") and said.err.count("\n") == 1
    assert [line.split()[0] for line in said.out.splitlines() if "MISSED" in line] == [key]


def test_page_is_what_the_command_writes_and_the_rest_of_it_stays(canned, tmp_path):
    page = tmp_path / "results.md"
    page.write_text((ROOT / "docs" / "results.md").read_text())
    assert cli.main(["bench", "--write", str(page)]) == 0
    text = page.read_text()
    assert text == replace_section(text, "bench", bars.section(GOOD))
    assert "| `replay_ratio` | 0.76 | >= 0.70 | - | ok |" in text
    empty = replace_section(text, "bench", "")
    assert empty == replace_section((ROOT / "docs" / "results.md").read_text(), "bench", "")


def test_committed_page_has_every_figure():
    text = (ROOT / "docs" / "results.md").read_text()
    for bar in bars.BARS:
        assert f"| `{bar.key}` | " in text and bar.meaning in text


@pytest.mark.parametrize("content", [None, "no section"])
def test_page_without_the_section_is_bad_input_and_nothing_is_measured(
    content, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(measure, "measure", lambda progress: pytest.fail("measured"))
    page = tmp_path / "page.md"
    if content:
        page.write_text(content)
    assert cli.main(["bench", "--write", str(page)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not content or page.read_text() == content


# Measuring --------------------------------------------------------------------------------------


def test_measurement_is_the_sum_of_its_parts(monkeypatch):
    """Every figure comes from one of them, and there is no other."""
    for name in ("_builds", "_under_load", "_latency", "_stock"):
        monkeypatch.setattr(measure, name, lambda *a, name=name: {name: 1.0})
    figures = measure.measure(silent())
    assert set(figures) == {
        *CONTEXT,
        "_builds",
        "_under_load",
        "_latency",
        "_stock",
        "peak_mb",
    }
    assert 10 < figures["peak_mb"] < 100_000
    assert set(figures["machine"]) == set(CONTEXT["machine"])


@pytest.mark.parametrize(
    ("intervals", "count"),
    [([], 0), ([(3, 3)], 1), ([(5, 9), (0, 4)], 10), ([(0, 9), (2, 3), (8, 12), (20, 20)], 14)],
)
def test_cycles_are_counted_once(intervals, count):
    assert measure.covered(intervals) == count


def test_a_second_build_that_does_something_is_refused(monkeypatch, tmp_path):
    done = []

    def binary_for(structure, progress, cache):
        done.append(cache)
        if len(done) != 2:
            progress("convert", 1.0)

    monkeypatch.setattr(measure, "binary_for", binary_for)
    scenario = load(ROOT / "scenarios" / "under-load.toml")
    assert measure._builds(scenario, tmp_path, silent()).keys() == {"build_cold_s", "build_warm_s"}
    with pytest.raises(LaunchError, match="did convert"):
        measure._builds(scenario, tmp_path, silent())


SMALL = ("workload.0.count=256", "expect.1.within=[1, 92]")


@pytest.mark.slow
def test_load_is_measured_with_and_without_python(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_ROUNDS", 1)
    figures = measure._under_load(measure._scenario("under-load.toml", *SMALL), tmp_path, silent())
    assert 0 < figures["replay_ratio"] < 1.5
    assert figures["cycles_per_s"] > figures["messages_per_s"] > 0
    figures = measure._latency(
        measure._scenario("doorbell-to-cqe.toml", "workload.0.count=20"), tmp_path, silent()
    )
    assert figures["latency_cycles_per_s"] > 0


@pytest.mark.slow
def test_a_load_that_is_none_and_a_replay_that_differs_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_ROUNDS", 1)
    idle = measure._scenario(
        "doorbell-to-cqe.toml", "gpu.issue_ns=20000", "expect.1.within=[0, 99999]"
    )
    with pytest.raises(LaunchError, match=r"a message is in a NIC in \d+% of the cycles"):
        measure._under_load(idle, tmp_path, silent())
    told = '{"event_log_sha256": "", "cpu_s": 1.0}'
    monkeypatch.setattr(measure, "replay", lambda *a: told)
    with pytest.raises(LaunchError, match="event log differs"):
        measure._under_load(measure._scenario("under-load.toml", *SMALL), tmp_path, silent())


@pytest.mark.slow
def test_a_run_that_fails_is_no_measurement(tmp_path):
    scenario = measure._scenario("doorbell-to-cqe.toml", "expect.1.within=[0, 1]")
    with pytest.raises(LaunchError, match=r"latency_ns\.p50"):
        measure._latency(scenario, tmp_path, silent())


# Our flow and the stock one ---------------------------------------------------------------------

RINGS = [[100 + 4 * number, number] for number in range(len(stimulus.doorbells()))]


def test_flows_that_do_the_same_are_a_pair():
    later = [[cycle + 7, ring] for cycle, ring in RINGS]
    pair = stock.compared(
        {"cycles": 9, "wall_s": 0.5, "rings": RINGS}, {"cycles": 9, "wall_s": 5.0, "rings": later}
    )
    assert pair.ratio == 10


@pytest.mark.parametrize(
    "other",
    [
        {"rings": []},
        {"rings": RINGS[:-1]},
        {"rings": [*RINGS[:-1], [RINGS[-1][0] + 1, RINGS[-1][1]]]},
        {"rings": [*RINGS[:-1], [RINGS[-1][0], RINGS[-1][1] + 1]]},
        {"cycles": 10},
    ],
)
def test_flows_that_differ_are_refused(other):
    run = {"cycles": 9, "wall_s": 1.0, "rings": RINGS}
    for ours, theirs in ((run, run | other), (run | other, run)):
        with pytest.raises(LaunchError, match=r"hw\.doorbell"):
            stock.compared(ours, theirs)


def test_block_of_both_flows_rings_once_for_each_doorbell():
    top, rings = block.DoorbellTop(), []
    sim = Simulator(top)
    sim.add_clock(1e-9)

    async def bench(ctx):
        for table, index, word in stimulus.contexts():
            write = {"table": table, "index": index, "data": int.from_bytes(word, "little")}
            ctx.set(top.config.payload.as_value(), pack(ConfigWrite, write))
            ctx.set(top.config.valid, 1)
            await ctx.tick()
        ctx.set(top.config.valid, 0)
        for raw in stimulus.doorbells()[:100]:
            beat = {"data": int.from_bytes(raw, "little"), "address": stimulus.ADDRESS}
            beat |= {"count": 8, "length": 8, "first": 1, "last": 1}
            ctx.set(top.writes.payload.as_value(), pack(PostedBeat, beat))
            ctx.set(top.writes.valid, 1)
            assert ctx.get(top.writes.ready)
            await ctx.tick()
            ctx.set(top.writes.valid, 0)
            await ctx.tick().repeat(stimulus.GAP - 1)
        await ctx.tick().repeat(60)

    async def watch(ctx):
        async for _, _, valid, ring in ctx.tick().sample(top.ring_valid, top.ring):
            if valid:
                rings.append((ring.qp, ring.producer))

    sim.add_testbench(bench)
    sim.add_process(watch)
    sim.run()
    assert rings == [(number % 64, number // 64 + 1) for number in range(100)]
