"""Lets a snapshot that the core has taken become the log: the last step of an install, with waits.

    job = installing.due_job(received, ready=…)     # again and again, until there is one
    installed = installing.done(result)             # None: the disk has refused, it is tried again

1. All that the group was to write before is durable (`ready`). The write-ahead log is rolled.
2. What it held is in segments.
3. The worker gives the snapshot its name and writes its live entries to a segment
   (`RaftStorage.install_job`), while the group goes on to hear, vote and answer from its old state.
   It writes nothing: what the core wants written stands on the log that is not there yet.
4. The group takes it in.

A disk that refuses in step 3 leaves the old log or the snapshot, never something else, and what was
to be done can be done again: it is, after `RETRY_TICKS`, for as long as the node runs. The core has
taken the snapshot, so there is no way back; but this is about one group, and the others go on. The
next start goes by what it finds.

The group's thread calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from lithify.errors import WriteFailed
from lithify.raft.jobs import Job
from lithify.raft.storage import InstallWritten

if TYPE_CHECKING:
    from lithify.raft.receiving import Received
    from lithify.raft.storage import RaftStorage

__all__ = ["Installed", "Installing"]

S = TypeVar("S")

RETRY_TICKS = 20


@dataclass(frozen=True, slots=True)
class Installed(Generic[S]):
    """A snapshot that is the log on disk."""

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
        """Has it begun, and not come to its end?"""
        return self._roll_asked

    def tick(self) -> None:
        """Time has passed."""
        self._pause_ticks = max(0, self._pause_ticks - 1)

    def due_job(self, received: Received[S] | None, *, ready: bool) -> Job | None:
        """What the worker is to do now."""
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
        """Is the job one of this?"""
        return job is self._job

    def done(self, result: object) -> Installed[S] | None:
        """The job has ended."""
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
