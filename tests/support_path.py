"""One path of a small scenario, run for real."""

import io

from sim import run, scenario
from sim.progress import Progress

HEAD = """
schema = "bellwire.scenario/1"
preset = "h200-cx7-ib200"
seed = 3
"""


def puts(path, sizes, **keys):
    """Scenario of single puts of each size, one after the other, all else being idle."""
    keys = {"count": 1} | keys
    return "\n".join(
        [
            HEAD,
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
