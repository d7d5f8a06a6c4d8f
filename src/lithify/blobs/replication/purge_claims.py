"""The rules of claims: what a store must know of a peer before it applies its changes.

A store A that sends another one, N, a token that covers what N has **purged** claims: A has no blob
whose delete N has dropped. N reads from A because of this claim. A may claim it for three reasons,
and each must stay true while A reads others:

1. A has read the delete. It is in A's log, so older states are not applied. If A drops it, all
   peers of A have passed it; a peer that is added later is stale at A and sweeps.
2. A has swept: it deleted what N did not know. But A knows nothing of blobs that it did not have,
   and would take one from a store E that still has it.
3. A was new to N. It may have taken such a blob from E before.

So A stores with a token its **base**: what N had purged when A swept or was new. Of later purges A
has read the deletes, or it is stale again. A also stores whether it is **settled**: whether the
claim is true of everything that A took from others.

settled
    After a sweep, immediately. When new: if the base is empty; otherwise once every other peer
    that A has **taken** something from has claimed to cover the base, and A has read it to its
    end after that claim. By then the peer has deleted what it should not have, and A has read
    those deletes.
the rule
    While A is settled, it applies nothing of a peer E unless E claims, settled, that it covers
    the base. So neither can pass on a blob that N has purged.
N's side
    N reads A only if A's token covers what N has purged and A has said that it is settled.

E sends its claims with every page, as they were before the page was built. Claims only grow, so
they are true of the page and of contents that are fetched later. Two stores that are not settled
wait for each other's claim, not for each other to be settled. To receive it, they listen: they
apply only deletes, which are accepted from every peer. So there is no deadlock. If a peer is
offline, others may have to wait until it is back or removed from the list.

Pure. Called by `read_progress.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.blobs.purge_bounds import NOTHING, PurgedTombstones
from lithify.blobs.replication.tokens_and_pages import Claim, Token, purged_from_row, purged_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["PeerProgress", "is_settled", "not_covered"]


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """How far a peer was read, and from which base."""

    token: Token
    base: PurgedTombstones
    settled: bool
    taken: bool = False
    """Whether any data may have come from it."""

    def covered_by(self, claims: Sequence[Claim]) -> Claim | None:
        """The claim that covers the base, or None."""
        there = self.token.log_id
        return next(
            (c for c in claims if c.token.log_id == there and c.token.covers(self.base)), None
        )

    def to_row(self) -> list[Any]:
        """The value for JSON."""
        return [self.token.to_row(), purged_row(self.base), self.settled, self.taken]

    @classmethod
    def from_row(cls, row: Any) -> PeerProgress:
        """Parse a value from JSON."""
        token, base, settled, taken = row
        return cls(Token.from_row(token), purged_from_row(base), bool(settled), bool(taken))


def not_covered(
    readings: Mapping[str, PeerProgress], there: str, claims: Sequence[Claim]
) -> str | None:
    """The URL of a peer whose purges the store with the log `there` may not know, or None."""
    for url, reading in readings.items():
        if reading.token.log_id == there or not reading.settled or reading.base == NOTHING:
            continue
        claim = reading.covered_by(claims)
        if claim is None or not claim.settled:
            return url
    return None


def is_settled(
    readings: Mapping[str, PeerProgress], url: str, claims: Mapping[str, Sequence[Claim]]
) -> bool:
    """Whether all applied changes cover what the peer at `url` has purged.

    `claims` has the claims that the peers sent with their last pages.
    """
    mine = readings[url]
    if mine.settled or mine.base == NOTHING:
        return True
    return all(
        mine.covered_by(claims.get(other, ())) is not None
        for other, reading in readings.items()
        if other != url and reading.taken
    )
