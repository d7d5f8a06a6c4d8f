"""Capacity of a blob store: how much of it each kind of record may use.

Space is counted in bytes of segment files, the active segment as if it were sealed now. So a roll
needs no free segment: it adds the header and the footer of one more file.

| record | is refused unless |
|---|---|
| put | after it there is room for one delete per entry, and for `changes_bytes` |
| ttl, undelete | it fits into the capacity |
| delete | never refused |

1. A blob takes one delete until it is undeleted. The manifest counts live entries, and a store
   has at most as many blobs: so a store full of puts has room for a delete of each of them.
2. `changes_bytes`, a sixteenth of a segment, is the space for ttls and undeletes in a full store. A
   change makes the one before it dead, so that a run frees its space.
3. Deletes exceed the capacity by at most one delete per blob, and only if their space was used: by
   ttls and undeletes, by ids of more than `ID_BYTES` bytes, or in a store that was filled by a
   version that kept less. If they were refused, such a store could not be emptied.

Pure. Called by the writer, and by a copy before it writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.blobs.index import RECENT_ROWS_MAX
from lithify.blobs.records import BlobRecordKind
from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES

if TYPE_CHECKING:
    from lithify.blobs.settings import StoreShape

__all__ = ["DELETE_BYTES", "SpaceUse", "delete_reserve_bytes", "has_room"]

ID_BYTES = 32
"""Size of a generated id."""
DELETE_BYTES = HEADER_BYTES + 32 + ID_BYTES
CHANGES_SHARE = 16


@dataclass(frozen=True, slots=True)
class SpaceUse:
    """The space that a store uses."""

    sealed_bytes: int
    """Of the files of sealed segments."""
    active_bytes: int
    """Of the active segment, without footer."""
    entries: int
    """Entries that no dead set names, parts included."""

    def with_record(self, shape: StoreShape, size: int, entries: int, *, rolls: bool) -> SpaceUse:
        """The use after another record, which is in a new segment if it rolls."""
        if not rolls:
            return SpaceUse(self.sealed_bytes, self.active_bytes + size, self.entries + entries)
        return SpaceUse(
            self.sealed_bytes + self.active_bytes + shape.closing_bytes,
            SEGMENT_HEADER_BYTES + size,
            self.entries + entries,
        )

    def bytes(self, shape: StoreShape) -> int:
        """Total bytes if the active segment were sealed now."""
        return self.sealed_bytes + self.active_bytes + shape.closing_bytes


def delete_reserve_bytes(shape: StoreShape, entries: int) -> int:
    """The bytes of this many deletes, with the segments that they fill."""
    frames = entries * DELETE_BYTES
    by_bytes = frames // (shape.record_bytes_max - DELETE_BYTES)
    segments = max(by_bytes, entries // RECENT_ROWS_MAX) + 1
    return frames + segments * (SEGMENT_HEADER_BYTES + shape.closing_bytes)


def has_room(shape: StoreShape, kind: BlobRecordKind, after: SpaceUse) -> bool:
    """Whether a record of this kind may be appended, if `after` is the use with it."""
    if kind is BlobRecordKind.DELETE:
        return True
    needed = after.bytes(shape)
    if kind is BlobRecordKind.PUT:
        needed += delete_reserve_bytes(shape, after.entries) + shape.segment_bytes // CHANGES_SHARE
    return needed <= shape.capacity_bytes
