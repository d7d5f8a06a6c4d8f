"""Switches deduplication of a topic on and off as its definitions change while it is open.

1. Opening a topic without deduplication deletes a leftover snapshot.
2. Appends and joining producers first check `differs`. It costs one comparison while the
   definitions are unchanged.
3. `switch` follows the definitions: on starts with an empty state (see `deduplication.py`), off
   deletes the state.

`switch` blocks on the disk. Any thread may call it, but no append may happen meanwhile. Appends in
flight complete on the `Deduplication` that they started with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.topics.producers.deduplication import Deduplication, forget_producers

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.log import Log

__all__ = ["DeduplicationSwitch"]


class DeduplicationSwitch:
    """Opens and closes the `Deduplication` of one topic."""

    def __init__(
        self, fs: FileSystem, path: str, log: Log, *, events: EventSink, wanted: Callable[[], bool]
    ) -> None:
        """Manage the snapshot file `path`; `wanted` reads the current definitions."""
        self._fs = fs
        self._path = path
        self._log = log
        self._events = events
        self._wanted = wanted
        self.current: Deduplication | None = None
        if wanted():
            self.current = Deduplication(fs, path, log, events=events)
        else:
            forget_producers(fs, path)

    def differs(self) -> bool:
        """Do the definitions differ from the current state?"""
        return self._wanted() is not (self.current is not None)

    def switch(self) -> None:
        """Apply the definitions."""
        if not self.differs():
            return
        previous = self.current
        if previous is not None:
            previous.discard()
            self.current = None
            return
        # A snapshot that could not be deleted at switch-off is outdated and must not be loaded.
        forget_producers(self._fs, self._path)
        self.current = Deduplication(self._fs, self._path, self._log, events=self._events)

    def close(self) -> None:
        """Write the last snapshot. Call before the log is closed."""
        if self.current is not None:
            self.current.close()
