"""The Python side of the engine, inside the simulator's process.

A `Machine` owns the links, the run and the results. An agent (the software of one node) is a
coroutine that gets a `Node` and reaches nothing but that node's ports and memories. Agents sleep in
the `Wait`s that a node hands out; the engine calls Python only when one of them ends. They are
driven by the machine, not by cocotb's scheduler: cocotb's triggers cost several times more per wake
and their time is not the machine's.

    @cocotb.test()
    async def main(dut):
        machine = Machine(dut)
        machine.link(0, 1, cycles=200)
        machine.link(1, 0, cycles=200)
        machine.preload(0, "gpu", 0x1000, b"hello")
        machine.spawn(producer(machine.node(0)), name="producer")
        outcome = await machine.run(cycle_limit=1_000_000)
        assert outcome.reason == "done", outcome
        log = machine.events()
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from hw.formats.command import MAILBOXES, MEMORIES, Operation

from .trace import RECORD

__all__ = [
    "EngineError",
    "LateWatch",
    "Machine",
    "Node",
    "Outcome",
    "Task",
    "Wait",
]

_PORT_OF = {name: number for number, name in enumerate(MAILBOXES)}
_MEMORY_OF = {name: number for number, name in enumerate(MEMORIES)}
_TRACE_PORT = _PORT_OF["trace"]
MEMORY_BYTES = 1 << 36
LINE = 64

_STORE, _LOAD = Operation.STORE.value, Operation.LOAD.value
_CONFIGURE, _TRACE = Operation.CONFIGURE.value, Operation.TRACE.value
# Requests to the engine itself (sim/engine/engine.h).
_WATCH, _UNWATCH, _ALARM, _UNALARM = 16, 17, 18, 19
_ALARM_WAKE = 2
_STOPS = {1: "stopped", 2: "hang", 3: "limit", 4: "error"}
_NEVER = (1 << 64) - 1

# Layouts of sim/engine/engine.h.
_HEAD = struct.Struct("<QQQQQ216s")
_REQUEST = struct.Struct("<QQQBBBB64s4x")
#: Of a wake: cycle, token, kind and data.
_WAKE = struct.Struct("<QQH6x64s")
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)


def _view(address: int, size: int) -> memoryview:
    """Bytes of the engine."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


class EngineError(Exception):
    """The engine refused a request, or the machine did what it must not."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended, and what it took."""

    #: done: all agents returned. hang: nothing can ever happen again, but agents wait.
    #: limit: the cycle limit was reached. stopped: `Machine.stop` was called.
    reason: str
    #: Cycles from 0 to the last one evaluated.
    cycles: int
    #: Evaluations of a node; with idle skipping fewer than cycles x nodes.
    node_cycles: int
    #: Records that woke an agent, and how often Python was entered for them.
    wakes: int
    visits: int
    events: int
    wall_s: float
    #: Time of a processor; other work on the machine disturbs it less.
    cpu_s: float
    #: Names of the agents that had not returned.
    unfinished: tuple[str, ...]


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


class _Load(Wait):
    """A load: its value is the first bytes of what comes back."""

    __slots__ = ("_length",)

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def _finish(self, value: bytes) -> None:
        super()._finish(value[: self._length])


class _Watch(Wait):
    """A wait for a commit to a line."""

    __slots__ = ("_arguments", "_machine", "_token")

    def __init__(self, machine: Machine, node: int, memory: int, address: int) -> None:
        Wait.__init__(self)
        self._machine, self._token = machine, machine._expect(self)
        self._arguments = (address, self._token, node, memory)
        machine._add((0, *self._arguments, _WATCH, 0, b""))

    def cancel(self) -> None:
        if not self._done:
            self._waiter = None
            if self._machine._forget(self._token):
                self._machine._add((0, *self._arguments, _UNWATCH, 0, b""))


class LateWatch:
    """A lasting watch of one line, for software to which what it polls is news only later.

    Each commit to the line is kept, with the line as it was then, and handed out with others up to
    `patience` cycles later: that costs a fraction of being told of each one. `node.now` is the
    cycle of the commit meanwhile, and a command may be due `patience` + 1 cycles after it at the
    earliest; an earlier one is refused.
    """

    def __init__(
        self, machine: Machine, node: int, memory: int, address: int, patience: int
    ) -> None:
        if patience < 1:
            raise ValueError(f"patience of {patience} cycles: allowed 1 or more")
        machine._token += 1
        self._machine, self._patience = machine, patience.to_bytes(8, "little")
        self._arguments = (address, machine._token, node, memory)

    def wait(self, late_from: int | None = 0) -> Wait:
        """Wait for the next commit; the wait gives the 64 bytes of the line.

        One before cycle `late_from` (None: any) is told at once.
        """
        wait, machine = Wait(), self._machine
        machine._waits[self._arguments[1]] = wait
        start = _NEVER if late_from is None else max(late_from, 0)
        machine._add((start, *self._arguments, _WATCH, 0, self._patience))
        return wait

    def cancel(self) -> None:
        """End the watch."""
        self._machine._add((0, *self._arguments, _UNWATCH, 0, b""))


class _Alarm(Wait):
    """A wait for a cycle."""

    __slots__ = ("_cycle", "_machine", "_node", "_token")

    def __init__(self, machine: Machine, node: int, cycle: int) -> None:
        super().__init__()
        self._machine, self._token = machine, machine._expect(self)
        self._node, self._cycle = node, cycle
        machine._add((cycle, 0, self._token, node, 0, _ALARM, 0, b""))

    def cancel(self) -> None:
        if not self._done:
            self._waiter = None
            if self._machine._forget(self._token):
                self._machine._add((self._cycle, 0, self._token, self._node, 0, _UNALARM, 0, b""))


class Task(Wait):
    """A running agent; awaiting it gives what it returns."""

    __slots__ = ("_coroutine", "_machine", "daemon", "name")

    def __init__(
        self, machine: Machine, coroutine: Coroutine[Any, Any, Any], name: str, daemon: bool
    ) -> None:
        super().__init__()
        self._machine, self._coroutine, self.name, self.daemon = machine, coroutine, name, daemon

    def _ready(self) -> None:
        self._machine._ready.append(self)

    def _step(self) -> None:
        try:
            wait = self._coroutine.send(None)
        except StopIteration as stop:
            self._machine._tasks.pop(self, None)
            if not self.daemon:
                self._machine._active -= 1
            self._finish(stop.value)
            return
        if not isinstance(wait, Wait):
            raise TypeError(
                f"agent {self.name!r} awaits {wait!r}; an agent awaits only what its node hands out"
            )
        if wait._waiter:
            raise RuntimeError(f"agent {self.name!r} awaits what another agent awaits")
        wait._waiter = self._ready


class Node:
    """One node, as its own software sees it.

    Commands are taken in order of their due cycle, then of the calls; `due` is at least the cycle
    after `now`, which is its default. The bytes of a store or load lie within one 64-byte line.
    """

    def __init__(self, machine: Machine, number: int) -> None:
        self.number = number
        self._machine = machine
        self._add = machine._add

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
        due, wait = self._due(due), _Load(length)
        token = self._machine._expect(wait)
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
        return _Watch(self._machine, self.number, _MEMORY_OF[memory], address)

    def late_watch(self, memory: str, address: int, patience: int) -> LateWatch:
        """A lasting watch of the 64-byte line of `address`, told up to `patience` cycles late."""
        return LateWatch(self._machine, self.number, _MEMORY_OF[memory], address, patience)

    def until(self, cycle: int) -> Wait:
        """Wait for a cycle (a past or present one: do not sleep); the wait gives it."""
        machine = self._machine
        if cycle > machine.now:
            return _Alarm(machine, self.number, cycle)
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


class Machine:
    """The running simulation. One per process, one run per machine.

    Parameters
    ----------
    dut
        cocotb's handle of the bench.
    """

    def __init__(self, dut: Any) -> None:
        self._wake = dut.wake
        # Not CDLL: these calls are short and must not give up the interpreter lock.
        library = self._library = ctypes.PyDLL(None)
        u32, u64, pointer = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
        for name, result, arguments in (
            ("bw_nodes", u32, ()),
            ("bw_shared", pointer, ()),
            ("bw_memory", pointer, (u32, u32)),
            ("bw_link", ctypes.c_int, (u32, u32, u32, u32, u64)),
            ("bw_preload", ctypes.c_int, (u32, u32, u64, ctypes.c_char_p, u64)),
            ("bw_start", ctypes.c_int, (u64, ctypes.c_int, ctypes.c_int, _HANDLER)),
            ("bw_stop", None, ()),
            ("bw_flush", ctypes.c_int, (u64,)),
            ("bw_events", pointer, (ctypes.POINTER(u64),)),
            ("bw_tap", None, ()),
            ("bw_tapped", pointer, (ctypes.POINTER(u64), ctypes.POINTER(u64))),
            ("bw_counters", None, (ctypes.POINTER(u64),)),
            ("bw_save", ctypes.c_int, (ctypes.c_char_p,)),
            ("bw_waves_open", ctypes.c_int, (ctypes.c_char_p, u64, u64, ctypes.c_char_p)),
            ("bw_waves_close", None, ()),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        shared = library.bw_shared()
        self._head = (ctypes.c_char * _HEAD.size).from_address(shared)
        _, _, _, self._request_capacity, wake_capacity, _ = _HEAD.unpack(self._head)
        first = shared + _HEAD.size
        self._requests = _view(first, self._request_capacity * _REQUEST.size)
        first += self._request_capacity * _REQUEST.size
        self._wakes = _view(first, wake_capacity * _WAKE.size)
        # Requests wait as tuples, in the order of `_REQUEST`, until Python returns to the engine.
        self._pending: list[tuple[Any, ...]] = []
        self._add = self._pending.append
        self._token = 0
        self._waits: dict[int, Wait] = {}
        self._tasks: dict[Task, None] = {}
        self._active = 0
        self._ready: deque[Task] = deque()
        self._error: BaseException | None = None
        self._drain = True
        self._stopping = False
        self._handler = _HANDLER(self._on_wake)
        #: The last evaluated cycle; -1 before the run.
        self.now = -1
        self._nodes = [Node(self, number) for number in range(library.bw_nodes())]
        self._memories: dict[tuple[int, str], np.ndarray] = {}

    # Before the run ---------------------------------------

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, number: int) -> Node:
        """The handle for the agents of a node."""
        return self._nodes[number]

    def link(
        self, source: int, target: int, cycles: int, *, source_port: int = 0, target_port: int = 0
    ) -> None:
        """Connect what a port of node `source` sends to what one of node `target` receives.

        Beats and credits take `cycles` each way. The nodes may be the same.
        """
        self._check(self._library.bw_link(source, source_port, target, target_port, cycles))

    def preload(self, node: int, memory: str, offset: int, data: bytes) -> None:
        """Write a memory before cycle 0, at no cost in time."""
        self._check(
            self._library.bw_preload(node, _MEMORY_OF[memory], offset, bytes(data), len(data))
        )

    def spawn(
        self, coroutine: Coroutine[Any, Any, Any], name: str | None = None, daemon: bool = False
    ) -> Task:
        """Start an agent. The run ends when all agents but daemons have returned."""
        task = Task(self, coroutine, name or coroutine.__name__, daemon)
        self._tasks[task] = None
        self._active += not daemon
        self._ready.append(task)
        return task

    # The run ---------------------------------------

    async def run(
        self,
        *,
        cycle_limit: int | None = None,
        skip: bool = True,
        record: bool = False,
        drain: bool = True,
    ) -> Outcome:
        """Run until all agents have returned, or nothing can happen any more, or the limit.

        Parameters
        ----------
        cycle_limit
            Number of cycles; None: no limit.
        skip
            Idle skipping. Off is slower and changes nothing else.
        record
            Keep the stimulus, for `save_recording`.
        drain
            After the last agent, go on until the machine is quiet.

        Raises
        ------
        Exception
            What an agent raised.
        EngineError
            If a request was refused or the RTL did what it must not.
        """
        start, busy = time.monotonic(), time.process_time()
        self._drain = drain
        try:
            self._step()
        except BaseException as error:
            self._fail(error)
        limit = _NEVER if cycle_limit is None else cycle_limit - 1
        try:
            if self._error is None and cycle_limit != 0:
                self._check(self._library.bw_start(limit, skip, record, self._handler))
                if self._stopping:
                    self._library.bw_stop()
                else:
                    await self._wake.value_change
        finally:
            # Whatever ends this coroutine, a test's time limit included, must end the clock loop.
            head = _HEAD.unpack(self._head)
            self._library.bw_stop()
            self.now = head[0] if head[0] != _NEVER else -1
            unfinished = tuple(task.name for task in self._tasks if not task.daemon)
            self._close(self._tasks)
        if self._error is not None:
            raise self._error
        reason = _STOPS.get(head[2], "stopped")
        if reason == "error":
            raise EngineError(self._text())
        if not unfinished and reason in ("hang", "stopped"):
            reason = "done"
        counters = (ctypes.c_uint64 * 8)()
        self._library.bw_counters(counters)
        return Outcome(
            reason,
            self.now + 1,
            counters[1],
            counters[2],
            counters[3],
            counters[4],
            time.monotonic() - start,
            time.process_time() - busy,
            unfinished,
        )

    def stop(self) -> None:
        """End the run after the current cycle."""
        self._stopping = True
        self._library.bw_stop()

    def _on_wake(self, now: int, count: int) -> None:
        waits = self._waits
        try:
            for cycle, token, kind, data in _WAKE.iter_unpack(self._wakes[: count * _WAKE.size]):
                # Told late: software lives through each cycle before the next one.
                if cycle != self.now:
                    self._run_ready()
                    self.now = cycle
                wait = waits.pop(token, None)
                if wait is not None:
                    wait._finish(cycle if kind == _ALARM_WAKE else data)
            self._step()
            self.now = now
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self.stop()

    def _run_ready(self) -> None:
        ready = self._ready
        while ready:
            ready.popleft()._step()

    def _step(self) -> None:
        self._run_ready()
        if self._active == 0 and self._tasks:
            self._close([task for task in self._tasks if task.daemon])
        if self._pending:
            self._flush()
        if self._active == 0 and not self._drain:
            self.stop()

    def _close(self, tasks: Iterable[Task]) -> None:
        for task in list(tasks):
            task._coroutine.close()
            self._tasks.pop(task, None)
        if not self._tasks:
            for wait in list(self._waits.values()):
                wait.cancel()

    # Requests ---------------------------------------

    def _expect(self, wait: Wait) -> int:
        token = self._token = self._token + 1
        self._waits[token] = wait
        return token

    def _forget(self, token: int) -> bool:
        return self._waits.pop(token, None) is not None

    def _flush(self) -> None:
        pending, most = self._pending, self._request_capacity
        packed = b"".join(starmap(_REQUEST.pack, pending))
        count = len(pending)
        pending.clear()
        for first in range(0, count, most):
            part = packed[first * _REQUEST.size : (first + most) * _REQUEST.size]
            self._requests[: len(part)] = part
            self._check(self._library.bw_flush(len(part) // _REQUEST.size))

    def _text(self) -> str:
        return _HEAD.unpack(self._head)[5].split(b"\0", 1)[0].decode(errors="replace")

    def _check(self, done: int) -> None:
        if not done:
            raise EngineError(self._text())

    # Results ---------------------------------------

    def memory(self, node: int, name: str) -> np.ndarray:
        """All committed bytes of a memory, read only."""
        view = self._memories.get((node, name))
        if view is None:
            address = self._library.bw_memory(node, _MEMORY_OF[name])
            view = np.ctypeslib.as_array((ctypes.c_uint8 * MEMORY_BYTES).from_address(address))
            view.flags.writeable = False
            self._memories[node, name] = view
        return view

    def events(self) -> np.ndarray:
        """A copy of the event log, sorted by (cycle, node, kind, payload)."""
        count = ctypes.c_uint64()
        address = self._library.bw_events(ctypes.byref(count))
        if not count.value:
            return np.empty(0, RECORD)
        raw = (ctypes.c_uint8 * (count.value * RECORD.itemsize)).from_address(address)
        return np.frombuffer(memoryview(raw), RECORD).copy()

    def tap(self) -> None:
        """Keep every beat that a node sends on its wire from now on, for `tapped`."""
        self._library.bw_tap()

    def tapped(self) -> np.ndarray:
        """A copy of what was sent on the wires since `tap`, in order.

        Rows of 64-bit words: cycle, node, then the bits of the beat (a `WireBeat`), lowest first.
        """
        records, words = ctypes.c_uint64(), ctypes.c_uint64()
        address = self._library.bw_tapped(ctypes.byref(records), ctypes.byref(words))
        if not records.value:
            return np.empty((0, 2), np.uint64)
        raw = (ctypes.c_uint64 * (records.value * words.value)).from_address(address)
        return np.frombuffer(memoryview(raw), np.uint64).reshape(records.value, words.value).copy()

    def save_recording(self, path: Path) -> None:
        """Save the stimulus of a recorded run, for `sim.launch.replay`."""
        self._check(self._library.bw_save(str(path).encode()))

    def open_waves(
        self, path: Path, first: int = 0, last: int = _NEVER, names: Iterable[str] = ()
    ) -> None:
        """Before the run: write waveforms of some cycles (needs `build(trace=True)`).

        Parameters
        ----------
        path
            Made when the window is reached.
        first, last
            Cycles of the window. Time in the file is the cycle.
        names
            Signals, or scopes with all below them, such as `n0.node.nic.wire`; none: everything.
        """
        text = "\n".join(names).encode()
        self._check(self._library.bw_waves_open(str(path).encode(), first, last, text))

    def close_waves(self) -> None:
        """End the waveform file."""
        self._library.bw_waves_close()
