"""Who may touch which memory: keys, protection domains, rights and bounds."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, enum, memory, wiring
from amaranth.lib.wiring import In, Out

from .formats.context import MemoryKey, Table
from .qp_context import ConfigPort

__all__ = ["Access", "AccessKind", "AccessPort", "Denial", "Protection"]


class AccessKind(enum.Enum, shape=3):
    """What is to be done, and in whose name."""

    LOCAL_READ = 0
    LOCAL_WRITE = 1
    REMOTE_READ = 2
    REMOTE_WRITE = 3
    REMOTE_ATOMIC = 4


class Access(data.Struct):
    """Bytes that somebody wants to touch."""

    kind: AccessKind
    #: Protection domain of the QP.
    pd: 24
    key: 32
    address: 64
    length: 32


class Denial(enum.Enum, shape=3):
    """Why not; the first that applies."""

    #: It is allowed.
    NONE = 0
    #: No such key: an index beyond the table, one that has no region, or another variant.
    KEY = 1
    #: The key is of another protection domain.
    DOMAIN = 2
    RIGHTS = 3
    #: It ends beyond 2^64.
    WRAP = 4
    #: Not all bytes lie in the region.
    BOUNDS = 5


class AccessPort(wiring.Signature):
    """A question to `Protection`, from the side of who asks.

    Members
    -------
    access : Out(Access)
    denial : In(Denial)
        In the cycle after its access.
    """

    def __init__(self):
        super().__init__({"access": Out(Access), "denial": In(Denial, init=Denial.NONE)})


class Protection(wiring.Component):
    """Holds the memory keys, and says of an access whether it is allowed.

    An access without bytes is allowed whatever its key is: it touches nothing, as the specification
    has it for zero-length operations.

    Ref: InfiniBand Architecture Specification vol. 1, ch. 10 (memory management).

    Parameters
    ----------
    keys : int
        Entries, a power of two from 2 to 65536.
    ports : int
        Who may ask in the same cycle.

    Members
    -------
    config : In(ConfigPort)
        Table.KEY sets a key (MemoryKey).
    asks : In(array of AccessPort)

    Timing
    ------
    One access per port and cycle; the answer in the cycle after. An access in the cycle in which
    its key is written sees the old one.
    """

    def __init__(self, keys, ports):
        if keys < 2 or keys > 1 << 16 or keys & (keys - 1):
            raise ValueError(f"memory keys: allowed powers of two from 2 to 65536, not {keys}")
        self._keys, self._ports = keys, ports
        super().__init__({"config": In(ConfigPort()), "asks": In(AccessPort()).array(ports)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.regions = regions = memory.Memory(shape=MemoryKey, depth=self._keys, init=[])
        config, write = self.config.payload, regions.write_port()
        m.d.comb += [
            write.addr.eq(config.index),
            write.data.eq(config.data),
            write.en.eq(self.config.valid & (config.table == Table.KEY)),
        ]
        for number, port in enumerate(self.asks):
            access, read = Signal(Access, name=f"access_{number}"), regions.read_port()
            m.d.comb += read.addr.eq(port.access.key[8:])
            m.d.sync += access.eq(port.access)
            self._judge(m, access, read.data, port.denial)
        return m

    def _judge(self, m, access, region, denial):
        """An access and the region of its key's index."""
        index_bits = (self._keys - 1).bit_length()
        known, allowed = Signal(), Signal()
        # One bit more than addresses have: nothing wraps here.
        end, region_end = Signal(65), Signal(65)
        m.d.comb += [
            known.eq(
                region.valid
                & (region.variant == access.key[:8])
                & (access.key[8 + index_bits :] == 0)
            ),
            end.eq(access.address + access.length),
            region_end.eq(region.base + region.length),
        ]
        with m.Switch(access.kind):
            with m.Case(AccessKind.LOCAL_READ):
                m.d.comb += allowed.eq(1)
            with m.Case(AccessKind.LOCAL_WRITE):
                m.d.comb += allowed.eq(region.local_write)
            with m.Case(AccessKind.REMOTE_READ):
                m.d.comb += allowed.eq(region.remote_read)
            with m.Case(AccessKind.REMOTE_WRITE):
                m.d.comb += allowed.eq(region.remote_write)
            with m.Case(AccessKind.REMOTE_ATOMIC):
                m.d.comb += allowed.eq(region.remote_atomic)
        with m.If(access.length == 0):
            m.d.comb += denial.eq(Denial.NONE)
        with m.Elif(~known):
            m.d.comb += denial.eq(Denial.KEY)
        with m.Elif(region.pd != access.pd):
            m.d.comb += denial.eq(Denial.DOMAIN)
        with m.Elif(~allowed):
            m.d.comb += denial.eq(Denial.RIGHTS)
        with m.Elif(end > 1 << 64):
            m.d.comb += denial.eq(Denial.WRAP)
        with m.Elif((access.address < region.base) | (end > region_end) | (region_end > 1 << 64)):
            m.d.comb += denial.eq(Denial.BOUNDS)
