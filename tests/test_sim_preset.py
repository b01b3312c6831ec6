"""Presets: every constant is documented, and latencies add up to what they were calibrated on."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support_loom import SOCKET_NS, constants_only, loom_cells, loopback_cells

from sim.limits import ceilings
from sim.preset import CLASSES, load_preset, preset_names
from sim.scenario import loads
from sim.schema import BadInput

DOCS = Path(__file__).parent.parent / "docs"
PRESET = "h200-cx7-ib200"
LOOPBACK = "h200nvl-cx7-roce-loopback"
UNITS = ("_ns", "_gbps", "_bytes", "_mops", "_m", "_ns_per_m", "_ns_per_16b", "gbps")
#: Keys that count something.
COUNTS = ("nodes.count", "wire.hops")
MOST_FREE = 8

SCENARIO = """
schema = "bellwire.scenario/1"
preset = "h200-cx7-ib200"
paths = ["gda_minimal", "ibrc"]
[[workload]]
kind = "put"
size = 8
count = 1
"""


@pytest.fixture(scope="module")
def scenario():
    return loads(SCENARIO)


@pytest.mark.parametrize("name", preset_names())
def test_every_constant_has_unit_source_class_range_and_note(name):
    preset = load_preset(name)
    assert preset.platform
    assert sum(len(table) for table in preset.constants.values()) > 20
    for section, table in preset.constants.items():
        for key, constant in table.items():
            where = f"{section}.{key}"
            assert key.endswith(UNITS) or where in COUNTS, f"{where}: no unit in its name"
            tag = constant.source.replace(";", " ").replace(":", " ").split()[0]
            assert tag in preset.sources, f"{where}: source {tag!r} is not in [sources]"
            assert constant.kind in CLASSES
            low, high = constant.range
            assert low <= constant.value <= high, f"{where}: outside of its own range"
            if constant.kind == "assumed":
                assert constant.free, f"{where}: assumed, so it is a free constant"


@pytest.mark.parametrize("name", preset_names())
def test_free_constants_are_few_and_shared_values_are_equal(name):
    preset = load_preset(name)
    assert len(preset.free) <= MOST_FREE, list(preset.free)
    for group, keys in preset.free.items():
        values = {preset.constants[k.split(".")[0]][k.split(".")[1]].value for k in keys}
        assert len(values) == 1, f"{group} is one free constant, but has the values {values}"


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("[nic.tx_ns]\nvalue = 1\n", "nic.tx_ns.source"),
        (
            '[nic.tx_ns]\nvalue = 1\nsource = ""\nclass = "measured"\nrange = [0, 1]\nnote = "n"\n',
            "nic.tx_ns.source",
        ),
        (
            '[nic.tx_ns]\nvalue = 1\nsource = "A"\nclass = "guess"\nrange = [0, 1]\nnote = "n"\n',
            "nic.tx_ns.class",
        ),
        ('[nic.tx_ns]\nvalue = "1"\nsource = "A"\n', "nic.tx_ns.value"),
        ("[nic.tx_us]\nvalue = 1\n", "nic.tx_us"),
        ("[nic]\ntx_ns = 1\n", "tx_ns"),
    ],
)
def test_undocumented_constant_is_refused(tmp_path, lines, key):
    (tmp_path / "p.toml").write_text('schema = "bellwire.preset/1"\n' + lines)
    with pytest.raises(BadInput) as error:
        load_preset("p", tmp_path)
    assert key in error.value.key


def test_calibration_cells_are_met(scenario):
    cells = loom_cells(scenario)
    assert cells["post_to_seen_inline"] == pytest.approx(2670, rel=0.01)
    assert cells["wqe_fetch"] == pytest.approx(1020, rel=0.05)
    assert cells["payload_read_host"] == pytest.approx(930, rel=0.06)
    assert cells["payload_read_gpu"] == pytest.approx(1450, rel=0.01)
    assert cells["gpu_load_host"] == pytest.approx(700, rel=0.01)
    page = (DOCS / "calibration-h200-cx7-ib200.md").read_text()
    for value in cells.values():
        assert f"| {value / 1000:.3f} |" in page


def test_doorbell_to_cqe_without_switch_adds_up_from_the_constants(scenario):
    """The 2.67 us cell, written out; but for serialisation, in whole cycles, it is this sum."""
    constants = load_preset(PRESET).constants
    pcie, nic, memory = (
        {key: c.value for key, c in constants[t].items()} for t in ("pcie", "nic", "memory")
    )
    crossing = pcie["nic_ns"] + SOCKET_NS + pcie["host_ns"]
    stages = (
        nic["doorbell_ns"] + nic["wqe_ns"] + 2 * nic["tx_ns"] + 2 * nic["rx_ns"] + nic["cqe_ns"]
    )
    cables = 2 * 2 * constants["wire"]["cable_ns_per_m"].value
    total = 2 * crossing + stages + cables
    total += memory["host_commit_ns"] + constants["cpu"]["poll_ns"].value
    assert total == pytest.approx(2670, abs=15)
    # Bytes of the push, the packet, the ACK and the CQE, and six roundings up to a cycle.
    serial = (2 * 88 + 2 * 88) * 8 / 454.8 + (98 + 8 + 86) * 8 / 200
    assert 0 <= loom_cells(scenario)["post_to_seen_inline"] - total - serial < 6


def test_reads_add_up_from_the_constants():
    constants = load_preset(PRESET).constants
    g, r, n = (constants["pcie"][f"{device}_ns"].value for device in ("gpu", "host", "nic"))
    gpu_read, host_read = (constants["memory"][f"{m}_read_ns"].value for m in ("gpu", "host"))
    assert 2 * (g + r) + host_read == pytest.approx(700, abs=5)
    assert 2 * (n + SOCKET_NS + r) + host_read == pytest.approx((1020 + 930) / 2, abs=5)
    assert 2 * (n + SOCKET_NS + r) + 2 * (r + g) + gpu_read == pytest.approx(1450, abs=5)


def test_software_constants_add_up_to_the_published_issue_times():
    gpu = {key: c.value for key, c in load_preset(PRESET).constants["gpu"].items()}
    assert gpu["issue_ns"] + gpu["store_issue_ns"] == pytest.approx(190)
    assert gpu["issue_ns"] + gpu["fence_gpu_ns"] + gpu["store_issue_ns"] == pytest.approx(700)
    proxy = {key: c.value for key, c in load_preset(PRESET).constants["proxy"].items()}
    assert 1000 / proxy["service_cold_ns"] == pytest.approx(1.9, rel=0.01)
    assert 1000 / proxy["service_warm_ns"] == pytest.approx(3.8, rel=0.01)


def ring_to_seen(scenario):
    """Segments from a GPU thread's doorbell to its CQE seen: inline, queues in GPU memory."""
    found = constants_only(scenario).segments(8, inline=True)
    found.pop("landed")
    return {name: terms.total for name, terms in found.items()} | {"seen": scenario.gpu.poll_ns}


def test_ring_to_seen_is_the_prediction_that_the_docs_state(scenario):
    """A prediction, not a fit: a third above the published 3.30 us, for the causes in the docs."""
    page = (DOCS / "calibration-h200-cx7-ib200.md").read_text()
    rows = dict(
        re.findall(r"^\| \**(\w+)\** \| \**(\d+)\** \|", page.partition("## Prediction")[2], re.M)
    )
    total = int(rows.pop("sum"))
    segments = {name: value for name, value in ring_to_seen(scenario).items() if value}
    assert {name: int(value) for name, value in rows.items()} == segments
    assert total == sum(segments.values())
    assert f"published (A): 3300, **{round(100 * (total / 3300 - 1))} % too much**" in page


def test_adding_to_a_constant_moves_only_its_segments(scenario):
    before = ring_to_seen(scenario)
    for field, segments in (
        ("doorbell_ns", {"ring_seen": 100}),
        ("wqe_ns", {"payload": 100}),
        ("tx_ns", {"tx_first": 100, "ack_rx": 100}),
        ("rx_ns", {"ack_rx": 200}),
        ("cqe_ns", {"cqe_written": 100}),
    ):
        nic = replace(scenario.nic, **{field: getattr(scenario.nic, field) + 100})
        after = ring_to_seen(replace(scenario, nic=nic))
        moved = {name: after[name] - before[name] for name in before if after[name] != before[name]}
        assert moved == segments


# The loopback ---------------------------------------------------------------------------------

#: Median of three repeats of log 20, in us.
PUBLISHED = {
    ("inline", "on"): 2.67,
    ("inline", "off"): 3.71,
    ("host", "on"): 3.60,
    ("GPU", "on"): 4.12,
    ("host", "off"): 4.58,
    ("GPU", "off"): 5.13,
}
PREDICTED = [("host", "off"), ("GPU", "off")]
RATES = {("host", "host"): 22068.55, ("gpu", "gpu"): 14943.50, ("gpu", "host"): 20509.47}


@pytest.fixture(scope="module")
def page():
    return (DOCS / f"calibration-{LOOPBACK}.md").read_text()


def loopback():
    return loads(SCENARIO.replace(PRESET, LOOPBACK))


def test_four_cells_are_met_and_two_predicted(page):
    rows = re.findall(
        r"^\| (\w+) \| (on|off) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (.*) \|$", page, re.M
    )
    cells = loopback_cells(loopback())
    assert [(row[0], row[1]) for row in rows] == list(PUBLISHED)
    for payload, push, published, model, ratio, said in rows:
        cell = payload, push
        assert float(published) == PUBLISHED[cell]
        assert model == f"{cells[cell] / 1000:.3f}"
        assert ratio == f"{cells[cell] / 1000 / PUBLISHED[cell]:.3f}"
        assert ("predicted" in said) == (cell in PREDICTED)
        assert float(ratio) == pytest.approx(1, abs=0.03 if cell in PREDICTED else 0.002)


def test_loopback_latencies_add_up_from_the_constants(page):
    pcie, memory, nic = (
        {key: c.value for key, c in load_preset(LOOPBACK).constants[table].items()}
        for table in ("pcie", "memory", "nic")
    )
    host_read, gpu_read = memory["host_read_ns"], memory["gpu_read_ns"]
    across = 2 * (pcie["nic_ns"] + pcie["socket_ns"])
    assert pcie["socket_ns"] == (830 - 704) / 2
    assert constants_only(loopback()).read("gpu", "host", 0, 8)[1].total == 704
    # Of the pipeline, serialisation and push the rest of each: a few cycles.
    assert across + host_read == pytest.approx(1040, abs=8)
    assert across + host_read - nic["tx_ns"] == pytest.approx(930, abs=8)
    assert across + 2 * pcie["gpu_ns"] + gpu_read - nic["tx_ns"] == pytest.approx(1450, abs=8)
    for words in (f"g = {pcie['gpu_ns']}", f"H = {host_read}", f"n = {pcie['nic_ns']}"):
        assert words in page
    assert f"2 (n + s) = {across}" in page
    assert f"five equal shares of {nic['rx_ns']} ns" in page


def test_loopback_rates_are_what_the_page_says(page):
    rows = re.findall(r"^\| (\w+) to (\w+) \| (\d+) \| (\d+) \| ([\d.]+) \| (.*) \|$", page, re.M)
    assert [(row[0].lower(), row[1].lower()) for row in rows] == list(RATES)
    for (source, target), row in zip(RATES, rows, strict=True):
        loaded = loads(
            SCENARIO.replace(PRESET, LOOPBACK)
            .replace('["gda_minimal", "ibrc"]', '["verbs"]')
            .replace("size = 8", "size = 65536")
            + f'memory = "{source}"\nremote_memory = "{target}"\nwindow = 64\n'
        )
        (group,) = loaded.plan.groups
        limits = ceilings(loaded, "verbs", group)
        mops = min(
            limits[link] for link in ("wire", "pcie_nic", "pcie_host", "pcie_gpu") if link in limits
        )
        model = mops * 1e6 * 65536 / 2**20
        published = RATES[source, target]
        assert (row[2], row[3]) == (f"{published:.0f}", f"{model:.0f}")
        assert row[4] == f"{model / published:.3f}"
        assert ("predicted" in row[5]) == ((source, target) == ("gpu", "host"))
        assert ("a miss" in row[5]) == (abs(model / published - 1) > 0.05)
