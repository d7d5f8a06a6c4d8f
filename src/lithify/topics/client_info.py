"""The client that owns a producer or a consumer, for statistics."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOBODY", "ClientInfo"]


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """Address and version of a client, and when its producer or consumer joined."""

    address: str = ""
    version: str = ""
    joined_ms: int = 0

    @property
    def skips_masked(self) -> bool:
        """Does the client use no permit for a masked message of a batch?

        The Java client uses none; other clients use a permit and return it.
        """
        return self.is_java

    @property
    def is_java(self) -> bool:
        """Is it the Java client, by its version string?"""
        return "java" in self.version.lower()


NOBODY = ClientInfo()
