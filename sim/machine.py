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
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from .exchange import MEMORY_OF, NEVER, EngineError, Exchange, Wait
from .node import Node
from .trace import RECORD

__all__ = ["MEMORY_BYTES", "Machine", "Outcome", "Task"]

MEMORY_BYTES = 1 << 36
_ALARM_WAKE = 2
_STOPS = {1: "stopped", 2: "hang", 3: "limit", 4: "error"}

# Layouts of sim/engine/engine.h.
_HEAD = struct.Struct("<QQQQQ216s")
_REQUEST = struct.Struct("<QQQBBBB64s4x")
#: Of a wake: cycle, token, kind and data.
_WAKE = struct.Struct("<QQH6x64s")
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)


def _view(address: int, size: int) -> memoryview:
    """Bytes of the engine."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


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
        self._exchange = Exchange()
        self._tasks: dict[Task, None] = {}
        self._active = 0
        self._ready: deque[Task] = deque()
        self._error: BaseException | None = None
        self._drain = True
        self._stopping = False
        self._handler = _HANDLER(self._on_wake)
        #: The last evaluated cycle; -1 before the run.
        self.now = -1
        self._nodes = [Node(self, self._exchange, number) for number in range(library.bw_nodes())]
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
            self._library.bw_preload(node, MEMORY_OF[memory], offset, bytes(data), len(data))
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
        limit = NEVER if cycle_limit is None else cycle_limit - 1
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
            self.now = head[0] if head[0] != NEVER else -1
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
        waits = self._exchange.waits
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
        if self._exchange.pending:
            self._flush()
        if self._active == 0 and not self._drain:
            self.stop()

    def _close(self, tasks: Iterable[Task]) -> None:
        for task in list(tasks):
            task._coroutine.close()
            self._tasks.pop(task, None)
        if not self._tasks:
            for wait in list(self._exchange.waits.values()):
                wait.cancel()

    # Requests ---------------------------------------

    def _flush(self) -> None:
        pending, most = self._exchange.pending, self._request_capacity
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
            address = self._library.bw_memory(node, MEMORY_OF[name])
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
        self, path: Path, first: int = 0, last: int = NEVER, names: Iterable[str] = ()
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
