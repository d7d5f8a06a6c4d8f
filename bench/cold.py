"""Files that are not in the page cache, as those of a store far larger than the memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["drop_from_cache"]


def drop_from_cache(paths: Iterable[str]) -> None:
    """Have the next read of these files come from the disk."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        # Only clean pages can be dropped.
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
