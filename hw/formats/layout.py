"""How a format is declared, packed and unpacked.

A `data.Struct` is the shape that RTL uses; a `Codec` reads the same layout for Python, checks
ranges, and is fast. Formats in network byte order are declared with `@network`: their first field
is the most significant, so the integer's big-endian bytes are the bytes in memory or on the wire.
"""

from amaranth.hdl import Cat
from amaranth.lib import data

__all__ = ["Codec", "NetworkLayout", "lanes", "network", "reverse_bytes", "size"]


class NetworkLayout(data.StructLayout):
    """A header in specification order: the first declared field is the most significant."""

    def __init__(self, name, members, doc=None):
        super().__init__(dict(reversed(members.items())))
        self.name, self.members_in_order, self.doc = name, tuple(members), doc


def network(cls):
    """Class decorator: annotations in specification order become a `NetworkLayout`."""
    return NetworkLayout(cls.__name__, cls.__annotations__, cls.__doc__)


def size(layout):
    """Size of a layout in bytes; it must be whole."""
    bits = data.Layout.cast(layout).size
    if bits % 8:
        raise ValueError(f"{layout} has {bits} bits, no whole number of bytes")
    return bits // 8


def reverse_bytes(value):
    """The value with its byte order reversed (memory lanes to network order and back)."""
    return Cat(*(value[i : i + 8] for i in reversed(range(0, len(value), 8))))


def lanes(layout, line, offset):
    """A network-order view of `layout` at byte `offset` of a memory line (lane i = bits 8i)."""
    return data.View(layout, reverse_bytes(line[8 * offset : 8 * (offset + size(layout))]))


class Codec:
    """Packs and unpacks a flat layout with range checks.

    Parameters
    ----------
    layout : layout of scalar fields
        `NetworkLayout` packs big-endian, any other little-endian.
    """

    def __init__(self, layout):
        cast = data.Layout.cast(layout)
        self.order = "big" if isinstance(layout, NetworkLayout) else "little"
        self.size = -(-cast.size // 8)
        self.fields = {key: (field.offset, (1 << field.width) - 1) for key, field in cast}

    def pack(self, **values):
        """Bytes of the format; a field not given is 0; raises `ValueError` on a misfit."""
        word = 0
        for key, value in values.items():
            if key not in self.fields:
                raise ValueError(f"no field {key!r}; there are {', '.join(map(str, self.fields))}")
            offset, mask = self.fields[key]
            if not 0 <= value <= mask:
                raise ValueError(f"{key} = {value}: allowed 0 to {mask}")
            word |= value << offset
        return word.to_bytes(self.size, self.order)

    def unpack(self, raw):
        """Dict of field values."""
        if len(raw) != self.size:
            raise ValueError(f"{len(raw)} bytes given, the format has {self.size}")
        word = int.from_bytes(raw, self.order)
        return {key: word >> offset & mask for key, (offset, mask) in self.fields.items()}
