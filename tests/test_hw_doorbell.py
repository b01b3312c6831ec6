"""The doorbell page: which writes ring, what is ignored, and when it stalls."""

from random import Random

import pytest
from support_doorbell import PAGE, QPN, START, STRUCTURE, doorbell_rig, put_lines, put_write, word
from support_wqe import data_segment, inline_segment, load_vectors, write_wqe

from hw.formats.events import DropReason

QP = QPN % STRUCTURE.qps
OTHER = 0x1
WQE3 = write_wqe(inline_segment(bytes(range(140))), index=9)


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


@pytest.mark.parametrize("payload, count", [(12, 1), (60, 2), (140, 3), (220, 4)])
@pytest.mark.parametrize("gap", [0, 9])
def test_push_in_lines_is_a_push(payload, count, gap):
    wqe = write_wqe(inline_segment(bytes(range(payload))), index=9)
    rig = doorbell_rig(stall=0.3)
    for number, offset in enumerate((0x800, 0x900, 0x800)):
        put_lines(rig, offset, wqe, START + 50 * number, gap)
    rig.run(250)
    assert [(r["pushed"], r["blocks"], r["producer"]) for r in rig.items("rings")] == [
        (1, count, 9 + count)
    ] * 3
    lines = b"".join(line["data"].to_bytes(64, "little") for line in rig.items("pushes"))
    assert lines == 3 * wqe
    assert not drops(rig)


def test_push_that_cannot_be_used_rings_only():
    rig = doorbell_rig()
    put_write(rig, 0x800, word(7, 0) + bytes(56))
    put_write(rig, 0x800, word(7, 17) + bytes(56))
    rig.run(40)
    assert [(ring["pushed"], ring["producer"]) for ring in rig.items("rings")] == [(0, 7), (0, 12)]
    assert rig.items("pushes") == []
    assert drops(rig) == [(DropReason.PUSH_NOT_USED, 7)] * 2


def test_push_that_stays_incomplete_is_given_up_in_time():
    rig = doorbell_rig(doorbell=5, wait=50)
    put_write(rig, 0x800, WQE3[:64])
    put_write(rig, 0x840, WQE3[64:128], START + 40)
    rig.run(200)
    ((cycle, ring),) = rig.taken["rings"]
    # Judged one cycle after it was accepted; given up 50 later; one more through the delay of 5.
    assert (cycle, ring["pushed"], ring["producer"]) == (START + 1 + 50 + 5, 0, 12)
    assert not rig.items("pushes")
    assert drops(rig) == [(DropReason.PUSH_TORN, 9)]
    assert rig.events["on_dropped"][0][0] == START + 1 + 50


@pytest.mark.parametrize("last", [50, 51])
def test_line_that_comes_with_the_end_of_the_wait_still_counts(last):
    rig = doorbell_rig(wait=50)
    put_write(rig, 0x800, WQE3[:64])
    put_write(rig, 0x840, WQE3[64:128], START + 20)
    put_write(rig, 0x880, WQE3[128:], START + last)
    rig.run(200)
    reasons = [reason for reason, _ in drops(rig)]
    assert reasons == ([] if last == 50 else [DropReason.PUSH_TORN, DropReason.PUSH_PIECE])
    assert [ring["pushed"] for ring in rig.items("rings")] == [int(last == 50)]


def test_push_never_takes_lines_of_another():
    """Two QPs push at once to pages of their own: the second is whole, the first is fetched."""
    rig = doorbell_rig(qpns=(QPN, OTHER))
    other = write_wqe(inline_segment(bytes([0xAA] * 140)), index=3, qpn=OTHER)
    for line in range(0, 192, 64):
        put_write(rig, 0x800 + line, WQE3[line : line + 64])
        put_write(rig, 0x800 + line, other[line : line + 64], page=PAGE + 0x1000)
    rig.run(100)
    rings = [(r["qpn"], r["pushed"], r["producer"]) for r in rig.items("rings")]
    assert rings == [(QPN, 0, 12), (OTHER, 1, 6)]
    assert b"".join(line["data"].to_bytes(64, "little") for line in rig.items("pushes")) == other
    assert drops(rig) == [
        (DropReason.PUSH_TORN, 9),
        (DropReason.PUSH_PIECE, 0x840),
        (DropReason.PUSH_PIECE, 0x880),
    ]


def test_doorbells_of_other_queues_leave_a_push_alone():
    rig = doorbell_rig(qpns=(QPN, OTHER))
    for line in range(0, 192, 64):
        put_write(rig, 0x800 + line, WQE3[line : line + 64])
        put_write(rig, 0x800, word(line, qpn=OTHER), page=PAGE + 0x1000)
    rig.run(100)
    assert [(r["qpn"], r["pushed"]) for r in rig.items("rings")] == [
        (OTHER, 0),
        (OTHER, 0),
        (QPN, 1),
        (OTHER, 0),
    ]
    assert not drops(rig)


def reference(writes, qpns):
    """Plain version without time: (rings, lines, drops) of writes (page, offset, bytes)."""
    rings, lines, dropped, push = [], [], [], None

    def tear():
        rings.append((push["qpn"], push["producer"], 0))
        dropped.append((DropReason.PUSH_TORN, push["index"]))

    for page, offset, raw in writes:
        for at in range(0, len(raw), 64):
            place, line = page + offset + at, raw[at : at + 64]
            if push and place == push["next"] and len(line) == 64:
                push["lines"].append(line)
                push["next"] += 64
                if len(push["lines"]) == push["blocks"]:
                    rings.append((push["qpn"], push["producer"], 1))
                    lines += push["lines"]
                    push = None
                continue
            starts = at == 0 and offset >= 0x800 and offset % 256 == 0 and 8 <= len(raw) <= 256
            index, qpn = int.from_bytes(line[1:3], "big"), int.from_bytes(line[4:7], "big")
            blocks = -(-(line[7] & 63) // 4) if len(line) > 7 else 0
            whole = len(line) == 64
            if push and (
                place // 256 == (push["next"] - 64) // 256
                or (starts and (whole or qpn == push["qpn"]))
            ):
                tear()
                push = None
            if not starts:
                if at == 0:
                    piece = offset >= 0x800 and offset % 256
                    reason = DropReason.PUSH_PIECE if piece else DropReason.DOORBELL_OFFSET
                    dropped.append((reason, offset))
            elif qpn not in qpns:
                dropped.append((DropReason.DOORBELL_UNKNOWN_QP, qpn))
            elif whole and 1 < blocks <= 4:
                push = {"qpn": qpn, "index": index, "producer": index + blocks, "blocks": blocks}
                push |= {"next": place + 64, "lines": [line]}
            else:
                rings.append((qpn, index + blocks, int(whole and blocks == 1)))
                lines += [line] if whole and blocks == 1 else []
                if whole and blocks != 1:
                    dropped.append((DropReason.PUSH_NOT_USED, index))
    if push:
        tear()
    return rings, lines, dropped


@pytest.mark.parametrize("seed", range(6))
def test_any_mixture_of_pieces_is_as_in_the_plain_version(seed):
    rng = Random(seed)
    qpns, streams = (QPN, OTHER, 0x4), []
    for qpn, page in zip((*qpns, 0x77), (PAGE, PAGE + 0x1000, PAGE + 0x2000, PAGE), strict=True):
        stream = []
        for index in range(8):
            size = rng.choice([12, 60, 140, 220, 240])
            raw = write_wqe(inline_segment(rng.randbytes(size)), index=index, qpn=qpn)
            offset = rng.choice([0x800, 0x900])
            kind = rng.randrange(5)
            if kind == 0:
                stream.append((page, offset, raw[:8]))
            elif kind == 1:
                stream.append((page, offset, raw[:256]))
            else:
                pieces = [(page, offset + at, raw[at : at + 64]) for at in range(0, len(raw), 64)]
                if kind == 2:
                    del pieces[rng.randrange(len(pieces))]
                if kind == 3:
                    pieces.insert(rng.randrange(len(pieces)), (page, 0x20, raw[:8]))
                stream += pieces
        streams.append(stream)
    writes = []
    while any(streams):
        stream = rng.choice([stream for stream in streams if stream])
        # Mostly in one piece, so that both ends are common.
        for _ in range(rng.choice([1, 2, 9])):
            if stream:
                writes.append(stream.pop(0))
    rig = doorbell_rig(qpns=qpns, wait=2000, stall=0.2, idle=0.2, seed=seed)
    for page, offset, raw in writes:
        put_write(rig, offset, raw, page=page)
    rig.run(5000)
    rings, lines, dropped = reference(writes, qpns)
    assert [(r["qpn"], r["producer"], r["pushed"]) for r in rig.items("rings")] == rings
    assert [line["data"].to_bytes(64, "little") for line in rig.items("pushes")] == lines
    assert drops(rig) == dropped
    assert lines and dropped


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
        rig = doorbell_rig(doorbell=30, depth=4, idle=0.2, stall=0.4, seed=seed, skip=skip, wait=9)
        for number in range(30):
            at = START + 97 * number + (number * seed * 13) % 60
            put_write(rig, 0x800, word(number), at)
            if number % 3 == 0:
                put_write(rig, 0x900, write_wqe(inline_segment(bytes(60)), index=number), at)
            if number % 5 == 0:
                put_lines(rig, 0x800, WQE3, at, gap=number % 4)
            if number % 7 == 0:
                put_write(rig, 0x10, word(number), at)
        rig.run(3500)
        return rig

    skipped, full = run(True), run(False)
    # Lines wait for their ring in quiet cycles, so only their order is fixed.
    assert skipped.items("pushes") == full.items("pushes")
    assert skipped.log() | {"pushes": 0} == full.log() | {"pushes": 0}
    assert skipped.evaluated < full.evaluated / 2
