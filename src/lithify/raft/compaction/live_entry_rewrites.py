"""Moves scattered live entries to the head of the log, on the leader, paced by `rewrite_pacing.py`.

For each index: its command is read, the machine returns an equivalent command, and that is proposed
like any other. The machine compares before it moves anything, so changes in between are harmless.

Called in the group's thread, which reads a few entries per tick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from lithify.raft.commands import unwrap_many
from lithify.raft.compaction.rewrite_pacing import Rewriter
from lithify.raft.errors import EntryUnreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.raft.commands import RunDone
    from lithify.raft.compaction.rewrite_pacing import RewriteSettings
    from lithify.raft.machine import Machine
    from lithify.raft.storage.group_log import GroupLog

    Propose = Callable[[Sequence[bytes], RunDone], None]

__all__ = ["LiveEntryRewrites"]

S = TypeVar("S")


class LiveEntryRewrites(Generic[S]):
    """See the module."""

    def __init__(
        self, machine: Machine[S], log: GroupLog, propose: Propose, settings: RewriteSettings
    ) -> None:
        """`propose` proposes commands, and calls back with their outcome."""
        self._machine = machine
        self._log = log
        self._propose = propose
        self._rewriter = Rewriter(settings)

    @property
    def is_due(self) -> bool:
        """Are enough live entries scattered to start moving?"""
        return self._rewriter.is_scattered(self._log.state.live)

    def begin(self) -> None:
        """Start to move entries that are scattered now."""
        self._rewriter.begin(self._log.state.live)

    def stop(self) -> None:
        """Stop: this member does not lead, or leads in another term."""
        self._rewriter.stop()

    @property
    def is_idle(self) -> bool:
        """Is nothing being moved?"""
        return not self._rewriter.is_active

    def tick(self) -> None:
        """Count one tick."""
        self._rewriter.tick()

    def work(self, state: S) -> None:
        """Propose the machine's commands for a few live entries."""
        if not self._rewriter.is_active:
            return
        live = self._log.state.live
        for index in self._rewriter.take():
            command = None
            if index in live:
                try:
                    _, (found,) = unwrap_many([self._log.read([index])[0].payload])
                    command = self._machine.rewrite_command(state, index, found)
                except EntryUnreadable:
                    # The entry stays where it is until it is repaired.
                    command = None
            if command is None:
                self._rewriter.settled()
            else:
                self._rewriter.moved(len(command))
                self._propose([command], lambda *_: self._rewriter.settled())
