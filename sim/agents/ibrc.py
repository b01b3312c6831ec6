"""Puts through a CPU proxy: the GPU writes requests to a ring in host memory, a host thread posts
them.

GPU side: fence, reserve room in the channel, four 8-byte stores; `quiet` publishes how far it wants
the proxy to be and polls host memory over PCIe. CPU side, each turn: take up to a batch of
requests, post each with one signalled WQE (BlueFlame, or record and 8-byte doorbell), poll
completion queues, answer `quiet`. Ref: NVSHMEM's proxy channel and IBRC transport as read; words as
in the `nvshmem_proxy_channel` vectors.
"""

from collections import defaultdict

from hw.formats.events import EventKind
from hw.formats.tlp import MarkKind
from hw.units import cycles

from .. import addresses, wqe
from .channel import PUT_BYTES, decode_put, encode_put, flag_of
from .context import Costs, Thread
from .doorbell import HostRegister
from .queue import mark

__all__ = ["Channel", "Crew", "GpuSide", "Proxy"]


class Crew:
    """The agents of this path: a proxy for each node that sends, and the GPU's threads."""

    def __init__(self, site):
        self._site, self._channels = site, {}
        for node in sorted({message.node for message in site.plan.messages}):
            self._start_proxy(node)

    def _start_proxy(self, number):
        site = self._site
        scenario = site.scenario
        channel = self._channels[number] = Channel(scenario.proxy.ring_bytes)
        # A request names a peer and a QP between the two; the proxy keeps a queue for each.
        pairs = {(m.peer, m.qp) for m in site.plan.messages if m.node == number}
        queues = {qp << 6 | peer: site.queue(number, peer, qp) for peer, qp in sorted(pairs)}
        proxy = Proxy(
            site.node(number),
            channel,
            queues,
            scenario.cpu,
            scenario.proxy,
            scenario.memory.host_store_ns,
            site.marks[number],
            site.resolver(number),
        )
        site.proxies.append(proxy)
        site.spawn(proxy, f"proxy of node {number}")

    def agents(self, by_thread, window):
        """(name, agent) for the messages by (node, peer, QP, producer) of a phase."""
        site = self._site
        threads = defaultdict(list)
        for (node, _, _, producer), messages in by_thread.items():
            # A producer is one thread, whatever its requests name.
            threads[node, producer] += messages
        for (node, producer), messages in threads.items():
            # Messages are numbered in the order of the file, which is that of issue.
            messages.sort(key=lambda message: message.number)
            thread = Thread(producer, messages, window)
            site.threads.append(thread)
            yield (
                f"GPU of node {node}, producer {producer}",
                GpuSide(
                    site.node(node),
                    self._channels[node],
                    site.scenario.gpu,
                    site.scenario.proxy,
                    thread,
                    site.marks[node],
                    site.request,
                ),
            )


class Channel:
    """What GPU threads share: how far requests were issued, and how much of that the proxy is known
    to have taken.
    """

    def __init__(self, ring_bytes):
        self.ring_bytes = ring_bytes
        #: Byte positions, counted from the start.
        self.issued, self.known_complete, self.wanted = 0, 0, 0
        #: Message of each request, by position (for landmarks only: the proxy acts on the words).
        self.messages = {}


class GpuSide:
    """One GPU thread that puts through the proxy.

    Parameters
    ----------
    node : Node
    channel : Channel
    gpu, proxy : GpuConfig, ProxyConfig
    thread : Thread
    marks : Landmarks
    describe : callable
        Message to `PutRequest`.
    """

    def __init__(self, node, channel, gpu, proxy, thread, marks, describe):
        self._node, self._channel, self._thread, self._marks, self._describe = (
            node,
            channel,
            thread,
            marks,
            describe,
        )
        self._costs = Costs(gpu, proxy)

    async def run(self):
        """Put up to a window of messages, then wait for all of them; until none is left."""
        thread = self._thread
        while thread.pending:
            burst = [
                thread.pending.popleft() for _ in range(min(thread.window, len(thread.pending)))
            ]
            time = max(self._node.now + 1, thread.time)
            for message in burst:
                time = await self._put(message, time)
            thread.time = await self._quiet(burst, time)

    async def _put(self, message, time):
        """One request into the channel; returns when the thread goes on."""
        node, channel, number = self._node, self._channel, self._thread.number & 0xFFFF
        if cycles(message.at_ns) > time:
            # Its place in the channel is taken when it is issued, not before.
            time = self._thread.time = cycles(message.at_ns)
            await node.until(time - 1)
        self._marks.stamp(EventKind.ISSUE, message, time, agent=number)
        time += self._costs.fence_gpu + self._costs.gpu_issue
        self._thread.time = time
        position = channel.issued
        channel.issued += PUT_BYTES
        channel.messages[position] = message
        while position + PUT_BYTES - channel.known_complete > channel.ring_bytes:
            raw = await node.load(
                "gpu", addresses.bus("host", addresses.COMPLETE), 8, due=max(time, node.now + 1)
            )
            channel.known_complete = max(channel.known_complete, int.from_bytes(raw, "little"))
            time = max(time, node.now + 1)
        raw = encode_put(self._describe(message), flag_of(position, channel.ring_bytes))
        for word in range(0, PUT_BYTES, 8):
            offset = addresses.CHANNEL + (position + word) % channel.ring_bytes
            node.store(
                "gpu",
                addresses.bus("host", offset),
                raw[word : word + 8],
                max(time, node.now + 1),
                mark(MarkKind.REQUEST, 0, message.number),
            )
            time += self._costs.store_issue
        self._marks.stamp(EventKind.REQUEST_WRITTEN, message, time, agent=number)
        return time

    async def _quiet(self, burst, time):
        """Wait until the proxy says that everything issued so far is complete; returns when the
        thread knows.
        """
        node, channel = self._node, self._channel
        target = channel.issued
        # The maximum is taken when its time has come, as the atomic does it: a word that another
        # thread has raised meanwhile must not fall.
        await node.until(time - 1)
        channel.wanted = max(channel.wanted, target)
        node.store(
            "gpu",
            addresses.bus("host", addresses.QUIET_ISSUE),
            channel.wanted.to_bytes(8, "little"),
            max(time, node.now + 1),
            mark(MarkKind.OTHER),
        )
        while True:
            raw = await node.load(
                "gpu", addresses.bus("host", addresses.QUIET_ACK), 8, due=max(time, node.now + 1)
            )
            if int.from_bytes(raw, "little") >= target:
                break
        for message in burst:
            self._marks.stamp(
                EventKind.SEEN, message, node.now + 1, agent=self._thread.number & 0xFFFF
            )
        return node.now + 1


class Proxy:
    """The host thread that posts what GPU threads ask for.

    Parameters
    ----------
    node : Node
    channel : Channel
        Only its ring size, and the messages for landmarks; requests are read from memory.
    queues : dict of QP number between the nodes to SendQueue
        Rings in host memory.
    cpu, proxy : CpuConfig, ProxyConfig
    store_ns : float
        Until a store of the CPU is visible to devices.
    marks : Landmarks
    resolve : callable
        `PutRequest` to (lkey, target address, rkey).
    """

    def __init__(self, node, channel, queues, cpu, proxy, store_ns, marks, resolve):
        self._node, self._channel, self._queues, self._marks, self._resolve = (
            node,
            channel,
            queues,
            marks,
            resolve,
        )
        self._costs, self._proxy = Costs(cpu), proxy
        self._registers = {queue: HostRegister(queue, cpu) for queue in queues.values()}
        self._visible = max(1, cycles(store_ns))
        # Of a request's time, what is not its post, which comes last.
        self._before = cycles(proxy.service_ns) - self._costs.post
        self._host = node.memory("host")
        #: Bytes of the channel taken, reported as complete, and acknowledged to `quiet`.
        self._taken, self._reported, self._acknowledged = 0, 0, 0
        #: Cycle until which it is busy.
        self.time = 0

    async def run(self):
        """Turn after turn; sleeps while a turn would find nothing."""
        node = self._node
        while True:
            waits = [
                node.watch("host", self._slot()),
                node.watch("host", addresses.QUIET_ISSUE),
                *(queue.watch() for queue in self._queues.values() if queue.outstanding),
            ]
            if self._turn():
                for wait in waits:
                    wait.cancel()
                await node.until(self.time)
            else:
                await node.first(*waits)
                # What woke us is seen by the next poll.
                self.time = max(self.time, node.now + self._costs.poll)
                await node.until(self.time)

    def _turn(self):
        """One round of the loop; whether anything was done."""
        self.time = max(self.time, self._node.now + 1)
        worked = self._quiet()
        worked |= self._requests()
        return self._completions() or worked

    def _requests(self):
        taken = 0
        while taken < self._proxy.request_batch_max:
            offset, flag = self._slot(), flag_of(self._taken, self._channel.ring_bytes)
            raw = self._host[offset : offset + PUT_BYTES].tobytes()
            if any(raw[word] & 1 != flag for word in range(0, PUT_BYTES, 8)):
                break
            request = decode_put(raw)
            queue = self._queues[request.qp]
            if not queue.free_blocks:
                break
            self._post(request, queue)
            taken += 1
        return taken > 0

    def _post(self, request, queue):
        """One request: one signalled WQE, rung at once."""
        message = self._channel.messages.pop(self._taken)
        stamp = self._marks.stamp
        stamp(EventKind.PROXY_SEEN, message, self.time)
        self._taken += PUT_BYTES
        self.time += self._before
        lkey, target, rkey = self._resolve(request)
        raw = wqe.write(
            index=queue.posted,
            qpn=queue.qpn,
            raddr=target,
            rkey=rkey,
            laddr=request.laddr,
            lkey=lkey,
            length=request.size,
            signaled=True,
        )
        built = self.time + self._costs.wqe
        posted = queue.post(raw, message, signaled=True, due=built)
        stamp(EventKind.WQE_WRITTEN, message, built, posted, qp=queue.qp)
        # Stores of a host are visible in their order; those of the WQE take a cycle each.
        record = built + posted.next_index - posted.index
        queue.store_record(record)
        # The fence ends when WQE and record are visible, if that is later than the post's end.
        self.time = max(self.time + self._costs.post, record + 1 + self._visible)
        stamp(EventKind.PROXY_POSTED, message, self.time, posted, qp=queue.qp)
        self._registers[queue].ring(raw, self.time)
        stamp(EventKind.RING, message, self.time, posted, qp=queue.qp)
        if self._taken - self._reported >= self._proxy.complete_every_bytes:
            # Behind the doorbell is a fence, too.
            self.time += max(1, self._costs.store_issue)
            self._reported = self._taken
            self._store(addresses.COMPLETE, self._taken)

    def _completions(self):
        # Every queue is looked at, not only up to the first that has something.
        found = [queue.completed() for queue in self._queues.values() if queue.outstanding]
        return any(found)

    def _quiet(self):
        wanted = int.from_bytes(
            self._host[addresses.QUIET_ISSUE : addresses.QUIET_ISSUE + 8].tobytes(), "little"
        )
        if (
            wanted <= self._acknowledged
            or self._taken < wanted
            or any(q.outstanding for q in self._queues.values())
        ):
            return False
        self._acknowledged = wanted
        self._store(addresses.QUIET_ACK, wanted)
        return True

    def _slot(self):
        return addresses.CHANNEL + self._taken % self._channel.ring_bytes

    def _store(self, offset, value):
        self._node.store(
            "cpu",
            addresses.bus("host", offset),
            value.to_bytes(8, "little"),
            self.time,
            mark(MarkKind.OTHER),
        )
