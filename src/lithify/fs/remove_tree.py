"""Removes a directory tree, including files that are added during the removal.

A crash in between leaves a part of it. The caller makes sure beforehand that such a part is not
taken for valid data.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from lithify.errors import WriteFailed

if TYPE_CHECKING:
    from lithify.fs.base import FileSystem

__all__ = ["remove_tree"]

TRIES = 10
_CHANGED = frozenset((errno.ENOENT, errno.ENOTEMPTY))


def remove_tree(fs: FileSystem, path: str, last: str = "") -> None:
    """Remove a directory if it exists; raises `WriteFailed`.

    The file `last` in it is removed when the removal of everything else is durable: any part that a
    crash leaves still has it.
    """
    for left in reversed(range(TRIES)):
        if not fs.exists(path):
            return
        try:
            _remove(fs, path, last)
            return
        except OSError as error:
            # Another thread or process has added or removed a file since the directory was listed.
            if not left or error.errno not in _CHANGED:
                raise WriteFailed(path, error) from error


def _remove(fs: FileSystem, path: str, last: str) -> None:
    names = fs.list(path)
    for name in names:
        if name == last:
            continue
        child = f"{path}/{name}"
        if fs.stat(child).is_dir:
            remove_tree(fs, child)
        else:
            fs.remove(child)
    if last in names:
        fs.sync_dir(path)
        fs.remove(f"{path}/{last}")
    fs.rmdir(path)
