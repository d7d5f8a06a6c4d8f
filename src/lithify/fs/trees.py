"""Remove a directory with everything in it.

A crash in between leaves some of it. Whoever calls this has made sure before that nobody takes
what is left for something that is still there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import WriteFailed

if TYPE_CHECKING:
    from lithify.fs.base import FileSystem

__all__ = ["remove_tree"]


def remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a directory if there is one; raises `WriteFailed`."""
    if not fs.exists(path):
        return
    try:
        for name in fs.list(path):
            child = f"{path}/{name}"
            if fs.stat(child).is_dir:
                remove_tree(fs, child)
            else:
                fs.remove(child)
        fs.rmdir(path)
    except OSError as error:
        raise WriteFailed(path, error) from error
