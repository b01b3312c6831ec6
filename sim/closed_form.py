"""Closed forms in cycles: hardware segments of a message on an idle machine, from the constants.

Every result is a list of named terms; its sum is the segment. Serialisation is computed beat by
beat in the fixed point of the rate meters, so it is exact. Cycles that a block takes whatever the
constants are come from `PIPELINE_CYCLES`, one entry for each sentence under "Timing" in the block's
docstring; they are read there and not fitted to runs. Without them the forms are the constants
alone, which is what presets are calibrated with.
"""

from dataclasses import dataclass, field

from hw.units import BYTE_FRACTION, byte_interval, cycles

__all__ = [
    "LINE",
    "PIPELINE_CYCLES",
    "Idle",
    "Terms",
    "completion_tlps",
    "covered",
    "packets",
    "read_tlps",
    "split",
    "write_tlps",
]

#: Bytes of a beat.
LINE = 64

#: Cycles that are no constant of the configuration, by place. The block's docstring says each.
PIPELINE_CYCLES = {
    # node: a command due in cycle c is with the processor in c + 1, the landmark stamped with it is
    # logged in c. One command of a mailbox is taken per cycle.
    "store": 1,
    "command": 1,
    # doorbell: max(1, doorbell) + 1 after the last beat.
    "doorbell": 1,
    # wq_scheduler: a ring is taken when offered; a request is offered 3 cycles after it.
    "ring": 0,
    "fetch": 3,
    # A pushed WQE is with the intake as soon as its ring is taken.
    "push": 1,
    # dma_read: a read is offered with its request; a line in the cycle after its beat.
    "read": 0,
    "line": 1,
    # wqe_intake: combinational. wqe_decoder: op and first piece 2 cycles after the WQE's last
    # block.
    "intake": 0,
    "decode": 2,
    # gather: a request with its piece; an inline cut in the cycle after its piece; payload with its
    # line.
    "gather_request": 0,
    "gather_inline": 1,
    "gather_line": 0,
    # requester: first beat 1 + max(1, tx) after the operation was accepted.
    "requester": 1,
    # wire: a beat is on tx_valid one cycle after its last byte was sent (on_tx_last); inputs of a
    # node are registered.
    "wire_out": 1,
    "wire_in": 0,
    # responder: first line 1 and WriteRequest 2 cycles after the beat; ACK 1 + max(1, tx) after the
    # last line.
    "responder_line": 1,
    "responder_write": 2,
    "responder_ack": 1,
    # requester: completion 2 cycles after the ACK. cq_engine: max(1, cqe) + 1. dma_write:
    # combinational.
    "retire": 2,
    "cqe": 1,
    "write": 0,
}


class Terms(list):
    """Named parts of a time: (name, cycles)."""

    @property
    def total(self):
        """Their sum."""
        return sum(count for _, count in self)

    def __add__(self, other):
        return Terms([*self, *other])

    def count(self, name):
        """Cycles of all terms of a name."""
        return sum(count for term, count in self if term == name)


def covered(address, size):
    """Bytes of the dwords that a run of bytes touches."""
    return 4 * (-(-(address + size) // 4) - address // 4)


def split(address: int, size: int, limit: int) -> list[tuple[int, int]]:
    """A run of bytes cut at multiples of `limit`, as (address, size)."""
    pieces = []
    while size:
        count = min(limit - address % limit, size)
        pieces.append((address, count))
        address, size = address + count, size - count
    return pieces


def write_tlps(pcie, address, size):
    """Wire bytes of each MWr of a write."""
    return [
        pcie.mwr_overhead_bytes + covered(*piece) for piece in split(address, size, pcie.mps_bytes)
    ]


def read_tlps(pcie, address, size):
    """Wire bytes of each MRd of a read."""
    return [pcie.mrd_overhead_bytes] * len(split(address, size, pcie.mrrs_bytes))


def completion_tlps(pcie, address, size):
    """Wire bytes of each CplD that answers a read."""
    return [
        pcie.cpld_overhead_bytes + covered(*piece)
        for request in split(address, size, pcie.mrrs_bytes)
        for piece in split(*request, pcie.mps_bytes)
    ]


def packets(wire, size, mtu):
    """(payload, charged bytes) of each packet of a WRITE; dwords are charged."""
    count = max(-(-size // mtu), 1)
    payloads = [min(mtu, size - index * mtu) for index in range(count)]
    return [
        (
            payload,
            -(-payload // 4) * 4
            + (wire.other_overhead_bytes if index else wire.first_overhead_bytes),
        )
        for index, payload in enumerate(payloads)
    ]


def _beats(address, size, limit, overhead):
    """Charged bytes of each beat of the TLPs of a run; a first beat carries the overhead."""
    costs = []
    for piece in split(address, size, limit):
        costs += [
            covered(*line) + (0 if index else overhead)
            for index, line in enumerate(split(*piece, LINE))
        ]
    return costs


class _Meter:
    """When beats leave a serialiser: the arithmetic of `hw.lib.rate.RateMeter`."""

    def __init__(self, interval):
        self._interval, self._busy, self._last = interval, 0, -1

    def send(self, cycle, count):
        """Cycle in which `count` bytes that are offered in a cycle have been sent."""
        start = cycle << BYTE_FRACTION if self._busy >> BYTE_FRACTION < cycle else self._busy
        self._busy = start + count * self._interval
        self._last = max(-(-self._busy >> BYTE_FRACTION), self._last + 1, cycle)
        return self._last


@dataclass(frozen=True)
class Idle:
    """An idle machine of given constants.

    Parameters
    ----------
    pcie, memory, nic, wire : PcieConfig, MemoryConfig, NicConfig, WireConfig
    pipeline : dict
        As `PIPELINE_CYCLES`.
    """

    pcie: object
    memory: object
    nic: object
    wire: object
    pipeline: dict = field(default_factory=lambda: dict(PIPELINE_CYCLES))

    def _fixed(self, *places):
        return Terms((f"pipeline {place}", self.pipeline[place]) for place in places)

    def _nic(self, name):
        return max(1, cycles(getattr(self.nic, f"{name}_ns")))

    def crossing(self, source, target, costs):
        """Beats from one device's edge to another's, all offered at once: (first, last).

        `costs` are the charged bytes of each beat.
        """
        pcie = self.pcie
        up = cycles(pcie.edge_ns(source))
        down = cycles(pcie.edge_ns(target) + pcie.switch_ns)
        meters = [
            _Meter(byte_interval(pcie.rate_gbps(*link)))
            for link in ((source, "up"), (target, "down"))
        ]
        ends = []
        for index, count in enumerate(costs):
            arrived = meters[0].send(index, count) + up
            ends.append((arrived, meters[1].send(arrived, count) + down))
        return [
            Terms(
                [
                    (f"serial {source}->{target}", end[1] - up - down),
                    (f"latency {source} up", up),
                    (f"latency {target} down", down),
                ]
            )
            for end in (ends[0], ends[-1])
        ]

    def read(self, reader, owner, address, size):
        """A read of another device's memory: (terms to the first beat's arrival, to the last's)."""
        pcie = self.pcie
        # Requests leave back to back; the memory answers in order without a gap, so the first
        # request starts the stream.
        ask, _ = self.crossing(reader, owner, [pcie.mrd_overhead_bytes])
        wait = Terms(
            [(f"{owner} memory read", max(2, cycles(getattr(self.memory, f"{owner}_read_ns"))))]
        )
        costs = [
            count
            for request in split(address, size, pcie.mrrs_bytes)
            for count in _beats(*request, pcie.mps_bytes, pcie.cpld_overhead_bytes)
        ]
        first, last = self.crossing(owner, reader, costs)
        return ask + wait + first, ask + wait + last

    def write(self, source, owner, address, size):
        """A write into a device's memory, to its last byte committed."""
        _, last = self.crossing(
            source, owner, _beats(address, size, self.pcie.mps_bytes, self.pcie.mwr_overhead_bytes)
        )
        return last + Terms(
            [(f"{owner} memory commit", max(1, cycles(getattr(self.memory, f"{owner}_commit_ns"))))]
        )

    def sending(self, size):
        """Beats of a message offered without a gap: (cycles to the first one sent, to the last)."""
        meter = _Meter(byte_interval(self.wire.gbps))
        ends, cycle = [], 0
        for payload, charged in packets(self.wire, size, self.nic.mtu_bytes):
            padded = -(-payload // 4) * 4
            lines = [count for _, count in split(0, padded, LINE)] or [0]
            lines[0] += charged - padded
            for count in lines:
                ends.append(meter.send(cycle, count))
                cycle += 1
        return ends[0], ends[-1]

    def flight(self):
        """Last byte sent at one port to the beat at the other."""
        return (
            self._fixed("wire_out")
            + Terms([("propagation", max(1, cycles(self.wire.propagation_ns)))])
            + self._fixed("wire_in")
        )

    def segments(
        self,
        size,
        *,
        inline=False,
        pushed=False,
        blocks=1,
        ringer="gpu",
        rings="gpu",
        source="gpu",
        target="gpu",
        address=0,
        raddr=0,
        extra_pieces=0,
        commands=0,
    ):
        """Hardware segments of one WRITE, {landmark: Terms} in path order.

        Up to one line of payload also `landed`, from `rx_last`.

        Parameters
        ----------
        size, address, raddr : int
            Bytes, where they are and where they go.
        inline, pushed : bool
            Payload in the WQE; WQE by BlueFlame.
        blocks : int
            Blocks of the WQE.
        ringer, rings, source, target : "gpu" or "host"
            Who rings; memory of the queues, of the payload, and of the bytes at the peer.
        extra_pieces : int
            Segments or lines of the WQE beyond the first, each a cycle in the decoder.
        commands : int
            Stores that are due with the doorbell and pushed before it, such as the record's.
        """
        pcie = self.pcie
        bell = (
            # A write of its own for each block.
            [pcie.mwr_overhead_bytes + LINE] * blocks if pushed else [pcie.mwr_overhead_bytes + 8]
        )
        found = {
            "ring_seen": self._fixed("store", *["command"] * commands)
            + self.crossing(ringer, "nic", bell)[1]
            + Terms([("doorbell", self._nic("doorbell"))])
            + self._fixed("doorbell", "ring")
        }
        if pushed:
            found["fetched"] = self._fixed("push", "intake") + Terms([("blocks", blocks - 1)])
        else:
            found["fetch_req"] = self._fixed("fetch")
            found["fetched"] = (
                self._fixed("read")
                + self.read("nic", rings, 0, 64 * blocks)[1]
                + self._fixed("line", "intake")
            )
        decode = self._fixed("decode") + Terms(
            [("wqe", self._nic("wqe")), ("segments", extra_pieces)]
        )
        # The operation waits `tx` on its own while its payload is on the way; it is ready one
        # `decode` after the WQE.
        wait = self._fixed("requester") + Terms([("tx", self._nic("tx"))])
        if inline:
            found["payload"] = decode + self._fixed("gather_inline")
            ahead = self.pipeline["gather_inline"]
        else:
            found["payload_req"] = decode + self._fixed("gather_request")
            found["payload"] = (
                self._fixed("read")
                + self.read("nic", source, address, size)[0]
                + self._fixed("line", "gather_line")
            )
            ahead = found["payload"].total
        first, last = self.sending(size)
        found["tx_first"] = wait + Terms(
            [
                ("hidden behind the payload", -min(wait.total, ahead)),
                ("serial wire, first beat", first),
            ]
        )
        found["tx_last"] = Terms([("serial wire, other beats", last - first)])
        found["rx_last"] = self.flight()
        ack = _Meter(byte_interval(self.wire.gbps)).send(0, self.wire.ack_bytes)
        found["ack_rx"] = (
            Terms([("rx", self._nic("rx"))])
            + self._fixed("responder_line", "responder_ack")
            + Terms([("tx", self._nic("tx")), ("serial wire, ACK", ack)])
            + self.flight()
            + Terms([("rx", self._nic("rx"))])
        )
        found["cqe_written"] = (
            self._fixed("retire")
            + Terms([("cqe", self._nic("cqe"))])
            + self._fixed("cqe", "write")
            + self.write("nic", rings, 0, LINE)
        )
        if 0 < size <= LINE:
            # Of larger messages the writes overlap with the wire: how much depends on which of the
            # two is faster.
            found["landed"] = (
                Terms([("rx", self._nic("rx"))])
                + self._fixed("responder_write", "write")
                + self.write("nic", target, raddr, size)
            )
        return found
