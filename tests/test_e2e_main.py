"""The main job and every kind of write, on the whole machine, all software paths."""

import hashlib
import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from support_run import CONTRACT_FILES, SCENARIOS, bellwire, run, toml

from hw.formats.events import EventKind
from hw.formats.tlp import BAR_SHIFT, MarkKind, Port, TlpClass
from hw.units import cycles
from sim import addresses, image
from sim.closed_form import completion_tlps, packets, read_tlps, write_tlps
from sim.names import COUNTERS, LANDMARKS
from sim.paths import PATHS
from sim.result import validate
from sim.scenario import load

BOTH = ("gda_minimal", "ibrc")
ALL = tuple(PATHS)
#: Paths that read a ring of CQEs.
RINGS = tuple(path for path in ALL if path != "ibgda")
MAIN = SCENARIOS / "main-job.toml"

pytestmark = pytest.mark.usefixtures("model")


@pytest.fixture(scope="module")
def main_job(tmp_path_factory):
    return run(MAIN, tmp_path_factory.mktemp("main"))


# The main job ---------------------------------------------------------------------------------


def test_main_job_is_right_on_both_paths(main_job):
    main_job.must_pass()
    assert list(main_job.result["paths"]) == list(BOTH)
    for entry in main_job.result["paths"].values():
        assert [(g["size"], g["count"], g["finished"]) for g in entry["groups"]] == [
            (size, 32, 32) for size in (8, 64, 512, 4096)
        ]
        dropped = {n for n in COUNTERS if n.startswith("drop_") and entry["counters"][n]}
        # A push that comes while older WQEs wait is none that is lost: it is fetched.
        assert dropped <= {"drop_push_unused"}
        for group in entry["groups"]:
            assert sum(group["segments_ns"].values()) == pytest.approx(group["latency_ns"]["mean"])
            assert min(group["segments_ns"].values()) >= 0


def test_run_directory_holds_exactly_the_contract(main_job):
    folder, result = main_job.directory, main_job.result
    assert sorted(path.name for path in folder.iterdir()) == CONTRACT_FILES
    assert json.loads((folder / "result.json").read_text()) == result
    assert load(folder / "scenario.toml") == main_job.scenario
    for path, entry in result["paths"].items():
        assert len(main_job.table(path)) == entry["messages"]["posted"] == 128
        log = main_job.logs[path]
        assert log.sha256 == entry["sim"]["event_log_sha256"]
        assert hashlib.sha256(log.records.tobytes()).hexdigest() == log.sha256
        # Self-describing: every kind in it has its name and its fields.
        assert all(log.layouts[kind]["fields"] is not None for kind in set(log.records["kind"]))
        assert log.decode([0])[0].keys() >= {"cycle", "node", "kind"}
    text = "".join(f"{path} {main_job.logs[path].sha256}\n" for path in result["paths"])
    assert hashlib.sha256(text.encode()).hexdigest() == result["sim"]["event_log_sha256"]
    assert "=== gda_minimal" in (folder / "sim.log").read_text()


def test_rows_of_messages_add_up_to_the_groups(main_job):
    for path, entry in main_job.result["paths"].items():
        rows = main_job.table(path)
        for group in entry["groups"]:
            mine = [float(r["latency_ns"]) for r in rows if int(r["size_bytes"]) == group["size"]]
            assert np.mean(mine) == pytest.approx(group["latency_ns"]["mean"])
            assert max(mine) == group["latency_ns"]["max"]
        for row in rows:
            at = [float(row[f"at_{name}_ns"]) for name in LANDMARKS if row[f"at_{name}_ns"]]
            assert float(row["at_seen_ns"]) - float(row["at_issue_ns"]) == float(row["latency_ns"])
            assert at[0] == float(row["at_issue_ns"]) and at == sorted(at)


def test_command_prints_tables_and_warm_runs_in_time(tmp_path):
    done = bellwire("run", MAIN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "verdict: pass" in done.stdout and "run directory: runs/main-job-" in done.stdout
    heads = [line for line in done.stdout.splitlines() if line.startswith(("path", "segment"))]
    assert "#wrong" in heads[0] and "ibrc 8B" in heads[1]
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(BOTH)]
    assert len(rows) == 8 and all(row[-1] == "0" for row in rows)
    (directory,) = (tmp_path / "runs").iterdir()
    result = json.loads((directory / "result.json").read_text())
    # 20 s on two quiet cores, and the two tests of this machine may share them.
    assert result["sim"]["wall_s"] < 20


def test_json_prints_the_result_alone_and_set_reaches_it(tmp_path):
    done = bellwire(
        *("run", MAIN, "--json", "--out", "here", "--seed", "11"),
        *(
            "--set",
            'paths=["ibrc"]',
            "--set",
            "workload.0.size=[24]",
            "--set",
            "workload.0.count=3",
        ),
        *("--set", "workload.0.producers=1", "--set", "expect=[]", "--set", "nic.cqe_ns=300"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads((tmp_path / "here" / "result.json").read_text())
    assert validate(result) == [] and result["seed"] == 11
    assert [(g["size"], g["count"]) for g in result["paths"]["ibrc"]["groups"]] == [(24, 3)]
    assert load(tmp_path / "here" / "scenario.toml").nic.cqe_ns == 300
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_unmet_expectation_is_exit_1(tmp_path):
    done = bellwire(
        *("run", MAIN, "--out", "here", "--set", 'paths=["gda_minimal"]'),
        *("--set", 'expect=[{metric = "latency_ns.p50", below = 1}]'),
        *("--set", "workload.0.count=8"),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2].startswith("bellwire: fail: expect.0: latency_ns.p50 ")
    result = json.loads((tmp_path / "here" / "result.json").read_text())
    assert result["verdict"] == "fail" and result["violations"] == []


# Seeds ----------------------------------------------------------------------------------------

SMALL = toml(
    paths=BOTH,
    workload=[
        {"kind": "put", "size": [8, 700], "count": 12, "producers": 3, "qps": 2, "window": 2}
    ],
)


def test_same_seed_gives_the_same_log_alone_and_after_others(tmp_path):
    first = run(SMALL, tmp_path).must_pass()
    run(SMALL, tmp_path, 'paths=["ibrc"]', "nic.mtu_bytes=256", seed=3).must_pass()
    again = run(SMALL, tmp_path).must_pass()
    text = tmp_path / "scenario.toml"
    text.write_text(SMALL)
    alone = bellwire("run", text, "--json", "--out", "alone", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    hashes = [
        result["sim"]["event_log_sha256"]
        for result in (first.result, again.result, json.loads(alone.stdout))
    ]
    assert len(set(hashes)) == 1
    # The stored logs are the same bytes, too.
    stored = [(o.directory / "events.npz").read_bytes() for o in (first, again)]
    assert stored[0] == stored[1]
    assert (tmp_path / "alone" / "events.npz").read_bytes() == stored[0]


def test_other_seed_gives_other_bytes_and_the_same_verdict(tmp_path):
    one, two = run(SMALL, tmp_path, seed=1).must_pass(), run(SMALL, tmp_path, seed=2).must_pass()
    assert one.scenario.run_name != two.scenario.run_name
    for region in one.scenario.plan.regions:
        assert np.mean(image.initial(region, 1) != image.initial(region, 2)) > 0.9
    # Time does not depend on what the bytes are.
    assert one.result["sim"]["event_log_sha256"] == two.result["sim"]["event_log_sha256"]


# Every kind of write ----------------------------------------------------------------------------

SIZES = [1, 3, 4, 7, 28, 29, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097, 7408, 12289]


def puts(**changes):
    return {
        "kind": "put", "size": SIZES, "count": 8, "producers": 4, "qps": 2, "window": 2,
        "offset": 1, "remote_offset": 3,
    } | changes  # fmt: skip


VARIANTS = {
    "host verbs: lists, moderated": {
        "paths": ("verbs",),
        "cpu": {"inline_max_bytes": 64, "poll_batch": 2},
        "nic": {"sq_depth": 8, "cq_depth": 8, "mtu_bytes": 1024},
        "workload": [puts(window=8, count=48, batch=3, signaled_every=4, producers=3)],
    },
    "host verbs: one at a time, unsignalled": {
        "paths": ("verbs",),
        "cpu": {"inline_max_bytes": 972, "prefer_bf": False},
        "nic": {"sq_depth": 256, "cq_depth": 256},
        "workload": [puts(window=8, count=160, signaled_every=4, qps=1)],
    },
    "host verbs: a register without BlueFlame": {
        "paths": ("verbs",),
        "cpu": {"uar": "nc"},
        "nic": {"sq_depth": 4, "cq_depth": 4, "fetch_blocks": 1},
        "workload": [
            puts(memory="host", remote_memory="host", count=16),
            puts(memory="host", size=[900], node=1, peer=0, count=24),
            puts(size=[900], count=16),
        ],
    },
    "odd places": {"workload": [puts(), puts(node=1, peer=0, offset=62, remote_offset=33)]},
    "tiny rings, CQ of CQEs, small packets": {
        "paths": RINGS,
        "gpu": {"inline_max_bytes": 0},
        "cpu": {"bf": False},
        "proxy": {"ring_bytes": 256, "request_batch_max": 3, "complete_every_bytes": 64},
        "pcie": {"mps_bytes": 128, "mrrs_bytes": 128},
        "nic": {"sq_depth": 2, "cq": "ring", "cq_depth": 2, "mtu_bytes": 256},
        # One producer: with several, a full request ring is tested below.
        "workload": [puts(window=12, count=24, producers=1, qps=1)],
    },
    "inlined over several blocks, across the ring's end": {
        "paths": RINGS,
        "gpu": {"inline_max_bytes": 972},
        "pcie": {"mps_bytes": 512, "mrrs_bytes": 4096},
        "nic": {"sq_depth": 16, "cq": "ring", "cq_depth": 16, "mtu_bytes": 512},
        "workload": [
            puts(size=[1, 28, 29, 92, 93, 255, 256, 257, 511, 700, 972, 973], window=4, count=24)
        ],
    },
    "unsignalled, in batches": {
        "gpu": {"num_requests_in_batch": 4},
        "nic": {"sq_depth": 8, "mtu_bytes": 1024, "ack_every_packet": 1},
        "pcie": {"mps_bytes": 512, "mrrs_bytes": 4096},
        "proxy": {"warm": True, "complete_every_bytes": 32},
        "workload": [puts(window=8, count=40, batch=3, signaled_every=4, qps=4)],
    },
    "unsignalled, in batches, CQ of CQEs": {
        "paths": ("gda_minimal",),
        "nic": {"sq_depth": 4, "cq": "ring", "cq_depth": 4, "mtu_bytes": 2048, "fetch_blocks": 1},
        "workload": [puts(window=4, count=40, batch=2, signaled_every=3, qps=1, producers=3)],
    },
    "several data segments": {
        "paths": ("gda_minimal",),
        "gpu": {"segments": 5, "inline_max_bytes": 3},
        "nic": {"sq_depth": 8, "mtu_bytes": 256},
        "workload": [puts(count=16, offset=61)],
    },
    "thirty data segments, in the ring of one WQE": {
        "paths": ("gda_minimal",),
        "gpu": {"segments": 30, "inline_max_bytes": 0},
        "nic": {"sq_depth": 8},
        "pcie": {"mps_bytes": 64, "mrrs_bytes": 64},
        "workload": [puts(count=4, producers=1, qps=1)],
    },
    "payload in host memory": {
        "paths": ("gda_minimal", "verbs"),
        "region": [
            {"name": "a", "node": 0, "memory": "host", "offset": 0, "size": 1 << 20},
            {"name": "b", "node": 1, "memory": "host", "offset": 4096, "size": 1 << 20},
        ],
        "workload": [puts(region="a", remote_region="b")],
    },
    "payload in host memory, to a GPU": {
        "region": [
            {"name": "a", "node": 0, "memory": "host", "offset": 128, "size": 1 << 20},
            {"name": "b", "node": 1, "memory": "gpu", "offset": 64, "size": 1 << 20},
        ],
        "workload": [puts(region="a", remote_region="b")],
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_write_variants(tmp_path, name):
    found = run(toml(**{"paths": ALL} | VARIANTS[name]), tmp_path).must_pass()
    for path in found.scenario.paths:
        used = blocks_of_queues(found, path)
        if "sq_depth" in VARIANTS[name].get("nic", {}):
            # Each queue went round several times.
            assert min(used.values()) >= 3 * found.scenario.queues.sq_depth


def test_full_request_ring_is_shared_by_several_producers(tmp_path):
    work = {"kind": "put", "size": [8, 100], "count": 60, "producers": 5, "qps": 2, "window": 12}
    proxy = {"ring_bytes": 512, "complete_every_bytes": 512}
    run(toml(paths=["ibrc"], proxy=proxy, workload=[work]), tmp_path).must_pass()


def blocks_of_queues(found, path):
    """Blocks that were posted to each queue."""
    used = Counter()
    columns = (found.messages[path].columns[key] for key in ("node", "qp", "blocks"))
    for node, qp, blocks in zip(*columns, strict=True):
        used[node, qp] += blocks
    return used


def test_64_qps_at_once_in_both_directions(tmp_path):
    work = {"kind": "put", "size": [8, 200], "count": 256, "producers": 128, "qps": 64}
    found = run(
        toml(
            paths=BOTH,
            nic={"sq_depth": 4},
            workload=[work, work | {"node": 1, "peer": 0, "size": [9, 4097]}],
        ),
        tmp_path,
    ).must_pass()
    for path in BOTH:
        assert len(blocks_of_queues(found, path)) == 2 * 64


def test_explicit_operations_of_a_qp_act_in_order(tmp_path):
    """Every further write hits part of what the one before it wrote."""
    ops = [
        {
            "producer": index % 3, "qp": index % 3, "signaled": index % 2 == 0,
            "size": size, "offset": 1000 * index + index,
            "remote_offset": 20_000 * (index % 3) + 7 * index,
        }
        for index, size in enumerate([5000, 8, 4097, 28, 29, 300, 1, 2, 4096, 64, 65, 900])
    ]  # fmt: skip
    gpu, nic = {"num_requests_in_batch": 4}, {"sq_depth": 4, "mtu_bytes": 512}
    found = run(toml(paths=ALL, op=ops, gpu=gpu, nic=nic), tmp_path)
    found.must_pass()
    for path in ALL:
        rows = found.table(path)
        for qp in range(3):
            landed = [float(row["at_landed_ns"]) for row in rows if int(row["qp"]) == qp]
            assert len(landed) == 4 and landed == sorted(landed)


def test_a_producer_of_a_proxy_is_one_thread_on_all_its_qps(tmp_path):
    """One request after the other, in the order of the file."""
    ops = [
        {"qp": index % 3, "size": 8, "offset": 64 * index, "remote_offset": 64 * index}
        for index in range(9)
    ]
    found = run(toml(paths=["ibrc"], op=ops), tmp_path).must_pass()
    rows = found.table("ibrc")
    assert [int(row["qp"]) for row in rows] == [0, 1, 2] * 3
    issue, written = (
        [float(row[f"at_{n}_ns"]) for row in rows] for n in ("issue", "request_written")
    )
    # None is issued before the last one is written.
    assert all(end <= begin for end, begin in zip(written, issue[1:], strict=False))


@pytest.mark.slow
def test_block_index_of_a_queue_wraps_at_65536(tmp_path):
    """WQEs of 16 blocks, so that a short run goes round."""
    work = {"kind": "put", "size": [972], "count": 4200, "window": 16, "batch": 8}
    found = run(toml(gpu={"inline_max_bytes": 972}, workload=[work]), tmp_path).must_pass()
    assert blocks_of_queues(found, "gda_minimal") == {(0, 0): 16 * 4200}
    indices = found.messages["gda_minimal"].columns["wqe_index"]
    assert indices[4095:4098] == [65520, 0, 16]


# Counts of TLPs ---------------------------------------------------------------------------------

#: Size, and offset of the row at both ends: the rows of the published table.
ROWS = [
    (8, 0), (64, 0), (256, 0), (1024, 0), (4096, 0), (7408, 0), (7408, 3312), (14336, 0), (65536, 0)
]  # fmt: skip
SPACING = 1 << 17


def up(port, kind):
    return 2 * port.value, kind.value


@pytest.mark.parametrize(("mrrs", "mtu"), [(512, 4096), (4096, 1024)])
def test_tlps_of_each_payload_are_the_closed_form(tmp_path, mrrs, mtu):
    ops = [
        {"size": size, "offset": SPACING * n + at, "remote_offset": SPACING * n + at,
         "at_ns": 100_000 * n}
        for n, (size, at) in enumerate(ROWS)
    ]  # fmt: skip
    found = run(
        toml(
            op=ops,
            gpu={"inline_max_bytes": 0},
            pcie={"mrrs_bytes": mrrs},
            nic={"mtu_bytes": mtu},
        ),
        tmp_path,
    ).must_pass()
    log, scenario = found.logs["gda_minimal"], found.scenario
    sent, first = log.of(EventKind.TLP_SENT), log.of(EventKind.TX_FIRST)
    starts = [*log.of(EventKind.ISSUE)["cycle"].tolist(), log.last_cycle + 1]
    expected = Counter()
    for (size, at), (begin, end) in zip(ROWS, pairwise(starts), strict=True):

        def count(node, port, kind, begin=begin, end=end):
            inside = (sent["cycle"] >= begin) & (sent["cycle"] < end) & (sent["node"] == node)
            link, number = up(port, kind)
            return np.count_nonzero(inside & (sent["link"] == link) & (sent["tlp"] == number))

        cuts = [length for length, _ in packets(scenario.wire, size, mtu)]
        ends = np.cumsum([0, *cuts])
        reads = len(read_tlps(scenario.pcie, at, size))
        completions = len(completion_tlps(scenario.pcie, at, size))
        writes = sum(
            len(write_tlps(scenario.pcie, at + int(start), length))
            for start, length in zip(ends[:-1], cuts, strict=True)
        )
        # One read and one completion are of the WQE, one write is the CQE.
        assert count(0, Port.NIC, TlpClass.READ) == 1 + reads, size
        assert count(0, Port.GPU, TlpClass.COMPLETION) == 1 + completions, size
        assert count(0, Port.NIC, TlpClass.POSTED) == 1, size
        assert count(1, Port.NIC, TlpClass.POSTED) == writes, size
        inside = (first["cycle"] >= begin) & (first["cycle"] < end) & (first["node"] == 0)
        assert np.count_nonzero(inside) == len(cuts), size
        expected += Counter(reads=reads, completions=completions, writes=writes, packets=len(cuts))
    counters = found.result["paths"]["gda_minimal"]["counters"]
    assert counters["tlp_nic_up_read"] == expected["reads"] + len(ROWS)
    assert counters["tlp_nic_down_completion"] == expected["completions"] + len(ROWS)
    assert counters["tlp_nic_up_posted"] == expected["writes"] + len(ROWS)
    assert counters["packets_request"] == expected["packets"]
    # The sums of the published columns. (The row at 3312: 31 writes, 37 at MTU 1024.)
    published = {
        (512, 4096): {"reads": 199, "completions": 394, "writes": 395, "packets": 29},
        (4096, 1024): {"reads": 30, "completions": 394, "writes": 401, "packets": 102},
    }[mrrs, mtu]
    assert expected == Counter(published)


# What software does -----------------------------------------------------------------------------


def commits(log, kind, node=0):
    """Cycle, memory, address and bytes of each commit of a kind."""
    table = log.of(EventKind.COMMIT)
    mask = (table["mark_kind"] == kind.value) & (table["node"] == node)
    names = ("cycle", "memory", "address", "count", "fabric")
    rows = zip(*(table[name][mask].tolist() for name in names), strict=True)
    return [(cycle, owner, at & (1 << BAR_SHIFT) - 1, *rest) for cycle, owner, at, *rest in rows]


def single(path, **changes):
    return toml(paths=[path], workload=[{"kind": "put", "size": [24], "count": 1}], **changes)


def test_gda_minimal_acts_as_its_flow_says(tmp_path):
    found = run(single("gda_minimal"), tmp_path).must_pass()
    log, gpu = found.logs["gda_minimal"], found.scenario.gpu
    (row,) = found.table("gda_minimal")
    at = {name: float(row[f"at_{name}_ns"]) for name in ("issue", "wqe_written", "ring")}
    copy = cycles(gpu.inline_copy_ns_per_16b * ((24 - 1) // 16))
    assert at["wqe_written"] - at["issue"] == gpu.issue_ns + copy
    assert at["ring"] - at["wqe_written"] == gpu.fence_gpu_ns
    (wqe,) = commits(log, MarkKind.WQE)
    (record,) = commits(log, MarkKind.RECORD)
    (cqe,) = commits(log, MarkKind.CQE)
    assert wqe[1:4] == (0, addresses.sq_offset(0, 1024), 64) and not wqe[4]
    assert record[1:4] == (0, addresses.record_offset(0) + 4, 4) and not record[4]
    assert cqe[1:4] == (0, addresses.cq_offset(0, 1), 64) and cqe[4]
    # The WQE is in memory before the record, and both before the NIC hears the doorbell.
    (ring,) = log.of(EventKind.RING_SEEN)["cycle"].tolist()
    assert wqe[0] < record[0] < ring < cqe[0]
    assert log.of(EventKind.RING_SEEN)["producer"].tolist() == [1]
    assert float(row["at_seen_ns"]) - cqe[0] == gpu.poll_ns
    counters = found.result["paths"]["gda_minimal"]["counters"]
    # One store to the NIC, and none to or from the host.
    assert counters["tlp_gpu_up_posted"] == 1
    assert counters["tlp_host_up_posted"] == counters["tlp_host_down_posted"] == 0


@pytest.mark.parametrize("push", [True, False])
def test_ibrc_acts_as_its_flow_says(tmp_path, push):
    found = run(single("ibrc", cpu={"bf": push}), tmp_path).must_pass()
    log, s = found.logs["ibrc"], found.scenario
    (row,) = found.table("ibrc")
    names = ("issue", "request_written", "proxy_seen", "wqe_written", "ring")
    at = {name: float(row[f"at_{name}_ns"]) for name in names}
    fenced = s.gpu.fence_gpu_ns + s.proxy.gpu_issue_ns
    assert at["request_written"] - at["issue"] == fenced + 4 * s.gpu.store_issue_ns
    requests = commits(log, MarkKind.REQUEST)
    # Four words in order into host memory, over PCIe.
    assert [request[1:] for request in requests] == [
        (1, addresses.CHANNEL + 8 * word, 8, 1) for word in range(4)
    ]
    # A poll may be on its way when the last word comes.
    assert 0 < at["proxy_seen"] - requests[-1][0] <= s.cpu.poll_ns
    # The post is the last part of the service time, the WQE the first part of the post.
    assert at["ring"] - at["proxy_seen"] == s.proxy.service_cold_ns
    assert at["ring"] - at["wqe_written"] == s.cpu.post_ns - s.cpu.wqe_ns
    (wqe,) = commits(log, MarkKind.WQE)
    send = addresses.record_offset(0) + 4
    (record,) = (commit for commit in commits(log, MarkKind.RECORD) if commit[2] == send)
    (cqe,) = commits(log, MarkKind.CQE)
    assert (wqe[1], record[1], cqe[1]) == (1, 1, 1)
    (ring,) = log.of(EventKind.RING_SEEN)["cycle"].tolist()
    # In this order; WQE and record are visible before the ring leaves.
    assert wqe[0] < record[0] < at["ring"] < ring < cqe[0]
    assert log.of(EventKind.FETCHED)["pushed"].tolist() == [int(push)]
    counters = found.result["paths"]["ibrc"]["counters"]
    # The read of the payload, and that of the WQE if it was not pushed.
    assert counters["tlp_nic_up_read"] == 2 - push
    # Four words and `quiet` from the GPU; the doorbell and `quiet`'s answer stay at the host.
    assert counters["tlp_gpu_up_posted"] == 5
    assert counters["tlp_host_up_posted"] == 1
    assert counters["tlp_gpu_up_read"] >= 1


def test_a_proxy_rings_when_wqe_and_record_are_visible(tmp_path):
    """However long that takes, and however little the post costs beyond; `complete` comes later."""
    costs = {"post_ns": 20, "wqe_ns": 20}
    found = run(
        single(
            "ibrc", cpu=costs, memory={"host_store_ns": 300}, proxy={"complete_every_bytes": 32}
        ),
        tmp_path,
    ).must_pass()
    log = found.logs["ibrc"]
    (row,) = found.table("ibrc")
    ring = float(row["at_ring_ns"])
    (wqe,) = commits(log, MarkKind.WQE)
    send = addresses.record_offset(0) + 4
    (record,) = (commit for commit in commits(log, MarkKind.RECORD) if commit[2] == send)
    assert wqe[0] < record[0] <= ring < record[0] + 10
    told = [c[0] for c in commits(log, MarkKind.OTHER) if c[2] == addresses.COMPLETE]
    assert told == [told[0]] and told[0] > ring + 300


def test_verbs_act_as_their_flow_says(tmp_path):
    """Pushed or rung; with its WQE, its payload, both or neither to be read."""
    for push, inline in ((True, True), (True, False), (False, True), (False, False)):
        found = run(
            single("verbs", cpu={"bf": push, "inline_max_bytes": 28 * inline}), tmp_path
        ).must_pass()
        log, s = found.logs["verbs"], found.scenario
        (row,) = found.table("verbs")
        at = {n: float(row[f"at_{n}_ns"]) for n in ("issue", "wqe_written", "ring", "seen")}
        assert at["wqe_written"] - at["issue"] == s.cpu.wqe_ns
        assert at["ring"] - at["issue"] == s.cpu.post_ns
        (wqe,) = commits(log, MarkKind.WQE)
        send, done = commits(log, MarkKind.RECORD)
        (cqe,) = commits(log, MarkKind.CQE)
        # All in host memory, in this order; WQE and record are visible before the ring leaves.
        assert wqe[1:4] == (1, addresses.sq_offset(0, 1024), 64)
        assert send[1:4] == (1, addresses.record_offset(0) + 4, 4)
        assert cqe[1:4] == (1, addresses.cq_offset(0, 1024), 64)
        assert done[1:4] == (1, addresses.record_offset(0) + addresses.CQ_RECORD, 4)
        assert wqe[0] < send[0] <= at["ring"] < cqe[0] < done[0]
        assert at["seen"] - cqe[0] == s.cpu.poll_ns
        assert log.of(EventKind.FETCHED)["pushed"].tolist() == [int(push)]
        counters = found.result["paths"]["verbs"]["counters"]
        assert counters["tlp_nic_up_read"] == (not push) + (not inline)
        assert counters["tlp_host_up_posted"] == 1
        assert counters["tlp_gpu_up_posted"] == counters["tlp_gpu_up_read"] == 0
        assert counters["tlp_gpu_up_completion"] == (not inline)


def test_threads_push_several_blocks_at_once(tmp_path):
    """Each push arrives whole, whoever else pushes meanwhile; nothing is fetched."""
    work = puts(size=[28, 29, 93, 220], producers=6, qps=3, window=4, count=60)
    found = run(toml(paths=["verbs"], cpu={"inline_max_bytes": 220}, workload=[work]), tmp_path)
    counters = found.must_pass().result["paths"]["verbs"]["counters"]
    assert counters["wqes_pushed"] == counters["doorbells"] == 240
    assert counters["wqe_fetches"] == 0


def test_each_operation_is_issued_at_its_time(tmp_path):
    """On all paths, within a burst, and with a pause longer than the watchdog."""
    starts = (0, 0, 50_000, 900_000)
    ops = [
        {"size": 8, "producer": number % 2, "at_ns": at, "offset": 64 * number}
        | {"remote_offset": 64 * number}
        for number, at in enumerate(starts)
    ]
    found = run(toml(paths=list(ALL), op=ops), tmp_path).must_pass()
    for path in ALL:
        issues = found.logs[path].of(EventKind.ISSUE)
        issued = dict(zip(issues["message"].tolist(), issues["cycle"].tolist(), strict=True))
        assert [0 <= issued[n] - at < 5000 for n, at in enumerate(starts)] == [True] * 4
