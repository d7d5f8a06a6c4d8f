"""`lithify raft`, the verbs on keys: put, get, delete, cas, scan, watch.

They find the leader. Exit code 3 if a key does not exist, 4 if its value is not the expected one, 5
if no node could be asked, 6 if a write may have taken effect or not.
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from lithify.cli.options import AsJson
from lithify.cli.output import preview, print_json, print_line
from lithify.cli.raft.options import (
    GROUP,
    NODES,
    GroupName,
    Nodes,
    TlsFiles,
    run_client,
)
from lithify.errors import LithifyError
from lithify.exit_codes import CONFLICT, NOT_FOUND

if TYPE_CHECKING:
    from lithify.raft.kv.client import KvClient
    from lithify.raft.kv.format import WatchEvent

__all__ = ["cas", "delete", "get", "put", "scan", "watch"]

Key = Annotated[str, typer.Argument(metavar="KEY")]
Value = Annotated[str, typer.Argument(metavar="VALUE")]

SCAN_ROWS = 1000
PREVIEW_BYTES = 64


class KeyAbsent(LithifyError):
    """The key does not exist."""

    exit_code = NOT_FOUND


class KeyDiffers(LithifyError):
    """The value of the key is not the expected one."""

    exit_code = CONFLICT


def put(
    key: Key,
    value: Value,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Set the value of a key."""
    reply = run_client(nodes, tls, group, lambda kv: kv.put(key.encode(), value.encode()))
    _print_revision(reply.revision, as_json=as_json)


def get(
    key: Key,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Print the value of a key."""
    from lithify.raft.kv.format import KvOutcome

    reply = run_client(nodes, tls, group, lambda kv: kv.get(key.encode()))
    if reply.outcome is KvOutcome.ABSENT:
        raise KeyAbsent(f"key {key!r} does not exist")
    text = reply.value.decode(errors="backslashreplace")
    if as_json:
        print_json({"key": key, "value": text, "revision": reply.revision})
    else:
        print_line(text)


def delete(
    key: Key,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Delete a key."""
    from lithify.raft.kv.format import KvOutcome

    reply = run_client(nodes, tls, group, lambda kv: kv.delete(key.encode()))
    if reply.outcome is KvOutcome.ABSENT:
        raise KeyAbsent(f"key {key!r} does not exist")
    _print_revision(reply.revision, as_json=as_json)


def cas(
    key: Key,
    value: Value,
    expected: Annotated[
        str | None,
        typer.Option(metavar="VALUE", help="Expected value; default: no such key."),
    ] = None,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Compare and set: set the value of a key if its value is the expected one."""
    from lithify.raft.kv.format import KvOutcome

    wanted = None if expected is None else expected.encode()
    reply = run_client(
        nodes, tls, group, lambda kv: kv.compare_and_set(key.encode(), value.encode(), wanted)
    )
    if reply.outcome is not KvOutcome.DONE:
        raise KeyDiffers(f"key {key!r} does not have the expected value; nothing changed")
    _print_revision(reply.revision, as_json=as_json)


def scan(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX")] = "",
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=SCAN_ROWS)] = SCAN_ROWS,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Print the keys with a prefix in ascending order, with their values."""
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


def watch(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX")] = "",
    known: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="REVISION", min=0, help="Start after this revision; 0: with all keys."
        ),
    ] = None,
    nodes: Nodes = NODES,
    group: GroupName = GROUP,
    tls: TlsFiles = "",
    as_json: AsJson = False,
) -> None:
    """Print changes of keys with a prefix as they happen, until SIGINT or SIGTERM.

    `reset` means that changes were missed and are lost; all keys with their values follow.
    """
    from lithify.raft.kv.client import FROM_NOW

    since = FROM_NOW if known is None else known
    run_client(nodes, tls, group, lambda kv: _watch(kv, prefix.encode(), since, as_json=as_json))


async def _watch(kv: KvClient, prefix: bytes, known: int, *, as_json: bool) -> None:
    from lithify.raft.kv.client import WatchReset

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
    """A change, on one line."""
    key = change.key.decode(errors="backslashreplace")
    what = "delete" if change.value is None else "put"
    if not as_json:
        line = f"{change.revision}\t{what}\t{key}"
        return line if change.value is None else f"{line}\t{preview(change.value, PREVIEW_BYTES)}"
    shown: dict[str, object] = {"change": what, "key": key, "revision": change.revision}
    if change.value is not None:
        shown["value"] = change.value.decode(errors="backslashreplace")
    return json.dumps(shown)
