"""Scenarios: what is read was written, what is bad is named, the plan keeps its promises."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.config import ConfigError
from sim.paths import PATHS
from sim.plan import wqe_blocks
from sim.scenario import load, loads
from sim.schema import BadInput, show
from sim.sections import FOREVER, Fault
from sim.work import Region, Workload

HEAD = """
schema = "bellwire.scenario/1"
preset = "h200-cx7-ib200"
paths = ["gda_minimal", "ibrc"]
"""
PUT = """
[[workload]]
kind = "put"
size = 8
count = 4
"""
ONE_NODE = "[nodes]\ncount = 1\n"
SHIPPED = sorted((Path(__file__).parent.parent / "scenarios").glob("*.toml"))


def refused(text, *overrides):
    with pytest.raises(BadInput) as error:
        loads(text, "s.toml", overrides)
    assert "\n" not in str(error.value)
    return error.value


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_scenario_loads_and_checks_itself(file):
    scenario = load(file)
    assert scenario.expects
    assert scenario.name == file.stem


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_resolved_scenario_is_the_same_scenario(file):
    scenario = load(file)
    again = loads(scenario.resolved_toml(), "elsewhere.toml")
    assert again == scenario
    assert again.run_name == scenario.run_name
    assert again.resolved_toml() == scenario.resolved_toml()


def test_preset_values_are_overridden_key_by_key():
    plain = loads(HEAD + PUT)
    changed = loads(HEAD + PUT + "[nic]\ntx_ns = 7\nsq_depth = 64\n[memory]\nbuffer_bytes = 8192\n")
    assert (changed.nic.tx_ns, changed.queues.sq_depth, changed.sizes.buffer_bytes) == (7, 64, 8192)
    assert changed.nic == dataclasses.replace(plain.nic, tx_ns=7)
    assert changed.memory == plain.memory


def test_set_reaches_tables_and_lists():
    scenario = loads(
        HEAD + PUT,
        "s.toml",
        ["nic.tx_ns=1.5", "workload.0.size=[8, 16]", "workload.0.count = 8", "proxy.warm=true"],
        seed=9,
    )
    assert scenario.nic.tx_ns == 1.5
    assert scenario.workloads[0].size == (8, 16)
    assert scenario.workloads[0].count == 8
    assert scenario.proxy.service_ns == scenario.proxy.service_warm_ns
    assert scenario.seed == 9


def test_structure_hash_follows_structure_and_timing_hash_the_rest():
    base = loads(HEAD + PUT)
    slower = loads(HEAD + PUT, overrides=["nic.tx_ns=1"])
    wider = loads(HEAD + PUT, overrides=["workload.0.qps=65", "workload.0.producers=65"])
    assert base.structure_hash == slower.structure_hash != wider.structure_hash
    assert wider.structure.qps == 128
    assert base.timing_hash != slower.timing_hash
    same = (
        loads(HEAD + PUT, seed=5),
        loads(HEAD + PUT + '[[expect]]\nmetric = "wrong"\nequal = 0\n'),
    )
    assert {s.timing_hash for s in same} == {base.timing_hash}


def test_one_node_is_wired_to_itself():
    scenario = loads(HEAD + ONE_NODE + PUT + "qps = 40\nproducers = 40\n")
    assert scenario.nodes.wire == ((0, 0), (0, 1)) and scenario.structure.ports == 2
    assert {(m.node, m.peer) for m in scenario.plan.messages} == {(0, 0)}
    ends = [end for c in scenario.plan.connections for end in c.ends]
    assert len(ends) == 80 <= scenario.structure.qps
    assert sorted(context for _, context, _ in ends) == list(range(80))
    assert [port for _, _, port in ends] == [0, 1] * 40
    # The same workload of two nodes has one port each.
    assert loads(HEAD + PUT).structure.ports == 1
    assert {c.ends[1][2] for c in loads(HEAD + PUT).plan.connections} == {0}


def test_timing_words_carry_the_faults_of_their_node():
    scenario = loads(
        HEAD + PUT + '[[fault]]\nkind = "drop"\npacket = "ack"\nfrom = 1\ncount = -1\n'
    )
    assert scenario.faults == (Fault(kind="drop", packet="ack", node=1, count=FOREVER),)
    assert scenario.faults[0].slot == (3, 0, 0xFFFFFFFF, 0)
    assert scenario.timing_words(0, "ibgda") == loads(HEAD + PUT).timing_words(0, "ibgda")
    assert scenario.timing_words(1, "ibgda") != scenario.timing_words(0, "ibgda")


def test_qps_of_nvshmem_ask_for_an_ack_with_every_packet_unless_told_otherwise():
    """Ref: flows 1.1 and 3.5, `log_ack_req_freq` 0."""

    def asks(*sets):
        scenario = loads(HEAD + PUT, overrides=sets)
        return {name: path.ack_every_packet(scenario) for name, path in PATHS.items()}

    assert asks() == {"gda_minimal": 0, "ibgda": 1, "ibrc": 0, "verbs": 0}
    for value in (0, 1):
        assert set(asks(f"nic.ack_every_packet={value}").values()) == {value}
    scenario = loads(HEAD + PUT)
    assert scenario.timing_words(0, "ibgda") != scenario.timing_words(0, "verbs")


def region(name, node, offset, size):
    entry = {"name": name, "node": node, "offset": offset, "size": size}
    return written("region", entry)


def written(table, entry):
    return f"[[{table}]]\n" + "".join(f"{key} = {show(value)}\n" for key, value in entry.items())


REFUSED = [
    # (text behind the head, key, part of what is allowed)
    (PUT + "[nic]\nsq_dpeth = 64\n", "nic.sq_dpeth", "did you mean sq_depth?"),
    (PUT + "[nic]\nsq_depth = 48\n", "nic.sq_depth", "powers of two from 2 to 32768"),
    (PUT + "[nic]\nsq_depth = 65536\n", "nic.sq_depth", "powers of two"),
    (PUT + "[nic]\nsq_depth = 64.0\n", "nic.sq_depth", "an integer"),
    (PUT + "[nic]\ntx_ns = -1\n", "nic.tx_ns", "allowed 0 to 1000"),
    (PUT + "[nic]\ntx_ns = nan\n", "nic.tx_ns", "a number"),
    (PUT + "[nic]\ntx_ns = true\n", "nic.tx_ns", "a number"),
    (PUT + "[nic]\nack_timeout = 32\n", "nic.ack_timeout", "allowed 0 to 31"),
    (PUT + "[nic]\nretry_count = 8\n", "nic.retry_count", "allowed 0 to 7"),
    (PUT + "[nic]\ntimer_scale = 0\n", "nic.timer_scale", "allowed 0.0001 to 1"),
    (PUT + "[nic]\nmtu_bytes = 1500\n", "nic.mtu_bytes", "powers of two from 256 to 4096"),
    (
        PUT + "[nic]\npayload_tags = 512\n",
        "nic.payload_tags",
        "the structure's maximum",
    ),
    (PUT + "[nic]\nwindow_blocks = 512\n", "nic.window_blocks", "the structure's maximum"),
    (PUT + "[wire]\ngbps = 800\n", "wire.gbps", "data path x clock"),
    (PUT + "[pcie]\nnic_gbps = 1000\n", "pcie.nic_gbps", "data path x clock"),
    (PUT + "[pcie]\nmps_bytes = 300\n", "pcie.mps_bytes", "powers of two"),
    (PUT + "[pcie]\nposted_data_credits = 1\n", "pcie.posted_data_credits", "allowed 17 to"),
    (PUT + '[gpu]\nqueues = "host"\n', "gpu.queues", 'allowed "gpu"'),
    (PUT + "[proxy]\nring_bytes = 100\n", "proxy.ring_bytes", "powers of two"),
    (PUT + "[proxy]\nwarm = 1\n", "proxy.warm", "true or false"),
    (PUT + "[nodes]\ncount = 3\n", "nodes.count", "allowed 1, 2"),
    (PUT + "[switch]\nports = 3\n", "switch", "unknown key"),
    (PUT + "[check]\nwatchdog_us = 0\n", "check.watchdog_us", "allowed 1 to"),
    ("nic = 3\n" + PUT, "nic", "allowed a table [nic]"),
    ("workload = 3\n", "workload", "allowed tables [[workload]]"),
    ("", "workload", "nothing to do"),
    (PUT.replace('"put"', '"get"'), "workload.0.kind", 'allowed "put"'),
    (PUT.replace("size = 8", "size = 0"), "workload.0.size", "allowed 1 to"),
    (PUT.replace("size = 8", "size = []"), "workload.0.size", "list"),
    (PUT.replace("size = 8", 'size = ["8"]'), "workload.0.size", "an integer"),
    (PUT.replace("size = 8", ""), "workload.0.size", "missing"),
    (PUT.replace("count = 4", "count = 0"), "workload.0.count", "allowed 1 to"),
    (PUT + "qps = 2000\n", "workload.0.qps", "allowed 1 to 1024"),
    (PUT + 'scope = "warp"\n', "workload.0.scope", 'allowed "thread"'),
    (PUT + "batch = 4\n", "workload.0.batch", "the window"),
    (PUT + "peer = 0\n", "workload.0.peer", "any node but 0"),
    (PUT + "peer = 2\n", "workload.0.peer", "allowed 0 to 1"),
    (ONE_NODE + PUT + "peer = 1\n", "workload.0.peer", "allowed 0 to 0"),
    (ONE_NODE + PUT + "node = 1\n", "workload.0.node", "allowed 0 to 0"),
    (PUT + '[[op]]\nverb = "write"\nsize = 8\npeer = 0\n', "op.0.peer", "any node but 0"),
    (
        ONE_NODE + '[[op]]\nsize = 64\nremote_region = "send"\nremote_offset = 63\n',
        "op.0.remote_offset",
        "outside of what is read, 0 to 63",
    ),
    (PUT + '[[fault]]\nkind = "drop"\nfrom = 0\nport = 1\n', "fault.0.port", "allowed 0"),
    (PUT + "[pcie]\nto_gpu_gbps = 0.5\n", "pcie.to_gpu_gbps", "allowed 1 to 454.8"),
    (PUT + "[pcie]\nto_gpu_gbps = 455\n", "pcie.to_gpu_gbps", "allowed 1 to 454.8"),
    (PUT + "[pcie]\nsocket_ns = -1\n", "pcie.socket_ns", "allowed 0 to"),
    (PUT + 'region = "x"\n', "workload.0.region", 'allowed "send", "recv"'),
    (PUT + "window = 64\nbatch = 32\n[nic]\nsq_depth = 16\n", "workload.0.batch", "sq_depth is 16"),
    ('[[op]]\nverb = "read"\nsize = 8\n', "op.0.verb", 'allowed "write"'),
    (PUT + "[proxy]\nservice_cold_ns = 74\n", "proxy.service_cold_ns", "allowed at least 75"),
    ("[[op]]\nsize = 8\n[[op]]\nsize = 8\nqp = 2\n", "op.1.qp", "allowed 0, that of op.0"),
    ("[[op]]\nsize = 8\nqp = 1024\n", "op.0.qp", "allowed 0 to 1023"),
    ('[[op]]\nsize = 8\nregion = "nowhere"\n', "op.0.region", "no such region"),
    (region("send", 0, 0, 100) + "[[op]]\nsize = 8\n", "op.0.remote_region", "region at node 1"),
    (
        region("a", 0, 0, 100)
        + region("b", 1, 0, 64)
        + '[[op]]\nsize = 65\nregion = "a"\nremote_region = "b"\n',
        "op.0.remote_offset",
        "64 bytes; this ends at 65",
    ),
    (
        region("a", 0, 0, 100) + region("b", 0, 64, 64) + PUT,
        "region.1.offset",
        'allowed outside of "a": 0 to 99',
    ),
    (region("a", 0, 0, 100) + region("a", 0, 128, 64) + PUT, "region.1.name", "does not have yet"),
    (
        '[[region]]\nname = "a"\nnode = 0\noffset = 8\nsize = 9\n' + PUT,
        "region.0.offset",
        "multiples",
    ),
    (PUT + "[memory]\nbuffer_bytes = 64\n", "memory.buffer_bytes", "allowed at least"),
    (PUT + '[[fault]]\nkind = "delay"\nfrom = 0\n', "fault.0.kind", 'allowed "drop"'),
    (PUT + '[[fault]]\nkind = "drop"\n', "fault.0.from", "missing"),
    (PUT + '[[fault]]\nkind = "drop"\nfrom = 0\ncount = 0\n', "fault.0.count", "or -1"),
    (PUT + '[[fault]]\nkind = "drop"\nfrom = 7\n', "fault.0.from", "allowed 0 to 1"),
    (PUT + 5 * '[[fault]]\nkind = "drop"\nfrom = 0\n', "fault", "allowed up to 4"),
    (
        PUT + '[[expect]]\nmetric = "latency"\nbelow = 1\n',
        "expect.0.metric",
        "see `bellwire schema result`",
    ),
    (PUT + '[[expect]]\nmetric = "wrong"\n', "expect.0.metric", "at least one of"),
    (PUT + '[[expect]]\nmetric = "wrong"\nwithin = [2, 1]\n', "expect.0.within", "low <= high"),
    (PUT + '[[expect]]\nmetric = "wrong"\nequal = 0\nsize = 9\n', "expect.0.size", "allowed 8"),
    (PUT + '[[expect]]\nmetric = "wrong"\nequal = 0\npath = "x"\n', "expect.0.path", '"ibrc"'),
    (PUT + '[[workload]]\nkind = "put"\nsize = 1\ncount = 4194304\n', "workload.0.count", "in all"),
]


@pytest.mark.parametrize(("text", "key", "allowed"), REFUSED, ids=[case[1] for case in REFUSED])
def test_bad_value_is_refused_with_file_key_value_and_bound(text, key, allowed):
    error = refused(HEAD + text)
    assert error.file == "s.toml"
    assert error.key == key
    assert allowed in error.allowed
    assert str(error).startswith(f"s.toml: {key}")


@pytest.mark.parametrize(
    ("head", "key"),
    [
        (HEAD.replace("scenario/1", "scenario/2"), "schema"),
        (HEAD.replace('schema = "bellwire.scenario/1"', ""), "schema"),
        (HEAD.replace("h200", "h300"), "preset"),
        (HEAD.replace('preset = "h200-cx7-ib200"', "preset = 3"), "preset"),
        (HEAD.replace('["gda_minimal", "ibrc"]', '["carrier-pigeon"]'), "paths.0"),
        (HEAD.replace('["gda_minimal", "ibrc"]', '["ibrc", "ibrc"]'), "paths.1"),
        (HEAD.replace('["gda_minimal", "ibrc"]', "[]"), "paths"),
        (HEAD + "seed = -1\n", "seed"),
        (HEAD + "seed = 1.5\n", "seed"),
        (HEAD + 'name = "../x"\n', "name"),
    ],
)
def test_bad_head_is_refused(head, key):
    assert refused(head + PUT).key == key


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("nic.tx_ns", "nic.tx_ns"),
        ("=3", "=3"),
        ("nic..tx=3", "nic..tx=3"),
        ("nic.tx_ns=abc", "nic.tx_ns"),
        ("nic.tx_ns=1\nfoo=2", "nic.tx_ns"),
        ("workload.1.count=3", "workload.1.count"),
        ("workload.x.count=3", "workload.x.count"),
        ("seed.a=3", "seed"),
        ("preset.a=3", "preset.a"),
        ("nic.nope=3", "nic.nope"),
        ("nic.sq_depth=3", "nic.sq_depth"),
        ("workload.0.size=0", "workload.0.size"),
    ],
)
def test_bad_override_is_blamed_on_set(override, key):
    error = refused(HEAD + PUT, override)
    assert error.file == "--set"
    assert error.key.replace("\n", " ") == key


def test_values_are_shown_as_toml():
    for value in (True, False, 3, 1.5, 'a"b\\\n', [1, "x"], {"a": 1}):
        text = f"v = {show(value)}"
        import tomllib

        assert tomllib.loads(text)["v"] == value


@pytest.mark.parametrize(
    "make",
    [
        lambda: Workload(kind="put", size=(8,), count=0),
        lambda: Workload(**{"kind": "put", "size": [8], "count": 1}),
        lambda: Region(name="", node=0, offset=0, size=1),
        lambda: Fault(kind="drop", node=0, count=0),
    ],
)
def test_python_construction_is_checked_like_a_file(make):
    with pytest.raises(ConfigError):
        make()


def test_rest_of_toml_error_is_one_line():
    error = refused("schema = \n")
    assert error.key == "TOML"
    assert "line 1" in str(error)


@pytest.mark.parametrize(
    ("size", "inline", "blocks"),
    [
        (0, True, 1),
        (12, True, 1),
        (28, True, 1),
        (29, True, 2),
        (92, True, 2),
        (93, True, 3),
        (972, True, 16),
        (1 << 20, False, 1),
    ],
)
def test_wqe_blocks_follow_the_segment_sizes(size, inline, blocks):
    assert wqe_blocks(size, inline) == blocks


works = st.builds(
    dict,
    size=st.lists(st.integers(1, 5000), min_size=1, max_size=3),
    count=st.integers(1, 40),
    producers=st.integers(1, 9),
    qps=st.integers(1, 5),
    window=st.integers(1, 8),
    batch=st.integers(1, 8),
    signaled_every=st.integers(1, 8),
    offset=st.integers(0, 100),
    remote_offset=st.integers(0, 100),
)
operations = st.builds(
    dict,
    size=st.integers(1, 300),
    offset=st.integers(0, 1000),
    remote_offset=st.integers(0, 1000),
    qp=st.integers(0, 6),
    producer=st.integers(0, 3),
    signaled=st.booleans(),
    # A producer of `gda_minimal` posts to one QP.
).map(lambda op: op | {"producer": 4 * op["qp"] + op["producer"]})


@settings(max_examples=60)
@given(st.lists(works, min_size=1, max_size=2), st.lists(operations, max_size=3))
def test_plan_gives_every_message_a_place_of_its_own_and_a_completion(workloads, ops):
    text = HEAD
    for work in workloads:
        work["window"] = max(work["window"], work["batch"], work["signaled_every"])
        text += written("workload", {"kind": "put"} | work)
    text += "".join(written("op", op) for op in ops)
    scenario = loads(text)
    assert loads(scenario.resolved_toml()) == scenario
    plan = scenario.plan
    assert [m.number for m in plan.messages] == list(range(len(plan.messages)))
    assert sorted(n for g in plan.groups for n in g.messages) == list(range(len(plan.messages)))

    assert sorted(n for p in plan.phases for n in p.messages) == list(range(len(plan.messages)))
    assert [p.workload is None for p in plan.phases[:-1]] == [False] * (len(plan.phases) - 1)

    # Slots of workloads do not touch each other, at either end, and lie in their regions.
    puts = [
        m for g in plan.groups if g.workload for m in map(plan.messages.__getitem__, g.messages)
    ]
    for key in (("node", "region", "offset"), ("peer", "remote_region", "remote_offset")):
        places = sorted((getattr(m, key[2]), m.size) for m in puts)
        for (first, size), (following, _) in zip(places, places[1:], strict=False):
            assert first + size + 64 <= following
        for m in plan.messages:
            assert (
                getattr(m, key[2]) + m.size
                <= plan.region(getattr(m, key[0]), getattr(m, key[1])).size
            )

    # A producer's last message of a group rings and is signalled: nothing waits for ever.
    for group in plan.groups:
        last = {}
        for number in group.messages:
            m = plan.messages[number]
            last[m.node, m.producer] = m
            assert (
                m.qp < 7
                and plan.connection(m.node, m.peer, m.qp).context(m.node) < scenario.structure.qps
            )
        if group.workload:
            assert all(m.rings and m.signaled for m in last.values())
            per_producer = Counter(plan.messages[n].producer for n in group.messages)
            assert max(per_producer.values()) - min(per_producer.values()) <= 1
    contexts = [(c.a, c.a_context) for c in plan.connections] + [
        (c.b, c.b_context) for c in plan.connections
    ]
    assert len(set(contexts)) == len(contexts)


def test_paths_are_those_the_agents_serve():
    assert set(PATHS) == {"gda_minimal", "ibgda", "ibrc", "verbs"}


def test_operations_of_all_sizes_are_one_phase_in_the_order_of_the_file():
    plan = loads(HEAD + "".join(written("op", {"size": size}) for size in (8, 64, 8))).plan
    assert [phase.messages for phase in plan.phases] == [(0, 1, 2)]
    assert [(group.size, group.messages) for group in plan.groups] == [(8, (0, 2)), (64, (1,))]


@pytest.mark.parametrize(
    "text",
    [
        PUT + f"[gpu]\nissue_ns = {'9' * 400}\n",
        PUT + f"[gpu]\nissue_ns = {'9' * 5000}\n",
        "a = " + "[" * 100_000,
    ],
    ids=["400 digits", "5000 digits", "100000 lists"],
)
def test_absurd_toml_is_bad_input(text):
    with pytest.raises(BadInput):
        loads(text)


def test_absurd_override_is_bad_input():
    for value in ("9" * 5000, "[" * 3000):
        with pytest.raises(BadInput):
            loads(PUT, "s.toml", [f"gpu.issue_ns={value}"])
