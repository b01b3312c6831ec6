"""The bench with software that is told of everything at once."""

import sim.bench
from sim.exchange import LateWatch

__all__ = ["main"]

_wait = LateWatch.wait
LateWatch.wait = lambda self, late_from=0: _wait(self, None)

main = sim.bench.main
