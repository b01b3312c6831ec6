"""Bytes that third-party software wrote, consumed by software, blocks and machine as they are.

`pytest -m conformance --vectors DIR` runs on any files of that form (docs/conformance.md). The
other tests here see to it that a vector which is wrong, or a machine which is, cannot pass.
"""

import json
import os
import re
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from itertools import takewhile

import pytest
from support_conformance import conform
from support_execute import execute
from support_jobs import job_of, lay_out
from support_judge import problems_of
from support_run import ROOT
from support_seen import Packet, Seen
from support_vectors import Item, VectorError, load

from hw.formats import mlx5
from hw.formats.layout import Codec
from hw.formats.roce import RoceOpcode
from sim import wqe

COMMON = {"qpn": "0xabcd", "laddr": "0x7f1122334400", "lkey": "0x112233"}
COMMON |= {"raddr": "0x7fab12345600", "rkey": "0x445566", "sq": "64 WQEBB ring"}
POLL = {"wait_idx": 1, "ncqes": 64, "cons_idx": 1, "prod_idx": 1, "cqe_wqe_counter": 0}
POLL |= {"cqe_opcode": 0, "done": 1, "new_cons_idx": 1, "status": 0}
HEAD = {"qpn": 0xABCD, "raddr": 0x7FAB12345600, "rkey": 0x445566, "signaled": True}


def vector(raw, defined, *, index, params, name="rdma_write", **more):
    """A vector as NVSHMEM's set holds them; keywords replace its entries."""
    end = index + len(raw) // 64
    return {
        "name": name,
        "params": params,
        "post_idx": index,
        "slot": index % 64,
        "wqebbs": len(raw) // 64,
        "wqe": raw.hex(),
        "defined": "1" * defined + "0" * (len(raw) - defined),
        "dbr_snd": wqe.record(end).hex(),
        "doorbell_8B": wqe.doorbell(qpn=0xABCD, index=end).hex(),
        **more,
    }


def pointer(index=5, size=100):
    raw = wqe.write(index=index, laddr=0x7F1122334400, lkey=0x112233, length=size, **HEAD)
    return vector(raw, 48, index=index, params=COMMON | {"len": size})


def inline(index=63, size=100):
    """Pushed in lines; its blocks lie at the end and the start of the ring."""
    payload = bytes((7 * i + 3) & 255 for i in range(size))
    raw = wqe.write_inline(index=index, payload=payload, **HEAD)
    params = COMMON | {"len": size, "inline": 1, "data": "byte i=(7i+3)&255"}
    found = vector(raw, 36 + size, index=index, params=params, name="rdma_write_inline")
    del found["doorbell_8B"]
    write = {"uar_off": "0x900", "len": len(raw), "bytes": raw.hex(), "defined": found["defined"]}
    return found | {"mmio": [write]}


def nop(index=9):
    raw = wqe.nop(index=index, qpn=0xABCD, signaled=True)
    return vector(raw, 16, index=index, params={"qpn": "0xabcd"}, name="nop")


RUN = (0x7F1122334400, 0x112233)


def asked(name, raw, defined=None, **params):
    """A vector of another verb."""
    defined = len(raw) if defined is None else defined
    return vector(raw, defined, index=5, params=COMMON | params, name=name)


def read(size=5000):
    raw = wqe.read(index=5, runs=[(RUN[0], size, RUN[1])], **HEAD)
    return asked("rdma_read", raw, 48, len=size)


def atomic(name, opcode, size, operands, **params):
    own = {"opcode": opcode, "size": size, "operands": operands, "index": 5}
    return asked(name, wqe.atomic(laddr=RUN[0], lkey=RUN[1], **own, **HEAD), **params)


def write_imm():
    raw = wqe.gather(index=5, runs=[(RUN[0], 9000, RUN[1])], **HEAD)
    raw = wqe.with_immediate(raw, 0xCAFE0123, solicited=True)
    return asked("rdma_write_imm", raw, 48, len=9000, imm_host="0xcafe0123", solicited=1)


def send(size=5000):
    run = (RUN[0], size, RUN[1])
    raw = wqe.send(index=5, qpn=0xABCD, runs=[run], signaled=True)
    return asked("send", raw, 32, len=size)


def send_imm():
    raw = wqe.send(index=5, qpn=0xABCD, runs=[(RUN[0], 64, RUN[1])], signaled=True)
    raw = wqe.with_immediate(raw, 0x11223344)
    return asked("send_imm", raw, 32, len=64, imm_host="0x11223344")


def dump():
    run = (RUN[0], 100, RUN[1])
    raw = wqe.dump(index=5, qpn=0xABCD, runs=[run], signaled=True, fence=True)
    return asked("dump", raw, 32, len=100, fm="FENCE")


def compare_swap():
    operands = {"swap": 7, "compare": 5, "swap_mask": (1 << 64) - 1, "compare_mask": 0}
    opcode = mlx5.WqeOpcode.MASKED_COMPARE_SWAP
    return atomic("masked_cs_8B_set", opcode, 8, operands, swap=7, compare=5)


def fetch_add():
    opcode, value = mlx5.WqeOpcode.FETCH_ADD, (1 << 64) - 1
    return atomic("amo_fetch_add_8B", opcode, 8, {"swap_add": value}, add=value)


def add_4():
    opcode = mlx5.WqeOpcode.MASKED_FETCH_ADD
    return atomic("amo_add_4B", opcode, 4, {"add": 0x55667788}, add=0x55667788)


def content(*items, form="vectors", name="some_stack", common=None):
    return {"about": {"common_params": common or {}}, "sets": {name: {"source": "", form: items}}}


def put(folder, text, name="a.json"):
    (folder / name).write_text(text if isinstance(text, str) else json.dumps(text))
    return folder


def failures(folder, *items, execute=execute, **options):
    put(folder, content(*items, **options))
    return conform(folder, folder / "run", execute).failures


def idle(jobs, folder):
    """A machine that does nothing, for what is found without one."""
    lay_out(jobs)
    return [
        Seen(
            rings=[],
            drops=[],
            fetches=[],
            reads=[],
            requests=[],
            answers=[],
            landed=[],
            written=[],
            retired=[],
            targets=[b"" for _ in job.targets],
            landings=[b"" for _ in job.landings],
            cqes=bytes(64 * len(job.signaled)),
            receive_cqes=bytes(64 * len(job.receives)),
            image=lambda memory, offset, length: bytes(length),
        )
        for job in jobs
    ]


@pytest.mark.slow
@pytest.mark.conformance
def test_vectors_conform(vectors, tmp_path, record_property, model):
    problems, report = [], None
    try:
        report = conform(vectors, tmp_path)
    except VectorError as error:
        problems = [str(error)]
    if report:
        record_property("table", report.text)
        problems = report.failures or [f"{vectors}: no item is consumed"] * (not report.consumed)
    # (Not from within `except`: one line is to be seen, not two with how they came about.)
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


# A vector that is wrong cannot pass ---------------------------------------------------------------


def flipped(data, byte, key="wqe"):
    raw = bytearray.fromhex(data[key])
    raw[byte] ^= 0x10
    return data | {key: raw.hex()}


def submit(**more):
    """Doorbell, record, doorbell: bits 31:24 of the first word are not defined."""
    trace = ["fence", "doorbell8 st", "dbr4 store", "fence", "doorbell8 st"]
    item = {"from_pi": 65532, "to_pi": 65540, "trace": trace, "params": COMMON}
    item |= {"dbr_snd": "00000004", "db_word": "0100040000abcd00"}
    return item | more


@pytest.mark.slow
def test_what_a_mask_leaves_out_is_ignored(tmp_path, model):
    undefined, pushed = flipped(pointer(), 50), inline(5)
    pushed = flipped(pushed, 36 + 100) | {"mmio": [flipped(pushed["mmio"][0], 36 + 101, "bytes")]}
    items = [undefined, pushed, submit(), submit(db_word="ff00040000abcd00")]
    assert failures(tmp_path, *items) == []


def marked(data, byte):
    """The vector, with a byte more that its software is said to write."""
    mask = data["defined"]
    return data | {"defined": mask[:byte] + "1" + mask[byte + 1 :]}


def test_what_a_mask_holds_is_compared(tmp_path):
    """The same bytes, defined: what is wrong is told."""
    first = marked(flipped(pointer(), 50), 50)
    line = flipped(inline(5)["mmio"][0], 36 + 101, "bytes")
    second = inline(5) | {"mmio": [marked(line, 36 + 101)]}
    items = [first, second, submit(db_word="0101040000abcd00"), submit(db_word="0000040000abce00")]
    found = failures(tmp_path, *items, execute=idle)
    told = ["WQE 0: byte 50 is 00: recorded 10", "doorbell: byte 137 is 00: recorded 10"]
    told += ["doorbell: byte 1 is 00: recorded 01", "doorbell: byte 6 is cd: recorded ce"]
    for number, line in enumerate(told):
        where = f"a.json: some_stack.vectors[{number}] "
        assert any(said.startswith(where) and said.endswith(line) for said in found), (line, found)


@pytest.mark.slow
def test_good_vectors_of_other_sizes_and_places_pass(tmp_path, model):
    items = [pointer(), pointer(70, 5000), inline(), inline(65535, 28), pointer(65535, 1)]
    items.append(inline(61, 220))
    report = conform(put(tmp_path, content(*items)), tmp_path / "run")
    assert report.failures == [] and report.consumed == len(items)
    assert "some_stack" in report.text


#: What is done to a good vector, and a part of a line that tells it.
CORRUPTIONS = [
    (lambda v: flipped(v, 36 + 3), "lkey"),
    (lambda v: flipped(v, 24 + 3), "reth_rkey"),
    (lambda v: flipped(v, 16 + 5), "reth_va"),
    (lambda v: flipped(v, 40 + 5), "payload read"),
    (lambda v: flipped(v, 34), "reth_length"),
    (lambda v: v | {"wqe": v["wqe"].replace("00000508", "0000050f", 1)}, "retired"),
    (lambda v: flipped(v, 11), "byte 11"),
    (lambda v: flipped(v, 2), "byte 2"),
    (lambda v: flipped(v, 2, "doorbell_8B"), "rings"),
    (lambda v: flipped(v, 6, "doorbell_8B"), "rings"),
    (lambda v: flipped(v, 3, "dbr_snd"), "record"),
    (lambda v: v | {"params": v["params"] | {"rkey": "0x1"}}, "reth_rkey"),
    (lambda v: v | {"params": v["params"] | {"len": 64}}, "landed"),
    (lambda v: v | {"wqebbs": 2}, "wqebbs"),
    # Of other verbs.
    (lambda _: flipped(send_imm(), 12 + 2), "immdt_immediate"),
    (lambda _: flipped(write_imm(), 12), "receive CQE 0 imm"),
    (lambda _: flipped(read(), 24 + 3), "reth_rkey"),
    (lambda _: flipped(read(), 34), "reth_length"),
    (lambda _: flipped(read(), 46), "decoded landings"),
    (lambda _: flipped(compare_swap(), 39), "atomiceth_swap_add"),
    (lambda _: flipped(compare_swap(), 55), "packet 0 payload"),
    (lambda _: flipped(fetch_add(), 39), "does not hold what the atomic makes of it"),
    (lambda _: flipped(dump(), 20), "decoded runs"),
    (lambda _: flipped(dump(), 26), "payload read"),
    (lambda _: dump() | {"params": COMMON | {"len": 100}}, "fence"),
]


@pytest.mark.slow
def test_corrupted_vectors_are_told(tmp_path, model):
    found = failures(tmp_path, *(change(pointer()) for change, _ in CORRUPTIONS))
    for position, (_, told) in enumerate(CORRUPTIONS):
        mine = [line for line in found if f"some_stack.vectors[{position}]" in line]
        assert any(told in line for line in mine), (told, mine)


@pytest.mark.slow
def test_corrupted_inline_byte_and_torn_push_are_told(tmp_path, model):
    wrong_byte = flipped(inline(), 40)
    torn = deepcopy(inline())
    torn["mmio"][0] |= {"len": 64, "bytes": torn["wqe"][:128], "defined": "1" * 64}
    found = failures(tmp_path, wrong_byte, torn)
    assert any("[0]" in line and "byte 40" in line for line in found), found
    assert any("[1]" in line and "dropped ['PUSH_TORN']" in line for line in found), found


@pytest.mark.parametrize(
    ("item", "key", "value"),
    [
        ({"base": 0, "num_wqes": 1, "resv_head": 2, "batch": 32, "rang": 0}, "rang", 1),
        (
            {"wait_idx": 6, "cons_idx": 5, "prod_idx": 6, "cqe_wqe_counter": 5, "cqe_opcode": 0}
            | {"ncqes": 64, "done": 1, "new_cons_idx": 6, "status": 0},
            "new_cons_idx",
            7,
        ),
        (
            {"wait_idx": 64, "cqe_ci": 64, "cqe_opcode": 0, "cqe_owner": 0, "cqe_wqe_counter": 0}
            | {"cqe_num": 64, "done": 0},
            "done",
            1,
        ),
        (
            {"solicited_only": 1, "cqn": "0x77", "ci": "0x345", "sn": 2, "dbrec_arm": "21000345"}
            | {"mmio": "2100034500000077"},
            "dbrec_arm",
            "20000345",
        ),
        ({"rq_wqe": "000000400011223300007f1122334400", "dbr_rcv": "00000001"}, "dbr_rcv", "02"),
        (
            {"name": "put", "params": {"roffset": 1, "laddr": 0x2FF, "bytes": 8, "pe": 3, "qp": 5}}
            | {"idx_before": 0}
            | {
                "words_le": [
                    "0000000001650101",
                    "0000000000000201",
                    "000000000008ff01",
                    "0000000500030001",
                ]
            },
            "words_le",
            ["0000000001010101", "0000000000000201", "000000000008ff01", "0000000500030001"],
        ),
    ],
    ids=["batching", "collapsed", "ring", "arm", "receive", "channel"],
)
def test_recorded_decision_that_is_not_ours_is_told(tmp_path, item, key, value):
    item = {"dbr_snd": "", "doorbell": ""} | item
    common = COMMON
    good = failures(tmp_path, item, common=common)
    assert good == []
    assert failures(tmp_path, item | {key: value}, common=common)


def test_item_that_no_test_takes_is_told(tmp_path):
    found = failures(tmp_path, {"name": "thing", "wqe": "00"}, {"name": "get", "words_le": []})
    assert found == [
        "a.json: some_stack.vectors[0] thing: no test consumes an item with keys name, wqe"
    ]


def test_name_that_waits_does_not_hide_what_can_be_executed(tmp_path):
    found = failures(tmp_path, pointer() | {"name": "wait_64B"})
    where = "a.json: some_stack.vectors[0] wait_64B"
    assert found == [f"{where}: is left out by its name, but is one to execute"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "a.json: line 1: no JSON"),
        ("[]", "a.json: no vectors: 'sets' must be"),
        ({"sets": {"a": []}}, "a.json: no vectors: 'sets' must be"),
        ({"sets": {"a": {"vectors": [1]}}}, r"a.json: a.vectors\[0\] = 1: allowed a table"),
        ({"sets": {"a": {"source": "x", "vectors": []}}}, "no vectors in files"),
        (content(pointer() | {"wqe": "0g"}), r"a.json: .*wqe = '0g': allowed hex digits"),
        (content(pointer() | {"wqe": "00"}), r"a.json: .*wqe of 1 bytes: allowed multiples of 64"),
        (content(pointer() | {"defined": "1" * 63}), r"a.json: .*wqe of 64 bytes, mask of 63"),
        (content(pointer() | {"defined": "1x" * 32}), r"a.json: .*mask of wqe = '1x.*0 and 1"),
        (content(pointer() | {"defined": [1] * 64}), r"a.json: .*mask of wqe = \[1, .*0 and 1"),
        (content(pointer() | {"slot": 9}), r"a.json: .*slot = 9: no ring"),
        (content(pointer() | {"params": {"rkey": 1}}), r"a.json: .*no parameter 'raddr'"),
        (content(pointer() | {"params": COMMON | {"len": "x"}}), r"a.json: .*len = 'x'"),
        (content({"num_wqes": 1, "batch": 1, "base": None}), r"a.json: .*base = None"),
        (content({"num_wqes": 1, "batch": 1}), r"a.json: .*no 'base'"),
    ],
)
def test_malformed_file_is_one_line(tmp_path, text, told):
    with pytest.raises(VectorError, match=told) as raised:
        conform(put(tmp_path, text), tmp_path / "run")
    assert "\n" not in str(raised.value)


def test_directory_without_vectors_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(VectorError, match=str(folder)):
            load(folder)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "no vectors in files *.json"),
        ({"a.json": json.dumps(content(pointer()))[:300]}, "a.json: line 1: no JSON ("),
        ({"a.json": content({"name": "get", "words_le": []})}, "no item is consumed"),
        (
            {"a.json": content(POLL, {"name": "thing", "wqe": "00"})},
            "a.json: some_stack.vectors[1] thing: no test consumes an item with keys name, wqe",
        ),
        (
            {"a.json": content(pointer()), "b.json": content(pointer(), flipped(nop(), 8))},
            "b.json: some_stack.vectors[1] nop: WQE 0: byte 8 is 00: recorded 10",
        ),
    ],
    ids=["empty", "truncated", "all_wait", "unknown", "byte"],
)
def test_command_fails_and_says_why(tmp_path, files, told, model):
    for name, text in files.items():
        put(tmp_path, text, name)
    ended = pytest_of("--vectors", tmp_path, "tests/test_conformance.py")
    assert ended.returncode == 1
    # Behind a head with the test's name, one line; then the table, or what replays it.
    said = ended.stdout.partition("_ test_vectors_conform _")[2].splitlines()[1:]
    lines = list(takewhile(lambda line: not line.startswith("="), said))
    assert told in lines[0] and len(lines) == 1, ended.stdout


@pytest.mark.slow
def test_command_needs_no_file_and_finds_its_configuration(tmp_path, model):
    """As in a checkout that `make` set up: there pytest knows the option from the start."""
    put(tmp_path, content(POLL))
    ended = pytest_of("-p", "sim.vectors_option", "--vectors", tmp_path)
    assert ended.returncode == 0, ended.stdout
    # (Beside the vectors run the captures that lie beside the checkout, if any.)
    assert "some_stack" in ended.stdout
    assert re.search(r"^(2 passed|1 passed, 1 skipped)", ended.stdout.splitlines()[-1])
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def pytest_of(*words):
    """Run the conformance tests, with some words more on the command line."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "conformance", *map(str, words)]
    return subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False
    )


# A machine that is wrong cannot pass --------------------------------------------------------------


#: Of several packets; pushed; without a packet. Then every other verb.
OBSERVED = [pointer(size=9000), inline(5), nop()]
OBSERVED += [write_imm(), send(), send_imm(), read(), compare_swap(), fetch_add(), add_4(), dump()]
_IMM, _SEND, _SEND_IMM, _READ, _SWAP, _ADD, _ADD_4, _DUMP = range(3, 11)


@pytest.fixture(scope="module")
def observed(model, tmp_path_factory):
    """Jobs of the items above and what the machine did, which is right."""
    items = [
        Item("a.json", "some_stack", "vectors", n, "wqe", v, {}) for n, v in enumerate(OBSERVED)
    ]
    jobs = [job_of(item) for item in items]
    found = list(zip(jobs, execute(jobs, tmp_path_factory.mktemp("observed")), strict=True))
    assert [list(problems_of(job, seen)) for job, seen in found] == [[] for _ in OBSERVED]
    return found


def with_field(packets, number, key, value):
    """The packets, one field of one of them with another value."""
    packet = packets[number]
    wrong = replace(packet, fields=packet.fields | {key: value})
    return [*packets[:number], wrong, *packets[number + 1 :]]


#: What stands behind the operands of an addition is not looked at.
IGNORED = {
    (opcode.value, "atomiceth_compare")
    for opcode in (RoceOpcode.FETCH_ADD, RoceOpcode.MASKED_FETCH_ADD)
}
RETH, AETH = {"reth_va", "reth_rkey", "reth_length"}, {"aeth_syndrome", "aeth_msn"}
ATOMIC = {"atomiceth_va", "atomiceth_rkey", "atomiceth_swap_add"}
IMM = {"immdt_immediate"}
#: Opcode to what must be told of it beside the BTH, by the side that sends it.
TOLD = {
    "requests": {
        "WRITE_FIRST": RETH,
        "WRITE_MIDDLE": set(),
        "WRITE_LAST": set(),
        "WRITE_ONLY": RETH,
        "WRITE_LAST_IMM": IMM,
        "SEND_FIRST": set(),
        "SEND_LAST": set(),
        "SEND_ONLY_IMM": IMM,
        "READ_REQUEST": RETH,
        "MASKED_COMPARE_SWAP": ATOMIC | {"atomiceth_compare"},
        "FETCH_ADD": ATOMIC,
        "MASKED_FETCH_ADD": ATOMIC,
    },
    "answers": {
        "ACK": AETH,
        "READ_RESPONSE_FIRST": AETH,
        "READ_RESPONSE_LAST": AETH,
        "ATOMIC_ACK": AETH | {"atomicacketh_original"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("side", ["requests", "answers"])
def test_each_field_of_each_packet_is_compared(observed, side):
    word, told = {"requests": "packet", "answers": "answer"}[side], set()
    for job, seen in observed:
        packets = getattr(seen, side)
        for number, packet in enumerate(packets):
            for key, value in packet.fields.items():
                wrong = replace(seen, **{side: with_field(packets, number, key, value ^ 1)})
                if (packet.fields["opcode"], key) in IGNORED:
                    assert not list(problems_of(job, wrong))
                    continue
                (problem,) = problems_of(job, wrong)
                assert problem.startswith(f"{word} {number} {key} "), problem
                told.add((RoceOpcode(packet.fields["opcode"]).name, key))
    bth = {"opcode", "solicited", "pkey", "dest_qp", "ack_request", "psn", "pad", "version"}
    for kind, extended in TOLD[side].items():
        assert {(kind, key) for key in bth | extended} <= told


#: What is seen otherwise of a job of `OBSERVED`, and how the line that tells it begins.
TAMPERED = [
    (0, lambda s: {"rings": [(7, 0)]}, "rings (producer, pushed) [(7, 0)]"),
    (0, lambda s: {"rings": []}, "rings (producer, pushed) []"),
    (1, lambda s: {"rings": [(7, 0)]}, "rings (producer, pushed) [(7, 0)]"),
    (0, lambda s: {"drops": ["DOORBELL_STALE"]}, "dropped ['DOORBELL_STALE']: expected []"),
    (0, lambda s: {"fetches": []}, "WQEs read: nothing"),
    (1, lambda s: {"fetches": [(0x40, 64)]}, "WQEs read: 64 bytes at 0x40"),
    (0, lambda s: {"reads": s.reads[:-1]}, "payload read"),
    (0, lambda s: {"reads": [*s.reads, s.reads[0]]}, "payload read"),
    (1, lambda s: {"reads": [(0x40, 8)]}, "payload read: 8 bytes at 0x40: expected nothing"),
    (0, lambda s: {"requests": s.requests[:-1]}, "packets: "),
    (0, lambda s: {"requests": [*s.requests, s.requests[-1]]}, "packets: "),
    (0, lambda s: {"requests": s.requests[::-1]}, "packet 0 opcode WRITE_LAST: expected WRITE_FI"),
    (0, lambda s: {"requests": swapped(s.requests, 1, 2)}, "packet 1 psn"),
    (0, lambda s: {"requests": flipped_payload(s.requests, 1)}, "packet 1 payload"),
    (2, lambda s: {"requests": [Packet({})]}, "packets: 1: expected 0"),
    (0, lambda s: {"answers": []}, "answers: 0: expected 1"),
    (0, lambda s: {"answers": s.answers * 2}, "answers: 2: expected 1"),
    (2, lambda s: {"answers": [Packet({})]}, "answers: 1: expected 0"),
    (0, lambda s: {"landed": s.landed[:-1]}, "landed: "),
    (0, lambda s: {"landed": [*s.landed, s.landed[-1]]}, "landed: "),
    (2, lambda s: {"landed": [(0x40, 1)]}, "landed: 1 bytes at 0x40: expected nothing"),
    (0, lambda s: {"targets": [flip(s.targets[0])]}, "memory at 0x7fab12345600"),
    (1, lambda s: {"targets": [bytes(100)]}, "memory at 0x7fab12345600"),
    (0, lambda s: {"retired": [(6, 0)]}, "retired (index, status) [(6, 0)]: expected [(5, 0)]"),
    (0, lambda s: {"retired": [(5, 2)]}, "retired (index, status) [(5, 2)]: expected [(5, 0)]"),
    (0, lambda s: {"retired": s.retired * 2}, "retired (index, status)"),
    (0, lambda s: {"written": []}, "written at the sender: nothing"),
    (2, lambda s: {"written": s.written * 2}, "written at the sender"),
    (0, lambda s: {"cqes": with_cqe(s, opcode=13)}, "CQE 0 opcode 0xd: expected 0x0"),
    (0, lambda s: {"cqes": with_cqe(s, qpn=1)}, "CQE 0 qpn 0x1: expected 0xabcd"),
    (0, lambda s: {"cqes": with_cqe(s, wqe_counter=6)}, "CQE 0 wqe_counter 0x6: expected 0x5"),
    (0, lambda s: {"cqes": with_cqe(s, send_opcode=0)}, "CQE 0 send_opcode 0x0: expected 0x8"),
    (2, lambda s: {"cqes": with_cqe(s, owner=1)}, "CQE 0 owner 0x1: expected 0x0"),
    (2, lambda s: {"cqes": with_cqe(s, byte_cnt=1)}, "CQE 0 byte_cnt 0x1: expected 0x0"),
    (_READ, lambda s: {"cqes": with_cqe(s, byte_cnt=0)}, "CQE 0 byte_cnt 0x0: expected 0x1388"),
    (_ADD, lambda s: {"cqes": with_cqe(s, byte_cnt=4)}, "CQE 0 byte_cnt 0x4: expected 0x8"),
    (_IMM, lambda s: {"landed": s.landed[:-1]}, "landed: "),
    (_IMM, lambda s: received(s, imm=1), "receive CQE 0 imm 0x1: expected 0xcafe0123"),
    (_IMM, lambda s: received(s, opcode=3), "receive CQE 0 opcode 0x3: expected 0x1"),
    (_IMM, lambda s: received(s, se=0), "receive CQE 0 se 0x0: expected 0x1"),
    (_SEND, lambda s: received(s, opcode=3), "receive CQE 0 opcode 0x3: expected 0x2"),
    (_SEND, lambda s: received(s, byte_cnt=1), "receive CQE 0 byte_cnt 0x1: expected 0x1388"),
    (_SEND, lambda s: received(s, qpn=1), "receive CQE 0 qpn 0x1: expected 0x1005"),
    (_SEND, lambda s: received(s, wqe_counter=1), "receive CQE 0 wqe_counter 0x1: expected 0x0"),
    (_SEND, lambda s: received(s, owner=1), "receive CQE 0 owner 0x1: expected 0x0"),
    (_SEND, lambda s: {"targets": [flip(s.targets[0])]}, "memory at 0x10000000 does not hold"),
    (_SEND_IMM, lambda s: received(s, imm=0), "receive CQE 0 imm 0x0: expected 0x11223344"),
    (_SEND_IMM, lambda s: received(s, opcode=2), "receive CQE 0 opcode 0x2: expected 0x3"),
    (_READ, lambda s: {"landings": [flip(s.landings[0])]}, "memory of the sender at 0x7f1122"),
    (_READ, lambda s: {"written": s.written[1:]}, "written at the sender"),
    (_READ, lambda s: {"landed": [(0x40, 1)]}, "landed: 1 bytes at 0x40: expected nothing"),
    (_READ, lambda s: {"reads": [(0x40, 8)]}, "payload read: 8 bytes at 0x40: expected nothing"),
    (_READ, lambda s: {"answers": flipped_payload(s.answers, 0)}, "answer 0 payload"),
    (_READ, lambda s: {"answers": swapped(s.answers, 0, -1)}, "answer 0 opcode READ_RESPONSE_LA"),
    (_SWAP, lambda s: {"requests": flipped_payload(s.requests, 0)}, "packet 0 payload"),
    (_SWAP, lambda s: {"targets": [flip(s.targets[0])]}, "memory at 0x7fab12345600 does not hold"),
    (_ADD, lambda s: {"targets": [flip(s.targets[0])]}, "memory at 0x7fab12345600 does not hold"),
    (_ADD, lambda s: {"landings": [flip(s.landings[0])]}, "memory of the sender at 0x7f1122"),
    (_ADD_4, lambda s: {"landings": [s.landings[0][::-1]]}, "memory of the sender at 0x7f1122"),
    (_ADD_4, lambda s: {"landed": s.landed * 2}, "landed: "),
    (_DUMP, lambda s: {"reads": []}, "payload read: nothing"),
    (_DUMP, lambda s: {"requests": [Packet({})]}, "packets: 1: expected 0"),
]


def received(seen, **fields):
    """The first CQE of the peer, with other values."""
    codec = Codec(mlx5.Cqe)
    first = codec.pack(**codec.unpack(seen.receive_cqes[:64]) | fields)
    return {"receive_cqes": first + seen.receive_cqes[64:]}


def swapped(packets, one, other):
    """Packets of which two left in the other order."""
    packets = list(packets)
    packets[one], packets[other] = packets[other], packets[one]
    return packets


def flip(raw):
    """The bytes, the lowest bit of the last one another."""
    return raw[:-1] + bytes([raw[-1] ^ 1])


def flipped_payload(packets, number):
    wrong = replace(packets[number], payload=flip(packets[number].payload))
    return [*packets[:number], wrong, *packets[number + 1 :]]


def with_cqe(seen, **fields):
    codec = Codec(mlx5.Cqe)
    return codec.pack(**codec.unpack(seen.cqes) | fields)


@pytest.mark.slow
def test_each_check_of_bus_memory_and_completion_fires(observed):
    for number, change, told in TAMPERED:
        job, seen = observed[number]
        problems = list(problems_of(job, replace(seen, **change(seen))))
        assert any(problem.startswith(told) for problem in problems), (told, problems)


@pytest.mark.slow
def test_line_names_vector_and_field(observed, tmp_path):
    """What a run tells of a machine that asks for no ACK in one vector, and miscounts another."""
    (_, first), (_, second), (_, third) = observed[:3]
    last = len(first.requests) - 1
    msn = second.answers[0].fields["aeth_msn"]
    first = replace(first, requests=with_field(first.requests, last, "ack_request", 0))
    second = replace(second, answers=with_field(second.answers, 0, "aeth_msn", msn ^ 2))

    def machine(jobs, folder):
        lay_out(jobs)
        return [first, second, third]

    report = conform(put(tmp_path, content(*OBSERVED[:3])), tmp_path, execute=machine)
    where = "a.json: some_stack.vectors"
    assert report.failures == [
        f"{where}[0] rdma_write: packet {last} ack_request 0x0: expected 0x1",
        f"{where}[1] rdma_write_inline: answer 0 aeth_msn {msn ^ 2:#x}: expected {msn:#x}",
    ]
