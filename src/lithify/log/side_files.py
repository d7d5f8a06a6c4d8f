"""Setting damaged side files aside.

A side file (history of runs, snapshot of producers, progress of erasing or of replication) only
saves time or informs people. If it is damaged, unreadable or of a newer format, it must not stop
the log: its bytes are kept under another name for inspection, and its owner writes the file again.
A file that the process may not read, or has no descriptor for, is none of these: it is intact, and
what it records would be lost. `check_is_unusable` raises such an error.

    HISTORY  ->  HISTORY.damaged-1, the lowest number that is free, at most `KEPT_MAX`

The new name is a hard link, and the owner then replaces the old one atomically. So a crash never
leaves the directory without the file; its absence may have another meaning than damage.

Called by the one process that writes the log.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING

from lithify.events import SideFileSetAside

if TYPE_CHECKING:
    from lithify.events import EventSink
    from lithify.fs import FileSystem

__all__ = ["KEPT_MAX", "check_is_unusable", "set_aside"]

KEPT_MAX = 9
"""Copies kept of one side file; the last one is replaced if there are more."""


_INTACT = frozenset({errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE})


def check_is_unusable(error: Exception) -> None:
    """Raise the error of a read if it does not depend on the contents of the file."""
    if isinstance(error, OSError) and error.errno in _INTACT:
        raise error


def set_aside(fs: FileSystem, path: str, reason: str, events: EventSink) -> None:
    """Keep the bytes of an unusable side file; the caller then replaces the file.

    If the file system refuses the second name, no copy is kept, and the event says so.
    """
    directory, _, name = path.rpartition("/")
    kept_as = ""
    with suppress(OSError):
        number = 1
        while number < KEPT_MAX and fs.exists(f"{path}.damaged-{number}"):
            number += 1
        if number == KEPT_MAX and fs.exists(f"{path}.damaged-{number}"):
            fs.remove(f"{path}.damaged-{number}")
        fs.link(path, f"{path}.damaged-{number}")
        kept_as = f"{name}.damaged-{number}"
    events(SideFileSetAside(directory, name, kept_as, reason))
