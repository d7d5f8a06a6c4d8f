"""Waits for runs of compaction and prints them: progress, plans, statuses, reports.

The row of a run is that of `CompactionStatus.row`, with the name of the log under its kind: `topic`
or `store`; for a Raft group it also has the `node`, for the history of the metastore `log`.
Progress is shown on a terminal only: one bar per phase, with bytes and the remaining time. The
reason for a wait is printed to any output. Used by the modules of this package only.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.cli.client import Refused
from lithify.cli.output import (
    human_age,
    human_count,
    human_time,
    print_error_line,
    print_json,
    print_line,
    print_table,
)
from lithify.errors import LithifyError
from lithify.exit_codes import OUTCOME_UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Row = dict[str, Any]

__all__ = [
    "HISTORY",
    "MEMBERS",
    "POLL_S",
    "STORES",
    "TOPICS",
    "VERSIONS",
    "CompactionFailed",
    "RunOutcomeUnknown",
    "RunPrinter",
    "run_continues",
]

POLL_S = 0.2


class CompactionFailed(LithifyError):
    """The last run on a log failed."""


class RunOutcomeUnknown(LithifyError):
    """The node restarted while the command waited for a run."""

    exit_code = OUTCOME_UNKNOWN


@contextmanager
def run_continues(noun: str, name: str, data: str | None) -> Iterator[None]:
    """On Ctrl-C, print what happens to the run: a node continues it, and how to cancel it there."""
    try:
        yield
    except KeyboardInterrupt:
        of = f" {name}" if name else ""
        if data is None:
            print_error_line(
                f"the run continues at the node; lithify {noun} compaction-status{of} shows it, "
                f"lithify {noun} cancel-compaction{of} cancels it"
            )
        else:
            print_error_line(
                f"the run is being stopped; the next lithify {noun} compact{of} continues it or "
                "starts again"
            )
        raise


@dataclass(frozen=True, slots=True)
class RunPrinter:
    """The words for one kind of log."""

    log: str
    counted: str
    read: str
    """Field of a report: the number of entries that were judged."""
    kept: str = ""
    """Field of a report: the number of entries that were kept; empty if a run keeps none."""

    def wait(self, read: Callable[[], list[Row]], rows: list[Row] | None = None) -> list[Row]:
        """Read statuses until no run is in progress, and show progress; returns the last statuses.

        `rows` are the first statuses, if known.
        """
        with self.progress() as show:
            while True:
                if rows is None:
                    rows = _known(read)
                for row in rows:
                    show(row)
                if all(row["status"] != "RUNNING" for row in rows):
                    return rows
                time.sleep(POLL_S)
                rows = None

    def print_plans(self, rows: list[Row], *, as_json: bool) -> None:
        """Print the plans of dry runs."""
        if as_json:
            print_json(rows)
            return
        for row in rows:
            print_line(row[self.log])
            print_line(row["text"])

    def print_statuses(self, rows: list[Row], *, as_json: bool) -> None:
        """Print the outcome of the last runs; raises `CompactionFailed` if one of them failed."""
        if as_json:
            print_json(rows)
        for row in rows:
            report, name = row["report"], row[self.log]
            if as_json:
                continue
            if row["status"] == "RUNNING":
                how_far = f"{row['phase']}, {_share(row)}"
                print_line(f"{name}: {_waiting(row) or how_far}")
            elif row["status"] == "NOT_RUN":
                print_line(f"{name}: has not been compacted")
            elif row["status"] == "SUCCESS":
                self._print_report(name, report)
        self.check(rows)

    def check(self, rows: list[Row]) -> None:
        """Raise `CompactionFailed` if one of the runs failed."""
        failed = [row for row in rows if row["status"] == "ERROR"]
        if failed:
            raise CompactionFailed(f"{failed[0][self.log]}: {failed[0]['lastError']}")

    def _print_report(self, name: str, report: Row) -> None:
        seconds = (report["finished_ms"] - report["started_ms"]) / 1000
        title = f"{name}: {report['result']} in {seconds:.1f} s ({report['trigger']})"
        if report["result"] == "nothing to do":
            declined = report.get("declined")
            print_line(title + (f": {declined['why']}, {declined['detail']}" if declined else ""))
            return
        rows = [["judged", human_count(report.get(self.read, 0)), ""]]
        rows += [
            [f"dropped, {cause}", human_count(count), _bytes(size) if size else ""]
            for cause, (count, size) in report["dropped"].items()
        ]
        if self.kept:
            kept = human_count(report.get(self.kept, 0))
            rows.append(["kept", kept, _bytes(report["kept_bytes"])])
        for what in ("retired", "reclaimed"):
            if report[f"{what}_bytes"]:
                rows.append([what, "", _bytes(report[f"{what}_bytes"])])
        print_table(title, ("", f"{self.counted}>", "size>"), rows)
        phases = ", ".join(f"{k} {v:.2f} s" for k, v in report["seconds_by_phase"].items())
        if phases:
            print_line(f"  {phases}")

    def print_history(self, title: str, rows: list[Row], *, as_json: bool) -> None:
        """Print reports, one per line."""
        if as_json:
            print_json(rows)
            return
        kept, size = (self.kept, "kept_bytes") if self.kept else ("", "retired_bytes")
        outcome = "kept>" if kept else "dropped>"
        columns = ("began", "took>", "trigger", "result", f"{self.counted}>", outcome, "size>")
        shown = [
            [
                human_time(row["started_ms"], "seconds"),
                human_age(row["finished_ms"] - row["started_ms"]),
                row["trigger"],
                row["result"],
                human_count(row.get(self.read, 0)),
                human_count(row.get(kept, 0) if kept else _dropped(row)),
                _bytes(row[size]),
                row["error"] or "",
            ]
            for row in rows
        ]
        print_table(title, (*columns, "error"), shown)

    @contextmanager
    def progress(self) -> Iterator[Callable[[Row], None]]:
        """Yield a function that shows the status of a run in progress."""
        shown: dict[str, str] = {}

        def show_waiting(row: Row) -> None:
            """Print one line for each new reason for a wait."""
            waiting = _waiting(row)
            if waiting and shown.get(row[self.log]) != waiting:
                shown[row[self.log]] = waiting
                print_error_line(f"{row[self.log]}: {waiting}")

        if not sys.stderr.isatty():
            yield show_waiting
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

            def show(row: Row) -> None:
                if row["status"] != "RUNNING":
                    return
                place = row[self.log], row["phase"]
                short = row[self.log].rpartition("/")[2]
                text = f"{short}  {_waiting(row) or row['phase'].lower()}"
                if place not in bars:
                    bars[place] = bar.add_task(text, total=None, amount="")
                total, amount = row["total"] or None, _amount(row)
                bar.update(
                    bars[place],
                    description=text,
                    total=total,
                    completed=row["done"],
                    amount=amount,
                )

            yield show


TOPICS = RunPrinter("topic", "messages", "read_messages", "kept_messages")
STORES = RunPrinter("store", "records", "read_entries", "kept_entries")
MEMBERS = RunPrinter("node", "entries", "read_entries", "kept_entries")
HISTORY = RunPrinter("log", "revisions", "read_entries")
VERSIONS = RunPrinter("log", "versions", "read_entries")


def _known(read: Callable[[], list[Row]]) -> list[Row]:
    """Read statuses; a node that does not know the request has restarted since."""
    try:
        return read()
    except Refused as error:
        if error.kind == "RequestUnknown":
            raise RunOutcomeUnknown(
                f"{error}; compaction-history lists the runs that ended"
            ) from error
        raise


def _dropped(row: Row) -> int:
    return sum(count for count, _ in row["dropped"].values())


def _bytes(count: int) -> str:
    from lithify.compaction.planning.plan import human_bytes

    return human_bytes(count)


def _waiting(row: Row) -> str:
    """The reason for the wait of a run, as text; empty if it does not wait."""
    waits_for = row.get("waitsFor", "")
    return f"waiting for {waits_for}" if waits_for else ""


def _share(row: Row) -> str:
    return f"{row['done'] / row['total']:.0%}" if row["total"] else "…"


def _amount(row: Row) -> str:
    if row["phase"] in {"index", "rewrite"}:
        return f"{_bytes(row['done'])} of {_bytes(row['total'])}"
    return _share(row)
