"""Moves cursors over positions that no consumer of the subscription will get.

In the log these are positions that do not exist: ends of ledgers, places of failed writes. A
compacted subscription gets only what is retained, so its cursor also moves over everything else,
and over batches of which nothing retained remains. Then the position next to mark-delete is always
that of an entry which is still to be acknowledged, or of none yet: when everything retained was
acknowledged, mark-delete is at the end.

What is not retained may still be in the log, and nobody has acknowledged it. So a compacted
subscription moves a copy of its cursor (`Subscription.cursor`) and leaves the acknowledgements
themselves alone (`Subscription.acked`): a later consumer that reads the log starts from those.

1. Ask what comes behind mark-delete (`Reading.following`, `following_retained`).
2. Move there; if that is acknowledged, mark-delete has moved on, and it is asked again.

For compacted subscriptions an answer may cost a read, so none is asked for twice: a subscription
remembers the state in which all gaps were taken. No memory follows the number of gaps.

None of it is recorded, for it follows from the log and the view; see `Topic.acknowledge`.

One thread at a time; owned by the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.topics.entries import is_spent

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.log.frame import Entry
    from lithify.topics.cursor_store import CursorStore
    from lithify.topics.reading import Reading
    from lithify.topics.subscription import Subscription

__all__ = ["Gaps"]


class Gaps:
    """The gaps of one topic."""

    def __init__(self, reading: Reading, cursors: CursorStore) -> None:
        self._reading = reading
        self._cursors = cursors

    def take(self, subscription: Subscription) -> None:
        """Move the subscription's cursor over all gaps behind mark-delete."""
        if not subscription.compacted:
            self._take(subscription, self._reading.following)
            return
        cursor, joined = subscription.cursor, subscription.through
        view = *self._reading.view(), joined
        if subscription.gaps_taken == (*view, cursor.mark_delete):
            return

        def is_done(entry: Entry) -> bool:
            return is_spent(entry, cursor.remaining_of(entry.position))

        self._take(
            subscription,
            lambda position: self._reading.following_retained(position, joined, is_done),
        )
        subscription.gaps_taken = *view, cursor.mark_delete

    def _take(self, subscription: Subscription, following: Callable[[int], int]) -> None:
        if subscription.durable and not subscription.compacted:
            self._cursors.take_gaps(subscription.name, following)
        else:
            subscription.cursor.take_gaps(following)
