"""A file system that fails where its rules say; it wraps any other one.

Every call is an operation with a number, from 1, and the name of its method: those of `FileSystem`,
and of `File` all but `close`, which never fails and is not counted (nor is the release of a lock).
For each operation:

1. It is counted and, if requested, recorded as a line `name path` (two paths if it has two).
2. Each rule whose patterns match its name and one of its paths counts it as well; the rule fires at
   its `nth` match and for `count` matches from there.
3. The rules that fire are applied in order; the first that raises ends it.
4. If no rule raised, the operation is passed on.

A rule is one line of text, `operation path [nth=N] [count=N|*] [seconds=S] KIND`:

    write *.seg nth=3 ENOSPC          the third write to a segment finds the disk full
    fsync * nth=1 count=* EIO         no fsync ever works
    mutating * nth=17 CRASH           dies before the 17th operation that changes the disk

| kind | effect |
|---|---|
| ENOSPC, EIO, EROFS, EACCES | `OSError`, and nothing was done |
| SHORT | half of the bytes of a write, writev, overwrite or copy_range are written, then ENOSPC |
| SLOW | the clock sleeps for `seconds`, then the operation continues |
| CRASH | `PowerCut`, and nothing was done |
| CRASH_AFTER | `PowerCut`, after it was done |

After a `PowerCut` every later operation raises one too: the process is dead. It is not an
`Exception`, so that no handler can mistake it for an error that it may survive.

Used by tests, through the protocol in `fs/base.py`.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Self, TypeVar

from lithify.clock import ManualClock
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.checksum import Buffer
    from lithify.clock import Clock
    from lithify.fs.base import File, FileLock, FileStat, FileSystem

__all__ = ["MUTATING", "Fault", "FaultyFileSystem", "PowerCut"]

T = TypeVar("T")

KINDS = frozenset({"ENOSPC", "EIO", "EROFS", "EACCES", "SHORT", "SLOW", "CRASH", "CRASH_AFTER"})
_ERRNO = {"EIO": errno.EIO, "EROFS": errno.EROFS, "EACCES": errno.EACCES}

MUTATING = frozenset(
    {
        "copy_range",
        "fdatasync",
        "fsync",
        "link",
        "lock",
        "mkdir",
        "open_append",
        "overwrite",
        "remove",
        "rename",
        "rmdir",
        "symlink",
        "sync_dir",
        "truncate",
        "write",
        "writev",
    }
)
"""The operations that change the disk, or what of it is durable. A rule with the operation
"mutating" matches these.
"""


class PowerCut(BaseException):
    """The process died here; see the module."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule; see the module. `str` prints it and `parse` reads it back."""

    operation: str
    path: str = "*"
    nth: int = 1
    count: int | None = 1
    kind: str = "EIO"
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"fault kind is {self.kind!r}, must be one of {sorted(KINDS)}")
        for pattern in (self.operation, self.path):
            if pattern.split() != [pattern]:
                raise InvalidInput(f"fault pattern is {pattern!r}, must be without spaces")
        if self.nth < 1 or (self.count is not None and self.count < 1) or self.seconds < 0:
            raise InvalidInput(f"fault {self}: nth and count start at 1, seconds at 0")

    def __str__(self) -> str:
        words = [self.operation, self.path, f"nth={self.nth}"]
        if self.count != 1:
            words.append(f"count={'*' if self.count is None else self.count}")
        if self.seconds:
            words.append(f"seconds={self.seconds!r}")
        return " ".join([*words, self.kind])

    @classmethod
    def parse(cls, text: str) -> Fault:
        """The rule that prints as `text`."""
        try:
            operation, path, *options, kind = text.split()
            values = dict(option.split("=") for option in options)
            count = values.pop("count", "1")
            fault = cls(
                operation,
                path,
                nth=int(values.pop("nth", "1")),
                count=None if count == "*" else int(count),
                seconds=float(values.pop("seconds", "0")),
                kind=kind,
            )
        except ValueError as error:
            raise InvalidInput(f"fault {text!r} cannot be read: {error}") from error
        if values:
            raise InvalidInput(f"fault {text!r} has unknown options: {sorted(values)}")
        return fault

    def matches(self, operation: str, paths: Sequence[str]) -> bool:
        """Whether the patterns match an operation on these paths."""
        named = fnmatchcase(operation, self.operation) or (
            self.operation == "mutating" and operation in MUTATING
        )
        return named and any(fnmatchcase(path, self.path) for path in paths)

    def fires(self, match: int) -> bool:
        """Whether it fires at its `match`th match, from 1."""
        return self.nth <= match and (self.count is None or match < self.nth + self.count)


class _Injector:
    """Counts operations and applies the rules; shared by a file system and its files."""

    def __init__(self, faults: Sequence[Fault], clock: Clock, *, record: bool) -> None:
        self.operations = 0
        self.trace: list[str] = []
        self._clock = clock
        self._record = record
        self._guard = threading.Lock()
        self._rules: list[Fault] = []
        self._matches: list[int] = []
        self._dead: str | None = None
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        with self._guard:
            self._rules.append(fault)
            self._matches.append(0)

    def clear(self) -> None:
        with self._guard:
            self._rules.clear()
            self._matches.clear()

    def run(
        self,
        operation: str,
        paths: Sequence[str],
        action: Callable[[], T],
        half: Callable[[], object] | None = None,
    ) -> T:
        """Run `action`, or what the rules say instead; `half` does the first half of it."""
        dies_after = False
        for fault in self._count(operation, paths):
            if fault.kind == "SLOW":
                self._clock.sleep(fault.seconds)
            elif fault.kind == "CRASH":
                self._die(operation, paths)
            elif fault.kind == "CRASH_AFTER":
                dies_after = True
            else:
                if fault.kind == "SHORT" and half:
                    half()
                code = _ERRNO.get(fault.kind, errno.ENOSPC)
                raise OSError(code, os.strerror(code), paths[-1])
        try:
            return action()
        finally:
            if dies_after:
                self._die(operation, paths)

    def _count(self, operation: str, paths: Sequence[str]) -> list[Fault]:
        """Count one operation; returns the rules that fire."""
        with self._guard:
            if self._dead:
                raise PowerCut(self._dead)
            self.operations += 1
            if self._record:
                self.trace.append(" ".join([operation, *paths]))
            fired = []
            for index, fault in enumerate(self._rules):
                if fault.matches(operation, paths):
                    self._matches[index] += 1
                    if fault.fires(self._matches[index]):
                        fired.append(fault)
            return fired

    def _die(self, operation: str, paths: Sequence[str]) -> None:
        with self._guard:
            self._dead = f"died at operation {self.operations}: {' '.join([operation, *paths])}"
        raise PowerCut(self._dead)


class _FaultyFile:
    """An open file whose operations go through the rules."""

    def __init__(self, inner: File, injector: _Injector) -> None:
        self.inner = inner
        self._injector = injector

    @property
    def path(self) -> str:
        return self.inner.path

    def size(self) -> int:
        return self._run("size", self.inner.size)

    def pread(self, length: int, offset: int) -> bytes:
        return self._run("pread", lambda: self.inner.pread(length, offset))

    def readinto(self, buffer: bytearray | memoryview, offset: int) -> int:
        return self._run("readinto", lambda: self.inner.readinto(buffer, offset))

    def readinto_cached(self, buffer: bytearray | memoryview, offset: int) -> int:  # noqa: ARG002
        # Every read is subject to the rules and may be slow, so no read is one from the cache.
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), self.inner.path)

    def write(self, data: Buffer) -> None:
        self._run(
            "write",
            lambda: self.inner.write(data),
            lambda: self.inner.write(data[: len(data) // 2]),
        )

    def writev(self, buffers: Sequence[Buffer]) -> None:
        def write_half() -> None:
            data = b"".join(buffers)
            self.inner.write(data[: len(data) // 2])

        self._run("writev", lambda: self.inner.writev(buffers), write_half)

    def overwrite(self, data: Buffer, offset: int) -> None:
        self._run(
            "overwrite",
            lambda: self.inner.overwrite(data, offset),
            lambda: self.inner.overwrite(data[: len(data) // 2], offset),
        )

    def truncate(self, size: int) -> None:
        self._run("truncate", lambda: self.inner.truncate(size))

    def fsync(self) -> None:
        self._run("fsync", self.inner.fsync)

    def fdatasync(self) -> None:
        self._run("fdatasync", self.inner.fdatasync)

    def begin_sync(self) -> None:
        # No guarantee depends on it, so it cannot fail.
        self.inner.begin_sync()

    def close(self) -> None:
        self.inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(
        self, name: str, action: Callable[[], T], half: Callable[[], object] | None = None
    ) -> T:
        return self._injector.run(name, (self.inner.path,), action, half)


class FaultyFileSystem:
    """Passes everything on to `inner`, except for the faults."""

    def __init__(
        self,
        inner: FileSystem,
        faults: Sequence[Fault] = (),
        clock: Clock | None = None,
        *,
        record: bool = False,
    ) -> None:
        self.inner = inner
        self._injector = _Injector(faults, clock or ManualClock(), record=record)
        self._run = self._injector.run

    @property
    def operations(self) -> int:
        """Number of operations so far."""
        return self._injector.operations

    @property
    def trace(self) -> list[str]:
        """One line per operation, if created with `record=True`."""
        return self._injector.trace

    def add(self, fault: Fault) -> None:
        """Add a rule; it counts matches from here on."""
        self._injector.add(fault)

    def clear(self) -> None:
        """Remove all rules. A process that died stays dead."""
        self._injector.clear()

    def open_append(self, path: str, *, exclusive: bool = False, uncached: bool = False) -> File:
        """Open for reading and appending, creating it; `exclusive` refuses one that exists."""
        file = self._run(
            "open_append",
            (path,),
            lambda: self.inner.open_append(path, exclusive=exclusive, uncached=uncached),
        )
        return _FaultyFile(file, self._injector)

    def open_read(self, path: str) -> File:
        """Open for reading."""
        file = self._run("open_read", (path,), lambda: self.inner.open_read(path))
        return _FaultyFile(file, self._injector)

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents, durably."""
        self._run("mkdir", (path,), lambda: self.inner.mkdir(path))

    def rename(self, source: str, target: str) -> None:
        """Rename `source` to `target`, atomically."""
        self._run("rename", (source, target), lambda: self.inner.rename(source, target))

    def link(self, source: str, target: str) -> None:
        """Create `target` as a hard link to `source`."""
        self._run("link", (source, target), lambda: self.inner.link(source, target))

    def symlink(self, source: str, target: str) -> None:
        """Create `target` as a symbolic link to `source`."""
        self._run("symlink", (source, target), lambda: self.inner.symlink(source, target))

    def remove(self, path: str) -> None:
        """Remove the name of a file or a symbolic link."""
        self._run("remove", (path,), lambda: self.inner.remove(path))

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self._run("rmdir", (path,), lambda: self.inner.rmdir(path))

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        return self._run("list", (path,), lambda: self.inner.list(path))

    def stat(self, path: str) -> FileStat:
        """Size and identity, of a symbolic link its own."""
        return self._run("stat", (path,), lambda: self.inner.stat(path))

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        return self._run("exists", (path,), lambda: self.inner.exists(path))

    def free_bytes(self, path: str) -> int:
        """Free bytes of the disk."""
        return self._run("free_bytes", (path,), lambda: self.inner.free_bytes(path))

    def copy_range(self, source: File, offset: int, target: File, length: int) -> None:
        """Append `length` bytes of `source` at `offset` to `target`."""
        # The inner file system copies in the kernel only between files of its own.
        read, written = _unwrap(source), _unwrap(target)
        self._run(
            "copy_range",
            (source.path, target.path),
            lambda: self.inner.copy_range(read, offset, written, length),
            lambda: self.inner.copy_range(read, offset, written, length // 2),
        )

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        self._run("sync_dir", (path,), lambda: self.inner.sync_dir(path))

    def lock(self, path: str, owner: str) -> FileLock | None:
        """Lock the file `path` and write `owner` into it; `None` if another holder has it."""
        return self._run("lock", (path,), lambda: self.inner.lock(path, owner))

    def lock_directory(self, path: str, owner: str) -> FileLock | None:
        """Lock the file `path` and its directory; counts as `lock`."""
        return self._run("lock", (path,), lambda: self.inner.lock_directory(path, owner))

    def lock_holder(self, path: str) -> str:
        """The process that has locked a directory; never fails."""
        return self.inner.lock_holder(path)


def _unwrap(file: File) -> File:
    return file.inner if isinstance(file, _FaultyFile) else file
