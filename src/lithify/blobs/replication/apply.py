"""The applying side of replication: writes the changes of another replica into the store.

1. A change that is newer than the state in the store (`which_state_wins.py`) is appended as a
   record with its original time, expiry and life version. A delete is applied even if the blob is
   not known.
2. If the content is needed, it is fetched and put with the blob's current state at the other
   replica: one record, so that no reader sees an outdated state. If that is not the initial state,
   a ttl with the same state follows: when the blob expires, the put is dropped at once, but the ttl
   only when every replica has passed it.
3. A compaction between a request and its answer could drop a delete that the answer would undo. The
   caller passes what was purged before the request; if that has changed, nothing is applied.

Changes without a content are appended even on a full disk: the reserve of the data directory is
released for them, because a delete lets the next run free space.

Everything is idempotent. Nothing is durable before `settle`, which makes a page durable as a whole.
Called by the replicator, one thread per store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.blobs.errors import ReplicaAnswerInvalid
from lithify.blobs.log_writer import NewRecord
from lithify.blobs.records import (
    NEVER_MS,
    BlobRecordKind,
    RecordIdentity,
    encode_change,
    encode_put,
    hash_id,
)
from lithify.blobs.replication.feed import read_identity
from lithify.blobs.replication.which_state_wins import Advice, advise, rank_of, rank_of_change
from lithify.errors import PlanStale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lithify.blobs.content.spool import ByteStream
    from lithify.blobs.index import FoundRecords
    from lithify.blobs.purge_bounds import PurgedTombstones
    from lithify.blobs.reads import BlobReads
    from lithify.blobs.replication.blob_stream import ReplicatedBlob
    from lithify.blobs.replication.tokens_and_pages import BlobChange
    from lithify.blobs.store_parts import StoreParts
    from lithify.fs.full_disk_reserve import NoReserve
    from lithify.log.group_commit import Pending

__all__ = ["Applier"]


class Applier:
    """See the module."""

    def __init__(
        self,
        core: StoreParts,
        reads: BlobReads,
        purged: Callable[[], PurgedTombstones],
        reserve: Callable[[], NoReserve],
    ) -> None:
        self._reserve = reserve
        self._core = core
        self._log = core.log
        self._log_id = core.log.manifest.log_id
        self._writer = core.writer
        self._reads = reads
        self._segments = core.segments
        self._purged = purged
        self._clock = core.clock
        self._pending: list[Pending] = []

    def take(self, changes: Iterable[BlobChange], before: PurgedTombstones) -> list[BlobChange]:
        """Append the newer changes; returns those whose content is needed."""
        wanted = []
        with self._reserve().if_full(), self._writer.lock:
            self._ready(before)
            for change in changes:
                advice, found = self._advise(change)
                if advice is Advice.FETCH:
                    wanted.append(change)
                elif advice is Advice.CHANGE:
                    self._append(change, _kind(change, found), is_new=found is None)
        return wanted

    def take_content(
        self, record: ReplicatedBlob, content: ByteStream, before: PurgedTombstones
    ) -> bool:
        """Put a fetched blob; False if it is no longer needed."""
        put = record.put
        id_hash = hash_id(put.blob_id, self._log_id)
        with self._core.spool(content) as spool:
            if (spool.size, spool.crc) != (put.size, put.content_crc):
                raise ReplicaAnswerInvalid(f"content of blob {put.blob_id!r} was damaged")
            body = encode_put(put, id_hash)
            with self._writer.lock:
                self._ready(before)
                if self._advise(record.change)[0] is not Advice.FETCH:
                    return False
                new = NewRecord(
                    BlobRecordKind.PUT,
                    id_hash,
                    body,
                    life_version=put.life_version,
                    expiry_ms=put.expiry_ms,
                    time_ms=record.time_ms,
                    spool=spool,
                )
                self._pending.append(self._writer.append(new))
                if not record.change.is_first:
                    self._append(record.change, BlobRecordKind.TTL)
        return True

    def take_missing(self, changes: Iterable[BlobChange], before: PurgedTombstones) -> None:
        """Append the states of blobs whose content was not found at the replica.

        If the blob was deleted there in the meantime, another change will say so. If it has
        expired, no change will follow: its expiry must be recorded here before the page counts as
        read.
        """
        with self._reserve().if_full(), self._writer.lock:
            self._ready(before)
            for change in changes:
                advice, found = self._advise(change)
                if advice is Advice.FETCH and not change.is_first and change.expiry_ms < NEVER_MS:
                    self._append(change, _kind(change, found), is_new=found is None)

    def drop(self, change: BlobChange) -> bool:
        """Delete a blob that no other replica knows, if it is still in this state."""
        with (
            self._reserve().if_full(),
            self._writer.lock,
            self._log.pin("blob replication"),
        ):
            self._writer.ready()
            found = self._reads.state(hash_id(change.blob_id, self._log_id))
            if found is None or rank_of(found, self._identity(found)) != rank_of_change(change):
                return False
            time_ms = max(self._clock.now_ms(), change.time_ms)
            self._append(change, BlobRecordKind.DELETE, time_ms)
        return True

    def settle(self) -> None:
        """Wait until all applied changes are durable."""
        pending, self._pending = self._pending, []
        with self._reserve().if_full():
            for each in pending:
                each.result()

    def forget(self) -> None:
        """Discard applied changes that are not durable: they will be applied again."""
        self._pending = []

    def _ready(self, before: PurgedTombstones) -> None:
        self._writer.ready()
        if self._purged() != before:
            raise PlanStale(
                f"{self._log.directory} has purged deletes since the request to a replica"
            )

    def _advise(self, change: BlobChange) -> tuple[Advice, FoundRecords | None]:
        with self._log.pin("blob replication"):
            found = self._reads.state(hash_id(change.blob_id, self._log_id))
            # Most changes are known: they need no read.
            if found is not None and rank_of_change(change)[:4] < rank_of(found, None)[:4]:
                return Advice.NOTHING, found
            identity = None if found is None or change.deleted else self._identity(found)
        now_ms = self._clock.now_ms()
        gone_ms = self._core.deleted_before_ms(now_ms)
        return advise(change, found, identity, now_ms, gone_ms), found

    def _identity(self, found: FoundRecords) -> RecordIdentity | None:
        if found.put is None or found.segment is None:
            return None
        with self._segments.use(found.segment) as segment:
            return read_identity(segment.file, found.put)

    def _append(
        self,
        change: BlobChange,
        kind: BlobRecordKind,
        time_ms: int | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        id_hash = hash_id(change.blob_id, self._log_id)
        life_version, expiry_ms = change.life_version, change.expiry_ms
        new = NewRecord(
            kind,
            id_hash,
            encode_change(kind, change.blob_id, life_version, expiry_ms, id_hash),
            life_version=life_version,
            expiry_ms=expiry_ms,
            time_ms=change.time_ms if time_ms is None else time_ms,
        )
        self._pending.append(self._writer.append(new, is_new=is_new))


def _kind(change: BlobChange, found: FoundRecords | None) -> BlobRecordKind:
    """The kind of record that brings a blob to the state of a change; a ttl stands for a put."""
    if change.kind is not BlobRecordKind.PUT:
        return change.kind
    is_raised = found is not None and change.life_version > found.newest.life_version
    return BlobRecordKind.UNDELETE if is_raised else BlobRecordKind.TTL
