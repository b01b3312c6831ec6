"""The responder against plain Python: writes, acknowledgements and drops."""

import random

import pytest
from support_roce import (
    PSN_MASK,
    ContextTable,
    Pulses,
    ack_beat,
    context_writes,
    normal,
    packet_beats,
    write_packets,
)
from support_streams import Bench, Sink, Source, pack, unpack

from hw.config import Structure
from hw.formats.context import ConfigWrite, RxContext, Table
from hw.formats.events import DropReason
from hw.formats.roce import Aeth, RoceOpcode
from hw.formats.tlp import MarkKind
from hw.responder import Responder
from hw.timing import NicTiming

STRUCTURE = Structure(qps=4)
MTU = 256


def contexts_of(qps=4, psn=0, msn=0):
    return {
        qp: {
            "valid": 1,
            "qpn": 0x500 + qp,
            "peer_qpn": 0x900 + qp,
            "peer_node": 3 + qp,
            "expected_psn": (psn + 11 * qp) & PSN_MASK,
            "start_msn": msn,
            "mtu_log2": 8,
            "port": qp & 1,
        }
        for qp in range(qps)
    }


def ref_responder(packets, contexts):
    """(writes with their bytes, ACK beats, (reason, qp) of drops) of a list of packets."""
    state = {
        qp: {
            "psn": c["expected_psn"],
            "msn": c["start_msn"],
            "inside": False,
            "va": 0,
            "reported": False,
            "failed": False,
        }
        for qp, c in contexts.items()
    }
    writes, acks, drops = [], [], []

    def answer(context, psn, msn, syndrome=0x1F):
        ends = {"dest_qp": context["peer_qpn"], "dest": context["peer_node"]}
        ends["port"] = context["port"]
        acks.append(normal(ack_beat(psn, msn=msn, syndrome=syndrome, **ends)))

    for packet in packets:
        head = packet[0]
        bth, length = head["bth"], head["length"]
        qp = bth["dest_qp"] & 3
        context, s = contexts.get(qp), state.get(qp)
        opcode = bth["opcode"]
        starts = opcode in (RoceOpcode.WRITE_FIRST, RoceOpcode.WRITE_ONLY)
        ends = opcode in (RoceOpcode.WRITE_LAST, RoceOpcode.WRITE_ONLY)
        reason = None
        if context is None or context["qpn"] != bth["dest_qp"]:
            reason = DropReason.PACKET_UNKNOWN_QP
        elif not (starts or ends or opcode == RoceOpcode.WRITE_MIDDLE):
            reason = DropReason.PACKET_OPCODE
        elif s["failed"]:
            reason = DropReason.PACKET_QP_ERROR
        elif (bth["psn"] - s["psn"]) & (1 << 23):
            reason = DropReason.PACKET_DUPLICATE
            if bth["ack_request"]:
                answer(context, s["psn"] - 1, s["msn"])
        elif bth["psn"] != s["psn"]:
            reason = DropReason.PACKET_PSN
            if not s["reported"]:
                answer(context, s["psn"], s["msn"], 0x60)
            s["reported"] = True
        elif starts == s["inside"] or (
            length != MTU if not ends else length > MTU or (not starts and length == 0)
        ):
            reason = DropReason.PACKET_OPCODE
            answer(context, s["psn"], s["msn"], 0x61)
            s["failed"] = True
        if reason:
            drops.append((reason.value, bth["dest_qp"]))
            continue
        va = head["ext"] >> 64 if starts else s["va"]
        payload = b"".join(beat["data"].to_bytes(64, "little")[: beat["count"]] for beat in packet)
        if payload:
            kind = MarkKind.PAYLOAD_LAST if ends else MarkKind.PAYLOAD
            writes.append(
                (
                    {
                        "address": va,
                        "length": length,
                        "mark": {"kind": kind.value, "qp": qp, "index": bth["psn"]},
                    },
                    payload,
                )
            )
        s.update(
            psn=(s["psn"] + 1) & PSN_MASK,
            msn=(s["msn"] + ends) & PSN_MASK,
            inside=not ends,
            va=va + length,
            reported=False,
        )
        if bth["ack_request"]:
            answer(context, bth["psn"], s["msn"])
    return writes, acks, drops


class Run:
    def __init__(
        self,
        packets,
        contexts,
        *,
        idle=0.0,
        stall=0.0,
        seed=1,
        tx=5,
        skip=False,
        starts=None,
        acks_stall=None,
        configs=(),
    ):
        self.dut = dut = Responder(STRUCTURE)
        begin = len(contexts) + 1
        beats = []
        for i, packet in enumerate(packets):
            beats += [((starts[i] if starts else begin), beat) for beat in packet]
        self.packets = Source(dut.packets, beats, idle, seed)
        self.writes = Sink(dut.writes, stall, seed + 1)
        self.lines = Sink(dut.lines, stall, seed + 2)
        self.acks = Sink(dut.acks, stall if acks_stall is None else acks_stall, seed + 3)
        config = Pulses(
            dut.config.valid,
            dut.config.payload,
            ConfigWrite,
            context_writes(Table.RX, RxContext, contexts) + list(configs),
        )
        self.bench = Bench(
            dut,
            [
                config,
                ContextTable(dut.rx, RxContext, contexts),
                self.packets,
                self.writes,
                self.lines,
                self.acks,
            ],
            {"timing": pack(NicTiming, {"tx": tx})},
            skip=skip,
        )
        self.expected = ref_responder(packets, contexts)
        self.bench.run(
            4000,
            lambda: (
                len(self.acks.items) >= len(self.expected[1])
                and len(self.writes.items) >= len(self.expected[0])
            ),
            tail=tx + 20,
        )

    @property
    def written(self):
        """(request, bytes) with the lines checked to sit in the lanes of their addresses."""
        runs, run = [], []
        for line in self.lines.words:
            run.append(line)
            if line["last"]:
                runs.append(run)
                run = []
        assert not run and len(runs) == len(self.writes.items)
        written = []
        for request, run in zip(self.writes.words, runs, strict=True):
            address, payload = request["address"], b""
            for line in run:
                assert line["lane"] == address % 64 and line["lane"] + line["count"] <= 64
                payload += line["data"].to_bytes(64, "little")[
                    line["lane"] : line["lane"] + line["count"]
                ]
                assert line is run[-1] or (address + line["count"]) % 64 == 0
                address += line["count"]
            assert len(payload) == request["length"]
            written.append((request, payload))
        return written

    @property
    def drops(self):
        return [(event["reason"], event["qp"]) for event in self.bench.of("on_dropped")]

    def check(self):
        writes, acks, drops = self.expected
        assert self.written == writes
        assert [normal(beat) for beat in self.acks.words] == acks
        assert self.drops == drops


def messages(seed, count, contexts, *, interleave=True):
    """Packets of WRITEs over all QPs; packets of different QPs are interleaved."""
    rng = random.Random(seed)
    queues = {}
    psns = {qp: context["expected_psn"] for qp, context in contexts.items()}
    for _ in range(count):
        qp = rng.choice(list(contexts))
        length = rng.choice([0, 1, 7, 63, 64, 65, MTU - 1, MTU, MTU + 1, 2 * MTU, 2 * MTU + 1, 900])
        new = write_packets(
            rng.randbytes(length),
            MTU,
            psns[qp],
            raddr=0x2000_0000_0000 + rng.randrange(1 << 20),
            rkey=7,
            ack_every=rng.randrange(2),
            dest_qp=contexts[qp]["qpn"],
            wqe_index=5,
        )
        psns[qp] += len(new)
        queues.setdefault(qp, []).extend(new)
    packets = []
    while queues:
        qp = rng.choice(list(queues))
        packets.append(queues[qp].pop(0))
        if not queues[qp]:
            del queues[qp]
    return packets


def only(
    psn, length=8, *, qp=0, va=0x2000_0000_1000, opcode=RoceOpcode.WRITE_ONLY, ack=1, qpn=None
):
    """One packet of QP `qp` with any opcode."""
    payload = random.Random(psn).randbytes(length)
    return packet_beats(
        opcode,
        psn,
        payload,
        dest_qp=0x500 + qp if qpn is None else qpn,
        ack=ack,
        reth={"va": va, "rkey": 7, "length": length},
    )


@pytest.mark.parametrize(
    "seed,idle,stall", [(1, 0, 0), (2, 0.4, 0.4), (3, 0.1, 0.7), (4, 0.6, 0.1)]
)
def test_writes_and_acks_match_reference(seed, idle, stall):
    contexts = contexts_of(psn=0xFFFFF0, msn=0xFFFFFE)
    run = Run(messages(seed, 40, contexts), contexts, idle=idle, stall=stall, seed=seed)
    run.check()
    assert not run.drops and run.expected[1]


@pytest.mark.parametrize("lane", [0, 1, 37, 63])
@pytest.mark.parametrize("length", [1, 64, MTU, MTU + 1, 2 * MTU + 63])
def test_bytes_sit_in_the_lanes_of_their_address(lane, length):
    contexts = contexts_of(1)
    packets = write_packets(
        random.Random(length).randbytes(length),
        MTU,
        0,
        raddr=0x1000_0000_0040 + lane,
        dest_qp=0x500,
    )
    run = Run(packets, contexts)
    run.check()
    assert [request["address"] for request in run.writes.words] == [
        0x1000_0000_0040 + lane + MTU * i for i in range(len(packets))
    ]


def test_ack_fields():
    contexts = contexts_of(2, psn=PSN_MASK, msn=PSN_MASK)
    run = Run([only(PSN_MASK)], contexts)
    (ack,) = run.acks.words
    assert ack["bth"] == {
        "opcode": 0x11,
        "solicited": 0,
        "migration": 0,
        "pad": 0,
        "version": 0,
        "pkey": 0xFFFF,
        "fecn": 0,
        "becn": 0,
        "_0": 0,
        "dest_qp": 0x900,
        "ack_request": 0,
        "_1": 0,
        "psn": PSN_MASK,
    }
    assert unpack(Aeth, ack["ext"]) == {"syndrome": 0x1F, "msn": 0}
    assert (ack["first"], ack["last"], ack["count"], ack["length"], ack["dest"]) == (1, 1, 0, 0, 3)


FIRST = {"opcode": RoceOpcode.WRITE_FIRST, "length": MTU, "ack": 0}
MIDDLE = {"opcode": RoceOpcode.WRITE_MIDDLE, "length": MTU, "ack": 0}
LAST = {"opcode": RoceOpcode.WRITE_LAST}
#: Packets that do not fit where they stand, with the good ones before them.
MISFITS = {
    "middle of none": [only(0, **MIDDLE)],
    "last of none": [only(0, **LAST)],
    "only, too long": [only(0, MTU + 1)],
    "first, too short": [only(0, opcode=RoceOpcode.WRITE_FIRST, length=MTU - 64)],
    "first, empty": [only(0, opcode=RoceOpcode.WRITE_FIRST, length=0)],
    "only within a message": [only(0, **FIRST), only(1, 8)],
    "first within a message": [only(0, **FIRST), only(1, **FIRST)],
    "middle, too short": [only(0, **FIRST), only(1, opcode=RoceOpcode.WRITE_MIDDLE, length=64)],
    "last, empty": [only(0, **FIRST), only(1, opcode=RoceOpcode.WRITE_LAST, length=0)],
    "last, too long": [only(0, **FIRST), only(1, opcode=RoceOpcode.WRITE_LAST, length=MTU + 64)],
}


def syndromes(run):
    return [(ack["bth"]["psn"], unpack(Aeth, ack["ext"])["syndrome"]) for ack in run.acks.words]


def test_packets_for_nobody_are_dropped_and_change_nothing():
    contexts = contexts_of(2)
    packets = [
        only(0, qpn=0x600),
        only(0, qpn=0x502),
        only(0, qpn=0x504, length=200),  # unknown QPs
        only(0, opcode=0x64, length=100),
        only(0, opcode=RoceOpcode.ACK, length=0),  # no request
        only(0, **FIRST),
        only(0, opcode=0x64, length=100),
        only(1, length=MTU, **LAST),
        only(11, qp=1),
    ]
    run = Run(packets, contexts, stall=0.3, idle=0.2)
    run.check()
    assert len(run.drops) == 6 and len(run.written) == 3 and len(run.acks.items) == 2
    assert run.bench.of("on_dropped")[3]["info"] == 0x64000000


@pytest.mark.parametrize("packets", MISFITS.values(), ids=MISFITS)
def test_a_misfit_is_refused_and_its_connection_serves_nothing_more(packets):
    after = [only(i, qp=0) for i in range(3)] + [only(11, qp=1)]
    run = Run(packets + after, contexts_of(2), stall=0.3, idle=0.2)
    run.check()
    place = len(packets) - 1
    assert syndromes(run) == [(place, 0x61), (11, 0x1F)]
    assert run.drops[0][0] == DropReason.PACKET_OPCODE.value
    assert {reason for reason, _ in run.drops[1:]} == {DropReason.PACKET_QP_ERROR.value}


def test_a_gap_is_reported_once_until_the_missing_packet_comes():
    packets = [only(0), only(2), only(3, 100), only(4, 0), only(1), only(3), only(2), only(3)]
    run = Run(packets, contexts_of(1), stall=0.3)
    run.check()
    assert syndromes(run) == [
        (0, 0x1F),
        (1, 0x60),
        (1, 0x1F),
        (2, 0x60),
        (2, 0x1F),
        (3, 0x1F),
    ]
    assert len(run.written) == 4


def test_a_duplicate_is_acknowledged_again_and_not_written():
    contexts = contexts_of(1, psn=PSN_MASK)
    packets = [only(PSN_MASK), only(0), only(1), only(PSN_MASK, 200), only(0, ack=0), only(1, 0)]
    run = Run(packets, contexts, stall=0.5)
    run.check()
    assert syndromes(run) == [(PSN_MASK, 0x1F), (0, 0x1F), (1, 0x1F), (1, 0x1F), (1, 0x1F)]
    assert [unpack(Aeth, ack["ext"])["msn"] for ack in run.acks.words] == [1, 2, 3, 3, 3]
    assert len(run.written) == 3


@pytest.mark.parametrize(
    "distance,reason",
    [
        (1, "PACKET_PSN"),
        ((1 << 23) - 1, "PACKET_PSN"),
        (1 << 23, "PACKET_DUPLICATE"),
        (PSN_MASK, "PACKET_DUPLICATE"),
    ],
)
@pytest.mark.parametrize("psn", [0, 5, 1 << 23, PSN_MASK])
def test_half_of_all_psns_lies_ahead(psn, distance, reason):
    run = Run([only(psn + distance)], contexts_of(1, psn=psn))
    run.check()
    assert run.drops == [(DropReason[reason].value, 0x500)]


def damaged(seed, packets):
    """Packets as a bad network delivers them: lost, twice, late."""
    rng = random.Random(seed)
    for _ in range(len(packets) // 3):
        at = rng.randrange(len(packets))
        match rng.randrange(3):
            case 0:
                del packets[at]
            case 1:
                packets.insert(at, packets[rng.randrange(len(packets))])
            case 2:
                packets.insert(rng.randrange(len(packets)), packets.pop(at))
    return packets


@pytest.mark.parametrize("seed", range(6))
def test_answers_to_a_bad_network_match_reference(seed):
    contexts = contexts_of(psn=0xFFFFF0, msn=0xFFFFFE)
    packets = messages(seed, 20, contexts)
    # All of them once more at the end, as after timeouts.
    packets = damaged(seed, list(packets)) + packets
    run = Run(packets, contexts, idle=0.2 * (seed % 3), stall=0.3 * (seed % 2), seed=seed)
    run.check()
    assert {0x1F, 0x60} <= {syndrome for _, syndrome in syndromes(run)}
    reasons = {DropReason.PACKET_PSN.value, DropReason.PACKET_DUPLICATE.value}
    assert {reason for reason, _ in run.drops} == reasons


def test_a_dropped_packet_does_not_disturb_the_line_that_is_being_written():
    contexts = contexts_of(1)
    packets = [
        only(0, 60, va=0x2000_0000_1030),
        only(7, 200),
        only(1, 0),
        only(9, 0),
        only(2, 60, va=0x2000_0000_1030),
    ]
    Run(packets, contexts, stall=0.8).check()


def test_a_new_context_ends_a_failure():
    contexts = contexts_of(1)
    again = {0: {**contexts[0], "expected_psn": 77}}
    configs = [(60, item) for _, item in context_writes(Table.RX, RxContext, again)]
    run = Run([only(0, **LAST), only(77)], contexts, starts=[10, 70], configs=configs)
    assert syndromes(run) == [(0, 0x61), (77, 0x1F)]


def test_a_new_context_starts_afresh():
    contexts = contexts_of(1)
    again = {0: {**contexts[0], "expected_psn": 77, "start_msn": 9}}
    configs = [(60, item) for _, item in context_writes(Table.RX, RxContext, again)]
    packets = [only(0, MTU, opcode=RoceOpcode.WRITE_FIRST), only(77)]
    run = Run(packets, contexts, starts=[10, 70], configs=configs)
    assert not run.drops
    assert unpack(Aeth, run.acks.words[-1]["ext"])["msn"] == 10


@pytest.mark.parametrize("tx", [0, 1, 2, 40])
def test_latency_closed_form(tx):
    for length, lane, spill in ((8, 0, 0), (8, 60, 1), (0, 0, 0), (MTU, 0, 0), (MTU, 1, 1)):
        run = Run([only(0, length, va=0x2000_0000_1000 + lane)], contexts_of(1), tx=tx)
        taken = [cycle for cycle, _ in run.packets.taken]
        if length:
            assert run.writes.items[0][0] == taken[0] + 2
            assert [cycle for cycle, _ in run.lines.items][:1] == [taken[0] + 2]
            assert run.lines.items[-1][0] == taken[-1] + 2 + spill
        assert run.acks.items[0][0] == taken[-1] + 2 + spill + max(1, tx)


def test_small_packets_pass_one_per_cycle_or_per_two_if_they_spill():
    contexts = contexts_of()
    psns = {qp: context["expected_psn"] for qp, context in contexts.items()}
    for lane, per_packet in ((0, 1), (60, 2)):
        packets = [
            only(psns[i % 4] + i // 4, 8, qp=i % 4, va=0x2000_0000_1000 + lane) for i in range(60)
        ]
        run = Run(packets, contexts)
        run.check()
        for stream in (run.lines, run.acks):
            cycles = [cycle for cycle, _ in stream.items]
            assert cycles[-1] - cycles[0] == 59 * per_packet + (
                per_packet - 1 if stream is run.lines else 0
            )


@pytest.mark.parametrize("lane,lost", [(0, 0), (5, 1)])
def test_large_packets_pass_one_beat_per_cycle(lane, lost):
    contexts = contexts_of(1)
    packets = write_packets(bytes(20 * MTU), MTU, 0, raddr=0x2000_0000_1000 + lane, dest_qp=0x500)
    run = Run(packets, contexts)
    taken = [cycle for cycle, _ in run.packets.taken]
    assert taken[-1] - taken[0] == 20 * 4 - 1 + 19 * lost


def test_waiting_acks_hold_packets_but_nothing_is_lost():
    contexts = contexts_of(1)
    run = Run([only(i, 4) for i in range(600)], contexts, tx=600)
    run.check()


def test_skipping_quiet_cycles_changes_nothing():
    def once(skip):
        contexts = contexts_of()
        packets = messages(5, 25, contexts)
        run = Run(
            packets,
            contexts,
            skip=skip,
            tx=60,
            stall=0.5,
            starts=[100 + 60 * i for i in range(len(packets))],
        )
        run.check()
        return (
            run.bench.events,
            run.acks.items,
            run.writes.items,
            run.lines.items,
            run.bench.evaluated,
            run.bench.cycle,
        )

    full, skipped = once(False), once(True)
    assert full[:4] == skipped[:4]
    assert skipped[4] < 0.6 * skipped[5]
