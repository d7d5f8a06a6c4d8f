"""`python -m bench.page`: write the tables and plots of `docs/benchmarks.md` from the result files.

For each area the page has a pair of markers,

    <!-- bench: AREA -->
    <!-- /bench -->

and what is between them is replaced: the plot, the table of figures, and the table that says
when, of which commit, at which load and by which command each row was measured. The plots are
`docs/pictures/bench-AREA.svg`. The text around the markers is written by hand: under `### Misses`
of its area, each line below its target has a paragraph that begins with its name, `**name.**`.

`problems` finds what does not fit; a test calls it.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from bench.areas import AREAS
from bench.plot import draw, format_ratio
from bench.results import ROOT, load_results

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.areas import Area
    from bench.results import Measured

__all__ = ["PAGE", "PICTURES", "is_miss", "main", "plots", "problems", "render"]

PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "pictures"

_COLUMNS = ("row", "ours", "against", "ratio", "median (spread)", "at least", "verdict")
_RATES = ("our rate", "their rate")
_MEASURED = ("row", "measured (UTC)", "commit", "load", "command", "remark")


def is_miss(line: Mapping[str, Any]) -> bool:
    """Whether its ratio, or the figure in its note, is beyond its limit."""
    return bool(line["verdict"] == "miss" or line["note"].endswith(": miss"))


def render(page: str, results: Mapping[str, Measured]) -> str:
    """The page with its marked parts rewritten."""
    for area in AREAS:
        begin, end = f"<!-- bench: {area.name} -->\n", "<!-- /bench -->"
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        block = begin + _block(area, results) + end
        page, count = re.subn(pattern, lambda _, block=block: block, page, flags=re.DOTALL)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"{PAGE}: {count} markers for {area.name}, wanted 1")
    return page


def plots(results: Mapping[str, Measured]) -> dict[str, str]:
    """The pictures by file name."""
    drawn = {}
    for area in AREAS:
        lines = [line for row in area.rows if row in results for line in results[row].lines]
        drawn[f"bench-{area.name}.svg"] = draw(lines)
    return drawn


def problems(page: str, results: Mapping[str, Measured], pictures: Mapping[str, str]) -> list[str]:
    """What does not fit: stale tables or plots, misses without a reason, reasons without a miss."""
    found = []
    if render(page, results) != page:
        found.append("docs/benchmarks.md is not what bench/results says: run python -m bench.page")
    for name, picture in plots(results).items():
        if pictures.get(name) != picture:
            found.append(f"docs/pictures/{name} is stale: run python -m bench.page")
    for area in AREAS:
        lines = [line for row in area.rows if row in results for line in results[row].lines]
        missed = {line["name"] for line in lines if is_miss(line)}
        explained = _explained(page, area)
        found += [f"{area.title}: no paragraph says why {n} misses" for n in missed - explained]
        found += [f"{area.title}: {n} is explained, but no miss" for n in explained - missed]
    return found


def main() -> None:
    results = load_results()
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    pictures = plots(results)
    for name, picture in pictures.items():
        (PICTURES / name).write_text(picture, encoding="utf-8")
    left = problems(PAGE.read_text(encoding="utf-8"), results, pictures)
    for problem in left:
        print(problem, file=sys.stderr)
    sys.exit(bool(left))


def _explained(page: str, area: Area) -> set[str]:
    """The names that begin a paragraph under `### Misses` of the area."""
    how = re.DOTALL | re.MULTILINE
    section = re.search(rf"^## {re.escape(area.title)}\n(.*?)(?=^## |\Z)", page, how)
    misses = section and re.search(r"^### Misses\n(.*?)(?=^### |\Z)", section[1], how)
    return set(re.findall(r"^\*\*(.+?)\.\*\*", misses[1], re.MULTILINE)) if misses else set()


def _block(area: Area, results: Mapping[str, Measured]) -> str:
    figures, facts = [], []
    for row in area.rows:
        measured = results.get(row)
        if measured is None:
            figures.append((row, "no figure yet", *"-" * (len(_COLUMNS) + len(_RATES) - 2)))
            continue
        figures += [_figures(line) for line in measured.lines]
        facts.append(
            (
                row,
                measured.date,
                measured.commit or "not recorded",
                measured.load or "not recorded",
                f"`{measured.command}`",
                measured.remark or "",
            )
        )
    machines = sorted({results[row].machine for row in area.rows if row in results})
    return "\n".join(
        [
            "",
            f"![{area.title}: ratios over their targets](pictures/bench-{area.name}.svg)",
            "",
            *_table((*_COLUMNS, *_RATES), figures),
            "",
            *_table(_MEASURED, facts),
            "",
            *(f"Machine: {machine}." for machine in machines),
            "",
            "",
        ]
    )


def _figures(line: Mapping[str, Any]) -> tuple[str, ...]:
    median, low, high = line["ratio_median"], line["ratio_min"], line["ratio_max"]
    spread = [] if median is None else [f"{median:.2f}"]
    if low is not None:
        spread.append(f"({low:.2f}…{high:.2f})")
    note = line["note"].replace(": miss", ": **miss**")
    return (
        line["name"],
        line["what"],
        line["against"],
        format_ratio(line),
        " ".join(spread) or "not recorded",
        "-" if line["at_least"] is None else f"{line['at_least']:g}",
        "**miss**" if line["verdict"] == "miss" else line["verdict"],
        _rate(line["ours"], line["unit"]) + (f"; {note}" if note else ""),
        _rate(line["raw"], line["unit"]),
    )


def _rate(rate: float | None, unit: str) -> str:
    if rate is None:
        return "not recorded"
    return f"{rate:,.0f} {unit}" if rate >= 100 else f"{rate:.2f} {unit}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in (columns, *rows)]
    lines.insert(1, "|" + "---|" * len(columns))
    return lines


if __name__ == "__main__":
    main()
