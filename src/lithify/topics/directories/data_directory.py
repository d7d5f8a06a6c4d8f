"""What a directory is, by the files in it: a data directory, or a backup of one.

    is_data_directory(fs, "/var/lib/lithify")
    check_no_backup(fs, "/backup/monday")       raises `IsABackup`

A backup has the layout of a data directory, and its files may be links to those of one. Used as a
data directory it would change, and be no backup any more. Whoever opens a data directory calls
`check_no_backup` before anything is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import IsABackup
from lithify.log.file_names import LOCK

if TYPE_CHECKING:
    from lithify.fs import FileSystem

__all__ = ["BACKUP", "UNFINISHED", "check_no_backup", "is_data_directory"]

BACKUP = "BACKUP"
"""The list of a backup's files."""
UNFINISHED = "UNFINISHED"
"""Held locked while a backup is made."""


def is_data_directory(fs: FileSystem, directory: str) -> bool:
    """Has a node had its data there? Its lock may be missing, as in a copy."""
    names = (LOCK, "definitions", "topics", "blobs")
    return any(fs.exists(f"{directory}/{name}") for name in names)


def check_no_backup(fs: FileSystem, directory: str) -> None:
    """Raise `IsABackup` if a directory is a backup, finished or not."""
    if any(fs.exists(f"{directory}/{name}") for name in (BACKUP, UNFINISHED)):
        raise IsABackup(directory)
