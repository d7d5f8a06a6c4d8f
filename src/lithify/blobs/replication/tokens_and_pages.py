"""The messages between replicas: tokens, claims, and pages of changes.

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
from typing import TYPE_CHECKING, Any

from lithify.blobs.errors import ReplicaAnswerInvalid
from lithify.blobs.purge_bounds import PurgedTombstones
from lithify.blobs.records import ID_BYTES_MAX, NEVER_MS, BlobRecordKind

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BlobChange",
    "BlobChanges",
    "Claim",
    "Token",
    "purged_from_row",
    "purged_row",
]

_KINDS = (BlobRecordKind.PUT, BlobRecordKind.DELETE, BlobRecordKind.TTL, BlobRecordKind.UNDELETE)


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
