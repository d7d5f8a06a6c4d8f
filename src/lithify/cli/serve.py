"""`lithify serve`: run a node until SIGTERM or SIGINT.

    lithify serve [--data DIR] [--pulsar-port N] [--http-port N] [--config FILE]

Addresses go to stdout, one a line, once clients can connect; what happens goes to stderr, one line
a record. A second signal of the same kind does not hurry it: closing is quick.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lithify.cli.options import ConfigFile

if TYPE_CHECKING:
    from lithify.node.node import Node
    from lithify.node.serving import Addresses

__all__ = ["serve"]

KEPT_PIECE_BYTES = 4 * 2**20
"""The largest allocation that is used again; four times that of a piece."""
KEPT_BYTES = 8 * 2**20
"""What may lie unused at the end of a heap; glibc has up to eight heaps a core."""


def serve(
    data: Annotated[str | None, typer.Option(metavar="DIR", help="The data directory.")] = None,
    pulsar_port: Annotated[
        int | None,
        typer.Option(metavar="N", help="For Pulsar clients; 6650 by default, 0 takes a free one."),
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(metavar="N", help="For HTTP; 8080 by default.")
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Serve Pulsar clients and HTTP from a data directory, until SIGTERM or SIGINT."""
    from lithify.fs import LocalFileSystem
    from lithify.node.log_lines import configure_log_lines, log_event
    from lithify.node.node import Node
    from lithify.node.settings import read_settings

    flags = {"data": data, "pulsar_port": pulsar_port, "http_port": http_port}
    settings = read_settings(
        LocalFileSystem(), config=config, environ=os.environ, flags=flags
    ).settings
    configure_log_lines(settings.log_level)
    _raise_descriptor_limit()
    _keep_freed_memory()
    with Node(settings, events=log_event, what="lithify serve") as node:
        asyncio.run(_serve(node))


def _raise_descriptor_limit() -> None:
    """Take all the open files that are allowed: every topic needs some, and every client one."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system may allow more than it can give; then it stays as it is.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """Have memory that was freed used again, instead of given back and taken anew.

    Pieces of content are 1 MiB. By default the C library returns such a piece to the system when it
    is freed, and the next one costs 256 page faults: several times what filling it costs.
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
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    make_app = partial(create_app, metrics_open=node.settings.metrics_open)
    await node.serve(stop=stop, ready=_print_addresses, make_app=make_app)


def _print_addresses(addresses: Addresses) -> None:
    typer.echo(f"pulsar  {addresses.pulsar}")
    if addresses.http is not None:
        typer.echo(f"http    {addresses.http}")
