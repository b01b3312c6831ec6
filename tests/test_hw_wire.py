"""The wire against plain Python: rate, credits, faults, order, and the receive side."""

import math
import random
from fractions import Fraction

import pytest
from support_roce import Pulses, Recorder, ack_beat, normal, packet_beats, write_packets
from support_streams import Bench, Sink, Source, pack

from hw.config import Structure
from hw.formats.events import DropReason, StallCause
from hw.formats.roce import RoceOpcode, WireBeat
from hw.timing import FaultTiming, WireTiming
from hw.units import byte_interval
from hw.wire import Wire

STRUCTURE = Structure(wire_beats=128)
FIRST, OTHER, ACK = 98, 82, 86
ALWAYS = (1 << 32) - 1
#: Bytes between BTH and payload, by hand: RETH 16, ImmDt 4, AETH 4. Of an AtomicETH (28), 16 are
#: the beat's payload; of an AtomicAckETH all.
HEADERS = {
    RoceOpcode.SEND_LAST_IMM: 4,
    RoceOpcode.SEND_ONLY_IMM: 4,
    RoceOpcode.WRITE_FIRST: 16,
    RoceOpcode.WRITE_ONLY: 16,
    RoceOpcode.WRITE_LAST_IMM: 4,
    RoceOpcode.WRITE_ONLY_IMM: 20,
    RoceOpcode.READ_REQUEST: 16,
    RoceOpcode.READ_RESPONSE_FIRST: 4,
    RoceOpcode.READ_RESPONSE_LAST: 4,
    RoceOpcode.READ_RESPONSE_ONLY: 4,
    RoceOpcode.ATOMIC_ACK: 4,
    RoceOpcode.COMPARE_SWAP: 12,
    RoceOpcode.FETCH_ADD: 12,
    RoceOpcode.MASKED_COMPARE_SWAP: 12,
    RoceOpcode.MASKED_FETCH_ADD: 12,
    RoceOpcode.SEND_LAST_INV: 4,
    RoceOpcode.SEND_ONLY_INV: 4,
    RoceOpcode.UD_SEND_ONLY: 8,
}
#: What a responder sends.
RESPONSES = {0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12}


def charged(packet):
    """Bytes that the wire charges for a packet."""
    opcode = RoceOpcode(packet[0]["bth"]["opcode"])
    if opcode == RoceOpcode.ACK:
        return ACK
    return OTHER + HEADERS.get(opcode, 0) + (packet[0]["length"] + 3) // 4 * 4


def span(size, gbps):
    """Cycles that `size` bytes take, exact."""
    return Fraction(size * byte_interval(gbps), 1 << 24)


class Run:
    """One wire. `back` is the cycles after which the far end gives a credit back; None: never."""

    def __init__(
        self,
        requests=(),
        acks=(),
        *,
        gbps=400,
        credits=10_000,
        back=None,
        faults=(),
        rx=7,
        arrivals=(),
        idle=0.0,
        stall=0.0,
        seed=1,
        skip=False,
        expect=None,
        limit=5000,
        tail=40,
        port=0,
    ):
        self.dut = dut = Wire(STRUCTURE, port)
        self.requests, self.acks = (
            Source(dut.requests, requests, idle, seed),
            Source(dut.acks, acks, idle, seed + 1),
        )
        self.credits = Pulses(dut.tx_credit)

        def on_beat(cycle, beat):
            if back is not None:
                self.credits.items.append((cycle + back, None))

        self.sent = Recorder(dut.tx_valid, dut.tx_beat, WireBeat, on_beat)
        self.given = Recorder(dut.rx_credit)
        self.arrivals = Pulses(dut.rx_valid, dut.rx_beat, WireBeat, arrivals)
        self.rx_requests, self.rx_acks = (
            Sink(dut.rx_requests, stall, seed + 2),
            Sink(dut.rx_acks, stall, seed + 3),
        )
        slots = [
            dict(zip(("match", "first", "count", "port"), fault, strict=True)) for fault in faults
        ]
        self.bench = Bench(
            dut,
            [
                self.requests,
                self.acks,
                self.credits,
                self.arrivals,
                self.sent,
                self.given,
                self.rx_requests,
                self.rx_acks,
            ],
            {
                "timing": pack(
                    WireTiming,
                    {
                        "byte_interval": byte_interval(gbps),
                        "first_overhead": FIRST,
                        "other_overhead": OTHER,
                        "ack_bytes": ACK,
                        "credits": credits,
                    },
                ),
                "rx": rx,
                "faults": pack(FaultTiming, {"slots": dict(enumerate(slots))}),
            },
            skip=skip,
        )
        self.bench.run(
            limit,
            lambda: (
                (expect is None or len(self.sent.items) >= expect)
                and len(self.given.items) == len(self.arrivals.taken)
            ),
            tail=tail,
        )

    @property
    def beats(self):
        return [normal(beat) for beat in self.sent.words]

    def cycles_of(self, name):
        return [cycle for cycle, event, _ in self.bench.events if event == name]


def flat(packets):
    return [normal(beat) for packet in packets for beat in packet]


def requests_of(lengths, mtu=1024, seed=1):
    rng, psn, packets = random.Random(seed), 0, []
    for number, length in enumerate(lengths):
        new = write_packets(
            rng.randbytes(length), mtu, psn, dest_qp=0x1502, dest=9, wqe_index=number
        )
        packets, psn = packets + new, psn + len(new)
    return packets


@pytest.mark.parametrize("gbps", [100, 400, 512])
@pytest.mark.parametrize("length", [0, 1, 8, 64, 65, 1024, 1027])
def test_latency_closed_form_on_an_idle_wire(gbps, length):
    packets = requests_of([length], mtu=2048)
    run = Run(flat(packets), gbps=gbps, expect=len(packets[0]), port=1)
    accepted = run.requests.taken[0][0]
    ends = accepted + math.ceil(span(charged(packets[0]), gbps))
    if length > 64:
        # Two beats that end within one cycle leave in two.
        before = (
            charged(packets[0]) - (length % 64 + 3) // 4 * 4
            if length % 64
            else charged(packets[0]) - 64
        )
        ends = max(ends, accepted + math.ceil(span(before, gbps)) + 1)
    assert run.cycles_of("on_tx_last") == [ends] and run.sent.items[-1][0] == ends + 1
    assert run.beats == flat(packets)
    (first,), (last,) = run.bench.of("on_tx_first"), run.bench.of("on_tx_last")
    header = {"dest_qp": 0x502, "psn": 0, "opcode": 0x0A, "qp": 0, "wqe_index": 0, "port": 1}
    assert (
        first == {**header, "length": length, "wire_bytes": charged(packets[0]), "dest": 9}
        and last == header
    )
    first_bytes = FIRST + (min(length, 64) + 3) // 4 * 4
    assert run.cycles_of("on_tx_first") == [accepted + math.ceil(span(first_bytes, gbps))]


@pytest.mark.parametrize("gbps", [37, 200, 400, 512])
@pytest.mark.parametrize(
    "lengths", [[8] * 60, [0, 1, 2, 3, 5] * 12, [4096] * 2, [1025, 64, 3000, 0, 7] * 2]
)
def test_wire_rate_is_exact_over_many_packets(gbps, lengths):
    packets = requests_of(lengths)
    run = Run(flat(packets), gbps=gbps, expect=len(flat(packets)))
    start, total, expected = run.requests.taken[0][0], 0, []
    for packet in packets:
        total += charged(packet)
        expected.append(start + math.ceil(span(total, gbps)))
    assert run.beats == flat(packets)
    assert all(
        0 <= cycle - exact <= 1
        for cycle, exact in zip(run.cycles_of("on_tx_last"), expected, strict=True)
    )
    assert [event["wire_bytes"] for event in run.bench.of("on_tx_first")] == [
        charged(packet) for packet in packets
    ]


def test_every_opcode_is_charged_by_its_headers():
    packets = [
        packet_beats(opcode, number, bytes(length), dest_qp=0x1502)
        for number, opcode in enumerate(RoceOpcode)
        # An ACK has no payload.
        for length in ((0,) if opcode == RoceOpcode.ACK else (0, 100))
    ]
    run = Run(flat(packets), gbps=200, expect=len(flat(packets)))
    wanted = [charged(packet) for packet in packets]
    assert [event["wire_bytes"] for event in run.bench.of("on_tx_first")] == wanted
    total, expected = 0, []
    for size in wanted:
        total += size
        expected.append(run.requests.taken[0][0] + math.ceil(span(total, 200)))
    assert all(
        0 <= cycle - exact <= 1
        for cycle, exact in zip(run.cycles_of("on_tx_last"), expected, strict=True)
    )


@pytest.mark.parametrize("seed,idle", [(1, 0), (2, 0.3), (3, 0.7)])
def test_packets_are_not_interleaved_and_acks_go_first(seed, idle):
    packets = requests_of([8, 300, 2000, 0, 500, 64] * 3, seed=seed)
    acks = [ack_beat(i, dest_qp=0x900, dest=9, msn=i) for i in range(30)]
    run = Run(flat(packets), acks, idle=idle, seed=seed, expect=len(flat(packets)) + 30)
    sent, is_ack = run.beats, lambda beat: beat["bth"]["opcode"] == RoceOpcode.ACK.value
    assert [beat for beat in sent if is_ack(beat)] == [normal(beat) for beat in acks]
    assert [beat for beat in sent if not is_ack(beat)] == flat(packets)
    inside = False
    for beat in sent:
        assert beat["first"] != inside
        inside = not beat["last"]
    if not idle:
        assert all(is_ack(beat) for beat in sent[:30])


@pytest.mark.parametrize(
    "faults,lost",
    [
        ([(1, 0, 1, 1)], lambda number, kind, nth: number == 0),
        ([(1, 3, 2, 1)], lambda number, kind, nth: number in (3, 4)),
        ([(2, 2, 3, 1)], lambda number, kind, nth: kind == "request" and 2 <= nth < 5),
        ([(3, 1, 1, 1)], lambda number, kind, nth: kind == "ack" and nth == 1),
        ([(3, 2, ALWAYS, 1)], lambda number, kind, nth: kind == "ack" and nth >= 2),
        # A slot of the other port.
        ([(1, 0, ALWAYS, 0), (1, 3, 2, 1)], lambda number, kind, nth: number in (3, 4)),
        (
            [(0, 0, ALWAYS, 1), (2, 1, 1, 1), (1, 9, 2, 1), (3, 0, 1, 1)],
            lambda number, kind, nth: (
                (kind == "request" and nth == 1)
                or number in (9, 10)
                or (kind == "ack" and nth == 0)
            ),
        ),
    ],
)
def test_fault_slots_drop_what_they_name(faults, lost):
    packets = requests_of([200] * 8)
    # ACKs and requests alternate: the sequence of all packets is known.
    order, requests, acks = [], [], []
    for i in range(8):
        order += [("request", i, packets[i]), ("ack", i, [ack_beat(i, dest_qp=0x903)])]
        requests += [(1 + 60 * i, beat) for beat in packets[i]]
        acks.append((30 + 60 * i, order[-1][2][0]))
    kept = [
        packet for number, (kind, nth, packet) in enumerate(order) if not lost(number, kind, nth)
    ]
    gone = [packet for number, (kind, nth, packet) in enumerate(order) if lost(number, kind, nth)]
    run = Run(requests, acks, faults=faults, port=1)
    assert run.beats == flat(kept)
    events = run.bench.of("on_dropped")
    assert len(events) == len(gone) > 0
    for event, packet in zip(events, gone, strict=True):
        bth = packet[0]["bth"]
        assert (event["reason"], event["qp"]) == (
            DropReason.WIRE_FAULT.value,
            bth["dest_qp"] & 0xFFF,
        )
        assert event["info"] >> 8 == 1 << 8 | bth["opcode"].value
        assert faults[event["info"] & 0xFF][0] != 0 and faults[event["info"] & 0xFF][3] == 1


def test_what_a_responder_sends_is_no_request_for_faults():
    packets = [
        packet_beats(opcode, number, bytes(number % 3 * 60), dest_qp=0x1502)
        for number, opcode in enumerate(RoceOpcode)
    ]
    is_response = [packet[0]["bth"]["opcode"].value in RESPONSES for packet in packets]
    for match, kept in ((2, is_response), (3, [not response for response in is_response])):
        run = Run(flat(packets), faults=[(match, 0, ALWAYS, 0)])
        assert run.beats == flat([p for p, keep in zip(packets, kept, strict=True) if keep])


def test_lost_packets_cost_neither_wire_time_nor_credits():
    packets = requests_of([1024] * 6)
    run = Run(flat(packets), gbps=100, credits=16, faults=[(1, 1, 5, 0)], expect=16)
    assert run.beats == flat(packets[:1])
    cycles = [cycle for cycle, _ in run.requests.taken]
    assert cycles[-1] - cycles[16] == 5 * 16 - 1


def test_credits_bound_the_beats_in_flight():
    packets = requests_of([1024, 8, 3000] * 3)
    run = Run(flat(packets), credits=7, back=50, expect=len(flat(packets)), port=1)
    assert run.beats == flat(packets)
    taken, returned = (
        [cycle for cycle, _ in run.requests.taken],
        [cycle for cycle, _ in run.credits.taken],
    )
    for i, cycle in enumerate(taken):
        assert i < 7 or returned[i - 7] < cycle, "a beat went without a credit"
    stalls = run.bench.of("on_stall_credits")
    assert stalls
    causes = {(stall["cause"], stall["where"]) for stall in stalls}
    assert causes == {(StallCause.WIRE_CREDITS.value, 1)}
    # A credit that comes back in cycle c is used in c + 1.
    assert all(taken[i + 7] == returned[i] + 1 for i in range(0, len(taken) - 7, 7))


def test_no_credits_no_beats():
    run = Run(flat(requests_of([1024]))[:5], credits=5, expect=5)
    assert len(run.sent.items) == 5
    with pytest.raises(AssertionError, match="not done"):
        Run(flat(requests_of([1024])), credits=5, limit=300)


def arrivals_of(seed=1):
    """WRITEs, ACKs and READ responses of several beats, and one packet of each other opcode."""
    rng, packets = random.Random(seed), []
    for i, packet in enumerate(requests_of([8, 0, 500, 64, 2000, 65] * 2, seed=seed)):
        packets.append(packet)
        packets += [[ack_beat(i, dest_qp=0x1234)] for _ in range(rng.randrange(3))]
        if i % 3 == 0:
            packets.append(
                packet_beats(
                    RoceOpcode.READ_RESPONSE_MIDDLE, i, rng.randbytes(200 + i), dest_qp=0x1234
                )
            )
    for i, opcode in enumerate(RoceOpcode):
        packets.append(packet_beats(opcode, i, rng.randbytes(i * 5), dest_qp=0x1234))
    return packets


@pytest.mark.parametrize("rx", [0, 1, 2, 30])
def test_arrivals_are_offered_after_the_receive_delay(rx):
    packets = arrivals_of()
    arrivals = [(3 * i, beat) for i, beat in enumerate(flat(packets))]
    run = Run(arrivals=arrivals, rx=rx, port=1)
    offered = sorted(run.rx_requests.items + run.rx_acks.items, key=lambda item: item[0])
    assert [cycle for cycle, _ in offered] == [cycle + max(1, rx) for cycle, _ in arrivals]
    assert [cycle for cycle, _ in run.given.items] == [cycle + 1 for cycle, _ in offered]
    assert run.cycles_of("on_rx_last") == [cycle for cycle, beat in arrivals if beat["last"]]
    assert run.bench.of("on_rx_last") == [
        {
            "qp": packet[0]["bth"]["dest_qp"] & 0xFFF,
            "psn": packet[0]["bth"]["psn"],
            "opcode": packet[0]["bth"]["opcode"].value,
            "length": packet[0]["length"],
            "port": 1,
        }
        for packet in packets
    ]


@pytest.mark.parametrize("stall", [0, 0.3])
def test_arrivals_are_parted_by_kind_and_kept_in_order(stall):
    packets = arrivals_of(3)
    beats = flat(packets)
    run = Run(arrivals=list(enumerate(beats)), stall=stall, rx=10)
    is_ack = [packet[0]["bth"]["opcode"].value in RESPONSES for packet in packets]
    assert [normal(b) for b in run.rx_acks.words] == flat(
        [p for p, ack in zip(packets, is_ack, strict=True) if ack]
    )
    assert [normal(b) for b in run.rx_requests.words] == flat(
        [p for p, ack in zip(packets, is_ack, strict=True) if not ack]
    )
    assert len(run.given.items) == len(beats)
    if not stall:
        cycles = [cycle for cycle, _ in run.given.items]
        assert cycles[-1] - cycles[0] == len(beats) - 1, "one beat per cycle"


def test_small_packets_at_full_width_pass_one_per_two_cycles():
    packets = requests_of([4] * 50)
    run = Run(flat(packets), gbps=512, expect=50)
    cycles = run.cycles_of("on_tx_last")
    assert abs((cycles[-1] - cycles[0]) - 49 * (FIRST + 4) / 64) <= 1


def test_skipping_quiet_cycles_changes_nothing():
    def once(skip):
        packets = requests_of([8, 500, 0, 1500] * 2)
        requests = [(250 * i, beat) for i, packet in enumerate(packets) for beat in packet]
        acks = [(170 * i, ack_beat(i, dest_qp=0x900)) for i in range(10)]
        arrivals = [
            (60 * i + j, beat)
            for i, packet in enumerate(arrivals_of())
            for j, beat in enumerate(packet)
        ]
        arrivals = [
            (max(cycle, 2 * n), beat)
            for n, (cycle, beat) in enumerate(sorted(arrivals, key=lambda a: a[0]))
        ]
        run = Run(
            requests,
            acks,
            gbps=40,
            credits=20,
            back=333,
            rx=40,
            arrivals=arrivals,
            stall=0.3,
            skip=skip,
            faults=[(2, 1, 1, 0)],
            expect=len(flat(packets)) + 10 - len(packets[1]),
        )
        return (
            run.bench.events,
            run.sent.items,
            run.given.items,
            run.rx_requests.items,
            run.rx_acks.items,
            run.bench.evaluated,
            run.bench.cycle,
        )

    full, skipped = once(False), once(True)
    assert full[:5] == skipped[:5]
    assert skipped[5] < 0.8 * skipped[6]
