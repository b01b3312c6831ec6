"""What a WQE asks for, verb by verb: what is read and written where, and the bytes that ask it."""

from dataclasses import dataclass
from typing import Any

from hw.formats.layout import Codec
from hw.formats.mlx5 import WqeOpcode
from hw.formats.op import Verb
from sim import wqe

__all__ = ["Atomic", "Dump", "Nop", "Other", "Read", "Send", "Work", "Write"]


def _none(value=None) -> Any:
    """What a verb may have, where it has none."""
    return value


@dataclass(frozen=True)
class Work:
    """Any of them; what a verb does not have is empty."""

    signaled: bool

    verb = Verb.NOP
    #: Runs (address, length, lkey) that are read at the sender, or bytes in the WQE.
    runs = _none(())
    payload = _none()
    #: Runs that a response goes to.
    landings = _none(())
    #: Bytes at the peer that are written, as (address, size), if they are by address.
    target = _none()
    imm = _none()
    solicited = _none(False)
    fence = _none(False)

    @property
    def size(self):
        if self.payload is not None:
            return len(self.payload)
        return sum(length for _, length, _ in self.runs or self.landings)

    @property
    def takes(self):
        """Whether it takes a receive WQE."""
        return self.imm is not None


@dataclass(frozen=True)
class Write(Work):
    """An RDMA WRITE: of `runs` (address, length, lkey) in memory, or of `payload` in the WQE."""

    raddr: int
    rkey: int
    runs: tuple = ()
    payload: bytes | None = None
    solicited: bool = False
    imm: int | None = None

    @property
    def verb(self):
        return Verb.WRITE if self.imm is None else Verb.WRITE_IMM

    @property
    def target(self):
        return (self.raddr, self.size) if self.size else None

    def build(self, index, qpn):
        """Its bytes, as agents make them."""
        head = {"index": index, "qpn": qpn, "raddr": self.raddr, "rkey": self.rkey}
        head["signaled"] = self.signaled
        if self.payload is not None:
            raw = wqe.write_inline(payload=self.payload, **head)
        else:
            raw = wqe.gather(runs=self.runs, **head)
        if self.imm is not None:
            return wqe.with_immediate(raw, self.imm, solicited=self.solicited)
        # No path of ours asks for this.
        return raw[:11] + bytes([raw[11] | self.solicited << 1]) + raw[12:]


@dataclass(frozen=True)
class Send(Work):
    """A SEND of `runs` or of `payload`: a receive WQE says where it goes."""

    runs: tuple = ()
    payload: bytes | None = None
    solicited: bool = False
    imm: int | None = None
    takes: Any = True  # type: ignore[assignment]

    @property
    def verb(self):
        return Verb.SEND if self.imm is None else Verb.SEND_IMM

    def build(self, index, qpn):
        head = {"index": index, "qpn": qpn, "signaled": self.signaled}
        head["solicited"] = self.solicited
        if self.payload is not None:
            raw = wqe.send_inline(payload=self.payload, **head)
        else:
            raw = wqe.send(runs=self.runs, **head)
        return raw if self.imm is None else wqe.with_immediate(raw, self.imm)


@dataclass(frozen=True)
class Read(Work):
    """An RDMA READ into `landings`."""

    raddr: int
    rkey: int
    landings: tuple = ()
    verb = Verb.READ

    def build(self, index, qpn):
        return wqe.read(
            index=index,
            qpn=qpn,
            raddr=self.raddr,
            rkey=self.rkey,
            runs=self.landings,
            signaled=self.signaled,
        )


@dataclass(frozen=True)
class Atomic(Work):
    """An atomic on 4 or 8 bytes; what was there goes to `landings`."""

    raddr: int
    rkey: int
    opcode: WqeOpcode
    bytes_wide: int
    #: By the names of their format in `hw.formats.mlx5`.
    operands: dict
    landings: tuple = ()

    @property
    def verb(self):
        return Verb[self.opcode.name]

    @property
    def size(self):
        return self.bytes_wide

    @property
    def target(self):
        return self.raddr, self.bytes_wide

    @property
    def raw_operands(self):
        """Their bytes."""
        return Codec(wqe.OPERANDS[self.opcode, self.bytes_wide]).pack(**self.operands)

    @property
    def counts(self):
        """How many of these bytes count: of an addition not what stands behind its operands."""
        plain = self.opcode is WqeOpcode.FETCH_ADD
        narrow = self.opcode is WqeOpcode.MASKED_FETCH_ADD and self.bytes_wide == 4
        return 8 if plain or narrow else len(self.raw_operands)

    def after(self, found):
        """What memory holds afterwards, of the number `found` before."""
        operands, ones = self.operands, (1 << 8 * self.bytes_wide) - 1
        if self.opcode is WqeOpcode.FETCH_ADD:
            return found + operands["swap_add"] & ones
        if self.opcode is WqeOpcode.MASKED_FETCH_ADD:
            return _added(found, operands["add"], operands["boundary"], 8 * self.bytes_wide)
        plain = self.opcode is WqeOpcode.COMPARE_SWAP
        swap = operands["swap_add"] if plain else operands["swap"]
        compared, swapped = (operands.get(key, ones) for key in ("compare_mask", "swap_mask"))
        if (found ^ operands["compare"]) & compared:
            return found
        return found & ~swapped | swap & swapped

    def build(self, index, qpn):
        ((laddr, _, lkey),) = self.landings
        return wqe.atomic(
            opcode=self.opcode,
            size=self.bytes_wide,
            operands=self.operands,
            index=index,
            qpn=qpn,
            raddr=self.raddr,
            rkey=self.rkey,
            laddr=laddr,
            lkey=lkey,
            signaled=self.signaled,
        )


def _added(one, other, boundary, bits):
    """A sum of `bits` bits, in which no carry leaves a bit of `boundary`."""
    total = carry = 0
    for bit in range(bits):
        here = (one >> bit & 1) + (other >> bit & 1) + carry
        total |= (here & 1) << bit
        carry = 0 if boundary >> bit & 1 else here >> 1
    return total


@dataclass(frozen=True)
class Dump(Work):
    """A local read of which nothing leaves the NIC."""

    runs: tuple = ()
    fence: bool = False
    verb = Verb.DUMP

    def build(self, index, qpn):
        return wqe.dump(
            index=index, qpn=qpn, runs=self.runs, signaled=self.signaled, fence=self.fence
        )


@dataclass(frozen=True)
class Nop(Work):
    ds: int = 1

    def build(self, index, qpn):
        return wqe.nop(index=index, qpn=qpn, signaled=self.signaled, ds=self.ds)


@dataclass(frozen=True)
class Other(Work):
    """A WQE that the machine does not know yet: it ends in an error of its own."""

    opcode: int
