"""Small file systems of their own for tests, in memory; mounting one takes root."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["fill", "filled", "read_only", "small_disk"]


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[Path]:
    """A disk of that size, until the block ends."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system of its own can be mounted by root only")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Something else takes every free byte of a disk."""
    ballast = disk / "BALLAST"
    fill(ballast)
    try:
        yield
    finally:
        ballast.unlink()


def fill(ballast: Path) -> None:
    """Append to a file until the disk has not one byte more."""
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Nothing on the disk can be written. No file of it may be open for writing."""
    remount(disk, "ro")
    try:
        yield
    finally:
        remount(disk, "rw")


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)
