"""Pins: claims on a generation that keep its files from being deleted while a reader uses them.

A pin within the process that writes the log is an entry in a table. Another process that reads
creates a small file `<token>.pin` and keeps it locked. The operating system drops the lock when
that process dies, so a pin that another process can lock is stale and is removed.

A reading process reads the manifest, pins its generation, and reads the manifest again. If the
generation is unchanged, every later publish, and so every reclaim, comes after the pin and sees
it. If not, the process starts over.
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
    """Describes one pin, for a list."""

    owner: str
    generation: int
    since_ms: int


class Pin:
    """A pin of this process: call `release`, or use it in a `with`."""

    __slots__ = ("_release", "info")

    def __init__(self, info: PinInfo, release: Callable[[Pin], None]) -> None:
        self.info = info
        self._release = release

    def release(self) -> None:
        """Release the pin; a second call does nothing."""
        self._release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Pins:
    """All pins on one log that is open for writing."""

    def __init__(self, fs: FileSystem, directory: str, clock: Clock) -> None:
        self._fs = fs
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._held: set[Pin] = set()

    def pin(self, generation: Callable[[], int], owner: str) -> Pin:
        """Pin the generation that `generation()` returns; it is called under the table's lock."""
        with self._lock:
            pin = Pin(PinInfo(owner, generation(), self._clock.now_ms()), self._drop)
            self._held.add(pin)
        return pin

    def _drop(self, pin: Pin) -> None:
        with self._lock:
            self._held.discard(pin)

    def list(self) -> list[PinInfo]:
        """All pins, of this process and of others, oldest first."""
        with self._lock:
            found = [pin.info for pin in self._held]
        found += read_pin_files(self._fs, self._directory)
        return sorted(found, key=lambda info: (info.since_ms, info.owner))

    def oldest_generation(self) -> int | None:
        """The lowest pinned generation, or None."""
        return min((info.generation for info in self.list()), default=None)


class FilePin:
    """The pin of a process that only reads."""

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
            # A pin file without contents pins every generation; see `read_pin_files`.
            self._lock = fs.lock(self._path, "")

    @property
    def held(self) -> bool:
        """False if a reclaim removed the file as stale before it was locked.

        A locked file that still has its name can no longer be considered stale.
        """
        return self._lock is not None and self._fs.exists(self._path)

    def release(self) -> None:
        """Release the pin; a second call does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            try:
                # A reclaim may have removed the file, or the whole directory may be deleted.
                with suppress(FileNotFoundError):
                    self._fs.remove(self._path)
            finally:
                lock.release()


def read_pin_files(fs: FileSystem, directory: str) -> list[PinInfo]:
    """The pins of other processes; those of dead processes are removed."""
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
            # Locked but not yet written: it may be for any generation.
            found.append(PinInfo("a process that is just starting", 0, 0))
    return found
