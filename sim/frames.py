"""RoCEv2 packets as frames on Ethernet, and frames as packets.

`build` puts Ethernet, IP and UDP around a packet and closes it with its ICRC; `parse` takes a frame
apart and says what it is. Neither knows of time or of files (`sim/captures.py`).
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from hw.formats import ethernet, roce
from hw.formats.layout import Codec
from hw.formats.roce import RoceOpcode

__all__ = ["Address", "Frame", "Packet", "build", "icrc", "parse"]

_ether, _vlan, _ip4, _ip6, _udp = (
    Codec(layout)
    for layout in (
        ethernet.Ethernet,
        ethernet.Vlan,
        ethernet.Ipv4,
        ethernet.Ipv6,
        ethernet.Udp,
    )
)
_bth = Codec(roce.Bth)
_EXTENSIONS = {
    opcode.value: tuple((header.name, Codec(header)) for header in headers)
    for opcode, headers in roce.EXTENSIONS.items()
}
_RC = {opcode.value for opcode in RoceOpcode} - {
    RoceOpcode.UD_SEND_ONLY.value,
    RoceOpcode.CNP.value,
}
_ICRC_BYTES = 4


@dataclass(frozen=True)
class Address:
    """One end of a flow; both ends have the same version of IP."""

    mac: int
    ip: IPv4Address | IPv6Address


@dataclass(frozen=True, kw_only=True)
class Packet:
    """A transport packet: header fields by the names of `hw.formats.roce`, and its payload."""

    bth: Mapping[str, int]
    #: Header name to its fields, in the order of the wire.
    extended: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    payload: bytes = b""

    @property
    def opcode(self) -> int:
        """BTH opcode."""
        return self.bth["opcode"]

    def transport(self) -> bytes:
        """Its bytes from the BTH to the end of the pad, without ICRC."""
        headers = b"".join(
            codec.pack(**self.extended[name]) for name, codec in _EXTENSIONS.get(self.opcode, ())
        )
        pad = -len(self.payload) % 4
        return _bth.pack(**{**self.bth, "pad": pad}) + headers + self.payload + bytes(pad)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What `parse` found in a frame."""

    #: rc (a packet of a reliable connection), ud, cnp, roce (another service or opcode), tcp, udp,
    #: other, short (cut off within its headers).
    kind: str
    packet: Packet | None = None
    source: Address | None = None
    target: Address | None = None
    #: UDP source port, by which switches tell flows apart.
    port: int = 0
    #: ICRC in the frame, and as it should be; for RoCEv2 only.
    icrc: bytes = b""
    expected_icrc: bytes = b""

    @property
    def icrc_right(self) -> bool:
        """Whether the frame's ICRC is that of its bytes."""
        return bool(self.icrc) and self.icrc == self.expected_icrc


def icrc(datagram: bytes) -> bytes:
    """The 4 ICRC bytes, as they stand in the frame, of an IP datagram that ends before them.

    CRC-32 over 8 bytes of ones and the datagram, in which the fields that routers may change are
    ones. Ref: RoCEv2 annex A17.
    """
    masked = bytearray(datagram)
    if masked[0] >> 4 == 4:
        transport = (masked[0] & 0xF) * 4
        for at in (1, 8, 10, 11):  # tos, ttl, header checksum
            masked[at] = 0xFF
    else:
        transport = _ip6.size
        masked[0] |= 0x0F  # traffic class, flow label
        masked[1:4] = b"\xff\xff\xff"
        masked[7] = 0xFF  # hop limit
    masked[transport + 6 : transport + 8] = b"\xff\xff"  # UDP checksum
    masked[transport + _udp.size + 4] = 0xFF  # FECN, BECN
    return zlib.crc32(masked, zlib.crc32(b"\xff" * 8)).to_bytes(4, "little")


def build(
    packet: Packet,
    source: Address,
    target: Address,
    *,
    port: int = 0xC000,
    identification: int = 0,
    tos: int = 0,
) -> bytes:
    """The frame of a packet, without preamble and FCS.

    Parameters
    ----------
    port
        UDP source port, by which switches tell flows apart.
    identification
        Of an IPv4 header.
    tos
        IPv4's type of service, or IPv6's traffic class.

    Raises
    ------
    ValueError
        If a field does not fit, or the two addresses are of different versions of IP.
    """
    if source.ip.version != target.ip.version:
        raise ValueError(f"addresses {source.ip} and {target.ip}: allowed two of one version of IP")
    transport = packet.transport()
    length = _udp.size + len(transport) + _ICRC_BYTES
    fields = {"source_port": port, "destination_port": ethernet.ROCE_PORT, "length": length}
    udp = _udp.pack(**fields)
    if source.ip.version == 4:
        kind = ethernet.EtherType.IPV4
        ip = _ipv4(source, target, length, identification, tos)
    else:
        kind = ethernet.EtherType.IPV6
        ip = _ip6.pack(
            version=6,
            traffic_class=tos,
            payload_length=length,
            next_header=ethernet.IpProtocol.UDP.value,
            hop_limit=64,
            source=int(source.ip),
            destination=int(target.ip),
        )
    close = icrc(ip + udp + transport)
    # The ICRC does not cover UDP's checksum. IPv4 goes without one, IPv6 may not.
    if source.ip.version == 6:
        pseudo = ip[8:40] + struct.pack(">II", length, ethernet.IpProtocol.UDP.value)
        udp = _udp.pack(**fields, checksum=_checksum(pseudo + udp + transport + close) or 0xFFFF)
    head = _ether.pack(destination=target.mac, source=source.mac, ethertype=kind.value)
    return head + ip + udp + transport + close


def _ipv4(source: Address, target: Address, length: int, identification: int, tos: int) -> bytes:
    fields = {
        "version": 4,
        "header_length": _ip4.size // 4,
        "tos": tos,
        "total_length": _ip4.size + length,
        "identification": identification & 0xFFFF,
        "dont_fragment": 1,
        "ttl": 64,
        "protocol": ethernet.IpProtocol.UDP.value,
        "source": int(source.ip),
        "destination": int(target.ip),
    }
    return _ip4.pack(**fields, checksum=_checksum(_ip4.pack(**fields)))


def _checksum(raw: bytes) -> int:
    """The internet checksum: ones' complement of the ones' complement sum of 16-bit words."""
    raw += bytes(len(raw) % 2)
    total = sum(struct.unpack(f">{len(raw) // 2}H", raw))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def parse(raw: bytes) -> Frame:
    """What a frame is; one that is cut off or of another protocol is classified, never refused."""
    try:
        return _frame(raw)
    except _Short:
        return Frame(kind="short")


class _Short(Exception):
    pass


def _take(codec: Codec, raw: bytes, at: int) -> dict[str, Any]:
    if at + codec.size > len(raw):
        raise _Short
    return codec.unpack(raw[at : at + codec.size])


def _frame(raw: bytes) -> Frame:
    ether, at = _take(_ether, raw, 0), _ether.size
    kind = ether["ethertype"]
    while kind == ethernet.EtherType.VLAN.value:
        kind, at = _take(_vlan, raw, at)["ethertype"], at + _vlan.size
    start = at
    if kind == ethernet.EtherType.IPV4.value:
        ip = _take(_ip4, raw, at)
        protocol, at = ip["protocol"], at + ip["header_length"] * 4
        end, version = start + ip["total_length"], 4
        if ip["more_fragments"] or ip["fragment_offset"]:
            return Frame(kind="other")
    elif kind == ethernet.EtherType.IPV6.value:
        ip, at = _take(_ip6, raw, at), at + _ip6.size
        protocol, end, version = ip["next_header"], at + ip["payload_length"], 6
    else:
        return Frame(kind="other")
    if protocol != ethernet.IpProtocol.UDP.value:
        return Frame(kind="tcp" if protocol == ethernet.IpProtocol.TCP.value else "other")
    udp = _take(_udp, raw, at)
    if udp["destination_port"] != ethernet.ROCE_PORT:
        return Frame(kind="udp")
    at += _udp.size
    # Ethernet pads short frames: what counts is IP's length.
    if end > len(raw) or at + _bth.size + _ICRC_BYTES > end:
        raise _Short

    def address(mac: int, number: int) -> Address:
        return Address(mac, ip_address(number.to_bytes(4 if version == 4 else 16, "big")))

    packet = _packet(raw[at : end - _ICRC_BYTES])
    return Frame(
        kind=_service(packet.opcode),
        packet=packet,
        source=address(ether["source"], ip["source"]),
        target=address(ether["destination"], ip["destination"]),
        port=udp["source_port"],
        icrc=raw[end - _ICRC_BYTES : end],
        expected_icrc=icrc(raw[start : end - _ICRC_BYTES]),
    )


def _packet(transport: bytes) -> Packet:
    bth, at = _take(_bth, transport, 0), _bth.size
    extended = {}
    for name, codec in _EXTENSIONS.get(bth["opcode"], ()):
        extended[name], at = _take(codec, transport, at), at + codec.size
    end = len(transport) - bth["pad"]
    if end < at:
        raise _Short
    return Packet(bth=bth, extended=extended, payload=transport[at:end])


def _service(opcode: int) -> str:
    if opcode in _RC:
        return "rc"
    return {RoceOpcode.UD_SEND_ONLY.value: "ud", RoceOpcode.CNP.value: "cnp"}.get(opcode, "roce")
