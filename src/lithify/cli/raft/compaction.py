"""`lithify raft`, the verbs of compaction: compact, compaction-status, -history, cancel.

Every member has its own files, so the command sends a request to all given nodes concurrently and
prints a row for each. A node that does not answer within a few seconds is `unreachable`: exit code
1 if some did not answer, 5 if none did. Exit code 1 if a run failed, 4 with `--no-wait` if a run
would have had to wait.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.options import RUNS_SHOWN, AsJson, DryRun, Limit, NoWait, Watch
from lithify.cli.output import print_error_line, print_json, print_line
from lithify.cli.raft.members import exit_if_missing, show_each, state_of
from lithify.cli.raft.options import (
    EACH_S,
    GROUP,
    NODES,
    GroupName,
    Nodes,
    TlsFiles,
    ask_all,
    ask_each,
)
from lithify.cli.run_progress import MEMBERS, POLL_S, run_continues
from lithify.errors import InvalidInput, LithifyError
from lithify.exit_codes import CONFLICT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Row = dict[str, Any]
    Found = dict[str, Row | LithifyError]

__all__ = ["cancel_compaction", "compact", "compaction_history", "compaction_status"]

GroupArgument = Annotated[
    str | None, typer.Argument(metavar="GROUP", help="The group; the same as --group.")
]

PLAN_S = 60.0
"""Timeout of a dry run, which may read the headers of all segments."""


def compact(
    name: GroupArgument = None,
    dry_run: DryRun = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the runs and print their reports.")
    ] = False,
    no_wait: NoWait = False,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Also move scattered live entries, on the leader.")
    ] = False,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Compact the segments of a group now, on each of the nodes."""
    from lithify.raft.net.client_operations import ClientOperation

    group = name or group
    if dry_run:
        if wait or rewrite:
            raise InvalidInput("--dry-run goes with neither --wait nor --rewrite")
        # An unreachable node is detected at once; the others may take longer.
        found = _ask(nodes, tls, group, ask="status")
        asked = {at: {"ask": "plan"} for at, each in found.items() if not _code(each)}
        found |= ask_all(asked, tls, group, ClientOperation.COMPACTION, PLAN_S)
        _show(found, lambda rows: MEMBERS.print_plans(rows, as_json=False), as_json=as_json)
        return
    begun = ask_each(nodes, tls, group, ClientOperation.COMPACT, rewrite=rewrite, wait=not no_wait)
    if no_wait and any(_code(each) == CONFLICT for each in begun.values()):
        _print_errors(begun)
        raise typer.Exit(CONFLICT)
    if not wait:
        show_each(begun, "compaction started", as_json=as_json)
        return
    with MEMBERS.progress() as tell, run_continues("raft", group, None):
        ended = _ended(begun, tls, group, tell)
    _show_statuses(ended, as_json=as_json)


def _ended(begun: Found, tls: str, group: str, tell: Callable[[Row], None]) -> Found:
    """The status of each run that was started, after its end."""
    asked: dict[str, Mapping[str, object]] = {
        at: {"ask": "status", "request": answer["request"]}
        for at, answer in begun.items()
        if not isinstance(answer, LithifyError)
    }
    found = dict(begun)
    while asked:
        from lithify.raft.net.client_operations import ClientOperation

        for at, answer in ask_all(asked, tls, group, ClientOperation.COMPACTION).items():
            found[at] = answer
            if not isinstance(answer, LithifyError):
                tell(answer)
            if isinstance(answer, LithifyError) or answer["status"] != "RUNNING":
                del asked[at]
        if asked:
            time.sleep(POLL_S)
    return found


def compaction_status(
    name: GroupArgument = None,
    watch: Watch = False,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Show the outcome of the last run on a group, or the progress of the current, per node."""
    with MEMBERS.progress() as tell:
        found = _ask(nodes, tls, name or group, ask="status")
        while watch and any(row["status"] == "RUNNING" for row in _rows(found)):
            for row in _rows(found):
                tell(row)
            time.sleep(POLL_S)
            found = _ask(nodes, tls, name or group, ask="status")
    _show_statuses(found, as_json=as_json)


def compaction_history(
    name: GroupArgument = None,
    limit: Limit = RUNS_SHOWN,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """List the last runs of each node on a group, newest first."""
    group = name or group
    found = _ask(nodes, tls, group, ask="history", limit=limit)
    if as_json:
        runs = [run for answer in _rows(found) for run in answer["runs"]]
        runs.sort(key=lambda run: -int(run["started_ms"]))
        print_json([*runs, *_errors(found)])
    else:
        for at, answer in found.items():
            if not isinstance(answer, LithifyError):
                title = f"Runs on {group} at {at}"
                MEMBERS.print_history(title, answer["runs"], as_json=False)
        _print_errors(found)
    exit_if_missing(found)


def cancel_compaction(
    name: GroupArgument = None,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Cancel the runs of the nodes on a group, and the requests that wait.

    Published changes stay. Exit code 4 if no run was in progress.
    """
    group = name or group
    found = _ask(nodes, tls, group, ask="cancel")
    # A node without a run in progress has nothing to cancel.
    idle = [at for at, each in found.items() if _code(each) == CONFLICT]
    if as_json:
        print_json([*_rows(found), *_errors(found)])
    else:
        for row in _rows(found):
            print_line(f"{row['node']}: the run on {group} is being cancelled")
        _print_errors(found)
    if len(idle) == len(found):
        raise typer.Exit(CONFLICT)
    exit_if_missing({at: answer for at, answer in found.items() if at not in idle})


def _ask(nodes: str, tls: str, group: str, **given: object) -> Found:
    from lithify.raft.net.client_operations import ClientOperation

    asked = dict.fromkeys(nodes.split(","), given)
    return ask_all(asked, tls, group, ClientOperation.COMPACTION, EACH_S)


# --- the responses of the nodes ---------------------------------------------------------------


def _code(answer: Row | LithifyError) -> int:
    return answer.exit_code if isinstance(answer, LithifyError) else 0


def _rows(found: Found) -> list[Row]:
    return [answer for answer in found.values() if not isinstance(answer, LithifyError)]


def _errors(found: Found) -> list[Row]:
    """One row per node that failed."""
    return [
        {"address": at, "error": state_of(answer)}
        for at, answer in found.items()
        if isinstance(answer, LithifyError)
    ]


def _print_errors(found: Found) -> None:
    for row in _errors(found):
        print_error_line(f"{row['address']}: {row['error']}")


def _show(found: Found, show: Callable[[list[Row]], None], *, as_json: bool) -> None:
    if as_json:
        print_json([*_rows(found), *_errors(found)])
    else:
        show(_rows(found))
        _print_errors(found)
    exit_if_missing(found)


def _show_statuses(found: Found, *, as_json: bool) -> None:
    """Print the outcomes; an unreachable node is shown before a failed run ends the command."""
    if as_json:
        print_json([*_rows(found), *_errors(found)])
        MEMBERS.check(_rows(found))
    else:
        _print_errors(found)
        MEMBERS.print_statuses(_rows(found), as_json=False)
    exit_if_missing(found)
