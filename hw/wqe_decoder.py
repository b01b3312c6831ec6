"""mlx5 WQEs into operations and pieces (decision 6)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats import mlx5
from .formats.events import EventKind, Stall, StallCause
from .formats.layout import lanes, reverse_bytes
from .formats.op import Op, Piece, Resume, Status, Verb
from .lib.delay import NOW_BITS
from .lib.rate import RateMeter
from .lib.stream import connect, skid
from .lib.trace import Probe, StallMeter
from .qp_table import QpTable
from .units import ITEM_FRACTION
from .wqe_intake import WqeBlock

__all__ = ["WqeDecoder"]

#: Key of a data segment of 0 bytes that ends the list.
_END_OF_LIST_KEY = 0x100


class WqeDecoder(wiring.Component):
    """Collects the blocks of each WQE and decodes WQEs in the order in which they become whole.

    NOP and WRITE are known. A WRITE has a control and a remote address segment, then data segments
    and inline segments up to `ds` octowords; a data segment of 0 bytes contributes nothing and,
    with key 0x100, ends the list. A WQE with another opcode, with ds 0, a WRITE with ds 1, one of
    more than `wqe_blocks` blocks, with inline data beyond its end, or of 4 GiB or more gets the
    status LOCAL_QP_OPERATION, length 0 and no pieces. Reserved bits are not looked at.

    Of a WQE that is executed again, the bytes of the packets that are already acknowledged are left
    out: whole pieces, and the start of one. A WQE of a QP in error is not executed: it gets the
    status FLUSHED.

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
        One for each WQE, offered no later than its first piece.
    pieces : Out(stream of `Piece`)
        Pieces of all WQEs, in the order of `ops`. Inline pieces lie within one line; `data` is
        their block.
    now : In
        Cycle number.
    total_interval : In(24)
        Cycles per WQE (fixed point), 0 for no ceiling.
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
    usual WQE with one segment in one block. Op and first piece are offered 2 cycles after the last
    block of such a WQE was offered. The ceiling is met exactly on average while there is work.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "blocks": In(stream.Signature(WqeBlock)),
                "ops": Out(stream.Signature(Op)),
                "pieces": Out(stream.Signature(Piece)),
                "now": In(NOW_BITS),
                "total_interval": In(24),
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
        m.submodules.op_queue = op_queue = skid(Op)
        m.submodules.piece_queue = piece_queue = skid(Piece)
        m.submodules.rate = rate = RateMeter(ITEM_FRACTION, 24)
        m.submodules.stall = stall = StallMeter(StallCause.TOTAL_RATE)
        connect(m, op_queue.o, self.ops)
        connect(m, piece_queue.o, self.pieces)
        wiring.connect(m, stall.event, wiring.flipped(self.on_stall_rate))

        # `emitting`: the second walk; `octoword` is where the walk stands; `inside`: within inline
        # data that began in an earlier block.
        head = self.blocks.payload
        emitting, inside = Signal(), Signal()
        octoword = Signal(6, init=2)
        whole = Signal()
        m.d.comb += whole.eq(self.blocks.valid & head.last)

        block = self._collect(m, head, octoword)
        segment = _Segment(m, block, octoword)
        ctrl, raddr = lanes(mlx5.Ctrl, block, 0), lanes(mlx5.Raddr, block, 16)
        m.d.comb += [self.ctrl.eq(ctrl), self.raddr.eq(raddr), self.data.eq(segment.fields)]
        blocks = Signal(5)
        m.d.comb += blocks.eq(Mux(head.ds == 0, 1, mlx5.blocks_of(head.ds)))

        # Registers that the first walk leaves to the second: bytes still to be emitted, those of
        # them that are to be left out, and what is wrong with the WQE.
        bytes_left, dropping, status = Signal(32), Signal(32), Signal(Status)
        skip = self._skips(m, head)
        at_start = Signal()
        m.d.comb += at_start.eq((octoword == 2) & ~inside)

        # First walk.
        checking = whole & ~emitting
        malformed, nothing, ends = Signal(), Signal(), Signal()
        is_write = ctrl.opcode == mlx5.WqeOpcode.WRITE
        is_nop = ctrl.opcode == mlx5.WqeOpcode.NOP
        summed, skipped, changed = Signal(33), Signal(32), Signal()
        next_octoword = Signal(7)
        m.d.comb += [
            malformed.eq(
                at_start
                & (
                    (head.ds == 0)
                    | (blocks > self._structure.wqe_blocks)
                    | ~(is_write | is_nop)
                    | (is_write & (head.ds < 2))
                )
            ),
            nothing.eq(at_start & (is_nop | (head.ds == 2))),
            next_octoword.eq(octoword + segment.octowords),
            ends.eq(segment.ends_list | (next_octoword >= head.ds)),
            summed.eq(bytes_left + segment.byte_count),
            skipped.eq(skip << head.mtu_log2),
            # Software has written another WQE where one is to be executed again.
            changed.eq(ends & (skip != 0) & (skipped >= summed)),
        ]
        beyond = Signal()
        m.d.comb += beyond.eq(
            segment.inline & ((segment.byte_count > 1008) | (next_octoword > head.ds))
        )
        with m.If(checking):
            with m.If(self.failed | malformed | nothing | beyond | summed[32] | changed):
                m.d.sync += [
                    bytes_left.eq(0),
                    dropping.eq(0),
                    emitting.eq(1),
                    octoword.eq(2),
                ]
                with m.If(self.failed):
                    m.d.sync += status.eq(Status.FLUSHED)
                with m.Elif(malformed | ~nothing):
                    m.d.sync += status.eq(Status.LOCAL_QP_OPERATION)
                with m.Else():
                    m.d.sync += status.eq(Status.SUCCESS)
            with m.Else():
                m.d.sync += [
                    status.eq(Status.SUCCESS),
                    bytes_left.eq(summed),
                    dropping.eq(skipped),
                    emitting.eq(ends),
                    octoword.eq(Mux(ends, 2, next_octoword)),
                ]

        # Second walk: the operation goes with its first step, if the ceiling allows.
        op_due, part_due, piece_due, fires = Signal(), Signal(), Signal(), Signal()
        has_room, length = Signal(), Signal(32)
        m.d.comb += [
            op_due.eq(whole & emitting & at_start),
            part_due.eq(
                whole & emitting & (bytes_left != 0) & (inside | (segment.byte_count != 0))
            ),
            piece_due.eq(part_due & (dropping < length)),
            has_room.eq((~op_due | op_queue.i.ready) & (~piece_due | piece_queue.i.ready)),
            fires.eq(has_room & (~op_due | rate.open)),
            op_queue.i.valid.eq(op_due & fires),
            piece_queue.i.valid.eq(piece_due & fires),
            stall.stalled.eq(op_due & has_room & ~rate.open),
            rate.now.eq(self.now),
            rate.cost.eq(self.total_interval),
            rate.charge.eq(op_due & fires),
            self._op_leaves.eq(op_due & fires),
        ]

        op = op_queue.i.payload
        m.d.comb += [
            op.verb.eq(Mux(is_write, Verb.WRITE, Verb.NOP)),
            op.qp.eq(head.qp),
            op.wqe_index.eq(head.wqe_index),
            op.blocks.eq(blocks),
            # Completion always (2), or completion and event (3).
            op.signaled.eq(ctrl.fm_ce_se[3]),
            op.solicited.eq(ctrl.fm_ce_se[1]),
            op.length.eq(bytes_left),
            op.skip.eq(Mux(bytes_left != 0, skip, 0)),
            op.raddr.eq(Mux(is_write, raddr.raddr, 0)),
            op.rkey.eq(Mux(is_write, raddr.rkey, 0)),
            op.vendor_opcode.eq(ctrl.opcode),
            op.status.eq(status),
        ]

        # Inline data is cut at the ends of blocks.
        inline_left, run, lane = Signal(10), Signal(10), Signal(6)
        room = Signal(7)
        spills, last = Signal(), Signal()
        is_inline = inside | segment.inline
        m.d.comb += [
            lane.eq(Mux(inside, 0, segment.lane + 4)),
            room.eq(64 - lane),
            run.eq(Mux(inside, inline_left, segment.byte_count)),
            spills.eq(is_inline & (run > room)),
            length.eq(Mux(spills, room, Mux(inside, inline_left, segment.byte_count))),
            last.eq(length == bytes_left),
        ]
        piece = piece_queue.i.payload
        m.d.comb += [
            piece.inline.eq(is_inline),
            piece.address.eq(Mux(is_inline, lane, segment.address) + dropping),
            piece.lkey.eq(Mux(is_inline, 0, segment.lkey)),
            piece.length.eq(length - dropping),
            piece.last.eq(last),
            piece.mtu_log2.eq(head.mtu_log2),
            piece.qp.eq(head.qp),
            piece.wqe_index.eq(head.wqe_index),
            piece.data.eq(block),
        ]

        finished = Signal()
        m.d.comb += finished.eq(whole & emitting & fires & ((bytes_left == 0) | (part_due & last)))
        with m.If(finished):
            m.d.sync += [emitting.eq(0), inside.eq(0), octoword.eq(2), bytes_left.eq(0)]
        with m.Elif(whole & emitting & fires):
            with m.If(part_due):
                m.d.sync += [
                    bytes_left.eq(bytes_left - length),
                    dropping.eq(Mux(piece_due, 0, dropping - length)),
                ]
            m.d.sync += [inside.eq(spills), inline_left.eq(run - room)]
            with m.If(spills):
                # On to the start of the next block.
                m.d.sync += octoword.eq(Cat(Const(0, 2), (octoword[2:] + 1)[:4]))
            with m.Elif(inside):
                m.d.sync += octoword.eq(octoword + ((inline_left + 15) >> 4))
            with m.Else():
                m.d.sync += octoword.eq(next_octoword)

        # A block is done with when it is stored, or its WQE is finished.
        m.d.comb += [
            self.blocks.ready.eq(~head.last | finished),
            self.quiet.eq(
                ~self.blocks.valid & op_queue.empty & piece_queue.empty & ~stall.event.valid
            ),
        ]
        return m

    def _skips(self, m, head):
        """Packets that the WQE at work is to leave out; none once its operation is out."""
        skips = QpTable(m, "skips", 24, self._structure)
        again = self.resume.payload
        skips.write(again.qp, Mux(again.again, again.skip, 0), self.resume.valid)
        self._op_leaves = Signal()
        skips.write(head.qp, 0, self._op_leaves)
        m.d.comb += self.asked_qp.eq(head.qp)
        return skips.read(head.qp)

    def _collect(self, m, head, octoword):
        """Stores blocks until their WQE is whole; returns the block in which `octoword` lies."""
        depth = self._structure.wqe_blocks
        bits = (depth - 1).bit_length()
        m.submodules.parts = parts = memory.Memory(
            shape=512, depth=self._structure.qps * depth, init=[]
        )
        write, read = parts.write_port(), parts.read_port(domain="comb")
        qp = head.qp[: self._structure.qp_bits]
        number = octoword[2:]
        block = Signal(512)
        m.d.comb += [
            write.addr.eq(Cat(head.block[:bits], qp)),
            write.data.eq(head.data),
            write.en.eq(self.blocks.valid & ~head.last & (head.block < depth)),
            read.addr.eq(Cat(number[:bits], qp)),
            block.eq(Mux(number == head.block, head.data, read.data)),
        ]
        return block


class _Segment:
    """The segment that begins at an octoword of a block, read as data or inline segment.

    Attributes: `fields` as a data segment, `inline`, `byte_count`, `lkey`, `address`, `lane` of its
    first byte, `octowords` it takes, `ends_list`.
    """

    def __init__(self, m, block, octoword):
        raw = Signal(128)
        with m.Switch(octoword[:2]):
            for place in range(4):
                with m.Case(place):
                    m.d.comb += raw.eq(block[128 * place : 128 * (place + 1)])
        self.fields = fields = mlx5.Data(reverse_bytes(raw))
        self.inline, self.byte_count = Signal(), Signal(31)
        self.lkey, self.address = fields.lkey, fields.address
        self.lane = Cat(Const(0, 4), octoword[:2])
        self.octowords, self.ends_list = Signal(7), Signal()
        m.d.comb += [
            self.inline.eq(fields.byte_count[31]),
            self.byte_count.eq(fields.byte_count[:31]),
            self.octowords.eq(Mux(self.inline, (self.byte_count[:10] + 4 + 15) >> 4, 1)),
            self.ends_list.eq(
                ~self.inline & (self.byte_count == 0) & (self.lkey == _END_OF_LIST_KEY)
            ),
        ]
