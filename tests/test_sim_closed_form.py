from dataclasses import replace

import pytest

from hw.config import MemoryConfig, NicConfig, PcieConfig, WireConfig
from sim import closed_form
from sim.closed_form import (
    Idle,
    Terms,
    completion_tlps,
    covered,
    packets,
    read_tlps,
    split,
    write_tlps,
)

PCIE = PcieConfig(
    gpu_gbps=400, nic_gbps=400, host_gbps=400, gpu_ns=100, nic_ns=50, host_ns=150, switch_ns=120
)
MEMORY = MemoryConfig(
    gpu_commit_ns=100,
    gpu_read_ns=300,
    gpu_store_ns=10,
    host_commit_ns=80,
    host_read_ns=90,
    host_store_ns=5,
)
NIC = NicConfig(doorbell_ns=200, wqe_ns=150, tx_ns=100, rx_ns=180, cqe_ns=60)
WIRE = WireConfig(
    gbps=200,
    first_overhead_bytes=42,
    other_overhead_bytes=26,
    ack_bytes=30,
    cable_m=2,
    hops=1,
    hop_ns=200,
)
IDLE = Idle(PCIE, MEMORY, NIC, WIRE)

#: flows.md section 4: payload, MRd (MRRS 512, 4096), CplD, MWr, packets (MTU 4096, 1024).
PUBLISHED = [
    (8, 1, 1, 1, 1, 1, 1),
    (64, 1, 1, 1, 1, 1, 1),
    (256, 1, 1, 1, 1, 1, 1),
    (1024, 2, 1, 4, 4, 1, 1),
    (4096, 8, 1, 16, 16, 1, 4),
    (7408, 15, 2, 29, 29, 2, 8),
    (14336, 28, 4, 56, 56, 4, 14),
    (65536, 128, 16, 256, 256, 16, 64),
    (1 << 20, 2048, 256, 4096, 4096, 256, 1024),
]


@pytest.mark.parametrize(
    ("size", "reads", "large_reads", "completions", "writes", "large_packets", "small_packets"),
    PUBLISHED,
)
def test_counts_are_the_published_ones(
    size, reads, large_reads, completions, writes, large_packets, small_packets
):
    large = replace(PCIE, mrrs_bytes=4096)
    assert len(read_tlps(PCIE, 0, size)) == reads and len(read_tlps(large, 0, size)) == large_reads
    assert (
        len(completion_tlps(PCIE, 0, size)) == completions == len(completion_tlps(large, 0, size))
    )
    assert len(write_tlps(PCIE, 0, size)) == writes
    assert (
        len(packets(WIRE, size, 4096)) == large_packets
        and len(packets(WIRE, size, 1024)) == small_packets
    )


def test_a_row_offset_adds_what_the_boundary_cuts():
    large = replace(PCIE, mrrs_bytes=4096)
    assert len(read_tlps(large, 3312, 7408)) == 3
    assert len(completion_tlps(PCIE, 3312, 7408)) == 30


def test_bytes_are_those_of_the_dwords_covered():
    assert [covered(*run) for run in ((0, 1), (3, 2), (2, 4), (0, 8), (63, 1), (5, 0))] == [
        4,
        8,
        8,
        8,
        4,
        4,
    ]
    assert write_tlps(PCIE, 0, 8) == [32] and write_tlps(PCIE, 255, 2) == [28, 28]
    assert completion_tlps(PCIE, 254, 4) == [24, 24]
    assert sum(size for _, size in split(100, 1000, 256)) == 1000


def test_packets_carry_padded_payload_and_the_overhead_of_their_place():
    assert packets(WIRE, 5, 4096) == [(5, 8 + 42)]
    assert packets(WIRE, 4096 + 3, 4096) == [(4096, 4096 + 42), (3, 4 + 26)]
    assert packets(WIRE, 0, 4096) == [(0, 42)]


def test_one_beat_pays_both_links_and_all_latencies():
    first, last = IDLE.crossing("gpu", "nic", [32])
    assert first == last
    # 32 bytes at 400 Gb/s are 0.64 cycles, paid as one cycle on each link.
    assert last.total == 1 + 100 + 1 + 50 + 120
    assert last.count("latency nic down") == 170


def test_more_beats_pay_the_slower_link_once_each():
    slow = Idle(replace(PCIE, nic_gbps=100), MEMORY, NIC, WIRE)
    first, last = slow.crossing("gpu", "nic", [88, 64, 64, 64])
    assert last.total - first.total == pytest.approx(3 * 64 * 8 / 100, abs=1)


def test_serialisation_keeps_fractions():
    first, last = IDLE.sending(1 << 20)
    whole = sum(charged for _, charged in packets(WIRE, 1 << 20, 4096)) * 8 / 200
    assert last == pytest.approx(whole, abs=1) and first == -(-(64 + 42) * 8 // 200)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (
            {"inline": True},
            [
                "ring_seen",
                "fetch_req",
                "fetched",
                "payload",
                "tx_first",
                "tx_last",
                "rx_last",
                "ack_rx",
                "cqe_written",
            ],
        ),
        (
            {"pushed": True, "ringer": "host", "rings": "host"},
            [
                "ring_seen",
                "fetched",
                "payload_req",
                "payload",
                "tx_first",
                "tx_last",
                "rx_last",
                "ack_rx",
                "cqe_written",
            ],
        ),
    ],
)
def test_segments_are_those_of_the_way_it_was_posted(options, names):
    assert [name for name in IDLE.segments(8, **options) if name != "landed"] == names


def grown(idle, size, **options):
    """Segments that differ from `IDLE`'s, with the difference."""
    before, after = IDLE.segments(size, **options), idle.segments(size, **options)
    return {
        name: after[name].total - before[name].total
        for name in before
        if after[name].total != before[name].total
    }


@pytest.mark.parametrize(
    ("section", "key", "moved"),
    [
        ("nic", "doorbell_ns", {"ring_seen": 100}),
        ("nic", "wqe_ns", {"payload": 100}),
        ("nic", "tx_ns", {"tx_first": 100, "ack_rx": 100}),
        ("nic", "rx_ns", {"ack_rx": 200, "landed": 100}),
        ("nic", "cqe_ns", {"cqe_written": 100}),
        ("wire", "hop_ns", {"rx_last": 100, "ack_rx": 100}),
        ("memory", "gpu_read_ns", {"fetched": 100}),
        ("memory", "gpu_commit_ns", {"cqe_written": 100, "landed": 100}),
        (
            "pcie",
            "switch_ns",
            {"ring_seen": 100, "fetched": 200, "cqe_written": 100, "landed": 100},
        ),
        ("pcie", "host_ns", {}),
    ],
)
def test_a_hundred_nanoseconds_move_their_own_segments(section, key, moved):
    config = getattr(IDLE, section)
    later = replace(IDLE, **{section: replace(config, **{key: getattr(config, key) + 100})})
    assert grown(later, 8, inline=True) == moved


def test_payload_that_takes_longer_than_the_transmitter_hides_its_delay():
    segments = IDLE.segments(4096)
    assert segments["tx_first"].total == segments["tx_first"].count("serial wire, first beat")
    assert segments["payload"].total > 500
    assert grown(replace(IDLE, nic=replace(NIC, tx_ns=200)), 4096) == {"ack_rx": 100}


def test_pipeline_cycles_are_a_table_of_their_own():
    places = {
        place.removeprefix("pipeline ")
        for found in (
            IDLE.segments(8, inline=True),
            IDLE.segments(8, pushed=True, commands=2),
            IDLE.segments(8),
        )
        for terms in found.values()
        for place, _ in terms
        if place.startswith("pipeline ")
    }
    assert places == set(closed_form.PIPELINE_CYCLES)
    assert Terms([("a", 1), ("b", 2)]).total == 3
