"""The writes of a blob store: what each operation checks, refuses and appends.

put
    1. Buffer the content (`content/spool.py`) without a lock: a slow sender blocks no other client.
    2. Under the writer's lock: check that the id is free, then append the record (`group_puts.py`:
       concurrent puts are written together).
    3. Without the lock: wait for the fsync, which all waiting writers share.
delete, ttl, undelete
    Under the writer's lock: read the newest record, decide, append. Then wait for the fsync.

`docs/blobs.md` has the table of refusals. Called by the store, from any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.blobs.content.reader import BlobInfo
from lithify.blobs.errors import (
    BlobDeletedForever,
    BlobExpired,
    BlobNotDeleted,
    BlobNotFound,
)
from lithify.blobs.group_puts import GroupPuts
from lithify.blobs.log_writer import NewRecord
from lithify.blobs.records import (
    NEVER_MS,
    BlobRecordKind,
    PutRecord,
    encode_change,
    encode_put,
    hash_id,
)
from lithify.blobs.visibility import Include, visibility_of
from lithify.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.blobs.content.spool import Content
    from lithify.blobs.index import FoundRecords
    from lithify.blobs.reads import BlobReads
    from lithify.blobs.store_parts import StoreParts

__all__ = ["BlobWrites"]


class BlobWrites:
    """See the module."""

    def __init__(self, core: StoreParts, reads: BlobReads) -> None:
        self._core = core
        self._log_id = core.log.manifest.log_id
        self._writer = core.writer
        self._reads = reads
        self._clock = core.clock
        self._puts = GroupPuts(core.writer, reads)

    def put(
        self,
        content: Content,
        *,
        service: str,
        owner: str,
        content_type: str,
        metadata: Mapping[str, str] | None,
        expiry_ms: int | None,
        ttl_ms: int | None,
        blob_id: str | None,
    ) -> BlobInfo:
        """See `BlobStore.put`."""
        if expiry_ms is not None and ttl_ms is not None:
            raise InvalidInput("a blob is given an expiry or a time to live, not both")
        _check_ttl(ttl_ms)
        blob_id = self._core.random_bytes(16).hex() if blob_id is None else blob_id
        id_hash = hash_id(blob_id, self._log_id)
        with self._core.spool(content) as spool:
            # The time to live begins after the content was received, so that a slow upload does not
            # shorten it.
            now_ms = self._clock.now_ms()
            if ttl_ms is not None:
                expiry_ms = now_ms + ttl_ms
            put = PutRecord(
                blob_id,
                service,
                owner,
                content_type,
                now_ms,
                _checked_expiry(expiry_ms, now_ms),
                spool.size,
                spool.crc,
                dict(metadata or {}),
            )
            body = encode_put(put, id_hash)
            record = NewRecord(
                BlobRecordKind.PUT,
                id_hash,
                body,
                life_version=0,
                expiry_ms=put.expiry_ms,
                time_ms=now_ms,
                spool=spool,
            )
            position = self._puts.put(blob_id, record)
        return BlobInfo(put, position, put.expiry_ms, 0, deleted=False, changed_ms=now_ms)

    def delete(self, blob_id: str) -> None:
        """Append a delete."""

        def decide(found: FoundRecords, now_ms: int) -> tuple[int, int]:
            visibility_of(blob_id, found, Include.NONE, now_ms)
            return found.newest.life_version, found.newest.expiry_ms

        self._change(BlobRecordKind.DELETE, blob_id, decide)

    def ttl(self, blob_id: str, expiry_at: Callable[[int], int | None]) -> int | None:
        """Set or remove the expiry of a blob; `expiry_at` computes it from the current time."""
        expiry_ms: int | None = None

        def decide(found: FoundRecords, now_ms: int) -> tuple[int, int]:
            nonlocal expiry_ms
            visibility_of(blob_id, found, Include.NONE, now_ms)
            expiry_ms = expiry_at(now_ms)
            return found.newest.life_version, _checked_expiry(expiry_ms, now_ms)

        self._change(BlobRecordKind.TTL, blob_id, decide)
        return expiry_ms

    def live_for(self, blob_id: str, ttl_ms: int | None) -> int | None:
        """Set the expiry of a blob relative to now, or remove it; returns it."""
        _check_ttl(ttl_ms)
        return self.ttl(blob_id, lambda now_ms: None if ttl_ms is None else now_ms + ttl_ms)

    def undelete(self, blob_id: str) -> None:
        """Undo a delete within its retention."""

        def decide(found: FoundRecords, now_ms: int) -> tuple[int, int]:
            newest = found.newest
            if newest.kind is not BlobRecordKind.DELETE:
                visibility_of(blob_id, found, Include.NONE, now_ms)
                raise BlobNotDeleted(blob_id)
            late = newest.time_ms < self._core.deleted_before_ms(now_ms)
            if late or not self._reads.has_content(blob_id, found):
                raise BlobDeletedForever(blob_id)
            if now_ms > newest.expiry_ms:
                raise BlobExpired(blob_id)
            return newest.life_version + 1, newest.expiry_ms

        self._change(BlobRecordKind.UNDELETE, blob_id, decide)

    def _change(
        self,
        kind: BlobRecordKind,
        blob_id: str,
        decide: Callable[[FoundRecords, int], tuple[int, int]],
    ) -> None:
        """Append a record; `decide` returns its life version and expiry, or raises."""
        id_hash = hash_id(blob_id, self._log_id)
        with self._writer.lock:
            self._writer.ready()
            now_ms = self._clock.now_ms()
            found = self._reads.state(id_hash)
            if found is None:
                raise BlobNotFound(blob_id)
            life_version, expiry_ms = decide(found, now_ms)
            # A change is never older than what it changes, even if another node's clock wrote that,
            # and of two ttls the later one is younger. So all replicas agree which one is newest.
            time_ms = max(now_ms, found.newest.time_ms + (kind is BlobRecordKind.TTL))
            record = NewRecord(
                kind,
                id_hash,
                encode_change(kind, blob_id, life_version, expiry_ms, id_hash),
                life_version=life_version,
                expiry_ms=expiry_ms,
                time_ms=time_ms,
            )
            pending = self._writer.append(record)
        pending.result()


def _check_ttl(ttl_ms: int | None) -> None:
    """Refuse a time that is over at once: the answer must not depend on the next millisecond."""
    if ttl_ms is not None and ttl_ms < 1:
        raise InvalidInput(f"ttl {ttl_ms} ms must be at least 1")


def _checked_expiry(expiry_ms: int | None, now_ms: int) -> int:
    if expiry_ms is None:
        return NEVER_MS
    if expiry_ms < now_ms:
        raise InvalidInput(f"expiry {expiry_ms} ms is in the past, it is {now_ms} ms now")
    return expiry_ms
