"""Finds the puts to erase, from key indexes only.

A put is erased if its content can no longer be read and a delete may have asked for its removal:

1. The newest record of its blob is a delete older than the retention. It does not matter whether
   the blob has expired too; a blob that has only expired is not erased.
2. The dead set of its segment contains it: compaction has dropped it, its bytes are still in the
   file, and the delete that it was dropped for may be gone.

A round skips what the previous round has processed: in segments that it knew, dead puts, and puts
of blobs whose delete it saw and found old enough. So a round costs what was added since, plus
reading the columns of the indexes.

Memory: about 120 bytes for each row of the range of buckets, as for a compaction task. Called by
`erase.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.build_key_index import open_index
from lithify.blobs.index_rows import join_rows, row_at
from lithify.blobs.record_fates import group_blobs
from lithify.blobs.records import BlobRecordKind
from lithify.blobs.validity_tasks import ROW_BYTES, read_part
from lithify.errors import Corrupt, UnsupportedVersion
from lithify.log.key_index.key_index import BUCKETS, COLUMNS, KeyRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lithify.blobs.build_key_index import IndexTask
    from lithify.blobs.erase.journal import EraseRound
    from lithify.blobs.index_rows import IndexRow

__all__ = ["ErasablePuts", "find_puts", "range_from"]

MEMORY_BYTES = 64 * 2**20
_BUCKET_SHIFT = np.uint64(56)
_LATER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ErasablePuts:
    """The puts to erase in a range of buckets, in the order of positions."""

    puts: tuple[tuple[str, IndexRow], ...]
    """(name of the segment, put)."""
    rows: int
    """Number of rows read."""
    oldest_delete_ms: int
    """Of the deletes that are not old enough yet; 2^63-1: there are none."""
    active: bool
    """Whether the active segment has a put to erase, once it is sealed."""


def range_from(indexes: Sequence[IndexTask], first: int) -> int:
    """Where a range of buckets that begins at `first` ends, so that its rows fit in memory."""
    rows = 0
    for task in indexes:
        try:
            with open_index(task) as index:
                rows += index.rows
        except (Corrupt, UnsupportedVersion):
            rows += task.segment.entries  # The index will be rebuilt.
    width = BUCKETS * (MEMORY_BYTES // ROW_BYTES) // max(1, rows)
    return min(BUCKETS, first + max(1, width))


def find_puts(
    indexes: Sequence[IndexTask], recent: KeyRows, now: EraseRound, done: EraseRound | None
) -> ErasablePuts:
    """Search all sealed segments, in position order, and the rows of the active one.

    Returns puts in segments of the round `now`, in its range of buckets, above its `after`.
    """
    parts, dead, owners = [], [], []
    for number, task in enumerate(indexes):
        rows, is_dead = read_part(task, now.first, now.stop, every=True)
        parts.append(rows)
        dead.append(is_dead)
        owners.append(np.full(len(rows), number, np.int64))
    buckets = recent.hash_high >> _BUCKET_SHIFT
    inside = (buckets >= now.first) & (buckets < now.stop)
    parts.append(KeyRows(**{name: getattr(recent, name)[inside] for name in COLUMNS}))
    dead.append(np.zeros(len(parts[-1]), np.bool_))
    owners.append(np.full(len(parts[-1]), len(indexes), np.int64))
    rows, is_dead, owner = join_rows(parts), np.concatenate(dead), np.concatenate(owners)
    gone, gone_before, oldest_ms = _judge(rows, is_dead, now, done)
    keys = [_key(task) for task in indexes]
    of_round = np.array([key in now.segments for key in keys] + [False])
    known = np.array([done is not None and key in done.segments for key in keys] + [False])
    is_put = rows.flags == BlobRecordKind.PUT
    wanted = is_put & (is_dead | gone) & ~(known[owner] & (is_dead | gone_before))
    chosen = np.flatnonzero(wanted & of_round[owner] & (rows.position > now.after))
    chosen = chosen[np.argsort(rows.position[chosen])]
    puts = tuple(
        (indexes[owner.item(row)].segment.name, row_at(rows, row)) for row in chosen.tolist()
    )
    active = bool((wanted & (owner == len(indexes))).any())
    return ErasablePuts(puts, len(rows), oldest_ms, active)


def _key(task: IndexTask) -> tuple[str, str]:
    segment = task.segment
    return segment.name, segment.dead.name if segment.dead else ""


def _judge(
    rows: KeyRows, dead: NDArray[np.bool_], now: EraseRound, done: EraseRound | None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], int]:
    """(of a gone blob, of one already gone in the previous round, oldest other delete)."""
    gone, gone_before = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    live = np.flatnonzero(~dead)
    if not len(live):
        return gone, gone_before, _LATER
    live, begins = group_blobs(rows.hash_high, rows.hash_low, live)
    ends = np.append(begins[1:], len(live))
    newest = live[ends - 1]
    is_delete = rows.flags[newest] == BlobRecordKind.DELETE
    times = rows.publish_ms[newest]
    is_gone = is_delete & (times < now.deleted_before_ms)
    gone[live] = np.repeat(is_gone, ends - begins)
    if done is not None:
        was_gone = (times < done.deleted_before_ms) & (rows.position[newest] <= done.last_position)
        gone_before[live] = np.repeat(is_gone & was_gone, ends - begins)
    waiting = times[is_delete & ~is_gone]
    return gone, gone_before, int(waiting.min()) if len(waiting) else _LATER
