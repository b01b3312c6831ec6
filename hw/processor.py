"""A processor's port into the node: software's stores and loads become memory writes and TLPs."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .formats.command import Command, Operation
from .formats.tlp import ADDRESS_BITS, CompletionBeat, PostedBeat, ReadBeat, claims
from .lib.align import rotate_right_bytes

__all__ = ["Processor", "Response"]

TAGS = 64


class Response(wiring.Signature):
    """The answer to a load; taken in the cycle in which `valid` is high.

    Members
    -------
    valid : Out(1)
    token : Out(64)
        That of the load.
    data : Out(512)
        The bytes, the first in bits 7:0; bits beyond the load's length are undefined.
    """

    def __init__(self):
        super().__init__({"valid": Out(1), "token": Out(64), "data": Out(512)})


class Processor(wiring.Component):
    """Executes stores and loads in order: to its own memory beside the fabric, else as TLPs.

    Parameters
    ----------
    port : Port
        Whose processor it is: HOST or GPU.

    Members
    -------
    commands : In(stream of `Command`)
        A store may have any address. A load must not cross a 64-byte line, nor name the processor's
        own memory (software reads that without a command); the issuer checks both.
    completions : In(stream of `CompletionBeat`)
        Answers to `reads`; of one beat each, since a load lies within one line.
    stores : Out(stream of `PostedBeat`)
        Stores to the own memory (`formats.tlp.claims`).
    posted, reads : Out(streams of `PostedBeat`, `ReadBeat`)
        Stores and loads elsewhere. A store is one TLP, or two if it crosses 4 KiB.
    response : Out(Response)
        In the cycle in which a completion came.
    quiet : Out(1)

    Timing
    ------
    Combinational from `commands` to the outputs and from `completions` to `response`.
    One command per cycle; a store that crosses a line takes two. A command that is not taken blocks
    those behind it. Loads use 64 tags in turn; a load whose tag is still out waits.
    """

    def __init__(self, port):
        self._port = port
        super().__init__(
            {
                "commands": In(stream.Signature(Command)),
                "completions": In(stream.Signature(CompletionBeat)),
                "stores": Out(stream.Signature(PostedBeat)),
                "posted": Out(stream.Signature(PostedBeat)),
                "reads": Out(stream.Signature(ReadBeat)),
                "response": Out(Response()),
                "quiet": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        command = self.commands.payload

        # Stores: byte 0 goes to the lane of the address; what does not fit goes into a second beat.
        lane, in_line, second = Signal(6), Signal(7), Signal()
        crosses, new_tlp = Signal(), Signal()
        next_line = Signal(ADDRESS_BITS)
        m.d.comb += [
            lane.eq(command.address),
            in_line.eq(64 - lane),
            crosses.eq(command.length > in_line),
            new_tlp.eq(crosses & command.address[6:12].all()),
            next_line.eq(Cat(Const(0, 6), (command.address[6:] + 1)[: ADDRESS_BITS - 6])),
        ]
        right = Signal(6)
        m.d.comb += right.eq(-lane)
        line = rotate_right_bytes(m, command.data, right, "line", when=self.commands.valid)
        for port in (self.stores, self.posted):
            beat = port.payload
            m.d.comb += [
                beat.data.eq(line),
                beat.address.eq(Mux(second, next_line, command.address)),
                beat.count.eq(
                    Mux(second, command.length - in_line, Mux(crosses, in_line, command.length))
                ),
                beat.length.eq(Mux(new_tlp, beat.count, command.length)),
                beat.first.eq(~second | new_tlp),
                beat.last.eq(second | ~crosses | new_tlp),
                beat.mark.eq(command.token),
            ]

        # Loads: the tag remembers the token.
        m.submodules.tokens = tokens = memory.Memory(shape=64, depth=TAGS, init=[])
        tag, used = Signal(range(TAGS)), Signal(TAGS)
        remember, recall = tokens.write_port(), tokens.read_port(domain="comb")
        m.d.comb += [
            self.reads.payload.address.eq(command.address),
            self.reads.payload.length.eq(command.length),
            self.reads.payload.requester.eq(self._port),
            self.reads.payload.tag.eq(tag),
            self.reads.payload.mark.eq(0),
            remember.addr.eq(tag),
            remember.data.eq(command.token),
            remember.en.eq(self.reads.valid & self.reads.ready),
        ]

        # A command goes to one of the three.
        own, store = Signal(), Signal()
        m.d.comb += [
            own.eq(claims(self._port, command.address[:ADDRESS_BITS])),
            store.eq(self.commands.valid & (command.op == Operation.STORE)),
            self.stores.valid.eq(store & own),
            self.posted.valid.eq(store & ~own),
            self.reads.valid.eq(
                self.commands.valid & (command.op == Operation.LOAD) & ~used.bit_select(tag, 1)
            ),
        ]
        sent = Signal()
        m.d.comb += sent.eq(Mux(own, self.stores.ready, self.posted.ready))
        with m.Switch(command.op):
            with m.Case(Operation.STORE):
                m.d.comb += self.commands.ready.eq(sent & (second | ~crosses))
            with m.Case(Operation.LOAD):
                m.d.comb += self.commands.ready.eq(self.reads.ready & ~used.bit_select(tag, 1))
            with m.Default():
                m.d.comb += self.commands.ready.eq(1)
        with m.If(store & sent):
            m.d.sync += second.eq(crosses & ~second)

        # Answers: the bytes move down to byte 0; the tag is free again.
        answer = self.completions.payload
        m.d.comb += [
            self.completions.ready.eq(1),
            recall.addr.eq(answer.tag),
            self.response.valid.eq(self.completions.valid),
            self.response.token.eq(recall.data),
            self.response.data.eq(
                rotate_right_bytes(
                    m, answer.data, answer.address[:6], "answered", when=self.completions.valid
                )
            ),
        ]
        # One operation for all tags, where an indexed bit would be a choice among 64.
        taken, freed = Signal(TAGS), Signal(TAGS)
        m.d.comb += [taken.eq(remember.en << tag), freed.eq(self.completions.valid << recall.addr)]
        with m.If(remember.en):
            m.d.sync += tag.eq(tag + 1)
        with m.If(remember.en | self.completions.valid):
            m.d.sync += used.eq((used | taken) & ~freed)

        m.d.comb += self.quiet.eq(~(self.commands.valid | self.completions.valid))
        return m
