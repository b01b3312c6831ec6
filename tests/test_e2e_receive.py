"""Two nodes: SENDs and immediate data meet receive WQEs in the whole machine."""

import random

import cocotb
import pytest

from hw.formats.events import EventKind, RetryReason
from hw.formats.op import Status
from sim import wqe
from sim.testbench import TwoNodes, simulate

SOURCE, TARGET, DEPTH = 0x1000, 0x20_0000, 8
#: ibv_wc: receive, receive of a WRITE with immediate data, flag of immediate data, local length.
RECEIVE, RECEIVE_IMM, WITH_IMM, LOCAL_LENGTH = 128, 129, 2, 1


def run_of(nodes, offset, length):
    return (nodes.address("gpu", offset), length, 0x100)


async def post_receives(queue, wqes):
    """Posts WQEs, each a list of runs, and then the record."""
    for runs in wqes:
        queue.post(runs, queue.node.now + 1)
    await queue.node.sleep(500)
    queue.store_record(queue.node.now + 1)


async def received(queue, count):
    """The next completions of a receive queue."""
    taken = queue.completed()
    while len(taken) < count:
        await queue.watch()
        taken += queue.completed()
    return taken


async def send_all(queue, wqes):
    """Posts WQEs, rings once, and waits for their completions."""
    for raw in wqes:
        queue.post(raw, None, signaled=True, due=queue.node.now + 1)
    await queue.node.sleep(500)
    queue.ring(queue.node.now + 1)
    while queue.outstanding:
        queue.completed()
        if queue.outstanding:
            await queue.watch()


async def sends_and_immediates(nodes, payload, got):
    """On QP 0: a SEND over two segments, one with immediate data, a WRITE with immediate data."""
    sends, receives = nodes.queue(0), nodes.receive_queue(1)
    segments = [run_of(nodes, TARGET + 3, 100), run_of(nodes, TARGET + 0x1001, 900)]
    others = [[run_of(nodes, TARGET + 0x2000, 64)], [run_of(nodes, TARGET + 0x3000, 8)]]
    await post_receives(receives, [segments, *others])
    runs, common = [run_of(nodes, SOURCE, 1000)], {"qpn": sends.qpn, "signaled": True}
    short = wqe.send(index=1, runs=[run_of(nodes, SOURCE, 64)], **common)
    remote = {"raddr": nodes.address("gpu", TARGET + 0x4005), "rkey": 0x200}
    written = wqe.gather(index=2, runs=runs, **remote, **common)
    wqes = [wqe.send(index=0, runs=runs, **common), wqe.with_immediate(short, 0x11223344)]
    await send_all(sends, [*wqes, wqe.with_immediate(written, 0xCAFE0123)])
    got += await received(receives, 3)


async def late_receiver(nodes, got):
    """On QP 1: the WQE is posted when the SEND was refused a few times."""
    sends, receives = nodes.queue(0, 1), nodes.receive_queue(1, 1)
    runs = [run_of(nodes, SOURCE, 64)]
    sent = wqe.send(index=0, qpn=sends.qpn, runs=runs, signaled=True)
    sends.post(sent, None, signaled=True, due=sends.node.now + 1)
    await sends.node.sleep(500)
    sends.ring(sends.node.now + 1)
    await sends.node.sleep(20_000)
    await post_receives(receives, [[run_of(nodes, TARGET + 0x8000, 64)]])
    got += await received(receives, 1)


async def message_too_long(nodes, got):
    """On QP 2: one byte more than the WQE has."""
    sends, receives = nodes.queue(0, 2), nodes.receive_queue(1, 2)
    await post_receives(receives, [[run_of(nodes, TARGET + 0x9000, 199)]])
    runs = [run_of(nodes, SOURCE, 200)]
    await send_all(sends, [wqe.send(index=0, qpn=sends.qpn, runs=runs, signaled=True)])
    got += await received(receives, 1)


@cocotb.test()
async def messages_meet_receive_wqes(dut):
    payload = random.Random(1).randbytes(1000)
    settings = ["nic.mtu_bytes=256", "nic.timer_scale=0.01"]
    nodes = TwoNodes(dut, settings=settings, qps=3, receives=DEPTH)
    nodes.fill(0, "gpu", SOURCE, payload)
    got, late, long = [], [], []
    events = await nodes.run(
        sends_and_immediates(nodes, payload, got),
        late_receiver(nodes, late),
        message_too_long(nodes, long),
    )

    def found_by(qp):
        taken = events.of(EventKind.RECEIVE_TAKEN)
        return list(taken["found"][taken["qp"] == qp])

    # Each byte where its segment says, and none beside it.
    expected = {3: payload[:100], 0x1001: payload[100:], 0x2000: payload[:64], 0x3000: bytes(8)}
    expected |= {0x4005: payload, 0x8000: payload[:64], 0x9000: bytes(200)}
    for offset, raw in expected.items():
        assert nodes.read(1, "gpu", TARGET + offset, len(raw)) == raw
        assert nodes.read(1, "gpu", TARGET + offset + len(raw), 8) == bytes(8)

    assert [(wc.status, wc.opcode, wc.byte_len, wc.flags, wc.word.hex()) for wc in got] == [
        (0, RECEIVE, 1000, 0, "00000000"),
        (0, RECEIVE, 64, WITH_IMM, "11223344"),
        (0, RECEIVE_IMM, 1000, WITH_IMM, "cafe0123"),
    ]
    assert found_by(0) == [1, 1, 1]
    issued = events.of(EventKind.CQE_ISSUED)
    mine = (issued["receive"] == 1) & (issued["qp"] == 0)
    assert list(issued["wqe_index"][mine]) == [0, 1, 2]

    # Sent again until there is a WQE.
    assert [(wc.status, wc.byte_len) for wc in late] == [(0, 64)]
    refused = len(found_by(1)) - 1
    assert refused > 0 and found_by(1) == [0] * refused + [1]
    again = events.of(EventKind.RETRANSMITTED)
    assert list(again["reason"][again["qp"] == 1]) == [RetryReason.RNR.value] * refused

    # Refused at both ends.
    assert [wc.status for wc in long] == [LOCAL_LENGTH]
    retired = events.of(EventKind.RETIRED)
    failed = {
        qp: [s for q, s in zip(retired["qp"], retired["status"], strict=True) if q == qp]
        for qp in range(3)
    }
    assert failed == {0: [0, 0, 0], 1: [0], 2: [Status.REMOTE_INVALID_REQUEST.value]}


@pytest.mark.slow
def test_receive_queues_in_the_machine(tmp_path):
    simulate(__file__, tmp_path)
