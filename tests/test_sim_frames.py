from ipaddress import ip_address
from pathlib import Path

import pytest
import scapy.all as scapy
import scapy.contrib.roce as roce
from hypothesis import given
from hypothesis import strategies as st

from hw.formats.layout import Codec
from hw.formats.roce import EXTENSIONS, Bth, RoceOpcode
from sim.frames import Address, Packet, build, icrc, parse

CAPTURES = Path(__file__).resolve().parent.parent.parent / "shared" / "pcaps"
A4, B4 = Address(0x0200_0000_0001, ip_address("10.0.0.1")), Address(2, ip_address("10.0.1.2"))
A6, B6 = Address(1, ip_address("fd00::1")), Address(2, ip_address("fd00:1::2"))
RC = [opcode for opcode in RoceOpcode if opcode not in (RoceOpcode.UD_SEND_ONLY, RoceOpcode.CNP)]


def captured():
    files = sorted(CAPTURES.glob("*.pcap"))
    if not files:
        pytest.skip("no captures beside the project")
    frames = []
    for file in files:
        with scapy.RawPcapReader(str(file)) as reader:
            frames += [(file.name, raw) for raw, _ in reader]
    return frames


@st.composite
def packets(draw):
    opcode = draw(st.sampled_from(RC))
    bits = st.integers

    def fields(header):
        return {
            name: draw(bits(0, mask))
            for name, (_, mask) in Codec(header).fields.items()
            if not name.startswith("_")
        }

    bth = fields(Bth) | {"opcode": opcode.value, "pad": 0}
    return Packet(
        bth=bth,
        extended={header.name: fields(header) for header in EXTENSIONS.get(opcode, ())},
        payload=draw(st.binary(max_size=70)),
    )


@given(packets(), st.sampled_from([(A4, B4), (A6, B6)]), st.integers(0, 0xFFFF))
def test_a_frame_is_parsed_into_what_it_was_built_of(packet, ends, number):
    frame = parse(build(packet, *ends, port=number, identification=number, tos=number & 0xFF))
    assert frame.kind == "rc" and frame.icrc_right and frame.port == number
    assert frame.packet is not None
    assert (frame.source, frame.target) == ends
    assert frame.packet.payload == packet.payload
    assert frame.packet.extended == packet.extended
    pad = -len(packet.payload) % 4
    assert {k: v for k, v in frame.packet.bth.items() if v} == {
        k: v for k, v in {**packet.bth, "pad": pad}.items() if v
    }


@given(packets())
def test_udp_over_ipv6_has_the_checksum_that_scapy_computes(packet):
    raw = build(packet, A6, B6)
    seen = scapy.Ether(raw)
    seen[scapy.UDP].chksum = None
    assert bytes(seen)[14 + 40 : 14 + 48] == raw[14 + 40 : 14 + 48] and raw[60:62] != b"\0\0"


@given(packets())
def test_scapy_reads_the_same_fields_and_the_same_icrc(packet):
    raw = build(packet, A4, B4)
    seen = scapy.Ether(raw)
    assert seen[scapy.UDP].dport == 4791
    bth = seen[roce.BTH]
    ours = packet.bth
    assert (bth.opcode, bth.psn, bth.dqpn, bth.pkey, bth.ackreq, bth.solicited) == tuple(
        ours[name] for name in ("opcode", "psn", "dest_qp", "pkey", "ack_request", "solicited")
    )
    assert bth.padcount == -len(packet.payload) % 4
    # scapy computes it anew from its own reading of the frame.
    assert bth.compute_icrc(raw[14 + 20 + 8 : -4]) == raw[-4:]


def test_every_public_frame_is_classified_and_its_icrc_is_right():
    kinds = {}
    for name, raw in captured():
        frame = parse(raw)
        kinds[frame.kind] = kinds.get(frame.kind, 0) + 1
        if frame.packet:
            assert frame.icrc_right, name
    assert set(kinds) == {"rc", "ud", "tcp"}
    assert (kinds["rc"], kinds["ud"]) == (170, 5)


def test_every_public_packet_is_built_again_byte_for_byte():
    rebuilt = 0
    for name, raw in captured():
        frame = parse(raw)
        if frame.packet and frame.source and frame.target:
            number = int.from_bytes(raw[18:20], "big")
            ends = frame.source, frame.target
            again = build(frame.packet, *ends, port=frame.port, identification=number, tos=raw[15])
            assert again == raw[: len(again)], name
            rebuilt += 1
    assert rebuilt == 175


@pytest.mark.parametrize("ends", [(A4, B4), (A6, B6)])
def test_each_bit_counts_for_the_icrc_but_those_that_routers_change(ends):
    packet = Packet(
        bth={"opcode": RoceOpcode.WRITE_ONLY.value, "dest_qp": 7, "psn": 9},
        extended={"Reth": {"va": 1 << 40, "rkey": 5, "length": 6}},
        payload=b"abcdef",
    )
    raw = build(packet, *ends)
    start, v4 = 14, ends[0].ip.version == 4
    transport = start + (20 if v4 else 40)
    free = {start + 1, start + 8, start + 10, start + 11} if v4 else {start + 7}
    free |= {transport + 6, transport + 7, transport + 8 + 4}
    for at in range(start + 4, len(raw) - 4):
        damaged = bytearray(raw)
        damaged[at] ^= 0x10
        assert (icrc(bytes(damaged[start:-4])) == raw[-4:]) == (at in free), at


def test_damage_shows():
    raw = bytearray(build(Packet(bth={"opcode": 4}, payload=b"12345678"), A4, B4))
    raw[-8] ^= 1
    frame = parse(bytes(raw))
    assert frame.kind == "rc" and not frame.icrc_right


@given(st.binary(max_size=120))
def test_anything_is_classified(raw):
    assert parse(raw).kind in {"rc", "ud", "cnp", "roce", "tcp", "udp", "other", "short"}


@given(packets(), st.integers(0, 200))
def test_a_frame_cut_off_is_short(packet, length):
    raw = build(packet, A4, B4)
    if length < len(raw) - 4:
        assert parse(raw[:length]).kind == "short"


def test_addresses_of_two_versions_are_refused():
    with pytest.raises(ValueError, match="one version"):
        build(Packet(bth={"opcode": 4}), A4, B6)


def test_an_unknown_service_is_named():
    for opcode, kind in ((0x81, "cnp"), (0x64, "ud"), (0x2A, "roce"), (0x04, "rc")):
        extended = {"Deth": {}} if opcode == 0x64 else {}
        frame = parse(build(Packet(bth={"opcode": opcode}, extended=extended), A4, B4))
        assert frame.kind == kind
