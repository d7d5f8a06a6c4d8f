"""Phase 4 in a group that leads: has scattered live entries written again, as `rewriting.py` paces.

For each index that is taken: its command is read, the machine says what does the same again, and
that is proposed like any other command. The machine compares before it moves anything, so it does
not matter what happens between.

The group's thread calls, and reads in it: some entries a tick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from lithify.raft.errors import EntryUnreadable
from lithify.raft.requests import unwrap_many
from lithify.raft.rewriting import Rewriter

if TYPE_CHECKING:
    from lithify.raft.group_log import GroupLog
    from lithify.raft.machine import Machine
    from lithify.raft.requests import Proposals
    from lithify.raft.rewriting import RewriteSettings

__all__ = ["Moving"]

S = TypeVar("S")


class Moving(Generic[S]):
    """See the module."""

    def __init__(
        self, machine: Machine[S], log: GroupLog, proposals: Proposals, settings: RewriteSettings
    ) -> None:
        self._machine = machine
        self._log = log
        self._proposals = proposals
        self._rewriter = Rewriter(settings)

    @property
    def is_due(self) -> bool:
        """Is so much scattered that it should begin by itself?"""
        return self._rewriter.is_scattered(self._log.state.live)

    def begin(self) -> None:
        """Move what is scattered now."""
        self._rewriter.begin(self._log.state.live)

    def stop(self) -> None:
        """Move no more: this member does not lead, or in another term."""
        self._rewriter.stop()

    def tick(self) -> None:
        """Time has passed."""
        self._rewriter.tick()

    def work(self, state: S) -> None:
        """Propose for some live entries what the machine says."""
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
                    # It stays where it is until it is repaired.
                    command = None
            if command is None:
                self._rewriter.settled()
            else:
                self._rewriter.moved(len(command))
                self._proposals.add([command], lambda *_: self._rewriter.settled())
