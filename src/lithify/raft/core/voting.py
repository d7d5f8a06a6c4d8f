"""How a member answers one who wants to be elected. Only the engine calls it.

It says yes if

1. the candidate's log is complete as far as this member can tell: its last entry is of a higher
   term, or of the same and not at a lower index; and
2. this member has promised nothing else in that term: it has voted for the same candidate, or for
   nobody and knows no leader; or it is only a question about a term to come.

Learners answer too: one that was promoted may not know it yet. The answer is held until the vote is
durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.core.events import VoteAnswered
from lithify.raft.core.messages import VoteReply

if TYPE_CHECKING:
    from lithify.raft.core.engine import Engine
    from lithify.raft.core.messages import VoteRequest

__all__ = ["answer_vote"]


def answer_vote(engine: Engine, request: VoteRequest) -> None:
    """Answer a request of this term, or a question about a later one."""
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
    """Why not; empty for a yes."""
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
