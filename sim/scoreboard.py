"""Judges a run: event log, timeline and memory in, violations and counters out.

| violation | found when |
|---|---|
| `wrong_data` | a payload byte is not what the reference says |
| `guard_overwritten` | a byte that nobody may write has changed |
| `retired_twice`, `never_retired` | a posted WQE left the send queue not exactly once |
| `retired_unposted` | a WQE left that was never posted |
| `completion_lost` | a signalled WQE was retired, but no CQE was committed, or it was never seen |
| `completion_twice` | more CQEs than asked for: two of a WQE, one of an unsignalled or of none |
| `completion_status` | a WQE was retired with an error |
| `index_out_of_bounds` | rung beyond written or depth, fetched beyond rung, retired beyond that |
| `link_over_rate` | over some stretch a link carried more than its rate allows plus one item |
| `dma_ledger` | a DMA engine's bytes did not balance: unknown tag, wrong byte, misplaced line |
| `hang` | the run ended with nothing going on |

What a hang leaves unfinished is told by its report, not by `never_retired`.
"""

from dataclasses import dataclass, field

import numpy as np

from hw.formats.tlp import Port
from hw.units import byte_interval

from . import addresses
from .counters import counters_of, links_of, statuses_of
from .court import Court
from .hang import hang_report
from .joins import columns, connections_of
from .names import DIRECTIONS

__all__ = ["Rules", "Verdict", "judge"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the judgement needs to know of a scenario."""

    #: (node, qp, peer, peer's qp), from both ends.
    connections: tuple[tuple[int, int, int, int], ...]
    #: Blocks of a send queue.
    depth: int
    #: Cycles per byte (fixed point) of each PCIe link by its number, and of the wire.
    link_intervals: dict[int, int]
    wire_interval: int
    #: Address in its memory of the first byte that a message writes, by number.
    targets: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, scenario):
        """Rules of a scenario."""
        pcie, plan = scenario.pcie, scenario.plan
        bases = {
            (region.node, region.name): addresses.DATA + region.offset for region in plan.regions
        }
        return cls(
            connections=tuple(connections_of(plan)),
            depth=scenario.queues.sq_depth,
            link_intervals={
                2 * port.value + number: byte_interval(pcie.rate_gbps(port.name.lower(), way))
                for port in Port
                for number, way in enumerate(DIRECTIONS)
            },
            wire_interval=byte_interval(scenario.wire.gbps),
            targets={
                m.number: bases[m.peer, m.remote_region] + m.remote_offset for m in plan.messages
            },
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the judgement found."""

    #: Dicts with `kind`, `text` and, where known, `cycle`, `node`, `qp`, `message` and more.
    violations: list
    #: Retired WQEs by status.
    statuses: dict
    #: Every counter of `names.COUNTERS`, over all nodes.
    counters: dict
    #: Every link of `names.LINKS`: sums over all nodes, and the utilization of the busiest.
    links: dict
    hang: dict | None

    @property
    def passed(self):
        """Whether every check held."""
        return not self.violations


def judge(scenario, path, log, table, messages, memory, status):
    """Verdict on a path of a scenario.

    Parameters
    ----------
    scenario : Scenario, or Rules
    path : str
    log : Events
    table : dict of arrays
        The messages' `timeline`.
    messages : Messages, or its columns
    memory : MemoryCheck
    status : Status
    """
    rules = scenario if isinstance(scenario, Rules) else Rules.of(scenario)
    rows = getattr(messages, "columns", messages)
    blocks = np.asarray(rows["blocks"], np.int64)
    court = Court(rules, log, table, columns(rows), blocks)
    court.memory(memory)
    court.retirements(status.ended == "done")
    court.completions(status.ended)
    court.indices()
    court.rates()
    court.ledgers()
    hang = None
    if status.ended == "hang":
        hang = hang_report(log, columns(rows), rules.connections, status)
        court.accuse("hang", status.reason, cycle=status.cycles, **_first_queue(hang))
    return Verdict(
        violations=court.told(),
        statuses=statuses_of(log),
        counters=counters_of(log),
        links=links_of(log, rules),
        hang=hang,
    )


def _first_queue(hang):
    return {key: hang["queues"][0][key] for key in ("node", "qp")} if hang["queues"] else {}
