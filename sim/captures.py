"""What a run's links carried, as capture files (pcap, nanosecond stamps).

A link is a pair of wire ports; its file holds both directions, each packet once, stamped when its
last byte left: cycle c is c nanoseconds after 1970. Packets that a fault takes before they leave
are not there. Addresses stand for a node and its port: 02:00:00:00:PP:NN, 10.0.P.(N + 1) or
fd00::P:(N + 1).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import numpy as np

from hw.formats import roce
from hw.formats.layout import Codec
from hw.formats.roce import EXTENSIONS, RoceOpcode

from .frames import Address, Packet, build

__all__ = ["Captured", "address_of", "packets", "write"]

_beat = Codec(roce.WireBeat)
_bth, _reth, _aeth = Codec(roce.Bth), Codec(roce.Reth), Codec(roce.Aeth)
#: Bytes of operands that are part of the AtomicETH; masks behind them are payload.
_OPERANDS = 16
_ATOMICS = frozenset(
    opcode.value for opcode, headers in EXTENSIONS.items() if headers == (roce.AtomicEth,)
)
#: Dynamic ports, of which each destination QP has one, so that a switch can tell flows apart.
_FIRST_PORT, _PORTS = 0xC000, 0x4000


@dataclass(frozen=True)
class Captured:
    """A packet that left a node."""

    #: Cycle in which its last byte left, and from where to where: (node, port).
    cycle: int
    source: tuple[int, int]
    target: tuple[int, int]
    packet: Packet


def address_of(node: int, port: int, version: int) -> Address:
    """Address of a wire port, of IP version 4 or 6."""
    mac = 0x0200_0000_0000 | port << 8 | node
    if version == 4:
        return Address(mac, IPv4Address(0x0A00_0001 + (port << 8) + node))
    return Address(mac, IPv6Address((0xFD00 << 112) | port << 16 | node + 1))


def packets(tapped: np.ndarray, *, loopback: bool = False) -> Iterator[Captured]:
    """Whole packets of what `Machine.tapped` returns, in the order of their last beats.

    A packet comes in at the port that the sender's is wired to: of the same number, or (`loopback`,
    a node wired to itself) the other one.
    """
    begun: dict[tuple[int, int], tuple[dict[str, int], list[bytes]]] = {}
    for row in tapped:
        cycle, node = int(row[0]), int(row[1])
        fields = _beat.unpack(row[2:].tobytes()[: _beat.size])
        source = (node, fields["port"])
        if fields["first"]:
            begun[source] = (fields, [])
        head, parts = begun[source]
        parts.append(fields["data"].to_bytes(64, "little")[: fields["count"]])
        if fields["last"]:
            del begun[source]
            target = (head["dest"], source[1] ^ loopback)
            yield Captured(cycle, source, target, _packet(head, b"".join(parts)))


def _packet(head: Mapping[str, int], carried: bytes) -> Packet:
    """The transport packet of a beat's headers and the bytes of all its beats."""
    bth: dict[str, Any] = _bth.unpack(head["bth"].to_bytes(_bth.size, "big"))
    opcode, extended = bth["opcode"], {}
    reth = _reth.unpack(head["ext"].to_bytes(_reth.size, "big"))
    for header in EXTENSIONS.get(RoceOpcode(opcode), ()):
        if header is roce.AtomicEth:
            operands, carried = carried[:_OPERANDS], carried[_OPERANDS:]
            extended[header.name] = {
                "va": reth["va"],
                "rkey": reth["rkey"],
                "swap_add": int.from_bytes(operands[:8], "big"),
                "compare": int.from_bytes(operands[8:], "big"),
            }
        elif header is roce.AtomicAckEth:
            extended[header.name] = {"original": int.from_bytes(carried[:8], "big")}
            carried = carried[8:]
        elif header is roce.ImmDt:
            extended[header.name] = {"immediate": head["imm"]}
        elif header is roce.Aeth:
            low = head["ext"] & 0xFFFF_FFFF
            extended[header.name] = _aeth.unpack(low.to_bytes(_aeth.size, "big"))
        else:
            extended[header.name] = reth
    return Packet(bth=bth, extended=extended, payload=carried)


def write(folder: Path, captured: Iterable[Captured], version: int) -> list[Path]:
    """Write a capture for each link that carried something; returns the files.

    Parameters
    ----------
    version
        Of IP: 4 or 6.
    """
    from scapy.utils import RawPcapWriter

    links = defaultdict(list)
    counters: dict[tuple[int, int], int] = defaultdict(int)
    for item in captured:
        frame = build(
            item.packet,
            address_of(*item.source, version),
            address_of(*item.target, version),
            port=_FIRST_PORT | item.packet.bth["dest_qp"] % _PORTS,
            identification=counters[item.source],
        )
        counters[item.source] += 1
        links[tuple(sorted((item.source, item.target)))].append((item.cycle, frame))
    files = []
    for ((a, a_port), (b, b_port)), frames in sorted(links.items()):
        name = f"link-n{a}p{a_port}-n{b}p{b_port}.pcap"
        with RawPcapWriter(str(folder / name), linktype=1, nano=True) as file:
            file.write_header(None)
            for cycle, frame in frames:
                seconds, nanoseconds = divmod(cycle, 1_000_000_000)
                file.write_packet(frame, sec=seconds, usec=nanoseconds)
        files.append(folder / name)
    return files
