"""A memory of a node: accepts and commits writes, and answers reads (decision 5)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.events import Commit, EventKind
from .formats.tlp import ADDRESS_BITS, CompletionBeat, Mark, Port, PostedBeat, ReadBeat
from .lib.delay import NEVER, NOW_BITS, DelayLine, earliest
from .lib.trace import Probe
from .timing import MemoryTiming

__all__ = ["Memory"]

#: Writes in flight per path, and reads waiting.
WRITES, READS = 1024, 512
#: Count of writes, modulo; a read waits for less than half of this many.
ORDER_BITS = 24


class PendingRead(data.Struct):
    """A read and the fabric writes that were accepted before it."""

    request: ReadBeat
    after: ORDER_BITS


def lanes_below(m, end):
    """64 byte enables, of which the lowest `end` (0 to 64) are set."""
    rest, enables = Signal(7), Signal(64)
    m.d.comb += [rest.eq(64 - end), enables.eq(Const((1 << 64) - 1, 64) >> rest)]
    return enables


class ReadEngine(wiring.Component):
    """Reads the lines of requests and forms completions.

    Members
    -------
    requests : In(stream of `ReadBeat`)
        Reads whose time has come.
    mps_log2 : In(4)
        log2 of the largest completion payload, 6 to 12.
    fr_en, fr_addr, fr_data
        The memory's fabric read port: data in the cycle after the enable, then held until the next.
    completions : Out(stream of `CompletionBeat`)
    idle : Out(1)
        No line is waiting to be taken.

    Timing
    ------
    One line per cycle, without a gap between requests; a beat is offered in the cycle
    after its line's `fr_en`. While a beat is not taken nothing is read, so the memory's output
    register is the only buffer.
    """

    def __init__(self):
        super().__init__(
            {
                "requests": In(stream.Signature(ReadBeat)),
                "mps_log2": In(4),
                "fr_en": Out(1),
                "fr_addr": Out(64),
                "fr_data": In(512),
                "completions": Out(stream.Signature(CompletionBeat)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        request = self.requests.payload

        # The bytes still to be read: of a new request, or of one under way.
        running, next_line, rest = Signal(), Signal(ADDRESS_BITS), Signal(13)
        address, remaining = Signal(ADDRESS_BITS), Signal(13)
        m.d.comb += [
            address.eq(Mux(running, next_line, request.address)),
            remaining.eq(Mux(running, rest, request.length)),
        ]

        # This line, and the completion that it belongs to: it ends at an MPS-aligned address or
        # with the request.
        in_line, count = Signal(7), Signal(7)
        size, into, in_tlp, ends, final = Signal(13), Signal(13), Signal(13), Signal(), Signal()
        m.d.comb += [
            in_line.eq(64 - address[:6]),
            ends.eq(remaining <= in_line),
            count.eq(Mux(ends, remaining, in_line)),
            size.eq(Const(1, 1) << self.mps_log2),
            into.eq(address & (size - 1)),
            in_tlp.eq(size - into),
            final.eq(remaining <= in_tlp),
        ]

        # Read when the beat before has been taken; the rest of the beat waits beside the memory's
        # data.
        reads = Signal()
        beat = data.StructLayout(
            {
                "address": 12,
                "count": 7,
                "length": 13,
                "first": 1,
                "last": 1,
                "final": 1,
                "requester": Port,
                "tag": 10,
                "mark": Mark,
            }
        )
        held, full = Signal(beat), Signal()
        m.d.comb += [
            reads.eq(self.requests.valid & (~full | self.completions.ready)),
            self.requests.ready.eq(reads & ends),
            self.fr_en.eq(reads),
            self.fr_addr.eq(Cat(Const(0, 6), address[6:])),
        ]
        with m.If(reads):
            m.d.sync += [
                full.eq(1),
                running.eq(~ends),
                next_line.eq(Cat(Const(0, 6), (address[6:] + 1)[: ADDRESS_BITS - 6])),
                rest.eq(remaining - count),
                held.address.eq(address),
                held.count.eq(count),
                held.length.eq(Mux(final, remaining, in_tlp)),
                held.first.eq(~running | (into == 0)),
                held.last.eq(ends | (count == in_tlp)),
                held.final.eq(final),
                held.requester.eq(request.requester),
                held.tag.eq(request.tag),
                held.mark.eq(request.mark),
            ]
        with m.Elif(self.completions.ready):
            m.d.sync += full.eq(0)

        m.d.comb += [
            self.completions.valid.eq(full),
            self.idle.eq(~full),
            self.completions.payload.data.eq(self.fr_data),
        ]
        m.d.comb += [
            getattr(self.completions.payload, name).eq(getattr(held, name)) for name in beat.members
        ]
        return m


class Memory(wiring.Component):
    """Commits writes and answers reads, each after its latency; its bytes live behind line ports.

    Parameters
    ----------
    number : int
        0 GPU, 1 host; goes into events.

    Members
    -------
    posted : In(stream of `PostedBeat`)
        Writes from the fabric.
    reads : In(stream of `ReadBeat`)
        Reads from the fabric, 1 to 4096 bytes from any address.
    stores : In(stream of `PostedBeat`)
        Stores of the processor that the memory belongs to.
    completions : Out(stream of `CompletionBeat`)
        In the order of the reads, split at MPS-aligned addresses. Lanes outside a beat's bytes are
        undefined.
    fw_en, fw_addr, fw_be, fw_data : Out
        Fabric write of a 64-byte line: byte address with low bits zero, enables by lane.
    pw_en, pw_addr, pw_be, pw_data : Out
        Processor write, likewise.
    fr_en, fr_addr : Out, fr_data : In
        Fabric read: data in the cycle after the enable, then held until the next. Sees a write of
        the same cycle.
    timing : In(MemoryTiming)
    mps_log2 : In(4)
    now : In
    on_commit_fabric, on_commit_store : Out(Probe)
        A beat became visible; in the cycle of its `fw_en` or `pw_en`.
    quiet, due : Out

    Timing
    ------
    One write per path and cycle is accepted while fewer than 1024 are in flight, and
    committed max(1, `commit`) (fabric) or max(1, `store`) (processor) cycles after it was accepted.
    One read per cycle is accepted while fewer than 512 wait. The first beat of the answer to a read
    that was accepted at cycle t is offered at

        max(t + max(2, read), commit cycle of the last fabric write accepted before t + 2)

    if no answer before it is on its way; then one beat per cycle, without a gap between reads.
    Processor stores are not waited for.
    """

    def __init__(self, number):
        self._number = number
        commit = Probe(EventKind.COMMIT, Commit)
        line = {"en": Out(1), "addr": Out(64), "be": Out(64), "data": Out(512)}
        super().__init__(
            {
                "posted": In(stream.Signature(PostedBeat)),
                "reads": In(stream.Signature(ReadBeat)),
                "stores": In(stream.Signature(PostedBeat)),
                "completions": Out(stream.Signature(CompletionBeat)),
                **{f"{path}_{name}": port for path in ("fw", "pw") for name, port in line.items()},
                "fr_en": Out(1),
                "fr_addr": Out(64),
                "fr_data": In(512),
                "timing": In(MemoryTiming),
                "mps_log2": In(4),
                "now": In(NOW_BITS),
                "on_commit_fabric": Out(commit),
                "on_commit_store": Out(commit),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()

        # Writes: accepted at once, committed when their time has come.
        paths = {
            "fabric": (self.posted, self.timing.commit, "fw", self.on_commit_fabric, 1),
            "processor": (self.stores, self.timing.store, "pw", self.on_commit_store, 0),
        }
        writes = {}
        for name, (source, latency, port, event, fabric) in paths.items():
            m.submodules[name] = writes[name] = line = DelayLine(PostedBeat, WRITES)
            wiring.connect(m, wiring.flipped(source), line.i)
            beat = line.o.payload
            end = Signal(7, name=f"{name}_end")
            m.d.comb += [
                line.now.eq(self.now),
                line.latency.eq(latency),
                line.o.ready.eq(1),
                end.eq(beat.address[:6] + beat.count),
                getattr(self, f"{port}_en").eq(line.o.valid),
                getattr(self, f"{port}_addr").eq(Cat(Const(0, 6), beat.address[6:])),
                getattr(self, f"{port}_be").eq(
                    lanes_below(m, end) & ~lanes_below(m, beat.address[:6])
                ),
                getattr(self, f"{port}_data").eq(beat.data),
                event.valid.eq(line.o.valid),
                event.payload.memory.eq(self._number),
                event.payload.fabric.eq(fabric),
                event.payload.address.eq(beat.address),
                event.payload.count.eq(beat.count),
                event.payload.last.eq(beat.last),
                event.payload.mark.eq(beat.mark),
            ]

        # Reads wait their latency (the read port's cycle is part of it) and for the fabric writes
        # before them.
        accepted, committed = Signal(ORDER_BITS), Signal(ORDER_BITS)
        m.d.sync += [
            accepted.eq(accepted + (self.posted.valid & self.posted.ready)),
            committed.eq(committed + self.fw_en),
        ]
        m.submodules.pending = pending = DelayLine(PendingRead, READS)
        behind, follows = Signal(ORDER_BITS), Signal()
        m.d.comb += [
            pending.now.eq(self.now),
            pending.latency.eq(Mux(self.timing.read > 1, self.timing.read - 1, 1)),
            pending.i.valid.eq(self.reads.valid),
            self.reads.ready.eq(pending.i.ready),
            pending.i.payload.request.eq(self.reads.payload),
            pending.i.payload.after.eq(accepted),
            behind.eq(committed - pending.o.payload.after),
            follows.eq(~behind[-1]),
        ]
        m.submodules.engine = engine = ReadEngine()
        m.d.comb += [
            engine.requests.valid.eq(pending.o.valid & follows),
            engine.requests.payload.eq(pending.o.payload.request),
            pending.o.ready.eq(engine.requests.ready & follows),
            engine.mps_log2.eq(self.mps_log2),
            self.fr_en.eq(engine.fr_en),
            self.fr_addr.eq(engine.fr_addr),
            engine.fr_data.eq(self.fr_data),
        ]
        wiring.connect(m, engine.completions, wiring.flipped(self.completions))

        # A read that waits for a commit waits for that commit's time.
        active = Cat(
            self.posted.valid,
            self.reads.valid,
            self.stores.valid,
            engine.requests.valid,
            ~engine.idle,
            *(~line.quiet for line in writes.values()),
        )
        m.d.comb += [
            self.quiet.eq(~active.any()),
            self.due.eq(
                earliest(
                    m,
                    [
                        *(line.due for line in writes.values()),
                        Mux(pending.o.valid, NEVER, pending.due),
                    ],
                )
            ),
        ]
        return m
