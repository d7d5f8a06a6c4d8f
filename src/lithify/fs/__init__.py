"""The only package that accesses a file system. Start reading in `base.py`."""

from lithify.fs.atomic import (
    hold_directory,
    lock_owner,
    read_file,
    replace_file,
    sync_replaced,
    write_atomic,
)
from lithify.fs.base import File, FileLock, FileStat, FileSystem
from lithify.fs.local import LocalFileSystem
from lithify.fs.memory import MemoryFileSystem
from lithify.fs.write_probe import why_not_writable

__all__ = [
    "File",
    "FileLock",
    "FileStat",
    "FileSystem",
    "LocalFileSystem",
    "MemoryFileSystem",
    "hold_directory",
    "lock_owner",
    "read_file",
    "replace_file",
    "sync_replaced",
    "why_not_writable",
    "write_atomic",
]
