"""A small fact about each queue pair, read and written by several steps of one block."""

from amaranth.lib import memory

__all__ = ["QpTable"]


class QpTable:
    """A table with one entry per QP, for use within one `elaborate`.

    Parameters
    ----------
    m : Module
        The module it belongs to; call `read` and `write` outside of its `If`s.
    name : str
    shape : shape of an entry
    structure : Structure
        `qps` entries.

    Timing
    ------
    A read is combinational; a write shows in the next cycle. Any number of both per cycle. Two
    writes of one entry in one cycle are a mistake of the block that makes them.
    """

    def __init__(self, m, name, shape, structure):
        self._m = m
        m.submodules[name] = self._store = memory.Memory(shape=shape, depth=structure.qps, init=[])

    def read(self, qp):
        """The entry of `qp`."""
        port = self._store.read_port(domain="comb")
        self._m.d.comb += port.addr.eq(qp)
        return port.data

    def write(self, qp, value, when):
        """Sets the entry of `qp` in each cycle in which `when` is high."""
        port = self._store.write_port()
        self._m.d.comb += [port.addr.eq(qp), port.data.eq(value), port.en.eq(when)]
