"""How a member answers a vote request. Only the engine calls it.

It grants the vote if

1. the candidate's log is at least as complete as its own: its last entry has a higher term, or the
   same term and not a lower index; and
2. this member has made no other promise in that term: it has voted for the same candidate, or has
   neither voted nor a leader; or it is a pre-vote for a later term.

Learners vote too: one that was promoted may not know it yet. The answer is held until the vote is
durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.core.events import VoteAnswered
from lithify.raft.core.messages import VoteReply

if TYPE_CHECKING:
    from lithify.raft.core.member_state import Engine
    from lithify.raft.core.messages import VoteRequest

__all__ = ["answer_vote"]


def answer_vote(engine: Engine, request: VoteRequest) -> None:
    """Answer a request of this term, or a pre-vote request for a later one."""
    refusal = _refusal(engine, request)
    granted = not refusal
    why = refusal or f"{request.sender} ends at {request.last_index}/{request.last_term}"
    event = VoteAnswered(
        engine.node, request.sender, request.term, request.pre, why, granted=granted
    )
    engine.settings.events(event)
    if granted and not request.pre:
        engine.vote = request.sender
        engine.role.rest()
    term = request.term if granted else engine.term
    reply = VoteReply(engine.node, request.sender, term, granted=granted, pre=request.pre)
    engine.hold(reply)


def _refusal(engine: Engine, request: VoteRequest) -> str:
    """The reason for a refusal; empty to grant the vote."""
    log = engine.log
    if not (request.pre and request.term > engine.term) and engine.vote != request.sender:
        if engine.vote:
            return f"{engine.node} has voted for {engine.vote}"
        if engine.role.leader:
            return f"{engine.role.leader} leads"
    if (request.last_term, request.last_index) < (log.last_term, log.last_index):
        own = f"{engine.node} ends at {log.last_index}/{log.last_term}"
        return f"{own}, {request.sender} at {request.last_index}/{request.last_term}"
    return ""
