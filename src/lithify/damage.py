"""Damage that a process has come across while it served: what health and statistics show.

A value in memory, which a restart forgets. One entry per file, the latest reason counts. Any thread
may call.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lithify.errors import Corrupt, ReadFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.errors import LithifyError

__all__ = ["Damage"]

FILES_MAX = 100
"""Files that are remembered; more than a few mean that the disk is lost."""


class Damage:
    """The damaged files that are known."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
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

    def reasons(self, exists: Callable[[str], bool]) -> list[str]:
        """What is wrong with each file; those that do not exist any more are forgotten."""
        with self._lock:
            found = dict(self._files)
        gone = [path for path in found if not exists(path)]
        with self._lock:
            for path in gone:
                self._files.pop(path, None)
        return [reason for path, reason in found.items() if path not in gone]
