"""The limits of one run: bytes per second, memory, scratch disk, and one run per disk.

The token bucket has two counters, bytes requested and bytes earned:

1. A caller adds its bytes to the requested sum. The new sum is its ticket.
2. Time adds `bytes_per_s` to the earned sum, which is never more than `burst_bytes` ahead of the
   requested sum: a pause saves no more than that.
3. The caller may pass when the earned sum reaches its ticket. It sleeps until then, and checks
   every tenth of a second for a new rate or a cancelled run.

So callers pass in order of arrival, none starves, and a request larger than the burst waits in
proportion. Over any window at most `bytes_per_s * window + burst_bytes` pass; where one request is
larger than the burst, its size replaces the burst.

A `Budget` holds the limits. An `Allowance` enforces them: a run, and each of its tasks, calls it
before each transfer; threads may share it. Parallel tasks get a share of the budget each
(`Budget.share`), so that their sum stays within it on any machine.

`DiskGate` allows one run per disk, across all processes of a user that share the gate's directory:
it locks `disk-<device>.lock` there, and the operating system unlocks it when the process dies. The
file stays; without a lock it blocks no run. The directory must belong to this user and be closed to
all others, so that no other user can hold a lock in it or link one of its names to a file of this
user.
"""

from __future__ import annotations

import os
import tempfile
import threading
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Self

from lithify.errors import InvalidInput, RunRefused
from lithify.fs.atomic import read_file
from lithify.logger import get_logger
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.clock import Clock
    from lithify.fs.base import FileSystem

__all__ = [
    "BYTES_MAX",
    "RATE_BYTES_PER_S_MIN",
    "SLEEP_S_MIN",
    "Allowance",
    "Budget",
    "DiskGate",
    "DiskTurn",
    "TokenBucket",
    "find_gate_directory",
    "reserve_scratch",
]

log = get_logger("lithify.compaction")

SLEEP_S_MAX = 0.1
"""Interval at which a sleeping caller checks for cancellation: bounds the time to stop."""

SLEEP_S_MIN = 0.0001
"""Minimum sleep: a shorter one might not advance the clock, and the loop would never end."""

FOLLOW_S = 0.2
"""Interval at which a changing rate is read: well within the window of the pacer."""

RATE_BYTES_PER_S_MIN = 1 << 10
"""Below 1 KiB/s a single 64 MiB segment would take 18 hours: that is a mistake, not a limit."""

MEMORY_BYTES_MIN = 1 << 20
"""Below 1 MiB there is no room for one write buffer."""

BYTES_MAX = 1 << 50
"""1 PiB: more than one machine reads in a second, or has as memory or scratch disk."""


class TokenBucket:
    """A rate limit; a rate of `None` is no limit. Thread-safe."""

    def __init__(
        self,
        bytes_per_s: int | None,
        clock: Clock,
        burst_bytes: int | None = None,
        saved_bytes: int | None = None,
    ) -> None:
        """`saved_bytes` may pass immediately; the default is the burst."""
        check_range("bytes_per_s", bytes_per_s, 1, BYTES_MAX)
        check_range("burst_bytes", burst_bytes, 1, BYTES_MAX)
        check_range("saved_bytes", saved_bytes, 0, BYTES_MAX)
        self._clock = clock
        self._lock = threading.Lock()
        self._burst_setting = burst_bytes
        self._rate = bytes_per_s
        self._asked_bytes = 0
        self._earned_bytes = float(self.burst_bytes if saved_bytes is None else saved_bytes)
        self._earned_at_s = clock.monotonic_s()

    @property
    def bytes_per_s(self) -> int | None:
        """The rate, `None` if there is no limit."""
        return self._rate

    @property
    def burst_bytes(self) -> int:
        """Bytes that may pass at once after a pause: as set, or a tenth of a second's bytes."""
        if self._burst_setting is not None:
            return self._burst_setting
        return max(1, (self._rate or 0) // 10)

    def set_rate(self, bytes_per_s: int | None) -> None:
        """Change the rate, also for waiting callers.

        Saved and owed bytes are kept. A bucket that had no limit starts empty.
        """
        check_range("bytes_per_s", bytes_per_s, 1, BYTES_MAX)
        with self._lock:
            self._earn()
            self._rate = bytes_per_s
            self._earn()

    def take(self, size_bytes: int, check: Callable[[], None] | None = None) -> float:
        """Sleep until `size_bytes` may pass; return the seconds slept.

        `check` is called before each sleep and cancels it by raising; the bytes stay requested.
        """
        if size_bytes < 0:
            raise InvalidInput(f"cannot take {size_bytes} bytes, must be 0 or more")
        with self._lock:
            self._earn()
            self._asked_bytes += size_bytes
            ticket = self._asked_bytes
        waited_s = 0.0
        while (missing_s := self._missing_s(ticket)) > 0:
            if check is not None:
                check()
            sleep_s = min(max(missing_s, SLEEP_S_MIN), SLEEP_S_MAX)
            self._clock.sleep(sleep_s)
            waited_s += sleep_s
        return waited_s

    def _missing_s(self, ticket: int) -> float:
        """Seconds until `ticket` is earned at the current rate."""
        with self._lock:
            self._earn()
            if self._rate is None:
                return 0.0
            return (ticket - self._earned_bytes) / self._rate

    def _earn(self) -> None:
        """Add the bytes earned since the last call, up to the burst."""
        now_s = self._clock.monotonic_s()
        if self._rate is None:
            self._earned_bytes = float(self._asked_bytes)
        else:
            self._earned_bytes = min(
                self._earned_bytes + (now_s - self._earned_at_s) * self._rate,
                float(self._asked_bytes + self.burst_bytes),
            )
        self._earned_at_s = now_s


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one run. A rate of `None` is unlimited; scratch of `None` is the whole disk."""

    read_bytes_per_s: int | None = None
    write_bytes_per_s: int | None = None
    memory_bytes: int = 256 << 20
    scratch_bytes: int | None = None
    delete_bytes_per_s: int | None = 16 << 30
    """Rate for deleting retired files: freeing many extents at once stalls other writers."""

    def __post_init__(self) -> None:
        rate_min = RATE_BYTES_PER_S_MIN
        check_range("delete_bytes_per_s", self.delete_bytes_per_s, rate_min, BYTES_MAX)
        check_range("read_bytes_per_s", self.read_bytes_per_s, rate_min, BYTES_MAX)
        check_range("write_bytes_per_s", self.write_bytes_per_s, rate_min, BYTES_MAX)
        check_range("memory_bytes", self.memory_bytes, MEMORY_BYTES_MIN, BYTES_MAX)
        check_range("scratch_bytes", self.scratch_bytes, 0, BYTES_MAX)

    def share(self, tasks: int) -> Budget:
        """The budget of one of `tasks` parallel tasks: rates and memory are divided.

        No limit is divided below the least valid value.
        """
        return replace(self, **self._shared(tasks))

    def _shared(self, tasks: int) -> dict[str, Any]:
        count = max(1, tasks)

        def part(rate: int | None) -> int | None:
            return None if rate is None else max(RATE_BYTES_PER_S_MIN, rate // count)

        return {
            "read_bytes_per_s": part(self.read_bytes_per_s),
            "write_bytes_per_s": part(self.write_bytes_per_s),
            "memory_bytes": max(MEMORY_BYTES_MIN, self.memory_bytes // count),
        }

    @property
    def changes(self) -> bool:
        """Can the rate for reading and writing change during the run?"""
        return False

    def bytes_per_s_now(self) -> int | None:
        """The current rate; None if it is unknown."""
        return None


class Allowance:
    """Enforces the budget of one run or task: its threads call here before they read or write.

    `reads` and `writes` are its buckets; `set_rate` on them works during the run. They start empty:
    a run has thousands of tasks, and a burst for each would defeat the limit. If the rate of the
    budget can change (`pace.py`), it is read a few times a second.
    `stop` is called wherever `check` is and may raise.
    """

    def __init__(
        self, budget: Budget, clock: Clock, stop: Callable[[], None] = lambda: None
    ) -> None:
        self.budget = budget
        self.reads = TokenBucket(budget.read_bytes_per_s, clock, saved_bytes=0)
        self.writes = TokenBucket(budget.write_bytes_per_s, clock, saved_bytes=0)
        self._stop = stop
        self._clock = clock
        self._follow_s = clock.monotonic_s() if budget.changes else inf
        self._follow()
        self._lock = threading.Lock()
        self._bytes_read = 0
        self._bytes_written = 0
        self._waited_s = 0.0

    @property
    def bytes_read(self) -> int:
        """Bytes admitted for reading."""
        return self._bytes_read

    @property
    def bytes_written(self) -> int:
        """Bytes admitted for writing."""
        return self._bytes_written

    @property
    def waited_s(self) -> float:
        """Seconds slept for the rates, summed over all threads."""
        return self._waited_s

    def check(self) -> None:
        """Raise if the run was asked to stop."""
        self._stop()
        self._follow()

    def _follow(self) -> None:
        """Apply the current rate of the budget."""
        now_s = self._clock.monotonic_s()
        if now_s < self._follow_s:
            return
        self._follow_s = now_s + FOLLOW_S
        rate = self.budget.bytes_per_s_now()
        if rate is not None:
            self.reads.set_rate(min(rate, self.budget.read_bytes_per_s or rate))
            self.writes.set_rate(min(rate, self.budget.write_bytes_per_s or rate))

    def read(self, size_bytes: int) -> None:
        """Wait until `size_bytes` may be read."""
        self.check()
        waited_s = self.reads.take(size_bytes, self.check)
        with self._lock:
            self._bytes_read += size_bytes
            self._waited_s += waited_s

    def write(self, size_bytes: int) -> None:
        """Wait until `size_bytes` may be written."""
        self.check()
        waited_s = self.writes.take(size_bytes, self.check)
        with self._lock:
            self._bytes_written += size_bytes
            self._waited_s += waited_s


def reserve_scratch(
    fs: FileSystem, path: str, needed_bytes: int, scratch_bytes: int | None
) -> None:
    """Refuse the run now if its output cannot fit, instead of failing half way.

    `path` must exist on the disk to be written to; `scratch_bytes` is the limit of the budget.
    """
    available_bytes = fs.free_bytes(path)
    limit_bytes = available_bytes if scratch_bytes is None else scratch_bytes
    if needed_bytes > min(available_bytes, limit_bytes):
        limit = "none" if scratch_bytes is None else f"{scratch_bytes} bytes"
        raise RunRefused(
            "scratch space",
            f"needs {needed_bytes} bytes on the disk of {path}, "
            f"available {available_bytes} bytes, limit {limit}",
        )


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
                raise RunRefused("disk", holder)
            return DiskTurn(lambda: _in_process.release(device))
        lock_path = f"{self._directory}/disk-{device}.lock"
        lock = self._fs.lock(lock_path, owner)
        if lock is None:
            holder = read_file(self._fs, lock_path).decode("utf-8", "replace").strip()
            raise RunRefused("disk", holder or f"disk {device} is in use by an unnamed run")
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
