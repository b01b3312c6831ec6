"""The cocotb module: runs one path of one scenario and leaves what `sim.job` describes.

Nothing is judged here but bytes, because memory lives in this process.
"""

import time
from collections import defaultdict
from pathlib import Path

import cocotb
import numpy as np

from hw.formats.events import EventKind
from hw.units import cycles

from . import addresses, captures, connect, image, reference
from .agents import gda_minimal, ibgda, ibrc, verbs
from .job import (
    EVENTS_FILE,
    MESSAGE_COLUMNS,
    RECORDING_FILE,
    Job,
    Messages,
    QueueState,
    Status,
    progress_line,
)
from .machine import Machine
from .scenario import load
from .site import Site
from .trace import Events

#: Path to the class that makes its agents.
CREWS = {
    "gda_minimal": gda_minimal.Crew,
    "ibgda": ibgda.Crew,
    "ibrc": ibrc.Crew,
    "verbs": verbs.Crew,
}
#: Cycles between two looks at the clock on the wall.
_LOOK = 50_000
#: Events that do not show that work goes on: a poll over PCIe makes them for ever.
_IDLE_KINDS = [EventKind.TLP_SENT.value, EventKind.STALL.value, EventKind.COMMIT.value]


class Bench:
    """One run: brings the machine up, directs the agents, watches them, and says what they left.

    Parameters
    ----------
    machine : Machine
    scenario : Scenario
    path : str
    """

    def __init__(self, machine, scenario, path):
        self.machine, self.scenario, self.plan = machine, scenario, scenario.plan
        self.site = Site(machine, scenario, path)
        self._crew = CREWS[path](self.site)
        self.ended, self.reason = "done", ""
        self._started = time.monotonic()

    # Before cycle 0 -------------------------------------------------------------------------------

    def bring_up(self):
        """Links, contexts and registered memory."""
        for region in self.plan.regions:
            self.machine.preload(
                region.node,
                region.memory,
                addresses.DATA + region.offset,
                image.initial(region, self.scenario.seed).tobytes(),
            )
        self._ready_at = connect.bring_up(self.machine, self.scenario, self.site.path.name)

    # The run --------------------------------------------------------------------------------------

    async def direct(self):
        """Phases one after the other; in each, all producers at once."""
        await self.machine.node(0).until(self._ready_at)
        for phase in self.plan.phases:
            by_thread = defaultdict(list)
            for number in phase.messages:
                message = self.plan.messages[number]
                by_thread[message.node, message.peer, message.qp, message.producer].append(message)
            window = phase.workload.window if phase.workload else len(phase.messages)
            agents = self._crew.agents(by_thread, window)
            for task in [self.machine.spawn(agent.run(), name=name) for name, agent in agents]:
                await task

    async def watch_progress(self):
        """Reports progress, and stops a run in which none is made."""
        check, node = self.scenario.check, self.machine.node(0)
        period, total = cycles(check.watchdog_us * 1000), len(self.plan.messages)
        last, since, moved, patience = (-1, -1), 0, 0, None
        while True:
            await node.sleep(min(period, _LOOK))
            done = sum(marks.seen for marks in self.site.marks.values())
            if time.monotonic() - self._started > check.wall_s:
                return self._stop("limit", f"wall time is used up ({check.wall_s:g} s)")
            if node.now - since < period:
                continue
            since = node.now
            print(progress_line(done, total, node.now), flush=True)
            # Only where no message ended in this period does it take a look at the log.
            marks = (done, last[1] if done != last[0] else self._landmarks())
            if marks != last or self.site.busy(node.now):
                last, moved, patience = marks, node.now, None
                continue
            if patience is None:
                patience = period + self._protocol_wait()
            if node.now - moved >= patience:
                return self._stop("hang", f"no progress within {check.watchdog_us:g} us")

    def _landmarks(self):
        return int((~np.isin(self.machine.events()["kind"], _IDLE_KINDS)).sum())

    def _protocol_wait(self):
        """Cycles for which nothing may happen, since a QP waits for an ACK: while it was fetched
        for what is not retired.
        """
        timeout = cycles(self.scenario.queues.ack_timeout_ns(self.scenario.nic.timer_scale))
        log = Events(self.machine.events(), self.site.path.name)
        last = []
        for kind in (EventKind.FETCHED, EventKind.RETIRED):
            table = log.of(kind)
            last.append(
                dict(
                    zip(
                        zip(table["node"].tolist(), table["qp"].tolist(), strict=True),
                        table["wqe_index"].tolist(),
                        strict=True,
                    )
                )
            )
        fetched, retired = last
        return timeout if any(retired.get(qp) != index for qp, index in fetched.items()) else 0

    def _stop(self, ended, reason):
        self.ended, self.reason = ended, reason
        self.machine.stop()

    async def run(self, job):
        """The whole run; returns its `Status`."""
        machine, check = self.machine, self.scenario.check
        machine.spawn(self.direct(), name="director")
        machine.spawn(self.watch_progress(), name="watchdog", daemon=True)
        outcome = await machine.run(
            cycle_limit=cycles(check.max_us * 1000), skip=job.skip_idle, record=job.record
        )
        if self.ended == "done" and outcome.reason != "done":
            self.ended = "hang" if outcome.reason == "hang" else "limit"
            self.reason = {
                "hang": "nothing can happen any more",
                "limit": f"{check.max_us:g} us are used up",
            }.get(outcome.reason, outcome.reason)
        return Status(
            ended=self.ended,
            reason=self.reason,
            cycles=outcome.cycles,
            wall_s=outcome.wall_s,
            cpu_s=outcome.cpu_s,
            wakes=outcome.wakes,
            node_cycles=outcome.node_cycles,
            waiting=outcome.unfinished,
            queues=tuple(
                QueueState(
                    node=node, qp=qp, posted=queue.posted, rung=queue.rung, completed=queue.done
                )
                for (node, qp), queue in sorted(self.site.queues.items())
            ),
        )

    def messages(self):
        """What software did with each message."""
        site, rows = self.site, []
        for message in self.plan.messages:
            qp, posted = site.posted.get(message.number, (-1, None))
            rows.append(
                (
                    message.number,
                    message.group,
                    message.node,
                    message.peer,
                    message.producer,
                    qp,
                    posted.index & 0xFFFF if posted else -1,
                    site.blocks(message),
                    message.size,
                    int(self.plan.inlined(message, site.path.name)),
                    int(posted.signaled if posted else message.signaled),
                    int(bool(posted and posted.next_index <= site.queues[message.node, qp].done)),
                )
            )
        return Messages(
            columns={name: [row[i] for row in rows] for i, name in enumerate(MESSAGE_COLUMNS)}
        )


@cocotb.test()
async def main(dut):
    """Run the job of the working directory."""
    job = Job.load(".")
    scenario = load(job.scenario)
    bench = Bench(Machine(dut), scenario, job.path)
    bench.bring_up()
    if job.waves:
        first, last = job.waves
        bench.machine.open_waves(Path(job.wave_file), first, last, job.wave_names)
    if job.pcap:
        bench.machine.tap()
    status = await bench.run(job)
    bench.machine.close_waves()
    events = bench.machine.events()
    Path(EVENTS_FILE).write_bytes(events.tobytes())
    bench.messages().save(".")
    reference.check(bench.plan, scenario.seed, bench.machine.memory, events).save(".")
    if job.pcap:
        sent = captures.packets(bench.machine.tapped(), loopback=scenario.nodes.count == 1)
        captures.write(Path(), sent, job.pcap)
    if job.record:
        bench.machine.save_recording(Path(RECORDING_FILE))
    status.save(".")
