"""Distinguishes a data directory from a backup of one, by the files in it.

    is_data_directory(fs, "/var/lib/lithify")
    check_no_backup(fs, "/backup/monday")       raises `IsABackup`

A backup has the layout of a data directory, and its files may be hard links to those of one. If a
node opened it as its data directory, it would modify the backup. So every code path that opens a
data directory calls `check_no_backup` before it writes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import IsABackup
from lithify.log.file_names import LOCK
from lithify.topics.definitions.definitions_file import COPY, DEFINITIONS

if TYPE_CHECKING:
    from lithify.fs import FileSystem

__all__ = ["BACKUP", "UNFINISHED", "check_no_backup", "is_data_directory"]

BACKUP = "BACKUP"
"""The file that lists the files of a backup."""
UNFINISHED = "UNFINISHED"
"""The lock file of a backup in progress."""


def is_data_directory(fs: FileSystem, directory: str) -> bool:
    """Is it the data directory of a node? A copy may lack the lock file."""
    names = (LOCK, DEFINITIONS, COPY, "topics", "blobs")
    return any(fs.exists(f"{directory}/{name}") for name in names)


def check_no_backup(fs: FileSystem, directory: str) -> None:
    """Raise `IsABackup` if a directory is a backup, complete or not."""
    if any(fs.exists(f"{directory}/{name}") for name in (BACKUP, UNFINISHED)):
        raise IsABackup(directory)
