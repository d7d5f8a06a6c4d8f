"""Whose a producer or a consumer is, for those who look at statistics."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOBODY", "ClientInfo"]


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The other end of a connection, and since when one of its producers or consumers is there."""

    address: str = ""
    version: str = ""
    joined_ms: int = 0

    @property
    def skips_masked(self) -> bool:
        """Does it take no permit for a message of a batch that it is told to skip?

        Java's client does not; the others take one and give it back.
        """
        return self.is_java

    @property
    def is_java(self) -> bool:
        """Is it the Java client, by what it says of itself?"""
        return "java" in self.version.lower()


NOBODY = ClientInfo()
