"""The last step of an install: a snapshot that the core has accepted becomes the log.

    job = installing.due_job(received, ready=…)     # repeatedly, until it returns one
    installed = installing.done(result)             # None: the disk refused, it is retried

1. All appends before the snapshot are durable (`ready`). The write-ahead log is rolled.
2. What it held is in segments.
3. The worker renames the snapshot and writes its live entries to a segment
   (`RaftStorage.install_job`). Meanwhile the group receives, votes and answers from its old state.
   It writes nothing: the core's next appends extend a log that does not exist yet.
4. The group takes the snapshot in.

A disk that refuses in step 3 leaves the old log or the snapshot, nothing else, and the step can be
repeated. It is retried after `RETRY_TICKS`, for as long as the node runs: the core has accepted the
snapshot, so it cannot be abandoned. Other groups are not affected. The next start continues from
the files that it finds.

Called in the group's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from lithify.errors import WriteFailed
from lithify.raft.pending_work import Job
from lithify.raft.storage.storage import InstallWritten

if TYPE_CHECKING:
    from lithify.raft.snapshots.receiving import Received
    from lithify.raft.storage.storage import RaftStorage

__all__ = ["Installed", "Installing"]

S = TypeVar("S")

RETRY_TICKS = 20


@dataclass(frozen=True, slots=True)
class Installed(Generic[S]):
    """A snapshot that has become the log on disk."""

    received: Received[S]
    written: InstallWritten


class Installing(Generic[S]):
    """See the module."""

    def __init__(self, group: str, storage: RaftStorage) -> None:
        self._group = group
        self._storage = storage
        self._roll_asked = False
        self._rolled: int | None = None
        self._received: Received[S] | None = None
        self._job: Job | None = None
        self._pause_ticks = 0

    @property
    def is_active(self) -> bool:
        """Has it started, and not finished?"""
        return self._roll_asked

    @property
    def is_idle(self) -> bool:
        """Does a tick change nothing?"""
        return not (self._roll_asked or self._pause_ticks)

    def tick(self) -> None:
        """Count one tick."""
        self._pause_ticks = max(0, self._pause_ticks - 1)

    def due_job(self, received: Received[S] | None, *, ready: bool) -> Job | None:
        """The next job of the worker."""
        if received is None or not ready or self._job is not None or self._pause_ticks:
            return None
        wal = self._storage.wal
        if not self._roll_asked:
            self._roll_asked = True
            wal.ask_roll(self._group)
        if self._rolled is None:
            self._rolled = wal.rolled_for(self._group)
        if self._rolled is None or self._storage.settled_number < self._rolled:
            return None
        self._received = received
        run = self._storage.install_job(received.install, received.live)
        self._job = Job(f"install {received.install.head.meta.index}", run)
        return self._job

    def is_job(self, job: Job) -> bool:
        """Does the job belong to this?"""
        return job is self._job

    def done(self, result: object) -> Installed[S] | None:
        """Take the result of the job."""
        self._job = None
        if isinstance(result, OSError | WriteFailed):
            self._pause_ticks = RETRY_TICKS
            return None
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, InstallWritten)
        assert self._received is not None
        installed = Installed(self._received, result)
        self._roll_asked, self._rolled, self._received = False, None, None
        return installed
