"""Results made by hand, and a simulator that needs no model: what `run.py` gets from one."""

from support_log import Log

from sim.job import (
    EVENTS_FILE,
    MESSAGE_COLUMNS,
    Job,
    MemoryCheck,
    Messages,
    QueueState,
    Status,
    progress_line,
)
from sim.launch import Ended
from sim.result import PathResult
from sim.scenario import load

SCENARIO = """
schema = "bellwire.scenario/1"
preset = "h200-cx7-ib200"
seed = 3
paths = ["gda_minimal", "ibrc"]

[[workload]]
kind = "put"
size = [8, 64]
count = 2

[[expect]]
metric = "wrong"
equal = 0
"""


def group(size=8, p50=1000.0, **changes):
    """A group of `result.json`."""
    latency = dict.fromkeys(("min", "p50", "p90", "p99", "p999", "max", "mean"), p50)
    segments = {"ring": p50 / 4, "tx_first": p50 / 4, "seen": p50 / 2}
    return {
        "size": size, "count": 2, "finished": 2, "latency_ns": latency, "rate_mops": 1000 / p50,
        "goodput_gbps": 8 * size / p50, "segments_ns": segments, "landed_ns": None,
        "limiter": "latency", "wrong": 0,
    } | changes  # fmt: skip


def path_result(path="gda_minimal", groups=None, **changes):
    """What a path contributes."""
    values = {
        "path": path, "groups": groups or [group()], "posted": 2, "completed": 2,
        "statuses": {"SUCCESS": 2}, "counters": {"doorbells": 2}, "links": {"wire": {"packets": 4}},
        "violations": [], "hang": None, "cycles": 5000, "wall_s": 0.5,
        "event_log_sha256": "ab" * 32,
    }  # fmt: skip
    return PathResult(**values | changes)


class _Flat(Log):
    """QPs have the same context at both ends, as plans of two nodes give them."""

    far = staticmethod(lambda node, peer, qp: qp)


def fake_launch(ended="done", wrong=(), die=False, interrupt=None):
    """A stand-in for `sim.launch.launch` that does what the bench does, for puts that all go well.

    Parameters
    ----------
    interrupt
        Path in which the user presses Ctrl-C.
    """

    def launch(binary, module, work, *, nodes, seed, timeout_s, progress):
        job = Job.load(work)
        scenario = load(work / job.scenario)
        assert (module, nodes, seed) == ("sim.bench", 2, scenario.seed)
        (work / "sim.log").write_text(f"ran {job.path}\n")
        if job.path == interrupt:
            raise KeyboardInterrupt
        if die:
            return Ended(False, 1, ("the simulator ended: signal 11",), work / "sim.log")
        log, rows, plan = _Flat(), [], scenario.plan
        for m in plan.messages:
            qp = plan.connection(m.node, m.peer, m.qp).context(m.node)
            inline = plan.inlined(m, job.path)
            done = ended == "done" or m.number == 0
            cycle = 100 + 5000 * m.number
            if done:
                log.write(cycle, node=m.node, peer=m.peer, qp=qp, size=m.size, inline=inline,
                          proxy=job.path == "ibrc")  # fmt: skip
            index = m.number if done else -1
            rows.append((m.number, m.group, m.node, m.peer, m.producer, qp, index, 1,
                         m.size, int(inline), 1, int(done)))  # fmt: skip
            progress(progress_line(m.number + 1, len(plan.messages), cycle))
        progress("something else that was printed")
        columns = {name: [row[i] for row in rows] for i, name in enumerate(MESSAGE_COLUMNS)}
        (work / EVENTS_FILE).write_bytes(log.events().records.tobytes())
        Messages(columns=columns).save(work)
        MemoryCheck(payload_bytes=144, guard_bytes=64, wrong=tuple(wrong), total=len(wrong)).save(
            work
        )
        state = QueueState(node=0, qp=0, posted=4, rung=4, completed=4)
        Status(ended=ended, cycles=30000, wall_s=0.25, reason="" if ended == "done" else "told so",
               queues=(state,)).save(work)  # fmt: skip
        return Ended(True, 0, (), work / "sim.log")

    return launch
