"""`lithify serve`: run a node until SIGTERM or SIGINT.

    lithify serve [--data DIR] [--pulsar-port N] [--http-port N] [--config FILE]
                  [--node NAME] [--cluster-port N] [--peer NAME=HOST:PORT]… [--join]

Prints its addresses to stdout, one per line, once clients can connect, and log lines to stderr. A
second signal has no effect: shutdown is quick.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lithify.cli.options import ConfigFile
from lithify.cli.quick_imports import without_collections

if TYPE_CHECKING:
    from lithify.node.node import Node
    from lithify.node.server import Addresses

__all__ = ["serve"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

KEPT_PIECE_BYTES = 4 * 2**20
"""The largest allocation that is reused; four times the size of a piece."""
KEPT_BYTES = 8 * 2**20
"""Unused bytes that stay at the end of a heap; glibc has up to eight heaps per core."""


def serve(
    data: Annotated[str | None, typer.Option(metavar="DIR", help="The data directory.")] = None,
    pulsar_port: Annotated[
        int | None,
        typer.Option(metavar="N", help="Port for Pulsar clients; default: 6650; 0: a free port."),
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(metavar="N", help="Port for HTTP; default: 8080; 0: a free port.")
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the node; permanent. Default: a random name."),
    ] = None,
    cluster_port: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Port for other nodes; default: none, a cluster of one node."
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=HOST:PORT",
            help="Another node of a new cluster, or this one; repeatable.",
        ),
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="Wait to be added to a cluster; do not start one.")
    ] = False,
    config: ConfigFile = None,
) -> None:
    """Serve Pulsar clients and HTTP from a data directory, until SIGTERM or SIGINT."""
    with without_collections():
        # The first three are needed when the node is open. They are imported here, because the
        # collector is on while the node waits for other nodes.
        import lithify.http.app
        import lithify.node.http_port
        import lithify.node.server  # noqa: F401
        from lithify.fs import LocalFileSystem
        from lithify.node.log_lines.stderr_log import configure_log_lines, log_event
        from lithify.node.node import Node
        from lithify.node.settings import read_settings
    # The modules stay. The collections of the rest of the start do not search them.
    gc.freeze()
    flags = {
        "data": data,
        "pulsar_port": pulsar_port,
        "http_port": http_port,
        "node": node,
        "cluster_port": cluster_port,
        "peers": tuple(peer) if peer else None,
        "join": join or None,
    }
    settings = read_settings(
        LocalFileSystem(), config=config, environ=os.environ, flags=flags
    ).settings
    configure_log_lines(settings.log_level)
    _raise_descriptor_limit()
    _keep_freed_memory()
    # A node that waits for others does not run the event loop that handles signals later.
    for number in _SIGNALS:
        signal.signal(number, _end)
    with Node(settings, events=log_event, what="lithify serve") as opened:
        asyncio.run(_serve(opened))


def _end(*_: object) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit(0)


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files to the maximum: topics and clients need descriptors."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system may refuse its own maximum: the limit is unchanged then.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """Keep freed memory in the process for reuse.

    Pieces of content are 1 MiB. By default the C library returns such a piece to the system when it
    is freed, and the next one costs 256 page faults: several times the cost of filling it.
    """
    import ctypes

    trim_threshold, mmap_threshold = -1, -3  # As in malloc.h of glibc; other libraries have none.
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, KEPT_PIECE_BYTES)
        libc.mallopt(trim_threshold, KEPT_BYTES)


async def _serve(node: Node) -> None:
    from lithify.http.app import create_app

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    make_app = partial(create_app, member=node.cluster, metrics_open=node.settings.metrics_open)
    with ExitStack() as starting:
        starting.enter_context(without_collections())

        def ready(addresses: Addresses) -> None:
            starting.close()
            _print_addresses(addresses)

        await node.serve(stop=stop, ready=ready, make_app=make_app)


def _print_addresses(addresses: Addresses) -> None:
    typer.echo(f"pulsar  {addresses.pulsar}")
    if addresses.http is not None:
        typer.echo(f"http    {addresses.http}")
    if addresses.cluster is not None:
        typer.echo(f"cluster  {addresses.cluster}")
