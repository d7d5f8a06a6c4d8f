"""The disk gate: one run per disk, across all processes of a user that share the gate's directory.

It locks `disk-<device>.lock` there, and the operating system unlocks it when the process dies. The
file stays; without a lock it blocks no run. The directory must belong to this user and be closed to
all others, so that no other user can hold a lock in it or link one of its names to a file of this
user.

Called by the runs of a log (`compaction/run/log_runs.py`) and by their queue.
"""

from __future__ import annotations

import os
import tempfile
import threading
from typing import TYPE_CHECKING, Self

from lithify.errors import RunRefused
from lithify.fs.atomic import read_file
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.fs.base import FileSystem

__all__ = ["DiskGate", "DiskTurn", "disk_in_use", "disk_owner", "find_gate_directory"]

log = get_logger("lithify.compaction")


def disk_owner(name: str) -> str:
    """The owner of a disk while this process compacts the log `name`, as other runs show it."""
    return f"pid {os.getpid()} compacts {name}"


def disk_in_use(owner: str) -> RunRefused:
    """The refusal of a run whose disk is taken; its `waits_for` is shown by a run that waits."""
    return RunRefused("disk", owner)


class DiskGate:
    """One run per disk among all processes that use the same `directory`.

    A refusal names the owner of the disk. The operating system releases the lock of a process that
    died, so no run waits for it.

    If the directory is not private and cannot be made so, the gate holds within this process only.
    A data directory is open in one process only, so the runs on it still take turns.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory

    def enter(self, path: str, owner: str) -> DiskTurn:
        """Take the disk that holds `path` until the turn is released, or raise `RunRefused`.

        `owner` is shown in the refusals of other runs meanwhile.
        """
        found = self._fs.stat(path)
        if found.is_symlink:
            found = self._fs.stat(f"{path}/.")
        device = found.device
        if not _make_private(self._fs, self._directory):
            log.warning("runs of other processes are not excluded", not_ours=self._directory)
            holder = _in_process.take(device, owner)
            if holder is not None:
                raise disk_in_use(holder)
            return DiskTurn(lambda: _in_process.release(device))
        lock_path = f"{self._directory}/disk-{device}.lock"
        lock = self._fs.lock(lock_path, owner)
        if lock is None:
            holder = read_file(self._fs, lock_path).decode("utf-8", "replace").strip()
            raise disk_in_use(holder or f"disk {device} is in use by an unnamed run")
        return DiskTurn(lock.release)


class _InProcess:
    """The disks taken by runs of this process, where no lock file can be used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[int, str] = {}

    def take(self, device: int, owner: str) -> str | None:
        """Take a disk; returns its owner if it is already taken."""
        with self._lock:
            if device in self._owners:
                return self._owners[device]
            self._owners[device] = owner
            return None

    def release(self, device: int) -> None:
        with self._lock:
            self._owners.pop(device, None)


_in_process = _InProcess()


class DiskTurn:
    """Ownership of a disk, until `release` or the end of the `with` block."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Release the disk. A second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def find_gate_directory(fs: FileSystem, environ: Mapping[str, str]) -> str:
    """The directory in which the processes of one user lock disks.

    1. The user's runtime directory, `$XDG_RUNTIME_DIR` or `/run/user/UID`, if it is private.
    2. A directory in the temporary one. The data directory would not do: one disk may have several.
       Another user may have created a directory or link of that name first. It is then not private
       and not used (`DiskGate`), so the other user gains and blocks nothing.
    """
    user = os.geteuid()
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{user}"
    if os.path.isabs(runtime) and _is_private(fs, runtime):
        return f"{runtime}/lithify"
    return f"{tempfile.gettempdir()}/lithify-runs-{user}"


def _make_private(fs: FileSystem, directory: str) -> bool:
    """Create a directory for this user only; False if it exists and is not private."""
    try:
        # A new directory is made durable, which takes long beside other writes.
        if not fs.exists(directory):
            fs.mkdir(directory)
        return _is_private(fs, directory)
    except OSError:
        return False


def _is_private(fs: FileSystem, path: str) -> bool:
    """Is it a directory, not a link, that only this user can read and change?"""
    try:
        found = fs.stat(path)
    except OSError:
        return False
    return found.is_dir and found.is_private
