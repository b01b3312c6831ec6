"""One node, port 0 of its NIC wired to its port 1: everything that holds for two nodes."""

import json
from collections import Counter

import numpy as np
import pytest
from support_path import HEAD, closed, execute, hardware, puts
from support_run import SCENARIOS, run, toml

from hw.formats.events import EventKind
from hw.formats.roce import RoceOpcode
from sim import launch, trace
from sim.closed_form import completion_tlps, packets, read_tlps, write_tlps
from sim.paths import PATHS

PRESET = "h200nvl-cx7-roce-loopback"
ACK = RoceOpcode.ACK.value

pytestmark = pytest.mark.usefixtures("loopback")


def busy(path, **work):
    """Scenario with something to do for all queues."""
    keys = {"size": [8, 300, 5000], "producers": 6, "qps": 3, "window": 4, "count": 48} | work
    lines = [f"{key} = {value}" for key, value in keys.items()]
    head = HEAD.replace("h200-cx7-ib200", PRESET)
    return "\n".join([head, f'paths = ["{path}"]', "[[workload]]", 'kind = "put"', *lines])


@pytest.mark.parametrize(
    ("path", "sizes", "sets"),
    [
        ("gda_minimal", (1, 8, 29, 65, 512, 4096, 10000), ()),
        ("ibgda", (8, 64, 4096), ("pcie.socket_ns=0.0", "nic.mtu_bytes=4096")),
        ("ibrc", (8, 64, 4096), ("pcie.socket_ns=163",)),
        ("verbs", (8, 64, 4096), ("cpu.inline_max_bytes=28", "pcie.to_gpu_gbps=60")),
        ("verbs", (8, 4096), ('workload.0.memory="host"', 'workload.0.remote_memory="host"')),
    ],
)
def test_hardware_segments_equal_their_closed_forms(path, sizes, sets, tmp_path):
    loaded, done = execute(puts(path, sizes, PRESET), tmp_path / "run", sets)
    assert done.result["verdict"] == "pass"
    assert hardware(done, path) == {size: closed(loaded, path, size) for size in sizes}


def test_shipped_scenario_holds_and_finds_the_cap_of_gpu_memory(tmp_path):
    found = run(SCENARIOS / "loopback.toml", tmp_path).must_pass()
    assert found.scenario.structure.ports == 2 and found.scenario.nodes.count == 1
    (free, *_) = run(
        SCENARIOS / "loopback.toml", tmp_path, "pcie.to_gpu_gbps=0.0", 'paths=["gda_minimal"]'
    ).result["failures"]
    assert free.startswith("expect.3: goodput_gbps")


@pytest.mark.parametrize("path", PATHS)
def test_requests_leave_by_port_0_and_acks_by_port_1(path, tmp_path):
    found = run(busy(path), tmp_path).must_pass()
    log, count = found.logs[path], len(found.scenario.plan.messages)
    for kind, of_requests in (
        (EventKind.TX_FIRST, 0),
        (EventKind.TX_LAST, 0),
        (EventKind.RX_LAST, 1),
    ):
        table = log.of(kind)
        ports = Counter(zip((table["opcode"] == ACK).tolist(), table["port"].tolist(), strict=True))
        assert set(ports) == {(False, of_requests), (True, 1 - of_requests)}, kind
    assert set(log.records["node"].tolist()) == {0}
    retired = log.of(EventKind.RETIRED)
    assert (
        len(set(zip(*(retired[key].tolist() for key in ("qp", "wqe_index")), strict=True))) == count
    )
    # A QP issues or is written to, and the two never meet.
    receivers = set(
        log.of(EventKind.RX_LAST)["qp"][log.of(EventKind.RX_LAST)["port"] == 1].tolist()
    )
    assert receivers and not receivers & set(retired["qp"].tolist())


def test_tlps_are_the_closed_form_of_both_ends(tmp_path):
    """The NIC's link carries the payload twice: read to be sent, written where it arrives."""
    sizes = (64, 1024, 7408, 14336)
    found = run(puts("gda_minimal", sizes, PRESET), tmp_path).must_pass()
    pcie, wire = found.scenario.pcie, found.scenario.wire
    counters = found.result["paths"]["gda_minimal"]["counters"]
    expected = Counter()
    for message in found.scenario.plan.messages:
        cuts = [length for length, _ in packets(wire, message.size, 1024)]
        starts = message.remote_offset + np.cumsum([0, *cuts[:-1]])
        # And a fetch of the WQE, and a CQE.
        expected["tlp_nic_up_read"] += 1 + len(read_tlps(pcie, message.offset, message.size))
        expected["tlp_gpu_up_completion"] += 1 + len(
            completion_tlps(pcie, message.offset, message.size)
        )
        expected["tlp_nic_up_posted"] += 1 + sum(
            len(write_tlps(pcie, int(start), length))
            for start, length in zip(starts, cuts, strict=True)
        )
        expected["packets_request"] += len(cuts)
        expected["packets_ack"] += 1
    assert {name: counters[name] for name in expected} == dict(expected)


@pytest.mark.parametrize("path", ["gda_minimal", "ibrc"])
def test_log_is_the_same_without_skipping_and_without_python(path, loopback, tmp_path):
    logs = {}
    for skip in (True, False):
        folder = tmp_path / str(skip)
        _, done = execute(busy(path, count=12), folder, skip_idle=skip, record=skip)
        assert done.result["verdict"] == "pass"
        logs[skip] = trace.load(folder / "events.npz")[path].sha256
    assert logs[True] == logs[False]
    replayed = json.loads(launch.replay(loopback, tmp_path / "True" / "recording.bin", nodes=1))
    assert replayed["event_log_sha256"] == logs[True]


def test_tiny_buffers_close_no_circle(tmp_path):
    """What is read, sent, received and written shares every buffer of the node."""
    work = {"kind": "put", "size": [130, 1500], "producers": 8, "qps": 4, "window": 4, "count": 16}
    run(
        toml(
            preset=PRESET,
            paths=["gda_minimal", "verbs"],
            pcie={
                "mps_bytes": 64,
                "mrrs_bytes": 4096,
                "posted_header_credits": 1,
                "posted_data_credits": 5,
                "read_header_credits": 1,
                "completion_header_credits": 1,
                "completion_data_credits": 5,
            },
            nic={
                "mtu_bytes": 256,
                "sq_depth": 16,
                "cq_depth": 64,
                "window_blocks": 16,
                "wqe_tags": 1,
                "payload_tags": 1,
                "doorbell_fifo_depth": 1,
            },
            workload=[work],
        ),
        tmp_path,
    ).must_pass()


@pytest.mark.parametrize(
    ("fault", "hangs"),
    [
        ({"port": 1, "packet": "ack"}, True),
        ({"port": 0, "packet": "request"}, True),
        # Nothing of that kind leaves by that port.
        ({"port": 0, "packet": "ack"}, False),
        ({"port": 1, "packet": "request"}, False),
    ],
)
def test_packets_are_lost_by_port(fault, hangs, tmp_path):
    found = run(
        toml(
            preset=PRESET,
            workload=[{"kind": "put", "size": [64], "count": 2}],
            fault=[{"kind": "drop", "from": 0, "count": -1, **fault}],
            nic={"ack_timeout": 0},
            check={"watchdog_us": 50},
        ),
        tmp_path,
    )
    assert found.kinds() == ({"hang"} if hangs else set())
    if hangs:
        (queue,) = found.result["hang"]["queues"]
        assert (queue["node"], queue["qp"]) == (0, 0)
        what = "ACKs" if fault["packet"] == "ack" else "packets"
        assert f"1 {what} of node 0 dropped by a wire fault" in queue["waits"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("payload", "wrong_data"), ("between", "guard_overwritten"), ("source", "guard_overwritten")],
)
def test_one_changed_bit_is_found(tmp_path, name, kind):
    work = {"kind": "put", "size": [8, 300], "count": 6, "producers": 2, "qps": 2}
    text = f'name = "{name}"\n' + toml(preset=PRESET, workload=[work])
    assert run(text, tmp_path, module="bench_tamper").kinds() == {kind}
