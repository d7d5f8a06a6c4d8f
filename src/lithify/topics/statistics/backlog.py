"""How much of a topic is stored, and how much of it a subscription has yet to get.

    backlog = entries above mark-delete - entries above it that are acknowledged

1. The log: whole ledgers by the manifest, of the one that a position is in what is above it.
2. A compacted subscription gets what is retained up to its border, and the log above that
   (`topics/reading/reads.py`). Of the view whole segments count by the manifest. Of a segment of
   which it gets only a part the entries are counted: exactly in the first `PIECES_MAX` pieces that
   are read of it; behind them in proportion to the bytes, without what its dead set names. So the
   disk is asked for 2 MiB or so, which are those that are delivered next, and the count is exact
   where less is left or all entries have one size.

What a subscription keeps on disk is another question: that is the log above mark-delete, also for
a compacted one, and is what the limit of a backlog is about.

Functions of an open topic, called on the thread that owns it; what is read is a step for a thread.
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
    """(segment, last position, entries, bytes) of each ledger, the active one as it is now."""
    *sealed, active = topic.log.manifest.segments
    rows = [(ref, ref.last_position, ref.live_entries, ref.live_bytes) for ref in sealed]
    last = min(topic.log.last_position, PACKED.last(active.id))
    entries = max(0, last - active.first_position + 1)
    return [*rows, (active, last, entries, topic.log.active_bytes if entries else 0)]


def storage_bytes(topic: Topic) -> int:
    """What the files of its log take on disk."""
    manifest = topic.log.manifest
    sizes = sum(manifest.sizes().values()) + sum(r.file_bytes for r in manifest.retired)
    return sizes + topic.log.active_bytes


def stored_above(topic: Topic, position: int) -> tuple[int, int]:
    """(entries, bytes) above a position."""
    above = 0
    size_bytes = 0
    for _, last, entries, length in ledgers_of(topic):
        # Of the ledger that the position is in, only what is above it; gaps make it fewer.
        left = min(entries, max(0, last - position))
        if left:
            above += left
            size_bytes += length * left // entries
    return above, size_bytes


def backlog(topic: Topic, cursor: Cursor) -> tuple[int, int]:
    """(entries, bytes) of the log that are not acknowledged; of a part the bytes in proportion."""
    return _unacked(cursor, *stored_above(topic, cursor.mark_delete))


def subscription_backlog(topic: Topic, subscription: Subscription) -> Steps[tuple[int, int]]:
    """(entries, bytes) that a subscription has yet to get, or to acknowledge."""
    cursor = subscription.cursor
    border = topic.reader.border(subscription.through) if subscription.compacted else -1
    if topic.log.manifest.view is None or border <= cursor.mark_delete:
        return backlog(topic, cursor)
    count = partial(_retained_between, topic.log, cursor.mark_delete, border)
    entries, size_bytes = yield DiskCall(topic.log, lambda: count)
    more, more_bytes = stored_above(topic, border)
    return _unacked(cursor, entries + more, size_bytes + more_bytes)


def _retained_between(log: Log, mark_delete: int, border: int) -> tuple[int, int]:
    """(entries, bytes) of the view above the one position, up to the other; in any thread."""
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
    """(entries, bytes) of a segment of the view from a position on, up to the border."""
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
            gone = 0 if dead is None else dead.entries.count_in(reached + 1, span.high + 1)
            left = max(0, round(ref.entries * behind / ref.frame_bytes) - gone)
            entries += left
            size_bytes += left * ref.live_bytes // max(1, ref.live_entries)
            break
    return entries, size_bytes
