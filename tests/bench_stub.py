"""cocotb module of the engine's tests: each scenario is a process of its own."""

import json
from pathlib import Path

import cocotb
from support_stub_node import BEAT, CREDIT, TIMER, TIMER_ADDRESS

from sim.exchange import EngineError
from sim.machine import Machine
from sim.trace import Events

PROPAGATION = 50


def connect(machine):
    for number in range(len(machine)):
        machine.link(number, (number + 1) % len(machine), PROPAGATION)


async def mixed(node, rounds):
    """Stores, loads, watches, beats, landmarks and alarms, all with different gaps."""
    for index in range(rounds):
        watch = node.watch("gpu", 0x1000)
        node.store("gpu", 0x1008, index.to_bytes(8, "little"), due=node.now + 3 + index % 7)
        await watch
        assert int(node.memory("gpu")[0x1008:0x1010].view("<u8")[0]) == index
        assert await node.load("gpu", 0x1008, 8) == index.to_bytes(8, "little")
        node.configure(0, 0, (index + 1).to_bytes(16, "little"))
        node.trace(7, index, due=node.now + 5)
        await node.sleep(11 + 97 * (index % 3))
        arrival = node.watch("host", 0)
        node.configure(0, TIMER_ADDRESS, (40).to_bytes(8, "little"))
        await node.first(arrival, node.sleep(300))


async def run_mixed(dut, **options):
    machine = Machine(dut)
    connect(machine)
    machine.preload(0, "gpu", 0x2000, b"before")
    for number in range(len(machine)):
        machine.spawn(
            mixed(machine.node(number), int(cocotb.plusargs["rounds"])), name=f"mixed{number}"
        )
    outcome = await machine.run(**options)
    assert outcome.reason == "done", outcome
    events = machine.events()
    Path("out.json").write_text(
        json.dumps(
            {
                "sha256": Events(events).sha256,
                "cycles": outcome.cycles,
                "node_cycles": outcome.node_cycles,
                "kinds": {
                    str(kind): int((events["kind"] == kind).sum())
                    for kind in (7, BEAT, CREDIT, TIMER)
                },
                "wakes": outcome.wakes,
                "visits": outcome.visits,
                "wall_s": outcome.wall_s,
            }
        )
    )
    return machine


@cocotb.test()
async def main(dut):
    await globals()[f"scenario_{cocotb.plusargs['scenario']}"](dut)


async def scenario_mixed(dut):
    machine = await run_mixed(dut, record=True, skip=cocotb.plusargs["skip"] == "1")
    machine.save_recording(Path("stimulus.bin"))


async def scenario_timing(dut):
    """A command due at d is visible at d + 1; beats and credits take the propagation."""
    machine = Machine(dut)
    connect(machine)
    node = machine.node(0)

    async def agent():
        node.configure(0, 0, (77).to_bytes(16, "little"), due=100)
        node.trace(9, 0x1234, due=20)
        node.trace(9, 0x1233, due=20)
        assert await node.until(30) == 30
        watch = node.watch("gpu", 64)
        node.store("gpu", 64, b"x", due=40)
        assert (await watch)[:1] == b"x" and node.now == 41
        assert await node.load("gpu", 64, 1, due=60) == b"x"
        assert node.now == 62

    machine.spawn(agent())
    outcome = await machine.run()
    assert outcome.reason == "done"
    log = [(int(e["cycle"]), int(e["node"]), int(e["kind"])) for e in machine.events()]
    # Popped at 100, tx register at 101, sent at 101, arrives at 151, registered, logged at 152.
    arrival = 101 + PROPAGATION + 1
    target = (0 + 1) % len(machine)
    assert log == [
        (20, 0, 9),
        (20, 0, 9),
        (arrival, target, BEAT),
        (arrival + PROPAGATION + 1, 0, CREDIT),
    ], log
    payloads = machine.events()["payload"][:2, :2].tolist()
    assert payloads == [[0x33, 0x12], [0x34, 0x12]]


async def scenario_late(dut):
    """Commits are told late and together, each in its cycle and with the line as it was then."""
    machine = Machine(dut)
    connect(machine)
    node, told = machine.node(0), []

    async def agent():
        for due, byte in ((20, b"a"), (25, b"b"), (39, b"c"), (100, b"d"), (210, b"e")):
            node.store("gpu", 64, byte, due=due)
        # Work of the other kind, which goes on in every cycle meanwhile.
        for cycle in range(300):
            node.trace(7, 0, due=cycle)
        watch = node.late_watch("gpu", 64, patience=30)
        for late_from in (0, 0, 0, 0, None):
            line = await watch.wait(late_from)
            told.append((node.now, line[:1], _now(machine)))
            node.trace(9, node.now, due=node.now + 31)
        watch.cancel()

    machine.spawn(agent())
    outcome = await machine.run(skip=cocotb.plusargs["skip"] == "1")
    assert outcome.reason == "done", outcome
    assert [(cycle, byte) for cycle, byte, _ in told] == [
        (21, b"a"),
        (26, b"b"),
        (40, b"c"),
        (101, b"d"),
        (211, b"e"),
    ], told
    # Two visits for the first four, one for the one that is told at once.
    assert [real for _, _, real in told] == [51, 51, 51, 131, 211], told
    assert outcome.visits == 3
    landmarks = machine.events()[machine.events()["kind"] == 9]
    assert landmarks["cycle"].tolist() == [52, 57, 71, 132, 242]


def _now(machine):
    """The cycle that the engine has evaluated last."""
    return int.from_bytes(bytes(machine._head[:8]), "little")


async def scenario_impatient(dut):
    """A command that would have been due before software was told is refused."""
    machine = Machine(dut)
    connect(machine)
    node = machine.node(0)

    async def agent():
        node.store("gpu", 64, b"a", due=20)
        for cycle in range(100):
            node.trace(7, 0, due=cycle)
        await node.late_watch("gpu", 64, patience=30).wait()
        node.trace(9, 0, due=node.now + 30)

    machine.spawn(agent())
    try:
        await machine.run()
    except EngineError as error:
        assert "is done" in str(error), error
    else:
        raise AssertionError("the command was taken")


async def scenario_hang(dut):
    machine = Machine(dut)
    machine.spawn(forever(machine.node(0)), name="waiter")
    outcome = await machine.run(skip=cocotb.plusargs["skip"] == "1")
    assert (outcome.reason, outcome.unfinished) == ("hang", ("waiter",)), outcome


async def forever(node):
    await node.watch("gpu", 0)


async def scenario_ignored_hang(dut):
    """A test that waits for something else must not keep the process alive."""
    machine = Machine(dut)
    machine._library.bw_start(1 << 63, 1, 0, machine._handler)
    await dut.wake.value_change
    await dut.wake.value_change


async def scenario_limit(dut):
    machine = Machine(dut)

    async def poll(node):
        while True:
            await node.sleep(10)

    machine.spawn(poll(machine.node(0)))
    outcome = await machine.run(cycle_limit=1000)
    assert (outcome.reason, outcome.cycles) == ("limit", 1000), outcome


async def scenario_past(dut):
    machine = Machine(dut)

    async def agent(node):
        await node.until(100)
        node.trace(1, 0, due=101)
        try:
            node.trace(1, 0, due=100)
        except EngineError as error:
            assert "due in cycle 100" in str(error)
        else:
            raise AssertionError("a command in the past was taken")

    machine.spawn(agent(machine.node(0)))
    assert (await machine.run()).reason == "done"


async def scenario_raise(dut):
    machine = Machine(dut)

    async def agent(node):
        await node.sleep(5)
        raise ValueError("agent went wrong")

    machine.spawn(agent(machine.node(0)))
    await machine.run()


async def scenario_no_link(dut):
    machine = Machine(dut)

    async def agent(node):
        node.configure(0, 0, b"\1")

    machine.spawn(agent(machine.node(0)))
    try:
        await machine.run()
    except EngineError as error:
        assert "no link" in str(error)
    else:
        raise AssertionError("a beat vanished")


async def scenario_crash(dut):
    import os

    os.abort()


async def scenario_loopback(dut):
    """Port 0 of the only node is wired to its port 1, with two lengths of cable."""
    machine = Machine(dut)
    machine.link(0, 0, 30, source_port=0, target_port=1)
    machine.link(0, 0, 70, source_port=1, target_port=0)
    node = machine.node(0)

    async def agent():
        for port in (0, 1):
            arrival = node.watch("host", 0)
            node.configure(0, port, (5 + port).to_bytes(16, "little"), due=1000 * (port + 1))
            await arrival
            assert int(node.memory("host")[0]) == 5 + port

    machine.spawn(agent())
    outcome = await machine.run(skip=cocotb.plusargs["skip"] == "1")
    assert outcome.reason == "done"
    log = [(int(e["cycle"]), int(e["kind"]), int(e["payload"][0])) for e in machine.events()]
    beats = [entry for entry in log if entry[1] in (BEAT, BEAT + 1)]
    credits = [entry[:2] for entry in log if entry[1] in (CREDIT, CREDIT + 1)]
    # As in scenario_timing; the credit comes back by the link that leads the same way.
    assert beats == [(1032, BEAT + 1, 5), (2072, BEAT, 6)], log
    assert credits == [(1032 + 31, CREDIT), (2072 + 71, CREDIT + 1)], log


async def scenario_wakes(dut):
    """Speed only: one agent per node wakes every cycle of its alarm."""
    machine = Machine(dut)

    async def agent(node):
        for _ in range(int(cocotb.plusargs["rounds"])):
            await node.sleep(1)

    for number in range(len(machine)):
        machine.spawn(agent(machine.node(number)))
    outcome = await machine.run()
    Path("out.json").write_text(
        json.dumps({"visits": outcome.visits, "wakes": outcome.wakes, "wall_s": outcome.wall_s})
    )


async def scenario_preload(dut):
    """Bulk writes and links are for the time before cycle 0; each memory is its node's own."""
    machine = Machine(dut)
    machine.preload(1, "host", (1 << 36) - 4, b"tail")
    machine.link(0, 1, 5)
    for refused in (
        lambda: machine.preload(0, "gpu", (1 << 36) - 3, b"tail"),
        lambda: machine.link(2, 1, 5),
        lambda: machine.link(1, 2, 0),
        lambda: machine.link(1, len(machine), 5),
        lambda: machine.link(1, 2, 5, source_port=2),
        lambda: machine.link(1, 2, 5, target_port=2),
    ):
        refuses(refused)

    async def agent(node):
        assert bytes(node.memory("host")[-4:]) == b"tail"
        assert not node.memory("gpu")[-4:].any()
        assert not node.memory("host").flags.writeable
        await node.sleep(3)
        refuses(lambda: machine.preload(0, "gpu", 0, b"late"))
        refuses(lambda: machine.link(1, 2, 5))

    machine.spawn(agent(machine.node(1)))
    assert (await machine.run()).reason == "done"


def refuses(action):
    try:
        action()
    except EngineError:
        return
    raise AssertionError("the engine took what it must refuse")
