"""`lithify raft`, looking after it: members, groups, snapshots, compaction, what there is to see.

    lithify raft members | add n4=HOST:PORT | remove n4 | move n2=HOST:PORT | transfer n2
    lithify raft create GROUP
    lithify raft drop GROUP
    lithify raft snapshot | compact | overview

They find the leader by themselves. But `snapshot`, `compact` and `overview` are about each of the
nodes that are named, because every member has files of its own.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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
    named_address,
)

if TYPE_CHECKING:
    from lithify.raft.operations import Operation

__all__ = [
    "add",
    "compact",
    "create",
    "drop",
    "members",
    "move",
    "overview",
    "remove",
    "snapshot",
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
    address, or is another one, is refused, and nothing changes.
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
    else:
        print_line(f"{change} is in force since index {found['index']}")


def transfer(
    node: Node,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Have leadership handed over to a member."""
    from lithify.raft.operations import Operation

    _print_if(as_json, ask(nodes, tls, group, Operation.TRANSFER, to=node))


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
    nodes: Nodes = NODES,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Drop a group on all its members, with all that it holds. There is no way back."""
    from lithify.raft.operations import Operation

    _print_if(as_json, ask(nodes, tls, group, Operation.DROP))


def _print_if(as_json: bool, found: Any) -> None:  # noqa: FBT001  the option
    """What a node has answered is of use to programs only."""
    if as_json:
        print_json(found)


# --- each node for itself -----------------------------------------------------------------------


def _ask_each(
    nodes: str, tls: str, group: str, operation: Operation, **given: object
) -> dict[str, Any]:
    """The answer of every node that is named, by address."""
    return {at: ask(at, tls, group, operation, **given) for at in nodes.split(",")}


def snapshot(
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Have each of the nodes take a snapshot now."""
    from lithify.raft.operations import Operation

    _print_if(as_json, _ask_each(nodes, tls, group, Operation.SNAPSHOT))


def compact(
    rewrite: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--rewrite", help="The leader also moves scattered live entries.")
    ] = False,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Have each of the nodes compact its segments now."""
    from lithify.raft.operations import Operation

    _print_if(as_json, _ask_each(nodes, tls, group, Operation.COMPACT, rewrite=rewrite))


def overview(
    nodes: Nodes = NODES,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show all groups of each of the nodes: where they stand, and what they take on disk."""
    from lithify.clock import SystemClock
    from lithify.raft.operations import Operation

    found = _ask_each(nodes, tls, "", Operation.OVERVIEW)
    if as_json:
        print_json(found)
        return
    for seen in found.values():
        print_line(f"{seen['node']} of {seen['cluster']} at {seen['address']}")
        print_line(f"  connected to {', '.join(seen['connected']) or 'nobody'}")
        wal_bytes = human_count(seen["wal_bytes"])
        print_line(f"  write-ahead log  {wal_bytes} bytes in {seen['wal_files']} files")
        _print_groups(seen["groups"], SystemClock().now_ms())
        _print_refusals(seen)


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
