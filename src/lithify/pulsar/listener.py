"""Listens for clients on a TCP or TLS address; each client gets a `ClientConnection`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lithify.pulsar.connection import ClientConnection
from lithify.pulsar.connection_limits import Peers

if TYPE_CHECKING:
    import ssl

    from lithify.pulsar.broker import Broker

__all__ = ["ACCEPTS_MAX", "BACKLOG", "listen"]

BACKLOG = 1024
"""Connections that the operating system queues until they are accepted."""

ACCEPTS_MAX = 16
"""Connections that are accepted per loop iteration. asyncio has one parameter for both. If no file
descriptor is left, it reports the error that many times and repeats that after a second."""


async def listen(
    broker: Broker,
    host: str,
    port: int,
    connections: set[ClientConnection],
    tls: ssl.SSLContext | None = None,
) -> asyncio.Server:
    """Serve clients at an address; port 0 selects a free port."""
    loop = asyncio.get_running_loop()
    peers = Peers(broker.limits)
    timeout_s = broker.limits.connect_timeout_ms / 1000
    server = await loop.create_server(
        lambda: ClientConnection(broker, connections, peers),
        host,
        port,
        ssl=tls,
        ssl_handshake_timeout=None if tls is None else timeout_s,
        backlog=ACCEPTS_MAX,
    )
    for each in server.sockets:
        with each.dup() as listening:
            listening.listen(BACKLOG)
    return server
