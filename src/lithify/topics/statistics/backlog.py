"""The stored size of a topic, and the backlog of its subscriptions.

    backlog = entries above mark-delete - acknowledged entries above it

1. In the log, whole ledgers count by the manifest, and a ledger with the position in it by the
   entries above the position.
2. A compacted subscription gets retained entries up to its border, and the log above it
   (`topics/reading/dispatch_reads.py`). Whole segments of the view count by the manifest. In a
   segment of which it gets a part, entries are counted exactly in the first `PIECES_MAX` pieces;
   behind them the rest is estimated by bytes, less the entries in the dead set. So about 2 MiB are
   read, those that are delivered next. The count is exact if less is left or all entries have the
   same size.

The disk space that a subscription retains is different: it is the log above mark-delete, also for a
compacted one, and is what a backlog limit is about.

Functions of an open topic, called on the thread that owns it; reads are disk steps for a thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES
from lithify.positions import PACKED
from lithify.topics.disk_steps import DiskCall

if TYPE_CHECKING:
    from lithify.log.log import Log
    from lithify.log.manifest import SegmentRef
    from lithify.log.reader import SegmentSpan, Snapshot
    from lithify.topics.disk_steps import Steps
    from lithify.topics.subscriptions.cursor import Cursor
    from lithify.topics.subscriptions.subscription import Subscription
    from lithify.topics.topic import Topic

__all__ = ["backlog", "ledgers_of", "storage_bytes", "stored_above", "subscription_backlog"]

PIECES_MAX = 2


def ledgers_of(topic: Topic) -> list[tuple[SegmentRef, int, int, int]]:
    """(segment, last position, entries, bytes) of each ledger; the active one is last."""
    *sealed, active = topic.log.manifest.segments
    rows = [(ref, ref.last_position, ref.live_entries, ref.live_bytes) for ref in sealed]
    last = min(topic.log.last_position, PACKED.last(active.id))
    entries = max(0, last - active.first_position + 1)
    return [*rows, (active, last, entries, topic.log.active_bytes if entries else 0)]


def storage_bytes(topic: Topic) -> int:
    """The bytes that the files of the topic's log take on disk."""
    manifest = topic.log.manifest
    sizes = sum(manifest.sizes().values()) + sum(r.file_bytes for r in manifest.retired)
    return sizes + topic.log.active_bytes


def stored_above(topic: Topic, position: int) -> tuple[int, int]:
    """(entries, bytes) above a position."""
    above = 0
    size_bytes = 0
    for _, last, entries, length in ledgers_of(topic):
        # In the ledger of the position only entries above it count; gaps make them fewer.
        left = min(entries, max(0, last - position))
        if left:
            above += left
            size_bytes += length * left // entries
    return above, size_bytes


def backlog(topic: Topic, cursor: Cursor) -> tuple[int, int]:
    """Unacknowledged (entries, bytes) of the log; bytes of a part are proportional."""
    return _unacked(cursor, *stored_above(topic, cursor.mark_delete))


def subscription_backlog(topic: Topic, subscription: Subscription) -> Steps[tuple[int, int]]:
    """(entries, bytes) that a subscription has not received or not acknowledged."""
    cursor = subscription.cursor
    border = topic.reader.border(subscription.through) if subscription.compacted else -1
    if topic.log.manifest.view is None or border <= cursor.mark_delete:
        return backlog(topic, cursor)
    count = partial(_retained_between, topic.log, cursor.mark_delete, border)
    entries, size_bytes = yield DiskCall(topic.log, lambda: count)
    more, more_bytes = stored_above(topic, border)
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
