"""Which of two states of a blob wins: the order of states, and what a replica does with a change.

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

Pure. Called by `apply.py`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from lithify.blobs.records import BlobRecordKind

if TYPE_CHECKING:
    from lithify.blobs.index import FoundRecords
    from lithify.blobs.records import RecordIdentity
    from lithify.blobs.replication.tokens_and_pages import BlobChange

__all__ = ["Advice", "Rank", "advise", "rank_of", "rank_of_change"]

Rank = tuple[int, ...]


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
) -> Rank:
    return (life_version, deleted, time_ms, expiry_ms, *((0, 0, 0) if deleted else content))


def rank_of_change(change: BlobChange) -> Rank:
    """The position of a state of another replica in the order."""
    content = (change.created_ms, change.content_crc, change.size)
    return _rank(change.deleted, change.life_version, change.time_ms, change.expiry_ms, content)


def rank_of(found: FoundRecords, identity: RecordIdentity | None) -> Rank:
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
    if found is not None and rank_of_change(change) <= rank_of(found, identity):
        # A put that was fetched in a later state is followed by a record of that state, so that it
        # is not taken for the initial one; a crash may have come in between.
        same = rank_of_change(change) == rank_of(found, identity)
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
        known = rank_of_change(change)[:4] <= rank_of(found, identity)[:4]
        return Advice.NOTHING if known else Advice.CHANGE
    if found is None or identity is None:
        return Advice.FETCH
    newest = found.newest
    gone = newest.kind is BlobRecordKind.DELETE and newest.time_ms < deleted_before_ms
    theirs = (change.created_ms, change.content_crc, change.size)
    same = theirs == (identity.created_ms, identity.content_crc, identity.size)
    return Advice.FETCH if gone or now_ms > newest.expiry_ms or not same else Advice.CHANGE
