"""Limits per connection and for all connections. A request above a limit is refused with its name.

Producers, consumers and created topics cost memory or files while the connection lasts, or longer.
Clients use one connection for all partitions of a topic, so the limits of producers and consumers
are the maximum number of partitions. The values come from the node's settings; sessions check them.
`Peers` counts the connections of one port, for its listener.

Before a peer is authenticated it gets little: a buffer of `STRANGER_BYTES`, frames of up to
`CONNECT_BYTES_MAX`, and `connect_timeout_ms` for its CONNECT.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.settings import check_range

if TYPE_CHECKING:
    from lithify.logger import Logger

__all__ = ["CONNECT_BYTES_MAX", "STRANGER_BYTES", "ConnectionLimits", "Peers", "TooMany"]

CONNECT_BYTES_MAX = 32 * 2**10
"""The frame size limit before authentication: a token has 16 KiB at most."""

STRANGER_BYTES = 2**13
"""The receive buffer of a new connection."""

REFUSALS_S = 1.0
_LIMIT = 1_000_000
_RANGES = {
    "connections_max": (1, _LIMIT),
    "connections_per_address_max": (1, _LIMIT),
    "connect_timeout_ms": (100, 3_600_000),
    "frame_timeout_ms": (100, 3_600_000),
    "receive_bytes_max": (2**20, 2**40),
}


class TooMany(InvalidInput):
    """A connection has reached one of its limits."""

    def __init__(self, what: str, limit: int, setting: str) -> None:
        self.limit = limit
        super().__init__(f"this connection has {limit} {what}, which is the limit ({setting})")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits; the constructor validates them."""

    connection_producers_max: int = 10_000
    connection_consumers_max: int = 10_000
    connection_topics_created_max: int = 1_000
    """Topics created on first use by the client."""
    connections_max: int = 10_000
    """Per port: that of Pulsar clients, or that of HTTP."""
    connections_per_address_max: int = 2_000
    connect_timeout_ms: int = 10_000
    """Timeout of the TLS handshake of a new connection, and of its CONNECT or the headers of its
    first HTTP request."""
    frame_timeout_ms: int = 60_000
    """Timeout of a complete frame of the Pulsar protocol; idle timeout within an HTTP body."""
    receive_bytes_max: int = 256 * 2**20
    """Total of the incomplete frames of all Pulsar clients, without the first 256 KiB of each."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            lowest, highest = _RANGES.get(name, (0, _LIMIT))
            check_range(name, getattr(self, name), lowest, highest)

    def check_producers(self, count: int) -> None:
        """Raise `TooMany` if a connection with `count` producers must not add one."""
        _check("producers", count, self.connection_producers_max, "connection_producers_max")

    def check_consumers(self, count: int) -> None:
        """Raise `TooMany` if a connection with `count` consumers must not add one."""
        _check("consumers", count, self.connection_consumers_max, "connection_consumers_max")

    def check_topics_created(self, count: int) -> None:
        """Raise `TooMany` if a connection that created `count` topics must not create another."""
        what, limit = "created topics", self.connection_topics_created_max
        _check(what, count, limit, "connection_topics_created_max")


def _check(what: str, count: int, limit: int, setting: str) -> None:
    if count >= limit:
        raise TooMany(what, limit, setting)


class Peers:
    """The number of connections of one port, by address, and the size of their buffers."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.buffer_bytes = 0
        self._refused = 0
        """Connections refused since the last logged refusal."""
        self._logged_s = float("-inf")
        self._count = 0
        self._by_address: Counter[str] = Counter()

    def add(self, address: str) -> str | None:
        """Count a connection. Above a limit it is not counted, and the reason is returned."""
        limits = self.limits
        if self._count >= limits.connections_max:
            return f"there are {self._count} connections, which is the limit (connections_max)"
        count = self._by_address[address]
        if count >= limits.connections_per_address_max:
            return (
                f"address {address} has {count} connections, which is the limit "
                "(connections_per_address_max)"
            )
        self._count += 1
        self._by_address[address] += 1
        return None

    def log_refusal(self, log: Logger, peer: str, reason: str) -> None:
        """Log a refusal, at most one line per second: unauthenticated peers cannot fill the log."""
        self._refused += 1
        now_s = time.monotonic()
        if now_s - self._logged_s >= REFUSALS_S:
            log.warning("connection refused", peer=peer, reason=reason, refused=self._refused)
            self._refused, self._logged_s = 0, now_s

    def remove(self, address: str) -> None:
        """Uncount a closed connection."""
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
