"""Contexts of the queues: tables that the configuration bus writes and the blocks read."""

from amaranth.hdl import Module
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import (
    ConfigWrite,
    CqContext,
    RqContext,
    RxContext,
    SqContext,
    Table,
    TxContext,
)

__all__ = ["ConfigPort", "ContextPort", "QpContext", "configures", "context_in"]


class ConfigPort(wiring.Signature):
    """The configuration bus: a write is taken in the cycle in which `valid` is high."""

    def __init__(self):
        super().__init__({"valid": Out(1), "payload": Out(ConfigWrite)})


def configures(config, table):
    """Whether the bus writes to a table in this cycle."""
    return config.valid & (config.payload.table == table)


def context_in(config, shape):
    """What the bus writes, as a context of that shape."""
    return data.View(shape, config.payload.data[: data.Layout.cast(shape).size])


class ContextPort(wiring.Signature):
    """Read access to one table, from the reader's side.

    Members
    -------
    address : Out(12)
        Queue index; bits beyond the table are not looked at.
    data : In(shape)
        The context, in the cycle after its address.
    """

    def __init__(self, shape):
        self.shape = shape
        super().__init__({"address": Out(12), "data": In(shape)})


class QpContext(wiring.Component):
    """Holds the static part of all queue contexts.

    Parameters
    ----------
    structure : Structure
        `qps` entries per table.

    Members
    -------
    config : In(ConfigPort)
    doorbell, sq : SqContext readers (the doorbell and the work-queue engine)
    tx, rx, cq, rq, receive_cq : readers of the other tables

    Timing
    ------
    One read per port and cycle; a read in the cycle of a write of the same entry gives the old
    context.
    """

    def __init__(self, structure):
        self._structure = structure
        super().__init__(
            {
                "config": In(ConfigPort()),
                "doorbell": In(ContextPort(SqContext)),
                "sq": In(ContextPort(SqContext)),
                "tx": In(ContextPort(TxContext)),
                "rx": In(ContextPort(RxContext)),
                "cq": In(ContextPort(CqContext)),
                "rq": In(ContextPort(RqContext)),
                "receive_cq": In(ContextPort(CqContext)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        readers = {
            Table.SQ: (SqContext, [self.doorbell, self.sq]),
            Table.TX: (TxContext, [self.tx]),
            Table.RX: (RxContext, [self.rx]),
            Table.CQ: (CqContext, [self.cq]),
            Table.RQ: (RqContext, [self.rq]),
            Table.RECEIVE_CQ: (CqContext, [self.receive_cq]),
        }
        for table, (shape, ports) in readers.items():
            m.submodules[table.name.lower()] = store = memory.Memory(
                shape=shape, depth=self._structure.qps, init=[]
            )
            write = store.write_port()
            m.d.comb += [
                write.addr.eq(self.config.payload.index),
                write.data.eq(self.config.payload.data),
                write.en.eq(configures(self.config, table)),
            ]
            for port in ports:
                read = store.read_port()
                m.d.comb += [read.addr.eq(port.address), port.data.eq(read.data)]
        return m
