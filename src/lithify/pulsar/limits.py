"""What one connection may have: a client that asks for more is refused, with the limit's name.

Each of them costs the node memory, or files, for as long as the connection lasts or longer. Clients
put all partitions of a topic on one connection, so the first two are as many as a topic may have
partitions. Pure values; a session checks them, the node's settings make them.
"""

from __future__ import annotations

from dataclasses import dataclass

from lithify.errors import InvalidInput
from lithify.settings import check_range

__all__ = ["ConnectionLimits", "TooMany"]

_LIMIT = 1_000_000


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

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_range(name, getattr(self, name), 0, _LIMIT)

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
