"""The CQ engine: CQE bytes by hand and as rdma-core reads them, entries, owner bits, delay."""

import json
import random
from pathlib import Path

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from support_streams import Bench, Sink, Source, pack

from hw.config import Structure
from hw.cq_engine import DELAY_DEPTH, CqEngine
from hw.formats.context import CqContext, Table
from hw.formats.dma import WriteRequest
from hw.formats.events import DropReason
from hw.formats.layout import Codec
from hw.formats.mlx5 import Cqe, CqeError, CqeOpcode
from hw.formats.op import Completion, Received, Status
from hw.formats.tlp import MarkKind
from hw.lib.align import Line
from hw.lib.delay import NOW_BITS
from hw.lib.trace import Probe
from hw.qp_context import ConfigPort, QpContext
from hw.timing import NicTiming
from sim.agents.completions import work_completion

STRUCTURE = Structure(qps=8)
VECTORS = Path(__file__).parents[2] / "shared" / "vectors" / "mlx5_vectors.json"


class WithContexts(wiring.Component):
    """The engine beside its context table."""

    def __init__(self):
        self.engine = CqEngine(STRUCTURE)
        probes = {
            name: Out(member.signature)
            for name, member in self.engine.signature.members.items()
            if member.is_signature and isinstance(member.signature, Probe)
        }
        super().__init__(
            {
                "completions": In(stream.Signature(Completion)),
                "config": In(ConfigPort()),
                "writes": Out(stream.Signature(WriteRequest)),
                "lines": Out(stream.Signature(Line)),
                "now": In(NOW_BITS),
                "timing": In(NicTiming),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
                **probes,
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.engine, m.submodules.contexts = engine, contexts = (
            self.engine,
            QpContext(STRUCTURE),
        )
        wiring.connect(m, engine.cq, contexts.cq)
        wiring.connect(m, engine.receive_cq, contexts.receive_cq)
        for name in ("completions", "config", "timing", "now"):
            if name in ("completions", "config"):
                wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(engine, name))
            else:
                m.d.comb += getattr(engine, name).eq(getattr(self, name))
        for name in ("writes", "lines", "on_issued", "on_dropped"):
            wiring.connect(m, getattr(engine, name), wiring.flipped(getattr(self, name)))
        m.d.comb += [
            self.quiet.eq(engine.quiet),
            self.due.eq(engine.due),
            contexts.config.valid.eq(self.config.valid),
            contexts.config.payload.eq(self.config.payload),
        ]
        return m


class Configure:
    """One configuration write per cycle from cycle 0."""

    def __init__(self, port, writes):
        self.port, self.writes = port, list(writes)

    def drive(self, ctx, cycle):
        write = self.writes.pop(0) if self.writes else None
        ctx.set(self.port.valid, write is not None)
        if write is not None:
            ctx.set(self.port.payload.as_value(), write)

    def sample(self, ctx, cycle):
        pass


def receive(qp):
    """Key of a QP's receive CQ; that of its send CQ is the QP alone."""
    return ("receive", qp)


def queue_of(completion):
    return receive(completion["qp"]) if completion.get("receive") else completion["qp"]


def context(queue, **values):
    config_write = {
        "table": Table.RECEIVE_CQ if isinstance(queue, tuple) else Table.CQ,
        "index": queue[1] if isinstance(queue, tuple) else queue,
        "data": pack(CqContext, {"valid": 1, **values}),
    }
    return pack(ConfigPort().members["payload"].shape, config_write)


def ref_success(completion):
    """What a CQE without error says beyond what all of them say."""
    if completion.get("receive"):
        kind = Received(completion["received"])
        fields = {"byte_cnt": completion["length"], "se": completion["solicited"]}
        if kind is not Received.SEND:
            fields["imm"] = completion["imm"]
        return {"opcode": CqeOpcode[f"RESP_{kind.name}".replace("WRITE", "WR")].value, **fields}
    reads = completion["vendor_opcode"] in (0x10, 0x11, 0x12, 0x14, 0x15)
    return {"opcode": CqeOpcode.REQ.value, "byte_cnt": completion["length"] if reads else 0}


def ref_cqes(contexts, completions):
    """(address, 64 bytes, owner) of each CQE, by the mlx5 codecs."""
    indices = {queue: values.get("start_index", 0) for queue, values in contexts.items()}
    cqes = []
    for completion in completions:
        queue = queue_of(completion)
        cq = contexts.get(queue)
        if cq is None:
            continue
        index, depth = indices[queue], 1 << cq["depth_log2"]
        indices[queue] += 1
        entry, owner = (0, 0) if cq.get("collapsed") else (index % depth, index // depth % 2)
        common = {
            "send_opcode": completion["vendor_opcode"],
            "qpn": cq["qpn"],
            "wqe_counter": completion["wqe_index"],
            "owner": owner,
        }
        if completion["status"]:
            raw = Codec(CqeError).pack(
                srqn=completion["qp"],
                syndrome=completion["status"],
                opcode=CqeOpcode["RESP_ERR" if completion.get("receive") else "REQ_ERR"].value,
                **common,
            )
        else:
            raw = Codec(Cqe).pack(srqn_uidx=completion["qp"], **ref_success(completion), **common)
        cqes.append((cq["base"] + 64 * entry, raw, owner))
    return cqes


def rtl_cqes(
    contexts, completions, *, delay=0, stalls=0.0, seed=1, skip=False, start=20, limit=5000
):
    """What `ref_cqes` gives, and the bench. `completions` may carry (cycle, completion)."""
    dut = WithContexts()
    items = [c if isinstance(c, tuple) else (start, c) for c in completions]
    writes, lines = (
        Sink(dut.writes, stall=stalls, seed=seed),
        Sink(dut.lines, stall=stalls, seed=seed + 1),
    )
    source = Source(dut.completions, items, idle=stalls, seed=seed + 2)
    configure = Configure(
        dut.config, [context(index, **values) for index, values in contexts.items()]
    )
    expected = sum(queue_of(c) in contexts for _, c in items)
    # The whole table is loaded by clocked cycles.
    bench = Bench(
        dut,
        [configure, source, writes, lines],
        {"timing": pack(NicTiming, {"cqe": delay})},
        skip=skip,
    )
    if skip:
        bench.drivers.append(Awake(start))
    bench.run(limit, done=lambda: len(writes.items) >= expected and len(lines.items) >= expected)
    assert all((line["lane"], line["count"], line["last"]) == (0, 64, 1) for line in lines.words)
    issued = bench.of("on_issued")
    assert all(
        (write["length"], write["mark"]["kind"])
        == (64, (MarkKind.RECEIVE_CQE if event["receive"] else MarkKind.CQE).value)
        for write, event in zip(writes.words, issued, strict=True)
    )
    reported = [item for _, item in items if queue_of(item) in contexts]
    assert [event["receive"] for event in issued] == [c.get("receive", 0) for c in reported]
    assert [(e["qp"], e["wqe_index"], e["address"]) for e in issued] == [
        (w["mark"]["qp"], w["mark"]["index"], w["address"]) for w in writes.words
    ]
    bench.writes, bench.source = writes, source
    return [
        (write["address"], line["data"].to_bytes(64, "little"), event["owner"])
        for write, line, event in zip(writes.words, lines.words, issued, strict=True)
    ], bench


class Awake(Source):
    """Keeps the bench from skipping cycles before `until`, while the table is loaded."""

    finished = True

    def __init__(self, until):
        self.until, self.was_valid = until, 1

    def drive(self, ctx, cycle):
        self.was_valid = int(cycle < self.until)

    def sample(self, ctx, cycle):
        pass


def completion(qp, wqe_index, opcode=0x08, status=0):
    return {
        "qp": qp,
        "wqe_index": wqe_index,
        "vendor_opcode": opcode,
        "length": 4096,
        "status": status,
    }


def received(qp, wqe_index, kind=Received.SEND, *, length=64, imm=0, solicited=0, status=0):
    return {
        "qp": qp,
        "receive": 1,
        "received": kind.value,
        "wqe_index": wqe_index,
        "length": length,
        "imm": imm,
        "solicited": solicited,
        "vendor_opcode": 0,
        "status": status,
    }


RING = {"qpn": 0xABCD, "base": 0x1000_0000_0400, "depth_log2": 5}


def test_cqe_bytes_by_hand():
    got, _ = rtl_cqes({2: RING}, [completion(2, 0x1234)])
    assert got == [
        (
            0x1000_0000_0400,
            bytes.fromhex(
                "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 "
                "00000002 00000000 00000000 00000000 00000000 00000000 0800abcd 12340000"
            ),
            0,
        )
    ]


def test_error_cqe_bytes_by_hand():
    got, _ = rtl_cqes({2: RING}, [completion(2, 0x1234, 0x0A, Status.LOCAL_QP_OPERATION.value)])
    assert got[0][1] == bytes.fromhex(
        "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 "
        "00000002 00000000 00000000 00000000 00000000 00000002 0a00abcd 123400d0"
    )


def consumer_vectors():
    """CQEs that rdma-core's consumer took, of the kinds the engine writes."""
    vectors = json.loads(VECTORS.read_text())["sets"]["rdma_core_mlx5_cq_consumer"]["vectors"]
    for vector in vectors:
        raw = bytes.fromhex(vector["cqe"])
        fields = Codec(CqeError).unpack(raw)
        # One error has a vendor's syndrome, which is not modelled.
        if not fields["vendor_err_synd"]:
            yield pytest.param(raw, fields, vector["wc"], id=vector["name"])


@pytest.mark.skipif(not VECTORS.exists(), reason="the vectors are not here")
@pytest.mark.parametrize(
    "raw, fields, verdict", list(consumer_vectors()) if VECTORS.exists() else []
)
def test_cqe_is_what_rdma_core_reads(raw, fields, verdict):
    """Byte for byte, and so is what our own poller makes of it."""
    opcode = CqeOpcode(raw[63] >> 4)
    failed = opcode in (CqeOpcode.REQ_ERR, CqeOpcode.RESP_ERR)
    common = {
        "status": fields["syndrome"] if failed else 0,
        "length": 0 if failed else Codec(Cqe).unpack(raw)["byte_cnt"],
    }
    if opcode.name.startswith("RESP"):
        kind = Received.SEND_IMM if opcode is CqeOpcode.RESP_SEND_IMM else Received.SEND
        imm = Codec(Cqe).unpack(raw)["imm"]
        item = received(0, fields["wqe_counter"], kind, imm=imm, **common)
    else:
        item = completion(0, fields["wqe_counter"], fields["send_opcode"]) | common
    got, _ = rtl_cqes({queue_of(item): {**RING, "qpn": fields["qpn"]}}, [item])
    assert got[0][1] == raw
    ours = work_completion(got[0][1])
    assert (ours.status, ours.opcode, ours.byte_len, ours.flags) == (
        verdict["status"],
        verdict["opcode"],
        verdict["byte_len"],
        verdict["wc_flags"],
    )
    assert (f"0x{ours.word.hex()}", hex(ours.qpn)) == (verdict["imm_be_as_host"], verdict["qp_num"])


def test_receive_cqes_by_hand():
    items = [
        received(2, 7, Received.WRITE_IMM, length=0x1000, imm=0x11223344, solicited=1),
        received(2, 8, Received.SEND, length=3, imm=0x55, solicited=0),
        received(2, 9, Received.SEND_IMM, length=0, imm=0x99AABBCC),
        received(2, 10, status=Status.LOCAL_LENGTH.value),
    ]
    got, _ = rtl_cqes({receive(2): RING}, items)
    ends = ["0000abcd 00070012", "0000abcd 00080020", "0000abcd 00090030", "0000abcd 000a00e0"]
    words = [("11223344", 0x1000), ("00000000", 3), ("99aabbcc", 0), ("00000000", 0)]
    for (_, raw, _), end, (imm, count) in zip(got, ends, words, strict=True):
        assert raw[32:36] == bytes.fromhex("00000002")
        assert raw[36:40] == bytes.fromhex(imm)
        assert raw[44:48] == count.to_bytes(4, "big")
        assert raw[56:64] == bytes.fromhex(end)
    assert got[3][1][55] == 0x01


def test_ring_entries_and_owner_bits_over_three_laps():
    contexts = {
        1: {**RING, "depth_log2": 2, "start_index": 3},
        3: {**RING, "base": 0x8000, "depth_log2": 0},
    }
    completions = [completion(random.Random(i).choice((1, 3)), i) for i in range(40)]
    got, _ = rtl_cqes(contexts, completions)
    assert got == ref_cqes(contexts, completions)
    owners = [owner for address, _, owner in got if address >= RING["base"]]
    assert owners[:10] == [0, 1, 1, 1, 1, 0, 0, 0, 0, 1]


def test_collapsed_cq_rewrites_entry_0_with_owner_0():
    contexts = {5: {**RING, "depth_log2": 1, "collapsed": 1, "start_index": 7}}
    completions = [completion(5, 0xFFFE + i & 0xFFFF) for i in range(6)]
    got, _ = rtl_cqes(contexts, completions)
    assert got == ref_cqes(contexts, completions)
    assert {(address, owner) for address, _, owner in got} == {(RING["base"], 0)}


def test_a_qp_has_a_cq_for_what_it_sends_and_one_for_what_it_receives():
    contexts = {
        1: {**RING, "depth_log2": 1, "start_index": 1},
        receive(1): {**RING, "base": 0x8000, "depth_log2": 2, "start_index": 3},
        receive(3): {**RING, "base": 0x4000, "collapsed": 1},
    }
    source = random.Random(5)
    items = [source.choice((completion, received))(source.choice((1, 3)), i) for i in range(60)]
    got, bench = rtl_cqes(contexts, items, stalls=0.2)
    assert got == ref_cqes(contexts, items)
    drops = [(c["qp"], c["wqe_index"]) for c in items if queue_of(c) not in contexts]
    assert drops and [(e["qp"], e["info"]) for e in bench.of("on_dropped")] == drops


def test_largest_depth_and_index():
    contexts = {1: {**RING, "depth_log2": 24, "start_index": (1 << 24) - 1}}
    completions = [completion(1, 0), completion(1, 1)]
    got, _ = rtl_cqes(contexts, completions)
    assert got == ref_cqes(contexts, completions)
    assert [owner for _, _, owner in got] == [0, 1]


@pytest.mark.parametrize("stalls, delay", [(0.3, 0), (0.5, 7), (0.0, 100)])
def test_random_completions(stalls, delay):
    source = random.Random(delay)
    contexts = {
        queue: {
            "qpn": source.getrandbits(24),
            "base": source.getrandbits(30) << 6,
            "depth_log2": source.randint(0, 4),
            "collapsed": source.getrandbits(1),
            "start_index": source.getrandbits(24),
        }
        for q in range(7)
        for queue in (q, receive(q))
    }
    completions = [
        completion(
            source.randrange(7),
            source.getrandbits(16),
            source.choice((source.getrandbits(8), 0x10, 0x12)),
            source.choice((0, 0, 0, 2)),
        )
        if source.random() < 0.6
        else received(
            source.randrange(7),
            source.getrandbits(16),
            source.choice(list(Received)),
            length=source.getrandbits(32),
            imm=source.getrandbits(32),
            solicited=source.getrandbits(1),
            status=source.choice((0, 0, 0, 1)),
        )
        for _ in range(120)
    ]
    got, _ = rtl_cqes(contexts, completions, stalls=stalls, delay=delay, seed=delay + 1)
    assert got == ref_cqes(contexts, completions)


@pytest.mark.parametrize("delay, latency", [(0, 2), (1, 2), (2, 3), (150, 151)])
def test_latency_and_one_cqe_per_cycle(delay, latency):
    _, bench = rtl_cqes({1: RING}, [completion(1, i) for i in range(200)], delay=delay)
    assert [cycle for cycle, _ in bench.source.taken] == list(range(20, 220))
    assert [cycle for cycle, _ in bench.writes.items] == list(range(20 + latency, 220 + latency))


def test_delay_longer_than_its_depth_loses_nothing():
    completions = [completion(1, i) for i in range(300)]
    got, _ = rtl_cqes({1: RING}, completions, delay=DELAY_DEPTH + 50)
    assert got == ref_cqes({1: RING}, completions)


def test_completion_without_a_context_is_dropped():
    completions = [completion(1, 0), completion(4, 77), completion(1, 1)]
    got, bench = rtl_cqes({1: RING}, completions, stalls=0.3)
    assert got == ref_cqes({1: RING}, completions)
    assert bench.of("on_dropped") == [{"reason": DropReason.CQ_UNKNOWN.value, "qp": 4, "info": 77}]


def test_quiet_cycles_can_be_skipped():
    completions = [(20 + 70 * i + i % 3, completion(1 + i % 2, i)) for i in range(12)]
    contexts = {1: RING, 2: {**RING, "collapsed": 1}}

    def run(skip):
        got, bench = rtl_cqes(contexts, completions, delay=33, stalls=0.3, skip=skip)
        return bench.evaluated, got, bench.writes.items, bench.events

    skipped, full = run(True), run(False)
    assert skipped[1:] == full[1:]
    assert skipped[0] < 0.3 * full[0]
