"""The parts of a member that count ticks: delays, timers, repeated messages. No I/O.

A part that is idle needs no tick before something else happens to it.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["TickedParts"]


class _Part(Protocol):
    """See the module."""

    @property
    def is_idle(self) -> bool: ...

    def tick(self) -> None: ...


class TickedParts:
    """The parts of one member."""

    def __init__(self, *parts: _Part) -> None:
        self._parts = parts

    def tick(self) -> None:
        """Count one tick."""
        for part in self._parts:
            part.tick()

    @property
    def is_idle(self) -> bool:
        """Are all of them idle?"""
        return all(part.is_idle for part in self._parts)
