"""The output of commands: tables, sizes, times, JSON and progress.

On a terminal rich draws the tables; for other outputs they are plain columns, for `awk` and `grep`.
JSON has raw numbers (bytes, milliseconds since 1970); tables have units. Results go to stdout.
Progress goes to stderr, only if it is a terminal and only after one second.

Used by the modules of this package only.
"""

from __future__ import annotations

import codecs
import json
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.clock import Clock

__all__ = [
    "human_age",
    "human_count",
    "human_time",
    "preview",
    "print_error_line",
    "print_json",
    "print_line",
    "print_result",
    "print_table",
    "progress_bar",
]

_PROGRESS_AFTER_S = 1.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def print_line(text: str = "") -> None:
    """Print one line to stdout, without the flush per line of `typer.echo`."""
    sys.stdout.write(text + "\n")


def print_error_line(text: str) -> None:
    """Print one line to stderr, with the name of the program."""
    sys.stderr.write(f"lithify: {text}\n")


def print_json(value: object, *, compact: bool = False) -> None:
    """Print a value to stdout; `compact` puts it on one line."""
    print_line(json.dumps(value, indent=None if compact else 2))


def print_result(row: dict[str, Any], line: str, *, as_json: bool) -> None:
    """Print the outcome of a command: `row` as JSON, `line` as text."""
    if as_json:
        print_json(row)
    else:
        print_line(line)


def human_count(count: int) -> str:
    """`1,234,567`."""
    return f"{count:,}"


def human_time(time_ms: int, precision: str = "milliseconds") -> str:
    """ISO 8601 in UTC; a time beyond the year 9999 stays a number."""
    try:
        time = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms"
    return time.isoformat(timespec=precision).replace("+00:00", "Z")


def human_age(age_ms: int) -> str:
    """A duration in its two largest units: `5 s`, `3 min 20 s`, `2 h 5 min`, `4 d 7 h`."""
    seconds = max(0, age_ms) // 1000
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    for at, (size, name) in enumerate(units):
        if seconds >= size:
            text = f"{seconds // size} {name}"
            rest = seconds % size // units[at + 1][0] if at + 1 < len(units) else 0
            return f"{text} {rest} {units[at + 1][1]}" if rest else text
    return "0 s"


def preview(body: bytes, limit_bytes: int) -> str:
    """The first bytes of a body on one line; bytes that are not printable text are escaped."""
    cut = len(body) > limit_bytes
    # Incremental, so that a character that the limit cuts in two is omitted and not escaped.
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    # Backslashes are doubled first: the single ones are the escapes.
    text = decoder.decode(body[:limit_bytes].replace(b"\\", b"\\\\"), final=not cut)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown + "…" if cut else shown


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with a title; columns whose name ends in `>` are aligned to the right."""
    names = [column.removesuffix(">") for column in columns]
    right = [column.endswith(">") for column in columns]
    if sys.stdout.isatty():
        _print_rich(title, names, right, rows)
        return
    print_line(title)
    cells = [names, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(names))]
    for row in cells:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        print_line(f"  {'  '.join(padded)}".rstrip())


def _print_rich(
    title: str, names: Sequence[str], right: Sequence[bool], rows: Sequence[Sequence[str]]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    print_line(title)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 1))
    for name, to_right in zip(names, right, strict=True):
        table.add_column(name, justify="right" if to_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    sys.stdout.flush()
    Console().print(table)


@contextmanager
def progress_bar(
    what: str, total_bytes: int | None, clock: Clock
) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of bytes done since its last call.

    Without `total_bytes` the total is unknown.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total_bytes)
    started_s = clock.monotonic_s()
    shown = False

    def advance(count: int) -> None:
        nonlocal shown
        bar.advance(task, count)
        if not shown and clock.monotonic_s() - started_s >= _PROGRESS_AFTER_S:
            shown = True
            bar.start()

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
