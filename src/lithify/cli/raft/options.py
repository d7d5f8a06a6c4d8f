"""The options that the verbs of `lithify raft` share, and the requests to nodes.

Used by the modules of this package only.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lithify.cli.raft.http_nodes import ask_http, is_http
from lithify.errors import InvalidInput, LithifyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from lithify.raft.kv.client import KvClient
    from lithify.raft.net.client_operations import Address, ClientOperation
    from lithify.raft.net.transport import Tls

__all__ = [
    "GROUP",
    "NODES",
    "GroupName",
    "Nodes",
    "TlsFiles",
    "ask",
    "ask_all",
    "ask_each",
    "named_address",
    "run_client",
    "tls_of",
]

Nodes = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT,…",
        envvar="LITHIFY_RAFT_NODES",
        help="Addresses; one running node is enough. Of 'lithify serve' nodes: http://HOST:PORT.",
    ),
]
GroupName = Annotated[str, typer.Option("--group", metavar="NAME", help="Name of the group.")]
TlsFiles = Annotated[
    str,
    typer.Option(
        "--tls",
        metavar="CA,CERT,KEY",
        envvar="LITHIFY_RAFT_TLS",
        help="PEM files; clients and nodes need a certificate, a node one for its name.",
    ),
]

TRANSFER_S = 60.0
"""Timeout of a request to one node over HTTP: a transfer waits for an election."""
EACH_S = 3.0
"""Timeout of `ask_each`; a running node answers at once."""

NODES = "127.0.0.1:7001"
GROUP = "default"


def named_address(text: str) -> tuple[str, Address]:
    """Parse `n2=127.0.0.1:7002` into name and address."""
    from lithify.raft.net.client_operations import parse_address

    name, equals, address = text.partition("=")
    if not equals:
        raise InvalidInput(f"node {text!r} must be like n2=127.0.0.1:7002")
    return name, parse_address(address)


def tls_of(files: str) -> Tls | None:
    """The files of `CA,CERT,KEY`; None without files."""
    from lithify.raft.net.transport import Tls

    if not files:
        return None
    names = files.split(",")
    if len(names) != 3:
        raise InvalidInput(f"--tls has {len(names)} files, must be CA,CERT,KEY")
    return Tls(*names)


def run_client(nodes: str, tls: str, group: str, work: Callable[[KvClient], Awaitable[Any]]) -> Any:
    """Run `work` with a client."""
    from lithify.raft.client.client import RaftClient
    from lithify.raft.kv.client import KvClient
    from lithify.raft.net.client_operations import parse_address

    async def main() -> Any:
        addresses = [parse_address(text) for text in nodes.split(",")]
        async with RaftClient(addresses, tls=tls_of(tls)) as client:
            return await work(KvClient(client, group))

    return asyncio.run(main())


def ask(nodes: str, tls: str, group: str, operation: ClientOperation, **given: object) -> Any:
    """The JSON response of a node to an operation."""
    if is_http(nodes):
        return _ask_any(nodes.split(","), group, operation, given)
    return run_client(nodes, tls, group, lambda kv: kv.client.ask_json(group, operation, **given))


def _ask_any(
    urls: list[str], group: str, operation: ClientOperation, given: Mapping[str, object]
) -> dict[str, Any]:
    """The response of the first node that is reached."""
    from lithify.cli.client.errors import NodeNotReached

    for url in urls[:-1]:
        with suppress(NodeNotReached):
            return ask_http(url, group, operation, given, TRANSFER_S)
    return ask_http(urls[-1], group, operation, given, TRANSFER_S)


def ask_each(
    nodes: str, tls: str, group: str, operation: ClientOperation, **given: object
) -> dict[str, dict[str, Any] | LithifyError]:
    """The response of each node, by address; the requests are concurrent."""
    return ask_all(dict.fromkeys(nodes.split(","), given), tls, group, operation)


def ask_all(
    given: Mapping[str, Mapping[str, object]],
    tls: str,
    group: str,
    operation: ClientOperation,
    timeout_s: float = EACH_S,
) -> dict[str, dict[str, Any] | LithifyError]:
    """Like `ask_each`, with different parameters for each address."""
    from lithify.raft.client.client import RaftClient
    from lithify.raft.net.client_operations import parse_address

    async def one(text: str) -> dict[str, Any] | LithifyError:
        try:
            if is_http(text):
                asked = given[text]
                return await asyncio.to_thread(ask_http, text, group, operation, asked, timeout_s)
            address = parse_address(text)
            client = RaftClient([address], tls=tls_of(tls), timeout_s=timeout_s, learns=False)
            async with client:
                found: dict[str, Any] = await client.ask_json(group, operation, **given[text])
                return found
        except LithifyError as error:
            return error

    async def main() -> list[dict[str, Any] | LithifyError]:
        return await asyncio.gather(*map(one, given))

    for name in given:
        if not is_http(name):
            parse_address(name)
    return dict(zip(given, asyncio.run(main()), strict=True))
