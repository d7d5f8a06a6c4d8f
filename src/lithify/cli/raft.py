"""`lithify raft`: a replicated key-value store. Looking after it is in `raft_admin.py`.

    lithify raft serve --id n1 --peer n1=127.0.0.1:7001 --peer n2=127.0.0.1:7002 … --data DIR
    lithify raft put KEY VALUE | get KEY | delete KEY | cas KEY VALUE | scan [PREFIX]
    lithify raft watch [PREFIX]

All but `serve` take `--nodes host:port[,host:port…]`, of which one that runs is enough, `--group`
and `--json`. They find the leader by themselves.

Exit codes as everywhere: 3 if a key is absent, 4 if it does not have what `cas` expects, 5 if no
node that could do it was found and nothing was done, 6 if a write may have taken effect or not.
"""

# ruff: noqa: PLC0415  (commands import what they need when they run, see main.py)

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from lithify.cli.output import preview, print_json, print_line
from lithify.cli.raft_options import (
    GROUP,
    NODES,
    AsJson,
    GroupName,
    Nodes,
    TlsFiles,
    named_address,
    run_client,
    tls_of,
)
from lithify.errors import CONFLICT, NOT_FOUND, InvalidInput, LithifyError

if TYPE_CHECKING:
    from lithify.raft.kv_client import KvClient
    from lithify.raft.kv_format import WatchEvent
    from lithify.raft.node import NodeSettings

__all__ = ["app"]

app = typer.Typer(help="A replicated key-value store on Raft.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(metavar="KEY")]
Value = Annotated[str, typer.Argument(metavar="VALUE")]

SCAN_ROWS = 1000
PREVIEW_BYTES = 64


class KeyAbsent(LithifyError):
    """There is no such key."""

    exit_code = NOT_FOUND


class KeyDiffers(LithifyError):
    """The key has another value than the expected one."""

    exit_code = CONFLICT


# --- a node -----------------------------------------------------------------------------------


@app.command()
def serve(
    node: Annotated[str, typer.Option("--id", metavar="NAME", help="The node's name, for good.")],
    data: Annotated[str, typer.Option(metavar="DIR", help="The node's directory.")],
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="By default the node's own address in --peer. Port 0 takes a free one.",
        ),
    ] = "",
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=HOST:PORT",
            help="Another node, or this one with its own address; repeatable.",
        ),
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
    tick_ms: Annotated[
        int, typer.Option(help="The unit of all timeouts; an election begins after ten to twenty.")
    ] = 100,
    snapshot_entries: Annotated[
        int, typer.Option(help="Commands after which a snapshot is taken.")
    ] = 4096,
    wal_file_bytes: Annotated[
        int, typer.Option(help="When a file of the write-ahead log is full.")
    ] = 256 * 2**20,
    segment_bytes: Annotated[int, typer.Option(help="When a segment is full.")] = 64_000_000,
) -> None:
    """Run a node until SIGTERM or SIGINT. Its address goes to stdout, what happens to stderr."""
    from lithify.node.log_lines import configure_log_lines
    from lithify.node.security import is_loopback
    from lithify.raft.group_settings import GroupSettings
    from lithify.raft.node import NodeSettings
    from lithify.raft.operations import parse_address
    from lithify.raft.segment import SegmentLimits
    from lithify.raft.storage import StorageSettings

    peers = dict(named_address(text) for text in peer or ())
    own = peers.pop(node, None)
    if not listen and own is None:
        raise InvalidInput(f"--listen or --peer {node}=HOST:PORT must be given")
    address = parse_address(listen or str(own))
    if own is not None and own.port != address.port:
        raise InvalidInput(f"--peer {node}={own} has another port than --listen {address}")
    if not (tls or allow_open or is_loopback(address.host)):
        what = f"{address} can be reached by other machines, which may then do everything"
        raise InvalidInput(f"{what}: --tls or --allow-open must be given")
    settings = NodeSettings(
        node,
        data,
        address,
        {name: str(at) for name, at in peers.items()},
        join=join,
        cluster=cluster,
        tls=tls_of(tls),
        tick_ms=tick_ms,
        group=GroupSettings(snapshot_entries=snapshot_entries),
        storage=StorageSettings(wal_file_bytes, SegmentLimits(frame_bytes_max=segment_bytes)),
    )
    configure_log_lines("info")
    asyncio.run(_serve(settings))


async def _serve(settings: NodeSettings) -> None:
    from lithify.compiled import offer_cache
    from lithify.fs import LocalFileSystem
    from lithify.raft.kv import KvMachine
    from lithify.raft.node import RaftNode

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    fs = LocalFileSystem()
    fs.mkdir(settings.data)
    offer_cache(f"{os.path.abspath(settings.data)}/kernels")
    node = RaftNode(settings, fs, KvMachine)
    _collect_rarely()
    await node.run(stop, lambda address: typer.echo(f"raft  {address}"))


def _collect_rarely() -> None:
    """Have cycles looked for less often: a node makes many thousand entries a second, none in one.

    Each look at the oldest objects goes through all entries in memory, a quarter of a million.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


# --- keys -------------------------------------------------------------------------------------


@app.command()
def put(
    key: Key,
    value: Value,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Set the value of a key."""
    reply = run_client(nodes, tls, group, lambda kv: kv.put(key.encode(), value.encode()))
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

    reply = run_client(nodes, tls, group, lambda kv: kv.get(key.encode()))
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
    """Delete a key."""
    from lithify.raft.kv_format import Outcome

    reply = run_client(nodes, tls, group, lambda kv: kv.delete(key.encode()))
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
    """Set the value of a key if it has the expected one."""
    from lithify.raft.kv_format import Outcome

    wanted = None if expected is None else expected.encode()
    reply = run_client(
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
    rows = run_client(nodes, tls, group, lambda kv: kv.scan(prefix.encode(), limit))
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


@app.command()
def watch(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX")] = "",
    known: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="REVISION", min=0, help="Also what has changed since; 0 is all."
        ),
    ] = None,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,  # noqa: FBT002  an option
) -> None:
    """Print changes of keys with a prefix as they happen, until SIGINT or SIGTERM.

    `reset` says that something was missed which cannot be told any more: all there is comes next.
    """
    from lithify.raft.kv_client import FROM_NOW

    since = FROM_NOW if known is None else known
    run_client(nodes, tls, group, lambda kv: _watch(kv, prefix.encode(), since, as_json=as_json))


async def _watch(kv: KvClient, prefix: bytes, known: int, *, as_json: bool) -> None:
    from lithify.raft.kv_client import WatchReset

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        async with aclosing(kv.watch(prefix, known)) as changes:
            async for change in changes:
                if isinstance(change, WatchReset):
                    reset = {"change": "reset", "revision": change.revision}
                    typer.echo(json.dumps(reset) if as_json else f"{change.revision}\treset")
                else:
                    typer.echo(_change_line(change, as_json=as_json))


def _change_line(change: WatchEvent, *, as_json: bool) -> str:
    """One line, so that whoever reads a pipe has it at once."""
    key = change.key.decode(errors="backslashreplace")
    what = "delete" if change.value is None else "put"
    if not as_json:
        line = f"{change.revision}\t{what}\t{key}"
        return line if change.value is None else f"{line}\t{preview(change.value, PREVIEW_BYTES)}"
    shown: dict[str, object] = {"change": what, "key": key, "revision": change.revision}
    if change.value is not None:
        shown["value"] = change.value.decode(errors="backslashreplace")
    return json.dumps(shown)
