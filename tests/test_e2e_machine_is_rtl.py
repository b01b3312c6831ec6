"""The machine is the RTL, not Python (design: time lives in RTL, software lives in Python)."""

import ast
import json
from pathlib import Path

import pytest
from support_path import HEAD, execute, puts, segments

from hw.formats.events import EventKind
from sim import launch, run, trace
from sim.paths import PATHS

ROOT = Path(__file__).parent.parent
BUSY = (
    HEAD
    + """
paths = ["{path}"]
[[workload]]
kind = "put"
size = [8, 300, 5000]
producers = 6
qps = 3
window = 4
count = 48
"""
)


def log_hash(done, path):
    return trace.load(done.directory / "events.npz")[path].sha256


@pytest.mark.parametrize("path", PATHS)
def test_replay_without_python_gives_the_same_log(path, tmp_path):
    loaded, done = execute(BUSY.format(path=path), tmp_path / "run", record=True)
    assert done.result["verdict"] == "pass"
    binary, recording = run.binary_for(loaded.structure), done.directory / "recording.bin"
    for skip in (True, False):
        replayed = json.loads(launch.replay(binary, recording, skip=skip))
        assert replayed["event_log_sha256"] == log_hash(done, path)
        assert replayed["events"] > 1000


def test_a_changed_stimulus_changes_the_log(tmp_path):
    loaded, done = execute(BUSY.format(path="gda_minimal"), tmp_path / "run", record=True)
    recording = done.directory / "recording.bin"
    raw = bytearray(recording.read_bytes())
    # The last byte of the last command's data: a landmark or a store, in any case part of the log.
    at = max(index for index in range(len(raw) - 200, len(raw)) if raw[index])
    raw[at] ^= 1
    recording.write_bytes(raw)
    try:
        replayed = json.loads(launch.replay(run.binary_for(loaded.structure), recording))
    except launch.LaunchError:
        return
    assert replayed["event_log_sha256"] != log_hash(done, "gda_minimal")


@pytest.mark.parametrize("path", PATHS)
def test_idle_skipping_changes_nothing(path, tmp_path):
    hashes, evaluated = [], []
    for skip in (True, False):
        _, done = execute(BUSY.format(path=path), tmp_path / f"skip-{skip}", skip_idle=skip)
        hashes.append(log_hash(done, path))
        evaluated.append(done.result["sim"]["cycles"])
    assert hashes[0] == hashes[1]
    assert evaluated[0] == evaluated[1]


@pytest.mark.parametrize(
    "work",
    [
        # Two phases; a window that fills the ring; several threads that share a queue.
        {"size": [8, 24], "producers": 64, "qps": 64, "window": 4, "count": 512},
        {"size": 8, "producers": 16, "qps": 16, "window": 64, "count": 1024},
        {"size": 8, "producers": 64, "qps": 8, "window": 3, "count": 512},
    ],
)
def test_telling_software_late_changes_nothing(work, tmp_path, monkeypatch):
    lines = [f"{key} = {value}" for key, value in work.items()]
    text = "\n".join([HEAD, 'paths = ["gda_minimal"]', "[nic]", "sq_depth = 32"])
    text = "\n".join([text, "[[workload]]", 'kind = "put"', *lines])
    hashes = []
    for module in ("sim.bench", "bench_prompt"):
        monkeypatch.setattr(run, "BENCH", module)
        _, done = execute(text, tmp_path / module)
        assert done.result["verdict"] == "pass"
        hashes.append(log_hash(done, "gda_minimal"))
    assert hashes[0] == hashes[1]


def test_agents_reach_only_their_own_node(tmp_path):
    """By construction: an agent has a node's handle and nothing else. By observation: none of the
    other node's processors stores anything.
    """
    for file in (ROOT / "sim" / "agents").glob("*.py"):
        tree = ast.parse(file.read_text())
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not names & {"machine", "_machine", "Machine", "ctypes"}, file
        assert not any("machine" in (module or "") for module in modules), file
    for path in PATHS:
        _, done = execute(puts(path, (8, 4096), count=4), tmp_path / path)
        log = trace.load(done.directory / "events.npz")[path]
        commits = log.of(EventKind.COMMIT)
        stores = commits["fabric"] == 0
        assert stores.any()
        assert set(commits["node"][stores].tolist()) == {0}
        # What arrives at the other node came over the wire.
        assert ((commits["node"] == 1) & (commits["fabric"] == 1)).any()


#: Segment and how often each constant counts in it, for an inlined 8-byte put and a 64-byte put of
#: `gda_minimal`. What is not named must not move.
MOVES = {
    "gpu.issue_ns": ({"wqe_written": 1}, {"wqe_written": 1}),
    "gpu.fence_gpu_ns": ({"ring": 1}, {"ring": 1}),
    "gpu.poll_ns": ({"seen": 1}, {"seen": 1}),
    "pcie.gpu_ns": (
        {"ring_seen": 1, "fetched": 2, "cqe_written": 1},
        {"ring_seen": 1, "fetched": 2, "payload": 2, "cqe_written": 1},
    ),
    "pcie.nic_ns": (
        {"ring_seen": 1, "fetched": 2, "cqe_written": 1},
        {"ring_seen": 1, "fetched": 2, "payload": 2, "cqe_written": 1},
    ),
    "pcie.switch_ns": (
        {"ring_seen": 1, "fetched": 2, "cqe_written": 1},
        {"ring_seen": 1, "fetched": 2, "payload": 2, "cqe_written": 1},
    ),
    "pcie.host_ns": ({}, {}),
    "memory.gpu_read_ns": ({"fetched": 1}, {"fetched": 1, "payload": 1}),
    "memory.gpu_commit_ns": ({"cqe_written": 1}, {"cqe_written": 1}),
    "memory.gpu_store_ns": ({}, {}),
    "memory.host_read_ns": ({}, {}),
    "memory.host_commit_ns": ({}, {}),
    "nic.doorbell_ns": ({"ring_seen": 1}, {"ring_seen": 1}),
    "nic.wqe_ns": ({"payload": 1}, {"payload_req": 1}),
    # The transmitter's delay passes while payload is read; the ACK has it to itself.
    "nic.tx_ns": ({"tx_first": 1, "ack_rx": 1}, {"ack_rx": 1}),
    "nic.rx_ns": ({"ack_rx": 2}, {"ack_rx": 2}),
    "nic.cqe_ns": ({"cqe_written": 1}, {"cqe_written": 1}),
    "wire.hop_ns": ({"rx_last": 1, "ack_rx": 1}, {"rx_last": 1, "ack_rx": 1}),
}


#: The software of `ibgda`: reserve; publish, lock, maximum; tell of what was polled.
SHARED = {
    "gpu.atomic_ns": {"wqe_written": 1, "ring": 3, "seen": 1},
    "gpu.load_ns": {"ring": 1, "seen": 1},
    "gpu.fence_gpu_ns": {"ring": 3},
    "gpu.issue_ns": {"wqe_written": 1},
    "gpu.nvshmem_call_ns": {"wqe_written": 1},
    "gpu.nvshmem_api_ns": {"wqe_written": 1},
    "gpu.nvshmem_scope_ns": {},
    "gpu.fence_sys_ns": {},
    "gpu.poll_ns": {"seen": 1},
}


def moved(before, after):
    """Segments that differ, and by how much."""
    return {name: after[name] - before[name] for name in before if after[name] != before[name]}


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    return execute(puts("gda_minimal", (8, 64)), tmp_path_factory.mktemp("base") / "run")


@pytest.mark.parametrize("constant", MOVES)
def test_100_ns_more_move_only_their_own_segments(constant, baseline, tmp_path):
    loaded, done = baseline
    table, key = constant.split(".")
    value = getattr(getattr(loaded, table), key) + 100
    _, slower = execute(puts("gda_minimal", (8, 64)), tmp_path / "run", [f"{constant}={value}"])
    before, after = segments(done, "gda_minimal"), segments(slower, "gda_minimal")
    for size, expected in zip((8, 64), MOVES[constant], strict=True):
        assert moved(before[size], after[size]) == {n: 100 * count for n, count in expected.items()}


def test_100_ns_more_move_only_their_own_segments_of_ibgda(tmp_path):
    loaded, done = execute(puts("ibgda", (8,)), tmp_path / "base")
    before = segments(done, "ibgda")[8]
    for constant, expected in SHARED.items():
        value = getattr(loaded.gpu, constant.removeprefix("gpu.")) + 100
        _, slower = execute(puts("ibgda", (8,)), tmp_path / constant, [f"{constant}={value}"])
        after = segments(slower, "ibgda")[8]
        assert moved(before, after) == {n: 100 * count for n, count in expected.items()}, constant


@pytest.mark.parametrize("path", PATHS)
def test_with_all_delays_zero_bytes_and_tlps_are_the_same(path, tmp_path):
    sizes = (8, 64, 300, 4096, 9001)
    loaded, normal = execute(puts(path, sizes, count=3), tmp_path / "normal")
    sets = [
        f"{table}.{key}=0"
        for table in ("gpu", "cpu", "proxy", "pcie", "memory", "nic", "wire")
        for key in vars(getattr(loaded, table))
        if "_ns" in key
    ]
    assert len(sets) > 30
    _, fast = execute(puts(path, sizes, count=3), tmp_path / "fast", sets)
    assert fast.result["verdict"] == "pass"
    slow_path, fast_path = (r.result["paths"][path] for r in (normal, fast))
    # How often a GPU reads host memory until its proxy has answered is a matter of time.
    proxied = PATHS[path].proxied
    polls = ("tlp_gpu_up_read", "tlp_gpu_down_completion") * proxied
    polls += ("tlp_host_down_read", "tlp_host_up_completion") * proxied
    polled = ("gpu_up", "gpu_down", "host_up", "host_down") * proxied
    assert fast_path["groups"][0]["latency_ns"]["p50"] < slow_path["groups"][0]["latency_ns"]["p50"]
    for entry in (slow_path, fast_path):
        entry["tlps"] = {
            name: count
            for name, count in entry["counters"].items()
            if name.startswith("tlp_") and name not in polls
        }
        entry["bytes"] = {
            link: (values.get("payload_bytes"), values.get("wire_bytes"))
            for link, values in entry["links"].items()
            if link not in polled
        }
    assert slow_path["tlps"] == fast_path["tlps"]
    assert slow_path["bytes"] == fast_path["bytes"]
    assert sum(slow_path["tlps"].values()) > 100
