"""Host verbs store what rdma-core stores: byte for byte, in its order, to the right half."""

from dataclasses import replace

import pytest
from support_host import QP, Host, Put, cpu_of, records, registers
from support_wqe import load_vectors

from hw.formats.tlp import MarkKind
from sim import addresses
from sim.agents.doorbell import pushes

#: Mode of the vectors to settings.
MODES = {
    "db_only(nc uar)": ('uar="nc"',),
    "bf_capable,prefer_bf=1": (),
    "bf_capable,prefer_bf=0": ("prefer_bf=false",),
}
BF, DOORBELL = 64, 8


def writes():
    """Vectors of RDMA WRITEs of one run of bytes, without immediate data."""
    return [
        vector
        for vector in load_vectors()["rdma_core_mlx5_post_send"]["vectors"]
        if vector["name"].startswith("rdma_write_")
        and "len" in vector["params"]
        and "imm_host" not in vector["params"]
    ]


def put_of(vector, number=0):
    params = vector["params"]
    size = params["len"]
    inline = bytes((7 * i + 3) & 255 for i in range(size)) if params.get("inline") else None
    places = [int(params[name], 16) for name in ("laddr", "lkey", "raddr", "rkey")]
    return Put(number, size, inline, bool(params["signaled"]), True, 0.0, *places)


def same(vector, got, name="wqe"):
    """Whether bytes are those of a vector, where it defines them."""
    wanted = bytes.fromhex(vector[name])
    assert len(got) == len(wanted)
    return all(
        a == b for a, b, known in zip(got, wanted, vector["defined"], strict=True) if known == "1"
    )


def test_posts_are_those_of_rdma_core():
    modes = set()
    for vector in writes():
        modes.add(vector["mode"])
        host = Host(cpu_of(*MODES[vector["mode"]]), depth=64, start=vector["post_before"])
        stores = host.post(put_of(vector))
        where = vector["name"], vector["mode"]
        ring = host.ring_of(stores)
        assert list(ring) == [vector["slot"] + n for n in range(vector["wqebbs"])], where
        assert same(vector, b"".join(ring.values())), where
        assert records(stores) == [bytes.fromhex(vector["dbr_snd"])], where
        (mmio,) = vector["mmio"]
        first, whole = int(mmio["uar_off"], 16), b"".join(data for _, data in registers(stores))
        step = BF if mmio["len"] >= BF else DOORBELL
        offsets = [at for at, _ in registers(stores)]
        assert offsets == list(range(first, first + mmio["len"], step)), where
        assert same(mmio, whole, "bytes"), where
        # WQE, record, register; and never two of them at once.
        kinds = [kind for _, _, _, kind in stores]
        assert kinds == sorted(kinds, key=[MarkKind.WQE, MarkKind.RECORD, MarkKind.DOORBELL].index)
        # Where the next post would go.
        (after, _), *_ = registers(host.post(put_of(vector, 1)))
        assert after == 0x800 + vector["bf_offset_after"], where
    assert modes == set(MODES)
    assert len(writes()) > 30


def test_a_vector_of_another_byte_is_not_the_same():
    vector = writes()[0]
    raw = bytearray.fromhex(vector["wqe"])
    assert same(vector, raw)
    raw[2] ^= 1
    assert not same(vector, raw)


def test_halves_are_used_in_turn():
    toggles = load_vectors()["rdma_core_mlx5_post_send"]["bf_toggle"]
    host = Host(cpu_of())
    for toggle in toggles:
        ((at, _),) = registers(host.post(Put()))
        # (The vectors name the first byte that is not 0, the index.)
        assert at == int(toggle["first_nonzero_uar_off"], 16) - 2
        assert at == 0x800 + toggle["bf_offset_before"]


@pytest.mark.parametrize("mode", MODES)
def test_a_list_rings_once_with_its_last_wqe(mode):
    """Not pushed, however short; each WQE is the one of a single post at its index."""
    sizes = [(8, True), (64, False), (60, True)]
    puts = [
        Put(n, size, bytes(size) if inline else None, signaled=n == 2, rings=n == 2)
        for n, (size, inline) in enumerate(sizes)
    ]
    host = Host(cpu_of(*MODES[mode]))
    stores = host.post(*puts)
    ring = host.ring_of(stores)
    assert list(ring) == [5, 6, 7, 8]
    alone = Host(cpu_of())
    singles = [alone.ring_of(alone.post(replace(put, rings=True))) for put in puts]
    assert ring == singles[0] | singles[1] | singles[2]
    assert records(stores) == [(9).to_bytes(4, "big")]
    assert registers(stores) == [(0x800, ring[7][:8])]
    ((after, _),) = registers(host.post(Put(inline=bytes(8))))
    assert after == (0x800 if "nc" in mode else 0x900)


def test_a_push_goes_round_the_end_of_the_ring():
    payload = bytes(range(100))
    host = Host(cpu_of(), depth=8, start=7)
    stores = host.post(Put(size=100, inline=payload))
    ring = host.ring_of(stores)
    assert list(ring) == [7, 0, 1]
    pushed = registers(stores)
    assert pushed == [(0x800 + 64 * n, ring[slot]) for n, slot in enumerate((7, 0, 1))]
    # The 16-bit index of host and NIC goes round later.
    assert records(stores) == [(10).to_bytes(4, "big")]
    late = Host(cpu_of(), depth=8, start=65535)
    assert records(late.post(Put(size=100, inline=payload))) == [(2).to_bytes(4, "big")]


@pytest.mark.parametrize(
    ("sets", "post", "pushed"),
    [
        ((), {}, True),
        (("bf=false",), {}, False),
        (("bf=false",), {"inline": True}, False),
        (('uar="nc"',), {"inline": True}, False),
        (("prefer_bf=false",), {}, False),
        (("prefer_bf=false",), {"inline": True}, True),
        ((), {"count": 2}, False),
        ((), {"octowords": 1}, False),
        ((), {"octowords": 2}, True),
        ((), {"octowords": 16, "inline": True}, True),
        ((), {"octowords": 17, "inline": True}, False),
    ],
)
def test_what_is_pushed(sets, post, pushed):
    post = {"count": 1, "octowords": 3, "inline": False} | post
    assert pushes(cpu_of(*sets), **post) is pushed


def test_largest_inline_push_is_that_of_perftest():
    """220 bytes fill a half of the register; one more does not fit."""
    for size, stored in ((220, 4), (221, 1)):
        host = Host(cpu_of())
        assert len(registers(host.post(Put(size=size, inline=bytes(size))))) == stored


# Time ------------------------------------------------------------------------------------------


def times(stores, kind):
    return [due for due, _, _, found in stores if found is kind]


def test_a_post_takes_its_time_and_the_fence_waits_for_the_stores():
    cpu = cpu_of("post_ns=75", "wqe_ns=20")
    stores = Host(cpu).post(Put(), now=100)
    assert times(stores, MarkKind.WQE) == times(stores, MarkKind.RECORD) == [121]
    assert times(stores, MarkKind.DOORBELL) == [101 + 75]
    # WQE and record are the second and third cycle's; each is visible 900 later.
    slow = Host(cpu, store_ns=900).post(Put(), now=100)
    assert times(slow, MarkKind.DOORBELL) == [121 + 2 + 900]


def test_further_work_requests_of_a_list_cost_a_wqe_each():
    puts = [Put(n, rings=n == 9) for n in range(10)]
    stores = Host(cpu_of("post_ns=75", "wqe_ns=20")).post(*puts, now=0)
    assert times(stores, MarkKind.WQE) == [1 + 20 * (n + 1) for n in range(10)]
    assert times(stores, MarkKind.DOORBELL) == [1 + 75 + 9 * 20]


def test_threads_take_turns_at_the_lock():
    host = Host(cpu_of("post_ns=75", "wqe_ns=20", "store_issue_ns=5"))
    first, second = (host.thread(Put(n), number=n) for n in (0, 1))
    host.shared.post(first, 0)
    host.shared.post(second, 0)
    assert times(host.node.stores, MarkKind.WQE) == [21, 81 + 20]
    assert times(host.node.stores, MarkKind.DOORBELL) == [76, 81 + 75]
    assert (first.time, second.time) == (81, 161)


# Completions -----------------------------------------------------------------------------------


def consumed(host):
    at = addresses.bus("host", addresses.record_offset(QP) + addresses.CQ_RECORD)
    return [data for _, address, data, _ in host.node.stores if address == at]


def test_a_poll_takes_a_batch_and_stores_the_record_once():
    host = Host(cpu_of("poll_ns=50", "poll_batch=3"), start=0, cq_depth=4)
    puts = [Put(n) for n in range(4)]
    thread = host.thread(*puts)
    for _ in puts:
        host.shared.post(thread, 0)
    for place in range(4):
        host.complete(place, place)
    thread.time = 0
    host.shared.poll(thread, 1000)
    assert (thread.outstanding, thread.time) == (1, 1050)
    assert consumed(host) == [(3).to_bytes(4, "big")]
    host.shared.poll(thread, 1050)
    assert (thread.outstanding, thread.time) == (0, 1100)
    assert consumed(host)[1:] == [(4).to_bytes(4, "big")]


def test_a_poll_that_finds_nothing_costs_nothing_and_stores_nothing():
    host = Host(cpu_of(), start=0, cq_depth=4)
    thread = host.thread(Put())
    host.shared.post(thread, 0)
    before = thread.time
    # An entry of the lap that comes next.
    host.complete(0, 0, owner=1)
    host.shared.poll(thread, 1000)
    assert (thread.outstanding, thread.time, consumed(host)) == (1, before, [])


def test_a_completion_is_handed_to_the_thread_whose_wqe_it_covers():
    """One CQE covers the unsignalled WQEs before it, whoever posted them."""
    host = Host(cpu_of("poll_ns=50"), start=0, cq_depth=4)
    one, two = host.thread(Put(0, signaled=False), number=1), host.thread(Put(1), number=2)
    host.shared.post(one, 0)
    host.shared.post(two, 0)
    host.complete(0, 1)
    host.shared.poll(two, 5000)
    assert (one.outstanding, two.outstanding) == (0, 0)
    assert one.time == two.time == 5050


def test_consumer_record_and_owner_are_those_of_rdma_core():
    """Each success of a send-side vector, at its place of the completion queue."""
    done = 0
    for vector in load_vectors()["rdma_core_mlx5_cq_consumer"]["vectors"]:
        raw = bytes.fromhex(vector["cqe"])
        if raw[63] >> 4 not in (0, 13):
            continue
        index, counter = vector["cons_index"], int.from_bytes(raw[60:62], "big")
        host = Host(cpu_of(), start=(counter - index) & 0xFFFF)
        thread = host.thread(*(Put(n) for n in range(index + 1)))
        for place in range(index + 1):
            host.shared.post(thread, 0)
            if place < index:
                host.complete(place, (counter - index + place) & 0xFFFF)
        while len(host.queue.outstanding) > 1:
            host.shared.poll(thread, 1000)
        before = len(consumed(host))
        host.complete_with(index, raw)
        host.shared.poll(thread, 2000)
        assert thread.outstanding == 0, vector["name"]
        ours = bytes.fromhex(vector["cq_dbrec_set_ci"])
        assert consumed(host)[before:] == [ours], vector["name"]
        done += 1
    assert done > 10
