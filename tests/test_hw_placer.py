"""The placer: what packets leave in memory, and the bytes beside it."""

import random

import pytest
from support_streams import Bench, Sink, Source

from hw.placer import Placer


def pieces(payload):
    runs = [payload[i : i + 64] for i in range(0, len(payload), 64)]
    return [
        {
            "data": int.from_bytes(run, "little"),
            "count": len(run),
            "last": int(i == len(runs) - 1),
        }
        for i, run in enumerate(runs)
    ]


@pytest.mark.parametrize("stall", [0, 0.6])
@pytest.mark.parametrize("lane", [0, 1, 63])
def test_packets_leave_in_order_from_their_lane(lane, stall):
    dut, rng = Placer(), random.Random(lane)
    packets = [rng.randbytes(rng.choice([1, 63, 64, 65, 200])) for _ in range(20)]
    items = [{"qp": i, "write": {"length": len(packet)}} for i, packet in enumerate(packets)]
    i = Source(dut.i, items)
    source = Source(dut.pieces, [piece for packet in packets for piece in pieces(packet)])
    placements, lines = Sink(dut.placements, stall, 1), Sink(dut.lines, stall, 2)
    finished, drained = [], []

    def each(ctx, cycle):
        finished.append(ctx.get(dut.finished))
        drained.append(ctx.get(dut.drained))
        if ctx.get(dut.drained):
            # Nothing is held, so nothing is offered.
            assert not ctx.get(dut.placements.valid) and not ctx.get(dut.lines.valid)

    bench = Bench(dut, [i, source, placements, lines], {"start": lane}, each_cycle=each)
    bench.run(
        2000,
        lambda: sum(line["last"] for line in lines.words) == len(packets) == len(placements.items),
    )
    assert [item["qp"] for item in placements.words] == list(range(20))
    found, packet, place = [], b"", lane
    for line in lines.words:
        assert line["lane"] == place
        data = line["data"].to_bytes(64, "little")
        packet += data[line["lane"] : line["lane"] + line["count"]]
        place = 0
        if line["last"]:
            found.append(packet)
            packet, place = b"", lane
    assert found == packets and sum(finished) == len(packets)
    assert drained[0] and drained[-1] and not all(drained)


def test_a_single_line_passes_as_it_is():
    dut = Placer()
    line = {"data": 0xAB << 40, "lane": 5, "count": 1, "last": 1}
    placement = {"qp": 3, "write": {"address": 5, "length": 1}}
    drivers = [
        Source(dut.i, [placement]),
        Source(dut.single, [line]),
        Sink(dut.placements),
        Sink(dut.lines),
    ]
    Bench(dut, drivers).run(100, lambda: bool(drivers[3].items))
    assert drivers[2].words[0]["qp"] == 3 and drivers[3].words == [line]
    assert drivers[3].items[0][0] == drivers[1].taken[0][0] + 1
