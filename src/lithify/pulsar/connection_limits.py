"""What one connection may have, and what all of them may: more is refused, with the limit's name.

Each of them costs the node memory, or files, for as long as the connection lasts or longer. Clients
put all partitions of a topic on one connection, so the first two are as many as a topic may have
partitions. Pure values; a session checks them, the node's settings make them. `Peers` counts the
connections of one port, for its listener.
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

__all__ = ["ConnectionLimits", "Peers", "TooMany"]

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
    """A connection has as many as it may."""

    def __init__(self, what: str, limit: int, setting: str) -> None:
        self.limit = limit
        super().__init__(f"this connection has {limit} {what}, which is the limit ({setting})")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The numbers, checked."""

    connection_producers_max: int = 10_000
    connection_consumers_max: int = 10_000
    connection_topics_created_max: int = 1_000
    """Topics that were created because the client used them."""
    connections_max: int = 10_000
    """Of one port, that of Pulsar clients or that of HTTP."""
    connections_per_address_max: int = 2_000
    connect_timeout_ms: int = 10_000
    """Time for a new connection to finish its TLS handshake, and to send CONNECT or the headers of
    an HTTP request."""
    frame_timeout_ms: int = 60_000
    """Time to finish a frame of the Pulsar protocol; time in which some of an HTTP body comes."""
    receive_bytes_max: int = 256 * 2**20
    """For unfinished frames of all Pulsar clients together, above 256 KiB for each of them."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            lowest, highest = _RANGES.get(name, (0, _LIMIT))
            check_range(name, getattr(self, name), lowest, highest)

    def check_producers(self, count: int) -> None:
        """May one that has so many producers have one more?"""
        _check("producers", count, self.connection_producers_max, "connection_producers_max")

    def check_consumers(self, count: int) -> None:
        """May one that has so many consumers have one more?"""
        _check("consumers", count, self.connection_consumers_max, "connection_consumers_max")

    def check_topics_created(self, count: int) -> None:
        """May one that has created so many topics create one more?"""
        what, limit = "created topics", self.connection_topics_created_max
        _check(what, count, limit, "connection_topics_created_max")


def _check(what: str, count: int, limit: int, setting: str) -> None:
    if count >= limit:
        raise TooMany(what, limit, setting)


class Peers:
    """The connections of one port: how many there are, and what their buffers have."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.buffer_bytes = 0
        self._refused = 0
        """Connections that were refused since a refusal was logged."""
        self._logged_s = float("-inf")
        self._count = 0
        self._by_address: Counter[str] = Counter()

    def add(self, address: str) -> str | None:
        """Count a connection; if it is one too many it is not counted, and this is the reason."""
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
        """Log why a connection was refused, once a second: strangers do not fill the log."""
        self._refused += 1
        now_s = time.monotonic()
        if now_s - self._logged_s >= REFUSALS_S:
            log.warning("connection refused", peer=peer, reason=reason, refused=self._refused)
            self._refused, self._logged_s = 0, now_s

    def remove(self, address: str) -> None:
        """A connection that was counted is closed."""
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
