"""A clock that does not go back behind the beginning of a compaction.

While a run is unfinished, the time stays at or after its beginning, even if the clock of the
machine is set back: a blob that the run has judged as expired or gone must take no more records. A
run that was killed is unfinished; its journal has the time of its beginning.

Called by the store, its readers and its writers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.clock import Clock

__all__ = ["MonotonicClock"]


class MonotonicClock:
    """See the module. Set `floor_ms` under the writer's lock, or before the first write."""

    __slots__ = ("_clock", "floor_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.floor_ms = 0

    def now_ms(self) -> int:
        """The time of the clock, at least the floor."""
        return max(self.floor_ms, self._clock.now_ms())
