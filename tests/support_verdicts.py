"""What our software makes of recorded situations: one function per form of item.

Each takes an item and its list, and gives one line for each thing that is not as recorded.
"""

import re

from support_asked import Write
from support_jobs import doorbells_of
from support_vectors import VectorError
from support_work import sequence_work, work_of

from hw.formats import mlx5
from hw.formats.layout import Codec
from sim import wqe
from sim.agents.batching import rings
from sim.agents.channel import DEFAULT_QP, PutRequest, encode_put, flag_of
from sim.agents.completions import arm_word, consumer_record, work_completion
from sim.agents.polling import is_ours, poll_collapsed, poll_ring

__all__ = ["VERDICTS"]

_DATA, _CQE = Codec(mlx5.Data), Codec(mlx5.Cqe)
#: Entries of a completion queue where an item does not tell.
_ENTRIES = 64
#: Bytes of the proxy's channel.
_CHANNEL_BYTES = 1 << 22


def _differs(what, found, wanted):
    if found != wanted:
        yield f"{what}: {found!r}: recorded {wanted!r}"


def _numbers(item, *keys):
    return [item.number(item.get(key), key) for key in keys]


def _qpn(item):
    return item.number(
        item.data.get("params", {}).get("qpn", item.common.get("qpn", 0)), "params.qpn"
    )


def _same_bytes(what, built, raw, mask):
    """Bytes that the software defines are those that our builder makes."""
    if len(built) != len(raw):
        yield f"{what}: {len(built)} bytes built, {len(raw)} recorded"
        return
    for at, (ours, theirs, mark) in enumerate(zip(built, raw, mask, strict=True)):
        if mark == "1" and ours != theirs:
            yield f"{what}: byte {at} is {ours:02x}: recorded {theirs:02x}"
            return


def _built(item, wqes):
    qpn = _qpn(item)
    for number, w in enumerate(wqes):
        if hasattr(w.work, "build"):
            yield from _same_bytes(f"WQE {number}", w.work.build(w.index, qpn), w.raw, w.defined)


def vector(item, _):
    """WQE, record, doorbell and push are the bytes that our builders make of the parameters."""
    start = item.number(item.data.get("post_before", item.data.get("post_idx", 0)), "post index")
    wqes = work_of(item, start)
    qpn, end = _qpn(item), start + sum(w.blocks for w in wqes)
    yield from _built(item, wqes)
    if "lanes" in item.data.get("params", {}):
        first = wqes[0].work
        ours = wqe.write_inline_combined(
            index=start, qpn=qpn, raddr=first.raddr, rkey=first.rkey, payload=first.payload
        )
        yield from _same_bytes("warp", ours, item.raw("wqe"), item.get("defined"))
    yield from _differs("wqebbs", end - start, item.data.get("wqebbs", end - start))
    yield from _differs("next index", end, item.data.get("post_after", end))
    if "dbr_snd" in item.data:
        yield from _differs("record", wqe.record(end).hex(), item.get("dbr_snd"))
    last = wqes[-1].work.build(wqes[-1].index, qpn) if wqes else b""
    for _, raw, mask, _ in doorbells_of(item):
        # Two conventions: the next index and ds 0, or the head of the last WQE.
        if len(raw) == 8 and raw[7] & 63 == 0:
            ours = wqe.doorbell(qpn=qpn, index=end)
        else:
            ours = last[:8] if len(raw) == 8 else last
        yield from _same_bytes("doorbell", ours, raw, mask)


def sequence(item, _):
    """WQEs by our builders, doorbells with the record's index, and the order's end as recorded."""
    wqes = sequence_work(item, 0)
    yield from _built(item, wqes)
    puts = sum(step.startswith("PUT") for step in item.get("trace"))
    if puts:
        made = sum(isinstance(w.work, Write) for w in wqes)
        yield from _differs("puts", made, puts)
    qpn, written = _qpn(item), doorbells_of(item)
    if not written:
        yield "no doorbell in the trace"
    for _, raw, _, record in written:
        ours = wqe.doorbell(qpn=qpn, index=int.from_bytes(record, "big"))
        yield from _differs("doorbell", ours.hex(), raw.hex())
    if "dbr_snd" in item.data:
        yield from _differs("last record", written[-1][3].hex(), item.get("dbr_snd"))
    if "last_doorbell" in item.data:
        yield from _differs("last doorbell", written[-1][1].hex(), item.get("last_doorbell"))


def toggle(item, _):
    """The two halves of the register take turns."""
    k, before, offset = _numbers(item, "k", "bf_offset_before", "first_nonzero_uar_off")
    yield from _differs("half", k % 2 * mlx5.UAR_BF_SIZE, before)
    yield from _differs("register", mlx5.UAR_REGISTER_OFFSET + before, offset & ~0xFF)


def submit(item, _):
    """Doorbell word (bits 31:24 may be anything) and record."""
    (end,) = _numbers(item, "to_pi")
    written = any(step.startswith("dbr4") for step in item.get("trace"))
    ours = wqe.doorbell(qpn=_qpn(item), index=end)
    yield from _same_bytes("doorbell", ours, item.raw("db_word"), "01111111")
    record = wqe.record(end) if written else bytes(4)
    yield from _differs("record", record.hex(), item.get("dbr_snd"))


def batching(item, _):
    base, count, reserved, batch = _numbers(item, "base", "num_wqes", "resv_head", "batch")
    rang = rings(base=base, count=count, reserved=reserved, batch=batch)
    yield from _differs("rang", int(rang), item.get("rang"))
    end = base + count
    record = wqe.record(end).hex() if rang else ""
    yield from _differs("record", record, item.get("dbr_snd"))
    doorbell = wqe.doorbell(qpn=_qpn(item), index=end).hex() if rang else ""
    yield from _differs("doorbell", doorbell, item.get("doorbell"))


def collapsed_poll(item, _):
    wait, consumer, producer, counter, opcode, entries = _numbers(
        item, "wait_idx", "cons_idx", "prod_idx", "cqe_wqe_counter", "cqe_opcode", "ncqes"
    )
    polled = poll_collapsed(
        wait=wait,
        consumer=consumer,
        producer=producer,
        counter=counter,
        opcode=opcode,
        entries=entries,
    )
    yield from _polled(item, polled, "new_cons_idx", "status")


def ring_poll(item, _):
    wait, consumer, opcode, owner, entries = _numbers(
        item, "wait_idx", "cqe_ci", "cqe_opcode", "cqe_owner", "cqe_num"
    )
    polled = poll_ring(wait=wait, consumer=consumer, opcode=opcode, owner=owner, entries=entries)
    yield from _polled(item, polled, "new_ci", "ret")


def _polled(item, polled, consumer, status):
    yield from _differs("done", int(polled is not None), item.get("done"))
    if polled and item.get("done"):
        yield from _differs(consumer, polled.consumer, item.get(consumer))
        yield from _differs(status, polled.status, item.get(status))


def consumer(item, items):
    raw, (index,) = item.raw("cqe"), _numbers(item, "cons_index")
    if len(raw) != 64:
        raise VectorError(f"{item.where}: cqe of {len(raw)} bytes: allowed 64")
    cqe = _CQE.unpack(raw)
    ours = is_ours(index=index, opcode=cqe["opcode"], owner=cqe["owner"], entries=_ENTRIES)
    yield from _differs("found", int(ours), item.get("poll_rc"))
    if not (ours and item.get("poll_rc")):
        return
    found, recorded = work_completion(raw), item.get("wc")
    for key, value in {
        "status": found.status,
        "opcode": found.opcode,
        "byte_len": found.byte_len,
        "wc_flags": found.flags,
    }.items():
        yield from _differs(key, value, recorded[key])
    for key, value in {
        "qp_num": found.qpn,
        "vendor_err": found.vendor_error,
        "imm_be_as_host": int.from_bytes(found.word, "big"),
    }.items():
        yield from _differs(key, value, item.number(recorded[key], key))
    yield from _differs("record", consumer_record(index + 1).hex(), item.get("cq_dbrec_set_ci"))
    if "srq" not in item.data and not item.data["name"].startswith("resp"):
        base = _first_request(items)
        yield from _differs("wr_id", base + found.counter, item.number(recorded["wr_id"], "wr_id"))


def _first_request(items):
    """`wr_id` that a list's harness gave to index 0: most of its items say so."""
    bases = [
        item.number(item.data["wc"]["wr_id"], "wr_id")
        - int.from_bytes(item.raw("cqe")[60:62], "big")
        for item in items
        if "wc" in item.data and not item.data["name"].startswith("resp")
    ]
    return max(bases, key=bases.count)


def arm(item, _):
    index, sequence_number, solicited, number = _numbers(item, "ci", "sn", "solicited_only", "cqn")
    word = arm_word(consumer=index, sequence=sequence_number, solicited_only=solicited)
    yield from _differs("record", word.hex(), item.get("dbrec_arm"))
    yield from _differs("doorbell", (word + number.to_bytes(4, "big")).hex(), item.get("mmio"))


def receive(item, _):
    raw = item.raw("rq_wqe")
    fields = _DATA.unpack(raw[:16])
    for key, name in (("address", "laddr"), ("lkey", "lkey")):
        if name in item.common:
            yield from _differs(key, fields[key], item.number(item.common[name], name))
    yield from _differs("record", wqe.record(1).hex(), item.get("dbr_rcv"))


def channel(item, items):
    params = dict(item.get("params"))
    if "as" in params:
        base = next((i for i in items if i.data.get("name") == params["as"]), None)
        if base is None:
            raise VectorError(f"{item.where}: as = {params['as']!r}: no such item in its list")
        params = base.data["params"] | params
    qp = params.get("qp", DEFAULT_QP)
    told = re.fullmatch(r"default\((\d+)\)", str(qp))
    request = PutRequest(
        roffset=item.number(params.get("roffset"), "roffset"),
        laddr=item.number(params.get("laddr"), "laddr"),
        size=item.number(params.get("bytes"), "bytes"),
        pe=item.number(params.get("pe"), "pe"),
        qp=int(told[1]) if told else item.number(qp, "qp"),
    )
    (position,) = _numbers(item, "idx_before")
    raw = encode_put(request, flag_of(position, _CHANNEL_BYTES))
    words = [raw[at : at + 8][::-1].hex() for at in range(0, len(raw), 8)]
    yield from _differs("words", words, item.get("words_le"))


#: Of each form that is consumed.
VERDICTS = {
    "wqe": vector,
    "sequence": sequence,
    "toggle": toggle,
    "submit": submit,
    "batching": batching,
    "collapsed_poll": collapsed_poll,
    "ring_poll": ring_poll,
    "consumer": consumer,
    "arm": arm,
    "receive": receive,
    "channel": channel,
}
