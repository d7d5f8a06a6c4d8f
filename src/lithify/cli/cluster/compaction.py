"""`lithify cluster`, the verbs of compaction: compact, compaction-status, -history, cancel, holds.

Without a GROUP they are about the history of the metastore, which the leader compacts for all
nodes: any node accepts them. With a GROUP they are about the files of that Raft group on the node
that is asked; each node compacts its own.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from lithify.cli.leader_runs import LogVerbs
from lithify.cli.options import RUNS_SHOWN, AsJson, Data, DryRun, Limit, Url, Watch
from lithify.cli.output import print_result
from lithify.cli.run_progress import HISTORY, MEMBERS

__all__ = ["cancel_compaction", "compact", "compaction_history", "compaction_status", "holds"]

METASTORE = "/cluster/metastore"

Group = Annotated[
    str | None,
    typer.Argument(
        metavar="[GROUP]",
        help="The files of this Raft group on the node; default: the history of the metastore.",
    ),
]


def _log(group: str | None) -> LogVerbs:
    if group is None:
        name = "the history of the metastore"
        return LogVerbs("cluster", name, f"{METASTORE}/compaction", HISTORY)
    path = f"/cluster/raft/{quote(group, safe='')}/compaction"
    return LogVerbs("cluster", group, path, MEMBERS, group)


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
    _log(group).compact(dry_run=dry_run, wait=wait, data=data, url=url, as_json=as_json)


def compaction_status(
    group: Group = None,
    watch: Watch = False,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the outcome of the last run, or the progress of the current one."""
    _log(group).status(watch=watch, data=data, url=url, as_json=as_json)


def compaction_history(
    group: Group = None,
    limit: Limit = RUNS_SHOWN,
    data: Data = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the last runs of the node that compacts, newest first."""
    _log(group).history(limit=limit, data=data, url=url, as_json=as_json)


def cancel_compaction(
    group: Group = None, data: Data = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Cancel the run in progress and those that wait; published changes stay."""
    text = _log(group).cancel(data=data, url=url)
    row = {"log": "metastore"} if group is None else {"group": group}
    print_result(row, text, as_json=as_json)


def holds(data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """List what keeps the history of the metastore, the lowest revision first."""
    _log(None).holds(f"{METASTORE}/holds", "revision", data=data, url=url, as_json=as_json)
