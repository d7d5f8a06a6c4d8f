"""Draw the lines of one area as an SVG picture: `draw`.

One bar for each line that has a target: its ratio over the target, on a logarithmic scale. Bars
that reach the line pass. A thin line shows the spread of the rounds. The picture has its own
background and colours for light and dark pages.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["draw", "format_ratio"]

WIDTH, ROW, LEFT, RIGHT, TOP = 860, 26, 270, 100, 46
DECADES = 1
"""The scale goes from a tenth of the target to ten times it; bars beyond are cut there."""

STYLE = """<style>
.page { fill: #ffffff } .ink { fill: #24292f } .line { stroke: #24292f } .grid { stroke: #d0d7de }
.pass { fill: #2f7d5b } .miss { fill: #b5493a }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } .ink { fill: #e6edf3 } .line { stroke: #e6edf3 } .grid { stroke: #30363d }
.pass { fill: #3fa37a } .miss { fill: #d9705f }
}
</style>"""


def format_ratio(line: Mapping[str, Any]) -> str:
    """With two digits, or three where two would look like the target that was missed."""
    close = line["verdict"] == "miss" and round(line["ratio"], 2) >= line["at_least"]
    return f"{line['ratio']:.3f}" if close else f"{line['ratio']:.2f}"


def _x(factor: float) -> float:
    """Where a multiple of the target is."""
    place = (math.log10(min(max(factor, 10**-DECADES), 10**DECADES)) + DECADES) / (2 * DECADES)
    return LEFT + place * (WIDTH - LEFT - RIGHT)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="ink" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _grid(height: float) -> list[str]:
    lines = []
    for factor in (0.1, 0.2, 0.5, 1, 2, 5, 10):
        x = _x(factor)
        lines.append(_line(x, TOP - 8, x, height - 8, "line" if factor == 1 else "grid"))
        label = "target" if factor == 1 else f"{factor:g}×"
        lines.append(_text(x, TOP - 14, label, "middle"))
    return lines


def _bar(row: dict[str, Any], y: float) -> list[str]:
    target = row["at_least"]
    start, stop = sorted((_x(1), _x(row["ratio"] / target)))
    middle = y + ROW / 2
    drawn = [
        _text(LEFT - 10, middle + 4, f"{row['name']} (at least {target:g})", "end"),
        (
            f'<rect x="{start:.1f}" y="{y + 5:.1f}" width="{max(stop - start, 1):.1f}" '
            f'height="{ROW - 10}" class="{row["verdict"]}"/>'
        ),
    ]
    if row["ratio_min"] is not None:
        low, high = _x(row["ratio_min"] / target), _x(row["ratio_max"] / target)
        drawn.append(_line(low, middle, high, middle, "line"))
    drawn.append(_text(WIDTH - RIGHT + 12, middle + 4, f"{format_ratio(row)} {row['verdict']}"))
    return drawn


def draw(lines: Sequence[dict[str, Any]]) -> str:
    """The lines that have a target, as an SVG picture."""
    shown = [line for line in lines if line["at_least"] is not None]
    height = TOP + ROW * len(shown) + 12
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
        ),
        STYLE,
        f'<rect width="{WIDTH}" height="{height}" class="page"/>',
        *_grid(height),
    ]
    for number, line in enumerate(shown):
        parts += _bar(line, TOP + number * ROW)
    return "\n".join([*parts, "</svg>", ""])
