"""When a version is active: delays, and the wait until it is active on every node.

A version is active from its activation on: the time of its append plus a delay. The delay gives
every node the time to receive a version before it is active. Clocks of nodes differ by less than
the skew. So when the activation plus the skew has passed on one node, the activation has passed
on each.

A wait takes no longer than the delay and twice the skew. If an activation is later than that, a
node leads, or led, with a clock that is further ahead than the skew. Then the change is answered,
and a line says by how much. Nodes whose clocks are behind find it in force later.

A cluster of one node needs neither: a version is active when it is appended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.hybrid_time import add_ms, ceil_ms, milliseconds
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lithify.clock import Clock

__all__ = ["ALONE", "ActivationTiming", "ActivationWait"]

_log = get_logger("lithify.catalog")

SLEEP_MS_MAX = 1000
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
        rest_ms = timing.delay_ms + 2 * timing.skew_ms
        ahead_ms = until_ms - self._clock.now_ms() - rest_ms
        if ahead_ms > 0:
            what = "the time of the metastore is ahead of the clock of this node"
            _log.warning(what, ahead_ms=ahead_ms)
        while (left_ms := until_ms - self._clock.now_ms()) > 0 and rest_ms > 0:
            sleep_ms = min(left_ms, rest_ms, SLEEP_MS_MAX)
            rest_ms -= sleep_ms
            await self._sleep(sleep_ms / 1000)
