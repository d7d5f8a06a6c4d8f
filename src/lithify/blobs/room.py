"""Room in a blob store: how much of its capacity each kind of record may take.

Space is counted in bytes of segment files, and the active segment as if it were sealed now. So a
roll needs no free segment: it adds the header and the footer of one more file.

| record | is refused unless |
|---|---|
| put | after it there is still room for one delete of each entry, and for `changes_bytes` |
| ttl, undelete | it fits into the capacity |
| delete | never refused |

1. A blob takes one delete until it is undeleted. There are no more blobs than live entries, which
   the manifest counts: so a store that is full of puts has room for a delete of each of them.
2. `changes_bytes`, a sixteenth of a segment, is what ttls and undeletes find in a full store. A
   change makes the one before it dead, so that a run gives its room back.
3. Deletes go beyond the capacity, by at most one delete a blob, only where their room was taken: by
   ttls and undeletes, by ids of more than `ID_BYTES` bytes, or in a store that was filled by a
   version that kept less. Refused, they would leave a store that nobody could empty.

Pure. Called by the writer, and by a copy before it writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.blobs.index import RECENT_ROWS_MAX
from lithify.blobs.records import Kind
from lithify.log.frame import HEADER_BYTES
from lithify.log.segment import SEGMENT_HEADER_BYTES

if TYPE_CHECKING:
    from lithify.blobs.settings import Shape

__all__ = ["DELETE_BYTES", "Use", "delete_reserve_bytes", "has_room"]

ID_BYTES = 32
"""Of an id that the store makes."""
DELETE_BYTES = HEADER_BYTES + 32 + ID_BYTES
CHANGES_SHARE = 16


@dataclass(frozen=True, slots=True)
class Use:
    """What a store has in it."""

    sealed_bytes: int
    """Of the files of sealed segments."""
    active_bytes: int
    """Of the active segment, which is not sealed."""
    entries: int
    """That no dead set names, parts included."""

    def with_record(self, shape: Shape, size: int, entries: int, *, rolls: bool) -> Use:
        """After a record of so many bytes and entries, in a segment of its own if it rolls."""
        if not rolls:
            return Use(self.sealed_bytes, self.active_bytes + size, self.entries + entries)
        return Use(
            self.sealed_bytes + self.active_bytes + shape.closing_bytes,
            SEGMENT_HEADER_BYTES + size,
            self.entries + entries,
        )

    def bytes(self, shape: Shape) -> int:
        """As if the active segment were sealed now."""
        return self.sealed_bytes + self.active_bytes + shape.closing_bytes


def delete_reserve_bytes(shape: Shape, entries: int) -> int:
    """What so many deletes take, with the segments that they fill."""
    frames = entries * DELETE_BYTES
    by_bytes = frames // (shape.record_bytes_max - DELETE_BYTES)
    segments = max(by_bytes, entries // RECENT_ROWS_MAX) + 1
    return frames + segments * (SEGMENT_HEADER_BYTES + shape.closing_bytes)


def has_room(shape: Shape, kind: Kind, after: Use) -> bool:
    """May a record of this kind be appended, if this is what there is after it?"""
    if kind is Kind.DELETE:
        return True
    needed = after.bytes(shape)
    if kind is Kind.PUT:
        needed += delete_reserve_bytes(shape, after.entries) + shape.segment_bytes // CHANGES_SHARE
    return needed <= shape.capacity_bytes
