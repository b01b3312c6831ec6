"""Responder: executes the requests of the peers, in order, and answers them."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .answers import Answer, AnswerKind, Answers
from .atomic_unit import AtomicUnit
from .formats.context import RxContext, Table
from .formats.dma import Placement, ReadLine, ReadRequest
from .formats.events import Dropped, DropReason, EventKind
from .formats.op import Received, Status, Taken
from .formats.roce import ACK_SYNDROME, AethClass, NakCode, Reth, WireBeat
from .formats.tlp import ADDRESS_BITS, MarkKind
from .lib.align import Line
from .lib.delay import NOW_BITS
from .lib.stream import connect
from .lib.trace import Probe
from .packet_checker import PacketChecker, RequestKind, RxState, Verdict
from .placer import Placer
from .qp_context import ConfigPort, ContextPort, configures, context_in
from .qp_table import QpTable
from .read_server import ReadServer
from .timing import NicTiming

__all__ = ["Responder"]


def _nak(code):
    """AETH syndrome of a NAK."""
    return AethClass.NAK.value << 5 | code.value


class Responder(wiring.Component):
    """Executes request packets in PSN order and answers them in that order.

    Any other packet changes no memory. A duplicate WRITE or SEND that asks for an ACK gets one for
    all that was executed, a duplicate READ is executed again, a duplicate atomic gets the answer
    that it had, or none if that is kept no more. The first packet behind a gap is answered with a
    sequence NAK of the expected PSN, the others until that one has come with nothing. A packet that
    does not fit its message, an opcode that is not served, and a READ or an atomic too many are
    refused with an invalid-request NAK; from then on the connection serves nothing until it gets a
    new context. A packet that needs a receive WQE where there is none is answered with an RNR NAK.

    A READ or an atomic begins when all that packets before it leave in memory has gone to the write
    engine; so its reads, which PCIe keeps behind writes, see all of it. What is behind an atomic
    waits until that has written. A WRITE behind a READ does not wait: who wants that fences.

    Parameters
    ----------
    structure : Structure
        `qps` connections.

    Members
    -------
    packets : In(stream of `WireBeat`)
        Requests, after the receive delay. Beats of a packet add up to its `length`.
    config : In(ConfigPort)
        Table.RX sets expected PSN and MSN, leaves any message, ends a failure and forgets answers
        of atomics. It takes the cycle.
    rx : Out(ContextPort(RxContext))
    acks : Out(stream of `WireBeat`)
        ACKs and NAKs, responses to READs, atomic ACKs; see `Answers`.
    take : Out(stream of 12), taken : In(stream of `Taken`)
        Asks a QP's receive queue for its next WQE; one at a time. The answer is taken with the
        packet that it is for.
    placements : Out(stream of `Placement`), lines : Out(stream of `Line`)
        What packets leave in memory, and the bytes of it, in the lanes of their address or, of a
        `scatter`, from lane 0; `last` ends a packet. Two lines are taken whatever `placements`
        waits for.
    settled : In(1)
        All placements that were taken have gone to the write engine.
    read_requests : Out(stream of `ReadRequest`), read_lines : In(stream of `ReadLine`)
        To the read engine of READs.
    atomic_requests : Out(stream of `ReadRequest`), atomic_lines : In(stream of `ReadLine`)
        To that of atomics.
    timing : In(NicTiming)
        `tx` is used.
    now : In
    quiet, due : Out
    on_dropped : Out(Probe)
        Of each packet that is not executed: PACKET_...; `qp` is the low bits of the QPN, `info` the
        PSN in bits 23:0 and the opcode in 31:24.

    Timing
    ------
    First beat accepted at t: its first full or only line and its placement are valid at t + 2. ACK:
    last line of the packet buffered at s (s = t + 1 for the last beat accepted at t, one more if
    the bytes spill into one more line; for the first beat of a packet that is empty or not executed
    t + 1): valid at s + 1 + max(1, tx). One beat per cycle; a packet whose bytes spill into one
    more line takes one cycle more. READ accepted at t: its first read is offered at t + 2, if
    nothing before it is in work. Atomic accepted at t: its read is offered at t + 2; the packet
    behind it is taken 3 cycles after the atomic's line, if its write is taken at once. 2048 answers
    may wait: beyond them packets wait.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "packets": In(stream.Signature(WireBeat)),
                "config": In(ConfigPort()),
                "rx": Out(ContextPort(RxContext)),
                "acks": Out(stream.Signature(WireBeat)),
                "take": Out(stream.Signature(12)),
                "taken": In(stream.Signature(Taken)),
                "placements": Out(stream.Signature(Placement)),
                "lines": Out(stream.Signature(Line)),
                "settled": In(1),
                "read_requests": Out(stream.Signature(ReadRequest)),
                "read_lines": In(stream.Signature(ReadLine)),
                "atomic_requests": Out(stream.Signature(ReadRequest)),
                "atomic_lines": In(stream.Signature(ReadLine)),
                "timing": In(NicTiming),
                "now": In(NOW_BITS),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
                "on_dropped": Out(Probe(EventKind.DROPPED, Dropped)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.checker = self._checker = checker = PacketChecker()
        m.submodules.placer = self._placer = placer = Placer()
        m.submodules.read_server = self._read_server = read_server = ReadServer(self._structure)
        m.submodules.atomic_unit = self._atomic_unit = atomic_unit = AtomicUnit(self._structure)
        m.submodules.answers = self._answers = answers = Answers()
        for inner, outer in (
            (placer.placements, self.placements),
            (placer.lines, self.lines),
            (read_server.requests, self.read_requests),
            (atomic_unit.requests, self.atomic_requests),
            (answers.o, self.acks),
        ):
            connect(m, inner, wiring.flipped(outer))
        connect(m, wiring.flipped(self.read_lines), read_server.lines)
        connect(m, wiring.flipped(self.atomic_lines), atomic_unit.lines)
        connect(m, read_server.payload, answers.payload)

        # A beat waits one cycle for its context.
        self._beat, held, taken = Signal(WireBeat), Signal(), Signal()
        self._taken, beat = taken, self._beat
        m.d.comb += [
            self.packets.ready.eq(~held | taken),
            self.rx.address.eq(
                Mux(self.packets.ready, self.packets.payload.bth.dest_qp, beat.bth.dest_qp)
            ),
        ]
        with m.If(self.packets.ready):
            m.d.sync += held.eq(self.packets.valid)
            with m.If(self.packets.valid):
                m.d.sync += beat.eq(self.packets.payload)

        self._judge(m)
        waits = self._receive(m, held) | self._serve(m, held)
        self._go(m, held, waits)
        self._remember(m)
        self._place(m, held)
        pending = self._answer(m)

        m.d.comb += [
            self.on_dropped.valid.eq(taken & beat.first & ~self._executes),
            self.on_dropped.payload.reason.eq(
                Mux(self._forgotten, DropReason.PACKET_FORGOTTEN, checker.reason)
            ),
            self.on_dropped.payload.qp.eq(beat.bth.dest_qp),
            self.on_dropped.payload.info.eq(Cat(beat.bth.psn, beat.bth.opcode)),
            # A packet that waits for its receive WQE or its atomic waits for the outside.
            self.quiet.eq(
                (~held | waits)
                & ~pending
                & ~self.take.valid
                & ~self.placements.valid
                & ~self.lines.valid
                & read_server.quiet
                & atomic_unit.quiet
                & answers.quiet
            ),
            self.due.eq(answers.due),
        ]
        return m

    def _judge(self, m):
        """The first beat decides for its packet."""
        checker, beat, qp = self._checker, self._beat, Signal(12)
        m.submodules.states = states = memory.Memory(
            shape=RxState, depth=self._structure.qps, init=[]
        )
        read, self._write = states.read_port(domain="comb"), states.write_port()
        self._qp, self._state, self._executing = qp, read.data, Signal()
        self._executes, self._again, self._serves = Signal(), Signal(), Signal()
        self._configuring = Signal()
        m.d.comb += [
            qp.eq(beat.bth.dest_qp[: self._structure.qp_bits]),
            read.addr.eq(qp),
            checker.beat.eq(beat),
            checker.context.eq(self.rx.data),
            checker.state.eq(read.data),
            self._executes.eq(beat.first & (checker.verdict == Verdict.EXECUTE)),
            self._again.eq(beat.first & (checker.verdict == Verdict.DUPLICATE)),
            # READs and atomics, which are answered by what they find.
            self._serves.eq(
                (self._executes | self._again)
                & ((checker.kind == RequestKind.READ) | (checker.kind == RequestKind.ATOMIC))
            ),
            self._configuring.eq(configures(self.config, Table.RX)),
        ]

        # READs and atomics that are still to be answered: those asked for, less those answered.
        asked = QpTable(m, "asked", 5, self._structure)
        answered = QpTable(m, "answered", 5, self._structure)
        count, leaves = asked.read(qp), self._answers.answered
        outstanding = Signal(5)
        m.d.comb += [
            outstanding.eq(count - answered.read(qp)),
            checker.reads_full.eq(outstanding >= self.rx.data.max_reads),
        ]
        asked.write(qp, count + 1, self._taken & self._executes & self._serves)
        answered.write(leaves.qp, answered.read(leaves.qp) + 1, leaves.valid)

    def _receive(self, m, held):
        """Asks for a receive WQE; returns whether the packet waits for one."""
        checker, asked, waits = self._checker, Signal(), Signal()
        m.d.comb += [
            self.take.valid.eq(held & checker.takes & self._beat.first & ~asked),
            self.take.payload.eq(self._qp),
            self.taken.ready.eq(asked & self._taken),
            checker.not_ready.eq(~self.taken.payload.found),
            checker.room.eq(
                Mux(
                    self.taken.payload.room[32:].any(),
                    ~Const(0, 32),
                    self.taken.payload.room[:32],
                )
            ),
            waits.eq(asked & ~self.taken.valid),
        ]
        with m.If(self._taken):
            m.d.sync += asked.eq(0)
        with m.Elif(self.take.valid & self.take.ready):
            m.d.sync += asked.eq(1)
        self._unasked = self.take.valid
        return waits

    def _serve(self, m, held):
        """READs and atomics to those who serve them; returns whether an atomic is waited for."""
        beat, serves, waits, drained = self._beat, self._serves, Signal(), Signal()
        reth = data.View(Reth, beat.ext)
        job, jobs = self._read_server.jobs.payload, self._read_server.jobs
        operation, operations = self._atomic_unit.operations.payload, self._atomic_unit.operations
        results = self._atomic_unit.results
        reads, atomics, begun, fetches = Signal(), Signal(), Signal(), Signal()
        self._forgotten, self._unserved = Signal(), Signal()
        m.d.comb += [
            drained.eq(self._placer.drained & self.settled),
            reads.eq(serves & (self._checker.kind == RequestKind.READ)),
            atomics.eq(serves & (self._checker.kind == RequestKind.ATOMIC)),
            fetches.eq(reads & (reth.length != 0)),
            jobs.valid.eq(self._taken & fetches),
            job.qp.eq(self._qp),
            job.psn.eq(beat.bth.psn),
            job.address.eq(reth.va),
            job.length.eq(reth.length),
            job.mtu_log2.eq(self.rx.data.mtu_log2),
            operations.valid.eq(held & atomics & ~begun & drained),
            operation.opcode.eq(beat.bth.opcode),
            operation.qp.eq(self._qp),
            operation.psn.eq(beat.bth.psn),
            operation.address.eq(reth.va),
            operation.wide.eq(reth.length == 8),
            operation.operands.eq(beat.data),
            operation.replay.eq(self._again),
            operation.kept.eq(self.rx.data.max_reads),
            results.ready.eq(begun & self._taken),
            self._forgotten.eq(atomics & self._again & ~results.payload.found),
            waits.eq(begun & ~results.valid),
            self._unserved.eq((serves & ~drained) | (fetches & ~jobs.ready) | (atomics & ~begun)),
        ]
        m.d.comb += [
            self._atomic_unit.config.valid.eq(self.config.valid),
            self._atomic_unit.config.payload.eq(self.config.payload),
        ]
        with m.If(self._taken):
            m.d.sync += begun.eq(0)
        with m.Elif(operations.valid & operations.ready):
            m.d.sync += begun.eq(1)
        return waits

    def _go(self, m, held, waits):
        """A beat goes on when all that it starts can be started: its placement, its line, what
        serves it, and (a packet ends in order) its answer.
        """
        checker, beat, placer = self._checker, self._beat, self._placer
        self._answers_now, self._empty, self._moves = Signal(), Signal(), Signal()
        self._refuses_send, self._ack_waits = Signal(), Signal()
        carries, blocked = Signal(), Signal()
        m.d.comb += [
            self._empty.eq(beat.length == 0),
            self._answers_now.eq(
                beat.first
                & (
                    (self._serves & ~self._forgotten)
                    | (self._again & ~self._serves & beat.bth.ack_request)
                    | ((checker.verdict == Verdict.AHEAD) & ~self._state.reported)
                    | (checker.verdict == Verdict.INVALID)
                    | (checker.verdict == Verdict.RNR)
                )
            ),
            # Its payload goes to memory.
            carries.eq(Mux(beat.first, self._executes & ~self._serves, self._executing)),
            blocked.eq(
                beat.first
                & (
                    self._configuring
                    | ~placer.i.ready
                    | self._ack_waits
                    | (((self._executes & self._empty) | self._answers_now) & ~placer.empty)
                    | self._unasked
                    | self._unserved
                    | waits
                )
            ),
            placer.pieces.valid.eq(held & carries & ~blocked & ~(beat.first & self._empty)),
            self._taken.eq(
                held
                & Mux(
                    carries,
                    ~blocked & ((beat.first & self._empty) | placer.pieces.ready),
                    # What is only dropped waits for nothing.
                    ~blocked | ~(self._answers_now | self._serves | self._executes | waits),
                )
            ),
            self._moves.eq(self._taken & self._executes),
        ]
        with m.If(self._taken):
            m.d.sync += self._executing.eq(carries)

    def _remember(self, m):
        """State of the connection."""
        checker, beat, state, write = self._checker, self._beat, self._state, self._write
        reth = data.View(Reth, beat.ext)
        context = context_in(self.config, RxContext)
        self._address, self._length, self._msn = Signal(ADDRESS_BITS), Signal(32), Signal(24)
        starts, sends, left = checker.starts, Signal(), Signal(32)
        m.d.comb += [
            sends.eq(checker.kind == RequestKind.SEND),
            self._msn.eq(state.msn + (self._executes & checker.ends)),
            self._address.eq(Mux(starts, reth.va, state.address)),
            left.eq(Mux(starts, Mux(sends, checker.room, reth.length), state.left)),
            self._length.eq(
                Mux(
                    sends,
                    Mux(starts, 0, state.length) + beat.length,
                    Mux(starts, reth.length, state.length),
                )
            ),
            write.addr.eq(self._qp),
            write.en.eq(self._moves | (self._taken & self._answers_now)),
        ]
        with m.If(self._configuring):
            m.d.comb += [
                write.en.eq(1),
                write.addr.eq(self.config.payload.index),
                write.data.expected_psn.eq(context.expected_psn),
                write.data.msn.eq(context.start_msn),
            ]
        with m.Elif(self._executes):
            m.d.comb += [
                write.data.expected_psn.eq(state.expected_psn + checker.packets),
                write.data.msn.eq(self._msn),
                write.data.address.eq(self._address + beat.length),
                write.data.length.eq(self._length),
                write.data.left.eq(left - beat.length),
                write.data.in_message.eq(~checker.ends),
                write.data.in_send.eq(sends),
            ]
        with m.Else():
            m.d.comb += [
                write.data.eq(state),
                write.data.reported.eq(
                    state.reported
                    | (checker.verdict == Verdict.AHEAD)
                    | (checker.verdict == Verdict.RNR)
                ),
                write.data.failed.eq(checker.verdict == Verdict.INVALID),
            ]

    def _place(self, m, held):
        """What a packet leaves in memory, and the receive WQE that it completes."""
        checker, beat, placer = self._checker, self._beat, self._placer
        placement, write, piece = placer.i.payload, placer.i.payload.write, placer.pieces.payload
        atomic, operation = self._atomic_unit.written, self._atomic_unit.operations.payload
        sends, completes, refused = Signal(), Signal(), Signal()
        m.d.comb += [
            sends.eq(checker.kind == RequestKind.SEND),
            completes.eq(checker.ends & (sends | checker.immediate)),
            # A SEND that ends here has a WQE: this packet's, or that of its message.
            refused.eq(
                self._taken
                & beat.first
                & (checker.verdict == Verdict.INVALID)
                & (checker.takes | (self._state.in_message & self._state.in_send))
            ),
            placer.i.valid.eq((self._moves & ~self._serves & (~self._empty | completes)) | refused),
            placement.qp.eq(self._qp),
            placement.scatter.eq(sends),
            placement.completes.eq(completes),
            placement.received.eq(
                Mux(
                    sends,
                    Mux(checker.immediate, Received.SEND_IMM, Received.SEND),
                    Received.WRITE_IMM,
                )
            ),
            placement.imm.eq(beat.imm),
            placement.solicited.eq(beat.bth.solicited),
            placement.message_length.eq(self._length),
            write.address.eq(self._address),
            write.length.eq(beat.length),
            write.mark.kind.eq(Mux(checker.ends, MarkKind.PAYLOAD_LAST, MarkKind.PAYLOAD)),
            write.mark.qp.eq(self._qp),
            write.mark.index.eq(beat.bth.psn),
            placer.start.eq(Mux(sends, 0, self._address[:6])),
            piece.data.eq(beat.data),
            piece.count.eq(beat.count),
            piece.last.eq(beat.last),
        ]
        with m.If(refused):
            m.d.comb += [
                placement.scatter.eq(1),
                placement.completes.eq(1),
                placement.received.eq(Received.SEND),
                placement.status.eq(Status.LOCAL_LENGTH),
                write.length.eq(0),
            ]

        # An atomic's bytes; its packet is still held.
        connect(m, atomic, placer.single)
        with m.If(atomic.valid):
            m.d.comb += [
                placer.i.valid.eq(1),
                placement.completes.eq(0),
                write.address.eq(operation.address),
                write.length.eq(atomic.payload.count),
            ]

    def _answer(self, m):
        """The answer starts when the packet's last line has been handed over; what leaves nothing
        in memory is answered at once. Returns whether one is about to go.
        """
        checker, beat, state = self._checker, self._beat, self._state
        answer, wanted, pending = Signal(Answer), Signal(), Signal()
        now, results = Signal(), self._atomic_unit.results
        m.d.comb += [
            now.eq(self._taken & self._answers_now),
            self._answers.latency.eq(self.timing.tx),
            self._answers.now.eq(self.now),
            self._answers.i.valid.eq(pending),
            self._answers.i.payload.eq(answer),
            self._ack_waits.eq(pending & ~self._answers.i.ready),
        ]
        with m.If(self._moves | now):
            m.d.sync += [
                answer.kind.eq(AnswerKind.ACK),
                answer.qp.eq(self._qp),
                answer.peer_qpn.eq(self.rx.data.peer_qpn),
                answer.peer_node.eq(self.rx.data.peer_node),
                answer.port.eq(self.rx.data.port),
                answer.psn.eq(beat.bth.psn),
                answer.msn.eq(self._msn),
                answer.syndrome.eq(ACK_SYNDROME),
                answer.counted.eq(self._executes & self._serves),
                answer.length.eq(data.View(Reth, beat.ext).length),
                answer.mtu_log2.eq(self.rx.data.mtu_log2),
                answer.original.eq(results.payload.original),
                wanted.eq(beat.bth.ack_request),
            ]
            with m.If(self._serves):
                m.d.sync += answer.kind.eq(
                    Mux(checker.kind == RequestKind.READ, AnswerKind.READ, AnswerKind.ATOMIC)
                )
            with m.Elif(self._again):
                m.d.sync += answer.psn.eq(state.expected_psn - 1)
            with m.Switch(checker.verdict):
                with m.Case(Verdict.AHEAD):
                    m.d.sync += [
                        answer.psn.eq(state.expected_psn),
                        answer.syndrome.eq(_nak(NakCode.SEQUENCE)),
                    ]
                with m.Case(Verdict.INVALID):
                    m.d.sync += answer.syndrome.eq(_nak(NakCode.INVALID_REQUEST))
                with m.Case(Verdict.RNR):
                    m.d.sync += answer.syndrome.eq(Cat(self.rx.data.rnr_timer, AethClass.RNR))

        done = Signal()
        m.d.comb += done.eq(
            (self._moves & ~self._serves & self._empty) | now | self._placer.finished
        )
        with m.If(done):
            m.d.sync += pending.eq(now | Mux(self._moves, beat.bth.ack_request, wanted))
        with m.Elif(self._answers.i.ready):
            m.d.sync += pending.eq(0)
        return pending
