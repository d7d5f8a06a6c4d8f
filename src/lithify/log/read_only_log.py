"""Read a log that another process may be writing.

    with open_readonly(fs, "data/orders", owner="report", clock=clock, token=token) as snapshot:
        for entry in snapshot.read(): ...

1. Read the manifest, pin its generation with a file (`pins.py`), and read the manifest again. If a
   publish came in between, or a reclaim removed the new pin as stale, repeat.
2. Read the active segment to its last good frame, with the same rules as recovery: a bad tail that
   is not known durable is the end, because it may be a frame being written; any other bad frame is
   `DamagedFrame`.
3. Return the snapshot. Leaving the block removes the pin.

Only the pin is ever written. Where even that is not permitted (a read-only file system, a directory
of another user), the log is read without a pin: a reclaim meanwhile makes reads fail with
`MissingFile`, never return wrong data.

A snapshot may have entries that their writer has not made durable yet, and that a crash may remove.
Any process may call this, including the writer.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput, MissingFile, NoSuchLog
from lithify.log.file_names import MANIFEST
from lithify.log.manifest import Manifest, read_manifest
from lithify.log.open_segments import OpenSegments
from lithify.log.pins import FilePin, PinInfo, read_pin_files
from lithify.log.reader import ActiveTail, Snapshot
from lithify.log.recovery import check_new_directory, last_before_active, read_tail
from lithify.settings import LogSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.log.recovery import RecoveredActiveSegment
    from lithify.log.segments.scan import Frames

__all__ = [
    "find_manifest",
    "list_pins",
    "open_readonly",
    "pinned_generation",
    "pinned_manifest",
    "read_active",
]

_NOT_ALLOWED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def find_manifest(fs: FileSystem, directory: str) -> Manifest:
    """Read the current generation; `InvalidInput` if the directory has no log or is missing.

    Segments without a manifest are a log that has lost it: `MissingFile`.
    """
    try:
        return read_manifest(fs, directory)
    except (FileNotFoundError, NotADirectoryError):
        if not fs.exists(directory):
            raise NoSuchLog(f"{directory} does not exist") from None
        if not fs.stat(directory).is_dir:
            raise InvalidInput(f"{directory} is a file, a log is a directory") from None
        check_new_directory(fs, directory)
        raise InvalidInput(f"{directory} holds no log: it has no {MANIFEST}") from None


@contextmanager
def pinned_manifest(
    fs: FileSystem, directory: str, *, owner: str, clock: Clock, token: str
) -> Iterator[Manifest]:
    """Step 1: pin the generation, so that its files are not deleted until the block ends.

    `token` names the pin's file and must be unique among concurrent readers.
    """
    while True:
        manifest = find_manifest(fs, directory)
        info = PinInfo(owner, manifest.generation, clock.now_ms())
        try:
            pin = FilePin(fs, directory, token, info)
        except OSError as error:
            if error.errno not in _NOT_ALLOWED:
                raise
            yield manifest
            return
        try:
            if pin.held and find_manifest(fs, directory).generation == manifest.generation:
                yield manifest
                return
        finally:
            pin.release()


@contextmanager
def pinned_generation(
    fs: FileSystem, directory: str, generation: int, *, owner: str, clock: Clock, token: str
) -> Iterator[None]:
    """Pin a generation whose manifest was read before, by this process or by another one.

    Files that a reclaim has already deleted stay deleted: opening one raises `MissingFile`. All
    others are kept until the block ends.
    """
    info = PinInfo(owner, generation, clock.now_ms())
    while True:
        try:
            pin = FilePin(fs, directory, token, info)
        except OSError as error:
            if error.errno not in _NOT_ALLOWED:
                raise
            yield
            return
        try:
            if pin.held:
                yield
                return
        finally:
            pin.release()


def list_pins(fs: FileSystem, directory: str) -> list[PinInfo]:
    """The pins of other processes; none if this process may not lock them.

    Only a process that can lock a pin can tell live readers from dead ones.
    """
    try:
        return read_pin_files(fs, directory)
    except OSError as error:
        if error.errno not in _NOT_ALLOWED:
            raise
        return []


def read_active(
    fs: FileSystem,
    directory: str,
    manifest: Manifest,
    on_frames: Callable[[Frames], None] = lambda _: None,
) -> RecoveredActiveSegment:
    """Step 2; `on_frames` is called with the frames of each piece."""
    path = f"{directory}/{manifest.active.name}"
    try:
        file = fs.open_read(path)
    except FileNotFoundError:
        raise MissingFile(path, f"{directory}/{MANIFEST}") from None
    with file:
        return read_tail(file, manifest, on_frames)


@contextmanager
def open_readonly(
    fs: FileSystem, directory: str, *, owner: str, clock: Clock, token: str
) -> Iterator[Snapshot]:
    """The current contents, pinned until the block ends; see the module."""
    with pinned_manifest(fs, directory, owner=owner, clock=clock, token=token) as manifest:
        writer = read_active(fs, directory, manifest).writer
        last = writer.last_position if writer.entries else last_before_active(manifest)
        segments = OpenSegments(fs, directory, LogSettings().open_files_max)
        try:
            tail = ActiveTail(writer.blocks, writer.end, last)
            yield Snapshot(manifest, segments, tail)
        finally:
            segments.close()
