"""`lithify raft serve`: run a node of a Raft cluster until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from lithify.cli.raft.options import TlsFiles, named_address, tls_of
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from lithify.raft.net.client_operations import Address
    from lithify.raft.node.settings import RaftNodeSettings

__all__ = ["serve"]


def serve(
    node: Annotated[str, typer.Option("--id", metavar="NAME", help="Name of the node; permanent.")],
    data: Annotated[str, typer.Option(metavar="DIR", help="Data directory of the node.")],
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Default: the node's own address in --peer. Port 0: a free port.",
        ),
    ] = "",
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=HOST:PORT",
            help="Another node, or this one with its own address; repeatable.",
        ),
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="Wait to be added to a group; do not start one.")
    ] = False,
    cluster: Annotated[
        str,
        typer.Option(metavar="NAME", help="Nodes of other clusters are refused."),
    ] = "raft",
    tls: TlsFiles = "",
    allow_open: Annotated[
        bool, typer.Option("--allow-open", help="Accept other machines without TLS.")
    ] = False,
    tick_ms: Annotated[
        int, typer.Option(help="Unit of all timeouts; the election timeout is 10 to 20 ticks.")
    ] = 100,
    snapshot_entries: Annotated[
        int, typer.Option(help="Number of commands between snapshots.")
    ] = 4096,
    wal_file_bytes: Annotated[
        int, typer.Option(help="Size of a file of the write-ahead log.")
    ] = 256 * 2**20,
    segment_bytes: Annotated[int, typer.Option(help="Size of a segment.")] = 64_000_000,
) -> None:
    """Run a node until SIGTERM or SIGINT. Prints its address to stdout, log lines to stderr."""
    from lithify.node.log_lines.stderr_log import configure_log_lines
    from lithify.node.security import is_loopback
    from lithify.raft.group.settings import GroupSettings
    from lithify.raft.node.settings import RaftNodeSettings
    from lithify.raft.storage.segment_file import SegmentLimits
    from lithify.raft.storage.storage import StorageSettings

    address, peers = _addresses(node, listen, peer or [])
    if not (tls or allow_open or is_loopback(address.host)):
        what = f"other machines can reach {address} and would have full access"
        raise InvalidInput(f"{what}: --tls or --allow-open must be given")
    settings = RaftNodeSettings(
        node,
        data,
        address,
        {name: str(at) for name, at in peers.items()},
        voters=(node, *peers),
        join=join,
        cluster=cluster,
        tls=tls_of(tls),
        tick_ms=tick_ms,
        group=GroupSettings(snapshot_entries=snapshot_entries),
        storage=StorageSettings(wal_file_bytes, SegmentLimits(frame_bytes_max=segment_bytes)),
    )
    configure_log_lines("info")
    asyncio.run(_serve(settings))


def _addresses(node: str, listen: str, peer: list[str]) -> tuple[Address, dict[str, Address]]:
    """The address to listen at, and those of the other nodes."""
    from lithify.raft.net.client_operations import parse_address

    peers = dict(named_address(text) for text in peer)
    own = peers.pop(node, None)
    if not listen and own is None:
        raise InvalidInput(f"--listen or --peer {node}=HOST:PORT must be given")
    address = parse_address(listen or str(own))
    if own is not None and own.port != address.port:
        raise InvalidInput(f"--peer {node}={own} has another port than --listen {address}")
    return address, peers


async def _serve(settings: RaftNodeSettings) -> None:
    from lithify.compiled import offer_cache
    from lithify.fs import LocalFileSystem
    from lithify.raft.kv.machine import kv_machine
    from lithify.raft.node.node import RaftNode

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    fs = LocalFileSystem()
    fs.mkdir(settings.data)
    offer_cache(f"{os.path.abspath(settings.data)}/kernels")
    node = RaftNode(settings, fs, kv_machine)
    _collect_rarely()
    await node.run(stop, lambda address: typer.echo(f"raft  {address}"))


def _collect_rarely() -> None:
    """Collect garbage rarely: a node creates thousands of entries per second, and no cycles.

    A collection of the oldest generation visits all entries in memory, a quarter of a million.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
