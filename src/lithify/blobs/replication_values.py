"""What replicas say to each other, and which of two states of a blob is the newer one.

A blob's **state** is what its newest record says. States of one blob have an order, the same on
every replica, and a replica that hears of a greater state than its own takes it over, whole:

    1. the higher life version         an undelete takes back every delete of the version before
    2. deleted                         within a version nothing comes back
    3. the later change
    4. the later expiry
    5. the content: made later, then by CRC and size; of a deleted blob it does not count

So it does not matter in which order replicas hear of changes, nor how often. A change made where a
greater one is known is never older than that one (`operations.py`): what one client does after the
other always wins. Of two that knew nothing of each other, one wins whole.

A **token** says how far a replica has read another one's log: all below `position`, and in the
sealed segment named `segment` the buckets of its index below `bucket`. Only the store that made
a token can read it. Positions mean the same in every generation: a token whose segment was
compacted away goes on at the same position in what has taken its place, from the first bucket on.
`known` is the position up to which it was read before it was begun anew. `swept` counts the runs
that had forgotten deletes when the reader made good what it had not read, or was new.

A **claim** is what a store says of itself: its token of another log, and whether it is settled.
`replication_claims.py` has what that means.

Pure values, with their JSON. Anybody may use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from lithify.blobs.errors import ReplicaTalksNonsense
from lithify.blobs.forgotten import Forgotten
from lithify.blobs.records import ID_BYTES_MAX, NEVER_MS, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.blobs.index import Found
    from lithify.blobs.records import Identity

__all__ = [
    "Advice",
    "Change",
    "Changes",
    "Claim",
    "Token",
    "advise",
    "forgotten_from_row",
    "forgotten_row",
    "rank_of",
]

_KINDS = (Kind.PUT, Kind.DELETE, Kind.TTL, Kind.UNDELETE)
_Rank = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Token:
    """A place in the log of the store with this id."""

    log_id: str
    position: int
    segment: str = ""
    bucket: int = 0
    swept: int = 0
    known: int = -1

    @property
    def read_to(self) -> int:
        """The last position that was read."""
        return max(self.position - 1, self.known)

    def covers(self, forgotten: Forgotten) -> bool:
        """Whether whoever has it knows everything that the store has forgotten."""
        return self.read_to >= forgotten.position or self.swept >= forgotten.count

    def to_row(self) -> list[Any]:
        """For JSON."""
        return [self.log_id, self.position, self.segment, self.bucket, self.swept, self.known]

    @classmethod
    def from_row(cls, row: object) -> Token:
        """Read back."""
        return cls(*_checked(row, (str, int, str, int, int, int), "token"))


@dataclass(frozen=True, slots=True)
class Claim:
    """What a store says that it knows of another one's forgetting."""

    token: Token
    settled: bool

    def to_row(self) -> list[Any]:
        """For JSON."""
        return [self.token.to_row(), self.settled]

    @classmethod
    def from_row(cls, row: object) -> Claim:
        """Read back."""
        token, settled = _checked(row, (list, bool), "claim")
        return cls(Token.from_row(token), settled)


@dataclass(frozen=True, slots=True)
class Change:
    """The state of one blob."""

    blob_id: str
    kind: Kind
    life_version: int
    time_ms: int
    expiry_ms: int
    created_ms: int = 0
    """0 like size and CRC, where the blob is deleted, or expired and its content gone."""
    size: int = 0
    content_crc: int = 0

    @property
    def deleted(self) -> bool:
        """Is this the state after a delete?"""
        return self.kind is Kind.DELETE

    @property
    def is_first(self) -> bool:
        """Is this the state that the blob was made in? Every change is later or undeletes."""
        made = self.kind is Kind.PUT and self.time_ms == self.created_ms
        return made and self.life_version == 0

    @property
    def rank(self) -> _Rank:
        """Its place in the order of states."""
        content = (self.created_ms, self.content_crc, self.size)
        return _rank(self.deleted, self.life_version, self.time_ms, self.expiry_ms, content)

    def to_row(self) -> list[Any]:
        """For JSON."""
        state = self.life_version, self.time_ms, self.expiry_ms
        content = self.created_ms, self.size, self.content_crc
        return [self.blob_id, int(self.kind), *state, *content]

    @classmethod
    def from_row(cls, row: object) -> Change:
        """Read back, checked."""
        blob_id, kind, *numbers = _checked(row, (str, *[int] * 7), "change")
        if (
            not 0 < len(blob_id.encode()) <= ID_BYTES_MAX
            or kind not in _KINDS
            or not all(0 <= number <= NEVER_MS for number in numbers)
        ):
            raise ReplicaTalksNonsense(f"change {row!r} cannot be")
        return cls(blob_id, Kind(kind), *numbers)


@dataclass(frozen=True, slots=True)
class Changes:
    """A page of them."""

    changes: tuple[Change, ...]
    token: Token
    """From where to go on."""
    more: bool
    """Whether there was more to tell."""
    behind: int
    """Positions from the token to the end of the log."""
    forgotten: Forgotten
    reset: bool = False
    """The token given was not one of this log as it is: this is the beginning."""
    stale: bool = False
    """The reader has missed deletes that are forgotten, and must sweep before it reads."""
    claims: tuple[Claim, ...] = ()
    """What the store knew of others before it made the page."""

    def to_json(self) -> dict[str, Any]:
        """For the wire."""
        return {
            "changes": [change.to_row() for change in self.changes],
            "token": self.token.to_row(),
            "more": self.more,
            "behind": self.behind,
            "forgotten": forgotten_row(self.forgotten),
            "reset": self.reset,
            "stale": self.stale,
            "claims": [claim.to_row() for claim in self.claims],
        }

    @classmethod
    def from_json(cls, value: object) -> Changes:
        """Read back; fields that are not known are left alone."""
        try:
            row: Any = value
            return cls(
                tuple(Change.from_row(each) for each in row["changes"]),
                Token.from_row(row["token"]),
                bool(row["more"]),
                int(row["behind"]),
                forgotten_from_row(row["forgotten"]),
                bool(row["reset"]),
                bool(row["stale"]),
                tuple(Claim.from_row(each) for each in row["claims"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ReplicaTalksNonsense(f"changes are not what they should be: {error!r}") from error


class Advice(Enum):
    """What to do about a state that another replica has."""

    NOTHING = "ours is as new, or nothing would be left of it"
    CHANGE = "append its record; the content is here"
    FETCH = "its content is needed"


def _rank(
    deleted: bool,  # noqa: FBT001  (a place in an order)
    life_version: int,
    time_ms: int,
    expiry_ms: int,
    content: tuple[int, int, int],
) -> _Rank:
    return (life_version, deleted, time_ms, expiry_ms, *((0, 0, 0) if deleted else content))


def rank_of(found: Found, identity: Identity | None) -> _Rank:
    """The place in the order of a blob in a store; `identity` is its put's, if it is there."""
    newest = found.newest
    content = (
        (0, 0, 0)
        if identity is None
        else (identity.created_ms, identity.content_crc, identity.size)
    )
    deleted = newest.kind is Kind.DELETE
    return _rank(deleted, newest.life_version, newest.time_ms, newest.expiry_ms, content)


def advise(
    change: Change,
    found: Found | None,
    identity: Identity | None,
    now_ms: int,
    deleted_before_ms: int,
) -> Advice:
    """What a store that has `found` of a blob does about a change.

    A content that is expired or gone may be dropped by a run at any moment: then it is fetched
    again. A delete, and an expiry that has passed, are taken over also by a store that never had
    the blob, so that it does not take the blob from a third one.
    """
    if found is not None and change.rank <= rank_of(found, identity):
        # A put that came with a state of later is followed by it, so that it is not taken for
        # the first one; a crash may have come in between.
        same = change.rank == rank_of(found, identity)
        alone = same and found.newest.kind is Kind.PUT and not change.is_first
        return Advice.CHANGE if alone else Advice.NOTHING
    if change.deleted:
        return Advice.CHANGE
    if now_ms > change.expiry_ms or not change.created_ms:
        if found is None:
            # An expiry that was set is as good as a delete; the first is known to who has a blob.
            return Advice.NOTHING if change.is_first else Advice.CHANGE
        # Which content is expired does not matter.
        known = change.rank[:4] <= rank_of(found, identity)[:4]
        return Advice.NOTHING if known else Advice.CHANGE
    if found is None or identity is None:
        return Advice.FETCH
    newest = found.newest
    gone = newest.kind is Kind.DELETE and newest.time_ms < deleted_before_ms
    theirs = (change.created_ms, change.content_crc, change.size)
    same = theirs == (identity.created_ms, identity.content_crc, identity.size)
    return Advice.FETCH if gone or now_ms > newest.expiry_ms or not same else Advice.CHANGE


def forgotten_row(forgotten: Forgotten) -> list[int]:
    """For JSON."""
    return [forgotten.position, forgotten.time_ms, forgotten.count]


def forgotten_from_row(row: object) -> Forgotten:
    """Read back."""
    return Forgotten(*_checked(row, (int, int, int), "what is forgotten"))


def _checked(row: object, kinds: Sequence[type], what: str) -> list[Any]:
    """The values of a row, which must be of these kinds."""
    if not isinstance(row, list | tuple) or [type(value) for value in row] != list(kinds):
        raise ReplicaTalksNonsense(f"{what} {row!r} is not what it should be")
    return list(row)
