"""What software hands to a node: its mailboxes, and the commands in them (decision 2)."""

from amaranth.hdl import unsigned
from amaranth.lib import data, enum

__all__ = ["MAILBOXES", "MEMORIES", "Command", "Operation"]

#: Mailboxes by name; the number of one is its position.
MAILBOXES = ("gpu", "cpu", "config", "trace")
#: Memories likewise.
MEMORIES = ("gpu", "host")


class Operation(enum.Enum, shape=4):
    """What a command asks for."""

    STORE = 1
    LOAD = 2
    #: Not for a processor; taken and ignored there.
    CONFIGURE = 3
    TRACE = 4


class Command(data.Struct):
    """A command out of a mailbox."""

    op: Operation
    address: 64
    #: Bytes, 1 to 64.
    length: 8
    #: Of a store: its mark in the low 40 bits; of a load: returned with its answer.
    token: 64
    #: Bytes of a store, the first in bits 7:0.
    data: unsigned(512)
