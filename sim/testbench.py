"""For a test bench of your own: two nodes that are ready for work, and one line that runs it.

    @cocotb.test()
    async def my_test(dut):
        nodes = TwoNodes(dut)
        events = await nodes.run(my_software(nodes.node(0), nodes.queue(0)))

    simulate(__file__)  # from pytest, or as a script

`docs/your-own-test-bench.md` has a whole one.
"""

import tempfile
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

from hw.config import Structure

from . import addresses, connect
from .agents.queue import SendQueue
from .agents.receive_queue import ReceiveQueue
from .launch import LaunchError, launch
from .machine import Machine
from .node import Node
from .paths import PATHS
from .scenario import SCHEMA, loads
from .schema import show
from .toolchain import BuildError
from .trace import Events

__all__ = ["BuildError", "LaunchError", "SimulationFailed", "TwoNodes", "simulate"]

_TEXT = """
schema = {schema}
preset = {preset}
paths = [{path}]
[[op]]
# Nobody runs it: it says how many QPs there are.
node = 0
peer = 1
qp = {last}
verb = "write"
size = 1
"""


class SimulationFailed(Exception):
    """A run, or a test in it, failed; the text says which and why."""


class TwoNodes:
    """Two nodes, a link each way, and connected QPs; QP n of one node is that of the other.

    Parameters
    ----------
    dut
        What cocotb hands to the test.
    preset : str
    settings : iterable of str
        As `bellwire run --set` takes them: `nic.sq_depth=64`.
    qps : int
        1 to 64.
    path : str
        Whose software it stands for: rings in GPU memory (`gda_minimal`) or host memory (`ibrc`).
    receives : int
        WQEs of each QP's receive queue, a power of two from 2 to 32768; 0: there is none.
    """

    def __init__(
        self,
        dut: Any,
        preset: str = "h200-cx7-ib200",
        *,
        settings: Iterable[str] = (),
        qps: int = 1,
        path: str = "gda_minimal",
        receives: int = 0,
    ) -> None:
        if receives and (receives & (receives - 1) or not 2 <= receives <= 1 << 15):
            raise ValueError(f"receives = {receives}: allowed 0 and powers of two from 2 to 32768")
        if not 1 <= qps <= Structure().qps:
            raise ValueError(f"qps = {qps}: allowed 1 to {Structure().qps}")
        text = _TEXT.format(schema=show(SCHEMA), preset=show(preset), path=show(path), last=qps - 1)
        self.scenario, self._path = loads(text, "TwoNodes", settings), PATHS[path]
        self.machine = Machine(dut)
        self._ready_at = connect.bring_up(self.machine, self.scenario, path, receives=receives)
        self._receives = receives

    def node(self, number: int) -> Node:
        """The ports and memories of a node, for its software."""
        return self.machine.node(number)

    def queue(self, node: int, qp: int = 0) -> SendQueue:
        """A QP as software keeps it: send queue, doorbell, completions."""
        return SendQueue(
            self.node(node),
            processor=self._path.processor,
            memory=self._path.memory,
            qp=qp,
            qpn=connect.qpn(node, qp),
            depth=self.scenario.queues.sq_depth,
            cq_depth=self._path.cq_entries(self.scenario),
            start=self.scenario.queues.start_index,
        )

    def receive_queue(self, node: int, qp: int = 0) -> ReceiveQueue:
        """The receive side of a QP as software keeps it."""
        if not self._receives:
            raise ValueError("no receive queue: TwoNodes(..., receives=...) says how many WQEs")
        return ReceiveQueue(
            self.node(node),
            processor=self._path.processor,
            memory=self._path.memory,
            qp=qp,
            depth=self._receives,
        )

    def address(self, memory: str, offset: int) -> int:
        """Bus address of an offset in the memory ("gpu" or "host") of a node."""
        return addresses.bus(memory, offset)

    def fill(self, node: int, memory: str, offset: int, data: bytes) -> None:
        """Write a memory before the run, at no cost in time."""
        self.machine.preload(node, memory, offset, data)

    def read(self, node: int, memory: str, offset: int, length: int) -> bytes:
        """What a memory holds now."""
        return self.machine.memory(node, memory)[offset : offset + length].tobytes()

    async def run(
        self, *software: Coroutine[Any, Any, Any], cycle_limit: int = 10_000_000
    ) -> Events:
        """Run until all of `software` has returned and the machine is quiet; the event log.

        Raises
        ------
        SimulationFailed
            If nothing can happen any more while software waits, or the limit is reached.
        """

        async def later(body: Coroutine[Any, Any, Any]) -> None:
            await self.node(0).until(self._ready_at)
            await body

        for body in software:
            self.machine.spawn(later(body), name=body.__name__)
        outcome = await self.machine.run(cycle_limit=cycle_limit)
        if outcome.reason != "done":
            waiting = ", ".join(outcome.unfinished)
            raise SimulationFailed(f"{outcome.reason} in cycle {outcome.cycles}: {waiting} waits")
        return Events(self.machine.events())


def simulate(file: str | Path, folder: Path | None = None) -> None:
    """Build the simulator if need be, and run the cocotb tests of a Python file on two nodes.

    Parameters
    ----------
    folder
        For the log and what the tests write; None: one that is removed again.

    Raises
    ------
    SimulationFailed
        If a test failed.
    BuildError, LaunchError
        If the environment lacks something.
    """
    from .run import binary_for

    if folder is None:
        with tempfile.TemporaryDirectory(prefix="bellwire-") as scratch:
            return simulate(file, Path(scratch))
    file = Path(file).resolve()
    ended = launch(binary_for(Structure()), file.stem, folder, paths=[file.parent])
    if not ended.passed:
        said = ended.log.read_text(errors="replace").splitlines()[-25:]
        raise SimulationFailed("\n".join([*ended.failures, *said]))
