"""Damage found while a process serves; health checks and statistics show it.

A value in memory, which a restart clears. Any thread may call.

1. Damaged files: one entry per file, with the latest reason, until the file does not exist.
2. Topics and stores that cannot be opened: one entry per name, until it is opened or deleted.
"""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lithify.errors import Corrupt, LithifyError, MissingFile, ReadFailed, WriteFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Damage"]

FILES_MAX = 100
"""Maximum number of files to record; more than a few mean that the disk is lost."""

_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""Errors that keep a topic from being opened but are not damage."""


class Damage:
    """The damaged files of this process."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._unopened: dict[str, LithifyError | OSError] = {}
        self._lock = threading.Lock()

    def record(self, error: LithifyError) -> bool:
        """Record a damaged file; returns whether it is new. Other errors are ignored.

        Also that a file is missing: the entry would begin to count when the file exists again.
        """
        if not isinstance(error, Corrupt | ReadFailed) or isinstance(error, MissingFile):
            return False
        reason = str(error)
        with self._lock:
            if self._files.get(error.path) == reason:
                return False
            if error.path in self._files or len(self._files) < FILES_MAX:
                self._files[error.path] = reason
        return True

    @contextmanager
    def opening(self, name: str) -> Iterator[None]:
        """Record a failure to open `name`; the block opens it."""
        try:
            yield
        except (LithifyError, OSError) as error:
            number = error.errno if isinstance(error, OSError) else None
            if not isinstance(error, WriteFailed) and number not in _PASSING:
                with self._lock:
                    if name in self._unopened or len(self._unopened) < FILES_MAX:
                        self._unopened[name] = error
            raise
        self.forget(name)

    def forget(self, name: str) -> None:
        """Remove the entry of a name that was opened or deleted."""
        with self._lock:
            error = self._unopened.pop(name, None)
            if isinstance(error, Corrupt | ReadFailed):
                self._files.pop(error.path, None)

    def reasons(self, exists: Callable[[str], bool]) -> list[str]:
        """The reason for each entry; removes files that no longer exist."""
        with self._lock:
            found, unopened = dict(self._files), dict(self._unopened)
        gone = [path for path in found if not exists(path)]
        with self._lock:
            for path in gone:
                self._files.pop(path, None)
        return [
            *(f"{name} cannot be opened: {error}" for name, error in unopened.items()),
            *(reason for path, reason in found.items() if path not in gone),
        ]
