"""The doorbell page alone: a rig with its context table, and writes as processors make them."""

from amaranth.lib import wiring
from support_rig import Rig, pack

from hw.config import Structure
from hw.doorbell import Doorbell
from hw.formats.context import ConfigWrite, SqContext, Table
from hw.qp_context import QpContext

__all__ = [
    "PAGE",
    "QPN",
    "START",
    "STRUCTURE",
    "doorbell_rig",
    "put_lines",
    "put_write",
    "rule_problems",
    "word",
]

QPN = 0xABCD
STRUCTURE = Structure(qps=16, doorbell_fifo=16)
PAGE = 0x2000_0000_3000
#: Cycle from which writes come; the context is there.
START = 3


def doorbell_rig(*, qpns=(QPN,), doorbell=5, depth=16, wait=50, **options):
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
    rig.set(block.timing.push_wait, wait)
    return rig


def put_write(rig, offset, raw, at=START, page=PAGE):
    """A write as one TLP, a beat per line."""
    address, length, first = page + offset, len(raw), 1
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


def put_lines(rig, offset, raw, at=START, gap=0, page=PAGE):
    """A write as a write-combining processor makes it: a TLP for each line, `gap` cycles apart."""
    for line in range(0, len(raw), 64):
        put_write(rig, offset + line, raw[line : line + 64], at + line // 64 * gap, page)


def word(index, ds=0, qpn=QPN, top=0):
    return ((top << 24 | index << 8) & 0xFFFFFFFF).to_bytes(4, "big") + (qpn << 8 | ds).to_bytes(
        4, "big"
    )


#: Cycles given to each write.
_SLOT = 20


def rule_problems(groups):
    """Whether the block rings with the index that each record holds.

    `groups` is a list of lists of (offset, bytes, mask, record); returns the problems of each.
    """
    rigs, placed = {}, []
    for group in groups:
        times = []
        for offset, raw, _, record in group:
            qpn = int.from_bytes(raw[4:7], "big")
            if qpn not in rigs:
                rigs[qpn] = [doorbell_rig(qpns=(qpn,)), START]
            rig, at = rigs[qpn]
            put_lines(rig, offset, raw, at)
            times.append((qpn, at, int.from_bytes(record, "big") & 0xFFFF))
            rigs[qpn][1] += _SLOT
        placed.append(times)
    for rig, end in rigs.values():
        rig.run(end + _SLOT)
    problems = []
    for times in placed:
        found = []
        for qpn, at, _ in times:
            rings = rigs[qpn][0].taken["rings"]
            found.append([r["producer"] for cycle, r in rings if at < cycle <= at + _SLOT])
        wanted = [[producer] for *_, producer in times]
        bad = f"rings with {found}: the records say {wanted}"
        problems.append([] if found == wanted else [bad])
    return problems
