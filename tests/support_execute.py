"""Executes jobs on the machine, one after the other, and takes down what was seen of each."""

import json
from pathlib import Path

import numpy as np
from support_jobs import lay_out, place_of
from support_run import toml
from support_seen import seen_of

from hw.config import Structure
from sim.launch import launch
from sim.run import binary_for
from sim.scenario import loads
from sim.trace import RECORD, Events

__all__ = ["execute"]


def _timing():
    text = toml(op=[{"node": 0, "peer": 1, "size": 8, "verb": "write"}])
    return loads(text, "conformance.toml").timing_words(0, "gda_minimal")


class _Image:
    """Random bytes where payload is read from: runs of (memory, first, end) at the sender."""

    def __init__(self, runs):
        self._runs = [
            (memory, first, np.random.default_rng(number).bytes(end - first))
            for number, (memory, first, end) in enumerate(runs)
        ]

    @property
    def raw(self):
        return b"".join(raw for *_, raw in self._runs)

    @property
    def preload(self):
        """(memory, offset, where it stands in `raw`, length) of each run."""
        at = 0
        for memory, first, raw in self._runs:
            yield memory, first, at, len(raw)
            at += len(raw)

    def __call__(self, memory, offset, length):
        for name, first, raw in self._runs:
            if name == memory and first <= offset and offset + length <= first + len(raw):
                return raw[offset - first : offset - first + length]
        raise AssertionError("payload outside the image")


def execute(jobs, folder):
    """Runs jobs in one simulator process; returns what was seen of each, in order.

    Raises `RuntimeError` if the simulator failed.
    """
    if not jobs:
        return []
    image = _Image(lay_out(jobs))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    structure = Structure()
    plans = [
        job.plain(job.qpn % structure.qps) | {"restore": _restored(job, image)} for job in jobs
    ]
    limit = 1_000_000 + sum(40_000 + plan["bytes"] + 5000 * len(plan["steps"]) for plan in plans)
    plan = {"timing": [word.hex() for word in _timing()], "jobs": plans, "limit": limit}
    plan["preload"] = list(image.preload)
    (folder / "jobs.json").write_text(json.dumps(plan))
    (folder / "image.bin").write_bytes(image.raw)
    ended = launch(
        binary_for(structure),
        "bench_conformance",
        folder,
        paths=[Path(__file__).parent],
        timeout_s=600,
    )
    if not ended.passed:
        raise RuntimeError("; ".join(ended.failures))
    return list(_results(jobs, folder, image))


def _restored(job, image):
    """(address, bytes) of what responses wrote over: the image must be whole for the next job."""
    return [
        [address & (1 << 48) - 1, image(*place_of(job.item, address), length).hex()]
        for address, length, _ in job.landings
    ]


def _results(jobs, folder, image):
    log = Events(np.fromfile(folder / "events.bin", RECORD))
    rows = np.load(folder / "beats.npy")
    kept, at = (folder / "kept.bin").read_bytes(), 0
    times = json.loads((folder / "results.json").read_text())
    for job, (begin, end) in zip(jobs, times, strict=True):
        mine = {}
        for name, places in job.kept.items():
            mine[name] = []
            for *_, size in places:
                mine[name].append(kept[at : at + size])
                at += size
        yield seen_of(log, rows, mine, image, begin, end)
