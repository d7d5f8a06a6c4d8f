"""A clock that does not go back behind a compaction.

While a run is not over, time does not go back behind its beginning, whatever the machine's clock
does: what the run has judged as expired or gone takes no record any more. A run that was killed is
not over, and its beginning stands in the journal.

Called by the store and its two sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.clock import Clock

__all__ = ["FloorClock"]


class FloorClock:
    """See the module. Who sets the floor holds the writer's lock, or nobody writes yet."""

    __slots__ = ("_clock", "floor_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.floor_ms = 0

    def now_ms(self) -> int:
        """The time, or the floor where that is later."""
        return max(self.floor_ms, self._clock.now_ms())
