"""One node, as its own software sees it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import numpy as np

from hw.formats.command import MAILBOXES, Operation

from .exchange import MEMORY_OF, Alarm, EngineError, Exchange, LateWatch, Load, Wait, Watch

if TYPE_CHECKING:
    from .machine import Machine, Task

__all__ = ["Node"]

LINE = 64
_PORT_OF = {name: number for number, name in enumerate(MAILBOXES)}
_TRACE_PORT = _PORT_OF["trace"]
_STORE, _LOAD = Operation.STORE.value, Operation.LOAD.value
_CONFIGURE, _TRACE = Operation.CONFIGURE.value, Operation.TRACE.value


class Node:
    """One node, as its own software sees it.

    Commands are taken in order of their due cycle, then of the calls; `due` is at least the cycle
    after `now`, which is its default. The bytes of a store or load lie within one 64-byte line.
    """

    def __init__(self, machine: Machine, exchange: Exchange, number: int) -> None:
        self.number = number
        self._machine, self._exchange = machine, exchange
        self._add = exchange.add

    @property
    def now(self) -> int:
        """The last evaluated cycle; -1 before the run."""
        return self._machine.now

    def store(
        self, port: str, address: int, data: bytes, due: int | None = None, mark: int = 0
    ) -> None:
        """Write `data` at `address` by a processor ("gpu" or "cpu").

        `mark` is repeated by the events that the store causes (decision 5).
        """
        room, length = LINE - address % LINE, len(data)
        if not 0 < length <= room:
            raise ValueError(
                f"store of {length} bytes at {address:#x}: allowed 1 to {room} (one line)"
            )
        due = self._due(due)
        self._add((due, address, mark, self.number, _PORT_OF[port], _STORE, length, data))

    def load(self, port: str, address: int, length: int, due: int | None = None) -> Wait:
        """Read `length` bytes at `address` by a processor; the wait gives them."""
        room = LINE - address % LINE
        if not 0 < length <= room:
            raise ValueError(
                f"load of {length} bytes at {address:#x}: allowed 1 to {room} (one line)"
            )
        due, wait = self._due(due), Load(length)
        token = self._exchange.expect(wait)
        self._add((due, address, token, self.number, _PORT_OF[port], _LOAD, length, b""))
        return wait

    def configure(self, table: int, index: int, data: bytes, due: int | None = None) -> None:
        """Write one word (up to 64 bytes) of a table by the configuration bus."""
        if not 0 < len(data) <= LINE:
            raise ValueError(f"configuration word of {len(data)} bytes: allowed 1 to {LINE}")
        due, port = self._due(due), _PORT_OF["config"]
        self._add((due, table << 32 | index, 0, self.number, port, _CONFIGURE, len(data), data))

    def trace(self, kind: int, payload: int, due: int | None = None) -> None:
        """Log an event (160-bit payload) in the due cycle; `OverflowError` if it is wider."""
        data = payload.to_bytes(20, "little")
        self._add((self._due(due), 0, kind, self.number, _TRACE_PORT, _TRACE, 20, data))

    def memory(self, name: str) -> np.ndarray:
        """All committed bytes of a memory, read only."""
        return self._machine.memory(self.number, name)

    def watch(self, memory: str, address: int) -> Wait:
        """Wait for the next commit, by anybody, to the 64-byte line of `address` (low 36 bits).

        The wait gives the 64 bytes of the line. It is armed at once: arm, look, then await, and no
        commit is lost.
        """
        return Watch(self._exchange, self.number, MEMORY_OF[memory], address)

    def late_watch(self, memory: str, address: int, patience: int) -> LateWatch:
        """A lasting watch of the 64-byte line of `address`, told up to `patience` cycles late."""
        return LateWatch(self._exchange, self.number, MEMORY_OF[memory], address, patience)

    def until(self, cycle: int) -> Wait:
        """Wait for a cycle (a past or present one: do not sleep); the wait gives it."""
        machine = self._machine
        if cycle > machine.now:
            return Alarm(self._exchange, self.number, cycle)
        wait = Wait()
        wait._finish(machine.now)
        return wait

    def sleep(self, cycles: int) -> Wait:
        """Wait for `cycles` from now."""
        return self.until(self._machine.now + cycles)

    async def first(self, *waits: Wait) -> int:
        """Sleep until one of `waits` has ended, cancel the others and give its index."""
        gate = Wait()

        def end() -> None:
            if not gate.done:
                gate._finish(None)

        for wait in waits:
            if wait.done:
                end()
            wait._waiter = end
        await gate
        index = next(index for index, wait in enumerate(waits) if wait.done)
        for other in waits:
            other.cancel()
        return index

    def spawn(
        self, coroutine: Coroutine[Any, Any, Any], name: str | None = None, daemon: bool = False
    ) -> Task:
        """Start another agent of this node."""
        return self._machine.spawn(coroutine, name, daemon)

    def _due(self, due: int | None) -> int:
        now = self._machine.now
        if due is None:
            return now + 1
        if due <= now:
            raise EngineError(f"a command is due in cycle {due}, but cycle {now} is done")
        return due
