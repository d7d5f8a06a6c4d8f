"""Directories for programs that this process creates and runs later, safe from other users.

Compiled kernels (`compiled.py`) and the start script of a Java (`pipeline/java.py`) are code. Code
is stored in, and loaded from, only a directory that no other user can change:

1. The directory exists, or is created with mode 0700, and this user can write to it.
2. It and every directory above it belongs to this user or to root, and no other user may write to
   it. A sticky directory such as `/tmp` may be writable: names of other users are safe in it.

`user_cache` is the user's own, by the rules of the XDG base directories. The user of a service may
have no home; such a service uses a cache in its data directory.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["is_trusted", "user_cache"]

_ROOT = 0
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def user_cache(environ: Mapping[str, str]) -> str:
    """Lithify's directory in the user's cache; it may be missing and impossible to create."""
    cache = environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say to ignore a relative path.
    home = cache if os.path.isabs(cache) else os.path.expanduser("~/.cache")
    return f"{home}/lithify"


def is_trusted(directory: str) -> bool:
    """Whether code may be stored in this directory. It is created if it is missing."""
    try:
        os.makedirs(directory, mode=stat.S_IRWXU, exist_ok=True)
        path = os.path.realpath(directory)
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            return False
        while True:
            found = os.stat(path)
            others = found.st_mode & _WRITABLE_BY_OTHERS and not found.st_mode & stat.S_ISVTX
            if others or found.st_uid not in {_ROOT, os.geteuid()}:
                return False
            if path == "/":
                return True
            path = os.path.dirname(path)
    except OSError:
        return False
