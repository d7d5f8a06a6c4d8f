"""Applies acknowledgements and seeks to the cursors of a topic's subscriptions.

1. Record the change: in the cursor store for a durable subscription, otherwise in memory. The
   store may have to write to disk first; the caller's check follows that wait.
2. A compacted subscription has a second cursor for dispatch; apply the change to it too.
3. Move the cursor over gaps.
4. Update the dispatch: release entries that consumers held, or restart after a seek.

One thread at a time; owned by the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.positions import NO_POSITION
from lithify.topics.disk_steps import DiskCall
from lithify.topics.subscriptions.cursor_changes import Acked, AckedUpTo, Reset

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.topics.disk_steps import Steps
    from lithify.topics.subscriptions.cursor_changes import CursorChange
    from lithify.topics.subscriptions.cursor_gaps import CursorGaps
    from lithify.topics.subscriptions.cursor_store import CursorStore
    from lithify.topics.subscriptions.subscription import Subscription

__all__ = ["Acknowledgements"]


class Acknowledgements:
    """The acknowledgements of one topic."""

    def __init__(self, cursors: CursorStore, gaps: CursorGaps) -> None:
        self._cursors = cursors
        self._gaps = gaps

    def acknowledging(
        self, subscription: Subscription, change: CursorChange, check: Callable[[], None]
    ) -> Steps[None]:
        """See `Topic.acknowledging`."""
        change = yield from self._recording(subscription, change, check)
        if subscription.cursor is not subscription.acked:
            change.apply(subscription.cursor)
        if self._gaps.take(subscription) is not None:
            yield from self._gaps.taking(subscription)
        if isinstance(change, AckedUpTo):
            subscription.read_failure = None
            subscription.acknowledged_up_to(change.position)
        elif isinstance(change, Reset):
            subscription.read_failure = None
            subscription.record_seek(change.position)
        else:
            subscription.acknowledged(getattr(change, "position", NO_POSITION))

    def _recording(
        self, subscription: Subscription, change: CursorChange, check: Callable[[], None]
    ) -> Steps[CursorChange]:
        """Record a change, durably or in memory; returns the change that was recorded."""
        cursors, durable = self._cursors, subscription.durable
        while True:
            if durable and cursors.preparation() is not None:
                yield DiskCall(cursors, cursors.preparation)
            check()
            recorded = change
            first = subscription.cursor.mark_delete + 1
            if subscription.compacted and change == Acked(first):
                # All positions before it are done, retained or not. Gaps are not recorded;
                # `AckedUpTo` restores the same mark-delete after a restart.
                recorded = AckedUpTo(first)
            if not durable:
                recorded.apply(subscription.acked)
                return recorded
            if cursors.ack(subscription.name, recorded):
                return recorded
