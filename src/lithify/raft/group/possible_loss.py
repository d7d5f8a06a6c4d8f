"""A member that may have lost entries which it has acknowledged (`raft/storage/wal/recovery.py`).

1. It starts in the next term with its own vote, so that a leader that counts on these entries must
   be elected again.
2. It neither votes nor campaigns before it has applied an entry of a later term. A majority without
   this member elected the leader of that term, which therefore has everything that was committed;
   then this member has it too.

Called in the group's thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.logger import get_logger
from lithify.raft.core.values import HardState
from lithify.raft.pending_work import Job
from lithify.raft.storage.file_names import group_of

if TYPE_CHECKING:
    from lithify.raft.core import CoreSettings
    from lithify.raft.storage.storage import GroupStorage, RaftStorage

__all__ = ["PossibleLoss"]

log = get_logger("lithify.raft")


class PossibleLoss:
    """See the module."""

    def __init__(self, storage: RaftStorage, own: GroupStorage, node: str) -> None:
        self._storage = storage
        self._own = own
        term = own.doubt_term
        if term is not None and own.hard_state.term <= term:
            own.hard_state = HardState(term + 1, node, own.hard_state.commit)
            # First in the queue, so before anything that depends on it.
            storage.wal.save(own.group, own.hard_state)

    def __bool__(self) -> bool:
        """May entries be missing?"""
        return self._own.doubt_term is not None

    def restrict(self, settings: CoreSettings) -> CoreSettings:
        """The settings of the core of a member that does not vote meanwhile."""
        may_vote = settings.may_vote
        return replace(settings, may_vote=lambda config: not self and may_vote(config))

    def end(self, applied_term: int) -> Job | None:
        """Allow votes again, if an applied entry proves that no committed one is missing.

        The job makes that durable.
        """
        doubt_term = self._own.doubt_term
        if doubt_term is None or applied_term <= doubt_term:
            return None
        log.warning("member has caught up and votes again", group=group_of(self._own.group))
        return Job("trust", self._storage.trust(self._own.group))
