"""The backlog of a subscription.

    backlog = entries above mark-delete - acknowledged entries above it

1. In the log, the size above a position is known without reading (`topics/ledger_sizes.py`).
2. A compacted subscription gets retained entries up to its border, and the log above it
   (`topics/reading/dispatch_reads.py`). Whole segments of the view count by the manifest. In a
   segment of which it gets a part, entries are counted exactly in the first `PIECES_MAX` pieces;
   behind them the rest is estimated by bytes, less the entries in the dead set. So about 2 MiB are
   read, those that are delivered next. The count is exact if less is left or all entries have the
   same size.

The disk space that a subscription retains is different: it is the log above mark-delete, also for a
compacted one, and is what a backlog limit is about.

Functions of an open log, called on the thread that owns the topic; reads are disk steps for a
thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES
from lithify.topics.disk_steps import DiskCall
from lithify.topics.ledger_sizes import stored_above

if TYPE_CHECKING:
    from lithify.log.log import Log
    from lithify.log.reader import SegmentSpan, Snapshot
    from lithify.topics.disk_steps import Steps
    from lithify.topics.reading.topic_reader import TopicReader
    from lithify.topics.subscriptions.cursor import Cursor
    from lithify.topics.subscriptions.subscription import Subscription

__all__ = ["backlog", "subscription_backlog"]

PIECES_MAX = 2


def backlog(log: Log, cursor: Cursor) -> tuple[int, int]:
    """Unacknowledged (entries, bytes) of the log; bytes of a part are proportional."""
    return _unacked(cursor, *stored_above(log, cursor.mark_delete))


def subscription_backlog(
    log: Log, reader: TopicReader, subscription: Subscription
) -> Steps[tuple[int, int]]:
    """(entries, bytes) that a subscription has not received or not acknowledged."""
    cursor = subscription.cursor
    border = reader.border(subscription.through) if subscription.compacted else -1
    if log.manifest.view is None or border <= cursor.mark_delete:
        return backlog(log, cursor)
    count = partial(_retained_between, log, cursor.mark_delete, border)
    entries, size_bytes = yield DiskCall(log, lambda: count)
    more, more_bytes = stored_above(log, border)
    return _unacked(cursor, entries + more, size_bytes + more_bytes)


def _retained_between(log: Log, mark_delete: int, border: int) -> tuple[int, int]:
    """(entries, bytes) of the view above `mark_delete`, up to `border`; in any thread."""
    entries = size_bytes = 0
    with log.snapshot("backlog") as snapshot:
        for span in snapshot.spans(compacted=True, through=border):
            if span.high <= mark_delete or span.low > border:
                continue
            more, more_bytes = _retained(snapshot, span, mark_delete + 1, border)
            entries += more
            size_bytes += more_bytes
    return entries, size_bytes


def _unacked(cursor: Cursor, above: int, size_bytes: int) -> tuple[int, int]:
    acked = min(cursor.acked_entries, above)
    return above - acked, size_bytes * (above - acked) // above if above else 0


def _retained(snapshot: Snapshot, span: SegmentSpan, start: int, border: int) -> tuple[int, int]:
    """(entries, bytes) of one segment of the view from `start` up to the border."""
    ref = span.ref
    if start <= span.low and span.high == ref.last_position:
        return ref.live_entries, ref.live_bytes
    entries = size_bytes = 0
    pieces = snapshot.read_frames(max(start, span.low), compacted=True, through=border)
    for number, frames in enumerate(pieces, 1):
        if frames.positions[0] > span.high:
            break
        lengths = frames.lengths()
        entries += len(frames)
        size_bytes += int(lengths.sum()) + HEADER_BYTES * len(frames)
        if number == PIECES_MAX:
            seen = frames.base + int(frames.offsets[-1] + lengths[-1]) + HEADER_BYTES
            behind = max(0, SEGMENT_HEADER_BYTES + ref.frame_bytes - seen)
            dead = snapshot.dead_set(ref)
            reached = int(frames.positions[-1])
            dead_entries = 0 if dead is None else dead.entries.count_in(reached + 1, span.high + 1)
            left = max(0, round(ref.entries * behind / ref.frame_bytes) - dead_entries)
            entries += left
            size_bytes += left * ref.live_bytes // max(1, ref.live_entries)
            break
    return entries, size_bytes
