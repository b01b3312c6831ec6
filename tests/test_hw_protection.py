"""Memory keys against plain Python integers, which do not wrap."""

import random

import pytest
from support_roce import Pulses
from support_streams import Bench, pack, refuses

from hw.formats.context import ConfigWrite, MemoryKey, Table
from hw.protection import Access, AccessKind, Denial, Protection

KEYS = 16
TOP = 1 << 64
RIGHTS = {
    AccessKind.LOCAL_WRITE: "local_write",
    AccessKind.REMOTE_READ: "remote_read",
    AccessKind.REMOTE_WRITE: "remote_write",
    AccessKind.REMOTE_ATOMIC: "remote_atomic",
}
ALL = dict.fromkeys(RIGHTS.values(), 1)


def ref_denial(regions, access):
    """Why an access is refused; `regions` is a dict by index."""
    region = regions.get(access["key"] >> 8)
    first, last = access["address"], access["address"] + access["length"]
    if access["length"] == 0:
        return Denial.NONE
    if not region or not region["valid"] or region["variant"] != access["key"] & 0xFF:
        return Denial.KEY
    if region["pd"] != access["pd"]:
        return Denial.DOMAIN
    right = RIGHTS.get(access["kind"])
    if right and not region.get(right):
        return Denial.RIGHTS
    if last > TOP:
        return Denial.WRAP
    end = region["base"] + region["length"]
    inside = region["base"] <= first and last <= end <= TOP
    return Denial.NONE if inside else Denial.BOUNDS


class Asker:
    """Asks one access per cycle on a port, from a cycle on, and keeps the answers."""

    def __init__(self, port, accesses, begin):
        self.port, self.accesses, self.begin, self.answers = port, accesses, begin, []

    def drive(self, ctx, cycle):
        if 0 <= cycle - self.begin < len(self.accesses):
            word = pack(Access, self.accesses[cycle - self.begin])
            ctx.set(self.port.access.as_value(), word)

    def sample(self, ctx, cycle):
        if 0 < cycle - self.begin <= len(self.accesses):
            self.answers.append(Denial(ctx.get(self.port.denial)))


def rtl_denials(regions, *accesses, changes=()):
    """Answers of each port. `changes` are (cycle behind the first access, index, region)."""
    dut = Protection(keys=KEYS, ports=len(accesses))
    begin = len(regions)
    writes = [*enumerate(regions.items())]
    writes += [(begin + cycle, (index, region)) for cycle, index, region in changes]
    config = Pulses(
        dut.config.valid,
        dut.config.payload,
        ConfigWrite,
        [
            (cycle, {"table": Table.KEY, "index": index, "data": pack(MemoryKey, region)})
            for cycle, (index, region) in writes
        ],
    )
    askers = [Asker(port, some, begin) for port, some in zip(dut.asks, accesses, strict=True)]
    longest = max(map(len, accesses))
    Bench(dut, [config, *askers]).run(10 + begin + longest, tail=longest + 2)
    return [asker.answers for asker in askers]


def region(base=0x1000, length=0x100, **options):
    return {"valid": 1, "variant": 7, "pd": 5, "base": base, "length": length, **ALL, **options}


def access(kind=AccessKind.REMOTE_WRITE, key=0x307, address=0x1000, length=1, pd=5):
    return {"kind": kind, "pd": pd, "key": key, "address": address, "length": length}


DENIED = {
    "whole region": (access(length=0x100), Denial.NONE),
    "last byte": (access(address=0x10FF), Denial.NONE),
    "byte before": (access(address=0xFFF), Denial.BOUNDS),
    "ends one behind": (access(length=0x101), Denial.BOUNDS),
    "byte behind": (access(address=0x1100), Denial.BOUNDS),
    "nothing, anywhere": (access(address=TOP - 1, length=0, key=0xFFFFFFFF, pd=9), Denial.NONE),
    "ends at 2^64": (access(address=TOP - 16, length=16), Denial.BOUNDS),
    "ends beyond 2^64": (access(address=TOP - 16, length=17), Denial.WRAP),
    "wraps into the region": (access(address=TOP - 1, length=0x1002), Denial.WRAP),
    "longest": (access(length=0xFFFFFFFF), Denial.BOUNDS),
    "other variant": (access(key=0x306), Denial.KEY),
    "index without a region": (access(key=0x407), Denial.KEY),
    "index beyond the table": (access(key=0x1307), Denial.KEY),
    "topmost index": (access(key=0x80000307), Denial.KEY),
    "other domain": (access(pd=4), Denial.DOMAIN),
}


@pytest.mark.parametrize("name", DENIED)
def test_access_is_allowed_or_denied_by_name(name):
    asked, denial = DENIED[name]
    assert rtl_denials({3: region()}, [asked]) == [[denial]]
    assert ref_denial({3: region()}, asked) is denial


@pytest.mark.parametrize("kind", AccessKind)
def test_each_access_needs_its_own_right(kind):
    right = RIGHTS.get(kind)
    own = {right} if right else set()
    without, only = (
        region(**{name: int((name in own) == has) for name in ALL}) for has in (False, True)
    )
    expected = Denial.RIGHTS if right else Denial.NONE
    asked = [access(kind), access(kind, key=0x407)]
    assert rtl_denials({3: without, 4: only}, asked) == [[expected, Denial.NONE]]


def test_region_up_to_the_top_and_one_that_wraps():
    """Nothing of a region that goes beyond 2^64 may be touched."""
    regions = {3: region(base=TOP - 0x100), 4: region(base=TOP - 0x100, length=0x101)}
    asked = [
        access(address=TOP - 1),
        access(address=TOP - 0x100, length=0x100),
        access(address=TOP - 0x100, length=0x101),
        access(address=0),
        access(address=TOP - 1, key=0x407),
        access(address=0, key=0x407),
    ]
    assert rtl_denials(regions, asked) == [
        [Denial.NONE, Denial.NONE, Denial.WRAP, Denial.BOUNDS, Denial.BOUNDS, Denial.BOUNDS]
    ]


def test_key_that_is_taken_back_is_denied_from_the_next_cycle_on():
    gone, renewed = region(valid=0), region(variant=8)
    asked = [access()] * 5
    answers = rtl_denials({3: region()}, asked, changes=[(1, 3, gone), (3, 3, renewed)])
    assert answers == [[Denial.NONE, Denial.NONE, Denial.KEY, Denial.KEY, Denial.KEY]]


@pytest.mark.parametrize("seed", [1, 2])
def test_random_accesses_on_all_ports_at_once(seed):
    source = random.Random(seed)
    bases = [0, 0x1000, TOP - 0x800, source.getrandbits(64)]
    regions = {
        index: region(
            base=source.choice(bases),
            length=source.choice((1, 0x800, source.randrange(1 << 34), TOP - 1)),
            valid=int(source.random() < 0.9),
            pd=source.randrange(2),
            **{right: source.getrandbits(1) for right in ALL},
        )
        for index in range(KEYS - 2)
    }

    def one():
        index = source.randrange(KEYS)
        near = regions.get(index, region())
        address = near["base"] + source.choice((-1, 0, 1, near["length"] - 1, near["length"]))
        return access(
            source.choice(list(AccessKind)),
            key=index << 8 | source.choice((7, 7, 7, 8)),
            address=address % TOP,
            length=source.choice((0, 1, 2, 0x800, 0xFFFFFFFF)),
            pd=source.randrange(2),
        )

    asked = [[one() for _ in range(300)] for _ in range(3)]
    expected = [[ref_denial(regions, item) for item in some] for some in asked]
    assert rtl_denials(regions, *asked) == expected
    assert {denial for some in expected for denial in some} == set(Denial)


@pytest.mark.parametrize("keys", [0, 1, 3, 1 << 17])
def test_wrong_sizes_are_refused(keys):
    refuses(lambda: Protection(keys=keys, ports=1), ValueError, "allowed powers of two")
