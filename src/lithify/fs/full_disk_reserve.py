"""Reserves a little disk space for the operations that free more of it.

On a disk without a free byte nothing can be published, not even a manifest with fewer files. So the
data directory has a file `RESERVE` of `RESERVE_BYTES`. On a full disk it is removed before a run of
compaction, before old segments, a topic, a store or a blob are deleted, and before a node opens or
closes its files. It is created again when there is space:

1. `keep` creates it if there is room for it and `LEFT_BYTES` more. Its bytes are random, so that a
   file system with compression or deduplication stores all of them.
2. `if_full` removes it while its block runs, if less than its size is free. After the block the
   file takes the free space, up to its size: a delete uses a few bytes and frees none before the
   next run.
3. A check whether the node can write calls `keep` first. Until the reserve has its full size again,
   the disk counts as full, so that waiting producers do not use the space that a run needs.

The file has no data. A missing, short or damaged file is no error; one of another size is created
again. Any thread may call.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.fs import FileSystem

__all__ = ["NO_RESERVE", "RESERVE", "RESERVE_BYTES", "NoReserve", "Reserve"]

RESERVE = "RESERVE"
RESERVE_BYTES = 2**20
"""A manifest takes about 100 bytes per segment, a journal about 200, a report 1 KiB, a dead set at
most a bit per entry: enough for a log of several thousand segments."""

LEFT_BYTES = 2**17
"""Free space that remains when the reserve is created."""


class NoReserve:
    """The interface of a reserve, without any reserved space."""

    def keep(self) -> str:
        """Do nothing."""
        return ""

    @contextmanager
    def if_full(self) -> Iterator[None]:
        """Do nothing."""
        yield


class Reserve(NoReserve):
    """The reserve of one data directory."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._path = f"{directory}/{RESERVE}"
        self._lock = threading.Lock()
        self._released = 0
        """Number of active `if_full` blocks that have released the reserve."""

    def keep(self) -> str:
        """Create the file if it is missing and there is space; returns why not, or ""."""
        with self._lock:
            try:
                return self._keep()
            except OSError as error:
                with suppress(OSError):
                    self._fs.remove(self._path)
                return f"{self._directory} cannot be written: {error.strerror or error}"

    def _keep(self) -> str:
        own_bytes = self._own_bytes()
        if own_bytes == RESERVE_BYTES:
            return ""
        free_bytes = self._fs.free_bytes(self._directory)
        needed_bytes = RESERVE_BYTES + LEFT_BYTES - own_bytes
        if self._released or free_bytes < needed_bytes:
            return (
                f"the disk of {self._directory} is full: {free_bytes} bytes are free, "
                f"{needed_bytes} are needed"
            )
        self._make(RESERVE_BYTES)
        return ""

    def _own_bytes(self) -> int:
        return self._fs.stat(self._path).size if self._fs.exists(self._path) else 0

    def _make(self, size: int) -> None:
        with self._fs.open_append(self._path) as file:
            file.truncate(0)
            file.write(secrets.token_bytes(size))
            file.fsync()

    def _restore(self) -> None:
        """Create the file again after an `if_full` block, smaller if there is less space."""
        if self._released:
            return
        # An error leaves a short file, or none: `keep` creates it later.
        with suppress(OSError):
            free_bytes = self._fs.free_bytes(self._directory)
            fits = free_bytes >= RESERVE_BYTES + LEFT_BYTES
            # Below its full size, so that `keep` does not treat it as complete.
            self._make(RESERVE_BYTES if fits else min(RESERVE_BYTES - 1, free_bytes))

    @contextmanager
    def if_full(self) -> Iterator[None]:
        """Release the reserve for the block if the disk is full."""
        if self._fs.free_bytes(self._directory) >= RESERVE_BYTES:
            yield
            return
        with self._lock:
            self._released += 1
            with suppress(OSError):
                self._fs.remove(self._path)
        try:
            yield
        finally:
            with self._lock:
                self._released -= 1
                self._restore()


NO_RESERVE = NoReserve()
