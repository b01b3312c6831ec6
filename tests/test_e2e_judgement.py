"""Each check of judgement fires on its fault, in a run of the real machine."""

import json
import shutil

import numpy as np
import pytest
from support_run import run, toml

import sim.scoreboard
from hw.formats.events import EventKind
from hw.formats.tlp import MarkKind
from sim import trace
from sim.job import EVENTS_FILE

WORK = {"kind": "put", "size": [8, 300], "count": 6, "producers": 2, "qps": 2}

pytestmark = pytest.mark.usefixtures("model")


def text(name="scenario", workload=(WORK,), **tables):
    return f'name = "{name}"\n' + toml(workload=list(workload), **tables)


def events(*kinds, change):
    """A tamper function: `change` gets the records, and those of one kind (decoded) with rows."""

    def tamper(path, work):
        log = trace.read(work / EVENTS_FILE)
        for kind in kinds:
            log = trace.Events(change(log, log.rows(kind), log.of(kind)))
        (work / EVENTS_FILE).write_bytes(log.records.tobytes())

    return tamper


def without(pick):
    """Drops the rows that `pick` gives of a kind."""
    return lambda log, rows, table: np.delete(log.records, rows[pick(table)])


def twice(pick):
    """Repeats them ten cycles later."""

    def change(log, rows, table):
        more = log.records[rows[pick(table)]].copy()
        more["cycle"] += 10
        return np.concatenate((log.records, more))

    return change


def earlier(pick, by):
    """Moves them."""

    def change(log, rows, table):
        records = log.records.copy()
        records["cycle"][rows[pick(table)]] -= by
        return records

    return change


def first(table):
    return np.arange(len(table["cycle"])) < 1


def last(table):
    return np.arange(len(table["cycle"])) == len(table["cycle"]) - 1


def a_cqe(table):
    return np.flatnonzero(table["mark_kind"] == MarkKind.CQE.value)[:1]


def test_untouched_run_passes_in_the_bench_that_tampers(tmp_path):
    run(text(), tmp_path, module="bench_tamper").must_pass()


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("payload", "wrong_data", 3),
        ("between", "guard_overwritten", None),
        ("source", "guard_overwritten", None),
        ("behind", "guard_overwritten", None),
    ],
)
def test_one_changed_bit_is_found(tmp_path, name, kind, message):
    found = run(text(name), tmp_path, module="bench_tamper")
    (violation,) = found.result["violations"]
    assert violation["kind"] == kind and violation["count"] == 1
    assert violation.get("message") == message
    assert bin(int(violation["expected"], 16) ^ int(violation["found"], 16)).count("1") == 1
    wrong = [group["wrong"] for group in found.result["paths"]["gda_minimal"]["groups"]]
    assert wrong == ([1, 0] if message else [0, 0])
    assert found.result["verdict"] == "fail"


def test_ring_before_its_wqe_is_written_is_found(tmp_path):
    """The NIC reads it in time, here; nobody may count on that."""
    work = {"kind": "put", "size": [8], "count": 2}
    early = text("early", gpu={"issue_ns": 1000}, workload=[work])
    found = run(early, tmp_path, module="bench_tamper")
    assert found.kinds() == {"index_out_of_bounds"}
    assert (
        found.result["violations"][0]["text"]
        == "rung up to 1, but software had written up to nothing"
    )
    assert found.memory["gda_minimal"].total == 0


EVENTS = {
    "a retirement is missing": (
        events(EventKind.RETIRED, change=without(first)), {"never_retired"}
    ),
    "a retirement happens twice": (
        events(EventKind.RETIRED, change=twice(first)), {"retired_twice"}
    ),
    "a CQE is missing": (events(EventKind.COMMIT, change=without(a_cqe)), {"completion_lost"}),
    "a CQE is written twice": (events(EventKind.COMMIT, change=twice(a_cqe)), {"completion_twice"}),
    "a completion is never seen": (
        events(EventKind.SEEN, change=without(last)), {"completion_lost"}
    ),
    "a fetch comes before its ring": (
        events(EventKind.FETCH_REQUESTED, change=earlier(first, 100)), {"index_out_of_bounds"}
    ),
    "a retirement comes before its fetch": (
        events(EventKind.RETIRED, change=earlier(first, 4000)), {"index_out_of_bounds"}
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What the simulator leaves of a good run."""
    folder = tmp_path_factory.mktemp("left")
    good = run(text(), folder, tamper=lambda path, work: shutil.copytree(work, folder / path))
    good.must_pass()
    return folder


@pytest.mark.parametrize("fault", EVENTS)
def test_changed_log_is_found(tmp_path, left, fault):
    tamper, kinds = EVENTS[fault]
    found = run(text(), tmp_path, reuse=left, tamper=tamper)
    assert found.kinds() == kinds, found.result["violations"][:3]
    assert found.result["verdict"] == "fail"


@pytest.mark.parametrize(("link", "name"), [("gpu", "gpu_up"), ("wire", "wire")])
def test_link_that_carries_more_than_its_rate_is_found(tmp_path, monkeypatch, link, name):
    """A good run, judged against a link of a quarter of the rate that it had."""
    of = sim.scoreboard.Rules.of

    def slower(scenario):
        rules = of(scenario)
        if link == "wire":
            object.__setattr__(rules, "wire_interval", 4 * rules.wire_interval)
        else:
            for number in rules.link_intervals:
                rules.link_intervals[number] *= 4
        return rules

    monkeypatch.setattr(sim.scoreboard.Rules, "of", slower)
    work = {"kind": "put", "size": [40_000], "count": 4, "window": 4}
    found = run(text(workload=[work]), tmp_path)
    assert found.kinds() == {"link_over_rate"}
    assert any(v["text"].startswith(f"{name} of node 0") for v in found.result["violations"])


def test_dead_simulator_is_a_violation_and_leaves_a_directory(tmp_path, left):
    def tamper(path, work):
        for name in ("status.json", "messages.json", "memory.json", EVENTS_FILE):
            (work / name).unlink()

    found = run(text(), tmp_path, reuse=left, tamper=tamper)
    assert found.kinds() == {"simulator"}
    assert found.result["paths"]["gda_minimal"]["messages"]["completed"] == 0
    assert json.loads((found.directory / "result.json").read_text()) == found.result


def test_slower_than_the_watchdog_is_a_hang(tmp_path):
    """Nothing is lost here: the watchdog is only shorter than the memory that the NIC reads."""
    check, memory = {"watchdog_us": 5}, {"gpu_read_ns": 20_000}
    found = run(toml(op=[{"size": 8}], check=check, memory=memory), tmp_path / "slow")
    assert found.kinds() == {"hang"}
    assert found.result["hang"]["waits"] == [
        "node 0 qp 0: rung up to 1, fetched up to 0: reads of WQEs up to 1 are unanswered"
    ]


def test_software_that_sleeps_is_no_hang(tmp_path):
    ops = [{"size": 8}, {"size": 8, "at_ns": 90_000, "offset": 64, "remote_offset": 64}]
    run(toml(op=ops, check={"watchdog_us": 20}), tmp_path).must_pass()
