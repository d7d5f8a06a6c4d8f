"""`lithify raft`, the verbs of backup and recovery, also of a group that has lost its majority.

    lithify raft backup DIR                    of a group of running nodes, at one index
    lithify raft verify-backup DIR             read every byte of a backup
    lithify raft restore DIR --id n1 --data NEW        create a data directory from a backup
    lithify raft recover --from DIR --to NEW           create it from that of a stopped node

The last three work on files, without a node. `docs/runbooks.md` describes when to use each.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.options import AsJson
from lithify.cli.output import human_count, print_json, print_line
from lithify.cli.raft.options import GROUP, NODES, GroupName, Nodes, TlsFiles, tls_of
from lithify.errors import LithifyError
from lithify.exit_codes import CONFLICT

if TYPE_CHECKING:
    from lithify.raft.backup.group_backup import Backup
    from lithify.raft.restore import Survivor

__all__ = ["backup", "recover", "restore", "verify_backup"]

Directory = Annotated[str, typer.Argument(metavar="DIR")]
NodeName = Annotated[str, typer.Option("--id", metavar="NAME", help="The node's name.")]
NewData = Annotated[str, typer.Option(metavar="DIR", help="The directory to create.")]
Cluster = Annotated[str, typer.Option(metavar="NAME", help="Name of the cluster.")]


class NotConfirmed(LithifyError):
    """A step that may lose data was not confirmed."""

    exit_code = CONFLICT

    def __init__(self, what: str, groups: list[dict[str, Any]]) -> None:
        self.groups = groups
        super().__init__(what)

    @property
    def details(self) -> dict[str, object]:
        """The state of each group."""
        return {"groups": self.groups}


def backup(
    directory: Directory,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Save a group of running nodes at one index, and verify the backup."""
    from lithify.fs import LocalFileSystem
    from lithify.raft.backup.group_backup import check_new, verify_backup
    from lithify.raft.backup.node_backups import fetch_backup
    from lithify.raft.client.client import RaftClient
    from lithify.raft.net.client_operations import ClientOperation, parse_address

    fs, target = LocalFileSystem(), directory.rstrip("/")
    check_new(fs, target)
    temporary = f"{target}.tmp"
    _remove(temporary)

    async def main() -> None:
        addresses = [parse_address(text) for text in nodes.split(",")]
        async with RaftClient(addresses, tls=tls_of(tls)) as client:

            async def read(**given: object) -> bytes:
                body = json.dumps(given).encode()
                return (await client.ask(group, ClientOperation.BACKUP, body))[1]

            async def ask(**given: object) -> Any:
                return json.loads(await read(**given))

            await fetch_backup(ask, read, fs, temporary)

    try:
        asyncio.run(main())
        verify_backup(fs, temporary)
    except BaseException:
        _remove(temporary)
        raise
    fs.rename(temporary, target)
    fs.sync_dir(target.rpartition("/")[0] or ".")
    _print_backup(verify_backup(fs, target), "saved", as_json=as_json)


def verify_backup(
    directory: Directory,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a backup; exit code 1 if there is damage."""
    from lithify.fs import LocalFileSystem
    from lithify.raft.backup import group_backup as saving

    found = saving.verify_backup(LocalFileSystem(), directory.rstrip("/"))
    _print_backup(found, "whole", as_json=as_json)


def restore(
    directory: Directory,
    node: NodeName,
    data: NewData,
    group: Annotated[
        str, typer.Option("--group", metavar="NAME", help="New name of the group.")
    ] = "",
    cluster: Cluster = "raft",
    as_json: AsJson = False,
) -> None:
    """Create a data directory from a backup, for a node that is the only member of the group."""
    from dataclasses import replace

    from lithify.fs import LocalFileSystem
    from lithify.raft.backup import group_backup as saving
    from lithify.raft.kv.machine import kv_machine
    from lithify.raft.restore import restore as make
    from lithify.raft.storage.file_names import check_group

    fs, data = LocalFileSystem(), data.rstrip("/")
    found = saving.verify_backup(fs, directory.rstrip("/"))
    saved = saving.read_backup(fs, found)
    if group:
        saved = replace(saved, group=check_group(group))
    draw = random.SystemRandom().randrange
    make(fs, data, node, cluster, [saved], kv_machine, draw)
    if as_json:
        print_json({"data": data, "group": saved.group, "index": found.index})
        return
    print_line(f"{data} has group {saved.group} at index {found.index}, with {node} as its member")
    print_line(f"Next: lithify raft serve --id {node} --data {data} --listen HOST:PORT")


def recover(
    source: Annotated[
        str, typer.Option("--from", metavar="DIR", help="Data directory of a stopped node.")
    ],
    data: Annotated[str, typer.Option("--to", metavar="DIR", help="The directory to create.")],
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="Only this group.")] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="Confirm that the other members are permanently lost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Continue groups whose majority is permanently lost with one surviving node.

    The directory of the survivor stays as it is; the new one has its groups with the node as their
    only member. Writes that only lost members had are lost.
    """
    from lithify.fs import LocalFileSystem
    from lithify.raft.backup.group_backup import check_new
    from lithify.raft.kv.machine import kv_machine
    from lithify.raft.restore import load_stopped
    from lithify.raft.restore import restore as make

    fs, data, source = LocalFileSystem(), data.rstrip("/"), source.rstrip("/")
    check_new(fs, data)
    with load_stopped(fs, source, kv_machine, group) as found:
        shown = [_survivor(each) for each in found]
        if not as_json:
            for each in shown:
                _print_survivor(each)
        if not yes:
            _confirm(shown)
        first, draw = found[0], random.SystemRandom().randrange
        groups = [each.saved for each in found]
        make(fs, data, first.node, first.cluster, groups, kv_machine, draw)
    if as_json:
        print_json({"data": data, "groups": shown})
        return
    print_line(f"{data} is ready. Next, with {source} kept as it is:")
    print_line(f"  lithify raft serve --id {first.node} --data {data} --listen HOST:PORT")
    print_line("  then start new nodes with --join and `lithify raft add` them")


def _survivor(each: Survivor) -> dict[str, Any]:
    meta = each.saved.head.meta
    return {
        "group": each.saved.group,
        "node": each.node,
        "members": str(meta.config),
        "lost": each.gone,
        "last_index": meta.index,
        "last_term": meta.term,
        "term": each.term,
        "commit_index": each.commit,
        "uncommitted": meta.index - each.commit,
        "snapshot_index": each.snapshot_index,
    }


def _print_survivor(each: dict[str, Any]) -> None:
    print_line(f"group {each['group']} on {each['node']}: {each['members']}")
    print_line(f"  last entry {each['last_index']} of term {each['last_term']}")
    print_line(f"  committed at least up to {each['commit_index']}")
    print_line(f"  members that are removed: {', '.join(each['lost']) or 'none'}")
    print_line("  lost: every acknowledged write that only these members have")
    if each["uncommitted"]:
        print_line(
            f"  kept: {each['uncommitted']} entries above the commit index that this node knows;"
            " some may never have been acknowledged"
        )


def _confirm(shown: list[dict[str, Any]]) -> None:
    if not typer.get_text_stream("stdin").isatty():
        what = "nothing was done: give --yes if the other members are permanently lost"
        raise NotConfirmed(what, shown)
    if not typer.confirm("Are the other members permanently lost?"):
        raise NotConfirmed("nothing was done", shown)


def _print_backup(found: Backup, what: str, *, as_json: bool) -> None:
    if as_json:
        shown = {name: getattr(found, name) for name in ("group", "index", "term", "members")}
        print_json(shown | {"entries": found.entries, "bytes": found.size_bytes, "state": what})
        return
    size = human_count(found.size_bytes)
    print_line(
        f"{found.directory}: group {found.group} at index {found.index}, {size} bytes, {what}"
    )


def _remove(directory: str) -> None:
    from lithify.fs import LocalFileSystem
    from lithify.fs.remove_tree import remove_tree

    remove_tree(LocalFileSystem(), directory)
