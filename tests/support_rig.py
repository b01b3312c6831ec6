"""A block in Amaranth's own simulator: streams with idle cycles and back-pressure, events, and
skipping of quiet cycles.

All chance is a function of (seed, stream, cycle), so that a run with skipped cycles can be compared
with one without.
"""

import heapq
from itertools import count

from amaranth.hdl import Module, ShapeCastable
from amaranth.lib import data, enum
from amaranth.sim import Simulator

from hw.lib.delay import NEVER
from hw.lib.trace import Probe

__all__ = ["Rig", "pack", "unpack"]


def unpack(shape, raw):
    """Integer -> nested dict of the shape's fields (an integer for a scalar)."""
    if not isinstance(shape, ShapeCastable) or isinstance(shape, enum.EnumType):
        return raw
    return {
        key: unpack(field.shape, raw >> field.offset & (1 << field.width) - 1)
        for key, field in data.Layout.cast(shape)
    }


def pack(shape, values):
    """Nested dict -> integer; fields not given are 0; raises on a misfit."""
    if not isinstance(values, dict):
        return int(getattr(values, "value", values))
    word, known = 0, set()
    for key, field in data.Layout.cast(shape):
        known.add(key)
        value = pack(field.shape, values.get(key, 0))
        assert 0 <= value < 1 << field.width, f"{key} = {value} in {field.width} bits"
        word |= value << field.offset
    assert set(values) <= known, set(values) - known
    return word


class Rig:
    """Drives one block.

    Parameters
    ----------
    block : Component
    wrap : function(m, block), optional
        Adds further hardware round it.
    pulses : {name: (port, payload shape)}, optional
        Inputs of `valid` and `payload` that are always taken; the ports may be the block's or those
        of hardware round it.
    idle, stall : fraction of cycles in which nothing is offered or taken; a dict sets it by stream
    name seed : int
    """

    def __init__(self, block, *, wrap=None, pulses=None, idle=0.0, stall=0.0, seed=0, skip=False):
        self.block, self.skip, self._seed = block, skip, seed
        self._module = m = Module()
        m.submodules.block = block
        if wrap:
            wrap(m, block)
        self._idle, self._stall = idle, stall
        self._inputs = {
            name: (port, shape, False) for name, (port, shape) in (pulses or {}).items()
        }
        self._outputs, self._probes, self.taken, self.events = {}, {}, {}, {}
        #: Functions (cycle, item) called when an output item is taken.
        self.on_taken = {}
        self._number = count()
        for name, member in block.signature.members.items():
            if not member.is_signature:
                continue
            port, signature = getattr(block, name), member.signature
            if isinstance(signature, Probe) and member.flow.name == "Out":
                self._probes[name], self.events[name] = port, []
            elif set(signature.members) == {"payload", "valid", "ready"}:
                shape = signature.members["payload"].shape
                if member.flow.name == "In":
                    self._inputs[name] = (port, shape, True)
                else:
                    self._outputs[name], self.taken[name] = (port, shape), []
        self._waiting = {name: [] for name in self._inputs}
        self.cycle, self.evaluated = 0, 0
        self._setup = []

    def set(self, value, to):
        """Sets a constant input."""
        self._setup.append((value, to))

    def put(self, name, item, at=0):
        """Offers `item` (dict) at input `name` from cycle `at` on, in order of (`at`, call)."""
        heapq.heappush(
            self._waiting[name], (at, next(self._number), pack(self._inputs[name][1], item))
        )

    def _chance(self, table, name):
        return table.get(name, 0.0) if isinstance(table, dict) else table

    def _happens(self, fraction, name):
        if not fraction:
            return False
        return hash((self._seed, self.cycle, sum(name.encode()))) % 1000 < 1000 * fraction

    def run(self, cycles, until=None):
        """Runs from reset up to `cycles`, or until `until()` is true; returns the cycle reached."""
        sim = Simulator(self._module)
        sim.add_clock(1e-9)

        async def bench(ctx):
            for value, to in self._setup:
                ctx.set(value, to)
            offered = dict.fromkeys(self._inputs)
            promised = {}
            samples = [port.ready for port, _, handshake in self._inputs.values() if handshake]
            for port, _ in self._outputs.values():
                samples += [
                    port.valid,
                    port.payload
                    if not hasattr(port.payload, "as_value")
                    else port.payload.as_value(),
                ]
            for port in self._probes.values():
                samples += [port.valid, port.payload.as_value()]
            ready_now = {}
            while self.cycle < cycles and not (until and until()):
                if hasattr(self.block, "now"):
                    ctx.set(self.block.now, self.cycle)
                for name, (port, _, _) in self._inputs.items():
                    waiting = self._waiting[name]
                    if (
                        offered[name] is None
                        and waiting
                        and waiting[0][0] <= self.cycle
                        and not self._happens(self._chance(self._idle, name), name)
                    ):
                        offered[name] = heapq.heappop(waiting)[2]
                        payload = port.payload
                        ctx.set(
                            payload.as_value() if hasattr(payload, "as_value") else payload,
                            offered[name],
                        )
                        ctx.set(port.valid, 1)
                for name, (port, _) in self._outputs.items():
                    ready = not self._happens(self._chance(self._stall, name), name)
                    if ready_now.get(name) != ready:
                        ctx.set(port.ready, ready)
                        ready_now[name] = ready
                if (
                    self.skip
                    and not any(item is not None for item in offered.values())
                    and ctx.get(self.block.quiet)
                ):
                    due = ctx.get(self.block.due) if hasattr(self.block, "due") else NEVER
                    soon = min(
                        [due, *(waiting[0][0] for waiting in self._waiting.values() if waiting)]
                    )
                    assert due > self.cycle
                    if soon > self.cycle:
                        self.cycle = min(soon, cycles)
                        continue
                _, _, *values = await ctx.tick().sample(*samples)
                self.evaluated += 1
                values = iter(values)
                for name, (port, _, handshake) in self._inputs.items():
                    if (next(values) if handshake else 1) and offered[name] is not None:
                        offered[name] = None
                        ctx.set(port.valid, 0)
                for name, (_, shape) in self._outputs.items():
                    valid, raw = next(values), next(values)
                    if name in promised:
                        assert valid and raw == promised.pop(name), (
                            f"{name} was offered and taken back or changed"
                        )
                    if valid and ready_now[name]:
                        item = unpack(shape, raw)
                        self.taken[name].append((self.cycle, item))
                        if name in self.on_taken:
                            self.on_taken[name](self.cycle, item)
                    elif valid:
                        promised[name] = raw
                for name, port in self._probes.items():
                    valid, raw = next(values), next(values)
                    if valid:
                        self.events[name].append((self.cycle, unpack(port.signature.layout, raw)))
                self.cycle += 1

        sim.add_testbench(bench)
        sim.run()
        return self.cycle

    def items(self, name):
        """What output `name` gave, without cycles."""
        return [item for _, item in self.taken[name]]

    def log(self):
        """Everything that came out, with cycles."""
        return {**self.taken, **self.events}
