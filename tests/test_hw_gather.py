"""The gatherer against a plain function: bytes, packets, requests, landmarks."""

import random
from collections import deque

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from support_streams import Bench, Sink, Source
from test_hw_dma import LINE, Completer, cut, in_lanes, lane_bytes, memory_bytes

from hw.config import Structure
from hw.dma_read import DmaRead
from hw.formats.tlp import MarkKind
from hw.gather import Gather
from hw.lib.stream import connect

STRUCTURE = Structure(payload_tags=16, payload_lines=128)


def piece(address, length, *, last=1, mtu=4096, qp=1, index=0, inline=None):
    """A piece from memory, or (`inline` given) of these bytes from lane `address`."""
    return {
        "inline": inline is not None,
        "address": address,
        "length": length,
        "last": last,
        "qp": qp,
        "wqe_index": index,
        "mtu_log2": mtu.bit_length() - 1,
        "data": 0 if inline is None else in_lanes(inline, address % LINE),
    }


def piece_bytes(piece):
    if piece["inline"]:
        return lane_bytes(piece["data"], piece["address"] % LINE, piece["length"])
    return memory_bytes(piece["address"], piece["length"])


def ref_gather(pieces, spans=False):
    """What the gatherer makes of the pieces.

    Payload of each packet, requests as (address, length, wqe_index), (wqe_index, inline) of each
    message's first bytes.
    """
    packets, requests, arrivals, current, begins = [], [], [], b"", True
    for piece in pieces:
        mtu = 1 << piece["mtu_log2"]
        raw = piece_bytes(piece)
        if begins:
            arrivals.append((piece["wqe_index"], int(piece["inline"])))
        begins = bool(piece["last"])
        if not piece["inline"] and spans:
            requests.extend(
                (*part, piece["wqe_index"]) for part in cut(piece["address"], len(raw), 4096)
            )
        done = 0
        while done < len(raw):
            part = raw[done : done + mtu - len(current)]
            if not piece["inline"] and not spans:
                requests.append((piece["address"] + done, len(part), piece["wqe_index"]))
            done, current = done + len(part), current + part
            if len(current) == mtu or (done == len(raw) and piece["last"]):
                packets.append(current)
                current = b""
    return packets, requests, arrivals


class Reader(Source):
    """Stands for the read engine: lines of the requests, in order, a while later."""

    def __init__(self, stream, *, latency=0, **options):
        super().__init__(stream, **options)
        self.latency = latency

    def read(self, cycle, request):
        parts = cut(request["address"], request["length"], LINE)
        self.items.extend(
            (
                cycle + 1 + self.latency,
                {
                    "data": in_lanes(memory_bytes(at, count), at % LINE),
                    "lane": at % LINE,
                    "count": count,
                    "last": i == len(parts) - 1,
                    "context": request["context"],
                },
            )
            for i, (at, count) in enumerate(parts)
        )


def packets_of(lines):
    packets, current = [], b""
    for line in lines:
        assert line["lane"] == 0
        assert line["count"] == LINE or line["last"], "a gap"
        current += lane_bytes(line["data"], 0, line["count"])
        if line["last"]:
            packets.append(current)
            current = b""
    assert not current
    return packets


def rtl_gather(pieces, *, stalls=0.0, seed=1, latency=20, skip=False, spans=False, limit=20000):
    dut = Gather(STRUCTURE, reads_span_packets=spans)
    reader = Reader(dut.lines, latency=latency, idle=stalls, seed=seed)
    requests = Sink(dut.requests, stall=stalls, seed=seed + 1, on_item=reader.read)
    out = Sink(dut.payload, stall=stalls, seed=seed + 2)
    expected = ref_gather([p[1] if isinstance(p, tuple) else p for p in pieces], spans)
    packets = len(expected[0])
    bench = Bench(
        dut,
        [Source(dut.pieces, pieces, idle=stalls, seed=seed + 3), requests, reader, out],
        skip=skip,
    )
    bench.run(limit, done=lambda: sum(line["last"] for line in out.words) >= packets)
    bench.requests, bench.out = requests, out
    assert packets_of(out.words) == expected[0]
    assert [(r["address"], r["length"], r["mark"]["index"]) for r in requests.words] == expected[1]
    assert all(r["mark"]["kind"] == MarkKind.PAYLOAD.value for r in requests.words)
    assert [(e["wqe_index"], e["inline"]) for e in bench.of("on_payload_arrived")] == expected[2]
    seen = [index for _, _, index in expected[1]]
    assert [e["wqe_index"] for e in bench.of("on_payload_requested")] == list(dict.fromkeys(seen))
    return bench


def random_pieces(messages, seed, mtus=(256, 512, 1024), most=900):
    source = random.Random(seed)
    pieces = []
    for index in range(messages):
        mtu, count = source.choice(mtus), source.randint(1, 4)
        for i in range(count):
            address = source.randrange(1 << 30)
            if source.random() < 0.5:
                raw = source.randbytes(source.randint(1, LINE))
                lane = source.randint(0, LINE - len(raw))
                pieces.append(
                    piece(
                        lane,
                        len(raw),
                        inline=raw,
                        last=i == count - 1,
                        mtu=mtu,
                        index=index,
                        qp=index % 5,
                    )
                )
            else:
                length = source.choice((1, 64, 255, 256, source.randint(1, most)))
                pieces.append(
                    piece(address, length, last=i == count - 1, mtu=mtu, index=index, qp=index % 5)
                )
    return pieces


@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize(
    "seed, stalls, latency", [(1, 0.0, 0), (2, 0.3, 20), (3, 0.5, 3), (4, 0.0, 200), (5, 0.2, 60)]
)
def test_packets_of_random_pieces(seed, stalls, latency, spans):
    rtl_gather(random_pieces(25, seed), stalls=stalls, seed=seed, latency=latency, spans=spans)


def test_packets_end_at_the_mtu_and_at_the_end_of_the_message():
    pieces = [
        piece(10, 250, last=0, mtu=256),
        piece(7, 20, inline=bytes(range(20)), mtu=256),  # inline crosses a packet
        piece(0, 256, mtu=256, index=1),  # exactly one packet
        piece(100, 600, mtu=256, index=2),
    ]
    assert [len(packet) for packet in ref_gather(pieces)[0]] == [256, 14, 256, 256, 256, 88]
    rtl_gather(pieces)


def test_inline_message_takes_one_cycle():
    pieces = [piece(8 * (i % 7), 8, inline=i.to_bytes(8, "big"), index=i) for i in range(40)]
    bench = rtl_gather(pieces)
    cycles = [cycle for cycle, _ in bench.out.items]
    assert cycles == list(range(1, 41))


@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("offset, lost", [(0, 0), (16, 1)])
def test_large_message_takes_one_cycle_per_line(offset, lost, spans):
    packets = 4
    bench = rtl_gather([piece(0x10000 + offset, 4096 * packets)], latency=0, spans=spans)
    cycles = [cycle for cycle, _ in bench.out.items]
    assert cycles[-1] - cycles[0] == 64 * packets - 1 + lost * (packets - 1)


def test_inline_waits_for_the_message_before_it():
    pieces = [piece(0x1000, 200), piece(0, 4, inline=b"abcd", index=1), piece(0x3000, 64, index=2)]
    bench = rtl_gather(pieces, latency=50)
    # Both reads are asked for at once; the inline bytes leave between their answers.
    assert [cycle for cycle, _ in bench.requests.items] == [0, 2]
    assert [line["count"] for line in bench.out.words] == [64, 64, 64, 8, 4, 64]


def test_piece_of_two_gigabytes_is_cut():
    dut = Gather(STRUCTURE)
    requests = Sink(dut.requests)
    bench = Bench(dut, [Source(dut.pieces, [piece(0x1000, (1 << 31) - 1)]), requests])
    with pytest.raises(AssertionError, match="not done"):
        bench.run(300)
    # As many requests as the order queue holds.
    assert [(r["address"], r["length"]) for r in requests.words] == [
        (0x1000 + 4096 * i, 4096) for i in range(128)
    ]


def test_quiet_cycles_can_be_skipped():
    pieces = [(60 * i, p) for i, p in enumerate(random_pieces(10, 11))]

    def run(skip):
        bench = rtl_gather(pieces, stalls=0.2, latency=90, skip=skip)
        return bench, bench.requests.items, bench.out.items, bench.events

    skipped, full = run(True), run(False)
    assert skipped[1:] == full[1:]
    assert skipped[0].evaluated < 0.8 * full[0].evaluated


class Chain(wiring.Component):
    """The gatherer with its read engine."""

    def __init__(self, spans):
        self.gather = Gather(STRUCTURE, reads_span_packets=spans)
        self.read = DmaRead(lines=STRUCTURE.payload_lines, tags=STRUCTURE.payload_tags, tag_base=64)
        members = {**self.gather.signature.members, **self.read.signature.members}
        names = ("pieces", "payload", "mrrs_log2", "tags", "reads", "completions", "error")
        super().__init__(
            {
                name: (In if members[name].flow == In else Out)(
                    members[name].signature if members[name].is_signature else members[name].shape
                )
                for name in names
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.gather, m.submodules.read = gather, read = self.gather, self.read
        connect(m, self.pieces, gather.pieces)
        connect(m, gather.requests, read.requests)
        connect(m, read.lines, gather.lines)
        connect(m, gather.payload, self.payload)
        connect(m, read.reads, self.reads)
        connect(m, self.completions, read.completions)
        m.d.comb += [
            read.mrrs_log2.eq(self.mrrs_log2),
            read.tags.eq(self.tags),
            self.error.eq(read.error),
        ]
        return m


def rtl_chain(pieces, *, mrrs=512, mps=256, stalls=0.0, latency=(50, 150), seed=1, spans=False):
    dut = Chain(spans)
    completer = Completer(dut.completions, mps, seed=seed, stalls=stalls, latency=latency)
    reads = Sink(dut.reads, stall=stalls, seed=seed + 1, on_item=completer.read)
    out = Sink(dut.payload, stall=stalls, seed=seed + 2)
    expected = ref_gather(pieces)[0]
    bench = Bench(
        dut,
        [Source(dut.pieces, pieces, idle=stalls, seed=seed + 3), reads, completer, out],
        {"mrrs_log2": mrrs.bit_length() - 1, "tags": STRUCTURE.payload_tags},
    )
    bench.run(20000, done=lambda: sum(line["last"] for line in out.words) >= len(expected))
    assert packets_of(out.words) == expected
    bench.reads = reads
    return bench


@pytest.mark.parametrize(
    "seed, stalls, spans", [(21, 0.0, False), (22, 0.3, False), (23, 0.3, True)]
)
def test_gather_with_its_read_engine(seed, stalls, spans):
    rtl_chain(random_pieces(20, seed), stalls=stalls, seed=seed, spans=spans)


#: Payload bytes, offset within 4 KiB, MTU, reads at MRRS 512 and 4096: with requests that end with
#: their packet (a packet that ends within an MRRS block costs one read more), and with requests
#: that span packets.
COUNTS = [
    (8, 0, 4096, (1, 1), (1, 1)),
    (1024, 0, 4096, (2, 1), (2, 1)),
    (4096, 0, 4096, (8, 1), (8, 1)),
    (4096, 0, 1024, (8, 4), (8, 1)),
    (7408, 0, 4096, (15, 2), (15, 2)),
    (7408, 3312, 4096, (16, 4), (15, 3)),
    (7408, 3312, 1024, (22, 10), (15, 3)),
]


@pytest.mark.parametrize("size, offset, mtu, cut_counts, span_counts", COUNTS)
def test_reads_of_a_message(size, offset, mtu, cut_counts, span_counts):
    for spans, counts in ((False, cut_counts), (True, span_counts)):
        for mrrs, count in zip((512, 4096), counts, strict=True):
            bench = rtl_chain([piece(0x40000 + offset, size, mtu=mtu)], mrrs=mrrs, spans=spans)
            assert len(bench.reads.items) == count


def test_reference_sees_a_byte_out_of_place():
    """The check is not blind: a wrong byte, a missing packet end and a gap all fail it."""
    good = [
        {"data": 1, "lane": 0, "count": 64, "last": 0},
        {"data": 2, "lane": 0, "count": 8, "last": 1},
    ]
    assert packets_of(good) == [(1).to_bytes(64, "little") + (2).to_bytes(8, "little")]
    for change in ({"count": 63}, {"lane": 1}):
        with pytest.raises(AssertionError):
            packets_of([{**good[0], **change}, good[1]])
    with pytest.raises(AssertionError):
        packets_of(good[:1])
    assert deque(packets_of([{**good[0], "data": 3}, good[1]])) != deque(packets_of(good))
