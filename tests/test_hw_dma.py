"""The DMA engines against plain functions: bytes, TLP counts, order, tags and laps."""

import random

import pytest
from support_streams import Bench, Sink, Source, refuses

from hw.dma_read import DmaRead
from hw.dma_write import DmaWrite
from hw.formats.tlp import MarkKind, Port

LINE, PAGE = 64, 4096
TAG_BASE = 64


def memory_byte(address):
    """What every address holds: a fixed function, so that no test keeps a memory."""
    return (address * 167 + (address >> 8) * 59 + (address >> 16) * 13) & 0xFF


def memory_bytes(address, length):
    return bytes(memory_byte(address + i) for i in range(length))


def in_lanes(payload, lane):
    return int.from_bytes(payload, "little") << 8 * lane


def lane_bytes(word, lane, count):
    return word.to_bytes(64, "little")[lane : lane + count]


def cut(address, length, size):
    """(address, length) of the parts of a run, cut at multiples of `size`."""
    parts = []
    while length:
        part = min(length, size - address % size)
        parts.append((address, part))
        address, length = address + part, length - part
    return parts


class Completer(Source):
    """Answers reads, any tag next: TLPs cut at `size`, beats at lines, never two TLPs mixed."""

    def __init__(self, completions, size, *, seed, stalls=0.0, latency=(5, 60), shuffle=True):
        super().__init__(completions, idle=stalls, seed=seed)
        self.size, self.choices = size, random.Random(seed + 1)
        self.latency, self.shuffle = latency, shuffle
        self.waiting, self.in_flight, self.most = [], set(), 0

    def read(self, cycle, beat):
        assert beat["tag"] not in self.in_flight, "a tag is in use twice"
        assert beat["requester"] == Port.NIC.value
        tlps = cut(beat["address"], beat["length"], self.size)
        self.in_flight.add(beat["tag"])
        self.most = max(self.most, len(self.in_flight))
        self.waiting.append([cycle + self.choices.randint(*self.latency), beat["tag"], tlps])

    def drive(self, ctx, cycle):
        ready = [entry for entry in self.waiting if entry[0] <= cycle]
        if ready and not self.items:
            self._answer(self.choices.choice(ready) if self.shuffle else ready[0])
        super().drive(ctx, cycle)

    def _answer(self, entry):
        _, tag, tlps = entry
        address, length = tlps.pop(0)
        final = not tlps
        if final:
            self.waiting.remove(entry)
        beats = cut(address, length, LINE)
        self.items.extend(
            {
                "data": in_lanes(memory_bytes(at, count), at % LINE),
                "address": at % PAGE,
                "count": count,
                "length": length if i == 0 else 0,
                "first": i == 0,
                "last": i == len(beats) - 1,
                "final": final,
                "requester": Port.NIC,
                "tag": tag,
            }
            for i, (at, count) in enumerate(beats)
        )

    def sample(self, ctx, cycle):
        super().sample(ctx, cycle)
        for _, beat in self.taken:
            if beat["final"] and beat["last"]:
                self.in_flight.remove(beat["tag"])
        self.taken.clear()


def ref_read_lines(requests):
    """(lane, bytes, last, context) of each line, in the order of the requests."""
    lines = []
    for request in requests:
        parts = cut(request["address"], request["length"], LINE)
        for i, (address, count) in enumerate(parts):
            lines.append(
                (
                    address % LINE,
                    memory_bytes(address, count),
                    i == len(parts) - 1,
                    request["context"],
                )
            )
    return lines


def rtl_read(
    requests,
    *,
    mrrs,
    mps=256,
    lines=256,
    tags=16,
    in_force=None,
    stalls=0.0,
    seed=1,
    skip=False,
    latency=(5, 60),
    shuffle=True,
    limit=20000,
):
    dut = DmaRead(lines=lines, tags=tags, tag_base=TAG_BASE)
    source = Source(dut.requests, requests, idle=stalls, seed=seed)
    completer = Completer(
        dut.completions, mps, seed=seed + 1, stalls=stalls, latency=latency, shuffle=shuffle
    )
    reads = Sink(dut.reads, stall=stalls, seed=seed + 3, on_item=completer.read)
    out = Sink(dut.lines, stall=stalls, seed=seed + 4)
    expected = ref_read_lines(requests)

    def no_error(ctx, cycle):
        assert not ctx.get(dut.error), f"cycle {cycle}: error"

    bench = Bench(
        dut,
        [source, reads, completer, out],
        {"mrrs_log2": mrrs.bit_length() - 1, "tags": in_force or tags},
        skip=skip,
        each_cycle=no_error,
    )
    bench.run(limit, done=lambda: len(out.items) >= len(expected))
    bench.reads, bench.out, bench.most = reads, out, completer.most
    bench.lines = [
        (
            line["lane"],
            lane_bytes(line["data"], line["lane"], line["count"]),
            bool(line["last"]),
            line["context"],
        )
        for line in out.words
    ]
    assert bench.lines == expected
    for beat in reads.words:
        assert beat["address"] // PAGE == (beat["address"] + beat["length"] - 1) // PAGE, (
            "a read crosses 4 KiB"
        )
        assert TAG_BASE <= beat["tag"] < TAG_BASE + tags
    return bench


def random_requests(count, seed, most=700):
    source = random.Random(seed)
    requests = []
    for i in range(count):
        length = source.choice(
            (1, 2, 8, 63, 64, 65, source.randint(1, most), source.randint(1, most))
        )
        requests.append(
            {
                "address": source.randrange(1 << 20),
                "length": length,
                "context": source.getrandbits(32),
                "mark": {"kind": MarkKind.PAYLOAD, "qp": i % 7, "index": i},
            }
        )
    return requests


@pytest.mark.parametrize(
    "seed, mrrs, mps, stalls",
    [
        (1, 64, 64, 0.0),
        (2, 128, 64, 0.3),
        (3, 256, 256, 0.0),
        (4, 512, 128, 0.3),
        (5, 4096, 256, 0.3),
    ],
)
def test_read_returns_bytes_in_order_of_requests(seed, mrrs, mps, stalls):
    requests = random_requests(40, seed)
    bench = rtl_read(requests, mrrs=mrrs, mps=mps, stalls=stalls, seed=10 * seed)
    assert [(beat["address"], beat["length"]) for beat in bench.reads.words] == [
        part for request in requests for part in cut(request["address"], request["length"], mrrs)
    ]
    assert [beat["mark"]["index"] for beat in bench.reads.words] == [
        i
        for i, request in enumerate(requests)
        for _ in cut(request["address"], request["length"], mrrs)
    ]


def test_read_splits_full_size_requests_at_4k():
    requests = [
        {"address": 0x10000 + offset, "length": 4096, "context": offset}
        for offset in (0, 1, 63, 2048, 4095)
    ]
    bench = rtl_read(requests, mrrs=4096)
    assert len(bench.reads.items) == 1 + 2 * 4


#: Payload bytes, offset within 4 KiB, reads at MRRS 512 and 4096, completions at 256 (the table of
#: the flows).
COUNTS = [
    (8, 0, 1, 1),
    (64, 0, 1, 1),
    (256, 0, 1, 1),
    (1024, 0, 2, 1),
    (4096, 0, 8, 1),
    (7408, 0, 15, 2),
    (7408, 3312, 15, 3),
    (14336, 0, 28, 4),
    (65536, 0, 128, 16),
]


@pytest.mark.parametrize("size, offset, small, large", COUNTS)
def test_read_tlp_counts(size, offset, small, large):
    requests = [
        {"address": address, "length": length, "context": 0}
        for address, length in cut(0x40000 + offset, size, 4096)
    ]
    assert len(rtl_read(requests, mrrs=512, shuffle=False).reads.items) == small
    assert len(rtl_read(requests, mrrs=4096, shuffle=False).reads.items) == large


def test_read_with_one_tag_in_force():
    bench = rtl_read(random_requests(12, 6), mrrs=256, in_force=1)
    assert bench.most == 1
    assert sum(stall["cycles"] for stall in bench.of("on_stall_tags")) > 100


def test_read_uses_all_tags_and_no_more():
    bench = rtl_read(random_requests(60, 7, most=64), mrrs=64, tags=8, latency=(100, 110))
    assert bench.most == 8
    assert bench.of("on_stall_tags")


def test_read_ring_wraps_many_laps_and_stalls_for_lines():
    requests = [{"address": 4096 * i + 13 * i, "length": 300 + i, "context": i} for i in range(60)]
    bench = rtl_read(requests, mrrs=512, lines=8, tags=16)
    assert sum(len(cut(r["address"], r["length"], LINE)) for r in requests) > 40 * 8
    assert sum(stall["cycles"] for stall in bench.of("on_stall_lines")) > 500


def test_read_streams_one_line_per_cycle():
    requests = [{"address": 0x8000 + 4096 * i, "length": 4096, "context": i} for i in range(3)]
    bench = rtl_read(requests, mrrs=512, latency=(10, 10), shuffle=False)
    cycles = [cycle for cycle, _ in bench.out.items]
    assert cycles[-1] - cycles[0] == len(cycles) - 1 == 191


def test_read_sends_one_read_per_cycle():
    requests = [{"address": 512 * i, "length": 8, "context": i} for i in range(16)]
    bench = rtl_read(requests, mrrs=512)
    cycles = [cycle for cycle, _ in bench.reads.items]
    assert cycles == list(range(cycles[0], cycles[0] + 16))


def test_read_latency_is_one_cycle_behind_its_beat():
    bench = rtl_read([{"address": 0, "length": 8, "context": 0}], mrrs=512, latency=(5, 5))
    assert [cycle for cycle, _ in bench.reads.items] == [0]
    # The completer offers the beat in cycle 5.
    assert [cycle for cycle, _ in bench.out.items] == [6]


def test_read_quiet_cycles_can_be_skipped():
    requests = [(150 * i, request) for i, request in enumerate(random_requests(8, 8, most=300))]
    plain = [request for _, request in requests]

    def run(skip):
        dut = DmaRead(lines=32, tags=4, tag_base=TAG_BASE)
        completer = Completer(dut.completions, 128, seed=1)
        reads = Sink(dut.reads, stall=0.2, seed=3, on_item=completer.read)
        out = Sink(dut.lines, stall=0.2, seed=4)
        bench = Bench(
            dut,
            [Source(dut.requests, requests), reads, completer, out],
            {"mrrs_log2": 7, "tags": 2},
            skip=skip,
        )
        bench.run(4000, done=lambda: len(out.items) >= len(ref_read_lines(plain)))
        return bench, reads.items, out.items, bench.events

    skipped, full = run(True), run(False)
    assert skipped[1:] == full[1:]
    assert skipped[0].evaluated < 0.7 * full[0].evaluated


def completion(tag, address, count, final, last=1):
    return {
        "data": 0,
        "address": address,
        "count": count,
        "length": count,
        "first": 1,
        "last": last,
        "final": final,
        "requester": Port.NIC,
        "tag": tag,
    }


@pytest.mark.parametrize(
    "beats, wrong",
    [
        # Read 100 bytes at 0 with tag TAG_BASE, then these beats.
        ([completion(TAG_BASE, 0, 64, 0), completion(TAG_BASE, 64, 36, 1)], False),
        ([completion(TAG_BASE, 0, 64, 1)], True),  # final too early
        ([completion(TAG_BASE, 0, 64, 0), completion(TAG_BASE, 64, 36, 0)], True),  # final missing
        ([completion(TAG_BASE, 64, 36, 0)], True),  # out of order
        ([completion(TAG_BASE, 0, 64, 0), completion(TAG_BASE, 64, 37, 1)], True),  # too many bytes
        ([completion(TAG_BASE + 1, 0, 64, 0)], True),  # not in flight
        ([completion(TAG_BASE + 4, 0, 64, 0)], True),  # not ours
        ([completion(TAG_BASE - 1, 0, 64, 0)], True),
        (
            [
                completion(TAG_BASE, 0, 64, 0),
                completion(TAG_BASE, 64, 36, 1),
                completion(TAG_BASE, 64, 36, 1),
            ],
            True,
        ),
    ],
)
def test_read_reports_a_completion_that_disagrees(beats, wrong):
    dut = DmaRead(lines=32, tags=4, tag_base=TAG_BASE)
    errors = []
    requests = Source(dut.requests, [{"address": 0, "length": 100, "context": 0}])
    completions = Source(dut.completions, [(5 + i, beat) for i, beat in enumerate(beats)])
    Bench(
        dut,
        [requests, completions, Sink(dut.reads), Sink(dut.lines)],
        {"mrrs_log2": 9, "tags": 4},
        each_cycle=lambda ctx, cycle: errors.append(ctx.get(dut.error)),
    ).run(40)
    assert errors[-1] == wrong


def test_read_never_frees_a_tag_on_a_wrong_completion():
    dut = DmaRead(lines=32, tags=4, tag_base=TAG_BASE)
    requests = Source(
        dut.requests,
        [
            {"address": 0, "length": 100, "context": 0},
            (9, {"address": 0, "length": 8, "context": 1}),
        ],
    )
    reads = Sink(dut.reads)
    completions = Source(dut.completions, [(5, completion(TAG_BASE, 0, 64, 1))])
    with pytest.raises(AssertionError, match="not done"):
        Bench(
            dut, [requests, completions, reads, Sink(dut.lines)], {"mrrs_log2": 9, "tags": 1}
        ).run(60)
    assert len(reads.items) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"lines": 48, "tags": 4, "tag_base": 0},
        {"lines": 64, "tags": 3, "tag_base": 0},
        {"lines": 64, "tags": 512, "tag_base": 600},
    ],
)
def test_read_refuses_wrong_sizes(arguments):
    refuses(lambda: DmaRead(**arguments), ValueError, "allowed")


# Writes.


KINDS = (MarkKind.PAYLOAD, MarkKind.PAYLOAD_LAST, MarkKind.CQE, MarkKind.LANDED_LAST)
#: What stands before the last TLP of a request.
BEFORE_LAST = {
    MarkKind.PAYLOAD_LAST: MarkKind.PAYLOAD,
    MarkKind.LANDED_LAST: MarkKind.LANDED,
}


def write_requests(count, seed, client, most=600):
    source = random.Random(seed)
    requests, lines = [], []
    for i in range(count):
        length = source.choice((1, 8, 64, 65, source.randint(1, most)))
        address = source.randrange(1 << 16) + (client << 20)
        kind = source.choice(KINDS)
        requests.append(
            {"address": address, "length": length, "mark": {"kind": kind, "qp": client, "index": i}}
        )
        lines.extend(write_lines(address, length))
    return requests, lines


def write_lines(address, length):
    parts = cut(address, length, LINE)
    return [
        {
            "data": in_lanes(memory_bytes(at, count), at % LINE),
            "lane": at % LINE,
            "count": count,
            "last": i == len(parts) - 1,
        }
        for i, (at, count) in enumerate(parts)
    ]


def ref_posted(requests, mps):
    """The beats of the requests of one client."""
    beats = []
    for request in requests:
        tlps = cut(request["address"], request["length"], mps)
        for t, (address, length) in enumerate(tlps):
            kind = request["mark"]["kind"]
            if t < len(tlps) - 1:
                kind = BEFORE_LAST.get(kind, kind)
            parts = cut(address, length, LINE)
            for i, (at, count) in enumerate(parts):
                beats.append(
                    (
                        at,
                        memory_bytes(at, count),
                        length if i == 0 else None,
                        i == 0,
                        i == len(parts) - 1,
                        {**request["mark"], "kind": kind.value},
                    )
                )
    return beats


def rtl_posted(clients, mps, *, stalls=0.0, seed=1, skip=False, limit=20000):
    """The beats that come out, by client (read off the mark), and the bench."""
    dut = DmaWrite(clients=len(clients))
    drivers = []
    for i, (requests, lines) in enumerate(clients):
        drivers.append(Source(dut.requests[i], requests, idle=stalls, seed=seed + 10 * i))
        drivers.append(Source(dut.lines[i], lines, idle=stalls, seed=seed + 10 * i + 1))
    out = Sink(dut.posted, stall=stalls, seed=seed + 5)

    def no_error(ctx, cycle):
        assert not ctx.get(dut.error)

    bench = Bench(
        dut, [*drivers, out], {"mps_log2": mps.bit_length() - 1}, skip=skip, each_cycle=no_error
    ).run(limit)
    bench.out = out
    beats = [[] for _ in clients]
    for beat in out.words:
        assert beat["address"] % LINE + beat["count"] <= LINE, "a beat crosses a line"
        beats[beat["mark"]["qp"]].append(
            (
                beat["address"],
                lane_bytes(beat["data"], beat["address"] % LINE, beat["count"]),
                beat["length"] if beat["first"] else None,
                bool(beat["first"]),
                bool(beat["last"]),
                beat["mark"],
            )
        )
    return beats, bench


@pytest.mark.parametrize(
    "seed, mps, stalls, count",
    [
        (1, 64, 0.0, 2),
        (2, 128, 0.3, 2),
        (3, 256, 0.0, 3),
        (4, 256, 0.4, 5),
        (5, 4096, 0.3, 2),
    ],
)
def test_write_bytes_tlps_and_marks(seed, mps, stalls, count):
    clients = [write_requests(30, seed + 100 * client, client) for client in range(count)]
    beats, bench = rtl_posted(clients, mps, stalls=stalls, seed=seed)
    for client, (requests, _) in enumerate(clients):
        assert beats[client] == ref_posted(requests, mps)
    # Requests are never mixed.
    owners = [(beat["mark"]["qp"], beat["mark"]["index"]) for beat in bench.out.words]
    runs = [owner for i, owner in enumerate(owners) if i == 0 or owners[i - 1] != owner]
    assert len(runs) == len(set(runs)) == 30 * count


@pytest.mark.parametrize("count", [2, 3, 4])
def test_write_takes_turns_without_a_gap(count):
    clients = [
        (
            [{"address": 0x1000 * i, "length": 256, "mark": {"qp": c}} for i in range(10)],
            write_lines(0, 256) * 10,
        )
        for c in range(count)
    ]
    beats, bench = rtl_posted(clients, 256)
    cycles = [cycle for cycle, _ in bench.out.items]
    assert cycles == list(range(40 * count))
    assert [beat["mark"]["qp"] for beat in bench.out.words[::4]] == [*range(count)] * 10


def test_write_that_has_no_lines_yet_blocks_nobody():
    requests, lines = write_requests(5, 3, 1)
    silent = [{"address": 0, "length": 8, "mark": {"qp": 0}}]
    beats, _ = rtl_posted(
        [(silent, [(200, line) for line in write_lines(0, 8)]), (requests, lines)], 256
    )
    assert beats[1] == ref_posted(requests, 256)


#: Payload bytes, offset, MTU, writes at MPS 256.
WRITE_COUNTS = [
    (8, 0, 4096, 1),
    (64, 0, 4096, 1),
    (256, 0, 4096, 1),
    (1024, 0, 4096, 4),
    (4096, 0, 4096, 16),
    (4096, 0, 1024, 16),
    (7408, 0, 4096, 29),
    (7408, 3312, 4096, 31),
    (7408, 3312, 1024, 37),
    (14336, 0, 4096, 56),
    (14336, 0, 1024, 56),
    (65536, 0, 4096, 256),
]


@pytest.mark.parametrize("size, offset, mtu, writes", WRITE_COUNTS)
def test_write_tlp_counts(size, offset, mtu, writes):
    # One request per packet, as the responder makes them.
    packets = [(0x40000 + offset + at, min(mtu, size - at)) for at in range(0, size, mtu)]
    requests = [
        {"address": address, "length": length, "mark": {"kind": MarkKind.PAYLOAD, "qp": 0}}
        for address, length in packets
    ]
    lines = [line for address, length in packets for line in write_lines(address, length)]
    beats, bench = rtl_posted([(requests, lines), ([], [])], 256)
    assert sum(beat["last"] for beat in bench.out.words) == writes
    assert [beat[:5] for beat in beats[0]] == [beat[:5] for beat in ref_posted(requests, 256)]


def test_write_reports_a_line_that_disagrees():
    dut = DmaWrite(clients=2)
    errors = []
    Bench(
        dut,
        [
            Source(dut.requests[0], [{"address": 8, "length": 8}]),
            Source(dut.lines[0], [{"lane": 0, "count": 8}]),
            Sink(dut.posted),
        ],
        {"mps_log2": 8},
        each_cycle=lambda ctx, cycle: errors.append(ctx.get(dut.error)),
    ).run(10)
    assert errors[-1] == 1


def test_write_quiet_cycles_can_be_skipped():
    def run(skip):
        requests, lines = write_requests(6, 9, 0)
        clients = [
            (
                [(40 * i, r) for i, r in enumerate(requests)],
                [(3 * i, line) for i, line in enumerate(lines)],
            ),
            ([], []),
        ]
        _, bench = rtl_posted(clients, 128, stalls=0.3, skip=skip)
        return bench.out.items, bench.evaluated

    skipped, full = run(True), run(False)
    assert skipped[0] == full[0]
    assert skipped[1] <= full[1]


def test_write_refuses_a_single_client():
    refuses(lambda: DmaWrite(clients=1), ValueError, "allowed from 2")
