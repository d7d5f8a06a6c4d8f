"""`lithify raft`, the verbs on members, groups and snapshots.

They find the leader. `snapshot` and `overview`, and the verbs of compaction (`compaction.py`), send
a request to each given node, because every member has its own files. The requests are concurrent,
and each node has a row; a node that does not answer within a few seconds is `unreachable`. Exit
code 1 if some did not answer, 5 if none did.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lithify.cli.input import confirm_delete
from lithify.cli.options import AsJson, Yes
from lithify.cli.output import human_age, human_count, print_json, print_line, print_table
from lithify.cli.raft.options import (
    GROUP,
    NODES,
    GroupName,
    Nodes,
    TlsFiles,
    ask,
    ask_each,
    named_address,
)
from lithify.errors import LithifyError
from lithify.exit_codes import FAILED, OUTCOME_UNKNOWN, UNREACHABLE

__all__ = [
    "add",
    "create",
    "drop",
    "exit_if_missing",
    "members",
    "move",
    "overview",
    "remove",
    "show_each",
    "snapshot",
    "state_of",
    "transfer",
]

Node = Annotated[str, typer.Argument(metavar="NODE")]


# --- members ----------------------------------------------------------------------------------


def members(
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Show the members of a group, their addresses and the leader."""
    from lithify.raft.net.client_operations import ClientOperation

    found = ask(nodes, tls, group, ClientOperation.MEMBERS)
    if as_json:
        print_json(found)
        return
    print_line(f"{found['members']}; leader {found['leader'] or 'unknown'}, term {found['term']}")
    for name, address in sorted(found["book"].items()):
        print_line(f"  {name}  {address}")


def add(
    node: Annotated[str, typer.Argument(metavar="NAME=HOST:PORT")],
    learner: Annotated[bool, typer.Option("--learner", help="Add it without a vote.")] = False,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Add a node to a group; it must be running, with `--join`.

    The node is a learner until it has the log, then a voter. The request is refused, and nothing
    changes, if the node does not answer at its address, has another name, or has another group of
    that name.
    """
    name, address = named_address(node)
    change = f"{'~' if learner else '+'}{name}"
    _change(nodes, tls, group, change, {name: str(address)}, as_json=as_json)


def remove(
    node: Node,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Remove a node from a group; refused if too few of the remaining voters answer.

    A node that has lost its disk must be removed and added again.
    """
    _change(nodes, tls, group, f"-{node}", {}, as_json=as_json)


def move(
    node: Annotated[str, typer.Argument(metavar="NAME=HOST:PORT")],
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Change the address of a member; the leader first checks that it answers there."""
    from lithify.raft.net.client_operations import ClientOperation

    name, address = named_address(node)
    _print_if(as_json, ask(nodes, tls, group, ClientOperation.MOVE, book={name: str(address)}))


def _change(
    nodes: str, tls: str, group: str, change: str, book: dict[str, str], *, as_json: bool
) -> None:
    from lithify.raft.net.client_operations import ClientOperation

    found = ask(nodes, tls, group, ClientOperation.CHANGE, change=change, book=book)
    if as_json:
        print_json(found)
    elif found.get("already"):
        state = {"+": "a voter", "~": "a learner", "-": "not a member"}[change[0]]
        print_line(f"{change[1:]} is {state} already")
    else:
        print_line(f"{change} is in force since index {found['index']}")


def transfer(
    node: Node,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Transfer leadership to a member, and wait until it leads."""
    from lithify.raft.net.client_operations import ClientOperation

    found = ask(nodes, tls, group, ClientOperation.TRANSFER, to=node)
    if as_json:
        print_json(found)
    else:
        print_line(f"{found['leader']} leads in term {found['term']}")


def create(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    member: Annotated[list[str], typer.Option(metavar="NAME", help="A member; repeatable.")],
    nodes: Nodes = NODES,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Create a group; the node that gets the request must be a member."""
    from lithify.raft.net.client_operations import ClientOperation

    _print_if(as_json, ask(nodes, tls, group, ClientOperation.CREATE, members=member))


def drop(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    yes: Yes = False,
    nodes: Nodes = NODES,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Delete a group with its data on all members. This cannot be undone."""
    from lithify.raft.net.client_operations import ClientOperation

    confirm_delete(f"group {group} with all its entries, on all its members", yes=yes)
    _print_if(as_json, ask(nodes, tls, group, ClientOperation.DROP))


def _print_if(as_json: bool, found: Any) -> None:
    """The response of a node, for `--json`."""
    if as_json:
        print_json(found)


# --- one request per node -----------------------------------------------------------------------


def show_each(found: dict[str, dict[str, Any] | LithifyError], what: str, *, as_json: bool) -> None:
    """Print one row per node: the outcome `what`, or an error."""
    if as_json:
        print_json(_json_of(found))
    else:
        rows = [[at, state_of(answer) or what] for at, answer in found.items()]
        print_table("", ["address", "outcome"], rows)
    exit_if_missing(found)


def state_of(answer: dict[str, Any] | LithifyError) -> str:
    """The error of a node; empty if it has answered."""
    if not isinstance(answer, LithifyError):
        return ""
    if answer.exit_code == UNREACHABLE:
        return f"unreachable: {answer}"
    if answer.exit_code == OUTCOME_UNKNOWN:
        return f"unknown: {answer}"
    return f"refused: {answer}"


def _json_of(found: dict[str, dict[str, Any] | LithifyError]) -> dict[str, Any]:
    return {
        at: {"error": state_of(answer)} if isinstance(answer, LithifyError) else answer
        for at, answer in found.items()
    }


def exit_if_missing(found: dict[str, dict[str, Any] | LithifyError]) -> None:
    """Exit with code 5 if no node has answered, with 1 if some have not."""
    failed = [answer for answer in found.values() if isinstance(answer, LithifyError)]
    if failed:
        none_answered = all(error.exit_code == UNREACHABLE for error in failed)
        all_failed = len(failed) == len(found)
        raise typer.Exit(UNREACHABLE if all_failed and none_answered else FAILED)


def snapshot(
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Take a snapshot now, on each of the nodes."""
    from lithify.raft.net.client_operations import ClientOperation

    show_each(
        ask_each(nodes, tls, group, ClientOperation.SNAPSHOT), "snapshot started", as_json=as_json
    )


def overview(
    nodes: Nodes = NODES,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Show all groups of each of the nodes: roles, indexes and disk usage."""
    from lithify.clock import SystemClock
    from lithify.raft.net.client_operations import ClientOperation

    found = ask_each(nodes, tls, "", ClientOperation.OVERVIEW)
    if as_json:
        print_json(_json_of(found))
        exit_if_missing(found)
        return
    rows = [_node_row(at, answer) for at, answer in found.items()]
    print_table("", ["address", "node", "state", "connected to", "WAL files>", "WAL bytes>"], rows)
    for seen in found.values():
        if not isinstance(seen, LithifyError):
            print_line(f"{seen['node']} of {seen['cluster']} at {seen['address']}")
            _print_groups(seen["groups"], SystemClock().now_ms())
            _print_refusals(seen)
            for group, reason in seen["ailing"].items():
                print_line(f"  {group}: waits for repair: {reason}")
    exit_if_missing(found)


def _node_row(at: str, answer: dict[str, Any] | LithifyError) -> list[str]:
    if isinstance(answer, LithifyError):
        return [at, "-", state_of(answer), "-", "-", "-"]
    connected = ", ".join(answer["connected"]) or "no node"
    wal = (human_count(answer[name]) for name in ("wal_files", "wal_bytes"))
    return [at, answer["node"], "running", connected, *wal]


def _print_groups(groups: list[dict[str, Any]], now_ms: int) -> None:
    numbers = ("term", "commit_index", "applied_index", "snapshot_index", "live_entries")
    sizes = ("segments", "segment_bytes", "live_bytes", "snapshot_bytes")
    rows = []
    for each in groups:
        taken_ms = each["snapshot_time_ms"]
        age = human_age(now_ms - taken_ms) if taken_ms else "-"
        counts = (human_count(each[name]) for name in numbers + sizes)
        rows.append([each["group"], each["role"], each["leader"] or "-", *counts, age])
    columns = ["group", "role", "leader", *(f"{_words(name)}>" for name in numbers + sizes)]
    print_table("", [*columns, "snapshot age>"], rows)
    for each in groups:
        for file, reason in each["damaged"].items():
            print_line(f"  {each['group']}: damaged {file}: {reason}")
        if each["damage_found"]:
            found, repaired = each["damage_found"], each["damage_repaired"]
            print_line(f"  {each['group']}: damage found {found} times, repaired {repaired}")
        for peer, progress in each["peers"].items():
            print_line(f"  {each['group']}: {peer}  {progress}")


def _print_refusals(seen: dict[str, Any]) -> None:
    """Print nodes whose data directory was replaced, and groups without a vote of this node."""
    for peer, reason in sorted(seen["refused"].items()):
        print_line(f"  refuses {peer}: {reason}")
    for peer, reason in sorted(seen["refused_by"].items()):
        print_line(f"  refused by {peer}: {reason}")
    for each in seen["groups"]:
        if "stopped" in each:
            print_line(f"  {each['group']}: stopped: {each['stopped']}")
        elif not each["may_vote"]:
            print_line(f"  {each['group']}: does not vote: the node was not added to the group")


def _words(name: str) -> str:
    return name.removesuffix("_index").replace("_", " ")
