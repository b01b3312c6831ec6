"""The layers below RoCEv2's transport headers, as they stand in captures.

Ref: IEEE 802.3 and 802.1Q, RFC 791 (IPv4), RFC 8200 (IPv6), RFC 768 (UDP); RoCEv2 annex A17 for the
UDP port. The machine itself carries transport headers only (decision 2); these are put around them
where a capture is written.
"""

from amaranth.lib import enum

from .layout import network, size

__all__ = ["ROCE_PORT", "EtherType", "Ethernet", "IpProtocol", "Ipv4", "Ipv6", "Udp", "Vlan"]

#: UDP destination port of RoCEv2.
ROCE_PORT = 4791


class EtherType(enum.Enum, shape=16):
    IPV4 = 0x0800
    VLAN = 0x8100
    IPV6 = 0x86DD


class IpProtocol(enum.Enum, shape=8):
    TCP = 6
    UDP = 17


@network
class Ethernet:
    """Ethernet header."""

    destination: 48
    source: 48
    ethertype: 16


assert size(Ethernet) == 14


@network
class Vlan:
    """802.1Q tag, behind the EtherType that announces it."""

    priority: 3
    drop_eligible: 1
    identifier: 12
    ethertype: 16


assert size(Vlan) == 4


@network
class Ipv4:
    """IPv4 header without options."""

    version: 4
    #: In units of 4 bytes.
    header_length: 4
    tos: 8
    #: Header included.
    total_length: 16
    identification: 16
    _0: 1
    dont_fragment: 1
    more_fragments: 1
    fragment_offset: 13
    ttl: 8
    protocol: 8
    checksum: 16
    source: 32
    destination: 32


assert size(Ipv4) == 20


@network
class Ipv6:
    """IPv6 header."""

    version: 4
    traffic_class: 8
    flow_label: 20
    #: Behind this header.
    payload_length: 16
    next_header: 8
    hop_limit: 8
    source: 128
    destination: 128


assert size(Ipv6) == 40


@network
class Udp:
    """UDP header."""

    source_port: 16
    destination_port: 16
    #: Header included.
    length: 16
    checksum: 16


assert size(Udp) == 8
