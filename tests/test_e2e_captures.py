"""Captures of real runs: every packet, in order and in time, read by readers that are not ours."""

import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
import scapy.all as scapy
import scapy.contrib.roce as roce
from support_run import SCENARIOS, bellwire, run, toml

from hw.formats.events import EventKind
from hw.formats.roce import RoceOpcode
from sim import addresses, image
from sim.frames import parse as parsed

TWO_WAYS = toml(
    workload=[
        {"kind": "put", "size": [1, 13, 700, 9000], "count": 3},
        {"kind": "put", "size": 300, "count": 4, "node": 1, "peer": 0},
    ],
    nic={"mtu_bytes": 1024},
)


@pytest.fixture(scope="module", params=[4, 6])
def captured(request, tmp_path_factory):
    done = run(TWO_WAYS, tmp_path_factory.mktemp("pcap"), pcap=request.param).must_pass()
    return done, request.param


def frame_of(raw) -> Any:
    """A frame that is a packet of ours."""
    frame = parsed(raw)
    assert frame.packet and frame.source and frame.target, raw.hex()
    return frame


def frames_of(file):
    """(nanoseconds, bytes) of each packet of a capture."""
    with scapy.RawPcapReader(str(file)) as reader:
        assert reader.nano and reader.linktype == 1
        return [(meta.sec * 1_000_000_000 + meta.usec, raw) for raw, meta in reader]


def the_capture(done):
    (file,) = done.directory.glob("*.pcap")
    assert file.name == "link-n0p0-n1p0.pcap"
    return file


def test_every_packet_that_left_is_in_the_capture_in_order_and_in_time(captured):
    done, version = captured
    sent = done.logs["gda_minimal"].of(EventKind.TX_LAST)
    frames = [(stamp, frame_of(raw)) for stamp, raw in frames_of(the_capture(done))]
    assert [stamp for stamp, _ in frames] == sent["cycle"].tolist()
    for row, (_, frame) in enumerate(frames):
        assert frame.kind == "rc" and frame.icrc_right
        bth = frame.packet.bth
        assert (bth["opcode"], bth["psn"]) == (sent["opcode"][row], sent["psn"][row])
        assert bth["dest_qp"] & 0xFFF == sent["dest_qp"][row]
        assert frame.source.ip.version == frame.target.ip.version == version
        assert (frame.source.mac & 0xFF, frame.target.mac & 0xFF) == (
            (0, 1) if sent["node"][row] == 0 else (1, 0)
        )


def test_the_capture_alone_rebuilds_the_memory_that_was_written(captured):
    done, _ = captured
    plan, seed = done.scenario.plan, done.scenario.seed
    memory, places = {}, {}
    for _, raw in frames_of(the_capture(done)):
        frame = frame_of(raw)
        packet, flow = frame.packet, (frame.target.mac, frame.packet.bth["dest_qp"])
        if packet.opcode == RoceOpcode.ACK.value:
            continue
        if "Reth" in packet.extended:
            places[flow] = packet.extended["Reth"]["va"]
        for at, byte in enumerate(packet.payload, places[flow]):
            memory[frame.target.mac & 0xFF, at] = byte
        places[flow] += len(packet.payload)
    regions = {(region.node, region.name): region for region in plan.regions}
    expected = {}
    for m in plan.messages:
        source, target = regions[m.node, m.region], regions[m.peer, m.remote_region]
        data = image.initial(source, seed)[m.offset : m.offset + m.size]
        first = addresses.bus(target.memory, addresses.DATA + target.offset + m.remote_offset)
        expected.update({(m.peer, first + i): int(byte) for i, byte in enumerate(data)})
    assert memory == expected and len(expected) > 1000


def test_scapy_reads_what_left_and_computes_the_same_icrc(captured):
    done, version = captured
    frames = frames_of(the_capture(done))
    head = 14 + (20 if version == 4 else 40) + 8
    for _, raw in frames:
        bth = scapy.Ether(raw)[roce.BTH]
        ours = frame_of(raw).packet.bth
        assert (bth.opcode, bth.psn, bth.dqpn) == (ours["opcode"], ours["psn"], ours["dest_qp"])
        if version == 4:
            assert bth.compute_icrc(raw[head:-4]) == raw[-4:]


@pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")
def test_wireshark_dissects_every_packet_and_has_nothing_to_complain_of(captured):
    done, version = captured
    file = the_capture(done)
    # Opcode, PSN and destination QP, as Wireshark names them; what it finds odd, as a group.
    fields = ["infiniband.bth.opcode", "infiniband.bth.psn", "infiniband.bth.destqp"]
    shown = tshark(file, "-T", "fields", *(word for name in fields for word in ("-e", name)))
    seen = [tuple(int(text, 0) for text in line.split("\t")) for line in shown.splitlines()]
    sent = [frame_of(raw).packet.bth for _, raw in frames_of(file)]
    assert seen == [(bth["opcode"], bth["psn"], bth["dest_qp"]) for bth in sent]
    assert tshark(file, "-Y", "_ws.expert") == ""


def tshark(file, *arguments):
    done = subprocess.run(
        ["tshark", "-n", "-r", str(file), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_lost_packet_is_not_on_the_wire_and_its_successor_is(tmp_path):
    done = run(SCENARIOS / "lost-packets.toml", tmp_path, pcap=4)
    assert done.result["verdict"] == "pass"
    for path, log in done.logs.items():
        frames = frames_of(done.directory / f"{path}-link-n0p0-n1p0.pcap")
        assert len(frames) == len(log.of(EventKind.TX_LAST)["cycle"])
        naks = [
            frame_of(raw).packet.extended["Aeth"]["syndrome"]
            for _, raw in frames
            if frame_of(raw).packet.opcode == RoceOpcode.ACK.value
        ]
        assert 0x60 in naks


def test_a_node_wired_to_itself_has_one_link_of_two_ports(tmp_path):
    text = toml(
        preset="h200nvl-cx7-roce-loopback", workload=[{"kind": "put", "size": 8, "count": 2}]
    )
    done = run(text, tmp_path, pcap=4).must_pass()
    (file,) = done.directory.glob("*.pcap")
    assert file.name == "link-n0p0-n0p1.pcap"
    macs = {
        (frame.packet.opcode == RoceOpcode.ACK.value, frame.source.mac, frame.target.mac)
        for frame in (frame_of(raw) for _, raw in frames_of(file))
    }
    assert macs == {(False, 2 << 40, (2 << 40) + 0x100), (True, (2 << 40) + 0x100, 2 << 40)}


def test_a_capture_changes_no_cycle_and_is_made_only_if_asked_for(captured, tmp_path):
    done, _ = captured
    plain = run(TWO_WAYS, tmp_path).must_pass()
    assert not list(plain.directory.glob("*.pcap"))
    for path, log in plain.logs.items():
        assert log.sha256 == done.logs[path].sha256
        assert np.array_equal(log.records, done.logs[path].records)


def test_the_command_prints_where_captures_are_and_refuses_other_versions(tmp_path):
    arguments = ("run", SCENARIOS / "message-rate.toml")
    done = bellwire(*arguments, "--pcap", "6", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "capture: out/link-n0p0-n1p0.pcap" in done.stdout.splitlines()
    refused = bellwire(*arguments, "--pcap", "5", "--out", "other", cwd=tmp_path)
    assert refused.returncode == 2 and "allowed 4, 6" in refused.stderr.splitlines()[0]
    assert not (tmp_path / "other").exists()
