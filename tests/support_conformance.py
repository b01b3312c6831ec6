"""Consumes every item of a directory of vectors, by everything that applies to it.

Software first (`support_verdicts`), then single blocks of the RTL (doorbell, decoder), then the
whole machine (`support_execute`), which is judged by what was seen of it (`support_judge`).
"""

from collections import defaultdict
from dataclasses import dataclass, field

from support_asked import Other
from support_decoder import decoded_problems
from support_doorbell import rule_problems
from support_execute import execute
from support_jobs import doorbells_of, job_of
from support_judge import problems_of
from support_vectors import VectorError, load, waiting_reason
from support_verdicts import VERDICTS

from hw.formats.mlx5 import WqeOpcode

__all__ = ["Report", "conform"]

#: Opcodes of WQEs that the machine knows.
_EXECUTED = {opcode.value for opcode in WqeOpcode} - {WqeOpcode.WAIT.value}


@dataclass
class Outcome:
    """What became of one item."""

    item: object
    #: Why it waits for a later capability; empty if it was consumed.
    waits: str = ""
    problems: list = field(default_factory=list)

    @property
    def consumed(self):
        return not self.waits and self.item.form in VERDICTS


@dataclass
class Report:
    """All outcomes, and how they are told."""

    outcomes: list

    @property
    def failures(self):
        """One line per problem."""
        return [
            f"{outcome.item.where}: {problem}"
            for outcome in self.outcomes
            for problem in outcome.problems
        ]

    @property
    def consumed(self):
        return sum(outcome.consumed for outcome in self.outcomes)

    @property
    def text(self):
        """Items, consumed and passed per set and list, then by name what is not yet covered."""
        groups = defaultdict(list)
        for outcome in self.outcomes:
            groups[outcome.item.set, outcome.item.list].append(outcome)
        lines = [
            f"{'set':<29} {'list':<11} {'items':>6} {'consumed':>9} {'passed':>7} {'not yet':>8}"
        ]
        for (name, list_name), group in groups.items():
            consumed = [outcome for outcome in group if outcome.consumed]
            passed = sum(not outcome.problems for outcome in consumed)
            waiting = sum(bool(outcome.waits) for outcome in group)
            lines.append(
                f"{name:<29} {list_name:<11} {len(group):>6} {len(consumed):>9} {passed:>7} "
                f"{waiting:>8}"
            )
        later = defaultdict(dict)
        for outcome in self.outcomes:
            if outcome.waits:
                later[outcome.item.set, outcome.waits][outcome.item.data.get("name", "")] = None
        if later:
            lines += ["", "not yet covered:"]
        for (name, reason), names in later.items():
            lines.append(f"  {name}, {reason}: {', '.join(names)}")
        return "\n".join(lines)


def _outcome(item, items):
    """What an item is by its name, and what our software makes of it."""
    outcome = Outcome(item, waiting_reason(item))
    if outcome.waits:
        if item.form == "wqe" and item.raw("wqe")[3] in _EXECUTED:
            rc = item.data.get("qp_type", "RC") == "RC"
            outcome.problems += ["is left out by its name, but is one to execute"] * rc
    elif item.form not in VERDICTS:
        outcome.problems.append(f"no test consumes an item with keys {', '.join(item.data)}")
    else:
        try:
            outcome.problems += VERDICTS[item.form](item, items)
        except VectorError:
            raise
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise VectorError(f"{item.where}: not of its form ({error!r})") from error
    return outcome


def _unknown(job):
    """WQEs that the machine does not know: none is to be executed."""
    for number, wqe in enumerate(job.wqes):
        if isinstance(wqe.work, Other):
            yield f"WQE {number}: opcode {wqe.work.opcode:#04x} not expected"


def conform(directory, folder, execute=execute):
    """Consumes the vectors of `directory`; the machine runs in `folder`.

    `execute` takes jobs and folder, and gives what was seen of each job. Raises `VectorError` if
    the vectors cannot be used.
    """
    items = load(directory)
    lists = defaultdict(list)
    for item in items:
        lists[item.file, item.set, item.list].append(item)
    outcomes = [_outcome(item, lists[item.file, item.set, item.list]) for item in items]

    # Doorbells of all operations, known or not.
    rung = [outcome for outcome in outcomes if outcome.item.form and doorbells_of(outcome.item)]
    for outcome, problems in zip(
        rung, rule_problems([doorbells_of(outcome.item) for outcome in rung]), strict=True
    ):
        outcome.problems += problems

    ready = [outcome for outcome in outcomes if outcome.consumed]
    jobs = [(outcome, job) for outcome in ready if (job := job_of(outcome.item))]
    decoded = decoded_problems([job.wqes for _, job in jobs])
    for (outcome, job), problems in zip(jobs, decoded, strict=True):
        outcome.problems += problems
        outcome.problems += _unknown(job)
    for (outcome, job), seen in zip(jobs, execute([job for _, job in jobs], folder), strict=True):
        outcome.problems += problems_of(job, seen)
    return Report(outcomes)
