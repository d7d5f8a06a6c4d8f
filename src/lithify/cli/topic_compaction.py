"""`lithify topics`, the verbs of compaction: run, look, list, and what it leaves of one key.

    lithify topics compact TOPIC [--dry-run] [--master M]
    lithify topics compaction-status TOPIC [--watch]
    lithify topics compaction-history TOPIC [--limit N]
    lithify topics get TOPIC KEY

All take `--json`, and `--data DIR` or `--url URL`, see `compaction_admin.py`. Progress goes to a
terminal only: a bar a phase, with bytes and the time that is left. A run that failed ends the
command with exit code 1.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.compaction_admin import open_compaction
from lithify.cli.output import (
    human_age,
    human_count,
    human_time,
    print_json,
    print_line,
    print_table,
)
from lithify.cli.topics import (  # typer reads them at run time
    AsJson,
    Data,
    Name,
    Url,
    message_line,
)
from lithify.errors import LithifyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Row = dict[str, Any]

__all__ = ["CompactionFailed", "compact", "compaction_history", "compaction_status", "get"]

HISTORY_RUNS = 10


class CompactionFailed(LithifyError):
    """The last run on a topic did not end well."""


def compact(
    topic: Name,
    dry_run: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--dry-run", help="Print what a run would do, and do nothing.")
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(metavar="M", help="With --data: the Spark master; local[*,4] by default."),
    ] = None,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Compact a topic, and wait for it: keep the newest message of each key."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    with open_compaction(data, url, master) as admin:
        if dry_run:
            _print_plans(admin.plan(name), as_json=as_json)
            return
        with _progress() as watch:
            rows = admin.run(name, watch)
    _print_statuses(rows, as_json=as_json)


def compaction_status(
    topic: Name,
    watch: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--watch", "-w", help="Until the run that is going on has ended.")
    ] = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show how the last run on a topic went, or how far it is."""
    import time

    from lithify.cli.compaction_admin import POLL_S
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    with open_compaction(data, url) as admin, _progress() as tell:
        rows = admin.status(name)
        while watch and any(row["status"] == "RUNNING" for row in rows):
            for row in rows:
                tell(row)
            time.sleep(POLL_S)
            rows = admin.status(name)
    _print_statuses(rows, as_json=as_json)


def compaction_history(
    topic: Name,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, max=1000, help="The last so many runs.")
    ] = HISTORY_RUNS,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """List the last runs on a topic, newest first."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    with open_compaction(data, url) as admin:
        rows = admin.history(name, limit)
    if as_json:
        print_json(rows)
        return
    columns = ("began", "took>", "trigger", "result", "messages>", "kept>", "size>", "error")
    shown = [
        [
            human_time(row["started_ms"], "seconds"),
            human_age(row["finished_ms"] - row["started_ms"]),
            row["trigger"],
            row["result"],
            human_count(row.get("read_messages", 0)),
            human_count(row.get("kept_messages", 0)),
            _bytes(row["kept_bytes"]),
            row["error"] or "",
        ]
        for row in rows
    ]
    print_table(f"Runs on {name}", columns, shown)


def get(
    topic: Name,
    key: Annotated[str, typer.Argument(metavar="KEY")],
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Print the newest message of a key, found without reading the topic."""
    from lithify.topics.names import TopicName

    name = TopicName.parse(topic)
    with open_compaction(data, url) as admin:
        row = admin.get(name, key)
    if row is None:
        raise CompactionFailed(f"topic {name} has no message of key {key!r}")
    if as_json:
        print_json(row)
    else:
        print_line(message_line(row))


# --- printing ---------------------------------------------------------------------------------


def _bytes(count: int) -> str:
    from lithify.compaction.plan import human_bytes

    return human_bytes(count)


def _print_plans(rows: list[Row], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    for row in rows:
        print_line(row["topic"])
        print_line(row["text"])


def _print_statuses(rows: list[Row], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    for row in rows:
        report, name = row["report"], row["topic"]
        if as_json:
            continue
        if row["status"] == "RUNNING":
            print_line(f"{name}: {row['phase']}, {_share(row)}")
        elif row["status"] == "NOT_RUN":
            print_line(f"{name}: has not been compacted")
        elif row["status"] == "SUCCESS":
            _print_report(name, report)
    failed = [row for row in rows if row["status"] == "ERROR"]
    if failed:
        raise CompactionFailed(f"{failed[0]['topic']}: {failed[0]['lastError']}")


def _share(row: Row) -> str:
    return f"{row['done'] / row['total']:.0%}" if row["total"] else "…"


def _amount(row: Row) -> str:
    if row["phase"] in {"index", "rewrite"}:
        return f"{_bytes(row['done'])} of {_bytes(row['total'])}"
    return _share(row)


def _print_report(name: str, report: Row) -> None:
    seconds = (report["finished_ms"] - report["started_ms"]) / 1000
    title = f"{name}: {report['result']} in {seconds:.1f} s ({report['trigger']})"
    if report["result"] == "nothing to do":
        print_line(title)
        return
    rows = [["judged", human_count(report.get("read_messages", 0)), ""]]
    rows += [
        [f"dropped, {cause}", human_count(count), _bytes(size) if size else ""]
        for cause, (count, size) in report["dropped"].items()
    ]
    rows.append(["kept", human_count(report.get("kept_messages", 0)), _bytes(report["kept_bytes"])])
    for what in ("retired", "reclaimed"):
        if report[f"{what}_bytes"]:
            rows.append([what, "", _bytes(report[f"{what}_bytes"])])
    print_table(title, ("", "messages>", "size>"), rows)
    phases = ", ".join(f"{k} {v:.2f} s" for k, v in report["seconds_by_phase"].items())
    print_line(f"  {phases}")


@contextmanager
def _progress() -> Iterator[Callable[[Row], None]]:
    """A function to be told statuses again and again."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bars: dict[tuple[str, str], Any] = {}

        def tell(row: Row) -> None:
            if row["status"] != "RUNNING":
                return
            place = row["topic"], row["phase"]
            short = row["topic"].rpartition("/")[2]
            if place not in bars:
                text = f"{short}  {row['phase'].lower()}"
                bars[place] = bar.add_task(text, total=None, amount="")
            total, amount = row["total"] or None, _amount(row)
            bar.update(bars[place], total=total, completed=row["done"], amount=amount)

        yield tell
