"""What both benches of the doorbell do: contexts first, then one doorbell after the other."""

from hw.formats.context import SqContext, Table
from hw.formats.layout import Codec
from hw.formats.mlx5 import Doorbell

__all__ = ["ADDRESS", "CYCLES", "FIRST", "GAP", "contexts", "doorbells"]

CONTEXTS = 64
#: Doorbells, cycles from one to the next, cycle of the first.
COUNT, GAP, FIRST = 10_000, 4, 200
#: Cycles in all; the last ring is out by then.
CYCLES = FIRST + GAP * COUNT + 200
#: Of the register that is written.
ADDRESS = 0x800
_sq, _doorbell = Codec(SqContext), Codec(Doorbell)


def contexts() -> list[tuple[int, int, bytes]]:
    """(table, index, word) of each context, one per cycle."""
    words = (_sq.pack(valid=1, qpn=0x1000 | index, depth_log2=6) for index in range(CONTEXTS))
    return [(Table.SQ.value, index, word) for index, word in enumerate(words)]


def doorbells() -> list[bytes]:
    """The 8 bytes of each doorbell: QP after QP, each with its next index."""
    return [
        _doorbell.pack(index=number // CONTEXTS + 1, qpn=0x1000 | number % CONTEXTS)
        for number in range(COUNT)
    ]
