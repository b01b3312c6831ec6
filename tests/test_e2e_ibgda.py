"""`ibgda` on the whole machine: the flow of one put, warps, sharing, wraps, full queues."""

import numpy as np
import pytest
from support_run import bellwire, run, toml

from hw.formats.events import EventKind
from hw.formats.tlp import MarkKind
from sim import addresses
from sim.scenario import loads
from sim.schema import BadInput

pytestmark = pytest.mark.usefixtures("model")


def put(**changes):
    return {"kind": "put", "size": [8], "count": 1} | changes


def of(**tables):
    return toml(paths=["ibgda"], **tables)


def commits(log, kind):
    """Cycle, memory, offset in it, bytes and whether it came by PCIe, of each commit of a kind."""
    table = log.of(EventKind.COMMIT)
    mask = (table["mark_kind"] == kind.value) & (table["node"] == 0)
    names = ("cycle", "memory", "address", "count", "fabric")
    rows = zip(*(table[name][mask].tolist() for name in names), strict=True)
    return [(cycle, owner, at % (1 << 36), *rest) for cycle, owner, at, *rest in rows]


def test_ibgda_acts_as_its_flow_says(tmp_path):
    found = run(of(workload=[put(size=[24])]), tmp_path).must_pass()
    log, gpu = found.logs["ibgda"], found.scenario.gpu
    (row,) = found.table("ibgda")
    at = {name: float(row[f"at_{name}_ns"]) for name in ("issue", "wqe_written", "ring", "seen")}
    call = gpu.nvshmem_call_ns + gpu.nvshmem_api_ns
    assert at["wqe_written"] - at["issue"] == call + gpu.atomic_ns + gpu.issue_ns
    # Publish, lock, maximum; a look at the reservations; a fence before each of the three.
    steps = 3 * gpu.atomic_ns + gpu.load_ns + 3 * gpu.fence_gpu_ns
    assert at["ring"] - at["wqe_written"] == steps
    (wqe,), (record,), (cqe,) = (
        commits(log, kind) for kind in (MarkKind.WQE, MarkKind.RECORD, MarkKind.CQE)
    )
    # Who of them came by PCIe: the completion.
    assert wqe[1:] == (0, addresses.sq_offset(0, 1024), 64, 0)
    assert record[1:] == (0, addresses.record_offset(0) + 4, 4, 0)
    assert cqe[1:] == (0, addresses.cq_offset(0, 1), 64, 1)
    # A whole fence lies between WQE and record, and between record and doorbell.
    assert record[0] - wqe[0] > gpu.fence_gpu_ns < at["ring"] - (record[0] - 60)
    assert at["seen"] - cqe[0] == gpu.poll_ns + gpu.atomic_ns + gpu.load_ns
    counters = found.result["paths"]["ibgda"]["counters"]
    # One store to the NIC; no word to or from the host.
    assert counters["tlp_gpu_up_posted"] == 1
    assert counters["tlp_host_up_posted"] == counters["tlp_host_down_posted"] == 0
    assert counters["tlp_nic_up_read"] == 2


def test_issue_times_are_the_published_ones_they_were_fitted_to(tmp_path):
    """A Table 3: 4.26 us internal, 5.31 us by the public call, up to the doorbell's store."""
    for published, sets in ((5310, ()), (4260, ("gpu.nvshmem_api_ns=0",))):
        found = run(of(workload=[put()]), tmp_path, *sets).must_pass()
        (row,) = found.table("ibgda")
        issue = float(row["at_ring_ns"]) - float(row["at_issue_ns"])
        assert issue + found.scenario.gpu.store_issue_ns == published


def test_full_warp_shares_one_doorbell_and_one_completion(tmp_path):
    found = run(of(workload=[put(producers=32, count=64)]), tmp_path).must_pass()
    counters = found.result["paths"]["ibgda"]["counters"]
    assert (counters["doorbells"], counters["cqes"]) == (2, 2)
    rows = found.table("ibgda")
    assert [row["rung_by_message"] for row in rows] == ["31"] * 31 + [""] + ["63"] * 31 + [""]
    assert [row["covered_by_message"] for row in rows[:32]] == ["31"] * 31 + [""]
    # They issue, ring and see as one.
    for name in ("issue", "wqe_written", "ring", "seen"):
        assert len({row[f"at_{name}_ns"] for row in rows[:32]}) == 1


def test_every_packet_of_a_put_is_acknowledged(tmp_path):
    """The QPs of other paths ask with the last packet of a message only."""
    text = toml(paths=["ibgda", "gda_minimal"], workload=[put(size=[20_000], count=3)])
    for sets, of_ibgda, of_other in (
        ((), 15, 3),
        (("nic.ack_every_packet=0",), 3, 3),
        (("nic.ack_every_packet=1",), 15, 15),
    ):
        found = run(text, tmp_path, *sets).must_pass()
        for path, acks in (("ibgda", of_ibgda), ("gda_minimal", of_other)):
            counters = found.result["paths"][path]["counters"]
            assert (counters["packets_request"], counters["packets_ack"]) == (15, acks)


@pytest.mark.parametrize(
    ("work", "tables"),
    [
        ({"producers": 31, "count": 100, "size": [8, 300], "window": 2}, {}),
        ({"producers": 256, "count": 1000, "window": 2}, {"sq_depth": 64}),
        ({"producers": 1024, "count": 1500}, {}),
        ({"producers": 96, "qps": 3, "qp_by": "warp", "count": 96, "window": 2}, {"sq_depth": 64}),
        (
            {"producers": 256, "qps": 2, "qp_by": "cta", "cta_threads": 128, "count": 512},
            {"sq_depth": 128, "start_index": 65472},
        ),
        ({"producers": 64, "count": 640, "window": 5}, {"sq_depth": 64, "start_index": 65000}),
        ({"producers": 4, "qps": 4, "count": 40, "window": 3, "scope": "warp"}, {"sq_depth": 32}),
        ({"producers": 4, "qps": 2, "count": 20, "size": [5000], "scope": "block"}, {}),
        ({"producers": 40, "qps": 3, "count": 120, "window": 2, "size": [8, 300]}, {}),
        ({"producers": 128, "qps": 4, "count": 512}, {"sq_depth": 64, "start_index": 65500}),
    ],
    ids=lambda value: "-".join(f"{v}" for v in value.values()) or "default",
)
def test_any_crowd_is_right_to_the_byte(tmp_path, work, tables):
    found = run(of(workload=[put(**work)], nic=tables), tmp_path).must_pass()
    queues = found.status["ibgda"].queues
    assert queues and all(q.posted == q.rung == q.completed > 0 for q in queues)
    # Every queue was rung further each time.
    rings = found.logs["ibgda"].of(EventKind.RING_SEEN)
    for qp in np.unique(rings["qp"]):
        steps = np.diff(rings["producer"][rings["qp"] == qp].astype(np.int64)) & 0xFFFF
        assert np.all((steps > 0) & (steps < 0x8000))


def test_wraps_with_single_threads_and_a_tiny_queue(tmp_path):
    """16-bit block indices; every slot used many times; a doorbell for each call."""
    work = put(producers=7, count=140, window=3, size=[8, 131], offset=13, remote_offset=37)
    found = run(
        of(
            workload=[work],
            gpu={"num_requests_in_batch": 1},
            nic={"sq_depth": 2, "start_index": 65_400},
        ),
        tmp_path,
    ).must_pass()
    indices = found.messages["ibgda"].columns["wqe_index"]
    assert min(indices) < 1000 and max(indices) == 65_535


def test_calls_take_the_queues_in_turn(tmp_path):
    work = {"producers": 3, "qps": 4, "window": 2, "count": 15, "size": [8, 64]}
    found = run(of(workload=[put(**work)]), tmp_path).must_pass()
    same = run(of(workload=[put(**work, qp_by="call")]), tmp_path).must_pass()
    assert found.logs["ibgda"].sha256 == same.logs["ibgda"].sha256
    rows = found.table("ibgda")
    # Whoever makes them, and on through the sizes; at the same time, in the order of the threads.
    rows.sort(key=lambda row: (float(row["at_issue_ns"]), int(row["message"])))
    assert [int(row["qp"]) for row in rows] == [call % 4 for call in range(1, 31)]
    threads = run(of(workload=[put(**work, qp_by="producer")]), tmp_path).must_pass()
    assert [int(row["qp"]) for row in threads.table("ibgda")] == [n % 3 for n in range(15)] * 2


def placed(*ops):
    """Operations with a place of their own each."""
    return [{"size": 8, "offset": 64 * n, "remote_offset": 64 * n} | op for n, op in enumerate(ops)]


@pytest.mark.parametrize(
    "tables",
    [
        {"workload": [put(qps=2, count=2, window=2)]},
        {"op": placed({"qp": 0}, {"qp": 1}, {"qp": 2, "producer": 1})},
    ],
    ids=["calls", "operations"],
)
def test_quiet_waits_for_the_queue_whose_ack_was_lost(tmp_path, tables):
    fault = [{"kind": "drop", "packet": "ack", "count": 1, "from": 1}]
    nic = {"timer_scale": 0.001}
    found = run(of(**tables, nic=nic, fault=fault), tmp_path).must_pass()
    late, timely, *others = found.table("ibgda")
    at = {name: [float(row[f"at_{name}_ns"]) for row in (late, timely)] for name in (
        "issue", "ring", "cqe_written", "seen")}  # fmt: skip
    # Two calls of one thread, to two QPs: the second begins when the first has rung.
    assert late["qp"] != timely["qp"]
    assert at["issue"][0] < at["ring"][0] < at["issue"][1]
    # The one is done long before the other, and the thread knows of neither until both are.
    timeout = found.scenario.queues.ack_timeout_ns(0.001)
    assert at["cqe_written"][0] > at["ring"][0] + timeout > at["cqe_written"][1] + timeout / 2
    assert at["seen"][0] == at["seen"][1] > at["cqe_written"][0]
    # Another thread does not wait for that QP.
    assert all(float(row["at_seen_ns"]) < timeout / 2 for row in others)


def test_explicit_operations_of_threads_and_of_a_warp(tmp_path):
    ops = [
        {"size": 8, "producer": n % 33, "offset": 64 * n, "remote_offset": 64 * n, "at_ns": 50 * n}
        for n in range(70)
    ]
    found = run(of(op=ops), tmp_path).must_pass()
    rows = found.table("ibgda")
    assert len(rows) == 70


@pytest.mark.parametrize("path", ["ibgda", "gda_minimal"])
def test_scalar_values_stand_in_their_wqes(tmp_path, path):
    work = put(scalar=True, size=[1, 2, 4, 8], producers=32, count=64)
    found = run(toml(paths=[path], workload=[work]), tmp_path).must_pass()
    assert not np.any(found.logs[path].of(EventKind.PAYLOAD_REQUESTED)["cycle"])
    assert set(found.messages[path].columns["inline"]) == {1}


def test_payload_in_host_memory_is_fenced_at_system_scope(tmp_path):
    regions = [
        {"name": "a", "node": 0, "memory": "host", "offset": 0, "size": 1 << 16},
        {"name": "b", "node": 1, "memory": "gpu", "offset": 0, "size": 1 << 16},
    ]
    work = put(region="a", remote_region="b")
    found = run(of(workload=[work], region=regions), tmp_path).must_pass()
    plain = run(of(workload=[put()]), tmp_path).must_pass()
    rings = [float(row["ring_ns"]) for row in (found.table("ibgda")[0], plain.table("ibgda")[0])]
    assert rings[0] - rings[1] == found.scenario.gpu.fence_sys_ns


def test_hang_names_the_queue_of_a_crowd(tmp_path):
    fault = [{"kind": "drop", "packet": "ack", "count": -1, "from": 1}]
    found = run(
        of(workload=[put(producers=64, count=512)], fault=fault,
           nic={"sq_depth": 64, "ack_timeout": 0}, check={"watchdog_us": 50}),
        tmp_path,
    )  # fmt: skip
    assert found.result["verdict"] == "fail" and found.kinds() == {"hang"}
    (queue,) = found.result["hang"]["queues"]
    assert (queue["posted"], queue["rung"], queue["completed"]) == (64, 64, 0)
    assert "on the wire" in queue["waits"] and "dropped by a wire fault" in queue["waits"]


def test_a_queue_that_gives_up_tells_every_wqe_signalled_or_not(tmp_path):
    fault = [{"kind": "drop", "packet": "ack", "count": -1, "from": 1}]
    found = run(
        of(workload=[put(producers=64, count=512)], fault=fault,
           nic={"sq_depth": 64, "timer_scale": 0.001}),
        tmp_path,
    )  # fmt: skip
    assert found.kinds() == {"completion_status"}
    statuses = found.result["paths"]["ibgda"]["messages"]["statuses"]
    assert statuses == {"RETRY_EXC_ERR": 1, "WR_FLUSH_ERR": 511}


@pytest.mark.parametrize(
    ("work", "tables", "key"),
    [
        ({"producers": 32}, {"nic": {"sq_depth": 16}}, "nic.sq_depth"),
        ({"producers": 32}, {"nic": {"sq_depth": 32}}, "gpu.num_requests_in_batch"),
        ({}, {"nic": {"sq_depth": 16}}, "gpu.num_requests_in_batch"),
        ({}, {"gpu": {"num_requests_in_batch": 3}}, "gpu.num_requests_in_batch"),
        ({"producers": 32, "qps": 2, "qp_by": "producer"}, {}, "workload.0.qp_by"),
        ({"qp_by": "lane"}, {}, "workload.0.qp_by"),
        ({"cta_threads": 48}, {}, "workload.0.cta_threads"),
        ({}, {"nic": {"cq": "ring"}}, "nic.cq"),
        ({"scalar": True, "size": [4, 3]}, {}, "workload.0.size"),
        ({"scalar": True, "scope": "warp"}, {}, "workload.0.scope"),
        ({}, {"expect": [{"metric": "wrong", "equal": 0, "group": 1}]}, "expect.0.group"),
    ],
)
def test_what_cannot_be_is_one_line(work, tables, key):
    with pytest.raises(BadInput) as error:
        loads(of(workload=[put(**work)], **tables))
    assert error.value.key == key and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "gpu", "key"),
    [
        ("verbs", {}, "workload.0.scalar"),
        ("gda_minimal", {"inline_max_bytes": 4}, "gpu.inline_max_bytes"),
    ],
)
def test_scalar_puts_that_a_path_cannot_do_are_one_line(path, gpu, key):
    with pytest.raises(BadInput) as error:
        loads(toml(paths=[path], gpu=gpu, workload=[put(scalar=True)]))
    assert error.value.key == key


@pytest.mark.parametrize("path", ["gda_minimal", "ibrc", "verbs"])
def test_a_path_whose_calls_do_not_pick_their_queue_says_so(path):
    with pytest.raises(BadInput) as error:
        loads(toml(paths=["ibgda", path], workload=[put(qps=2, qp_by="call")]))
    assert error.value.key == "workload.0.qp_by" and path in str(error.value)
    # Left out, each path does it in its own way.
    loads(toml(paths=["ibgda", path], workload=[put(qps=2)]))


def test_scope_of_a_path_that_has_none_is_one_line(tmp_path):
    (tmp_path / "s.toml").write_text(toml(workload=[put(scope="warp")]))
    done = bellwire("run", "s.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        's.toml: workload.0.scope = "warp": allowed "thread" on path gda_minimal'
    )
