"""`python -m bench.plot RESULTS.json … > PLOT.svg`: draw what `python -m bench --json` has printed.

A bar for each row that has a target: its ratio over the target, on a logarithmic scale. Bars that
reach the line pass. The figure that a row would have to reach stands beside its name.
"""

from __future__ import annotations

import json
import math
import sys
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["draw"]

WIDTH, ROW, LEFT, RIGHT, TOP = 860, 26, 250, 100, 46
DECADES = 2
"""The scale goes from a hundredth of the target to a hundred times it."""

PASS, MISS, INK, GRID = "#2f7d5b", "#b5493a", "#333333", "#dddddd"


def _x(factor: float) -> float:
    """Where a multiple of the target is."""
    place = (math.log10(min(max(factor, 10**-DECADES), 10**DECADES)) + DECADES) / (2 * DECADES)
    return LEFT + place * (WIDTH - LEFT - RIGHT)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _grid(height: float) -> list[str]:
    lines = []
    for power in range(-DECADES, DECADES + 1):
        x = _x(10.0**power)
        colour = INK if power == 0 else GRID
        lines.append(
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 8:.1f}" '
            f'stroke="{colour}"/>'
        )
        label = "target" if power == 0 else f"{10.0**power:g}×"
        lines.append(_text(x, TOP - 14, label, "middle"))
    return lines


def _bar(row: dict[str, Any], y: float) -> list[str]:
    target = row["at_least"]
    low, high = _x(row["ratio_min"] / target), _x(row["ratio_max"] / target)
    start, stop = sorted((_x(1), _x(row["ratio"] / target)))
    colour = PASS if row["verdict"] == "pass" else MISS
    middle = y + ROW / 2
    return [
        _text(LEFT - 10, middle + 4, f"{row['name']} (at least {target:g})", "end"),
        (
            f'<rect x="{start:.1f}" y="{y + 5:.1f}" width="{max(stop - start, 1):.1f}" '
            f'height="{ROW - 10}" fill="{colour}"/>'
        ),
        (
            f'<line x1="{low:.1f}" y1="{middle:.1f}" x2="{high:.1f}" y2="{middle:.1f}" '
            f'stroke="{INK}"/>'
        ),
        _text(WIDTH - RIGHT + 12, middle + 4, f"{row['ratio']:.2f} {row['verdict']}"),
    ]


def draw(rows: Sequence[dict[str, Any]]) -> str:
    """The results as an SVG picture."""
    shown = [row for row in rows if row["at_least"] is not None]
    height = TOP + ROW * len(shown) + 12
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'font-family="sans-serif" font-size="12" fill="{INK}">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *_grid(height),
    ]
    for number, row in enumerate(shown):
        lines += _bar(row, TOP + number * ROW)
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    rows = []
    for path in sys.argv[1:]:
        with open(path) as file:
            rows.extend(json.load(file))
    print(draw(rows), end="")


if __name__ == "__main__":
    main()
