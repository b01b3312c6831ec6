"""A picture of a message from its waveforms, for where no viewer starts.

A row for each event and stream at which something happens, in the order in which a message travels;
a line for each landmark of the message.
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path

from .layout import Group, Layout
from .vcd import read

__all__ = ["draw", "rows_of"]

_WIDTH, _LABEL, _ROW, _TOP = 1180, 270, 16, 118
#: A pulse of one cycle must be seen.
_PULSE = 2.0
_STYLE = (
    "text{font:11px sans-serif;fill:#222}.h{font-weight:bold}.m{font-size:10px;fill:#b3261e}"
    ".l{stroke:#b3261e;stroke-dasharray:2 3;stroke-width:1}.g{stroke:#ddd}.p{fill:#1f5fa8}"
    ".s{fill:#eef3f8}"
)


def rows_of(layout: Layout, waves: Path) -> list[tuple[Group, list[tuple[int, int]]]]:
    """Groups at which something happens, each with its spans: first cycle and the one after."""
    valid = {
        f"{row.path}": group
        for group in layout.groups
        for row in group.rows
        if row.label == "valid"
    }
    changes = read(waves, valid)
    rows = []
    for path, group in valid.items():
        found = changes.get(path, [])
        ends = [time for time, _ in found[1:]] + [found[-1][0] + 1 if found else 0]
        spans = [(start, end) for (start, value), end in zip(found, ends, strict=True) if value]
        if spans:
            rows.append((group, spans))
    return rows


def draw(layout: Layout, waves: Path, title: str, landmarks: Mapping[str, int]) -> str:
    """The picture as SVG.

    Parameters
    ----------
    waves
        A VCD file that was dumped for the layout.
    landmarks
        Cycle of each landmark of the message, in order of time.
    """
    rows = rows_of(layout, waves)
    cycles = [cycle for _, spans in rows for span in spans for cycle in span]
    first = min([*landmarks.values(), *cycles])
    last = max([*landmarks.values(), *cycles])
    scale = (_WIDTH - _LABEL - 20) / max(last - first, 1)

    def place(cycle: int) -> float:
        return _LABEL + (cycle - first) * scale

    body, y, block = [], _TOP, ""
    for group, spans in rows:
        here = f"node {group.node}: {group.block}"
        if here != block:
            body.append(f'<rect class="s" x="0" y="{y}" width="{_WIDTH}" height="{_ROW}"/>')
            body.append(f'<text class="h" x="6" y="{y + 12}">{escape(here)}</text>')
            block, y = here, y + _ROW
        body.append(f'<text x="18" y="{y + 12}">{escape(group.name)}</text>')
        body.append(f'<line class="g" x1="{_LABEL}" x2="{_WIDTH}" y1="{y + 14}" y2="{y + 14}"/>')
        body += [
            f'<rect class="p" x="{place(start):.1f}" y="{y + 3}" height="10" '
            f'width="{max((end - start) * scale, _PULSE):.1f}"/>'
            for start, end in spans
        ]
        y += _ROW
    marks, taken, start = [], 0.0, min(landmarks.values(), default=0)
    for name, cycle in sorted(landmarks.items(), key=lambda item: item[1]):
        x = place(cycle)
        # Labels keep their distance; a slanted line leads from each to its cycle.
        taken = max(x, taken + 11)
        at, text = f"translate({taken + 3:.1f} {_TOP - 20})", f"{escape(name)} +{cycle - start}"
        marks += [
            f'<line class="l" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 10}" y2="{y}"/>',
            f'<line class="l" x1="{taken:.1f}" x2="{x:.1f}" y1="{_TOP - 18}" y2="{_TOP - 10}"/>',
            f'<text class="m" transform="{at} rotate(-60)">{text}</text>',
        ]
    box = f"0 0 {_WIDTH + 60} {y + 8}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            f'<rect width="{_WIDTH + 60}" height="{y + 8}" fill="#fff"/>',
            f'<text class="h" x="6" y="16">{escape(title)}</text>',
            f'<text x="6" y="32">cycles {first} to {last}; 1 cycle is 1 ns</text>',
            *marks,
            *body,
            "</svg>",
            "",
        ]
    )
