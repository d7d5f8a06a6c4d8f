"""Check every byte of a log, without changing anything.

1. The manifest: readable, ids below the next one, only its last segment active, positions
   ascending from segment to segment, in the log and in the view.
2. Each sealed segment once, whether the log, the view or both refer to it: header and footer, then
   every frame. The counts must give exactly the block index and footer in the file, and match the
   counts in the manifest.
3. Each dead set: bytes and CRC as in the manifest, no position outside its segment, and as many
   dead entries and bytes as the manifest counts.
4. The active segment, by the rules of recovery: bytes that are not known durable may be torn, and
   are counted; bytes that are known durable may not.
5. Other files in the directory: retired files, and orphans.

Verification stops at the first damage: because of the order above, that is the one that causes the
others. Files of checked lines (journal, history) and side files are checked by their owners.

A log may be verified while another process writes it. The caller then holds a pin, because files
that are reclaimed meanwhile would be reported missing (`read_only_log.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import Corrupt, DamagedFile, LithifyError, ReadFailed
from lithify.log.file_names import MANIFEST, FileKind, is_set_aside, parse_name
from lithify.log.open_segments import OpenSegment, read_dead_set
from lithify.log.read_only_log import find_manifest, read_active
from lithify.log.recovery import count_frames, find_orphans
from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES, read_footer, read_header
from lithify.positions import NO_POSITION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.fs import FileSystem
    from lithify.log.dead_set.dead_set import DeadSet
    from lithify.log.manifest import DeadRef, Manifest, SegmentRef
    from lithify.log.segments.scan import Frames
    from lithify.log.segments.segment_file import SegmentFooter

__all__ = ["Verification", "verify_log"]


SET_ASIDE = "is a segment set aside: it has entries that the manifest does not name"


@dataclass(frozen=True, slots=True)
class Verification:
    """The result; all counts are of what was checked before the first damage."""

    directory: str
    generation: int
    segments: int
    """Segment files, sealed and active; one that is in both log and view counts once."""
    entries: int
    bytes: int
    dead_entries: int
    """Entries in dead sets; an entry that is dead in both log and view counts twice."""
    torn_bytes: int
    """Bytes behind the last good frame of the active segment; the next open truncates them."""
    retired: tuple[str, ...]
    """Files on disk that the next reclaim deletes."""
    orphans: tuple[str, ...]
    """Files on disk that no generation names; the next open for writing removes them."""
    warnings: tuple[str, ...]
    damage: LithifyError | None
    """The first damage, or `None`."""


def verify_log(
    fs: FileSystem, directory: str, progress: Callable[[int], None] = lambda _: None
) -> Verification:
    """Check every byte; `progress` is called with the number of bytes checked since the last call.

    Damage and unreadable files are part of the result. Raises `InvalidInput` if there is no log,
    and `UnsupportedVersion` if a file was written by a newer Lithify: that is not damage, and its
    contents cannot be verified here.
    """
    check = _Check(fs, directory, progress)
    damage: LithifyError | None = None
    try:
        check.run()
    except (Corrupt, ReadFailed) as found:
        damage = found
    except OSError as error:
        damage = ReadFailed(error.filename or directory, 0, error)
    return Verification(
        directory=directory,
        generation=check.generation,
        segments=check.segments,
        entries=check.entries,
        bytes=check.bytes,
        dead_entries=check.dead_entries,
        torn_bytes=check.torn_bytes,
        retired=check.retired,
        orphans=check.orphans,
        warnings=tuple(check.warnings),
        damage=damage,
    )


@dataclass(slots=True)
class _Dead:
    """A dead set, and the counts of the frames that it names."""

    ref: DeadRef
    path: str
    dead: DeadSet
    entries: int = 0
    bytes: int = 0
    parts: int = 0

    def add(self, frames: Frames) -> None:
        dead = self.dead.entries.contains_many(frames.positions)
        count = int(dead.sum())
        self.entries += count
        self.bytes += int(frames.lengths()[dead].sum()) + count * HEADER_BYTES
        self.parts += int(np.isin(frames.positions[~dead], self.dead.parts.positions).sum())


@dataclass(slots=True)
class _Check:
    """One pass over a log, and its counts so far."""

    fs: FileSystem
    directory: str
    progress: Callable[[int], None]
    generation: int = 0
    segments: int = 0
    entries: int = 0
    bytes: int = 0
    dead_entries: int = 0
    torn_bytes: int = 0
    retired: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)

    def run(self) -> None:
        manifest = find_manifest(self.fs, self.directory)
        self.generation = manifest.generation
        names = self.fs.list(self.directory)
        retired_names = {retired.name for retired in manifest.retired}
        self.retired = tuple(name for name in names if name in retired_names)
        self.orphans = tuple(find_orphans(manifest, names))
        self.warnings += [
            f"{name} {SET_ASIDE if is_set_aside(name) else 'is no file of Lithify'}"
            for name in names
            if parse_name(name).kind is FileKind.FOREIGN
        ]
        path = f"{self.directory}/{MANIFEST}"
        _check_manifest(manifest, path)
        self._count_bytes(self.fs.stat(path).size)
        by_name: dict[str, list[SegmentRef]] = {}
        for ref in manifest.all_segments():
            by_name.setdefault(ref.name, []).append(ref)
        for refs in by_name.values():
            if refs[0].sealed:
                self._check_sealed(refs, manifest)
        self._check_active(manifest)

    def _count_bytes(self, count: int) -> None:
        self.bytes += count
        self.progress(count)

    def _count_frames(self, frames: Frames) -> None:
        self.entries += len(frames)
        self._count_bytes(int(frames.lengths().sum()) + len(frames) * HEADER_BYTES)

    def _check_sealed(self, refs: Sequence[SegmentRef], manifest: Manifest) -> None:
        """Check one file, and all references to it in the manifest."""
        ref = refs[0]
        opened = OpenSegment(self.fs, self.directory, ref)
        with opened.file as file:
            header, footer = read_header(file), read_footer(file)
            if (header.kind, header.log_id) != (manifest.kind, manifest.log_id):
                raise DamagedFile(file.path, 40, "is a segment of another log")
            for each in refs:
                _check_counts(each, footer, file.path)
            dead = [self._read_dead(each) for each in refs if each.dead is not None]

            def on_frames(frames: Frames) -> None:
                self._count_frames(frames)
                for one in dead:
                    one.add(frames)

            writer, damage = count_frames(file, header, footer.frames_end, on_frames)
            if damage is not None:
                raise damage
            rows, counted = writer.footer()
            if opened.blocks.to_bytes() != rows:
                raise DamagedFile(file.path, footer.frames_end, "block index and frames disagree")
            _check_footer(footer, counted, file.path)
            self._count_bytes(footer.file_bytes - footer.frame_bytes)
        for one in dead:
            _check_dead(one)
            self.dead_entries += one.entries
            self._count_bytes(one.ref.file_bytes)
        self.segments += 1

    def _read_dead(self, ref: SegmentRef) -> _Dead:
        assert ref.dead is not None
        dead = read_dead_set(self.fs, self.directory, ref.dead)
        path = f"{self.directory}/{ref.dead.name}"
        first, last = dead.entries.first, dead.entries.last
        if first is not None and last is not None:
            outside = first < ref.first_position or last > ref.last_position
            if outside:
                raise DamagedFile(
                    path,
                    0,
                    f"names positions {first} … {last}, "
                    f"{ref.name} has {ref.first_position} … {ref.last_position}",
                )
        return _Dead(ref.dead, path, dead)

    def _check_active(self, manifest: Manifest) -> None:
        tail = read_active(self.fs, self.directory, manifest, self._count_frames)
        name = manifest.active.name
        if tail.writer.header.kind != manifest.kind:
            raise DamagedFile(f"{self.directory}/{name}", 40, "is a segment of another log")
        self.segments += 1
        self.torn_bytes = tail.torn_bytes
        self._count_bytes(tail.size - tail.writer.end + SEGMENT_HEADER_BYTES)
        if tail.torn_bytes:
            self.warnings.append(
                f"{name} has {tail.torn_bytes} torn bytes behind byte {tail.writer.end}; "
                "they were never acknowledged as durable"
            )


def _check_manifest(manifest: Manifest, path: str) -> None:
    """Check the manifest by itself."""
    if not manifest.segments or manifest.active.sealed:
        raise DamagedFile(path, 0, "names no active segment")
    for walk in (manifest.segments, manifest.view or ()):
        last = NO_POSITION
        for ref in walk:
            if ref.id >= manifest.next_segment_id:
                limit = f"the next one is {manifest.next_segment_id}"
                raise DamagedFile(path, 0, f"names segment {ref.id}, but {limit}")
            if not ref.sealed and ref is not manifest.active:
                raise DamagedFile(path, 0, f"{ref.name} is not sealed, though not the last one")
            if ref.first_position <= last:
                raise DamagedFile(
                    path,
                    0,
                    f"{ref.name} begins at position {ref.first_position}, "
                    f"the segment before it ends at {last}",
                )
            last = max(last, ref.last_position)


def _check_counts(ref: SegmentRef, footer: SegmentFooter, path: str) -> None:
    """Compare the manifest's entry of a segment with the segment's footer."""
    counts = {
        "entries": (ref.entries, footer.entries),
        "last_position": (ref.last_position, footer.last_position),
        "time_min": (ref.time_min, footer.time_min),
        "time_max": (ref.time_max, footer.time_max),
        "frame_bytes": (ref.frame_bytes, footer.frame_bytes),
        "file_bytes": (ref.file_bytes, footer.file_bytes),
    }
    for name, (manifest, stored) in counts.items():
        if manifest != stored:
            what = f"manifest says {name} is {manifest}, footer says {stored}"
            raise DamagedFile(path, footer.frames_end, what)
    if footer.entries and footer.first_position < ref.first_position:
        what = f"begins at position {footer.first_position}, manifest says {ref.first_position}"
        raise DamagedFile(path, footer.frames_end, what)


def _check_footer(footer: SegmentFooter, counted: SegmentFooter, path: str) -> None:
    """Compare a footer with the frames."""
    for each in fields(footer):
        stored, actual = getattr(footer, each.name), getattr(counted, each.name)
        if stored != actual:
            what = f"footer says {each.name} is {stored}, frames say {actual}"
            raise DamagedFile(path, footer.frames_end, what)


def _check_dead(dead: _Dead) -> None:
    """Compare the manifest's counts of a dead set with the frames it names."""
    if dead.parts != dead.ref.parts:
        what = f"names live slots of {dead.ref.parts} entries, {dead.parts} are there"
        raise DamagedFile(dead.path, 0, what)
    # The dead shares of partly live entries are counted as well; only the store can verify them.
    at_least = dead.parts > 0 and dead.bytes <= dead.ref.frame_bytes
    if dead.entries != dead.ref.entries or not (at_least or dead.bytes == dead.ref.frame_bytes):
        raise DamagedFile(
            dead.path,
            0,
            f"names {dead.entries} entries of {dead.bytes} bytes, "
            f"the manifest counts {dead.ref.entries} of {dead.ref.frame_bytes}",
        )
