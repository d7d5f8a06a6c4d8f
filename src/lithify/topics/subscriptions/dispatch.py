"""Delivers entries of a topic to the consumers of a subscription.

1. Ask the subscription what to read: entries from a position on, or single positions again.
2. Take them from a run in memory, or load the run in a thread. If the subscription has a different
   request after the load, restart.
3. Offer them. If none was delivered, because all were acknowledged, delayed or missing, there may
   be more after them: restart, and yield first if many were examined.

One thread at a time; owned by the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.log.log import Log
    from lithify.topics.disk_steps import Steps
    from lithify.topics.reading.dispatch_reads import TopicReads
    from lithify.topics.subscriptions.cursor_gaps import CursorGaps
    from lithify.topics.subscriptions.subscription import Delivery, DispatchRead, Subscription

__all__ = ["DISPATCH_ENTRIES_MAX", "Dispatcher"]

READ_BYTES_MAX = 2**20
DISPATCH_ENTRIES_MAX = 200
"""Maximum number of entries that one call delivers, or examines between two yields, about 2 ms. A
client may request any number."""


class Dispatcher:
    """Dispatches the entries of one topic."""

    def __init__(self, log: Log, reading: TopicReads, gaps: CursorGaps, clock: Clock) -> None:
        self._log = log
        self._reading = reading
        self._gaps = gaps
        self._clock = clock

    def dispatching(self, subscription: Subscription) -> Steps[list[Delivery]]:
        """Deliver what can be delivered; an empty result means that nothing is left to do."""
        now_ms = self._clock.now_ms()
        before, examined = None, 0
        gaps_taken = not subscription.compacted
        while (request := subscription.wants(now_ms)) is not None and request != before:
            joined = subscription.through if subscription.compacted else None
            start = request.first
            if not request.positions and start > self._log.last_position:
                break
            if not gaps_taken:
                gaps_taken = True
                yield from self._gaps.taking(subscription)
                continue
            run = self._reading.cached(start, joined)
            if run is None:
                run = yield from self._reading.loading(start, joined)
                if not _is_still_wanted(subscription, request, joined, now_ms):
                    continue
            if request.positions:
                entries, through = self._reading.read_each(
                    request.positions, READ_BYTES_MAX, run, joined
                )
            else:
                entries, through = run.take(start, min(request.messages, DISPATCH_ENTRIES_MAX))
                # Gaps in runs that are not in memory are taken in the next call.
                self._gaps.take(subscription)
            deliveries = subscription.offer(entries, now_ms, wanted=request, through=through)
            if deliveries:
                return deliveries
            # All entries were acknowledged, delayed or missing: there may be more after them.
            before = request
            examined += len(entries)
            if examined >= DISPATCH_ENTRIES_MAX and subscription.wants(now_ms) != request:
                yield None
                # The cursor may have been moved back during the yield.
                before, examined = None, 0
        return []


def _is_still_wanted(
    subscription: Subscription, request: DispatchRead, joined: int | None, now_ms: int
) -> bool:
    """Does the subscription, after a load, still need the run that was loaded?"""
    current = subscription.wants(now_ms)
    if current is None or (current.positions, current.start) != (request.positions, request.start):
        return False
    return joined == (subscription.through if subscription.compacted else None)
