"""`lithify cluster`, the verbs of compaction: compact, compaction-status, -history, cancel."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from lithify.cli.client import open_client
from lithify.cli.options import RUNS_SHOWN, AsJson, Data, DryRun, Limit, NoWait, Url, Watch
from lithify.cli.output import print_result
from lithify.cli.run_progress import MEMBERS, run_continues

__all__ = ["cancel_compaction", "compact", "compaction_history", "compaction_status"]

METASTORE = "metastore"

Group = Annotated[str, typer.Argument(metavar="[GROUP]", help="A Raft group of the node.")]


def _path(group: str) -> str:
    return f"/cluster/raft/{quote(group, safe='')}/compaction"


def compact(
    group: Group = METASTORE,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Compact the files of a group on this node. Waits for the run."""
    path, query = _path(group), "?wait=false" if no_wait else ""
    with open_client(data, url) as client:
        if dry_run:
            rows = client.call("POST", f"{path}/plan{query}", timeout_s=None)
            MEMBERS.print_plans(rows, as_json=as_json)
            return
        with run_continues("cluster", group, data):
            with client.open("PUT", path + query) as answer:
                request = answer.headers.get("x-lithify-request", "")
            rows = MEMBERS.wait(lambda: client.call("GET", f"{path}/progress?request={request}"))
    MEMBERS.print_statuses(rows, as_json=as_json)


def compaction_status(
    group: Group = METASTORE,
    watch: Watch = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the outcome of the last run on this node, or the progress of the current one."""
    path = f"{_path(group)}/progress"
    with open_client(data, url) as client:

        def read() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = client.call("GET", path)
            return rows

        rows = MEMBERS.wait(read) if watch else read()
    MEMBERS.print_statuses(rows, as_json=as_json)


def compaction_history(
    group: Group = METASTORE,
    limit: Limit = RUNS_SHOWN,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the last runs on this node, newest first."""
    with open_client(data, url) as client:
        rows = client.call("GET", f"{_path(group)}/history?limit={limit}")
    MEMBERS.print_history(f"Runs on {group}", rows, as_json=as_json)


def cancel_compaction(
    group: Group = METASTORE, data: Data = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Cancel the run on this node; published changes stay."""
    with open_client(data, url) as client:
        client.call("DELETE", _path(group))
    print_result({"group": group}, f"the run on {group} is being cancelled", as_json=as_json)
