"""The cocotb module: runs one path of one scenario and leaves what `sim.job` describes.

Nothing is judged here but bytes, because memory lives in this process.
"""

import time
from collections import defaultdict
from pathlib import Path

import cocotb
import numpy as np

from hw.config import cycles
from hw.formats.events import EventKind

from . import addresses, connect, image, reference
from .agents.channel import PutRequest
from .agents.context import Landmarks, Thread
from .agents.gda_minimal import GdaQueue
from .agents.ibrc import Channel, GpuSide, Proxy
from .agents.queue import SendQueue
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

#: Cycles between two looks at the clock on the wall.
_LOOK = 50_000
#: Events that do not show that work goes on: a poll over PCIe makes them for ever.
_IDLE_KINDS = [EventKind.TLP_SENT.value, EventKind.STALL.value, EventKind.COMMIT.value]


class Bench:
    """Everything of one run: machine, queues, agents, and what they leave.

    Parameters
    ----------
    machine : Machine
    scenario : Scenario
    path : str
    """

    def __init__(self, machine, scenario, path):
        self.machine, self.scenario, self.path, self.plan = machine, scenario, path, scenario.plan
        self._marks = {n: Landmarks(machine.node(n)) for n in range(scenario.nodes.count)}
        self._queues, self._channels = {}, {}
        self._threads, self._proxies = [], []
        self._regions = {
            (r.node, r.name): (
                addresses.DATA + r.offset,
                addresses.bus(r.memory, addresses.DATA + r.offset),
                r.memory,
                self.plan.key(r.node, r.name),
            )
            for r in self.plan.regions
        }
        #: Message number to its WQE.
        self.posted = {}
        self.ended, self.reason = "done", ""
        self._started = time.monotonic()

    # Before cycle 0 -------------------------------------------------------------------------------

    def bring_up(self):
        """Links, contexts, registered memory, and the proxies."""
        scenario, machine = self.scenario, self.machine
        propagation = max(1, cycles(scenario.wire.propagation_ns))
        for a, b in ((0, 1), (1, 0)):
            machine.link(a, b, propagation)
        for region in self.plan.regions:
            machine.preload(
                region.node,
                region.memory,
                addresses.DATA + region.offset,
                image.initial(region, scenario.seed).tobytes(),
            )
        connect.prepare(machine, scenario, self.path)
        for due, (node, table, index, data) in enumerate(
            connect.configuration(scenario, self.path)
        ):
            machine.node(node).configure(table.value, index, data, due=due)
            self._ready_at = due + 2
        if self.path == "ibrc":
            for node in sorted({message.node for message in self.plan.messages}):
                self._start_proxy(node)

    def _start_proxy(self, number):
        node, scenario = self.machine.node(number), self.scenario
        channel = self._channels[number] = Channel(scenario.proxy.ring_bytes)
        # A request names a peer and a QP between the two; the proxy keeps a queue for each.
        pairs = {(m.peer, m.qp) for m in self.plan.messages if m.node == number}
        queues = {qp << 6 | peer: self._queue(number, peer, qp) for peer, qp in sorted(pairs)}
        proxy = Proxy(
            node,
            channel,
            queues,
            scenario.cpu,
            scenario.proxy,
            self._marks[number],
            self._resolver(number),
        )
        self._proxies.append(proxy)
        self.machine.spawn(proxy.run(), name=f"proxy of node {number}", daemon=True)

    def _queue(self, number, peer, qp):
        """The send queue of a connection, made when first needed."""
        context = self.plan.connection(number, peer, qp).context(number)
        if (number, context) not in self._queues:
            queues, memory = self.scenario.queues, connect.PATH_MEMORY[self.path]
            self._queues[number, context] = SendQueue(
                self.machine.node(number),
                processor="gpu" if memory == "gpu" else "cpu",
                memory=memory,
                qp=context,
                qpn=connect.qpn(number, context),
                depth=queues.sq_depth,
                cq_depth=connect.cq_entries(self.scenario, self.path),
                start=queues.start_index,
                on_post=self._on_post,
            )
        return self._queues[number, context]

    def _on_post(self, posted, qp):
        self.posted[posted.message.number] = (qp, posted)

    # Where messages are ---------------------------------------------------------------------------

    def _place(self, node, name, offset):
        """(bus address, offset in memory, memory, key) of a byte of a region."""
        at, base, memory, key = self._regions[node, name]
        return base + offset, at + offset, memory, key

    def _locate(self, message):
        source, at, memory, lkey = self._place(message.node, message.region, message.offset)
        target, _, _, rkey = self._place(message.peer, message.remote_region, message.remote_offset)
        payload = None
        if self.plan.inlined(message, self.path):
            payload = self.machine.memory(message.node, memory)[at : at + message.size].tobytes()
        return source, lkey, target, rkey, payload

    def _request(self, message):
        source, *_ = self._place(message.node, message.region, message.offset)
        _, offset, memory, _ = self._place(
            message.peer, message.remote_region, message.remote_offset
        )
        # The remote offset is relative to the heap, which spans GPU memory here.
        assert memory == "gpu", "a proxied put targets GPU memory"
        return PutRequest(
            roffset=offset,
            laddr=source,
            size=message.size,
            pe=message.peer,
            qp=message.qp << 6 | message.peer,
        )

    def _resolver(self, number):
        def key(node, address):
            return next(
                (
                    self.plan.key(node, r.name)
                    for r in self.plan.regions
                    if r.node == node and 0 <= address - self._place(node, r.name, 0)[0] < r.size
                ),
                0,
            )

        def resolve(request):
            target = addresses.bus("gpu", request.roffset)
            return key(number, request.laddr), target, key(request.pe, target)

        return resolve

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
            agents = (
                self._gda(by_thread, window)
                if self.path == "gda_minimal"
                else self._proxied(by_thread, window)
            )
            for task in [self.machine.spawn(agent.run(), name=name) for name, agent in agents]:
                await task

    def _blocks(self, message):
        return self.plan.blocks(message.size, self.path)

    def _gda(self, by_thread, window):
        threads = defaultdict(list)
        for (node, peer, qp, producer), messages in by_thread.items():
            thread = Thread(producer, messages, window, self._blocks)
            threads[node, peer, qp].append(thread)
            self._threads.append(thread)
        for (node, peer, qp), members in threads.items():
            queue = self._queue(node, peer, qp)
            yield (
                f"GPU of node {node}, QP {queue.qp}",
                GdaQueue(
                    self.machine.node(node),
                    queue,
                    self.scenario.gpu,
                    self.scenario.memory.gpu_store_ns,
                    members,
                    self._marks[node],
                    self._locate,
                ),
            )

    def _proxied(self, by_thread, window):
        for (node, _, _, producer), messages in by_thread.items():
            thread = Thread(producer, messages, window)
            self._threads.append(thread)
            yield (
                f"GPU of node {node}, producer {producer}",
                GpuSide(
                    self.machine.node(node),
                    self._channels[node],
                    self.scenario.gpu,
                    self.scenario.proxy,
                    thread,
                    self._marks[node],
                    self._request,
                ),
            )

    async def watch_progress(self):
        """Reports progress, and stops a run in which none is made."""
        check, node = self.scenario.check, self.machine.node(0)
        period, total = cycles(check.watchdog_us * 1000), len(self.plan.messages)
        last, since = (-1, -1), 0
        while True:
            await node.sleep(min(period, _LOOK))
            done = sum(marks.seen for marks in self._marks.values())
            if time.monotonic() - self._started > check.wall_s:
                return self._stop("limit", f"wall time is used up ({check.wall_s:g} s)")
            if node.now - since < period:
                continue
            since = node.now
            print(progress_line(done, total, node.now), flush=True)
            # Only where no message ended in this period does it take a look at the log.
            marks = (done, last[1] if done != last[0] else self._landmarks())
            if marks == last and not self._software_is_busy(node.now):
                return self._stop("hang", f"no progress within {check.watchdog_us:g} us")
            last = marks

    def _software_is_busy(self, now):
        """Whether a thread spends time, or waits for the time of its next message."""
        return any(max(thread.time, thread.next_at) > now for thread in self._threads) or any(
            proxy.time > now for proxy in self._proxies
        )

    def _landmarks(self):
        return int((~np.isin(self.machine.events()["kind"], _IDLE_KINDS)).sum())

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
            wakes=outcome.wakes,
            node_cycles=outcome.node_cycles,
            waiting=outcome.unfinished,
            queues=tuple(
                QueueState(
                    node=node, qp=qp, posted=queue.posted, rung=queue.rung, completed=queue.done
                )
                for (node, qp), queue in sorted(self._queues.items())
            ),
        )

    def messages(self):
        """What software did with each message."""
        rows = []
        for message in self.plan.messages:
            qp, posted = self.posted.get(message.number, (-1, None))
            inline = self.plan.inlined(message, self.path)
            signaled = message.signaled or self.path == "ibrc"
            rows.append(
                (
                    message.number,
                    message.group,
                    message.node,
                    message.peer,
                    message.producer,
                    qp,
                    posted.index & 0xFFFF if posted else -1,
                    self._blocks(message),
                    message.size,
                    int(inline),
                    int(signaled),
                    int(bool(posted and posted.next_index <= self._queues[message.node, qp].done)),
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
    status = await bench.run(job)
    events = bench.machine.events()
    Path(EVENTS_FILE).write_bytes(events.tobytes())
    bench.messages().save(".")
    reference.check(bench.plan, scenario.seed, bench.machine.memory, events).save(".")
    if job.record:
        bench.machine.save_recording(Path(RECORDING_FILE))
    status.save(".")
