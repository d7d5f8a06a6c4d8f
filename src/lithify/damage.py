"""Damage that a process has come across while it served: what health and statistics show.

A value in memory, which a restart forgets. Any thread may call.

1. Damaged files: one entry per file, the latest reason counts, until the file does not exist.
2. Topics and stores that cannot be opened: one entry per name, until it opens or is deleted.
"""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lithify.errors import Corrupt, LithifyError, ReadFailed, WriteFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Damage"]

FILES_MAX = 100
"""Files that are remembered; more than a few mean that the disk is lost."""

_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""What keeps a topic from being opened and is no damage of it."""


class Damage:
    """The damaged files that are known."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._unopened: dict[str, LithifyError | OSError] = {}
        self._lock = threading.Lock()

    def note(self, error: LithifyError) -> bool:
        """Remember a damaged file; whether that is news. Other errors are passed over."""
        if not isinstance(error, Corrupt | ReadFailed):
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
        """Remember what cannot be opened; the block opens it."""
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
        """What could not be opened is open now, or deleted."""
        with self._lock:
            error = self._unopened.pop(name, None)
            if isinstance(error, Corrupt | ReadFailed):
                self._files.pop(error.path, None)

    def reasons(self, exists: Callable[[str], bool]) -> list[str]:
        """What is wrong with each; files that do not exist any more are forgotten."""
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
