"""Which records of a blob are live: the rule for one blob, and for arrays of rows.

The records of a blob are in the order of their positions. The **newest** one has its full state:
kind, expiry, life version, time. A blob is **expired** if the clock is past the newest expiry. It
is **gone** if the newest is a delete from before the retention. Both are strict: at that very
instant nothing is dropped.

| record | is live |
|---|---|
| the put | unless the blob is expired or gone |
| the newest, a ttl or an undelete | while the put is |
| the newest, a delete | while there is a put, and without one until it is gone or expired |
| all others | never: the newest one has their state |

1. Dead is final: a record that a run has dropped counts as absent.
2. A delete outlives its put by one run: while a put of its blob is live when a run begins, the run
   keeps the delete. So it is dropped only when no put is left that could come back.
3. Records that a run does not judge (the active segment) count when the newest is determined.

`judge_history` is the table in code, for one blob. `judge_rows` does the same for all blobs of a
range of hashes: sort by hash, stable in position order, find the last row and the last put of each
group, apply the table to whole arrays.

Pure; any module may call it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.records import BlobRecordKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "HistoryRecord",
    "RecordFate",
    "ValidityTerms",
    "group_blobs",
    "judge_history",
    "judge_rows",
]


class RecordFate(IntEnum):
    """The outcome for a record."""

    LIVE = 0
    DEAD_BEFORE = 1
    SUPERSEDED = 2
    EXPIRED = 3
    DELETED = 4
    TOMBSTONE = 5


@dataclass(frozen=True, slots=True)
class ValidityTerms:
    """The times by which records are judged."""

    as_of_ms: int
    deleted_before_ms: int
    """A delete from before this time is in effect: its blob is gone."""


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """The fields of a record that matter here."""

    kind: BlobRecordKind
    time_ms: int
    expiry_ms: int


def judge_history(history: Sequence[HistoryRecord], terms: ValidityTerms) -> list[RecordFate]:
    """The fates of one blob's records that were not dead before, oldest first."""
    if not history:
        return []
    newest = history[-1]
    expired = terms.as_of_ms > newest.expiry_ms
    gone = newest.kind is BlobRecordKind.DELETE and newest.time_ms < terms.deleted_before_ms
    puts = [number for number, each in enumerate(history) if each.kind is BlobRecordKind.PUT]
    fates = [RecordFate.SUPERSEDED] * len(history)
    if newest.kind is BlobRecordKind.DELETE:
        fates[-1] = RecordFate.TOMBSTONE if not puts and (gone or expired) else RecordFate.LIVE
    else:
        fates[-1] = RecordFate.LIVE if puts and not expired else RecordFate.EXPIRED
    if puts:
        fates[puts[-1]] = (
            RecordFate.EXPIRED if expired else RecordFate.DELETED if gone else RecordFate.LIVE
        )
    return fates


def group_blobs(
    high: NDArray[np.uint64], low: NDArray[np.uint64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(these rows by blob, where each blob begins in them); there is at least one row.

    The rows of one blob keep their order.
    """
    rows = rows[np.lexsort((low[rows], high[rows]))]
    changes = (np.diff(high[rows]) != 0) | (np.diff(low[rows]) != 0)
    return rows, np.flatnonzero(np.concatenate(([True], changes)))


def judge_rows(
    high: NDArray[np.uint64],
    low: NDArray[np.uint64],
    kinds: NDArray[np.uint16],
    times_ms: NDArray[np.int64],
    expiries_ms: NDArray[np.int64],
    fates: NDArray[np.uint8],
    terms: ValidityTerms,
) -> None:
    """Judge rows that are in the order of positions.

    `fates` has `LIVE` or `DEAD_BEFORE` for each row, and receives the outcome.
    """
    rows = np.flatnonzero(fates == RecordFate.LIVE)
    if not len(rows):
        return
    rows, begins = group_blobs(high, low, rows)
    lasts = np.append(begins[1:], len(rows)) - 1
    is_put = kinds[rows] == BlobRecordKind.PUT
    puts = np.maximum.reduceat(np.where(is_put, np.arange(len(rows)), -1), begins)
    newest = rows[lasts]
    expired = terms.as_of_ms > expiries_ms[newest]
    deleted = kinds[newest] == BlobRecordKind.DELETE
    gone = deleted & (times_ms[newest] < terms.deleted_before_ms)
    has_put = puts >= 0
    fates[rows] = RecordFate.SUPERSEDED
    delete_fate = np.where(~has_put & (gone | expired), RecordFate.TOMBSTONE, RecordFate.LIVE)
    other_fate = np.where(has_put & ~expired, RecordFate.LIVE, RecordFate.EXPIRED)
    fates[newest] = np.where(deleted, delete_fate, other_fate)
    put_fate = np.where(
        expired, RecordFate.EXPIRED, np.where(gone, RecordFate.DELETED, RecordFate.LIVE)
    )
    fates[rows[puts[has_put]]] = put_fate[has_put]
