"""How a connection begins, seen from the end that connects: what is sent, what must come back.

    Hello         ->
                  <-  Welcome
    Introduction  ->                    between nodes, if `Welcome` says that it is understood
                  <-  Introduction

Nodes and clients call it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lithify.errors import ProtocolError
from lithify.raft.dialogue import Hello, Introduction, Welcome

if TYPE_CHECKING:
    import ssl

    from lithify.raft.channel import Channel
    from lithify.raft.operations import Address

__all__ = ["check_certificate", "check_welcome", "connect", "introduction_in"]


async def connect(
    address: Address, hello: Hello, channel: Channel, context: ssl.SSLContext | None
) -> None:
    """Connect a channel and say hello."""
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: channel, address.host, address.port, ssl=context)
    channel.send("", hello)


def check_welcome(channel: Channel, messages: list[tuple[str, Any]], wanted: str) -> Welcome:
    """The answer to `Hello`, if it is one and from whom was wanted; empty for anybody."""
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
    """Raise unless the other end has a certificate for its name, or there is no TLS."""
    names = channel.certificate_names
    if names is not None and node not in names:
        raise ProtocolError(f"says it is node {node}, but its certificate is for {sorted(names)}")


def introduction_in(messages: list[tuple[str, Any]]) -> Introduction:
    """The answer to `Introduction`, if it is one."""
    found = messages[0][1] if messages else None
    if not isinstance(found, Introduction) or len(messages) > 1:
        raise ProtocolError("the answer to the introduction is none")
    return found
