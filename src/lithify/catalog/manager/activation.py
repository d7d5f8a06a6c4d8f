"""When a version is active: delays, and the wait until it is active on every node.

A version is active from its activation on: the time of its append plus a delay. The delay gives
every node the time to receive a version before it is active. Clocks of nodes differ by less than
the skew. So when the activation plus the skew has passed on one node, the activation has passed
on each.

A cluster of one node needs neither: a version is active when it is appended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.hybrid_time import add_ms, ceil_ms, milliseconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lithify.clock import Clock

__all__ = ["ALONE", "ActivationTiming", "ActivationWait"]

SLEEP_S_MAX = 1.0
"""The wall clock may jump while a wait sleeps."""


@dataclass(frozen=True, slots=True)
class ActivationTiming:
    """The delay of new versions and the greatest difference between two clocks."""

    delay_ms: int = 500
    skew_ms: int = 500


ALONE = ActivationTiming(delay_ms=0, skew_ms=0)
"""Of a cluster of one node."""


class ActivationWait:
    """See the module. `timing` is asked each time: nodes join and leave."""

    def __init__(
        self,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]],
        timing: Callable[[], ActivationTiming],
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._timing = timing

    async def wait(self, activation: int) -> None:
        """Return when the time has passed on every node."""
        timing = self._timing()
        if timing == ALONE:
            return
        until_ms = milliseconds(ceil_ms(add_ms(activation, timing.skew_ms)))
        while (left_ms := until_ms - self._clock.now_ms()) > 0:
            await self._sleep(min(left_ms / 1000, SLEEP_S_MAX))
