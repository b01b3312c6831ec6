"""Bytes from the lanes where they are to the lanes where they belong."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Line", "Realigner", "bytes_to_boundary", "rotate_right_bytes"]


class Line(data.Struct):
    """A run of bytes within one 64-byte line."""

    data: unsigned(512)
    #: Lane of the first byte.
    lane: 6
    #: Bytes, 0 to 64; lane + count is at most 64.
    count: 7
    #: Ends the run that is being realigned.
    last: 1


def bytes_to_boundary(m, address, size_log2, name):
    """Bytes from `address` to the next multiple of the size, 1 to 4096 (`size_log2` is 6 to 12)."""
    size, left = Signal(13, name=f"{name}_size"), Signal(13, name=name)
    m.d.comb += [
        size.eq(Const(1, 1) << size_log2),
        left.eq(size - (address[:12] & (size - 1)[:12])),
    ]
    return left


def rotate_right_bytes(m, value, amount, name, *, when):
    """`value` rotated right by `amount` bytes (lane i moves to lane i - amount), while `when`.

    One wide shift under a condition: what a simulator skips while there is nothing to rotate.
    """
    assert len(value) == 8 << len(amount)
    result = Signal(len(value), name=name)
    with m.If(when):
        m.d.comb += result.eq(Cat(value, value) >> Cat(Const(0, 3), amount))
    return result


class Realigner(wiring.Component):
    """Packs runs of bytes from any lanes into full lines that start at a given lane.

    Parameters
    ----------
    none

    Members
    -------
    i : In(stream of `Line`)
        Pieces of a run, in order; a piece may be of any size from 0 (only with `last`) to 64.
    start : In(6)
        Lane at which the run's first byte shall come out; sampled with each run's first piece.
    o : Out(stream of `Line`)
        Lines of the run: the first from lane `start`, all others from lane 0, all but the last up
        to lane 63.
    empty : Out(1)
        Nothing is held.

    Timing
    ------
    One piece in and one line out per cycle; a run whose bytes spill into one more line takes one
    more cycle at its end. The output is combinational from the input.
    """

    def __init__(self):
        super().__init__(
            {
                "i": In(stream.Signature(Line)),
                "start": In(6),
                "o": Out(stream.Signature(Line)),
                "empty": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Held: bytes of the current output line below `fill`, from lane `base`.
        held = Signal(512)
        fill, base = Signal(6), Signal(6)
        running, flush = Signal(), Signal()

        position, first = Signal(6), Signal(6)
        m.d.comb += [
            position.eq(Mux(running, fill, self.start)),
            first.eq(Mux(running, base, self.start)),
        ]
        amount = Signal(6)
        m.d.comb += amount.eq(self.i.payload.lane - position)
        rotated = rotate_right_bytes(m, self.i.payload.data, amount, "rotated", when=self.i.valid)

        # Lanes from `position` up take the new bytes, those below keep the held ones: one shift of
        # a word of ones, so that a simulator has one operation for all lanes.
        above, keep_bits = Signal(7), Signal(512)
        m.d.comb += above.eq(64 - position)
        merged = Signal(512)
        with m.If(self.i.valid):
            m.d.comb += [
                keep_bits.eq(Const((1 << 512) - 1, 512) >> Cat(Const(0, 3), above)),
                merged.eq((held & keep_bits) | (rotated & ~keep_bits)),
            ]

        end = Signal(8)
        full, spills = Signal(), Signal()
        m.d.comb += [
            end.eq(position + self.i.payload.count),
            full.eq(end >= 64),
            spills.eq(end > 64),
        ]

        with m.If(flush):
            m.d.comb += [
                self.o.payload.data.eq(held),
                self.o.payload.lane.eq(base),
                self.o.payload.count.eq(fill - base),
                self.o.payload.last.eq(1),
                self.o.valid.eq(1),
            ]
            with m.If(self.o.ready):
                m.d.sync += [flush.eq(0), running.eq(0)]
        with m.Else():
            emits = Signal()
            m.d.comb += [
                emits.eq(full | self.i.payload.last),
                self.o.payload.data.eq(merged),
                self.o.payload.lane.eq(first),
                self.o.payload.count.eq(Mux(full, 64 - first, end - first)),
                self.o.payload.last.eq(self.i.payload.last & ~spills),
                self.o.valid.eq(self.i.valid & emits),
                self.i.ready.eq(self.o.ready | ~emits),
            ]
            with m.If(self.i.valid & self.i.ready):
                with m.If(self.i.payload.last & ~spills):
                    m.d.sync += running.eq(0)
                with m.Else():
                    m.d.sync += [
                        running.eq(1),
                        fill.eq(end[:6]),
                        held.eq(Mux(spills, rotated, merged)),
                        base.eq(Mux(full, 0, first)),
                        flush.eq(self.i.payload.last),
                    ]
        m.d.comb += self.empty.eq(~running & ~flush)
        return m
