"""`lithify raft`, looking after it: members, groups, snapshots, what there is to see.

    lithify raft members | add n4=HOST:PORT | remove n4 | move n2=HOST:PORT | transfer n2
    lithify raft create GROUP
    lithify raft drop GROUP [--yes]
    lithify raft snapshot | overview

They find the leader by themselves. But `snapshot` and `overview`, and the verbs of compaction
(`raft_compaction.py`), are about each of the nodes that are named, because every member has files
of its own. All nodes are asked at once, each has a row, and one that does not answer within a few
seconds is `unreachable`. Exit code 1 if some did not answer, 5 if none did.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

from typing import Annotated, Any

import typer

from lithify.cli.output import human_age, human_count, print_json, print_line, print_table
from lithify.cli.raft_options import (
    GROUP,
    NODES,
    AsJson,
    GroupName,
    Nodes,
    TlsFiles,
    ask,
    ask_each,
    named_address,
)
from lithify.cli.topics import Yes, confirm_delete
from lithify.errors import FAILED, OUTCOME_UNKNOWN, UNREACHABLE, LithifyError

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
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show who the members of a group are, who leads, and where they are reached."""
    from lithify.raft.operations import Operation

    found = ask(nodes, tls, group, Operation.MEMBERS)
    if as_json:
        print_json(found)
        return
    print_line(f"{found['members']}; leader {found['leader'] or 'unknown'}, term {found['term']}")
    for name, address in sorted(found["book"].items()):
        print_line(f"  {name}  {address}")


def add(
    node: Annotated[str, typer.Argument(metavar="NAME=HOST:PORT")],
    learner: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--learner", help="It gets everything, but has no vote.")
    ] = False,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Add a node to a group; it must run already, with `--join`.

    It is a learner first, and a voter when it has the log. A node that is not reached at its
    address, is another one, or has another group of that name is refused, and nothing changes.
    """
    name, address = named_address(node)
    change = f"{'~' if learner else '+'}{name}"
    _change(nodes, tls, group, change, {name: str(address)}, as_json=as_json)


def remove(
    node: Node,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Remove a node from a group; refused if too few of the voters that remain answer.

    A node that has lost its disk is removed and added again before it takes part.
    """
    _change(nodes, tls, group, f"-{node}", {}, as_json=as_json)


def move(
    node: Annotated[str, typer.Argument(metavar="NAME=HOST:PORT")],
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Change the address of a member; the leader first looks whether it is there."""
    from lithify.raft.operations import Operation

    name, address = named_address(node)
    _print_if(as_json, ask(nodes, tls, group, Operation.MOVE, book={name: str(address)}))


def _change(
    nodes: str, tls: str, group: str, change: str, book: dict[str, str], *, as_json: bool
) -> None:
    from lithify.raft.operations import Operation

    found = ask(nodes, tls, group, Operation.CHANGE, change=change, book=book)
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
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Transfer leadership to a member, and wait until it leads."""
    from lithify.raft.operations import Operation

    found = ask(nodes, tls, group, Operation.TRANSFER, to=node)
    if as_json:
        print_json(found)
    else:
        print_line(f"{found['leader']} leads in term {found['term']}")


def create(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    member: Annotated[list[str], typer.Option(metavar="NAME", help="The members; repeatable.")],
    nodes: Nodes = NODES,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Create a group; the node that is asked must be one of its members."""
    from lithify.raft.operations import Operation

    _print_if(as_json, ask(nodes, tls, group, Operation.CREATE, members=member))


def drop(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    yes: Yes = False,  # noqa: FBT002  an option
    nodes: Nodes = NODES,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Delete a group with all its entries, on all its members."""
    from lithify.raft.operations import Operation

    confirm_delete(f"group {group} with all its entries, on all its members", yes=yes)
    _print_if(as_json, ask(nodes, tls, group, Operation.DROP))


def _print_if(as_json: bool, found: Any) -> None:  # noqa: FBT001  the option
    """What a node has answered is of use to programs only."""
    if as_json:
        print_json(found)


# --- each node for itself -----------------------------------------------------------------------


def show_each(found: dict[str, dict[str, Any] | LithifyError], what: str, *, as_json: bool) -> None:
    """A row for each node: what it does, or why not."""
    if as_json:
        print_json(_json_of(found))
    else:
        rows = [[at, state_of(answer) or what] for at, answer in found.items()]
        print_table("", ["address", "outcome"], rows)
    exit_if_missing(found)


def state_of(answer: dict[str, Any] | LithifyError) -> str:
    """What keeps a node from answering; empty if it has answered."""
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
    """Exit code 5 if no node has answered, 1 if some have not."""
    failed = [answer for answer in found.values() if isinstance(answer, LithifyError)]
    if failed:
        none_answered = all(error.exit_code == UNREACHABLE for error in failed)
        all_failed = len(failed) == len(found)
        raise typer.Exit(UNREACHABLE if all_failed and none_answered else FAILED)


def snapshot(
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Have each of the nodes take a snapshot now."""
    from lithify.raft.operations import Operation

    show_each(ask_each(nodes, tls, group, Operation.SNAPSHOT), "snapshot begun", as_json=as_json)


def overview(
    nodes: Nodes = NODES,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show all groups of each of the nodes: where they stand, and what they take on disk."""
    from lithify.clock import SystemClock
    from lithify.raft.operations import Operation

    found = ask_each(nodes, tls, "", Operation.OVERVIEW)
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
    connected = ", ".join(answer["connected"]) or "nobody"
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
    """Nodes whose data directory was replaced, groups in which this node takes no part."""
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
