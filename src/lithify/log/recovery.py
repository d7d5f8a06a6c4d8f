"""Recovery: what `Log.open` does to a directory after a crash.

1. Read the manifest. A killed process may not have fsynced its directory: that fsync is made before
   a name is removed, otherwise before the first write (`manifest_publisher.py`). If there is no
   manifest and only an empty first segment, creation was interrupted and is repeated; anything else
   is reported as a loss.
2. Read the active segment and check every CRC, up to the first bad frame.
   a. No bad frame: a footer behind the frames (the crash came between sealing and publishing) is
      removed, and the segment stays active.
   b. A bad frame: are bytes at or behind it known durable? The manifest says so for `synced_bytes`,
      and every intact frame behind the bad one says so for its own `synced`. If they are, the file
      is damaged: `DamagedFrame`, and nothing is changed. If not, a crash tore the tail: it is
      truncated, and the truncation is made durable before anything is appended.
3. Fsync the bytes that the manifest does not record as durable: a killed process leaves them only
   in the operating system's cache.
4. Remove files that the manifest does not name: output of runs, and a new segment without entries.
   While a journal exists, rewritten segments and their side files are left to the journal's owner.
   No crash explains a segment of appends that has entries: the manifest is older, restored from a
   backup. The segment is renamed to `….seg.aside`, so that it is not overwritten, and reported.
5. Check that all files that the manifest names exist.

A crash during any of these steps leaves a state that the same steps accept.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import DamagedFile, DamagedFrame, MissingFile, NotASegment
from lithify.events import Event, OrphanRemoved, SetAside, TailCut
from lithify.log.file_names import JOURNAL, MANIFEST, FileKind, FileName, parse_name
from lithify.log.segments import frame_kernels
from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.segments.scan import scan_frames
from lithify.log.segments.segment_file import (
    SEGMENT_HEADER_BYTES,
    SegmentWriter,
    read_footer,
    read_header,
)
from lithify.positions import NO_POSITION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.fs import File, FileSystem
    from lithify.log.manifest import Manifest
    from lithify.log.segments.scan import Frames
    from lithify.log.segments.segment_file import SegmentHeader

__all__ = [
    "RecoveredActiveSegment",
    "RecoveredTail",
    "check_new_directory",
    "count_frames",
    "find_orphans",
    "last_before_active",
    "read_tail",
    "recover_tail",
    "remove_orphans",
    "remove_unpublished",
    "vouched_behind",
]

_WINDOW_BYTES = 64 * 2**20

_KEPT = frozenset(
    {
        FileKind.LOCK,
        FileKind.MANIFEST,
        FileKind.JOURNAL,
        FileKind.HISTORY,
        FileKind.ERASE,
        FileKind.REPLICATION,
        FileKind.MARK,
    }
)
_NOT_OF_A_LOG = frozenset(
    {FileKind.FOREIGN, FileKind.LOCK, FileKind.TEMPORARY, FileKind.PIN, FileKind.MARK}
)
_JOURNALLED = frozenset({FileKind.REWRITTEN, FileKind.DEAD_SET, FileKind.KEY_INDEX})


@dataclass(frozen=True, slots=True)
class RecoveredActiveSegment:
    """The active segment as read from disk."""

    writer: SegmentWriter
    """Counts the good frames; its end is the end of the last one."""
    size: int
    """Size of the file."""
    damage: DamagedFrame | None
    """The first bad frame; a crash may have torn it, because it is not known durable."""

    @property
    def torn_bytes(self) -> int:
        """Bytes behind the good frames that are neither frames nor a footer."""
        return 0 if self.damage is None else self.size - self.writer.end


@dataclass(frozen=True, slots=True)
class RecoveredTail:
    """The active segment, ready for appends."""

    writer: SegmentWriter
    flags: int
    """Union of the flags of its entries."""
    cut: TailCut | None


def check_new_directory(fs: FileSystem, directory: str) -> None:
    """Raise if the files show that a log existed here and lost its manifest."""
    for name in fs.list(directory):
        parsed = parse_name(name)
        path = f"{directory}/{name}"
        if parsed.kind in _NOT_OF_A_LOG:
            continue
        first = parsed.kind is FileKind.SEGMENT and parsed.segment_id == 1
        if not (first and fs.stat(path).size <= SEGMENT_HEADER_BYTES):
            raise MissingFile(f"{directory}/{MANIFEST}", path)


def count_frames(
    file: File,
    header: SegmentHeader,
    stop: int,
    on_frames: Callable[[Frames], None] = lambda _: None,
) -> tuple[SegmentWriter, DamagedFrame | None]:
    """Count the good frames of `file[:stop]`; also returns the error of the first bad one, if any.

    `on_frames` is called with the frames of each piece after they are counted.
    """
    writer = SegmentWriter(file, header)
    try:
        for frames in scan_frames(file, SEGMENT_HEADER_BYTES, stop, header.first_position - 1):
            writer.count_frames(frames.positions, frames.offsets + frames.base, frames.times())
            writer.end = frames.base + int(frames.offsets[-1] + frames.lengths()[-1]) + HEADER_BYTES
            on_frames(frames)
    except DamagedFrame as damage:
        return writer, damage
    return writer, None


def read_tail(
    file: File, manifest: Manifest, on_frames: Callable[[Frames], None] = lambda _: None
) -> RecoveredActiveSegment:
    """Step 2, read-only: find the end of the good frames, and check that the log may end there.

    The size of the file is taken once, before anything is read. Another process may be appending,
    and a frame written meanwhile could mark bytes as durable that were unwritten when they were
    read.
    """
    size = file.size()
    if size < SEGMENT_HEADER_BYTES:
        raise NotASegment(file.path, 0, "is shorter than a segment header")
    header = read_header(file)
    if (header.segment_id, header.log_id) != (manifest.active.id, manifest.log_id):
        raise DamagedFile(file.path, 16, f"is not segment {manifest.active.id} of this log")
    writer, damage = count_frames(file, header, size, on_frames)
    if damage is not None and _has_footer(file, writer):
        damage = None
    vouched = manifest.synced_bytes
    if damage is not None:
        vouched = max(vouched, vouched_behind(file, writer, size))
    if vouched > writer.end:
        what = damage.what if damage is not None else f"file has only {size} bytes"
        raise DamagedFrame(
            file.path,
            writer.end,
            f"{what}; its writer knew the first {vouched} bytes to be durable",
            writer.last_position if writer.entries else None,
        )
    return RecoveredActiveSegment(writer, size, damage)


def _has_footer(file: File, writer: SegmentWriter) -> bool:
    """Is what follows the good frames the footer of exactly these?

    Checked only where frames end: a footer inside the body of an entry is not one.
    """
    try:
        return read_footer(file).frames_end == writer.end
    except DamagedFile:
        return False


def last_before_active(manifest: Manifest) -> int:
    """The last position assigned before the active segment."""
    known = [s.last_position for s in manifest.all_segments() if s.sealed]
    if manifest.last_position < manifest.active.first_position:
        # All segments before the active one may have been dropped.
        known.append(manifest.last_position)
    return max([*known, manifest.horizon, NO_POSITION])


def recover_tail(fs: FileSystem, directory: str, manifest: Manifest) -> RecoveredTail:
    """Steps 2 and 3."""
    path = f"{directory}/{manifest.active.name}"
    if not fs.exists(path):
        raise MissingFile(path, f"{directory}/{MANIFEST}")
    file = fs.open_append(path)
    flags = 0

    def on_frames(frames: Frames) -> None:
        nonlocal flags
        flags |= int(np.bitwise_or.reduce(frames.flags()))

    try:
        tail = read_tail(file, manifest, on_frames)
        writer = tail.writer
        if tail.size != writer.end:
            file.truncate(writer.end)
        if tail.size != writer.end or writer.end > manifest.synced_bytes:
            file.fsync()
    except BaseException:
        file.close()
        raise
    if tail.damage is None:
        return RecoveredTail(writer, flags, None)
    last = writer.last_position if writer.entries else manifest.last_position
    name = manifest.active.name
    cut = TailCut(directory, name, writer.end, tail.torn_bytes, last)
    return RecoveredTail(writer, flags, cut)


def vouched_behind(file: File, writer: SegmentWriter, size: int) -> int:
    """The highest `synced` of the intact frames behind the damage.

    The search uses overlapping windows, so that memory stays bounded; it may miss a frame longer
    than half a window.
    """
    vouched, at = 0, writer.end + 1
    while at + HEADER_BYTES <= size:
        window = np.empty(min(_WINDOW_BYTES, size - at), dtype=np.uint8)
        file.readinto(window.data, at)
        inside = 0
        while True:
            found, synced = frame_kernels.resync(window, inside, len(window), writer.last_position)
            if found < 0:
                break
            vouched = max(vouched, int(synced))
            inside = found + 1
        if at + len(window) >= size:
            break
        at += len(window) // 2
    return vouched


def find_orphans(manifest: Manifest, names: Sequence[str]) -> list[str]:
    """File names that neither the manifest nor a journal accounts for."""
    known = manifest.sizes().keys() | {retired.name for retired in manifest.retired}
    journal = JOURNAL in names
    unknown = [parse_name(name) for name in names if name not in known]
    return [file.name for file in unknown if _is_orphan(file, known, journal=journal)]


def remove_orphans(fs: FileSystem, directory: str, manifest: Manifest) -> list[Event]:
    """Steps 4 and 5."""
    names = fs.list(directory)
    present = frozenset(names)
    for name in manifest.sizes():
        if name not in present:
            raise MissingFile(f"{directory}/{name}", f"{directory}/{MANIFEST}")
    orphans = find_orphans(manifest, names)
    unexplained = [name for name in orphans if _has_entries(fs, directory, name)]
    if orphans:
        # The previous generation may name them; without this fsync a power cut could restore it.
        fs.sync_dir(directory)
    for name in orphans:
        if name in unexplained:
            fs.rename(f"{directory}/{name}", f"{directory}/{_aside_name(name, present)}")
        else:
            fs.remove(f"{directory}/{name}")
    if orphans:
        fs.sync_dir(directory)
    return [
        SetAside(directory, name) if name in unexplained else OrphanRemoved(directory, name)
        for name in orphans
    ]


def _has_entries(fs: FileSystem, directory: str, name: str) -> bool:
    """Is it a segment of appends with more than a header?"""
    if parse_name(name).kind is not FileKind.SEGMENT:
        return False
    return fs.stat(f"{directory}/{name}").size > SEGMENT_HEADER_BYTES


def _aside_name(name: str, present: frozenset[str]) -> str:
    numbered = (f"{name}.aside{number or ''}" for number in itertools.count())
    return next(each for each in numbered if each not in present)


def remove_unpublished(fs: FileSystem, directory: str, manifest: Manifest) -> list[Event]:
    """Remove output of runs that the manifest does not name; the log may be in use meanwhile."""
    known = manifest.sizes().keys() | {retired.name for retired in manifest.retired}
    present = [parse_name(name) for name in fs.list(directory)]
    orphans = [
        file.name
        for file in present
        if _is_of_runs(file) and _is_orphan(file, known, journal=False)
    ]
    for name in orphans:
        # A partial index may have been renamed to its final name meanwhile.
        with suppress(FileNotFoundError):
            fs.remove(f"{directory}/{name}")
    return [OrphanRemoved(directory, name) for name in orphans]


def _is_of_runs(file: FileName) -> bool:
    """Is it written by runs only? Other temporary files may belong to a replacement in progress."""
    is_half_an_index = file.kind is FileKind.TEMPORARY and ".keys." in file.name
    return file.kind in _JOURNALLED or is_half_an_index


def _is_orphan(file: FileName, known: set[str], *, journal: bool) -> bool:
    if file.kind in _KEPT or file.kind in (FileKind.FOREIGN, FileKind.PIN) or file.name in known:
        return False
    if file.kind is FileKind.KEY_INDEX and file.name.removesuffix(".keys") + ".seg" in known:
        return False
    return not (journal and file.kind in _JOURNALLED)
