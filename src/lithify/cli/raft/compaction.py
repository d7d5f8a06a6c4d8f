"""`lithify raft`, the verbs of compaction: the same as those of topics and blob stores.

    lithify raft compact [GROUP] [--dry-run | --wait] [--rewrite]
    lithify raft compaction-status [GROUP] [--watch]
    lithify raft compaction-history [GROUP] [--limit N]
    lithify raft cancel-compaction [GROUP]

Every member has files of its own, so each of the nodes that are named is asked, all at once, and
has a row of its own. One that does not answer within a few seconds is `unreachable`: exit code 1 if
some did not answer, 5 if none did. A run that failed ends the command with exit code 1.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.output import print_error_line, print_json, print_line
from lithify.cli.raft.members import exit_if_missing, show_each, state_of
from lithify.cli.raft.options import (
    EACH_S,
    GROUP,
    NODES,
    AsJson,
    GroupName,
    Nodes,
    TlsFiles,
    ask_all,
    ask_each,
)
from lithify.cli.runs import MEMBERS, run_continues
from lithify.errors import CONFLICT, InvalidInput, LithifyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Row = dict[str, Any]
    Found = dict[str, Row | LithifyError]

__all__ = ["cancel_compaction", "compact", "compaction_history", "compaction_status"]

GroupArgument = Annotated[
    str | None, typer.Argument(metavar="GROUP", help="The group; --group names it too.")
]

POLL_S = 0.2
PLAN_S = 60.0
"""A dry run may have to read the headers of all segments."""
HISTORY_RUNS = 10


def compact(
    name: GroupArgument = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what runs would do, and do nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the runs, and print their reports.")
    ] = False,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="The leader also moves scattered live entries.")
    ] = False,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Have each of the nodes compact its segments of a group now."""
    from lithify.raft.operations import Operation

    group = name or group
    if dry_run:
        if wait or rewrite:
            raise InvalidInput("--dry-run goes with neither --wait nor --rewrite")
        # A node that is not there is found out at once; the others may take their time.
        found = _ask(nodes, tls, group, ask="status")
        asked = {at: {"ask": "plan"} for at, each in found.items() if not _code(each)}
        found |= ask_all(asked, tls, group, Operation.COMPACTION, PLAN_S)
        _show(found, lambda rows: MEMBERS.print_plans(rows, as_json=False), as_json=as_json)
        return
    begun = ask_each(nodes, tls, group, Operation.COMPACT, rewrite=rewrite)
    if not wait:
        show_each(begun, "compaction begun", as_json=as_json)
        return
    with MEMBERS.progress() as tell, run_continues("raft", group, None):
        ended = _ended(begun, tls, group, tell)
    _show_statuses(ended, as_json=as_json)


def _ended(begun: Found, tls: str, group: str, tell: Callable[[Row], None]) -> Found:
    """The status of each run that was begun, after its end."""
    asked: dict[str, Mapping[str, object]] = {
        at: {"ask": "status", "request": answer["request"]}
        for at, answer in begun.items()
        if not isinstance(answer, LithifyError)
    }
    found = dict(begun)
    while asked:
        from lithify.raft.operations import Operation

        for at, answer in ask_all(asked, tls, group, Operation.COMPACTION).items():
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
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Until the runs that are going on have ended.")
    ] = False,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Show how the last run of each node on a group went, or how far it is."""
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
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, max=1000, help="The last so many runs.")
    ] = HISTORY_RUNS,
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
    """Stop the runs of the nodes on a group, and forget those that wait.

    What a run has published stays. Exit code 4 if no run was going on.
    """
    group = name or group
    found = _ask(nodes, tls, group, ask="cancel")
    # A node on which no run is going on has nothing to cancel.
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
    from lithify.raft.operations import Operation

    asked = dict.fromkeys(nodes.split(","), given)
    return ask_all(asked, tls, group, Operation.COMPACTION, EACH_S)


# --- what the nodes have answered -----------------------------------------------------------------


def _code(answer: Row | LithifyError) -> int:
    return answer.exit_code if isinstance(answer, LithifyError) else 0


def _rows(found: Found) -> list[Row]:
    return [answer for answer in found.values() if not isinstance(answer, LithifyError)]


def _errors(found: Found) -> list[Row]:
    """A row for each node that has not done it."""
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
    """How the runs went; an unreachable node is shown before a failed run ends the command."""
    if as_json:
        print_json([*_rows(found), *_errors(found)])
        MEMBERS.check(_rows(found))
    else:
        _print_errors(found)
        MEMBERS.print_statuses(_rows(found), as_json=False)
    exit_if_missing(found)
