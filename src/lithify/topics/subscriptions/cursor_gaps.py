"""Moves cursors over positions that no consumer of the subscription will get.

In the log these are positions that do not exist: ends of ledgers, places of failed writes. A
compacted subscription gets only what is retained, so its cursor also moves over everything else,
and over batches of which nothing retained remains. Then the position next to mark-delete is always
that of an entry which is still to be acknowledged, or of none yet: when everything retained was
acknowledged, mark-delete is at the end.

What is not retained may still be in the log, and nobody has acknowledged it. So a compacted
subscription moves a copy of its cursor (`Subscription.cursor`) and leaves the acknowledgements
themselves alone (`Subscription.acked`): a later consumer that reads the log starts from those.

1. Look what comes behind mark-delete: in the manifest and the known gaps (`TopicReads.following`),
   or in the piece of what is retained there.
2. Move there; if that is acknowledged, mark-delete has moved on, and step 1 is repeated. It is also
   repeated at the end of a piece in which everything is done with.

For compacted subscriptions step 1 may need a piece that is not in memory. `take` says which, and
`taking` has it read in a thread. A subscription remembers the state in which all gaps were taken,
so that nothing is looked at twice. No memory follows the number of gaps.

None of it is recorded, for it follows from the log and the view; see `Topic.acknowledge`.

One thread at a time; owned by the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.topics.subscriptions.entry_flags import is_spent

if TYPE_CHECKING:
    from lithify.topics.disk_steps import Steps
    from lithify.topics.reading.reads import EntryRun, TopicReads
    from lithify.topics.subscriptions.cursor import Cursor
    from lithify.topics.subscriptions.cursor_store import CursorStore
    from lithify.topics.subscriptions.subscription import Subscription

__all__ = ["CursorGaps"]


class CursorGaps:
    """The gaps of one topic."""

    def __init__(self, reading: TopicReads, cursors: CursorStore) -> None:
        self._reading = reading
        self._cursors = cursors

    def taking(self, subscription: Subscription) -> Steps[None]:
        """Move the subscription's cursor over all gaps behind mark-delete."""
        missing = self.take(subscription)
        while missing is not None:
            joined = subscription.through
            piece = yield from self._reading.loading(missing, joined)
            # Another consumer may be the active one by now.
            missing = self.take(subscription, piece if subscription.through == joined else None)

    def take(self, subscription: Subscription, loaded: EntryRun | None = None) -> int | None:
        """The same with what is in memory; the position whose piece has to be loaded first, if any.

        `loaded` is the piece that the call before asked for.
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
            there, exists = _first_retained(loaded, start, border, cursor)
            if there > start:
                cursor.fill(start, there)
            if exists and cursor.mark_delete + 1 == there:
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


def _first_retained(piece: EntryRun, start: int, border: int, cursor: Cursor) -> tuple[int, bool]:
    """The first position from `start` on of an entry that is not done with, and True.

    If the piece has none up to the border: the first position that is not known of, and False.
    """
    for number in range(piece.find(start), len(piece.entries)):
        entry = piece.entries[number]
        if entry.position > border:
            return border + 1, False
        if not is_spent(entry, cursor.remaining_of(entry.position)):
            return entry.position, True
    return max(start, min(piece.through, border) + 1), False
