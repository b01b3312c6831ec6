"""The interface between `run.py` and the simulator's process: one path of one scenario, in a
working directory of its own.

`run.py` writes `job.json` (`Job`) and starts the simulator there with the cocotb module
`sim.bench`. The bench reads it and leaves

| file | what |
|---|---|
| `events.bin` | the event log, raw records of 32 bytes (decision 3) |
| `messages.json` | `Messages`: what software did with each message of the plan |
| `memory.json` | `MemoryCheck`: what the memories hold after the run, against what they should |
| `status.json` | `Status`, written last: its absence means that the process died |
| `recording.bin` | the stimulus, if `Job.record` |
| `link-*.pcap` | what the links carried, if `Job.pcap` |
| `Job.wave_file` | if `Job.waves` and the run reaches them |

and prints, at most once per second, `progress_line(...)`.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

__all__ = [
    "ENDED",
    "EVENTS_FILE",
    "MESSAGE_COLUMNS",
    "Difference",
    "Job",
    "MemoryCheck",
    "Messages",
    "QueueState",
    "Status",
    "parse_progress",
    "progress_line",
]

JOB_FILE, EVENTS_FILE, MESSAGES_FILE = "job.json", "events.bin", "messages.json"
MEMORY_FILE, STATUS_FILE, RECORDING_FILE = "memory.json", "status.json", "recording.bin"

#: done: all messages completed. hang: no progress within the watchdog, or nothing can happen any
#: more. limit: simulated or wall time is used up. error: the bench or the engine failed.
ENDED = ("done", "hang", "limit", "error")

#: Columns of `messages.json`, integers, in the order of the plan; -1: not (yet). `qp` is the
#: context index at `node`.
MESSAGE_COLUMNS = (
    "message",
    "group",
    "node",
    "peer",
    "producer",
    "qp",
    "wqe_index",
    "blocks",
    "size",
    "inline",
    "signaled",
    "completed",
)

_PROGRESS = "@progress"


class _Record:
    """A frozen dataclass that is one JSON file."""

    FILE = ""

    def save(self, folder: str | Path) -> None:
        """Write it into `folder`."""
        place = Path(folder) / self.FILE
        scratch = place.with_suffix(".tmp")
        scratch.write_text(json.dumps(asdict(self)))  # type: ignore[call-overload]
        scratch.rename(place)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read it from `folder`; raises `FileNotFoundError` or `ValueError`."""
        table = json.loads((Path(folder) / cls.FILE).read_text())
        known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
        if not isinstance(table, dict) or set(table) - set(known):
            raise ValueError(f"{Path(folder) / cls.FILE}: no {cls.__name__}")
        return cls(**{key: _thaw(known[key], value) for key, value in table.items()})


def _thaw(item: Any, value: Any) -> Any:
    make: Callable[..., Any] | None = item.metadata.get("of")
    if make is not None:
        return tuple(make(**entry) for entry in value)
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, kw_only=True)
class Job(_Record):
    """What the simulator's process is to do."""

    FILE = JOB_FILE

    #: The resolved scenario, relative to the working directory.
    scenario: str
    path: str
    seed: int
    #: Do not evaluate nodes that are quiet.
    skip_idle: bool = True
    #: Keep the stimulus for a replay without Python.
    record: bool = False
    #: First and last cycle of waveforms; empty: none.
    waves: tuple[int, ...] = ()
    #: File that they go to, and the signals and scopes that are dumped; none: everything.
    wave_file: str = ""
    wave_names: tuple[str, ...] = ()
    #: Version of IP in captures of the links; 0: none are made.
    pcap: int = 0


@dataclass(frozen=True, kw_only=True)
class QueueState:
    """Indices of one send queue as its software left them, in blocks and without wrapping."""

    node: int
    qp: int
    #: Written; rung; covered by completions that software has seen.
    posted: int
    rung: int
    completed: int


@dataclass(frozen=True, kw_only=True)
class Status(_Record):
    """How the run of one path ended."""

    FILE = STATUS_FILE

    ended: str
    cycles: int
    wall_s: float
    cpu_s: float = 0.0
    #: In words, where `ended` is not "done".
    reason: str = ""
    #: Wakes of Python and evaluations of nodes.
    wakes: int = 0
    node_cycles: int = 0
    #: One per context that software used.
    queues: tuple[QueueState, ...] = field(default=(), metadata={"of": QueueState})
    #: Names of the agents that were still waiting.
    waiting: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.ended not in ENDED:
            raise ValueError(f"ended = {self.ended!r}: allowed {', '.join(ENDED)}")


@dataclass(frozen=True, kw_only=True)
class Messages(_Record):
    """What software did with each message: a list per column."""

    FILE = MESSAGES_FILE

    columns: dict[str, list[int]]

    def __post_init__(self) -> None:
        lengths = {len(self.columns.get(name, ())) for name in MESSAGE_COLUMNS}
        if set(self.columns) != set(MESSAGE_COLUMNS) or len(lengths) != 1:
            raise ValueError(f"messages: allowed equally long columns {', '.join(MESSAGE_COLUMNS)}")

    def __len__(self) -> int:
        return len(self.columns["message"])


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A run of bytes that is not what it should be."""

    node: int
    memory: str
    #: First byte, from the start of the memory, and how many.
    address: int
    count: int
    #: Up to 16 bytes from there, as hexadecimal text.
    expected: str
    found: str
    #: Message whose payload belongs there; -1: nobody may write there.
    message: int


@dataclass(frozen=True, kw_only=True)
class MemoryCheck(_Record):
    """Comparison of the data areas with the reference, after the run."""

    FILE = MEMORY_FILE

    #: Bytes compared: payload, and guards around it.
    payload_bytes: int
    guard_bytes: int
    #: At most 100 of the differences; `total` counts all.
    differences: tuple[Difference, ...] = field(default=(), metadata={"of": Difference})
    total: int = 0
    #: Numbers of all messages with a wrong byte.
    wrong: tuple[int, ...] = ()


def progress_line(done: int, total: int, cycle: int) -> str:
    """What the bench prints for `run.py`."""
    return f"{_PROGRESS} {done} {total} {cycle}"


def parse_progress(line: str) -> tuple[int, int, int] | None:
    """(messages done, messages in all, cycle) of a line that the simulator printed, if it is one of
    those.
    """
    word, _, rest = line.strip().partition(" ")
    numbers = rest.split()
    if word != _PROGRESS or len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        return None
    return int(numbers[0]), int(numbers[1]), int(numbers[2])
