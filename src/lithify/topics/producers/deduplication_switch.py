"""Deduplication of a topic as its definitions say, also when they change while it is open.

1. When a topic is opened without deduplication, what an earlier time left is removed.
2. `differs` is asked before an append and before a producer joins. It costs a comparison while the
   definitions are as they were.
3. `switch` follows them: on begins with knowing nothing (see `deduplication.py`), off forgets
   everything.

`switch` waits for the disk, so it may be called from any thread; nothing is appended meanwhile.
Answers that are on their way go to the object they were begun with.
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
    """Whether one topic has deduplication."""

    def __init__(
        self, fs: FileSystem, path: str, log: Log, *, events: EventSink, wanted: Callable[[], bool]
    ) -> None:
        """Look after what is in the file `path`; `wanted` is what the definitions say now."""
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
        """Do the definitions say something else than what is done?"""
        return self._wanted() is not (self.current is not None)

    def switch(self) -> None:
        """Do what they say."""
        if not self.differs():
            return
        known = self.current
        if known is not None:
            known.discard()
            self.current = None
            return
        # One that could not be removed when it was switched off must not be believed now.
        forget_producers(self._fs, self._path)
        self.current = Deduplication(self._fs, self._path, self._log, events=self._events)

    def close(self) -> None:
        """Write down what is known; before the log is closed."""
        if self.current is not None:
            self.current.close()
