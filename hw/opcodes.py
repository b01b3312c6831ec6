"""Which packets a verb is sent as, and which are answers."""

from amaranth.hdl import Cat, Const, Signal

from .formats.op import Verb
from .formats.roce import RESPONSES, RoceOpcode

__all__ = ["ATOMICS", "IMMEDIATES", "SENDS", "is_one_of", "is_response", "request_opcode"]

SENDS = (Verb.SEND, Verb.SEND_IMM)
IMMEDIATES = (Verb.WRITE_IMM, Verb.SEND_IMM)
ATOMICS = (
    Verb.COMPARE_SWAP,
    Verb.FETCH_ADD,
    Verb.MASKED_COMPARE_SWAP,
    Verb.MASKED_FETCH_ADD,
)

_WRITE = (RoceOpcode.WRITE_FIRST, RoceOpcode.WRITE_MIDDLE)
_SEND = (RoceOpcode.SEND_FIRST, RoceOpcode.SEND_MIDDLE)
#: Verb to the opcodes of its first, middle, last and only packet.
_MESSAGES = {
    Verb.WRITE: (*_WRITE, RoceOpcode.WRITE_LAST, RoceOpcode.WRITE_ONLY),
    Verb.WRITE_IMM: (*_WRITE, RoceOpcode.WRITE_LAST_IMM, RoceOpcode.WRITE_ONLY_IMM),
    Verb.SEND: (*_SEND, RoceOpcode.SEND_LAST, RoceOpcode.SEND_ONLY),
    Verb.SEND_IMM: (*_SEND, RoceOpcode.SEND_LAST_IMM, RoceOpcode.SEND_ONLY_IMM),
}
#: Of the verbs that are one packet.
_REQUESTS = {
    Verb.READ: RoceOpcode.READ_REQUEST,
    Verb.COMPARE_SWAP: RoceOpcode.COMPARE_SWAP,
    Verb.FETCH_ADD: RoceOpcode.FETCH_ADD,
    Verb.MASKED_COMPARE_SWAP: RoceOpcode.MASKED_COMPARE_SWAP,
    Verb.MASKED_FETCH_ADD: RoceOpcode.MASKED_FETCH_ADD,
}


def is_one_of(value, members):
    """Whether `value` is one of the members (1 bit)."""
    return Cat(*(value == member for member in members)).any()


def is_response(opcode):
    """Whether an opcode is one that responders send (1 bit)."""
    return is_one_of(opcode, RESPONSES)


def request_opcode(m, verb, begins, ends):
    """Opcode of a packet of `verb` that begins or ends its message (combinational); 0 where the
    verb sends nothing.
    """
    opcode = Signal(8)
    with m.Switch(verb):
        for member, (first, middle, last, only) in _MESSAGES.items():
            with m.Case(member), m.Switch(Cat(begins, ends)):
                for place, value in enumerate((middle, first, last, only)):
                    with m.Case(place):
                        m.d.comb += opcode.eq(Const(value, RoceOpcode))
        for member, value in _REQUESTS.items():
            with m.Case(member):
                m.d.comb += opcode.eq(Const(value, RoceOpcode))
    return opcode
