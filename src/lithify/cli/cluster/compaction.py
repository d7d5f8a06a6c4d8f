"""`lithify cluster`, the verbs of compaction: compact, compaction-status, -history, cancel, holds.

Without a GROUP they are about the history of the metastore, which the leader compacts for all
nodes: any node accepts them. With a GROUP they are about the files of that Raft group on the node
that is asked; each node compacts its own.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from lithify.cli.client import open_client
from lithify.cli.options import RUNS_SHOWN, AsJson, Data, DryRun, Limit, Url, Watch
from lithify.cli.output import human_time, print_json, print_line, print_result, print_table
from lithify.cli.run_progress import HISTORY, MEMBERS, RunPrinter, run_continues

__all__ = ["cancel_compaction", "compact", "compaction_history", "compaction_status", "holds"]

METASTORE = "/cluster/metastore"

Group = Annotated[
    str | None,
    typer.Argument(
        metavar="[GROUP]",
        help="The files of this Raft group on the node; default: the history of the metastore.",
    ),
]


def _log(group: str | None) -> tuple[str, str, RunPrinter]:
    """The name of a log, its path, and the words for its runs."""
    if group is None:
        return "the history of the metastore", f"{METASTORE}/compaction", HISTORY
    return group, f"/cluster/raft/{quote(group, safe='')}/compaction", MEMBERS


def compact(
    group: Group = None,
    dry_run: DryRun = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait",
            help="Wait for other runs; otherwise exit with code 4 if one has the log or its disk.",
        ),
    ] = True,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Compact the history of the metastore, or the files of a Raft group. Waits for the run."""
    _, path, printer = _log(group)
    query = "" if wait else "?wait=false"
    with open_client(data, url) as client:
        if dry_run:
            rows = client.call("POST", f"{path}/plan{query}", timeout_s=None)
            printer.print_plans(rows, as_json=as_json)
            return
        with run_continues("cluster", group or "", data):
            with client.open("PUT", path + query) as answer:
                request = answer.headers.get("x-lithify-request", "")
            rows = printer.wait(lambda: client.call("GET", f"{path}/progress?request={request}"))
    printer.print_statuses(rows, as_json=as_json)


def compaction_status(
    group: Group = None,
    watch: Watch = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the outcome of the last run, or the progress of the current one."""
    _, path, printer = _log(group)
    with open_client(data, url) as client:

        def read() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = client.call("GET", f"{path}/progress")
            return rows

        rows = printer.wait(read) if watch else read()
    printer.print_statuses(rows, as_json=as_json)


def compaction_history(
    group: Group = None,
    limit: Limit = RUNS_SHOWN,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the last runs of the node that compacts, newest first."""
    name, path, printer = _log(group)
    with open_client(data, url) as client:
        rows = client.call("GET", f"{path}/history?limit={limit}")
    printer.print_history(f"Runs on {name}", rows, as_json=as_json)


def cancel_compaction(
    group: Group = None, data: Data = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Cancel the run in progress and those that wait; published changes stay."""
    name, path, _ = _log(group)
    with open_client(data, url) as client:
        client.call("DELETE", path)
    row = {"log": "metastore"} if group is None else {"group": group}
    print_result(row, f"the run on {name} is being cancelled", as_json=as_json)


def holds(data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """List what keeps the history of the metastore, the lowest revision first."""
    with open_client(data, url) as client:
        found = client.call("GET", f"{METASTORE}/holds")
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
    print_line(f"the history can be compacted up to revision {found['revision']}")
