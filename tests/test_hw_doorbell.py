"""The doorbell page: which writes ring, what is ignored, and when it stalls."""

import pytest
from amaranth.lib import wiring
from support_rig import Rig, pack
from support_wqe import data_segment, inline_segment, load_vectors, write_wqe

from hw.config import Structure
from hw.doorbell import Doorbell
from hw.formats.context import ConfigWrite, SqContext, Table
from hw.formats.events import DropReason
from hw.qp_context import QpContext

QPN = 0xABCD
STRUCTURE = Structure(qps=16, doorbell_fifo=16)
QP = QPN % STRUCTURE.qps
PAGE = 0x2000_0000_3000
#: Cycle from which writes come; the context is there.
START = 3


def doorbell_rig(*, qpns=(QPN,), doorbell=5, depth=16, **options):
    """A doorbell with its context table, which holds the QPs `qpns`."""
    block, contexts = Doorbell(STRUCTURE), QpContext(STRUCTURE)

    def wrap(m, block):
        m.submodules.contexts = contexts
        wiring.connect(m, block.sq, contexts.doorbell)

    rig = Rig(block, wrap=wrap, pulses={"config": (contexts.config, ConfigWrite)}, **options)
    for qpn in qpns:
        context = {"valid": 1, "qpn": qpn, "depth_log2": 6}
        rig.put(
            "config",
            {"table": Table.SQ, "index": qpn % STRUCTURE.qps, "data": pack(SqContext, context)},
        )
    rig.set(block.timing.doorbell, doorbell)
    rig.set(block.timing.doorbell_fifo_depth, depth)
    return rig


def put_write(rig, offset, raw, at=START):
    """A write as one TLP, a beat per line."""
    address, length, first = PAGE + offset, len(raw), 1
    while raw:
        count = min(64 - address % 64, len(raw))
        rig.put(
            "writes",
            {
                "data": int.from_bytes(raw[:count], "little") << 8 * (address % 64),
                "address": address,
                "count": count,
                "length": length,
                "first": first,
                "last": int(count == len(raw)),
            },
            at,
        )
        address, raw, first = address + count, raw[count:], 0


def word(index, ds=0, qpn=QPN, top=0):
    return ((top << 24 | index << 8) & 0xFFFFFFFF).to_bytes(4, "big") + (qpn << 8 | ds).to_bytes(
        4, "big"
    )


def drops(rig):
    return [(DropReason(event["reason"]), event["info"]) for _, event in rig.events["on_dropped"]]


def producers(rig):
    return [ring["producer"] for ring in rig.items("rings")]


def test_both_conventions_give_the_producer_of_real_software():
    rig, expected = doorbell_rig(), []
    sets = load_vectors()
    for vector in sets["rdma_core_mlx5_post_send"]["vectors"]:
        for write in vector["mmio"]:
            put_write(rig, int(write["uar_off"], 16), bytes.fromhex(write["bytes"]))
            expected.append(int(vector["dbr_snd"], 16))
    for vector in sets["nvshmem_ibgda"]["vectors"]:
        if "doorbell_8B" in vector:
            put_write(rig, 0x800, bytes.fromhex(vector["doorbell_8B"]))
            expected.append(int(vector["dbr_snd"], 16))
    put_write(rig, 0x800, bytes.fromhex("0100040000abcd00"))
    expected.append(4)
    rig.run(3000, lambda: len(rig.items("rings")) == len(expected))
    assert producers(rig) == expected
    assert all(ring["qp"] == QP and ring["qpn"] == QPN for ring in rig.items("rings"))
    assert not drops(rig)


@pytest.mark.parametrize("payload, count", [(12, 1), (60, 2), (140, 3), (220, 4)])
def test_push_gives_the_lines_of_its_wqe(payload, count):
    wqe = write_wqe(inline_segment(bytes(range(payload))), index=9)
    assert len(wqe) == 64 * count
    rig = doorbell_rig(stall=0.3)
    put_write(rig, 0x900, wqe)
    # Longer than its WQE: the rest is old ring content.
    put_write(rig, 0x800, (wqe + bytes([0xEE]) * 256)[:256])
    rig.run(100)
    for ring in rig.items("rings"):
        assert (ring["pushed"], ring["index"], ring["blocks"], ring["producer"]) == (
            1,
            9,
            count,
            9 + count,
        )
    assert (
        b"".join(line["data"].to_bytes(64, "little") for line in rig.items("pushes")) == wqe + wqe
    )
    assert [line["last"] for line in rig.items("pushes")] == 2 * ([0] * (count - 1) + [1])
    assert not drops(rig)


def test_push_shorter_than_its_wqe_rings_only():
    rig = doorbell_rig()
    put_write(rig, 0x800, write_wqe(inline_segment(bytes(60)), index=7)[:64])
    put_write(rig, 0x800, word(7, 0) + bytes(56))
    rig.run(40)
    assert [(ring["pushed"], ring["producer"]) for ring in rig.items("rings")] == [(0, 9), (0, 7)]
    assert rig.items("pushes") == []
    assert drops(rig) == [(DropReason.PUSH_NOT_USED, 7)] * 2


@pytest.mark.parametrize("piece", [8, 16, 32])
def test_torn_push_rings_with_its_first_piece(piece):
    rig, wqe = doorbell_rig(), write_wqe(inline_segment(bytes(12)), index=9)
    for at in range(0, 64, piece):
        put_write(rig, 0x800 + at, wqe[at : at + piece])
    rig.run(100)
    (ring,) = rig.items("rings")
    assert (ring["producer"], ring["pushed"]) == (10, 0)
    assert not rig.items("pushes")
    assert drops(rig) == [(DropReason.PUSH_PIECE, 0x800 + at) for at in range(piece, 64, piece)]


def test_other_writes_are_ignored():
    rig = doorbell_rig()
    others = [
        (0x20, 8, DropReason.DOORBELL_OFFSET),
        (0x808, 8, DropReason.PUSH_PIECE),
        (0x800, 4, DropReason.DOORBELL_OFFSET),
        (0x840, 64, DropReason.PUSH_PIECE),
        (0x800, 320, DropReason.DOORBELL_OFFSET),
        (0x700, 8, DropReason.DOORBELL_OFFSET),
        (0x804, 8, DropReason.PUSH_PIECE),
    ]
    for offset, size, _ in others:
        put_write(rig, offset, (word(1) + bytes(400))[:size])
    put_write(rig, 0xF00, word(2))
    rig.run(100)
    assert producers(rig) == [2]
    assert drops(rig) == [(reason, offset) for offset, _, reason in others]


def test_unknown_qp_is_dropped_and_frees_its_place():
    rig = doorbell_rig(depth=1)
    for _ in range(3):
        put_write(rig, 0x800, word(1, qpn=QPN + 16))
        put_write(rig, 0x800, write_wqe(data_segment(0, 8), qpn=0x3))
    put_write(rig, 0x800, word(5))
    rig.run(100)
    assert (
        drops(rig)
        == [(DropReason.DOORBELL_UNKNOWN_QP, QPN + 16), (DropReason.DOORBELL_UNKNOWN_QP, 3)] * 3
    )
    assert producers(rig) == [5] and rig.items("pushes") == []


@pytest.mark.parametrize("depth", [1, 2, 7, 16])
def test_fifo_in_force_limits_the_rings_within(depth):
    rig = doorbell_rig(depth=depth, doorbell=40)
    for index in range(40):
        put_write(rig, 0x800, word(index))
    rig.run(3000, lambda: len(rig.items("rings")) == 40)
    assert producers(rig) == list(range(40))
    entered = [cycle - 41 for cycle, _ in rig.taken["rings"]]
    for number in range(depth, 40):
        assert entered[number] > rig.taken["rings"][number - depth][0]
    stalls = [event["cycles"] for _, event in rig.events["on_stall_fifo"]]
    assert stalls and all(stalls)


def test_full_push_queue_rings_only():
    rig = doorbell_rig(stall={"pushes": 1.0})
    wqe = write_wqe(inline_segment(bytes(220)), index=0)
    for _ in range(17):
        put_write(rig, 0x800, wqe)
    rig.run(300)
    assert [ring["pushed"] for ring in rig.items("rings")] == [1] * 16 + [0]
    assert drops(rig) == [(DropReason.PUSH_NOT_USED, 0)]


@pytest.mark.parametrize("doorbell", [0, 1, 7, 100])
def test_latency_and_rate(doorbell):
    rig = doorbell_rig(doorbell=doorbell)
    for index in range(12):
        put_write(rig, 0x800, word(index))
    rig.run(300)
    start = START + 1 + max(1, doorbell)
    assert [cycle for cycle, _ in rig.taken["rings"]] == list(range(start, start + 12))


@pytest.mark.parametrize("seed", range(3))
def test_skipping_quiet_cycles_changes_nothing(seed):
    def run(skip):
        rig = doorbell_rig(doorbell=30, depth=4, idle=0.2, stall=0.4, seed=seed, skip=skip)
        for number in range(30):
            at = START + 97 * number + (number * seed * 13) % 60
            put_write(rig, 0x800, word(number), at)
            if number % 3 == 0:
                put_write(rig, 0x900, write_wqe(inline_segment(bytes(60)), index=number), at)
            if number % 7 == 0:
                put_write(rig, 0x10, word(number), at)
        rig.run(3500)
        return rig

    skipped, full = run(True), run(False)
    # Lines wait for their ring in quiet cycles, so only their order is fixed.
    assert skipped.items("pushes") == full.items("pushes")
    assert skipped.log() | {"pushes": 0} == full.log() | {"pushes": 0}
    assert skipped.evaluated < full.evaluated / 2
