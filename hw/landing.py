"""What responders send: bytes to memory, and ACKs for the retirer."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .ack_checker import Identity
from .awaited_reads import AwaitedReads
from .formats.context import Table, TxContext
from .formats.dma import WriteRequest
from .formats.events import Dropped, DropReason, EventKind
from .formats.layout import reverse_bytes
from .formats.op import Landing
from .formats.roce import ACK_SYNDROME, Aeth, AethClass, NakCode, RoceOpcode, WireBeat
from .formats.tlp import MarkKind
from .landing_runs import LandingRuns
from .lib.align import Line, Realigner
from .lib.stream import Queue, connect, skid
from .lib.trace import Probe
from .qp_context import ConfigPort, configures, context_in
from .qp_table import QpTable
from .response_checker import ResponseChecker, ResponseVerdict
from .segmenter import ReadsPort

__all__ = ["ResponseLanding"]

#: What a sequence NAK says, and what a response that does not fit is told to the retirer with: a
#: NAK that no responder sends.
_SEQUENCE_NAK = AethClass.NAK.value << 5 | NakCode.SEQUENCE.value
_MISFIT = AethClass.NAK.value << 5 | 0x1F
#: Where the 4 bytes of a small atomic lie in the 8 bytes of its answer.
_SMALL_LANE = 4


class _Packet(data.Struct):
    """A packet whose bytes go to memory."""

    qp: 12
    qpn: 24
    psn: 24
    wqe_index: 16
    #: The last of its response.
    ends: 1
    #: Bytes of an atomic that works on 4 or on 8 of them.
    small: 1
    large: 1


class _Judgement(data.Struct):
    verdict: ResponseVerdict
    reason: DropReason
    #: The response that is expected.
    psn: 24


class ResponseLanding(wiring.Component):
    """Writes the responses to READs and atomics to memory, and makes ACKs of them.

    A response that is expected becomes an ACK of its PSN, once its last line was taken. One that
    leaves a gap, and an ACK that acknowledges a READ or an atomic whose response has not come,
    becomes a sequence NAK of what is missing; the next ones are dropped until it has come. One of
    another length or kind than was asked for writes nothing, and is handed on with its opcode, at
    which the retirer ends the operation as BAD_RESPONSE. All other ACKs pass as they are.

    An atomic's answer is 8 bytes in network order. Of an atomic of 8 bytes memory gets the native
    order (lowest byte first). Of an atomic of 4 bytes it gets the low half as it came, highest byte
    first: software swaps it.

    Landings are all there before their operation starts, so that a response never waits for them
    (see `LandingRuns`).

    Parameters
    ----------
    structure : Structure

    Members
    -------
    responses : In(stream of `WireBeat`)
        All that is sent by responders, after the receive delay. Beats of a packet add up to its
        `length`.
    landings : In(stream of `Landing`)
        In the order in which operations start, those of one together, as many bytes as it brings
        (behind the packets that it skips); also of one that will be flushed, unless it has a
        status. All of an operation come whether or not it has started.
    reads : In(ReadsPort)
        From the requester.
    config : In(ConfigPort)
        Table.TX names the QP and forgets what it had outstanding, as `reads.restart` does; of a
        packet in work the run of bytes that is begun is written, the rest is dropped.
    acks : Out(stream of `WireBeat`)
        Single beats.
    writes : Out(stream of `WriteRequest`)
        One per run of bytes: as far as a packet and a landing go.
    lines : Out(stream of `Line`)
        The bytes of `writes`, in the lanes of its address; `last` ends a run. Two lines are taken
        whatever `writes` waits for.
    quiet : Out(1)
    error : Out(1)
        Sticky: an operation's landings are not what it brings. A bug of the machine.
    on_dropped : Out(Probe)
        Of each packet that neither lands nor passes, see `ResponseChecker`: `qp` is the low bits of
        the QPN, `info` the PSN in bits 23:0 and the opcode in 31:24.

    Timing
    ------
    An ACK passes in its cycle. Of a response, one beat per cycle, and one cycle more for each beat
    that a landing ends within, for each run that spills into one more line, and for each packet.
    Last beat taken at t: its line is valid at t + 1 (t + 2 if it spills); taken at u: the ACK is
    valid at u + 1, the next packet taken at u + 1 at the earliest.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "responses": In(stream.Signature(WireBeat)),
                "landings": In(stream.Signature(Landing)),
                "reads": In(ReadsPort()),
                "config": In(ConfigPort()),
                "acks": Out(stream.Signature(WireBeat)),
                "writes": Out(stream.Signature(WriteRequest)),
                "lines": Out(stream.Signature(Line)),
                "quiet": Out(1),
                "error": Out(1),
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.awaited = self._awaited = AwaitedReads(self._structure)
        m.submodules.runs = self._runs = LandingRuns(self._structure)
        m.submodules.checker = self._checker = ResponseChecker()
        m.submodules.requests = self._requests = Queue(WriteRequest, 4)
        m.submodules.realigner = self._realigner = Realigner()
        m.submodules.buffer = self._buffer = skid(Line)
        #: Of the packet in work: some of it was taken; all of it was, but not all its lines; its QP
        #: has forgotten it. And: its ACK is offered.
        self._inside, self._ending, self._abandoned = Signal(), Signal(), Signal()
        self._done = Signal()
        self._forget(m)
        self._start(m)
        self._judge(m)
        self._place(m)
        self._finish(m)
        self._hand_on(m)
        self._take(m)
        return m

    def _forget(self, m):
        """A QP is set up or restarts."""
        context = context_in(self.config, TxContext)
        configuring, restart, runs = Signal(), self.reads.restart, self._runs
        m.d.comb += [
            configuring.eq(configures(self.config, Table.TX)),
            runs.forget.valid.eq(configuring | restart.valid),
            runs.forget.qp.eq(Mux(configuring, self.config.payload.index, restart.qp)),
            self._awaited.config.valid.eq(self.config.valid),
            self._awaited.config.payload.eq(self.config.payload),
            self._awaited.restart.valid.eq(restart.valid),
            self._awaited.restart.qp.eq(restart.qp),
            self._awaited.restart.psn.eq(restart.psn),
        ]
        identity = Signal(Identity)
        m.d.comb += [identity.valid.eq(context.valid), identity.qpn.eq(context.qpn)]
        self._identities = QpTable(m, "identities", Identity, self._structure)
        self._identities.write(self.config.payload.index, identity, configuring)
        self._mtus = QpTable(m, "mtus", 4, self._structure)
        self._mtus.write(self.config.payload.index, context.mtu_log2, configuring)

    def _start(self, m):
        """An operation starts: its landings go where its QP finds them."""
        port, runs, awaited = self.reads, self._runs, self._awaited
        lands, entry = Signal(), self.reads.started.payload.entry
        m.d.comb += [
            lands.eq(entry.reads & (entry.length != 0)),
            port.room.eq(runs.complete | ~lands),
            runs.started.valid.eq(port.started.valid & lands),
            runs.started.qp.eq(port.started.payload.qp),
            runs.started.keep.eq(entry.sends),
            awaited.started.valid.eq(port.started.valid),
            awaited.started.payload.eq(port.started.payload),
            runs.ask.eq(port.ask),
            awaited.ask.eq(port.ask),
            port.outstanding.eq(awaited.outstanding | (~runs.fits).replicate(5)),
        ]
        connect(m, wiring.flipped(self.landings), runs.landings)

    def _judge(self, m):
        """The first beat decides for its packet; what is offered once stays as it was judged."""
        beat, checker, awaited = self.responses.payload, self._checker, self._awaited
        qp = Signal(12)
        m.d.comb += [
            qp.eq(beat.bth.dest_qp[: self._structure.qp_bits]),
            self.reads.responding_qp.eq(qp),
            checker.beat.eq(beat),
            checker.identity.eq(self._identities.read(qp)),
            checker.mtu_log2.eq(self._mtus.read(qp)),
            checker.failed.eq(self.reads.failed),
            checker.awaited.eq(awaited.facts),
        ]
        self._judgement, self._kept = Signal(_Judgement), Signal()
        self._judged = Signal(_Judgement)
        with m.If(self._kept):
            m.d.comb += self._judgement.eq(self._judged)
        with m.Else():
            m.d.comb += [
                self._judgement.verdict.eq(checker.verdict),
                self._judgement.reason.eq(checker.reason),
                self._judgement.psn.eq(awaited.facts.psn),
            ]

        # The packet in work: the one that was begun, or the one that may be.
        oldest = awaited.facts.oldest
        self._work, self._packet = Signal(_Packet), Signal(_Packet)
        self._busy = Signal()
        m.d.comb += self._busy.eq(self._inside | self._ending)
        with m.If(self._busy):
            m.d.comb += self._packet.eq(self._work)
        with m.Else():
            m.d.comb += [
                self._packet.qp.eq(qp),
                self._packet.qpn.eq(beat.bth.dest_qp),
                self._packet.psn.eq(beat.bth.psn),
                self._packet.wqe_index.eq(oldest.wqe_index),
                self._packet.ends.eq(beat.bth.psn == oldest.last_psn),
                self._packet.small.eq(oldest.atomic & (oldest.last_length == 4)),
                self._packet.large.eq(oldest.atomic & (oldest.last_length != 4)),
            ]
        m.d.comb += [awaited.qp.eq(self._packet.qp), self._runs.qp.eq(self._packet.qp)]
        #: A packet's first beat is there and may be acted upon; it lands.
        self._fresh, self._lands, self._forgotten = Signal(), Signal(), Signal()
        m.d.comb += [
            self._fresh.eq(self.responses.valid & beat.first & ~self._busy),
            # The ACK of the packet before must be gone when this one's comes.
            self._lands.eq(
                self._fresh
                & (self._judgement.verdict == ResponseVerdict.LAND)
                & (~self._done | self.acks.ready)
            ),
            self._forgotten.eq(
                self._runs.forget.valid
                & (self._runs.forget.qp[: self._structure.qp_bits] == self._packet.qp)
            ),
        ]

    def _place(self, m):
        """A beat goes to the realigner in as many pieces as there are runs in it."""
        beat, packet, runs = self.responses.payload, self._packet, self._runs
        requests, realigner, oldest = self._requests.i, self._realigner.i, self._runs.oldest
        self._running = Signal()
        offset, packet_left, run_left = Signal(7), Signal(13), Signal(13)
        at, left, in_beat, run, count = (
            Signal(7),
            Signal(13),
            Signal(7),
            Signal(13),
            Signal(7),
        )
        going, starts, ends_run = Signal(), Signal(), Signal()
        self._moves, self._ends_beat = Signal(), Signal()
        m.d.comb += [
            at.eq(Mux(self._inside, offset, Mux(packet.small, _SMALL_LANE, 0))),
            left.eq(Mux(self._inside, packet_left, Mux(packet.small, _SMALL_LANE, beat.length))),
            in_beat.eq(beat.count - at),
            run.eq(Mux(self._running, run_left, Mux(oldest.length < left, oldest.length, left))),
            count.eq(Mux(run < in_beat, run, in_beat)),
            ends_run.eq(count == run),
            self._ends_beat.eq(count == in_beat),
            going.eq((self._lands & (beat.length != 0)) | (self.responses.valid & self._inside)),
            starts.eq(going & ~self._running & ~self._abandoned & ~self._forgotten & runs.any),
            realigner.valid.eq((going & self._running) | (starts & requests.ready)),
            self._moves.eq(realigner.valid & realigner.ready),
            self._realigner.start.eq(oldest.address),
            realigner.payload.lane.eq(at),
            realigner.payload.count.eq(count),
            realigner.payload.last.eq(ends_run),
            realigner.payload.data.eq(beat.data),
        ]
        with m.If(packet.large):
            m.d.comb += realigner.payload.data.eq(reverse_bytes(beat.data[:64]))

        ends, mark = Signal(), requests.payload.mark
        m.d.comb += [
            ends.eq(packet.ends & (run == left)),
            requests.valid.eq(starts & realigner.ready),
            requests.payload.address.eq(oldest.address),
            requests.payload.length.eq(run),
            mark.kind.eq(Mux(ends, MarkKind.LANDED_LAST, MarkKind.LANDED)),
            mark.qp.eq(packet.qp),
            mark.index.eq(packet.wqe_index),
            runs.use.valid.eq(requests.valid & requests.ready),
            runs.use.length.eq(run),
        ]
        with m.If(runs.use.valid & (ends != (oldest.last & (run == oldest.length)))):
            m.d.sync += self.error.eq(1)
        with m.If(self._moves):
            m.d.sync += [
                offset.eq(Mux(self._ends_beat, 0, at + count)),
                packet_left.eq(left - count),
                run_left.eq(run - count),
                self._running.eq(~ends_run),
                self._work.eq(packet),
            ]
        # A line is taken before its request is there (one cycle later): the engine waits for both.
        connect(m, self._requests.o, self.writes)
        connect(m, self._realigner.o, self._buffer.i)
        connect(m, self._buffer.o, self.lines)

    def _finish(self, m):
        """A packet has landed when its last line is taken; what was forgotten has not."""
        beat = self.responses.payload
        ends, gone, came = Signal(), Signal(), Signal()
        self._empty, self._skips = Signal(), Signal()
        m.d.comb += [
            ends.eq(self._moves & self._ends_beat & beat.last),
            gone.eq(
                self._ending & self._realigner.empty & (self._buffer.level == 1) & self.lines.ready
            ),
            self._empty.eq(self._lands & (beat.length == 0) & ~self._forgotten),
            came.eq(self._empty | (gone & ~self._abandoned & ~self._forgotten)),
            self._awaited.landed.valid.eq(came),
            self._awaited.landed.psn.eq(self._packet.psn),
            # What is left of a packet that was forgotten.
            self._skips.eq(self.responses.valid & self._inside & self._abandoned & ~self._running),
        ]
        with m.If(self._moves):
            m.d.sync += [self._inside.eq(~ends), self._ending.eq(ends)]
        with m.Elif(gone):
            m.d.sync += self._ending.eq(0)
        with m.Elif(self._skips & beat.last):
            m.d.sync += self._inside.eq(0)
        with m.If(gone | (self._skips & beat.last)):
            m.d.sync += self._abandoned.eq(0)
        with m.Elif(self._busy & self._forgotten):
            m.d.sync += self._abandoned.eq(1)

        self._landed = Signal(_Packet)
        with m.If(came):
            m.d.sync += [self._done.eq(1), self._landed.eq(self._packet)]
        with m.Elif(self.acks.ready):
            m.d.sync += self._done.eq(0)

    def _hand_on(self, m):
        """To the retirer: the ACK of what has landed, or what the packet's first beat becomes."""
        ack, judgement = self.acks.payload, self._judgement
        verdict, aeth = judgement.verdict, data.View(Aeth, ack.ext[:32])
        self._hands = Signal()
        m.d.comb += [
            self._hands.eq(
                self._fresh
                & ~self._done
                & (
                    (verdict == ResponseVerdict.PASS)
                    | (verdict == ResponseVerdict.GAP)
                    | (verdict == ResponseVerdict.MISFIT)
                )
            ),
            self.acks.valid.eq(self._done | self._hands),
        ]
        with m.If(self._done):
            m.d.comb += [
                ack.bth.opcode.eq(RoceOpcode.ACK),
                ack.bth.dest_qp.eq(self._landed.qpn),
                ack.bth.psn.eq(self._landed.psn),
                aeth.syndrome.eq(ACK_SYNDROME),
            ]
        with m.Elif(self._hands):
            m.d.comb += ack.eq(self.responses.payload)
            with m.If(verdict != ResponseVerdict.PASS):
                m.d.comb += [
                    ack.data.eq(0),
                    ack.count.eq(0),
                    ack.length.eq(0),
                    ack.ext.eq(0),
                    aeth.syndrome.eq(_MISFIT),
                ]
            with m.If(verdict == ResponseVerdict.GAP):
                m.d.comb += [
                    aeth.syndrome.eq(_SEQUENCE_NAK),
                    ack.bth.opcode.eq(RoceOpcode.ACK),
                    ack.bth.psn.eq(judgement.psn),
                ]
        m.d.comb += [ack.first.eq(1), ack.last.eq(1)]
        with m.If(self._hands):
            m.d.sync += [self._kept.eq(~self.acks.ready), self._judged.eq(judgement)]

    def _take(self, m):
        """Beats leave: used up, handed on, or for nothing. Of a packet that does not land only the
        first beat is looked at.
        """
        beat, verdict = self.responses.payload, self._judgement.verdict
        drops, told = Signal(), Signal()
        m.d.comb += [
            drops.eq(
                self.responses.valid
                & ~self._busy
                & (~beat.first | (verdict == ResponseVerdict.DROP))
            ),
            self.responses.ready.eq(
                (self._moves & self._ends_beat)
                | self._empty
                | self._skips
                | (self._hands & self.acks.ready)
                | drops
            ),
            told.eq(
                self._fresh
                & self.responses.ready
                & (verdict != ResponseVerdict.PASS)
                & (verdict != ResponseVerdict.LAND)
            ),
            self._awaited.reported.eq(told & (verdict == ResponseVerdict.GAP) & ~self._forgotten),
            self.on_dropped.valid.eq(told),
            self.on_dropped.payload.reason.eq(self._judgement.reason),
            self.on_dropped.payload.qp.eq(beat.bth.dest_qp),
            self.on_dropped.payload.info.eq(Cat(beat.bth.psn, beat.bth.opcode)),
            self.quiet.eq(
                ~self.acks.valid
                & ~self._runs.busy
                & ~self.writes.valid
                & ~self.lines.valid
                & ~self._realigner.o.valid
            ),
        ]
