"""The active segment of a log, and the generation that goes with it.

    durable  <=  visible  <=  written

What is written is counted by the segment's writer. What is durable is a mark of that writer, taken
before an fsync that succeeded. What readers see is, in mode `always`, what is durable, in the other
modes what is written.

A segment is **torn** while its file may have bytes behind the frames that are counted: part of a
failed write, or a footer that was not published. `repair` cuts them off before the next write.

Manifest and active segment are replaced together, as one `OpenGeneration`, which never changes: a
reader takes it and needs no lock afterwards. Everything else here is used under the log's write
lock.
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
    """What of one segment is written, what is durable, and what may be read."""

    __slots__ = ("durable", "flags", "torn", "visible", "writer")

    def __init__(self, writer: SegmentWriter, last_position: int, flags: int = 0) -> None:
        """`last_position` is the last one before this segment."""
        self.writer = writer
        self.flags = flags
        self.torn = False
        self.durable: WriterMark = writer.mark()
        last = writer.last_position if writer.entries else last_position
        self.visible = (writer.end, last)
        """Where the frames end that may be read, and the last position to be read."""

    @property
    def first_free(self) -> int:
        """The lowest position that an append may take."""
        writer = self.writer
        after = writer.last_position if writer.entries else self.visible[1]
        return max(after + 1, writer.header.first_position)

    @property
    def unsynced(self) -> bool:
        """Is something written that is not durable?"""
        return self.writer.end != self.durable.end

    def set_durable(self, mark: WriterMark) -> None:
        """An fsync that began after this mark was taken has succeeded."""
        self.durable = mark
        if mark.entries and mark.end > self.visible[0]:
            self.visible = (mark.end, mark.last_position)

    def rewind(self) -> None:
        """Go back to what is durable; the file still has more."""
        self.writer.rewind(self.durable)
        self.torn = True

    def repair(self) -> None:
        """Cut off what is behind the counted frames; raises while that cannot be done."""
        writer = self.writer
        try:
            writer.file.truncate(writer.end)
        except OSError as error:
            raise WriteFailed(writer.path, error) from error
        self.torn = False


@dataclass(frozen=True, slots=True)
class OpenGeneration:
    """A generation, and the active segment that goes with it."""

    manifest: Manifest
    active: ActiveSegment
