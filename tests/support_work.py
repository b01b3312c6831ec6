"""What the WQEs of vectors ask for, by the parameters that their software was given.

Where an item has no parameter for something, it is read from the item's own bytes.
"""

import re
from dataclasses import dataclass

from support_vectors import VectorError

from hw.formats import mlx5
from hw.formats.layout import Codec
from sim import wqe

__all__ = ["Nop", "Other", "Wqe", "Write", "sequence_work", "split", "work_of"]

_CTRL, _RADDR, _DATA = Codec(mlx5.Ctrl), Codec(mlx5.Raddr), Codec(mlx5.Data)
_NOP, _WRITE = mlx5.WqeOpcode.NOP.value, mlx5.WqeOpcode.WRITE.value


@dataclass(frozen=True)
class Write:
    """An RDMA WRITE: of `runs` (address, length, lkey) in memory, or of `payload` in the WQE."""

    raddr: int
    rkey: int
    signaled: bool
    runs: tuple = ()
    payload: bytes | None = None
    solicited: bool = False

    @property
    def size(self):
        if self.payload is not None:
            return len(self.payload)
        return sum(length for _, length, _ in self.runs)

    def build(self, index, qpn):
        """Its bytes, as agents make them."""
        head = {"index": index, "qpn": qpn, "raddr": self.raddr, "rkey": self.rkey}
        head["signaled"] = self.signaled
        if self.payload is not None:
            raw = wqe.write_inline(payload=self.payload, **head)
        else:
            raw = wqe.gather(runs=self.runs, **head)
        # No path of ours asks for this.
        return raw[:11] + bytes([raw[11] | self.solicited << 1]) + raw[12:]


@dataclass(frozen=True)
class Nop:
    signaled: bool
    ds: int = 1
    size = 0

    def build(self, index, qpn):
        return wqe.nop(index=index, qpn=qpn, signaled=self.signaled, ds=self.ds)


@dataclass(frozen=True)
class Other:
    """A WQE that the machine does not know yet: it ends in an error of its own."""

    opcode: int
    signaled: bool
    size = 0


@dataclass(frozen=True)
class Wqe:
    """One WQE in a send queue: its work, the bytes that its software wrote, and which of them."""

    index: int
    work: Write | Nop | Other
    raw: bytes
    defined: str

    @property
    def blocks(self):
        return len(self.raw) // mlx5.BLOCK_BYTES


def split(raw, defined):
    """WQEs of a run of blocks, as (bytes, mask)."""
    while raw:
        size = mlx5.BLOCK_BYTES * max(1, mlx5.blocks_of(raw[7] & 63))
        yield raw[:size], defined[:size]
        raw, defined = raw[size:], defined[size:]


def _number(item, text, names):
    """A number, or a sum that begins with a name: `LA+0x10000`."""
    if not isinstance(text, str):
        return item.number(text, "params")
    name, _, rest = text.partition("+")
    if name in names:
        return names[name] + (item.number(rest, "params") if rest else 0)
    return item.number(text, "params")


def _payload(item, params, size):
    """Inline bytes by the parameters; None if they do not tell."""
    for key, value in params.items():
        match = re.fullmatch(r"data_(?:le_)?u(\d+)", key)
        if match:
            return item.number(value, key).to_bytes(int(match[1]) // 8, "little")
    text = params.get("data")
    if text is None:
        return None
    match = re.search(r"\((\d+)i\+(\d+)\)&255", text)
    if not match:
        raise VectorError(f"{item.where}: data = {text!r}: allowed 'byte i=(Ai+B)&255'")
    factor, start = int(match[1]), int(match[2])
    return bytes((factor * i + start) & 255 for i in range(size))


def _lanes(item, params):
    """Bytes of a warp's values, one after the other."""
    factor = re.search(r"0x[0-9a-fA-F]+", str(params.get("val", "")))
    width = re.search(r"x(\d+)B", item.data.get("name", ""))
    if not (factor and width):
        raise VectorError(f"{item.where}: 'val' and the name must tell values and their size")
    size, count = int(width[1]), item.number(params["lanes"], "lanes")
    values = (int(factor[0], 16) * (lane + 1) for lane in range(count))
    return b"".join((value & (1 << 8 * size) - 1).to_bytes(size, "little") for value in values)


def _decode(raw):
    """The work of one WQE, by its bytes alone."""
    ctrl = _CTRL.unpack(raw[:16])
    signaled = bool(ctrl["fm_ce_se"] & mlx5.CE_ALWAYS)
    if ctrl["opcode"] == _NOP:
        return Nop(signaled, ctrl["ds"])
    if ctrl["opcode"] != _WRITE:
        return Other(ctrl["opcode"], signaled)
    address = _RADDR.unpack(raw[16:32])
    head = {"raddr": address["raddr"], "rkey": address["rkey"], "signaled": signaled}
    head["solicited"] = bool(ctrl["fm_ce_se"] & 0x02)
    first = int.from_bytes(raw[32:36], "big")
    if ctrl["ds"] > 2 and first & mlx5.INLINE_FLAG:
        return Write(payload=raw[36 : 36 + (first & ~mlx5.INLINE_FLAG)], **head)
    runs = []
    for octoword in range(2, ctrl["ds"]):
        data = _DATA.unpack(raw[16 * octoword : 16 * octoword + 16])
        runs.append((data["address"], data["byte_count"], data["lkey"]))
    return Write(runs=tuple(runs), **head)


def _expected(item, params, decoded):
    """The work of an item's first WQE, by its name and parameters."""
    name = item.data.get("name", "")
    default = item.common
    values = {
        key: item.number(params.get(key, default.get(key)), key)
        for key in ("laddr", "lkey", "raddr", "rkey")
        if key in params or key in default
    }
    signaled = bool(params.get("signaled", 1)) and "lanes" not in params
    if name.startswith("nop"):
        return Nop(signaled, decoded.ds if isinstance(decoded, Nop) else 1)
    missing = {"raddr", "rkey"} - values.keys()
    if missing:
        raise VectorError(f"{item.where}: no parameter {sorted(missing)[0]!r}")
    head = {"raddr": values["raddr"], "rkey": values["rkey"], "signaled": signaled}
    head["solicited"] = bool(params.get("solicited"))
    if "lanes" in params:
        return Write(payload=_lanes(item, params), **head)
    size = item.number(params.get("len", 0), "len")
    if "inline" in name or params.get("inline") or any(key.startswith("data") for key in params):
        payload = _payload(item, params, size)
        if payload is None:
            payload = getattr(decoded, "payload", None) or b""
        if len(payload) != size:
            raise VectorError(f"{item.where}: len = {size}: the data has {len(payload)} bytes")
        return Write(payload=payload, **head)
    names = {"LA": values.get("laddr", 0), "LK": values.get("lkey", 0)}
    entries = params.get("sge") or ([["LA", size]] if params.get("num_sge", 1) else [])
    runs = tuple(
        (
            _number(item, entry[0], names),
            item.number(entry[1], "sge"),
            _number(item, entry[2] if len(entry) > 2 else "LK", names),
        )
        for entry in entries
    )
    return Write(runs=runs, **head)


def _blocks(item, raw, key):
    """The bytes, if they are whole blocks."""
    if not raw or len(raw) % mlx5.BLOCK_BYTES:
        size = mlx5.BLOCK_BYTES
        raise VectorError(f"{item.where}: {key} of {len(raw)} bytes: allowed multiples of {size}")
    return raw


def work_of(item, start):
    """The WQEs of a vector, the first at index `start`."""
    raw = _blocks(item, item.raw("wqe"), "wqe")
    defined = item.mask_of(item.get("defined"), raw, "wqe")
    params, index, wqes = item.data.get("params", {}), start, []
    for position, (part, mask) in enumerate(split(raw, defined)):
        decoded = _decode(part)
        # Behind a warp's values stands the NOP that carries the completion.
        if position == 0:
            work = _expected(item, params, decoded)
        else:
            work = Nop(signaled=True) if "lanes" in params else decoded
        wqes.append(Wqe(index, work, part, mask))
        index += wqes[-1].blocks
    return wqes


def sequence_work(item, start):
    """The WQEs of a sequence of puts: each by its own bytes, with the parameters that there are."""
    params, index, wqes = item.data.get("params", {}), start, []
    size = params.get("token_bytes")
    puts = 0
    for position, entry in enumerate(item.get("wqes")):
        key = f"wqes[{position}]"
        raw = _blocks(item, item.bytes_of(entry.get("wqe"), key), key)
        mask = entry.get("defined") or entry.get("defined_stack_only") or "1" * len(raw)
        item.mask_of(mask, raw, key)
        work = _decode(raw)
        if isinstance(work, Write) and work.payload is None and size is not None:
            work = _token(item, params, work, item.number(size, "token_bytes"), puts)
            puts += 1
        wqes.append(Wqe(index, work, raw, mask))
        index += wqes[-1].blocks
    return wqes


def _token(item, params, work, size, number):
    """The put of token `number`: strides and keys are those of the parameters."""
    local = re.match(r"0x[0-9a-fA-F]+", str(params.get("lptr", "")))
    remote = re.search(r"heap (0x[0-9a-fA-F]+)", str(params.get("rptr", "")))
    if not (local and remote):
        raise VectorError(f"{item.where}: 'lptr' and 'rptr' must tell where tokens are")
    # The heap begins at a multiple of 4 GiB; what is above is the peer's.
    offset = int(remote[1], 16) & 0xFFFF_FFFF
    raddr = item.number(params.get("remote_heap"), "remote_heap") + offset + number * size
    lkey, rkey = item.number(params.get("lkey"), "lkey"), item.number(params.get("rkey"), "rkey")
    runs = ((int(local[0], 16) + number * size, size, lkey),)
    return Write(raddr=raddr, rkey=rkey, signaled=work.signaled, runs=runs)
