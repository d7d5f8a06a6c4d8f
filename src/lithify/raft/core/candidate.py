"""A candidate: requests votes, first as a pre-candidate without a new term."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.core.messages import (
    AppendRequest,
    Commit,
    Heartbeat,
    InstallSnapshot,
    Sleep,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from lithify.raft.core.quorum import VoteTally, tally
from lithify.raft.core.ready import Role
from lithify.raft.core.values import NOBODY

if TYPE_CHECKING:
    from lithify.raft.core.member_state import Engine
    from lithify.raft.core.messages import RaftMessage

from lithify.raft.core.role_state import RoleState

__all__ = ["Candidate"]


class Candidate(RoleState):
    """Requests votes, or with `pre` pre-votes."""

    def __init__(self, engine: Engine, *, pre: bool) -> None:
        super().__init__(engine)
        self.kind = Role.PRE_CANDIDATE if pre else Role.CANDIDATE
        self._pre = pre
        self._votes: dict[str, bool] = {}

    def request_votes(self, *, forced: bool) -> None:
        """Request the vote of every voter, including this member."""
        engine, log, pre = self.engine, self.engine.log, self._pre
        term = engine.term + pre
        for peer in sorted(engine.members.config.electorate - {engine.node}):
            request = VoteRequest(
                engine.node, peer, term, log.last_index, log.last_term, pre=pre, forced=forced
            )
            if pre:
                engine.outbox.send(request)
            else:
                engine.hold(request)
        own = VoteReply(engine.node, engine.node, term, granted=True, pre=pre)
        if pre:
            self.receive(own)
        else:
            engine.hold(own)

    def receive(self, message: RaftMessage) -> None:
        """Count votes, or follow another leader of this term."""
        engine = self.engine
        if isinstance(message, AppendRequest | Commit | Heartbeat | InstallSnapshot | Sleep):
            engine.follow(engine.term, message.sender)
            engine.role.receive(message)
        elif isinstance(message, TimeoutNow):
            engine.campaign(forced=True)
        elif isinstance(message, VoteReply) and message.pre == self._pre:
            if message.term != engine.term + (self._pre and message.granted):
                return
            self._votes.setdefault(message.sender, message.granted)
            self._count()

    def _count(self) -> None:
        engine = self.engine
        result = tally(engine.members.config, self._votes)
        if result is VoteTally.WON and self._pre:
            engine.stand(forced=False)
        elif result is VoteTally.WON:
            engine.lead()
        elif result is VoteTally.LOST:
            engine.follow(engine.term, NOBODY)
