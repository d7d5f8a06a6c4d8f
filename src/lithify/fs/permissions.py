"""Checks that a data directory is closed to other users, and logs a warning if not.

New directories are (`local.py`). One that was created by hand, or by an older version, may be open:
that is the operator's decision, so it is only reported. Called when a node opens its data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.logger import get_logger

if TYPE_CHECKING:
    from lithify.fs.base import FileSystem

__all__ = ["warn_if_shared"]

log = get_logger("lithify.fs")


def warn_if_shared(fs: FileSystem, directory: str) -> None:
    """Log a warning if other users may read or change the directory."""
    # The final `/.` follows a symbolic link.
    if not fs.stat(f"{directory}/.").is_private:
        fix = f"chmod 700 {directory}"
        log.warning("other users may read the data directory", directory=directory, fix=fix)
