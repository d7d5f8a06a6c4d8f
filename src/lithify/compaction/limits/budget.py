"""What one run may use: bytes per second, memory, scratch disk, and the disk itself.

The token bucket counts two sums, bytes asked for and bytes earned:

1. A taker adds its bytes to the sum asked for. The new sum is its ticket.
2. Time adds `bytes_per_s` to the sum earned, which is never more than `burst_bytes` ahead of the
   sum asked for: that is all a pause can save.
3. The taker may pass as soon as the sum earned reaches its ticket. It sleeps until then, and looks
   up every tenth of a second for a new rate or a cancelled run.

So takers pass in the order they came, nobody starves, and a take larger than the burst waits in
proportion. Over any window the bytes passed are at most `bytes_per_s * window + burst_bytes`; where
one take is larger than the burst, its size stands in for the burst.

`Budget` is the setting, `Allowance` the object that a run, and each of its tasks, carries and calls
before each transfer; threads may share it. Tasks that run side by side have a share of the budget
each (`Budget.share`), so that together they keep to it wherever they run.

`DiskGate` lets one run at a time onto a disk, among all processes of a user that share the gate's
directory: it locks `disk-<device>.lock` there, and the operating system unlocks it when the
process dies. The file stays; a leftover file without a lock keeps nobody out. Only a directory that
belongs to this user and is closed to all others is used, so that nobody else can hold a lock in it
or make one of its names a link to a file of this user.
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
"""A taker looks up from its sleep this often, so a cancelled run stops within that time."""

SLEEP_S_MIN = 0.0001
"""No clock resolves less for sure, and a sleep that moves no clock would go on for ever."""

FOLLOW_S = 0.2
"""A rate that changes is looked at this often: well within the window of whoever changes it."""

RATE_BYTES_PER_S_MIN = 1 << 10
"""Below 1 KiB/s a single 64 MiB segment would take 18 hours: that is not a limit but a mistake."""

MEMORY_BYTES_MIN = 1 << 20
"""Below 1 MiB there is no room for one write buffer."""

BYTES_MAX = 1 << 50
"""1 PiB: more than any one machine reads in a second, has as memory or as scratch disk."""


class TokenBucket:
    """Lets bytes pass at a steady rate; `None` lets everything pass. Any thread may take."""

    def __init__(
        self,
        bytes_per_s: int | None,
        clock: Clock,
        burst_bytes: int | None = None,
        saved_bytes: int | None = None,
    ) -> None:
        """`saved_bytes` may pass at once to begin with: the burst, unless given."""
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
        """The rate, `None` when there is no limit."""
        return self._rate

    @property
    def burst_bytes(self) -> int:
        """What may pass at once after a pause: as set, or a tenth of a second's bytes."""
        if self._burst_setting is not None:
            return self._burst_setting
        return max(1, (self._rate or 0) // 10)

    def set_rate(self, bytes_per_s: int | None) -> None:
        """Change the rate, also for those who wait.

        What was saved or is owed stays so. A bucket that had no limit starts empty.
        """
        check_range("bytes_per_s", bytes_per_s, 1, BYTES_MAX)
        with self._lock:
            self._earn()
            self._rate = bytes_per_s
            self._earn()

    def take(self, size_bytes: int, check: Callable[[], None] | None = None) -> float:
        """Sleep until `size_bytes` may pass; the seconds slept.

        `check` is called before each sleep and ends the waiting by raising; the bytes stay taken.
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
        """How long until `ticket` is earned, at the present rate."""
        with self._lock:
            self._earn()
            if self._rate is None:
                return 0.0
            return (ticket - self._earned_bytes) / self._rate

    def _earn(self) -> None:
        """Add what the time since the last call has earned, up to the burst."""
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
    """The limits of one run. A rate of `None` is no limit; scratch of `None` is the whole disk."""

    read_bytes_per_s: int | None = None
    write_bytes_per_s: int | None = None
    memory_bytes: int = 256 << 20
    scratch_bytes: int | None = None
    delete_bytes_per_s: int | None = 16 << 30
    """Retired files are deleted no faster: freeing many extents at once stalls other writers."""

    def __post_init__(self) -> None:
        rate_min = RATE_BYTES_PER_S_MIN
        check_range("delete_bytes_per_s", self.delete_bytes_per_s, rate_min, BYTES_MAX)
        check_range("read_bytes_per_s", self.read_bytes_per_s, rate_min, BYTES_MAX)
        check_range("write_bytes_per_s", self.write_bytes_per_s, rate_min, BYTES_MAX)
        check_range("memory_bytes", self.memory_bytes, MEMORY_BYTES_MIN, BYTES_MAX)
        check_range("scratch_bytes", self.scratch_bytes, 0, BYTES_MAX)

    def share(self, tasks: int) -> Budget:
        """What one of so many tasks that run side by side may use: rates and memory, divided.

        Nothing is divided below the least a budget may have.
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
        """Is there a rate for reading and writing that may change at any time?"""
        return False

    def bytes_per_s_now(self) -> int | None:
        """That rate; None if it is not known."""
        return None


class Allowance:
    """A budget being used by one run or task: its threads ask here before they read or write.

    `reads` and `writes` are its buckets; `set_rate` on them works while the run goes on. They start
    with nothing saved: a run has thousands of tasks, and a burst for each would be no limit at all.
    A budget whose rate changes (`pace.py`) is asked for it a few times a second.
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
        """Bytes that were let through to be read."""
        return self._bytes_read

    @property
    def bytes_written(self) -> int:
        """Bytes that were let through to be written."""
        return self._bytes_written

    @property
    def waited_s(self) -> float:
        """Seconds slept for the rates, over all threads."""
        return self._waited_s

    def check(self) -> None:
        """Raise if the run was asked to stop."""
        self._stop()
        self._follow()

    def _follow(self) -> None:
        """Take over the rate that the budget says now."""
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
    """Refuse the run now if what it will write cannot fit, rather than fail half way.

    `path` must exist on the disk that will be written to; `scratch_bytes` is the budget's limit.
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
    """One run per disk among all processes that name the same `directory`.

    Those who find it taken are told by whom. The operating system releases the lock of a process
    that died, so nobody waits for one.

    If that is not private and cannot be made so, one run per disk in this process. A data
    directory is open in one process only, so the runs on it still take turns.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory

    def enter(self, path: str, owner: str) -> DiskTurn:
        """Have the disk that holds `path` until the turn is released, or raise `RunRefused`.

        `owner` is what those who are refused meanwhile get to read.
        """
        found = self._fs.stat(path)
        if found.is_symlink:
            found = self._fs.stat(f"{path}/.")
        device = found.device
        if not _make_private(self._fs, self._directory):
            log.warning("runs of other processes are not waited for", not_ours=self._directory)
            holder = _in_process.take(device, owner)
            if holder is not None:
                raise RunRefused("disk", holder)
            return DiskTurn(lambda: _in_process.release(device))
        lock_path = f"{self._directory}/disk-{device}.lock"
        lock = self._fs.lock(lock_path, owner)
        if lock is None:
            holder = read_file(self._fs, lock_path).decode("utf-8", "replace").strip()
            raise RunRefused("disk", holder or f"a run without a name uses disk {device}")
        return DiskTurn(lock.release)


class _InProcess:
    """The disks that runs of this process have without a file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[int, str] = {}

    def take(self, device: int, owner: str) -> str | None:
        """Take a disk; who has it if it is taken."""
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
    """The disk is ours until `release` or the end of the `with` block."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Let the next run in. A second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def find_gate_directory(fs: FileSystem, environ: Mapping[str, str]) -> str:
    """Where the processes of one user meet.

    1. The user's runtime directory, `$XDG_RUNTIME_DIR` or `/run/user/UID`, if it is private.
    2. A directory of the temporary one. The data directory would not do: there may be several on
       one disk. Another user may have created a directory or a link of that name before. That one
       is not private and not used (`DiskGate`), so the other user gains and blocks nothing.
    """
    user = os.geteuid()
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{user}"
    if os.path.isabs(runtime) and _is_private(fs, runtime):
        return f"{runtime}/lithify"
    return f"{tempfile.gettempdir()}/lithify-runs-{user}"


def _make_private(fs: FileSystem, directory: str) -> bool:
    """Make a directory for this user only; False if what is there is another's."""
    try:
        fs.mkdir(directory)
        return _is_private(fs, directory)
    except OSError:
        return False


def _is_private(fs: FileSystem, path: str) -> bool:
    """Is it a directory, not a link to one, that only this user can read and change?"""
    try:
        found = fs.stat(path)
    except OSError:
        return False
    return found.is_dir and found.is_private
