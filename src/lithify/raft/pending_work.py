"""The work that a group has for others: messages to send, jobs for other threads. Pure values.

A job is called without arguments in another thread; `Group.job_done` gets what it returns or
raises. It accesses files, but nothing that the group changes meanwhile. The worker runs its jobs
one at a time, in order. Reads are short, a client waits for them, and they may run concurrently and
in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.core.messages import RaftMessage
    from lithify.raft.machine import Send

    SendNow = Callable[[list[RaftMessage]], None]

__all__ = ["Job", "Outgoing"]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A unit of work for another thread; compared by identity."""

    what: str
    """For logs, such as `snapshot 4096`."""
    run: Callable[[], object]

    def __call__(self) -> object:
        """Run it."""
        return self.run()


@dataclass(slots=True)
class Outgoing:
    """The result of `Group.work`."""

    messages: list[RaftMessage] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    """For the worker."""
    reads: list[Job] = field(default_factory=list)
    """For a reader."""
    sends: list[Send] = field(default_factory=list)
    """What the machine sends to clients, on the leader."""
    again: bool = False
    """Is there more to do, after others had their turn?"""
