"""Makes the picture in `docs/waveforms.md` from a real run: `python -m sim.waves.shipped`.

One put of the main job, alone in the machine, so that every mark in the picture is its own.
"""

import sys
import tempfile
from pathlib import Path

from ..progress import Progress
from ..run import RunOptions, execute
from ..scenario import load
from .request import WaveRequest
from .rerun import Recorded, rerun

__all__ = ["PICTURE", "picture"]

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "waveforms.svg"
#: Of the main job: one thread, one put, by pointer so that its payload is read.
_ONE = (
    'paths=["gda_minimal"]',
    "workload.0.size=[512]",
    "workload.0.producers=1",
    "workload.0.qps=1",
    "workload.0.count=1",
    "expect=[]",
)


def picture(folder: Path, progress: Progress) -> str:
    """The picture as SVG; runs take place in `folder`."""
    scenario = load(ROOT / "scenarios" / "main-job.toml", _ONE)
    run = execute(scenario, RunOptions(out=folder / "run"), progress)
    again, _ = rerun(
        Recorded.load(run.directory), WaveRequest(form="vcd"), 0, folder / "again", progress
    )
    return again.waves["gda_minimal"].with_suffix(".svg").read_text(encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PICTURE.write_text(picture(Path(made), Progress(sys.stderr)), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
