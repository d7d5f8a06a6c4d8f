"""What a group wants done by others: messages to send, work for other threads. Pure values.

A job is called without arguments in another thread, and what it returns or raises is given back to
`Group.job_done`. It touches files, but nothing that the group changes meanwhile. Those of the
worker are done one at a time, in the order in which they were handed out. Reads are short, somebody
waits for them, and they may be done together and in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.core.messages import Message
    from lithify.raft.machine import Send

__all__ = ["Job", "Outgoing"]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Work that takes its time; each is itself and equal to no other."""

    what: str
    """For logs, such as `snapshot 4096`."""
    run: Callable[[], object]

    def __call__(self) -> object:
        """Do it."""
        return self.run()


@dataclass(slots=True)
class Outgoing:
    """What `Group.work` hands out."""

    messages: list[Message] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    """For the worker."""
    reads: list[Job] = field(default_factory=list)
    """For a reader."""
    sends: list[Send] = field(default_factory=list)
    """What the machine sends to its clients, on the leader."""
