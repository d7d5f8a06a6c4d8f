"""Moves cursors over positions that are never delivered to the subscription.

In the log these are positions that do not exist: ends of ledgers, and gaps left by failed writes. A
compacted subscription delivers only retained entries, so its cursor also moves over all other
entries, and over batches of which nothing retained is unacknowledged. As a result, the position
after mark-delete is always that of an entry that is still to be acknowledged, or past the end: once
everything retained is acknowledged, mark-delete is at the end.

An entry that is not retained may still be in the log, unacknowledged. So a compacted subscription
moves a copy of its cursor (`Subscription.cursor`) and leaves the acknowledgements
(`Subscription.acked`) unchanged: a later consumer that reads the log starts from those.

1. Find the next position after mark-delete: in the manifest and the known gaps
   (`TopicReads.following`), or in the run of retained entries at that position.
2. Move there. If that position is acknowledged, mark-delete has moved further: repeat step 1.
   Repeat it also at the end of a run in which everything is acknowledged.

For a compacted subscription step 1 may need a run that is not in memory. `take` returns its
position, and `taking` reads it in a thread. A subscription records the state in which all gaps were
taken, so that no position is examined twice. Memory does not grow with the number of gaps.

These moves are not recorded: they follow from the log and the view; see `acknowledgements.py`.

One thread at a time; owned by the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.topics.subscriptions.compacted_batch import is_spent

if TYPE_CHECKING:
    from lithify.topics.disk_steps import Steps
    from lithify.topics.reading.dispatch_reads import EntryRun, TopicReads
    from lithify.topics.subscriptions.cursor import Cursor
    from lithify.topics.subscriptions.cursor_store import CursorStore
    from lithify.topics.subscriptions.subscription import Subscription

__all__ = ["CursorGaps"]


class CursorGaps:
    """Moves the cursors of one topic over gaps."""

    def __init__(self, reading: TopicReads, cursors: CursorStore) -> None:
        self._reading = reading
        self._cursors = cursors

    def taking(self, subscription: Subscription) -> Steps[None]:
        """Move the cursor of a subscription over all gaps after mark-delete."""
        missing = self.take(subscription)
        while missing is not None:
            joined = subscription.through
            run = yield from self._reading.loading(missing, joined)
            # The active consumer may have changed during the read.
            missing = self.take(subscription, run if subscription.through == joined else None)

    def take(self, subscription: Subscription, loaded: EntryRun | None = None) -> int | None:
        """As `taking`, with runs in memory; returns the position of a run to load first, or None.

        `loaded` is the run that the previous call requested.
        """
        if not subscription.compacted:
            self._take_in_log(subscription)
            return None
        cursor, joined = subscription.cursor, subscription.through
        view = *self._reading.view(), joined
        if subscription.gaps_taken == (*view, cursor.mark_delete):
            return None
        border = self._reading.compacted_end(joined)
        while (start := cursor.mark_delete + 1) <= border:
            if loaded is None or not loaded.covers(start):
                loaded = self._reading.cached(start, joined)
            if loaded is None:
                return start
            following, exists = _first_retained(loaded, start, border, cursor)
            if following > start:
                cursor.fill(start, following)
            if exists and cursor.mark_delete + 1 == following:
                break
        else:
            cursor.take_gaps(self._reading.following)
        subscription.gaps_taken = *view, cursor.mark_delete
        return None

    def _take_in_log(self, subscription: Subscription) -> None:
        if subscription.durable:
            self._cursors.take_gaps(subscription.name, self._reading.following)
        else:
            subscription.cursor.take_gaps(self._reading.following)


def _first_retained(run: EntryRun, start: int, border: int, cursor: Cursor) -> tuple[int, bool]:
    """(position of the first entry at or above `start` that is not spent, True).

    If the run has none up to the border: (the first position that the run does not cover, False).
    """
    for number in range(run.find(start), len(run.entries)):
        entry = run.entries[number]
        if entry.position > border:
            return border + 1, False
        if not is_spent(entry, cursor.remaining_of(entry.position)):
            return entry.position, True
    return max(start, min(run.through, border) + 1), False
