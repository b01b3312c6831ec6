"""What the segments of an mlx5 WQE say."""

from amaranth.hdl import Cat, Const, Mux, Signal
from amaranth.lib import data

from .formats import mlx5
from .formats.layout import reverse_bytes
from .formats.mlx5 import WqeOpcode
from .formats.op import Verb

__all__ = ["DataSegment", "WqeKind", "decode_kind"]

#: Opcodes that are known; all others are refused.
_VERBS = {
    WqeOpcode.NOP: Verb.NOP,
    WqeOpcode.WRITE: Verb.WRITE,
    WqeOpcode.WRITE_IMM: Verb.WRITE_IMM,
    WqeOpcode.SEND: Verb.SEND,
    WqeOpcode.SEND_IMM: Verb.SEND_IMM,
    WqeOpcode.READ: Verb.READ,
    WqeOpcode.COMPARE_SWAP: Verb.COMPARE_SWAP,
    WqeOpcode.FETCH_ADD: Verb.FETCH_ADD,
    WqeOpcode.MASKED_COMPARE_SWAP: Verb.MASKED_COMPARE_SWAP,
    WqeOpcode.MASKED_FETCH_ADD: Verb.MASKED_FETCH_ADD,
    WqeOpcode.DUMP: Verb.DUMP,
}
_WRITES, _SENDS = {Verb.WRITE, Verb.WRITE_IMM}, {Verb.SEND, Verb.SEND_IMM}
_MASKED = {Verb.MASKED_COMPARE_SWAP, Verb.MASKED_FETCH_ADD}
_ATOMICS = {Verb.COMPARE_SWAP, Verb.FETCH_ADD} | _MASKED


class WqeKind(data.Struct):
    """What a control segment says of the segments behind it."""

    verb: Verb
    known: 1
    #: A remote address segment follows, then the octowords of an atomic, then data segments.
    addressed: 1
    operands: 2
    #: Data segments say where bytes go; else where they come from.
    lands: 1
    #: Inline segments may be among them.
    inlines: 1
    #: Bytes that an atomic works on; 0: it is none.
    atomic_bytes: 4
    has_imm: 1
    fence: 1


def decode_kind(m, ctrl):
    """A `WqeKind` of the control segment `ctrl` (combinational); `known` is low for a verb that is
    refused.

    Bits that a verb has no use for are not looked at.
    """
    kind = Signal(WqeKind)
    # Ref: 0x20 to 0x80 are kinds of fences (initiator small, fence, strong ordering, both). All of
    # them wait for READs and atomics here.
    m.d.comb += kind.fence.eq(ctrl.fm_ce_se[5:].any())
    four = ctrl.opmod == mlx5.OPMOD_MASKED_4
    with m.Switch(ctrl.opcode):
        for opcode, verb in _VERBS.items():
            with m.Case(opcode):
                m.d.comb += [
                    kind.verb.eq(verb),
                    kind.known.eq(1),
                    kind.addressed.eq(verb in _WRITES | _ATOMICS | {Verb.READ}),
                    kind.lands.eq(verb in _ATOMICS | {Verb.READ}),
                    kind.inlines.eq(verb in _WRITES | _SENDS),
                    kind.has_imm.eq(verb in {Verb.WRITE_IMM, Verb.SEND_IMM}),
                ]
                if verb in _ATOMICS:
                    m.d.comb += [kind.operands.eq(1), kind.atomic_bytes.eq(8)]
                if verb in _MASKED:
                    m.d.comb += [
                        kind.known.eq(four | (ctrl.opmod == mlx5.OPMOD_MASKED_8)),
                        kind.atomic_bytes.eq(Mux(four, 4, 8)),
                    ]
                if verb == Verb.MASKED_COMPARE_SWAP:
                    m.d.comb += kind.operands.eq(Mux(four, 1, 2))
    return kind


class DataSegment:
    """The segment that begins at octoword `place` (0 to 3) of a block, read as data or inline
    segment.

    Attributes: `fields` as a data segment, `inline`, `byte_count`, `lkey`, `address`, `lane` of its
    first byte, `octowords` it takes, `ends_list`.
    """

    def __init__(self, m, block, place):
        raw = Signal(128)
        with m.Switch(place):
            for number in range(4):
                with m.Case(number):
                    m.d.comb += raw.eq(block[128 * number : 128 * (number + 1)])
        self.fields = fields = mlx5.Data(reverse_bytes(raw))
        self.inline, self.byte_count = Signal(), Signal(31)
        self.lkey, self.address = fields.lkey, fields.address
        self.lane = Cat(Const(0, 4), place)
        self.octowords, self.ends_list = Signal(7), Signal()
        m.d.comb += [
            self.inline.eq(fields.byte_count[31]),
            self.byte_count.eq(fields.byte_count[:31]),
            self.octowords.eq(Mux(self.inline, (self.byte_count[:10] + 4 + 15) >> 4, 1)),
            self.ends_list.eq(
                ~self.inline & (self.byte_count == 0) & (self.lkey == mlx5.END_OF_LIST_KEY)
            ),
        ]
