"""mlx5 WQEs into operations, pieces and landings (decision 6)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats import mlx5
from .formats.events import EventKind, Stall, StallCause
from .formats.layout import lanes
from .formats.op import Landing, Op, Piece, Resume, Status, Verb
from .lib.delay import NOW_BITS
from .lib.rate import RateMeter
from .lib.stream import connect, skid
from .lib.trace import Probe, StallMeter
from .qp_table import QpTable
from .units import ITEM_FRACTION
from .wqe_intake import WqeBlock
from .wqe_segments import DataSegment, WqeKind, decode_kind

__all__ = ["WqeDecoder"]

#: Lane of an atomic's operands in their block, behind control and remote address segment.
_OPERANDS_LANE = 32


class WqeDecoder(wiring.Component):
    """Collects the blocks of each WQE and decodes WQEs in the order in which they become whole.

    docs/verbs.md says which segments a verb has. Data segments, and inline segments where the verb
    sends bytes, follow up to `ds` octowords; a data segment of 0 bytes contributes nothing and,
    with key 0x100, ends the list. The operands of an atomic are one inline piece. A WQE that cannot
    be executed gets a status, length 0, no pieces and no landings. It is LOCAL_QP_OPERATION for an
    unknown opcode (or `opmod` of a masked atomic), ds 0, a `ds` that ends before the data segments
    begin, more than `wqe_blocks` blocks, inline data beyond its end or where the verb sends none,
    and 4 GiB or more; LOCAL_LENGTH for an atomic whose data segments have not just the 4 or 8 bytes
    that it returns, and for more inline bytes than `max_inline`. Reserved bits are not looked at.

    Of a WQE that is executed again, the bytes of the packets that are already acknowledged are left
    out: whole pieces or landings, and the start of one. A WQE of a QP in error is not executed: it
    gets the status FLUSHED.

    A WQE is walked twice, segment by segment: the first walk checks it and sums its length, the
    second emits.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    blocks : In(stream of `WqeBlock`)
        Blocks of one QP in order; those of several QPs in any mixture.
    ops : Out(stream of `Op`)
        One for each WQE, offered no later than its first piece or landing.
    pieces : Out(stream of `Piece`)
        Pieces of all WQEs, in the order of `ops`. Inline pieces lie within one line; `data` is
        their block.
    landings : Out(stream of `Landing`)
        Landings of all WQEs, in the order of `ops`.
    now : In
        Cycle number.
    total_interval : In(24)
        Cycles per WQE (fixed point), 0 for no ceiling.
    max_inline : In(10)
        Most inline bytes of a WQE; 0: any number.
    resume : In(`valid`, `payload`: Resume)
        The next WQE of that QP is executed again, but for the packets to be skipped.
    asked_qp : Out(12), failed : In(1)
        Look-up: whether a QP is in error (combinational).
    quiet : Out(1)
        Nothing is held but parts of WQEs.
    ctrl, raddr, data : Out(`mlx5.Ctrl`, `mlx5.Raddr`, `mlx5.Data`)
        For waveforms: the segments under the walk.
    on_stall_rate : Out(Probe)
        Cycles in which only the ceiling held an operation back.

    Timing
    ------
    A block that does not end its WQE takes 1 cycle. A block that ends it takes 1 cycle for each
    segment in the first walk and 1 for each segment or inline line in the second: 2 cycles for the
    usual WQE with one segment in one block. The operands of an atomic count as a segment. Op and
    first piece are offered 2 cycles after the last block of such a WQE was offered. The ceiling is
    met exactly on average while there is work.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "blocks": In(stream.Signature(WqeBlock)),
                "ops": Out(stream.Signature(Op)),
                "pieces": Out(stream.Signature(Piece)),
                "landings": Out(stream.Signature(Landing)),
                "now": In(NOW_BITS),
                "total_interval": In(24),
                "max_inline": In(10),
                "resume": In(wiring.Signature({"valid": Out(1), "payload": Out(Resume)})),
                "asked_qp": Out(12),
                "failed": In(1),
                "quiet": Out(1),
                "ctrl": Out(mlx5.Ctrl),
                "raddr": Out(mlx5.Raddr),
                "data": Out(mlx5.Data),
                "on_stall_rate": Out(Probe(EventKind.STALL, Stall)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.op_queue = self._ops = skid(Op)
        m.submodules.piece_queue = self._pieces = skid(Piece)
        m.submodules.landing_queue = self._landings = skid(Landing)
        connect(m, self._ops.o, self.ops)
        connect(m, self._pieces.o, self.pieces)
        connect(m, self._landings.o, self.landings)

        # Where the walk stands: `fresh`, or at `octoword`, or (`inside`) within inline data that
        # began in an earlier block. `emitting`: it is the second.
        head = self.blocks.payload
        self._emitting, self._fresh = Signal(), Signal(init=1)
        self._inside, self._octoword = Signal(), Signal(6)
        self._whole = Signal()
        m.d.comb += self._whole.eq(self.blocks.valid & head.last)
        block = self._collect(m, head, Mux(self._fresh, 0, self._octoword[2:]))
        self._ctrl, self._raddr = lanes(mlx5.Ctrl, block, 0), lanes(mlx5.Raddr, block, 16)

        # What its control segment says is kept for the blocks behind.
        decoded, kept = decode_kind(m, self._ctrl), Signal(WqeKind)
        self._kind = kind = Signal(WqeKind)
        m.d.comb += kind.eq(Mux(self._fresh, decoded, kept))
        with m.If(self._whole & self._fresh):
            m.d.sync += kept.eq(decoded)

        # The segment there; an atomic's operands are the first.
        place, self._next = Signal(6), Signal(7)
        self._at_operands = Signal()
        m.d.comb += [
            place.eq(Mux(self._fresh, 1 + kind.addressed, self._octoword)),
            self._at_operands.eq(self._fresh & (kind.operands != 0)),
        ]
        self._segment = segment = DataSegment(m, block, place[:2])
        m.d.comb += [
            self._next.eq(place + Mux(self._at_operands, kind.operands, segment.octowords)),
            self.ctrl.eq(self._ctrl),
            self.raddr.eq(self._raddr),
            self.data.eq(segment.fields),
        ]

        # Registers that the first walk leaves to the second: bytes still to be emitted, those of
        # them that are to be left out, and what is wrong with the WQE.
        self._bytes_left, self._dropping, self._status = Signal(32), Signal(32), Signal(Status)
        self._blocks = Signal(5)
        m.d.comb += self._blocks.eq(Mux(head.ds == 0, 1, mlx5.blocks_of(head.ds)))
        self._skip = self._skips(m, head)
        self._check(m, head)
        self._emit(m, head, block)
        return m

    def _check(self, m, head):
        """The first walk."""
        kind, segment = self._kind, self._segment
        malformed, nothing, ends = Signal(), Signal(), Signal()
        is_nop = kind.verb == Verb.NOP
        count, summed, skipped, changed = Signal(31), Signal(33), Signal(32), Signal()
        m.d.comb += [
            malformed.eq(
                self._fresh
                & (
                    (head.ds == 0)
                    | (self._blocks > self._structure.wqe_blocks)
                    | ~kind.known
                    | (~is_nop & (head.ds < 1 + kind.addressed + kind.operands))
                )
            ),
            nothing.eq(
                self._fresh & (is_nop | ((head.ds == 1 + kind.addressed) & (kind.operands == 0)))
            ),
            ends.eq((~self._at_operands & segment.ends_list) | (self._next >= head.ds)),
            count.eq(Mux(self._at_operands, 0, segment.byte_count)),
            summed.eq(self._bytes_left + count),
            skipped.eq(self._skip << head.mtu_log2),
            # Software has written another WQE where one is to be executed again.
            changed.eq(ends & (self._skip != 0) & (skipped >= summed)),
        ]
        inline, inlined, inlining = Signal(), Signal(10), Signal(32)
        misplaced, unfit = Signal(), Signal()
        m.d.comb += [
            inline.eq(segment.inline & ~self._at_operands),
            misplaced.eq(
                inline & ((segment.byte_count > 1008) | (self._next > head.ds) | ~kind.inlines)
            ),
            inlining.eq(inlined + Mux(inline, segment.byte_count, 0)),
            unfit.eq(
                (ends & (kind.atomic_bytes != 0) & (summed != kind.atomic_bytes))
                | ((self.max_inline != 0) & (inlining > self.max_inline))
            ),
        ]
        refused, over = Signal(), Signal()
        m.d.comb += [
            refused.eq(malformed | (~nothing & (misplaced | summed[32] | changed))),
            over.eq(self.failed | refused | nothing | unfit),
        ]
        with m.If(self._whole & ~self._emitting):
            m.d.sync += [
                self._bytes_left.eq(Mux(over, 0, summed)),
                self._dropping.eq(Mux(over, 0, skipped)),
                self._emitting.eq(over | ends),
                self._fresh.eq(over | ends),
                self._octoword.eq(self._next),
                inlined.eq(Mux(over | ends, 0, inlining)),
                self._status.eq(Status.SUCCESS),
            ]
            with m.If(self.failed):
                m.d.sync += self._status.eq(Status.FLUSHED)
            with m.Elif(refused):
                m.d.sync += self._status.eq(Status.LOCAL_QP_OPERATION)
            with m.Elif(~nothing & unfit):
                m.d.sync += self._status.eq(Status.LOCAL_LENGTH)

    def _emit(self, m, head, block):
        """The second walk: the operation goes with its first step, if the ceiling allows."""
        m.submodules.rate = rate = RateMeter(ITEM_FRACTION, 24)
        m.submodules.stall = stall = StallMeter(StallCause.TOTAL_RATE)
        wiring.connect(m, stall.event, wiring.flipped(self.on_stall_rate))
        ops, pieces, landings = self._ops.i, self._pieces.i, self._landings.i
        kind, segment, inside = self._kind, self._segment, self._inside
        bytes_left, dropping = self._bytes_left, self._dropping

        # Inline data is cut at the ends of blocks.
        inline_left, run, lane, room = Signal(10), Signal(10), Signal(6), Signal(7)
        length, spills, last = Signal(32), Signal(), Signal()
        is_inline = inside | segment.inline
        m.d.comb += [
            lane.eq(Mux(inside, 0, segment.lane + 4)),
            room.eq(64 - lane),
            run.eq(Mux(inside, inline_left, segment.byte_count)),
            spills.eq(is_inline & (run > room)),
            length.eq(Mux(spills, room, Mux(inside, inline_left, segment.byte_count))),
            last.eq(length == bytes_left),
        ]

        emits, has_room, fires = Signal(), Signal(), Signal()
        op_due, operands_due, part_due, part_goes = Signal(), Signal(), Signal(), Signal()
        piece_due, landing_due = Signal(), Signal()
        m.d.comb += [
            emits.eq(self._whole & self._emitting),
            op_due.eq(emits & self._fresh),
            operands_due.eq(emits & self._at_operands & (bytes_left != 0)),
            part_due.eq(
                emits
                & ~self._at_operands
                & (bytes_left != 0)
                & (inside | (segment.byte_count != 0))
            ),
            part_goes.eq(part_due & (dropping < length)),
            piece_due.eq(operands_due | (part_goes & ~kind.lands)),
            landing_due.eq(part_goes & kind.lands),
            has_room.eq(
                (~op_due | ops.ready)
                & (~piece_due | pieces.ready)
                & (~landing_due | landings.ready)
            ),
            fires.eq(has_room & (~op_due | rate.open)),
            ops.valid.eq(op_due & fires),
            pieces.valid.eq(piece_due & fires),
            landings.valid.eq(landing_due & fires),
            stall.stalled.eq(op_due & has_room & ~rate.open),
            rate.now.eq(self.now),
            rate.cost.eq(self.total_interval),
            rate.charge.eq(op_due & fires),
            self._op_leaves.eq(op_due & fires),
        ]
        self._fill_op(m, head, ops.payload)
        self._fill_piece(m, head, block, pieces.payload, is_inline, lane, length, last)
        landing = landings.payload
        m.d.comb += [
            landing.qp.eq(head.qp),
            landing.wqe_index.eq(head.wqe_index),
            landing.address.eq(segment.address + dropping),
            landing.lkey.eq(segment.lkey),
            landing.length.eq(length - dropping),
            landing.last.eq(last),
        ]

        finished = Signal()
        m.d.comb += finished.eq(emits & fires & ((bytes_left == 0) | (part_due & last)))
        with m.If(finished):
            m.d.sync += [self._emitting.eq(0), self._fresh.eq(1), inside.eq(0), bytes_left.eq(0)]
        with m.Elif(emits & fires):
            with m.If(part_due):
                m.d.sync += [
                    bytes_left.eq(bytes_left - length),
                    dropping.eq(Mux(part_goes, 0, dropping - length)),
                ]
            m.d.sync += [
                self._fresh.eq(0),
                inside.eq(spills & ~self._at_operands),
                inline_left.eq(run - room),
            ]
            with m.If(self._at_operands | ~(spills | inside)):
                m.d.sync += self._octoword.eq(self._next)
            with m.Elif(spills):
                # On to the start of the next block.
                octoword = Mux(self._fresh, 0, self._octoword[2:])
                m.d.sync += self._octoword.eq(Cat(Const(0, 2), (octoword + 1)[:4]))
            with m.Else():
                m.d.sync += self._octoword.eq(self._octoword + ((inline_left + 15) >> 4))

        # A block is done with when it is stored, or its WQE is finished.
        queues = (self._ops, self._pieces, self._landings)
        m.d.comb += [
            self.blocks.ready.eq(~head.last | finished),
            self.quiet.eq(
                ~self.blocks.valid
                & Cat(*(queue.empty for queue in queues)).all()
                & ~stall.event.valid
            ),
        ]

    def _fill_op(self, m, head, op):
        kind, ctrl = self._kind, self._ctrl
        m.d.comb += [
            op.verb.eq(kind.verb),
            op.qp.eq(head.qp),
            op.wqe_index.eq(head.wqe_index),
            op.blocks.eq(self._blocks),
            # Completion always (2), or completion and event (3).
            op.signaled.eq(ctrl.fm_ce_se[3]),
            op.solicited.eq(ctrl.fm_ce_se[1]),
            op.fence.eq(kind.fence),
            op.length.eq(self._bytes_left),
            op.imm.eq(Mux(kind.has_imm, ctrl.imm, 0)),
            op.skip.eq(Mux(self._bytes_left != 0, self._skip, 0)),
            op.raddr.eq(Mux(kind.addressed, self._raddr.raddr, 0)),
            op.rkey.eq(Mux(kind.addressed, self._raddr.rkey, 0)),
            op.vendor_opcode.eq(ctrl.opcode),
            op.status.eq(self._status),
        ]

    def _fill_piece(self, m, head, block, piece, is_inline, lane, length, last):
        kind, segment, dropping = self._kind, self._segment, self._dropping
        m.d.comb += [
            piece.inline.eq(is_inline),
            piece.address.eq(Mux(is_inline, lane, segment.address) + dropping),
            piece.lkey.eq(Mux(is_inline, 0, segment.lkey)),
            piece.length.eq(length - dropping),
            piece.last.eq(last),
            piece.fence.eq(kind.fence),
            piece.mtu_log2.eq(head.mtu_log2),
            piece.qp.eq(head.qp),
            piece.wqe_index.eq(head.wqe_index),
            piece.data.eq(block),
        ]
        with m.If(self._at_operands):
            m.d.comb += [
                piece.inline.eq(1),
                piece.address.eq(_OPERANDS_LANE),
                piece.lkey.eq(0),
                piece.length.eq(16 * kind.operands),
                piece.last.eq(1),
            ]

    def _skips(self, m, head):
        """Packets that the WQE at work is to leave out; none once its operation is out."""
        skips = QpTable(m, "skips", 24, self._structure)
        again = self.resume.payload
        skips.write(again.qp, Mux(again.again, again.skip, 0), self.resume.valid)
        self._op_leaves = Signal()
        skips.write(head.qp, 0, self._op_leaves)
        m.d.comb += self.asked_qp.eq(head.qp)
        return skips.read(head.qp)

    def _collect(self, m, head, number):
        """Stores blocks until their WQE is whole; returns block `number` of it."""
        depth = self._structure.wqe_blocks
        bits = (depth - 1).bit_length()
        m.submodules.parts = parts = memory.Memory(
            shape=512, depth=self._structure.qps * depth, init=[]
        )
        write, read = parts.write_port(), parts.read_port(domain="comb")
        qp = head.qp[: self._structure.qp_bits]
        block = Signal(512)
        m.d.comb += [
            write.addr.eq(Cat(head.block[:bits], qp)),
            write.data.eq(head.data),
            write.en.eq(self.blocks.valid & ~head.last & (head.block < depth)),
            read.addr.eq(Cat(number[:bits], qp)),
            block.eq(Mux(number == head.block, head.data, read.data)),
        ]
        return block
