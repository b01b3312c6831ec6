"""What an atomic makes of the bytes that it finds."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .formats.layout import reverse_bytes
from .formats.roce import RoceOpcode
from .formats.tlp import ADDRESS_BITS

__all__ = ["AtomicArithmetic", "AtomicOperation"]


class AtomicOperation(data.Struct):
    """An atomic as its packet asks for it."""

    opcode: 8
    qp: 12
    psn: 24
    #: A multiple of 8 or, if not `wide`, of 4: the bytes that it works on.
    address: ADDRESS_BITS
    wide: 1
    #: Payload of the packet: big-endian words, as they stand in the WQE.
    operands: 256
    #: It was executed before: only its answer is wanted.
    replay: 1
    #: Answers kept of its QP, 1 to 16.
    kept: 5


class AtomicArithmetic(wiring.Component):
    """Adds or swaps, whole or under masks.

    Members
    -------
    operation : In(AtomicOperation)
    original : In(64)
        Of 4 bytes the upper half is 0.
    result : Out(64)
        Of 4 bytes the upper half is not looked at.

    Timing
    ------
    Combinational.
    """

    def __init__(self):
        super().__init__({"operation": In(AtomicOperation), "original": In(64), "result": Out(64)})

    def elaborate(self, platform):
        m = Module()
        operation, original = self.operation, self.original
        words = []
        for place in range(4):
            wide = reverse_bytes(operation.operands[64 * place : 64 * place + 64])
            narrow = reverse_bytes(operation.operands[32 * place : 32 * place + 32])
            word = Signal(64, name=f"word_{place}")
            m.d.comb += word.eq(Mux(operation.wide, wide, narrow))
            words.append(word)

        # An addition does not carry out of a bit of `boundary`: these bits are added apart.
        boundary, summands, differing = Signal(64), Signal(64), Signal(64)
        m.d.comb += [
            summands.eq((original & ~boundary) + (words[0] & ~boundary)),
            differing.eq((original ^ words[0]) & boundary),
        ]
        # A swap compares under one mask and writes under another.
        swap_mask, compare_mask, swaps = Signal(64), Signal(64), Signal()
        m.d.comb += swaps.eq(((original ^ words[1]) & compare_mask) == 0)
        swapped = (original & ~swap_mask) | (words[0] & swap_mask)

        with m.Switch(operation.opcode):
            with m.Case(RoceOpcode.FETCH_ADD):
                m.d.comb += self.result.eq(summands)
            with m.Case(RoceOpcode.MASKED_FETCH_ADD):
                m.d.comb += [boundary.eq(words[1]), self.result.eq(summands ^ differing)]
            with m.Case(RoceOpcode.COMPARE_SWAP):
                m.d.comb += [swap_mask.eq(~Const(0, 64)), compare_mask.eq(~Const(0, 64))]
            with m.Case(RoceOpcode.MASKED_COMPARE_SWAP):
                m.d.comb += [swap_mask.eq(words[2]), compare_mask.eq(words[3])]
        with m.Switch(operation.opcode):
            with m.Case(RoceOpcode.COMPARE_SWAP, RoceOpcode.MASKED_COMPARE_SWAP):
                m.d.comb += self.result.eq(Mux(swaps, swapped, original))
        return m
