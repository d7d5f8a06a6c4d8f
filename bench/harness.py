"""Compare an operation with the raw operation under it, on a machine that is not idle.

1. A `Case` has two sides that move the same bytes: `ours` and `raw`. Each is a call that does one
   round and returns the seconds of its measured part; what it prepares and removes does not count.
2. One round of each goes unmeasured: compiled code is loaded, buffers and files are there.
3. The rounds alternate, ours, raw, ours, raw, so that a slow spell of the machine meets both sides.
4. The ratio is the best raw time over the best time of ours: 1.0 is as fast as the raw operation.
   The best of several rounds is the one that was disturbed least. The median of the ratios round
   by round, and the lowest and highest of them, tell how far to trust it.

A ratio below `at_least` is a miss and is printed as one; nothing fails because of it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Case", "Result", "compare", "table"]


@dataclass(frozen=True, slots=True)
class Case:
    """Two sides to be compared."""

    name: str
    what: str
    against: str
    at_least: float | None
    """The ratio to reach; None where the figure is only for information."""
    amount: float
    """What one round handles, in `unit`s."""
    unit: str
    ours: Callable[[], float]
    raw: Callable[[], float]
    note: Callable[[], str] = str
    """Measures something other than time, once after the rounds; by default nothing."""


@dataclass(frozen=True, slots=True)
class Result:
    """The seconds of each round of both sides, in the order they were run."""

    case: Case
    ours_s: tuple[float, ...]
    raw_s: tuple[float, ...]
    note: str = ""

    @property
    def ratio(self) -> float:
        """Best against best."""
        return min(self.raw_s) / min(self.ours_s)

    @property
    def round_ratios(self) -> tuple[float, ...]:
        """Of each round, lowest first."""
        pairs = zip(self.raw_s, self.ours_s, strict=True)
        return tuple(sorted(raw / ours for raw, ours in pairs))

    @property
    def verdict(self) -> str:
        """`pass`, `miss`, or a dash where nothing was asked for."""
        if self.case.at_least is None:
            return "-"
        return "pass" if self.ratio >= self.case.at_least else "miss"

    def to_dict(self) -> dict[str, object]:
        """Everything, for `--json`."""
        case = self.case
        return {
            "name": case.name,
            "what": case.what,
            "against": case.against,
            "ratio": self.ratio,
            "ratio_median": statistics.median(self.round_ratios),
            "ratio_min": self.round_ratios[0],
            "ratio_max": self.round_ratios[-1],
            "at_least": case.at_least,
            "verdict": self.verdict,
            "unit": f"{case.unit}/s",
            "ours": case.amount / min(self.ours_s),
            "raw": case.amount / min(self.raw_s),
            "ours_s": self.ours_s,
            "raw_s": self.raw_s,
            "note": self.note,
        }

    def to_row(self) -> tuple[str, ...]:
        """Its line of the table."""
        case, rounds = self.case, self.round_ratios
        return (
            case.name,
            case.what,
            case.against,
            f"{self.ratio:.2f}",
            f"{statistics.median(rounds):.2f} ({rounds[0]:.2f}…{rounds[-1]:.2f})",
            "-" if case.at_least is None else f"{case.at_least:g}",
            self.verdict,
            _rate(case, min(self.ours_s)) + (f"; {self.note}" if self.note else ""),
            _rate(case, min(self.raw_s)),
        )


_COLUMNS = (
    "name",
    "what",
    "against",
    "ratio",
    "median (spread)",
    "at least",
    "verdict",
    "ours",
    "raw",
)


def compare(case: Case, rounds: int, *, warm_up: bool = True) -> Result:
    """Run both sides by turns."""
    if warm_up:
        case.ours()
        case.raw()
    pairs = [(case.ours(), case.raw()) for _ in range(rounds)]
    ours, raw = zip(*pairs, strict=True)
    return Result(case, ours, raw, case.note())


def table(results: Sequence[Result]) -> str:
    """The results as a Markdown table with aligned columns."""
    rows = [_COLUMNS, *(result.to_row() for result in results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _rate(case: Case, seconds: float) -> str:
    rate = case.amount / seconds
    return f"{rate:,.0f} {case.unit}/s" if rate >= 100 else f"{rate:.2f} {case.unit}/s"
