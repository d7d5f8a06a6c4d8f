"""Delivers entries of a topic to the consumers of a subscription.

1. Ask the subscription what it wants: entries from a position on, or single ones again.
2. Take them from a piece that is in memory, or have one loaded in a thread. What the subscription
   wants may have changed meanwhile: then begin again.
3. Offer them. If none was delivered, because all were acknowledged, wait or are gone, there may be
   more behind them: begin again, after a turn of others if many were looked at.

One thread at a time; owned by the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.log.log import Log
    from lithify.topics.disk_steps import Steps
    from lithify.topics.reading.reads import TopicReads
    from lithify.topics.subscriptions.cursor_gaps import CursorGaps
    from lithify.topics.subscriptions.subscription import Delivery, DispatchRead, Subscription

__all__ = ["DISPATCH_ENTRIES_MAX", "Dispatcher"]

READ_BYTES_MAX = 2**20
DISPATCH_ENTRIES_MAX = 200
"""Entries that one call delivers, or looks at in one turn of the loop, about 2 ms: a client may ask
for any number."""


class Dispatcher:
    """Dispatches one topic."""

    def __init__(self, log: Log, reading: TopicReads, gaps: CursorGaps, clock: Clock) -> None:
        self._log = log
        self._reading = reading
        self._gaps = gaps
        self._clock = clock

    def dispatching(self, subscription: Subscription) -> Steps[list[Delivery]]:
        """Deliver what can be delivered now; nothing left to do when the answer is empty."""
        now_ms = self._clock.now_ms()
        before, looked = None, 0
        gaps_taken = not subscription.compacted
        while (wanted := subscription.wants(now_ms)) is not None and wanted != before:
            joined = subscription.through if subscription.compacted else None
            start = wanted.first
            if not wanted.positions and start > self._log.last_position:
                break
            if not gaps_taken:
                gaps_taken = True
                yield from self._gaps.taking(subscription)
                continue
            piece = self._reading.cached(start, joined)
            if piece is None:
                piece = yield from self._reading.loading(start, joined)
                if not _still_wants(subscription, wanted, joined, now_ms):
                    continue
            if wanted.positions:
                entries, through = self._reading.read_each(
                    wanted.positions, READ_BYTES_MAX, piece, joined
                )
            else:
                entries, through = piece.take(start, min(wanted.messages, DISPATCH_ENTRIES_MAX))
                # What of them is not in memory is taken in the next call.
                self._gaps.take(subscription)
            deliveries = subscription.offer(entries, now_ms, wanted=wanted, through=through)
            if deliveries:
                return deliveries
            # All of it was acknowledged, waits or is gone: there may be more behind it.
            before = wanted
            looked += len(entries)
            if looked >= DISPATCH_ENTRIES_MAX and subscription.wants(now_ms) != wanted:
                yield None
                # The cursor may be back where it was.
                before, looked = None, 0
        return []


def _still_wants(
    subscription: Subscription, wanted: DispatchRead, joined: int | None, now_ms: int
) -> bool:
    """Has nothing changed while a piece was loaded that this would be read from another?"""
    now = subscription.wants(now_ms)
    if now is None or (now.positions, now.start) != (wanted.positions, wanted.start):
        return False
    return joined == (subscription.through if subscription.compacted else None)
