"""Pins: claims on a generation, so that its files are not deleted under a reader.

A pin within the process that writes the log is an entry in a table. Another process that reads
leaves a small file `<token>.pin`, which it keeps locked; the operating system drops the lock when
that process dies, so a pin that can be locked by somebody else is stale and is removed.

A reading process first reads the manifest, then pins its generation, then reads the manifest
again: if the generation is still the same, every later publish, and so every reclaim, comes after
the pin and sees it; if not, it begins again.
"""

from __future__ import annotations

import errno
import json
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from lithify.fs import read_file
from lithify.log.file_names import FileKind, parse_name, pin_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.clock import Clock
    from lithify.fs import FileLock, FileSystem

__all__ = ["FilePin", "Pin", "PinInfo", "Pins", "read_pin_files"]

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class PinInfo:
    """A claim, for a list."""

    owner: str
    generation: int
    since_ms: int


class Pin:
    """A claim within this process; release it, or use it in a `with`."""

    __slots__ = ("_release", "info")

    def __init__(self, info: PinInfo, release: Callable[[Pin], None]) -> None:
        self.info = info
        self._release = release

    def release(self) -> None:
        """Give it up; a second call does nothing."""
        self._release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Pins:
    """The claims on one log that is open for writing."""

    def __init__(self, fs: FileSystem, directory: str, clock: Clock) -> None:
        self._fs = fs
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._held: set[Pin] = set()

    def pin(self, generation: Callable[[], int], owner: str) -> Pin:
        """Claim the generation that `generation()` tells, asked under the table's lock."""
        with self._lock:
            pin = Pin(PinInfo(owner, generation(), self._clock.now_ms()), self._drop)
            self._held.add(pin)
        return pin

    def _drop(self, pin: Pin) -> None:
        with self._lock:
            self._held.discard(pin)

    def list(self) -> list[PinInfo]:
        """All claims, of this process and others, oldest first."""
        with self._lock:
            found = [pin.info for pin in self._held]
        found += read_pin_files(self._fs, self._directory)
        return sorted(found, key=lambda info: (info.since_ms, info.owner))

    def oldest_generation(self) -> int | None:
        """The lowest generation that is claimed, or None."""
        return min((info.generation for info in self.list()), default=None)


class FilePin:
    """A claim of a process that only reads."""

    def __init__(self, fs: FileSystem, directory: str, token: str, info: PinInfo) -> None:
        self._fs = fs
        self._path = f"{directory}/{pin_name(token)}"
        text = json.dumps(
            {"owner": info.owner, "generation": info.generation, "since_ms": info.since_ms}
        )
        self._lock: FileLock | None
        try:
            self._lock = fs.lock(self._path, text)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            # One without a text claims every generation; see `read_pin_files`.
            self._lock = fs.lock(self._path, "")

    @property
    def held(self) -> bool:
        """False if a reclaim took the file for a stale one before it was locked.

        One that is locked and still has its name cannot be taken for stale any more.
        """
        return self._lock is not None and self._fs.exists(self._path)

    def release(self) -> None:
        """Give it up; a second call does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            try:
                # Its name may be gone with a reclaim, or with the whole directory.
                with suppress(FileNotFoundError):
                    self._fs.remove(self._path)
            finally:
                lock.release()


def read_pin_files(fs: FileSystem, directory: str) -> list[PinInfo]:
    """The claims of other processes; those of dead ones are removed."""
    found = []
    for name in fs.list(directory):
        if parse_name(name).kind is not FileKind.PIN:
            continue
        path = f"{directory}/{name}"
        lock = fs.lock(path, "")
        if lock is not None:
            fs.remove(path)
            lock.release()
            continue
        try:
            value = json.loads(read_file(fs, path))
            found.append(PinInfo(value["owner"], value["generation"], value["since_ms"]))
        except FileNotFoundError:
            continue
        except ValueError:
            # Locked but not yet written: it may be about any generation.
            found.append(PinInfo("a process that is just starting", 0, 0))
    return found
