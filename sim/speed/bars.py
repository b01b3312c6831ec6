"""What the model's own speed is held to, and how it is told."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..report.tables import grid

__all__ = ["BARS", "Bar", "missed", "section", "table"]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One figure, what it must reach, and what it is."""

    key: str
    #: Bound, and what is aimed at; None: no bound, or none beyond it.
    bound: float | None = None
    aim: float | None = None
    #: The bound is the most that is allowed, not the least.
    most: bool = False
    #: Digits behind the point.
    digits: int = 0
    meaning: str

    def holds(self, value: float) -> bool:
        """Whether a value meets the bound."""
        if self.bound is None:
            return True
        return value <= self.bound if self.most else value >= self.bound

    def show(self, value: float | None) -> str:
        """A number of this figure as text."""
        return "-" if value is None else f"{value:,.{self.digits}f}"

    @property
    def wanted(self) -> str:
        """The bound as text."""
        return (
            "-" if self.bound is None else f"{'<=' if self.most else '>='} {self.show(self.bound)}"
        )

    def verdict(self, value: float) -> str:
        """`ok`, or `MISSED`."""
        return "ok" if self.holds(value) else "MISSED"


#: In the order in which they are told.
BARS = (
    Bar(
        key="cycles_per_s",
        bound=80_000,
        aim=200_000,
        meaning="cycles per second of two nodes under load, with Python; best run",
    ),
    Bar(
        key="messages_per_s",
        bound=3_000,
        aim=20_000,
        meaning="8-byte messages per second, in that run",
    ),
    Bar(
        key="latency_cycles_per_s",
        bound=1_000_000,
        aim=10_000_000,
        meaning="cycles per second with one message in flight; best run",
    ),
    Bar(
        key="replay_ratio",
        bound=0.7,
        digits=2,
        meaning="processor time without Python over that of the run under load; median of pairs",
    ),
    Bar(
        key="stock_ratio",
        bound=5,
        digits=1,
        meaning="our flow over cocotb's stock Verilator runner, on `hw.doorbell`; median of pairs",
    ),
    Bar(
        key="build_cold_s",
        bound=150,
        aim=60,
        most=True,
        digits=1,
        meaning="seconds to convert and build the default structure, nothing cached",
    ),
    Bar(
        key="build_warm_s",
        bound=5,
        most=True,
        digits=2,
        meaning="seconds of the second build, which must do nothing",
    ),
    Bar(
        key="peak_mb",
        bound=2_000,
        most=True,
        meaning="memory of the largest process, compilers included",
    ),
)


def missed(figures: Mapping[str, Any]) -> list[str]:
    """One line for each bound that is not met."""
    return [
        f"{bar.key} = {bar.show(figures[bar.key])}: wanted {bar.wanted}"
        for bar in BARS
        if not bar.holds(figures[bar.key])
    ]


def _context(figures: Mapping[str, Any]) -> tuple[str, str]:
    machine = figures["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"
    return (
        f"{figures['date']}, {where}, load average {machine['load']:.1f} at the start",
        " ".join(f"{name} {version}" for name, version in figures["versions"].items()),
    )


def table(figures: Mapping[str, Any]) -> str:
    """For a terminal."""
    rows = [["figure", "value", "wanted", "aim", "verdict"]]
    for bar in BARS:
        value = figures[bar.key]
        rows.append([bar.key, bar.show(value), bar.wanted, bar.show(bar.aim), bar.verdict(value)])
    return "\n".join([*(f"# {line}" for line in _context(figures)), grid(rows)])


def section(figures: Mapping[str, Any]) -> str:
    """For a page."""
    when, versions = _context(figures)
    lines = [
        f"Measured {when}; {versions}.",
        "",
        "| figure | value | wanted | aim | verdict | what |",
        "|---|---|---|---|---|---|",
    ]
    for bar in BARS:
        value = figures[bar.key]
        lines.append(
            f"| `{bar.key}` | {bar.show(value)} | {bar.wanted} | {bar.show(bar.aim)} "
            f"| {bar.verdict(value)} | {bar.meaning} |"
        )
    return "\n".join(lines)
