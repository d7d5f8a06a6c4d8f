"""What a store must know of a peer before it takes anything from it: the rules of claims.

A store that shows another one, N, a token that covers what N has **forgotten** claims: I have no
blob whose delete N has dropped. N reads from it on the strength of that. A store A may claim it for
three reasons, and each has to stay true while A reads others:

1. A has read the delete. It is in A's log, and what is older is not taken. If A drops it, then all
   of A's peers have passed it, and one that comes later is stale at A and sweeps.
2. A has swept: what N did not know was deleted. Of what A did not have it knows nothing, and would
   take it from an E that still has it.
3. A was new to N. It may have taken such a blob from E before.

So with a token A keeps its **base**: what N had forgotten when A swept or was new. All that N
forgets later A has read, or it is stale again. And it keeps whether it is **settled**: whether the
claim is true also of what A took from others.

settled
    After a sweep, at once. When new: if the base is nothing; else once every other peer that A
    has **taken** something from has claimed to cover the base, and has been read to its end after
    that: by then it has deleted what it should not have, and A has heard of it.
the rule
    While A is settled it takes nothing from a peer E that does not say, settled, that it covers
    the base. So neither can hand the other what N has forgotten.
N's side
    N reads A only if A's token covers, and A has said that it is settled.

E says what it claims with every page, as it was before the page was made: claims only grow, so they
are true of the page too, and of contents that are fetched later. Two stores that are not settled
wait for each other's claim, not for the other to be settled, and to hear it they only listen: to
deletes, which are taken from anybody. So nobody waits for ever. Where a peer is away, others may
have to wait for it, until it is back or no longer in the list.

Pure. Called by `replication.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.blobs.forgotten import NOTHING, Forgotten
from lithify.blobs.replication_values import Claim, Token, forgotten_from_row, forgotten_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Reading", "is_settled", "not_covered"]


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a peer was read, and from what on."""

    token: Token
    base: Forgotten
    settled: bool
    taken: bool = False
    """Whether anything may have come from there."""

    def covered_by(self, claims: Sequence[Claim]) -> Claim | None:
        """The claim that covers the base, if there is one."""
        there = self.token.log_id
        return next(
            (c for c in claims if c.token.log_id == there and c.token.covers(self.base)), None
        )

    def to_row(self) -> list[Any]:
        """For JSON."""
        return [self.token.to_row(), forgotten_row(self.base), self.settled, self.taken]

    @classmethod
    def from_row(cls, row: Any) -> Reading:
        """Read back."""
        token, base, settled, taken = row
        return cls(Token.from_row(token), forgotten_from_row(base), bool(settled), bool(taken))


def not_covered(readings: Mapping[str, Reading], there: str, claims: Sequence[Claim]) -> str | None:
    """The URL of a peer whose forgetting the store with the log `there` may not know."""
    for url, reading in readings.items():
        if reading.token.log_id == there or not reading.settled or reading.base == NOTHING:
            continue
        claim = reading.covered_by(claims)
        if claim is None or not claim.settled:
            return url
    return None


def is_settled(
    readings: Mapping[str, Reading], url: str, heard: Mapping[str, Sequence[Claim]]
) -> bool:
    """Whether it is true of all that was taken that it covers what the peer at `url` forgot.

    `heard` has what the peers claimed with a page that was their last.
    """
    mine = readings[url]
    if mine.settled or mine.base == NOTHING:
        return True
    return all(
        mine.covered_by(heard.get(other, ())) is not None
        for other, reading in readings.items()
        if other != url and reading.taken
    )
