"""One path of a small scenario, run for real."""

import io

from sim import run, scenario
from sim.agents.doorbell import pushes
from sim.closed_form import Idle
from sim.plan import wqe_octowords
from sim.progress import Progress

#: Hardware segments; the others are software's.
HARDWARE = {
    "ring_seen",
    "fetch_req",
    "fetched",
    "payload_req",
    "payload",
    "tx_first",
    "tx_last",
    "rx_last",
    "ack_rx",
    "cqe_written",
}
HEAD = """
schema = "bellwire.scenario/1"
preset = "h200-cx7-ib200"
seed = 3
"""


def puts(path, sizes, preset="h200-cx7-ib200", **keys):
    """Scenario of single puts of each size, one after the other, all else being idle."""
    keys = {"count": 1} | keys
    return "\n".join(
        [
            HEAD.replace("h200-cx7-ib200", preset),
            f'paths = ["{path}"]',
            "[[workload]]",
            'kind = "put"',
            f"size = {list(sizes)}",
            *(f"{key} = {value}" for key, value in keys.items()),
        ]
    )


def execute(text, folder, sets=(), **options):
    """(scenario, run) of a scenario's text with overrides, in `folder`."""
    loaded = scenario.loads(text, "test.toml", sets)
    done = run.execute(loaded, run.RunOptions(out=folder, **options), Progress(io.StringIO()))
    return loaded, done


def segments(done, path):
    """{size: {landmark: ns}} of a run with one message per size."""
    return {
        group["size"]: {
            name: value for name, value in group["segments_ns"].items() if value is not None
        }
        for group in done.result["paths"][path]["groups"]
    }


def hardware(done, path):
    """The same of hardware's segments alone."""
    return {
        size: {name: value for name, value in found.items() if name in HARDWARE}
        for size, found in segments(done, path).items()
    }


def closed(loaded, path, size):
    """Segments of the message of that size, as constants make them."""
    plan = loaded.plan
    message = next(message for message in plan.messages if message.size == size)
    send = plan.region(message.node, message.region)
    receive = plan.region(message.peer, message.remote_region)
    inline = plan.inlined(message, path)
    octowords = wqe_octowords(size, inline)
    ways = {
        # The record is stored in the cycle of the doorbell, before it.
        "gda_minimal": {"inline": inline, "commands": 1},
        # A fence parts WQE and record from the doorbell.
        "ibrc": {"pushed": True, "ringer": "host", "rings": "host"},
        "verbs": {
            "inline": inline,
            "pushed": pushes(loaded.cpu, count=1, octowords=octowords, inline=inline),
            "ringer": "host",
            "rings": "host",
        },
        # There is a fence between record and doorbell.
        "ibgda": {"inline": inline},
    }
    found = Idle(loaded.pcie, loaded.memory, loaded.nic, loaded.wire).segments(
        size,
        address=send.offset + message.offset,
        raddr=receive.offset + message.remote_offset,
        blocks=plan.blocks(size, path),
        source=send.memory,
        target=receive.memory,
        **ways[path],
    )
    return {name: terms.total for name, terms in found.items() if name in HARDWARE}
