"""The verbs of compaction, for the logs over HTTP that have the paths of `http/cluster`.

Used by `lithify cluster` and `lithify catalog`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.cli.client import open_client
from lithify.cli.output import human_time, print_json, print_line, print_table
from lithify.cli.run_progress import run_continues

if TYPE_CHECKING:
    from lithify.cli.run_progress import RunPrinter

__all__ = ["LogVerbs"]


@dataclass(frozen=True, slots=True)
class LogVerbs:
    """The verbs of one log."""

    noun: str
    """The group of commands."""
    name: str
    """The name of the log in texts."""
    path: str
    """That of its compaction."""
    printer: RunPrinter
    argument: str = ""
    """What the commands name the log by; empty if by nothing."""

    def compact(
        self, *, dry_run: bool, wait: bool, data: str | None, url: str | None, as_json: bool
    ) -> None:
        """Run, or print what a run would do."""
        query = "" if wait else "?wait=false"
        with open_client(data, url) as client:
            if dry_run:
                rows = client.call("POST", f"{self.path}/plan{query}", timeout_s=None)
                self.printer.print_plans(rows, as_json=as_json)
                return
            with run_continues(self.noun, self.argument, data):
                with client.open("PUT", self.path + query) as answer:
                    request = answer.headers.get("x-lithify-request", "")
                asked = f"{self.path}/progress?request={request}"
                rows = self.printer.wait(lambda: client.call("GET", asked))
        self.printer.print_statuses(rows, as_json=as_json)

    def status(self, *, watch: bool, data: str | None, url: str | None, as_json: bool) -> None:
        """Print the outcome of the last run, or the progress of the current one."""
        with open_client(data, url) as client:

            def read() -> list[dict[str, Any]]:
                rows: list[dict[str, Any]] = client.call("GET", f"{self.path}/progress")
                return rows

            rows = self.printer.wait(read) if watch else read()
        self.printer.print_statuses(rows, as_json=as_json)

    def history(self, *, limit: int, data: str | None, url: str | None, as_json: bool) -> None:
        """Print the last runs."""
        with open_client(data, url) as client:
            rows = client.call("GET", f"{self.path}/history?limit={limit}")
        self.printer.print_history(f"Runs on {self.name}", rows, as_json=as_json)

    def cancel(self, *, data: str | None, url: str | None) -> str:
        """Cancel the run; returns what to print."""
        with open_client(data, url) as client:
            client.call("DELETE", self.path)
        return f"the run on {self.name} is being cancelled"

    def holds(
        self, path: str, position: str, *, data: str | None, url: str | None, as_json: bool
    ) -> None:
        """Print the holds; `position` is what they are in."""
        with open_client(data, url) as client:
            found = client.call("GET", path)
        if as_json:
            print_json(found)
            return
        rows = [
            [
                each["name"],
                str(each["position"]),
                each["owner"] or "-",
                human_time(each["since_ms"], "seconds") if each["since_ms"] else "-",
            ]
            for each in found["holds"]
        ]
        print_table("Holds", ("hold", "compacted up to>", "owner", "since"), rows)
        print_line(f"the history can be compacted up to {position} {found[position]}")
