"""The cache of open segments and dead sets of a log, shared by its readers.

Opened segments stay open, with their block indexes, and dead sets stay in memory: as many as the
limits of `OpenSegments` allow. A segment in use is not closed.

With `cached`, nothing is opened and no read waits for the disk: `NotCached` is raised instead.

Called by snapshots (`reader.py`), by the log, and by tasks that read a dead set.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, MissingFile, ReadFailed
from lithify.fs import read_file
from lithify.log.dead_set.dead_set import DeadSet
from lithify.log.file_names import MANIFEST
from lithify.log.segments.block_index import BlockIndex
from lithify.log.segments.segment_file import read_blocks, read_footer, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.fs import File, FileSystem
    from lithify.log.manifest import DeadRef, SegmentRef

__all__ = ["CachedFile", "NotCached", "OpenSegment", "OpenSegments", "read_dead_set"]

DEAD_BYTES_MAX = 32 * 2**20
"""Dead sets in memory per log: eight segments of 256 MiB with half a million dead entries each."""


class NotCached(Exception):
    """A cached snapshot would have to read from the disk."""


class CachedFile:
    """The part of an open file that is in the page cache."""

    __slots__ = ("_file", "path")

    def __init__(self, file: File) -> None:
        self._file = file
        self.path = file.path

    def readinto(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Like the file's method, but raises `NotCached` instead of waiting for the disk."""
        try:
            return self._file.readinto_cached(buffer, offset)
        except BlockingIOError:
            raise NotCached from None


def read_dead_set(fs: FileSystem, directory: str, ref: DeadRef) -> DeadSet:
    """Read a dead set, verified against its entry in the manifest."""
    path = f"{directory}/{ref.name}"
    try:
        data = read_file(fs, path)
    except FileNotFoundError:
        raise MissingFile(path, f"{directory}/{MANIFEST}") from None
    except PermissionError as error:
        raise ReadFailed(path, 0, error) from error
    if len(data) != ref.file_bytes or crc32c(data) != ref.crc:
        raise DamagedFile(path, 0, "is not the dead set the manifest names")
    return DeadSet.from_bytes(data, ref.parts, path)


class OpenSegment:
    """A segment open for reading; a sealed one includes its block index."""

    __slots__ = ("blocks", "file", "frames_end", "users")

    def __init__(self, fs: FileSystem, directory: str, ref: SegmentRef) -> None:
        path = f"{directory}/{ref.name}"
        try:
            self.file: File = fs.open_read(path)
        except FileNotFoundError:
            raise MissingFile(path, f"{directory}/{MANIFEST}") from None
        except PermissionError as error:
            raise ReadFailed(path, 0, error) from error
        self.users = 0
        self.blocks = BlockIndex()
        self.frames_end = 0
        try:
            self._check(ref)
        except OSError as error:
            self.file.close()
            raise ReadFailed(path, 0, error) from error
        except BaseException:
            self.file.close()
            raise

    def _check(self, ref: SegmentRef) -> None:
        path = self.file.path
        header = read_header(self.file)
        if header.segment_id != ref.id:
            raise DamagedFile(path, 16, f"is segment {header.segment_id}, not {ref.id}")
        if not ref.sealed:
            return
        footer = read_footer(self.file)
        found = (footer.segment_id, footer.entries, footer.last_position, footer.file_bytes)
        if found != (ref.id, ref.entries, ref.last_position, ref.file_bytes):
            raise DamagedFile(path, footer.frames_end, "footer and manifest disagree")
        self.blocks = read_blocks(self.file, footer)
        self.frames_end = footer.frames_end


class OpenSegments:
    """Bounded caches of open segments and of their dead sets, shared by all readers of a log."""

    def __init__(self, fs: FileSystem, directory: str, limit: int) -> None:
        self._fs = fs
        self._directory = directory
        self.limit = limit
        """Number of segments kept open; may be changed at any time."""
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, bool], OpenSegment] = OrderedDict()
        self._dead: OrderedDict[str, DeadSet] = OrderedDict()
        self._dead_used: set[str] = set()
        self._closed = False

    @contextmanager
    def use(self, ref: SegmentRef, *, cached: bool = False) -> Iterator[OpenSegment]:
        """The open segment; it stays open until the block ends. See `acquire`."""
        segment = self.acquire(ref, cached=cached)
        try:
            yield segment
        finally:
            self.release(ref, segment)

    def acquire(self, ref: SegmentRef, *, cached: bool = False) -> OpenSegment:
        """The open segment; it stays open until it is released.

        With `cached` only if it is already open; otherwise raises `NotCached`.
        """
        key = ref.name, ref.sealed
        with self._lock:
            segment = self._open.get(key)
            if segment is not None:
                self._open.move_to_end(key)
                segment.users += 1
                return segment
        if cached:
            raise NotCached
        # Not under the lock, which an event loop may take: opening waits for the disk.
        opened = OpenSegment(self._fs, self._directory, ref)
        with self._lock:
            # Another thread may have opened it meanwhile, or closed the cache. Then the last user
            # of this one closes it.
            segment = self._open.get(key)
            if segment is None:
                segment = opened
                if not self._closed:
                    self._open[key] = opened
            segment.users += 1
            if len(self._open) > self.limit:
                self._evict(self.limit)
        if segment is not opened:
            opened.file.close()
        return segment

    def release(self, ref: SegmentRef, segment: OpenSegment) -> None:
        """Release a segment returned by `acquire`."""
        with self._lock:
            segment.users -= 1
            if not segment.users and self._open.get((ref.name, ref.sealed)) is not segment:
                segment.file.close()

    def dead_set(self, ref: DeadRef, *, cached: bool = False) -> DeadSet:
        """A dead set, read if necessary; with `cached`, raises `NotCached` instead of reading."""
        with self._lock:
            dead = self._dead.get(ref.name)
            if dead is not None:
                self._dead.move_to_end(ref.name)
                self._dead_used.add(ref.name)
                return dead
        if cached:
            raise NotCached
        # Not under the lock: reading a file twice is harmless, waiting under the lock is not.
        dead = read_dead_set(self._fs, self._directory, ref)
        with self._lock:
            self._dead[ref.name] = dead
            self._dead_used.add(ref.name)
            while sum(each.nbytes for each in self._dead.values()) > DEAD_BYTES_MAX:
                self._dead.popitem(last=False)
        return dead

    def forget_unused(self) -> None:
        """Drop the dead sets that were not used since the last call."""
        with self._lock:
            for name in self._dead.keys() - self._dead_used:
                del self._dead[name]
            self._dead_used.clear()

    def forget(self, name: str) -> None:
        """Close a segment, or drop a dead set, that is about to be deleted."""
        with self._lock:
            self._dead.pop(name, None)
            for sealed in (False, True):
                segment = self._open.pop((name, sealed), None)
                if segment is not None and not segment.users:
                    segment.file.close()

    def close(self) -> None:
        """Close all unused segments; the others are closed by their last user."""
        with self._lock:
            self._closed = True
            for segment in self._open.values():
                if not segment.users:
                    segment.file.close()
            self._open.clear()
            self._dead.clear()

    def _evict(self, limit: int) -> None:
        while len(self._open) > limit:
            unused = next((key for key, s in self._open.items() if not s.users), None)
            if unused is None:
                return
            self._open.pop(unused).file.close()
