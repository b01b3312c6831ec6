"""Executes atomics in memory, one after the other."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .atomic_arithmetic import AtomicArithmetic, AtomicOperation
from .formats.context import Table
from .formats.dma import ReadLine, ReadRequest
from .formats.tlp import MarkKind
from .lib.align import Line
from .qp_context import ConfigPort, configures
from .replay_store import ReplayStore

__all__ = ["AtomicResult", "AtomicUnit"]


class AtomicResult(data.Struct):
    #: Low: it is to be replayed, and its answer is kept no more.
    found: 1
    #: What was in memory.
    original: 64


class AtomicUnit(wiring.Component):
    """Reads 4 or 8 bytes, writes what the atomic makes of them, and says what was there.

    Memory holds little-endian words. The bytes are written in any case, even if a comparison
    failed.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    operations : In(stream of `AtomicOperation`)
        One at a time: the next one is taken after the result of the one before.
    config : In(ConfigPort)
        Table.RX forgets the answers of its QP.
    requests : Out(stream of `ReadRequest`), lines : In(stream of `ReadLine`)
        One read of one line; the mark is `RESPONSE` with the PSN.
    written : Out(stream of `Line`)
        The new bytes, in the lanes of their address.
    results : Out(stream of `AtomicResult`)
    quiet : Out(1)

    Timing
    ------
    Accepted at t: its read is offered at t + 1. Line taken at s: `written` at s + 1, result two
    cycles after that was taken. A replay takes at most 17 cycles.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "operations": In(stream.Signature(AtomicOperation)),
                "config": In(ConfigPort()),
                "requests": Out(stream.Signature(ReadRequest)),
                "lines": In(stream.Signature(ReadLine)),
                "written": Out(stream.Signature(Line)),
                "results": Out(stream.Signature(AtomicResult)),
                "quiet": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.replay = replay = ReplayStore(self._structure)
        m.submodules.arithmetic = arithmetic = AtomicArithmetic()
        operation, result = Signal(AtomicOperation), Signal(AtomicResult)
        shift, distance, fresh = Signal(9), Signal(5), Signal(512)
        m.d.comb += [
            replay.config.valid.eq(self.config.valid),
            replay.config.payload.eq(self.config.payload),
            replay.qp.eq(operation.qp),
            replay.kept.eq(operation.kept),
            replay.distance.eq(distance),
            replay.keep.psn.eq(operation.psn),
            replay.keep.original.eq(result.original),
            arithmetic.operation.eq(operation),
            arithmetic.original.eq(result.original),
            shift.eq(Cat(Const(0, 3), operation.address[:6])),
            self.requests.payload.address.eq(operation.address),
            self.requests.payload.length.eq(Mux(operation.wide, 8, 4)),
            self.requests.payload.mark.kind.eq(MarkKind.RESPONSE),
            self.requests.payload.mark.qp.eq(operation.qp),
            self.requests.payload.mark.index.eq(operation.psn),
            self.written.payload.data.eq(fresh),
            self.written.payload.lane.eq(operation.address[:6]),
            self.written.payload.count.eq(self.requests.payload.length),
            self.written.payload.last.eq(1),
            self.results.payload.eq(result),
        ]

        configuring = configures(self.config, Table.RX)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [self.operations.ready.eq(1), self.quiet.eq(1)]
                m.d.sync += [operation.eq(self.operations.payload), distance.eq(1)]
                with m.If(self.operations.valid):
                    with m.If(self.operations.payload.replay):
                        m.next = "SEARCH"
                    with m.Else():
                        m.next = "READ"
            with m.State("READ"):
                m.d.comb += self.requests.valid.eq(1)
                with m.If(self.requests.ready):
                    m.next = "WAIT"
            with m.State("WAIT"):
                found = Signal(64)
                m.d.comb += [
                    self.lines.ready.eq(1),
                    self.quiet.eq(1),
                    found.eq(self.lines.payload.data >> shift),
                ]
                m.d.sync += result.original.eq(Mux(operation.wide, found, found[:32]))
                with m.If(self.lines.valid):
                    m.next = "WRITE"
            with m.State("WRITE"):
                m.d.comb += [
                    self.written.valid.eq(1),
                    fresh.eq(arithmetic.result << shift),
                ]
                with m.If(self.written.ready):
                    m.next = "KEEP"
            with m.State("KEEP"):
                m.d.sync += result.found.eq(1)
                with m.If(~configuring):
                    m.d.comb += replay.keep.valid.eq(1)
                    m.next = "ANSWER"
            with m.State("SEARCH"):
                # From the latest one back.
                m.d.sync += [
                    distance.eq(distance + 1),
                    result.found.eq(replay.there),
                    result.original.eq(replay.original),
                ]
                with m.If(~replay.there | (replay.psn == operation.psn)):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += self.results.valid.eq(1)
                with m.If(self.results.ready):
                    m.next = "IDLE"
        return m
