"""Visibility: what a read of a blob returns, by its newest record and whether its put exists.

| state | none | expired | deleted | all |
|---|---|---|---|---|
| live | ok | ok | ok | ok |
| expired | `BlobExpired` | ok | `BlobExpired` | ok |
| deleted, expired or not | `BlobDeleted` | `BlobDeleted` | ok | ok |
| deleted, put compacted away | `BlobDeleted` | `BlobDeleted` | `BlobDeleted` | `BlobDeleted` |
| anything else | `BlobNotFound` | | | |

The columns are the values of `Include`: the blobs that the caller asks to see besides live ones.
Deleted is checked before expired. A blob expires after its expiry time, not at it.

Pure. Called by the store.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from lithify.blobs.content.reader import BlobInfo
from lithify.blobs.errors import BlobDeleted, BlobError, BlobExpired, BlobNotFound
from lithify.blobs.records import BlobRecordKind

if TYPE_CHECKING:
    from lithify.blobs.index import FoundRecords
    from lithify.blobs.index_rows import IndexRow
    from lithify.blobs.records import PutRecord
    from lithify.log.manifest import SegmentRef

__all__ = ["Include", "info_of", "is_seen", "visibility_of"]


class Include(StrEnum):
    """Blobs that a read returns besides live ones."""

    NONE = "none"
    EXPIRED = "expired"
    DELETED = "deleted"
    ALL = "all"


def visibility_of(
    blob_id: str, found: FoundRecords | None, include: Include, now_ms: int
) -> tuple[IndexRow, SegmentRef]:
    """The put and its segment; raises the reason why the caller may not see them."""
    if found is None:
        raise BlobNotFound(blob_id)
    if found.newest.kind is BlobRecordKind.DELETE:
        if found.put is None or include not in (Include.DELETED, Include.ALL):
            raise BlobDeleted(blob_id)
    elif found.put is None:
        raise BlobNotFound(blob_id)
    elif now_ms > found.newest.expiry_ms and include not in (Include.EXPIRED, Include.ALL):
        raise BlobExpired(blob_id)
    assert found.segment is not None
    return found.put, found.segment


def is_seen(found: FoundRecords, include: Include, now_ms: int) -> bool:
    """Whether `visibility_of` would return the put."""
    try:
        visibility_of("", found, include, now_ms)
    except BlobError:
        return False
    return True


def info_of(put: PutRecord, row: IndexRow, found: FoundRecords) -> BlobInfo:
    """The current state of the blob."""
    newest = found.newest
    return BlobInfo(
        put,
        row.position,
        newest.expiry_ms,
        newest.life_version,
        deleted=newest.kind is BlobRecordKind.DELETE,
        changed_ms=newest.time_ms,
    )
