"""The active segment of a log, and the generation that goes with it.

    durable  <=  visible  <=  written

The segment's writer counts what is written. What is durable is a mark of that writer, taken before
an fsync that succeeded. In mode `always` readers see what is durable, in the other modes what is
written.

A segment is **torn** while its file may have bytes behind the counted frames: part of a failed
write, or a footer that was not published. `repair` truncates them before the next write.

Manifest and active segment are replaced together, as one immutable `OpenGeneration`: a reader takes
a reference and needs no lock afterwards. Everything else here is used under the log's write lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import WriteFailed

if TYPE_CHECKING:
    from lithify.log.manifest import Manifest
    from lithify.log.segments.segment_file import SegmentWriter, WriterMark

__all__ = ["ActiveSegment", "OpenGeneration"]


class ActiveSegment:
    """Tracks what is written, durable and visible in the active segment."""

    __slots__ = ("durable", "flags", "torn", "visible", "writer")

    def __init__(self, writer: SegmentWriter, last_position: int, flags: int = 0) -> None:
        """`last_position` is the last position before this segment."""
        self.writer = writer
        self.flags = flags
        self.torn = False
        self.durable: WriterMark = writer.mark()
        last = writer.last_position if writer.entries else last_position
        self.visible = (writer.end, last)
        """(end of the readable frames, last readable position)."""

    @property
    def first_free(self) -> int:
        """The lowest position that an append may use."""
        writer = self.writer
        after = writer.last_position if writer.entries else self.visible[1]
        return max(after + 1, writer.header.first_position)

    @property
    def unsynced(self) -> bool:
        """Are there written bytes that are not durable?"""
        return self.writer.end != self.durable.end

    def set_durable(self, mark: WriterMark) -> None:
        """Record an fsync that succeeded and began after `mark` was taken."""
        self.durable = mark
        if mark.entries and mark.end > self.visible[0]:
            self.visible = (mark.end, mark.last_position)

    def rewind(self) -> None:
        """Go back to the durable state; the file still has the bytes after it."""
        self.writer.rewind(self.durable)
        self.torn = True

    def repair(self) -> None:
        """Truncate what is behind the counted frames; raises if that fails."""
        writer = self.writer
        try:
            writer.file.truncate(writer.end)
        except OSError as error:
            raise WriteFailed(writer.path, error) from error
        self.torn = False


@dataclass(frozen=True, slots=True)
class OpenGeneration:
    """A manifest, and the active segment that belongs to it."""

    manifest: Manifest
    active: ActiveSegment
