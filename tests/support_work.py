"""What the WQEs of vectors ask for, by the parameters that their software was given.

Where an item has no parameter for something, it is read from the item's own bytes.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from support_asked import Atomic, Dump, Nop, Other, Read, Send, Work, Write
from support_vectors import VectorError

from hw.formats import mlx5
from hw.formats.layout import Codec
from hw.formats.mlx5 import WqeOpcode
from sim.wqe import OPERANDS

__all__ = ["Wqe", "sequence_work", "split", "work_of"]

_CTRL, _RADDR, _DATA = Codec(mlx5.Ctrl), Codec(mlx5.Raddr), Codec(mlx5.Data)
_WRITES = (WqeOpcode.WRITE, WqeOpcode.WRITE_IMM)
_SENDS = (WqeOpcode.SEND, WqeOpcode.SEND_IMM)
_IMMEDIATES = (WqeOpcode.WRITE_IMM, WqeOpcode.SEND_IMM)
#: `opmod` to bytes of a masked atomic.
_WIDE = {mlx5.OPMOD_MASKED_4: 4, mlx5.OPMOD_MASKED_8: 8}
_ADD, _SWAP = WqeOpcode.MASKED_FETCH_ADD, WqeOpcode.MASKED_COMPARE_SWAP
#: Atomics by their names: opcode, and the operands that parameters do not give ("ones", or the
#: complement of the value); what is not here is 0.
_ATOMICS = (
    ("atomic_fetch_add*", WqeOpcode.FETCH_ADD, {}),
    ("amo_fetch_add*", WqeOpcode.FETCH_ADD, {}),
    ("atomic_cmp_swap*", WqeOpcode.COMPARE_SWAP, {}),
    ("amo_cmp_swap_8B", WqeOpcode.COMPARE_SWAP, {}),
    ("amo_cmp_swap_4B", _SWAP, {"swap_mask": "ones", "compare_mask": "ones"}),
    ("amo_inc*", _ADD, {"add": 1}),
    ("amo_xor*", _ADD, {"boundary": "ones"}),
    ("amo_*add*", _ADD, {}),
    ("masked_fa*", _ADD, {}),
    ("amo_and*", _SWAP, {"swap_mask": "complement"}),
    ("amo_set*", _SWAP, {"swap_mask": "ones"}),
    ("amo_swap*", _SWAP, {"swap_mask": "ones"}),
    ("masked_cs_*_set", _SWAP, {"swap_mask": "ones"}),
)


@dataclass(frozen=True)
class Wqe:
    """One WQE in a send queue: its work, the bytes that its software wrote, and which of them."""

    index: int
    work: Work
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
    flags, known = ctrl["fm_ce_se"], {opcode.value: opcode for opcode in WqeOpcode}
    opcode, signaled = known.get(ctrl["opcode"]), bool(flags & mlx5.CE_ALWAYS)
    if opcode is WqeOpcode.NOP:
        return Nop(signaled, ctrl["ds"])
    told: dict[str, Any] = {"signaled": signaled, "solicited": bool(flags & mlx5.SOLICITED)}
    told["imm"] = ctrl["imm"] if opcode in _IMMEDIATES else None
    if opcode in _SENDS:
        return Send(**_local(raw, 1, ctrl["ds"]), **told)
    if opcode is WqeOpcode.DUMP:
        runs = _local(raw, 1, ctrl["ds"])["runs"]
        return Dump(signaled, runs=runs, fence=bool(flags >> 5))
    address = _RADDR.unpack(raw[16:32])
    remote = {"raddr": address["raddr"], "rkey": address["rkey"]}
    if opcode in _WRITES:
        return Write(**_local(raw, 2, ctrl["ds"]), **remote, **told)
    if opcode is WqeOpcode.READ:
        return Read(signaled, landings=_local(raw, 2, ctrl["ds"])["runs"], **remote)
    wide = _WIDE.get(ctrl["opmod"]) if opcode in (_ADD, _SWAP) else 8
    if opcode is None or wide is None or (opcode, wide) not in OPERANDS:
        return Other(signaled, ctrl["opcode"])
    operands = Codec(OPERANDS[opcode, wide])
    values = operands.unpack(raw[32 : 32 + operands.size])
    landings = _local(raw, 2 + operands.size // 16, ctrl["ds"])["runs"]
    told = {"opcode": opcode, "bytes_wide": wide, "operands": values, "landings": landings}
    return Atomic(signaled, **remote, **told)


def _local(raw, at, ds):
    """What the data segments from octoword `at` on say: `runs`, or `payload`."""
    first = int.from_bytes(raw[16 * at : 16 * at + 4], "big")
    if ds > at and first & mlx5.INLINE_FLAG:
        start = 16 * at + 4
        return {"payload": raw[start : start + (first & ~mlx5.INLINE_FLAG)]}
    segments = (_DATA.unpack(raw[16 * n : 16 * n + 16]) for n in range(at, ds))
    runs = ((data["address"], data["byte_count"], data["lkey"]) for data in segments)
    return {"runs": tuple(runs)}


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
    if name.startswith("dump"):
        return Dump(signaled, runs=_runs(item, params, values), fence="fm" in params)
    told: dict[str, Any] = {"signaled": signaled, "solicited": bool(params.get("solicited"))}
    told["imm"] = _immediate(item, params) if "_imm" in name else None
    if name.startswith("send"):
        return Send(**_content(item, params, values, decoded), **told)
    missing = {"raddr", "rkey"} - values.keys()
    if missing:
        raise VectorError(f"{item.where}: no parameter {sorted(missing)[0]!r}")
    remote = {"raddr": values["raddr"], "rkey": values["rkey"]}
    if "read" in name or name.startswith("get"):
        return Read(signaled, landings=_runs(item, params, values), **remote)
    for pattern, opcode, others in _ATOMICS:
        if fnmatchcase(name, pattern):
            return _atomic(item, params, decoded, opcode, others, values, signaled, remote)
    if "lanes" in params:
        return Write(payload=_lanes(item, params), **remote, **told)
    return Write(**_content(item, params, values, decoded), **remote, **told)


def _immediate(item, params):
    """Immediate data: of host verbs a number, of device code the word as it goes out."""
    text = params.get("imm_host", params.get("imm_be_word", ""))
    return item.number(text.split()[0] if isinstance(text, str) and text else text, "imm")


def _atomic(item, params, decoded, opcode, others, values, signaled, remote):
    """An atomic by its name and parameters; bytes behind an addition's operands are its own."""
    width = re.search(r"_(\d+)B", item.data.get("name", ""))
    size = int(width[1]) if width else 8
    if (opcode, size) not in OPERANDS:
        raise VectorError(f"{item.where}: no {opcode.name} of {size} bytes")
    given = {
        key: item.number(params[key], key)
        for key in ("add", "swap", "value", "compare")
        if key in params
    }
    ones = (1 << 8 * size) - 1
    value = next((given[key] for key in ("add", "swap", "value") if key in given), 0)
    operands = dict.fromkeys(Codec(OPERANDS[opcode, size]).fields, 0)
    texts = {"ones": ones, "complement": ~value & ones}
    main = next(key for key in ("swap_add", "add", "swap") if key in operands)
    operands[main] = value
    operands |= {key: texts.get(text, text) for key, text in others.items()}
    if "field_boundary" in params:
        operands["boundary"] = item.number(params["field_boundary"], "field_boundary")
    if opcode is not WqeOpcode.FETCH_ADD:
        operands |= {"compare": given["compare"]} if "compare" in given else {}
    elif isinstance(decoded, Atomic):
        operands["compare"] = decoded.operands.get("compare", 0)
    landings = ((values.get("laddr", 0), size, values.get("lkey", 0)),)
    told = {"opcode": opcode, "bytes_wide": size, "operands": operands, "landings": landings}
    return Atomic(signaled, **remote, **told)


def _content(item, params, values, decoded):
    """The bytes that go out: `runs`, or `payload`."""
    size = item.number(params.get("len", 0), "len")
    name = item.data.get("name", "")
    if "inline" in name or params.get("inline") or any(key.startswith("data") for key in params):
        payload = _payload(item, params, size)
        if payload is None:
            payload = getattr(decoded, "payload", None) or b""
        if len(payload) != size:
            raise VectorError(f"{item.where}: len = {size}: the data has {len(payload)} bytes")
        return {"payload": payload}
    return {"runs": _runs(item, params, values)}


def _runs(item, params, values):
    size = item.number(params.get("len", 0), "len")
    names = {"LA": values.get("laddr", 0), "LK": values.get("lkey", 0)}
    entries = params.get("sge") or ([["LA", size]] if params.get("num_sge", 1) else [])
    return tuple(
        (
            _number(item, entry[0], names),
            item.number(entry[1], "sge"),
            _number(item, entry[2] if len(entry) > 2 else "LK", names),
        )
        for entry in entries
    )


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
