"""Tiny buffers, full queues, wraps: what waits for what must never close a circle."""

import pytest
from support_path import HEAD, execute

from sim.paths import PATHS

FAST = """
[gpu]
issue_ns = 20
fence_gpu_ns = 20
store_issue_ns = 10
"""


def scenario(path, tables, **work):
    lines = [HEAD, f'paths = ["{path}"]', tables, "[[workload]]", 'kind = "put"']
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in work.items())])


@pytest.mark.parametrize(
    ("tags", "fifo", "qps"),
    [(1, 2, 1), (4, 16, 64), (128, 16, 64), (128, 256, 64)],
)
def test_doorbells_do_not_wait_for_fetches_behind_them(tags, fifo, qps, tmp_path):
    """A ring for a QP whose fetch waits for a tag must be taken: the completion that frees the tag
    comes behind the doorbells.
    """
    tables = f"{FAST}[nic]\nwqe_tags = {tags}\ndoorbell_fifo_depth = {fifo}"
    work = {"size": 8, "producers": max(4, qps), "qps": qps, "window": 64, "count": 64 * 24}
    _, done = execute(scenario("gda_minimal", tables, **work), tmp_path / "run")
    assert done.result["verdict"] == "pass"
    if fifo <= 16:
        counters = done.result["paths"]["gda_minimal"]["counters"]
        assert counters["stall_doorbell_fifo_cycles"] > 0


def test_pushes_do_not_wait_for_payload_behind_them(tmp_path):
    """A push that cannot go on at once is fetched later; else it would hold the doorbells, and they
    the completions of the payload that it waits for.
    """
    tables = "[proxy]\nwarm = true\n[nic]\npayload_tags = 8"
    work = {"size": 9000, "producers": 16, "qps": 16, "window": 100, "count": 1600}
    _, done = execute(scenario("ibrc", tables, **work), tmp_path / "run")
    assert done.result["verdict"] == "pass"
    counters = done.result["paths"]["ibrc"]["counters"]
    assert counters["drop_push_not_used"] > 0 < counters["wqes_pushed"]


@pytest.mark.parametrize("path", PATHS)
def test_smallest_credits_tags_and_queues_both_ways(path, tmp_path):
    tables = f"""{FAST}
inline_max_bytes = 28
num_requests_in_batch = 16
segments = 5
[pcie]
mps_bytes = 64
mrrs_bytes = 4096
posted_header_credits = 1
posted_data_credits = 5
read_header_credits = 1
completion_header_credits = 1
completion_data_credits = 5
[nic]
mtu_bytes = 256
sq_depth = 16
cq_depth = 64
window_blocks = 16
wqe_tags = 1
payload_tags = 1
doorbell_fifo_depth = 1
fetch_blocks = 3
"""
    first = scenario(
        path, tables, size=130, producers=8, qps=2, window=4, signaled_every=2, count=40
    )
    back = """
[[workload]]
kind = "put"
node = 1
peer = 0
size = 2500
producers = 8
qps = 8
window = 4
count = 40
offset = 178
remote_offset = 115
"""
    _, done = execute(first + back, tmp_path / "run")
    assert done.result["verdict"] == "pass"


@pytest.mark.parametrize("path", PATHS)
def test_indices_and_psns_wrap(path, tmp_path):
    """16-bit block indices, 24-bit PSNs, the send queue and the completion queue, in one run."""
    tables = """
[pcie]
mps_bytes = 64
mrrs_bytes = 64
[nic]
mtu_bytes = 256
sq_depth = 32
cq = "ring"
cq_depth = 32
start_index = 65520
start_psn = 16777200
[gpu]
inline_max_bytes = 200
segments = 7
"""
    if path == "ibgda":  # which knows collapsed completion queues only
        tables = tables.replace('cq = "ring"', 'cq = "collapsed"')
    work = {"size": [8, 131, 3333], "producers": 4, "qps": 2, "window": 8, "batch": 2, "count": 80}
    _, done = execute(scenario(path, tables, **work, offset=13, remote_offset=37), tmp_path / "run")
    assert done.result["verdict"] == "pass"
    rows = (done.directory / "messages.csv").read_text().splitlines()
    column = rows[0].split(",").index("wqe_index")
    indices = {int(row.split(",")[column]) for row in rows[1:]}
    assert min(indices) < 1000 and max(indices) > 65000
