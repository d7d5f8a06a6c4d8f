"""The messages between replicas, and the order of the states of a blob.

The **state** of a blob is given by its newest record. The states of one blob have an order, the
same on every replica. A replica that receives a greater state than its own replaces its own:

    1. the higher life version         an undelete undoes all deletes of the version before
    2. deleted                         within a version a delete is final
    3. the later change
    4. the later expiry
    5. the content: created later, then by CRC and size; ignored if the blob is deleted

So the order in which replicas receive changes does not matter, nor how often. A change that is made
with knowledge of a greater one is never older than that one (`blobs/writes.py`): of two operations
of one client, the later one always wins. Of two concurrent changes, one wins as a whole.

A **token** tells how far a replica has read another one's log: all below `position`, and in the
sealed segment named `segment` the buckets of its index below `bucket`. Only the store that issued a
token can interpret it. Positions are the same in every generation: if the segment of a token was
compacted away, reading continues at the same position in its replacement, from the first bucket on.
`known` is the position up to which the log was read before reading restarted. `swept` counts the
runs that had purged deletes when the reader swept or was new.

A **claim** is what a store says of itself: its token of another log, and whether it is settled.
`purge_claims.py` explains its meaning.

Pure values with their JSON. Any module may use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from lithify.blobs.errors import ReplicaAnswerInvalid
from lithify.blobs.purged_tombstones import PurgedTombstones
from lithify.blobs.records import ID_BYTES_MAX, NEVER_MS, BlobRecordKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.blobs.index import FoundRecords
    from lithify.blobs.records import RecordIdentity

__all__ = [
    "Advice",
    "BlobChange",
    "BlobChanges",
    "Claim",
    "Token",
    "advise",
    "purged_from_row",
    "purged_row",
    "rank_of",
]

_KINDS = (BlobRecordKind.PUT, BlobRecordKind.DELETE, BlobRecordKind.TTL, BlobRecordKind.UNDELETE)
_Rank = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Token:
    """A position in the log of the store with this id."""

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

    def covers(self, purged: PurgedTombstones) -> bool:
        """Whether a reader with this token knows everything that the store has purged."""
        return self.read_to >= purged.position or self.swept >= purged.count

    def to_row(self) -> list[Any]:
        """The value for JSON."""
        return [self.log_id, self.position, self.segment, self.bucket, self.swept, self.known]

    @classmethod
    def from_row(cls, row: object) -> Token:
        """Parse a value from JSON."""
        return cls(*_checked(row, (str, int, str, int, int, int), "token"))


@dataclass(frozen=True, slots=True)
class Claim:
    """What a store says that it knows of the purges of another one."""

    token: Token
    settled: bool

    def to_row(self) -> list[Any]:
        """The value for JSON."""
        return [self.token.to_row(), self.settled]

    @classmethod
    def from_row(cls, row: object) -> Claim:
        """Parse a value from JSON."""
        token, settled = _checked(row, (list, bool), "claim")
        return cls(Token.from_row(token), settled)


@dataclass(frozen=True, slots=True)
class BlobChange:
    """The state of one blob."""

    blob_id: str
    kind: BlobRecordKind
    life_version: int
    time_ms: int
    expiry_ms: int
    created_ms: int = 0
    """0, like size and CRC, if the blob is deleted, or expired and its content gone."""
    size: int = 0
    content_crc: int = 0

    @property
    def deleted(self) -> bool:
        """Whether this is the state after a delete."""
        return self.kind is BlobRecordKind.DELETE

    @property
    def is_first(self) -> bool:
        """Whether this is the initial state of the blob. Every change is later or undeletes."""
        made = self.kind is BlobRecordKind.PUT and self.time_ms == self.created_ms
        return made and self.life_version == 0

    @property
    def rank(self) -> _Rank:
        """The position in the order of states."""
        content = (self.created_ms, self.content_crc, self.size)
        return _rank(self.deleted, self.life_version, self.time_ms, self.expiry_ms, content)

    def to_row(self) -> list[Any]:
        """The value for JSON."""
        state = self.life_version, self.time_ms, self.expiry_ms
        content = self.created_ms, self.size, self.content_crc
        return [self.blob_id, int(self.kind), *state, *content]

    @classmethod
    def from_row(cls, row: object) -> BlobChange:
        """Parse and check a value from JSON."""
        blob_id, kind, *numbers = _checked(row, (str, *[int] * 7), "change")
        if (
            not 0 < len(blob_id.encode()) <= ID_BYTES_MAX
            or kind not in _KINDS
            or not all(0 <= number <= NEVER_MS for number in numbers)
        ):
            raise ReplicaAnswerInvalid(f"change {row!r} is invalid")
        return cls(blob_id, BlobRecordKind(kind), *numbers)


@dataclass(frozen=True, slots=True)
class BlobChanges:
    """A page of changes."""

    changes: tuple[BlobChange, ...]
    token: Token
    """Where to continue."""
    more: bool
    """Whether more changes follow."""
    behind: int
    """Positions from the token to the end of the log."""
    purged: PurgedTombstones
    reset: bool = False
    """The given token does not belong to this log: this page is the beginning."""
    stale: bool = False
    """The reader has missed purged deletes, and must sweep before it reads."""
    claims: tuple[Claim, ...] = ()
    """What the store knew of others before it built the page."""

    def to_json(self) -> dict[str, Any]:
        """The value for the wire."""
        return {
            "changes": [change.to_row() for change in self.changes],
            "token": self.token.to_row(),
            "more": self.more,
            "behind": self.behind,
            "forgotten": purged_row(self.purged),
            "reset": self.reset,
            "stale": self.stale,
            "claims": [claim.to_row() for claim in self.claims],
        }

    @classmethod
    def from_json(cls, value: object) -> BlobChanges:
        """Parse a value from the wire; unknown fields are ignored."""
        try:
            row: Any = value
            return cls(
                tuple(BlobChange.from_row(each) for each in row["changes"]),
                Token.from_row(row["token"]),
                bool(row["more"]),
                int(row["behind"]),
                purged_from_row(row["forgotten"]),
                bool(row["reset"]),
                bool(row["stale"]),
                tuple(Claim.from_row(each) for each in row["claims"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ReplicaAnswerInvalid(f"page of changes is invalid: {error!r}") from error


class Advice(Enum):
    """What to do with a state of another replica."""

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


def rank_of(found: FoundRecords, identity: RecordIdentity | None) -> _Rank:
    """The position of a blob of the store in the order; `identity` is its put's, if that exists."""
    newest = found.newest
    content = (
        (0, 0, 0)
        if identity is None
        else (identity.created_ms, identity.content_crc, identity.size)
    )
    deleted = newest.kind is BlobRecordKind.DELETE
    return _rank(deleted, newest.life_version, newest.time_ms, newest.expiry_ms, content)


def advise(
    change: BlobChange,
    found: FoundRecords | None,
    identity: RecordIdentity | None,
    now_ms: int,
    deleted_before_ms: int,
) -> Advice:
    """What a store that has `found` of a blob does with a change.

    A run may drop an expired or gone content at any moment, so it is fetched again. A delete, or an
    expiry that has passed, is recorded even if the store never had the blob, so that it does not
    take the blob from a third replica.
    """
    if found is not None and change.rank <= rank_of(found, identity):
        # A put that was fetched in a later state is followed by a record of that state, so that it
        # is not taken for the initial one; a crash may have come in between.
        same = change.rank == rank_of(found, identity)
        alone = same and found.newest.kind is BlobRecordKind.PUT and not change.is_first
        return Advice.CHANGE if alone else Advice.NOTHING
    if change.deleted:
        return Advice.CHANGE
    if now_ms > change.expiry_ms or not change.created_ms:
        if found is None:
            # An expiry that was set is as good as a delete; every store with the blob knows the
            # initial one.
            return Advice.NOTHING if change.is_first else Advice.CHANGE
        # The contents of expired blobs are not compared.
        known = change.rank[:4] <= rank_of(found, identity)[:4]
        return Advice.NOTHING if known else Advice.CHANGE
    if found is None or identity is None:
        return Advice.FETCH
    newest = found.newest
    gone = newest.kind is BlobRecordKind.DELETE and newest.time_ms < deleted_before_ms
    theirs = (change.created_ms, change.content_crc, change.size)
    same = theirs == (identity.created_ms, identity.content_crc, identity.size)
    return Advice.FETCH if gone or now_ms > newest.expiry_ms or not same else Advice.CHANGE


def purged_row(purged: PurgedTombstones) -> list[int]:
    """The value for JSON."""
    return [purged.position, purged.time_ms, purged.count]


def purged_from_row(row: object) -> PurgedTombstones:
    """Parse a value from JSON."""
    return PurgedTombstones(*_checked(row, (int, int, int), "purge bounds"))


def _checked(row: object, kinds: Sequence[type], what: str) -> list[Any]:
    """The values of a row, which must be of these types."""
    if not isinstance(row, list | tuple) or [type(value) for value in row] != list(kinds):
        raise ReplicaAnswerInvalid(f"{what} {row!r} is invalid")
    return list(row)
