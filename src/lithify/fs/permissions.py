"""Checks that data and secrets are closed to other users, and logs a warning if not.

New directories are (`local.py`). One that was created by hand, or by an older version, may be open:
that is the operator's decision, so it is only reported. Called when a node opens its data, and when
it reads a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.logger import get_logger

if TYPE_CHECKING:
    from lithify.fs.base import FileSystem

__all__ = ["warn_if_readable", "warn_if_shared"]

log = get_logger("lithify.fs")


def warn_if_shared(fs: FileSystem, directory: str) -> None:
    """Log a warning if other users may read or change the directory."""
    # The final `/.` follows a symbolic link.
    if not fs.stat(f"{directory}/.").is_private:
        fix = f"chmod 700 {directory}"
        log.warning("other users may read the data directory", directory=directory, fix=fix)


def warn_if_readable(fs: FileSystem, path: str) -> None:
    """Log a warning if other users may read or change the file of a secret."""
    if not fs.stat(path).is_private:
        log.warning("other users may read the secret", file=path, fix=f"chmod 600 {path}")
