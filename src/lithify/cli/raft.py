"""`lithify raft`: a replicated key-value store, and looking after it.

    lithify raft serve --id n1 --listen 127.0.0.1:7001 --peer n2=127.0.0.1:7002 … --data DIR
    lithify raft put KEY VALUE | get KEY | delete KEY | cas KEY VALUE | scan [PREFIX]
    lithify raft members | add n4=HOST:PORT | remove n4 | transfer n2 | create GROUP
    lithify raft snapshot | compact | overview

All but `serve` take `--nodes host:port[,host:port…]`, of which one that runs is enough, `--group`
and `--json`. They find the leader by themselves. But `snapshot`, `compact` and `overview` are about
each of the nodes that are named, because every member has files of its own.

Exit codes as everywhere; 1 also if a key is absent, or does not have what `cas` expects.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

import asyncio
import gc
import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.output import preview, print_json, print_line, print_table
from lithify.errors import InvalidInput, LithifyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lithify.raft.kv_client import KvClient
    from lithify.raft.node import NodeSettings
    from lithify.raft.operations import Address, Operation
    from lithify.raft.transport import Tls

__all__ = ["app"]

app = typer.Typer(help="A replicated key-value store on Raft.", no_args_is_help=True)

Nodes = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT,…", envvar="LITHIFY_RAFT_NODES", help="Where nodes are reached."
    ),
]
GroupName = Annotated[str, typer.Option("--group", metavar="NAME", help="The group that is meant.")]
TlsFiles = Annotated[
    str,
    typer.Option(
        "--tls",
        metavar="CA,CERT,KEY",
        envvar="LITHIFY_RAFT_TLS",
        help="PEM files; everybody shows a certificate, a node one for its name.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Key = Annotated[str, typer.Argument(metavar="KEY")]
Value = Annotated[str, typer.Argument(metavar="VALUE")]
Node = Annotated[str, typer.Argument(metavar="NODE")]

NODES = "127.0.0.1:7001"
GROUP = "default"
SCAN_ROWS = 1000
PREVIEW_BYTES = 64


class KeyAbsent(LithifyError):
    """There is no such key."""


class KeyDiffers(LithifyError):
    """The key has something else than was expected."""


# --- a node -----------------------------------------------------------------------------------


@app.command()
def serve(
    node: Annotated[str, typer.Option("--id", metavar="NAME", help="The node's name, for good.")],
    data: Annotated[str, typer.Option(metavar="DIR", help="The node's directory.")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0 takes a free one.")],
    peer: Annotated[
        list[str] | None, typer.Option(metavar="NAME=HOST:PORT", help="Another node; repeatable.")
    ] = None,
    join: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--join", help="Wait to be added to a group, instead of beginning one.")
    ] = False,
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="Nodes of other clusters are refused.")
    ] = "raft",
    tls: TlsFiles = "",
    allow_open: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--allow-open", help="Let other machines in without TLS.")
    ] = False,
) -> None:
    """Run a node until SIGTERM or SIGINT. Its address goes to stdout, what happens to stderr."""
    from lithify.node.log_lines import configure_log_lines
    from lithify.node.security import is_loopback
    from lithify.raft.node import NodeSettings
    from lithify.raft.operations import parse_address

    address = parse_address(listen)
    if not (tls or allow_open or is_loopback(address.host)):
        what = f"{address} can be reached by other machines, which may then do everything"
        raise InvalidInput(f"{what}: --tls or --allow-open must be given")
    peers = dict(_named_address(text) for text in peer or ())
    settings = NodeSettings(
        node,
        data,
        address,
        {name: str(at) for name, at in peers.items()},
        join=join,
        cluster=cluster,
        tls=_tls(tls),
    )
    configure_log_lines("info")
    asyncio.run(_serve(settings))


async def _serve(settings: NodeSettings) -> None:
    from lithify.fs import LocalFileSystem
    from lithify.raft.kv import KvMachine
    from lithify.raft.node import RaftNode

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    node = RaftNode(settings, LocalFileSystem(), KvMachine)
    _collect_rarely()
    await node.run(stop, lambda address: typer.echo(f"raft  {address}"))


def _collect_rarely() -> None:
    """Have cycles looked for less often: a node makes many thousand entries a second, none in one.

    Each look at the oldest objects goes through all entries in memory, a quarter of a million.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def _named_address(text: str) -> tuple[str, Address]:
    """Of `n2=127.0.0.1:7002`."""
    from lithify.raft.operations import parse_address

    name, equals, address = text.partition("=")
    if not equals:
        raise InvalidInput(f"node {text!r} must be like n2=127.0.0.1:7002")
    return name, parse_address(address)


def _tls(files: str) -> Tls | None:
    from lithify.raft.transport import Tls

    if not files:
        return None
    names = files.split(",")
    if len(names) != 3:
        raise InvalidInput(f"--tls has {len(names)} files, must be CA,CERT,KEY")
    return Tls(*names)


# --- keys -------------------------------------------------------------------------------------


def _run(nodes: str, tls: str, group: str, work: Callable[[KvClient], Awaitable[Any]]) -> Any:
    """Have a client do something."""
    from lithify.raft.client import RaftClient
    from lithify.raft.kv_client import KvClient
    from lithify.raft.operations import parse_address

    async def main() -> Any:
        addresses = [parse_address(text) for text in nodes.split(",")]
        async with RaftClient(addresses, tls=_tls(tls)) as client:
            return await work(KvClient(client, group))

    return asyncio.run(main())


def _ask(nodes: str, tls: str, group: str, operation: Operation, **given: object) -> Any:
    return _run(nodes, tls, group, lambda kv: kv.client.ask_json(group, operation, **given))


@app.command()
def put(
    key: Key,
    value: Value,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Let a key have a value."""
    reply = _run(nodes, tls, group, lambda kv: kv.put(key.encode(), value.encode()))
    _print_revision(reply.revision, as_json=as_json)


@app.command()
def get(
    key: Key,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Print the value of a key."""
    from lithify.raft.kv_format import Outcome

    reply = _run(nodes, tls, group, lambda kv: kv.get(key.encode()))
    if reply.outcome is Outcome.ABSENT:
        raise KeyAbsent(f"there is no key {key!r}")
    text = reply.value.decode(errors="backslashreplace")
    if as_json:
        print_json({"key": key, "value": text, "revision": reply.revision})
    else:
        print_line(text)


@app.command()
def delete(
    key: Key,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Let a key be no more."""
    from lithify.raft.kv_format import Outcome

    reply = _run(nodes, tls, group, lambda kv: kv.delete(key.encode()))
    if reply.outcome is Outcome.ABSENT:
        raise KeyAbsent(f"there is no key {key!r}")
    _print_revision(reply.revision, as_json=as_json)


@app.command()
def cas(
    key: Key,
    value: Value,
    expected: Annotated[
        str | None, typer.Option(metavar="VALUE", help="What it must have; without it, nothing.")
    ] = None,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Let a key have a value if it has the expected one."""
    from lithify.raft.kv_format import Outcome

    wanted = None if expected is None else expected.encode()
    reply = _run(
        nodes, tls, group, lambda kv: kv.compare_and_set(key.encode(), value.encode(), wanted)
    )
    if reply.outcome is not Outcome.DONE:
        raise KeyDiffers(f"key {key!r} does not have the expected value; nothing changed")
    _print_revision(reply.revision, as_json=as_json)


@app.command()
def scan(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX")] = "",
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=SCAN_ROWS)] = SCAN_ROWS,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Print the keys with a prefix, ascending, and their values."""
    rows = _run(nodes, tls, group, lambda kv: kv.scan(prefix.encode(), limit))
    for row in rows:
        name = row.key.decode(errors="backslashreplace")
        if as_json:
            value = row.value.decode(errors="backslashreplace")
            print_json({"key": name, "value": value, "revision": row.revision}, compact=True)
        else:
            print_line(f"{name}\t{preview(row.value, PREVIEW_BYTES)}")


def _print_revision(revision: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"revision": revision})
    else:
        print_line(f"revision {revision}")


# --- members ----------------------------------------------------------------------------------


@app.command()
def members(
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show who the members of a group are, who leads, and where they are reached."""
    from lithify.raft.operations import Operation

    found = _ask(nodes, tls, group, Operation.MEMBERS)
    if as_json:
        print_json(found)
        return
    print_line(f"{found['members']}; leader {found['leader'] or 'unknown'}, term {found['term']}")
    for name, address in sorted(found["book"].items()):
        print_line(f"  {name}  {address}")


@app.command()
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
    """Add a node to a group; it should run already, with `--join`."""
    name, address = _named_address(node)
    change = f"{'~' if learner else '+'}{name}"
    _change(nodes, tls, group, change, {name: str(address)}, as_json=as_json)


@app.command()
def remove(
    node: Node,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Remove a node from a group. A node that has lost its disk never comes back by its name."""
    _change(nodes, tls, group, f"-{node}", {}, as_json=as_json)


def _change(
    nodes: str, tls: str, group: str, change: str, book: dict[str, str], *, as_json: bool
) -> None:
    from lithify.raft.operations import Operation

    found = _ask(nodes, tls, group, Operation.CHANGE, change=change, book=book)
    if as_json:
        print_json(found)
    else:
        print_line(f"{change} is in force since index {found['index']}")


@app.command()
def transfer(
    node: Node,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
) -> None:
    """Have leadership handed over to a member."""
    from lithify.raft.operations import Operation

    _ask(nodes, tls, group, Operation.TRANSFER, to=node)


@app.command()
def create(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    member: Annotated[list[str], typer.Option(metavar="NAME", help="The members; repeatable.")],
    nodes: Nodes = NODES,
    tls: TlsFiles = "",
) -> None:
    """Create a group; the node that is asked must be one of its members."""
    from lithify.raft.operations import Operation

    _ask(nodes, tls, group, Operation.CREATE, members=member)


# --- each node for itself -----------------------------------------------------------------------


def _ask_each(
    nodes: str, tls: str, group: str, operation: Operation, **given: object
) -> dict[str, Any]:
    """The answer of every node that is named, by address."""
    return {at: _ask(at, tls, group, operation, **given) for at in nodes.split(",")}


@app.command()
def snapshot(nodes: Nodes = NODES, group: GroupName = GROUP, tls: TlsFiles = "") -> None:
    """Have each of the nodes take a snapshot now."""
    from lithify.raft.operations import Operation

    _ask_each(nodes, tls, group, Operation.SNAPSHOT)


@app.command()
def compact(
    rewrite: Annotated[  # noqa: FBT002  an option
        bool, typer.Option("--rewrite", help="The leader also moves scattered live entries.")
    ] = False,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
) -> None:
    """Have each of the nodes compact its segments now."""
    from lithify.raft.operations import Operation

    _ask_each(nodes, tls, group, Operation.COMPACT, rewrite=rewrite)


@app.command()
def overview(
    nodes: Nodes = NODES,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Show all groups of each of the nodes: roles, indexes, live entries, segments."""
    from lithify.raft.operations import Operation

    found = _ask_each(nodes, tls, "", Operation.OVERVIEW)
    if as_json:
        print_json(found)
        return
    names = ("role", "term", "leader", "commit_index", "applied_index", "snapshot_index")
    more = ("live_entries", "segments", "segment_bytes")
    for seen in found.values():
        title = f"{seen['node']} at {seen['address']}, connected to {seen['connected']}"
        rows = [[each["group"], *(str(each[n]) for n in names + more)] for each in seen["groups"]]
        print_table(title, ["group", *(f"{name}>" for name in names + more)], rows)
