"""Reading a log that another process may be writing.

    with open_readonly(fs, "data/orders", owner="report", clock=clock, token=token) as snapshot:
        for entry in snapshot.read(): ...

1. The manifest is read, its generation pinned by a file (`pins.py`), and the manifest read again.
   If a publish came in between, or a reclaim took the new pin for a stale one, both are done again.
2. The active segment is read through to its last good frame, as recovery does and with the same
   judgement: a bad tail that nobody vouches for is the end, for it may be a frame that is being
   written; anything else is `DamagedFrame`.
3. The snapshot is handed out. Leaving the block removes the pin.

Nothing but the pin is ever written. Where even that is not allowed (a read-only file system, a
directory of another user), the log is read without one: a reclaim meanwhile makes reads fail with
`MissingFile`, never answer wrongly.

A snapshot may show entries that their writer has not made durable yet, and that a crash may take.
Any process may call this, also the one that writes.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput, MissingFile, NoSuchLog
from lithify.log.file_names import MANIFEST
from lithify.log.manifest import Manifest, read_manifest
from lithify.log.pins import FilePin, PinInfo, read_pin_files
from lithify.log.reader import ActiveTail, OpenSegments, Snapshot
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
    """The generation that rules now; `InvalidInput` if the directory holds no log or is missing.

    Segments without a manifest are a log that lost it: `MissingFile`.
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
    """Step 1: no file of this generation is deleted until the block ends.

    `token` names the pin's file; no other reader may use the same at the same time.
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
    """Claim a generation that was read before, by this process or by another one.

    What a reclaim has already deleted stays so: who opens a file of it may get `MissingFile`. What
    is there stays there until the block ends.
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
    """The claims of other processes; none where this one may not ask for them.

    Only who can lock a pin can tell the living from the dead.
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
    see: Callable[[Frames], None] = lambda _: None,
) -> RecoveredActiveSegment:
    """Step 2; `see` is called with the frames, piece by piece."""
    path = f"{directory}/{manifest.active.name}"
    try:
        file = fs.open_read(path)
    except FileNotFoundError:
        raise MissingFile(path, f"{directory}/{MANIFEST}") from None
    with file:
        return read_tail(file, manifest, see)


@contextmanager
def open_readonly(
    fs: FileSystem, directory: str, *, owner: str, clock: Clock, token: str
) -> Iterator[Snapshot]:
    """What the log holds now, pinned until the block ends; see the module."""
    with pinned_manifest(fs, directory, owner=owner, clock=clock, token=token) as manifest:
        writer = read_active(fs, directory, manifest).writer
        last = writer.last_position if writer.entries else last_before_active(manifest)
        segments = OpenSegments(fs, directory, LogSettings().open_files_max)
        try:
            tail = ActiveTail(writer.blocks, writer.end, last)
            yield Snapshot(manifest, segments, tail)
        finally:
            segments.close()
