"""Checks whether a directory is writable, by writing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lithify.fs.atomic import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from lithify.fs.base import FileSystem

__all__ = ["PROBE_BYTES", "probe", "why_not_writable"]

PROBE_BYTES = 2**16
"""Size of a probe; a disk with less free space counts as full."""


def probe(fs: FileSystem, directory: str, size_bytes: int = PROBE_BYTES) -> None:
    """Raise the error of a write of `size_bytes` to the directory.

    A file is written, fsynced and removed. A crash leaves it, and the next probe replaces it.
    """
    path = f"{directory}/PROBE{TEMPORARY_SUFFIX}"
    try:
        with fs.open_append(path) as file:
            file.truncate(0)
            file.write(bytes(size_bytes))
            file.fsync()
    finally:
        with suppress(FileNotFoundError):
            fs.remove(path)


def why_not_writable(fs: FileSystem, directory: str, size_bytes: int = PROBE_BYTES) -> str:
    """Why `size_bytes` cannot be written to the directory; "" if they can."""
    try:
        probe(fs, directory, size_bytes)
    except OSError as error:
        return f"{directory} cannot be written: {error.strerror or error}"
    return ""
