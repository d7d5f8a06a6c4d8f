"""The start of a connection, at the connecting end: what to send and which answers to expect.

    Hello         ->
                  <-  Welcome
    Introduction  ->                    between nodes, if `Welcome` says that it is understood
                  <-  Introduction      or `Credentials`, both, if both know them

Called by nodes and clients.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput, ProtocolError
from lithify.raft.core.configuration import check_identity, check_name
from lithify.raft.net.control_frames import Credentials, Hello, Introduction, Welcome
from lithify.raft.net.peer_recognition import MARKS_MAX, KnownStart, Starts

if TYPE_CHECKING:
    import ssl

    from lithify.raft.net.channel import Channel
    from lithify.raft.net.client_operations import Address

__all__ = [
    "check_certificate",
    "check_welcome",
    "connect",
    "credentials_in",
    "credentials_of",
    "met_in",
    "starts_in",
]


async def connect(
    address: Address, hello: Hello, channel: Channel, context: ssl.SSLContext | None
) -> None:
    """Connect a channel and send `Hello`."""
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: channel, address.host, address.port, ssl=context)
    channel.send("", hello)


def check_welcome(channel: Channel, messages: list[tuple[str, Any]], wanted: str) -> Welcome:
    """The answer to `Hello`; raises unless it is from the wanted node (empty for any)."""
    welcome = messages[0][1] if messages else None
    if not isinstance(welcome, Welcome) or len(messages) > 1:
        raise ProtocolError("the answer to the greeting is none")
    if welcome.refusal:
        raise ProtocolError(welcome.refusal)
    if wanted not in ("", welcome.node):
        raise ProtocolError(f"is node {welcome.node}, not {wanted}")
    check_certificate(channel, welcome.node)
    return welcome


def check_certificate(channel: Channel, node: str) -> None:
    """Raise unless the peer's certificate has its name, or there is no TLS."""
    names = channel.certificate_names
    if names is not None and node not in names:
        raise ProtocolError(f"says it is node {node}, but its certificate is for {sorted(names)}")


def credentials_in(messages: list[tuple[str, Any]]) -> Credentials:
    """The answer to an introduction; raises if there is none."""
    found = messages[0][1] if messages else None
    if not isinstance(found, Introduction | Credentials) or len(messages) > 1:
        raise ProtocolError("the answer to the introduction is none")
    return credentials_of(found)


def credentials_of(shown: Introduction | Credentials) -> Credentials:
    """What a node shows; nodes of earlier versions show less."""
    if isinstance(shown, Credentials):
        return shown
    return Credentials(shown.version, shown.identity, shown.refusal, shown.known, "", "[]", "{}")


def starts_in(shown: Credentials) -> Starts:
    """The starts that a node shows."""
    try:
        value = json.loads(shown.starts)
        if not value:
            return Starts()
        number, marks = value
        return Starts(int(number), tuple(map(str, marks[:MARKS_MAX])))
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"the starts of a node cannot be read: {error}") from error


def met_in(shown: Credentials) -> dict[str, KnownStart]:
    """The starts of other nodes that a node has recorded."""
    try:
        found = json.loads(shown.met_starts).items()
        met = {
            str(name): KnownStart(str(each[0]), int(each[1]), str(each[2])) for name, each in found
        }
        for name, each in met.items():
            check_name(name)
            check_identity(each.identity)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
        InvalidInput,
    ) as error:
        raise ProtocolError(f"the starts of nodes cannot be read: {error}") from error
    return met
