"""What software asks the engine for, and what it sleeps in until the answer comes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from hw.formats.command import MEMORIES

__all__ = [
    "MEMORY_OF",
    "NEVER",
    "Alarm",
    "EngineError",
    "Exchange",
    "LateWatch",
    "Load",
    "Wait",
    "Watch",
]

MEMORY_OF = {name: number for number, name in enumerate(MEMORIES)}
#: A cycle that does not come.
NEVER = (1 << 64) - 1
# Requests to the engine itself (sim/engine/engine.h).
_WATCH, _UNWATCH, _ALARM, _UNALARM = 16, 17, 18, 19


class EngineError(Exception):
    """The engine refused a request, or the machine did what it must not."""


class Exchange:
    """Requests on their way to the engine, and the waits that its answers end.

    A request is a tuple in the order of the engine's `Request`: due, address, token, node, port,
    operation, length, data.
    """

    def __init__(self) -> None:
        #: Requests until Python returns to the engine; `add` is bound once, as it is called often.
        self.pending: list[tuple[Any, ...]] = []
        self.add = self.pending.append
        #: Waits by the token that their answer bears.
        self.waits: dict[int, Wait] = {}
        self._token = 0

    def token(self) -> int:
        """A new token."""
        self._token += 1
        return self._token

    def expect(self, wait: Wait, token: int | None = None) -> int:
        """Let the answer with a token (by default a new one, which is returned) end a wait."""
        if token is None:
            token = self._token = self._token + 1
        self.waits[token] = wait
        return token

    def forget(self, token: int) -> bool:
        """Whether a wait was still to be ended; it no longer is."""
        return self.waits.pop(token, None) is not None


class Wait:
    """Something an agent can await once. It is armed when it is made, not when it is awaited."""

    __slots__ = ("_done", "_value", "_waiter")

    def __init__(self) -> None:
        self._done = False
        self._value: Any = None
        self._waiter: Callable[[], None] | None = None

    def __await__(self) -> Generator[Wait, None, Any]:
        if not self._done:
            yield self
        return self._value

    @property
    def done(self) -> bool:
        """Whether it has ended; awaiting it then does not sleep."""
        return self._done

    def cancel(self) -> None:
        """Give it up. Nobody may await it afterwards."""
        if not self._done:
            self._waiter = None

    def _finish(self, value: Any) -> None:
        self._done, self._value = True, value
        if self._waiter:
            self._waiter()


class Load(Wait):
    """A load: its value is the first bytes of what comes back."""

    __slots__ = ("_length",)

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def _finish(self, value: bytes) -> None:
        super()._finish(value[: self._length])


class Watch(Wait):
    """A wait for a commit to a line."""

    __slots__ = ("_arguments", "_exchange", "_token")

    def __init__(self, exchange: Exchange, node: int, memory: int, address: int) -> None:
        Wait.__init__(self)
        self._exchange, self._token = exchange, exchange.expect(self)
        self._arguments = (address, self._token, node, memory)
        exchange.add((0, *self._arguments, _WATCH, 0, b""))

    def cancel(self) -> None:
        if not self._done:
            self._waiter = None
            if self._exchange.forget(self._token):
                self._exchange.add((0, *self._arguments, _UNWATCH, 0, b""))


class LateWatch:
    """A lasting watch of one line, for software to which what it polls is news only later.

    Each commit to the line is kept, with the line as it was then, and handed out with others up to
    `patience` cycles later: that costs a fraction of being told of each one. `node.now` is the
    cycle of the commit meanwhile, and a command may be due `patience` + 1 cycles after it at the
    earliest; an earlier one is refused.
    """

    def __init__(
        self, exchange: Exchange, node: int, memory: int, address: int, patience: int
    ) -> None:
        if patience < 1:
            raise ValueError(f"patience of {patience} cycles: allowed 1 or more")
        self._exchange, self._patience = exchange, patience.to_bytes(8, "little")
        self._arguments = (address, exchange.token(), node, memory)

    def wait(self, late_from: int | None = 0) -> Wait:
        """Wait for the next commit; the wait gives the 64 bytes of the line.

        One before cycle `late_from` (None: any) is told at once.
        """
        wait = Wait()
        self._exchange.expect(wait, self._arguments[1])
        start = NEVER if late_from is None else max(late_from, 0)
        self._exchange.add((start, *self._arguments, _WATCH, 0, self._patience))
        return wait

    def cancel(self) -> None:
        """End the watch."""
        self._exchange.add((0, *self._arguments, _UNWATCH, 0, b""))


class Alarm(Wait):
    """A wait for a cycle."""

    __slots__ = ("_cycle", "_exchange", "_node", "_token")

    def __init__(self, exchange: Exchange, node: int, cycle: int) -> None:
        super().__init__()
        self._exchange, self._token = exchange, exchange.expect(self)
        self._node, self._cycle = node, cycle
        exchange.add((cycle, 0, self._token, node, 0, _ALARM, 0, b""))

    def cancel(self) -> None:
        if not self._done:
            self._waiter = None
            if self._exchange.forget(self._token):
                self._exchange.add((self._cycle, 0, self._token, self._node, 0, _UNALARM, 0, b""))
