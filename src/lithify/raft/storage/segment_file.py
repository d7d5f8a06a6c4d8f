"""A segment of a group: entries in a file of the log's own format.

The file has the format of `log/segments/segment_file.py`, kind "raft", with the term in place of
the time: its position is the index, `stamp` is term << 16 | kind << 8, the body is the payload. The
log id is the first 12 bytes of a hash of the group's name. Indexes ascend; an entry that overwrites
another one starts a new segment, whose higher number wins. A merged segment is of kind "raftlive":
it has only entries that were live, so nothing in it was ever overwritten.

The segment writer appends to the newest segment until it is full (`is_full`). Each flush ends with
block index and footer, so that a restart reads 80 bytes of a segment and not all of it; the next
flush starts by cutting them off. A crash in between leaves frames without a footer: recovery keeps
complete frames and cuts the rest, because everything that was not followed by a footer is still in
the write-ahead log.

Every CRC is checked when an entry is read or copied.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import Corrupt, DamagedFile
from lithify.log.manifest import SegmentRef
from lithify.log.recovery import count_frames, vouched_behind
from lithify.log.segments.frame_batch import FrameBatch
from lithify.log.segments.segment_file import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    SegmentWriter,
    read_blocks,
    read_footer,
    read_header,
)
from lithify.raft.core.values import fit
from lithify.raft.entry import Entry
from lithify.raft.storage.damage import intact_frames
from lithify.raft.storage.file_names import segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.fs import File, FileSystem
    from lithify.log.segments.block_index import BlockIndex
    from lithify.log.segments.scan import Frames
    from lithify.log.segments.segment_file import SegmentFooter

__all__ = [
    "KIND",
    "MERGED_KIND",
    "SegmentAppender",
    "SegmentFile",
    "SegmentLimits",
    "entries_of",
    "log_id_of",
    "ref_of",
]

KIND = "raft"
MERGED_KIND = "raftlive"
PAYLOAD_BYTES_MAX = 2**28


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """When a segment is full."""

    entries_max: int = 4096
    frame_bytes_max: int = 64_000_000


def log_id_of(group: str) -> bytes:
    """The log id in all segments of a group."""
    return hashlib.sha256(group.encode()).digest()[:12]


def ref_of(number: int, footer: SegmentFooter, name: str = "") -> SegmentRef:
    """The reference to a segment; `name` is that of a file that is not a segment yet."""
    ref = SegmentRef(footer.segment_id, name or segment_name(number), footer.first_position)
    return ref.sealed_by(footer)


def entries_of(frames: Frames) -> Iterator[Entry]:
    """Frames as entries."""
    for entry in frames.entries():
        yield Entry(entry.position, entry.time_ms, entry.body, entry.flags >> 8)


class SegmentFile:
    """A segment that is open for reading; call `open` first.

    `damaged` is called for each damaged place; intact entries are read all the same.
    """

    def __init__(self, fs: FileSystem, directory: str, ref: SegmentRef) -> None:
        self.file: File = fs.open_read(f"{directory}/{ref.name}")
        self.damaged: Callable[[Exception], None] = lambda _: None
        self._first = ref.first_position
        self._stop = SEGMENT_HEADER_BYTES + ref.frame_bytes
        self._blocks: BlockIndex | None = None
        self._opened = False

    def open(self) -> None:
        """Read the block index, once."""
        if not self._opened:
            self._blocks = self._read_blocks()
            self._opened = True

    def _read_blocks(self) -> BlockIndex | None:
        """The block index; None if frames must be scanned from the first on."""
        try:
            footer = read_footer(self.file)
            blocks = read_blocks(self.file, footer)
        except DamagedFile:
            # The segment writer is appending to it, perhaps since the footer was read. The frames
            # that the group knows of are there.
            damage: Corrupt | None
            try:
                writer, damage = count_frames(self.file, read_header(self.file), self._stop)
            except Corrupt as error:
                damage = error
            if damage is not None:
                self.damaged(damage)
                return None
            return writer.blocks
        # Not the group's value: the name may already lead to a merged file.
        self._stop = footer.frames_end
        return blocks

    def read(self, indexes: Sequence[int]) -> dict[int, Entry]:
        """The entries at these ascending indexes that are in the segment."""
        found: dict[int, Entry] = {}
        wanted = np.array(indexes, dtype=np.int64)
        at = 0
        while at < len(wanted):
            start, stop, after, last = self._block(int(wanted[at]))
            for frames in intact_frames(self.file, start, stop, after, self.damaged):
                keep = np.isin(frames.positions, wanted[at:], assume_unique=True)
                for entry in entries_of(frames.select(keep)):
                    found[entry.index] = entry
            # The block ends here: indexes that it does not have are not in the segment.
            at = max(at + 1, int(np.searchsorted(wanted, last, side="right")))
        return found

    def _block(self, index: int) -> tuple[int, int, int, int]:
        """(start, stop, index before the first, last index) of the block for an index."""
        if self._blocks is None:
            return SEGMENT_HEADER_BYTES, self._stop, self._first - 1, 2**62
        row = self._blocks.find_position(index)
        position, start = self._blocks.row(row)
        if row + 1 == len(self._blocks):
            return start, self._stop, position - 1, 2**62
        following, stop = self._blocks.row(row + 1)
        return start, min(self._stop, stop), position - 1, following - 1

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class SegmentAppender:
    """The newest segment of a group, open for the segment writer."""

    def __init__(
        self,
        number: int,
        writer: SegmentWriter,
        limits: SegmentLimits,
    ) -> None:
        """Use `create` or `reopen`."""
        self._writer = writer
        self._limits = limits
        self._synced = writer.end
        self.number = number

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        directory: str,
        group: str,
        number: int,
        first: int,
        limits: SegmentLimits,
    ) -> SegmentAppender:
        """Create a segment, whose indexes are all at or above `first`."""
        header = SegmentHeader(number, first, 0, KIND, log_id_of(group))
        writer = SegmentWriter.create(fs, f"{directory}/{segment_name(number)}", header)
        try:
            # Durable before a frame follows it, so that a bad header is always damage.
            writer.file.fsync()
        except BaseException:
            writer.file.close()
            raise
        return cls(number, writer, limits)

    @classmethod
    def reopen(
        cls, fs: FileSystem, directory: str, number: int, limits: SegmentLimits
    ) -> SegmentAppender | None:
        """Continue a segment, without its torn end; None if it has no frames."""
        path = f"{directory}/{segment_name(number)}"
        if fs.stat(path).size <= SEGMENT_HEADER_BYTES:
            return None
        file = fs.open_append(path)
        try:
            writer = _resume(file, read_header(file))
            if writer.end < file.size():
                file.truncate(writer.end)
            return cls(number, writer, limits)
        except BaseException:
            file.close()
            raise

    @property
    def last(self) -> int:
        """The highest index, -1 if there is none."""
        return self._writer.last_position

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self._writer.entries

    @property
    def frame_bytes(self) -> int:
        """The size of all frames."""
        return self._writer.end - SEGMENT_HEADER_BYTES

    @property
    def is_full(self) -> bool:
        """Is it full?"""
        return (
            self.entries >= self._limits.entries_max
            or self.frame_bytes >= self._limits.frame_bytes_max
        )

    def append(self, entries: Sequence[Entry]) -> int:
        """Write as many of the ascending entries as there is room for; returns their number."""
        room = self._limits.entries_max - self.entries
        space = max(1, self._limits.frame_bytes_max - self.frame_bytes)
        # The batch copies all that it gets.
        chosen = fit(list(entries[:room]), space)
        batch = FrameBatch(
            [entry.payload for entry in chosen],
            [entry.term for entry in chosen],
            [entry.kind << 8 for entry in chosen],
            0,
            [entry.index for entry in chosen],
            PAYLOAD_BYTES_MAX,
        )
        piece = batch.take(space, 0, 2**63 - 1, self._synced)
        self._writer.append_piece(piece)
        return len(piece.positions)

    def close(self) -> SegmentRef:
        """Make everything durable and close the file; returns the reference to the segment."""
        with self._writer.file as file:
            # A footer vouches for everything before it.
            file.fdatasync()
            footer = self._writer.seal()
        return ref_of(self.number, footer)

    def abandon(self) -> None:
        """Close the file after an error; its new entries are still in the write-ahead log."""
        self._writer.file.close()


def _resume(file: File, header: SegmentHeader) -> SegmentWriter:
    """A writer positioned after the last complete frame."""
    try:
        footer = read_footer(file)
        blocks = read_blocks(file, footer)
    except DamagedFile:
        writer, damage = count_frames(file, header, file.size())
        if damage is not None and vouched_behind(file, writer, file.size()) > writer.end:
            raise damage from None
        return writer
    writer = SegmentWriter(file, header)
    writer.blocks = blocks
    writer.end, writer.entries = footer.frames_end, footer.entries
    writer.first_position, writer.last_position = footer.first_position, footer.last_position
    writer.time_min, writer.time_max = footer.time_min, footer.time_max
    return writer
