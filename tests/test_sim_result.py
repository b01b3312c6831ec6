"""Results: built, judged, validated, compared and printed."""

import copy
import json

import pytest
from support_result import SCENARIO, group, path_result

from sim.job import Job, MemoryCheck, Messages, QueueState, Status, parse_progress, progress_line
from sim.limits import ceilings, limiter, wire_bytes
from sim.names import LIMITERS, METRICS, SEGMENTS
from sim.report.tables import compare_table, grid, report, segment_table
from sim.result import build_result, crossover, schema_text, validate
from sim.scenario import loads

VERSIONS = {"bellwire": "0", "python": "3"}


def result_of(text=SCENARIO, paths=None, **more):
    paths = paths or [path_result(p, [group(8), group(64)]) for p in ("gda_minimal", "ibrc")]
    return build_result(loads(text), paths, log_sha256="cd" * 32, found=VERSIONS, **more)


def expecting(**entry):
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    return SCENARIO + "[[expect]]\n" + lines


def test_good_result_passes_and_keeps_the_schema():
    result = result_of()
    assert result["verdict"] == "pass" and result["failures"] == []
    assert validate(result) == []
    assert validate(json.loads(json.dumps(result))) == []
    assert result["sim"]["cycles"] == 10000
    assert result["sim"]["cycles_per_s"] == 10000
    assert result["sim"]["messages_per_s"] == 4


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda r: r.pop("hang"), "hang is missing"),
        (lambda r: r.update(extra=1), "unknown key 'extra'"),
        (lambda r: r.update(schema="x"), "schema is 'x'"),
        (lambda r: r.update(verdict="good"), "verdict is 'good'"),
        (lambda r: r["sim"].update(cycles="many"), "sim.cycles is 'many'"),
        (lambda r: r["violations"].append({"kind": "odd"}), "unknown kind 'odd'"),
        (lambda r: r["paths"]["ibrc"]["counters"].update(odd=1), "'odd'"),
        (lambda r: r["paths"]["ibrc"]["links"].update(odd={}), "'odd'"),
        (lambda r: r["paths"]["ibrc"]["messages"]["statuses"].update(odd=1), "'odd'"),
        (lambda r: r["paths"]["ibrc"]["groups"][0].update(limiter="luck"), "limiter is 'luck'"),
        (lambda r: r["paths"]["ibrc"]["groups"][0].update(wrong=None), "wrong is None"),
        (lambda r: r["paths"]["ibrc"]["groups"][0]["segments_ns"].update(seen=1), "add up to"),
        (lambda r: r["paths"]["ibrc"]["groups"][0]["segments_ns"].update(odd=0), "'odd'"),
    ],
)
def test_validation_names_what_is_wrong(change, part):
    result = copy.deepcopy(result_of())
    change(result)
    problems = validate(result)
    assert any(part in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("entry", "failures"),
    [
        ({"metric": "latency_ns.p50", "below": 1001}, 0),
        ({"metric": "latency_ns.p50", "below": 1000}, 4),
        ({"metric": "latency_ns.p50", "below": 1000, "path": "ibrc"}, 2),
        ({"metric": "latency_ns.p50", "below": 1000, "path": "ibrc", "size": 64}, 1),
        ({"metric": "latency_ns.mean", "above": 999, "below": 1001}, 0),
        ({"metric": "rate_mops", "within": [0.9, 1.1]}, 0),
        ({"metric": "rate_mops", "within": [1.1, 1.2], "size": 8}, 2),
        ({"metric": "goodput_gbps", "equal": 0.064, "size": 8}, 0),
        ({"metric": "segments_ns.seen", "equal": 500}, 0),
        # Not on the path of any of the four groups: nothing was measured, so nothing holds.
        ({"metric": "segments_ns.fetched", "equal": 0}, 4),
        ({"metric": "count", "equal": 2}, 0),
        ({"metric": "messages.completed", "equal": 2}, 0),
        ({"metric": "messages.statuses.SUCCESS", "equal": 2}, 0),
        ({"metric": "messages.statuses.RETRY_EXC_ERR", "equal": 0}, 0),
        ({"metric": "counters.doorbells", "equal": 2}, 0),
        ({"metric": "counters.drop_wire_fault", "above": 0}, 2),
        ({"metric": "links.wire.packets", "equal": 4}, 0),
        ({"metric": "violations", "equal": 0}, 0),
        ({"metric": "violations.hang", "above": 0, "path": "ibrc"}, 1),
    ],
)
def test_expectation_is_met_or_says_where_not(entry, failures):
    result = result_of(expecting(**entry))
    assert len(result["failures"]) == failures, result["failures"]
    assert result["verdict"] == ("fail" if failures else "pass")
    assert all(f.startswith(f"expect.1: {entry['metric']} (") for f in result["failures"])


@pytest.mark.parametrize(
    ("bounds", "failures", "misses"),
    [
        # Missed at both places, as declared; at one of them; at none.
        ({"below": 1000}, [], ["8 B", "64 B"]),
        ({"below": 1000, "size": 64}, [], ["64 B"]),
        ({"below": 1001}, ["8 B", "64 B"], []),
        ({"below": 1001, "size": 8}, ["8 B"], []),
    ],
)
def test_declared_miss_is_listed_and_a_hit_in_its_place_fails(bounds, failures, misses):
    entry = {"metric": "latency_ns.p50", "path": "ibrc", "miss": "too slow"}
    result = result_of(expecting(**entry, **bounds))
    assert validate(result) == []
    assert result["verdict"] == ("fail" if failures else "pass")
    limit = bounds["below"]
    head = "expect.1: latency_ns.p50 (ibrc, {}) is 1000, expected below {}; {}"
    assert result["failures"] == [head.format(x, limit, "declared a miss") for x in failures]
    assert result["misses"] == [head.format(x, limit, "too slow") for x in misses]
    lines = report(result).splitlines()
    assert [f"known miss: {text}" in lines for text in result["misses"]] == [True] * len(misses)


def test_declared_miss_of_a_value_that_nobody_has_fails():
    entry = {"metric": "segments_ns.fetched", "path": "ibrc", "size": 8}
    result = result_of(expecting(**entry, above=0, miss="no fetch"))
    assert result["verdict"] == "fail" and result["misses"] == []
    assert "is missing" in result["failures"][0]


def test_expectation_on_a_latency_that_nobody_has_fails():
    nobody = [group(8, latency_ns=None, segments_ns={}, finished=0), group(64)]
    paths = [path_result("gda_minimal", nobody), path_result("ibrc", [group(8), group(64)])]
    result = result_of(expecting(metric="latency_ns.p50", below=1e9), paths)
    assert result["failures"] == [
        "expect.1: latency_ns.p50 (gda_minimal, 8 B) is missing, expected below 1e+09"
    ]
    assert validate(result) == []


def test_violation_fails_the_run_and_is_counted():
    bad = [
        {"kind": "wrong_data", "message": 1, "text": "a"},
        {"kind": "wrong_data", "text": "3 more", "count": 3},
        {"kind": "hang", "text": "b"},
    ]
    text = expecting(metric="violations.wrong_data", path="ibrc", equal=4)
    result = result_of(
        text, [path_result(), path_result("ibrc", violations=bad, hang={"queue": "x"})]
    )
    assert result["verdict"] == "fail"
    assert result["failures"] == ["4 x wrong_data", "hang"]
    assert result["hang"] == {"path": "ibrc", "queue": "x"}
    assert [v["path"] for v in result["violations"]] == ["ibrc"] * 3


def test_run_that_is_cut_short_is_incomplete_and_not_judged():
    text = expecting(metric="rate_mops", above=1e6)
    result = result_of(text, [path_result(incomplete="interrupted")], incomplete="interrupted")
    assert result["verdict"] == "incomplete"
    assert result["failures"] == ["interrupted", "gda_minimal: interrupted", "ibrc: not run"]


def test_crossover_names_winner_and_change():
    paths = [
        path_result("gda_minimal", [group(8, 1000.0), group(64, 3000.0)]),
        path_result("ibrc", [group(8, 2000.0), group(64, 2000.0)]),
    ]
    table = crossover(result_of(paths=paths))["gda_minimal/ibrc"]
    assert table["latency_ns.p50"] == {
        "winner": {"8": "gda_minimal", "64": "ibrc"},
        "changes_at": [64],
    }
    assert crossover(result_of(paths=[path_result()])) == {}


def test_tables_hold_every_number_with_its_unit():
    result = result_of()
    rows = compare_table(result).splitlines()
    assert "p50[us]" in rows[0] and "goodput[Gb/s]" in rows[0] and "#wrong" in rows[0]
    assert len(rows) == 5
    assert rows[1].split() == "gda_minimal 8 2 1.000 1.000 1.000 0.06 1.00 latency 0".split()
    segments = [row.split() for row in segment_table(result).splitlines()]
    assert [row[0] for row in segments[1:-1]] == [
        s for s in SEGMENTS if s in ("ring", "tx_first", "seen")
    ]
    assert sum(float(row[1]) for row in segments[1:-1]) == float(segments[-1][-4])
    text = report(result)
    assert text.startswith("# bellwire 0 python 3\n# scenario")
    assert text.endswith("verdict: pass")


def test_report_shows_hang_and_violations():
    bad = [{"kind": "wrong_data", "text": "x", "message": n} for n in range(30)]
    hang = {"queues": [{"node": 0, "qp": 3}], "reason": "no progress"}
    text = report(result_of(paths=[path_result(), path_result("ibrc", violations=bad, hang=hang)]))
    assert "HANG (ibrc)" in text and "node=0 qp=3" in text
    assert "and 10 more violations" in text
    assert "verdict: fail" in text


def test_report_of_nothing():
    nothing = [group(8, latency_ns=None, segments_ns={}, finished=0)]
    text = report(result_of(paths=[path_result(groups=nothing)]))
    assert "0/2" in text and "no message has finished" in text


def test_grid_aligns_columns():
    assert grid([["a", "b"], ["ccc", "1"]]) == "a    b\nccc  1"


def test_schema_text_lists_every_metric():
    text = schema_text().splitlines()
    assert all(f"  {metric}" in text for metric in METRICS)


@pytest.mark.parametrize(
    ("size", "count"), [(8, 50), (7, 50), (4096, 4138), (4097, 4100 + 68), (8192, 8260)]
)
def test_wire_bytes_count_headers_of_every_packet(size, count):
    assert wire_bytes(loads(SCENARIO), size) == count


def test_ceilings_are_closed_forms_and_the_nearest_is_the_limiter():
    scenario = loads(SCENARIO)
    gda = ceilings(scenario, "gda_minimal", scenario.plan.groups[0])
    assert gda["gpu_issue"] == pytest.approx(1000 / 700)
    assert gda["nic_total_rate"] == 260 and gda["nic_qp_rate"] == 31
    assert gda["wire"] == pytest.approx(200e3 / 8 / 50)
    assert gda["pcie_nic"] == pytest.approx(454.8e3 / 8 / (32 + 84))
    proxied = ceilings(scenario, "ibrc", scenario.plan.groups[1])
    assert proxied["proxy_service"] == pytest.approx(1000 / 526)
    assert proxied["gpu_issue"] == pytest.approx(1000 / (160 + 510 + 120))
    assert proxied["pcie_host"] == pytest.approx(454.8e3 / 8 / (4 * 32 + 88))
    assert set(gda) | set(proxied) <= set(LIMITERS)
    assert limiter(1.2, proxied) == "gpu_issue"
    assert limiter(0.3, proxied) == "latency"
    many = loads(SCENARIO, overrides=["workload.0.producers=64"])
    assert limiter(1.8, ceilings(many, "ibrc", many.plan.groups[1])) == "proxy_service"
    assert limiter(0.0, {}) == "latency"


def test_ceilings_of_host_verbs():
    sets = ['paths=["verbs"]', "expect=[]", "workload.0.window=16", "workload.0.batch=4"]

    def of(*more, group=0):
        scenario = loads(SCENARIO, overrides=[*sets, *more])
        return ceilings(scenario, "verbs", scenario.plan.groups[group])

    rate = 454.8e3 / 8
    lists = of("cpu.inline_max_bytes=28", "workload.0.signaled_every=4")
    assert lists["cpu_post"] == pytest.approx(1000 / (20 + 55 / 4))
    # To the NIC: a ring and a completion's head for four WQEs. The payload is in them.
    assert lists["pcie_nic"] == lists["pcie_host"] == pytest.approx(rate / (32 / 4 + 64 + 20 / 4))
    assert "pcie_gpu" not in lists and "gpu_issue" not in lists
    singles = of("workload.0.batch=1", group=1)
    assert singles["cpu_post"] == pytest.approx(1000 / 75)
    assert singles["pcie_nic"] == pytest.approx(rate / (88 + 84))
    assert singles["pcie_host"] == pytest.approx(rate / 88)
    assert singles["pcie_gpu"] == pytest.approx(rate / 84)
    # From host memory, both ways are the host's.
    host = of("workload.0.batch=1", 'workload.0.memory="host"', group=1)
    assert host["pcie_host"] == host["pcie_nic"] == singles["pcie_nic"]
    # Fences wait for stores.
    assert of("memory.host_store_ns=1000")["cpu_post"] == pytest.approx(1000 / (20 + 1000 / 4))
    assert set(lists) | set(singles) <= set(LIMITERS)


def test_job_files_survive_a_round_trip(tmp_path):
    queue = QueueState(node=1, qp=2, posted=5, rung=4, completed=3)
    status = Status(
        ended="hang", cycles=9, wall_s=0.5, reason="why", queues=(queue,), waiting=("a",)
    )
    job = Job(scenario="../s.toml", path="ibrc", seed=4, waves=(1, 2))
    memory = MemoryCheck(payload_bytes=1, guard_bytes=2, wrong=(3,), total=1)
    for value in (status, job, memory):
        value.save(tmp_path)
        assert type(value).load(tmp_path) == value


def test_job_files_refuse_what_they_are_not(tmp_path):
    with pytest.raises(ValueError, match="allowed done"):
        Status(ended="fine", cycles=0, wall_s=0)
    with pytest.raises(ValueError, match="columns"):
        Messages(columns={"message": [1]})
    (tmp_path / "job.json").write_text('{"odd": 1}')
    with pytest.raises(ValueError, match="no Job"):
        Job.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        Status.load(tmp_path)


@pytest.mark.parametrize(
    "line", ["", "@progress", "@progress 1 2", "@progress a b c", "x @progress 1 2 3"]
)
def test_other_lines_are_no_progress(line):
    assert parse_progress(line) is None
    assert parse_progress(progress_line(1, 2, 3)) == (1, 2, 3)
