"""The serving side of replication: changes since a token, contents, and unknown ids.

changes
    1. A token of another log, or one above the end of this log, is reset to the beginning: the
       store is another one, or an older copy of itself.
    2. Sealed segments are read by their key indexes, bucket by bucket: each row of an index is
       read once, and no frame or content. A bucket is sent as a whole, so a page may exceed its
       limit.
    3. Recent writes are read from the active segment, from the position of the token.
    4. A record is sent if it is the newest of its blob, with the current state of the blob. All
       others are skipped: the newest one follows.
    5. Ids are not in the index, so the first bytes of the record are read. Their hash must match
       the index.
records
    The contents of blobs, as a stream (`blob_stream.py`).

Only durable records are sent: a replica must not keep what a crash removes here. All reads use a
pinned generation. Called by the store; any thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.errors import BlobError
from lithify.blobs.index_rows import rows_of_frames, values_of
from lithify.blobs.purge_bounds import PurgedTombstones
from lithify.blobs.records import (
    IDENTITY_BYTES_MAX,
    BlobRecordKind,
    RecordIdentity,
    decode_identity,
    hash_id,
)
from lithify.blobs.replication.blob_stream import END, encode_head, encode_missing
from lithify.blobs.replication.tokens_and_pages import BlobChange, BlobChanges, Token
from lithify.blobs.validity_tasks import read_part
from lithify.blobs.visibility import Include
from lithify.errors import DamagedFrame, ReadFailed
from lithify.log.key_index.key_index import BUCKETS
from lithify.log.segments.frame import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lithify.blobs.index import BlobIndex, FoundRecords, OpenedIndex
    from lithify.blobs.index_rows import IndexRow
    from lithify.blobs.reads import BlobReads
    from lithify.fs import File
    from lithify.log.log import Log
    from lithify.log.manifest import SegmentRef
    from lithify.log.open_segments import OpenSegments

__all__ = ["CHANGES_MAX", "ChangeFeed", "read_identity"]

CHANGES_MAX = 1000
SCAN_BYTES_MAX = 16 * 2**20
"""Maximum of recent writes to read for a page, so that large contents do not slow it down."""


class ChangeFeed:
    """See the module."""

    def __init__(
        self, log: Log, index: BlobIndex, segments: OpenSegments, reads: BlobReads
    ) -> None:
        self._log = log
        self._log_id = log.manifest.log_id
        self._index = index
        self._segments = segments
        self._reads = reads

    def changes_since(self, token: Token | None, limit: int = CHANGES_MAX) -> BlobChanges:
        """The changes after a token, or from the beginning; about `limit` of them."""
        with self._log.pin("blob replication"):
            opened = self._index.opened(self._log)
            end = self._log.last_position + 1
            start = Token(self._log_id.hex(), 0)
            valid = token is None or (
                token.log_id == start.log_id
                and 0 <= token.position <= end
                and 0 <= token.bucket <= BUCKETS
            )
            page = _Page(self, opened, end, token if token and valid else start, limit)
            page.fill()
            return BlobChanges(
                tuple(page.changes),
                page.token,
                more=page.token.position < end,
                behind=end - page.token.position,
                purged=PurgedTombstones.from_state(opened.manifest.state),
                reset=not valid,
            )

    def unknown(self, blob_ids: Sequence[str]) -> list[str]:
        """The ids of which the store has no record."""
        return [each for each in blob_ids if self._reads.state(hash_id(each, self._log_id)) is None]

    def records(self, blob_ids: Sequence[str]) -> Iterator[bytes]:
        """The blobs with their contents, in this order, or a note that a blob is missing."""
        for blob_id in blob_ids:
            try:
                blob = self._reads.get(blob_id, Include.NONE)
            except BlobError:
                yield encode_missing(blob_id)
                continue
            with blob:
                yield encode_head(blob.info)
                yield from blob
        yield END

    def change_of(
        self, opened: OpenedIndex, id_hash: bytes, row: IndexRow, below: int
    ) -> BlobChange | None:
        """The state of the blob of a record; None if the record is not its newest."""
        found = self._index.find(opened, id_hash, below)
        if found is None or found.newest.position != row.position:
            return None
        newest = found.newest
        identity = self._identity(opened, found, id_hash)
        state = newest.kind, newest.life_version, newest.time_ms, newest.expiry_ms
        content = identity.created_ms, identity.size, identity.content_crc
        return BlobChange(identity.blob_id, *state, *content)

    def _identity(self, opened: OpenedIndex, found: FoundRecords, id_hash: bytes) -> RecordIdentity:
        """The identity of the put, or of the newest record if there is no put or a delete."""
        deleted = found.newest.kind is BlobRecordKind.DELETE
        if not deleted and found.put is not None and found.segment is not None:
            row, ref = found.put, found.segment
        else:
            row, ref = found.newest, _segment_of(opened, found.newest.position)
        with self._segments.use(ref) as segment:
            identity = read_identity(segment.file, row)
            if hash_id(identity.blob_id, self._log_id) != id_hash:
                raise DamagedFrame(segment.file.path, row.offset, "is not the blob of its index")
        return identity

    def read_sealed(
        self, ref: SegmentRef, first: int, stop: int, position: int
    ) -> list[tuple[bytes, IndexRow]]:
        """(hash, row) of the live records of some buckets, from a position on."""
        rows, dead = read_part(self._index.task(ref), first, stop, every=True)
        return values_of(rows, np.flatnonzero(~dead & (rows.position >= position)))

    def read_recent(
        self, position: int, at_a_time: int
    ) -> Iterator[tuple[list[tuple[bytes, IndexRow]], int, int]]:
        """The log from a position on: (rows, position after them, bytes read)."""
        with self._log.snapshot("blob replication") as snapshot:
            for frames in snapshot.read_frames(position):
                rows = rows_of_frames(frames)
                for first in range(0, len(rows), at_a_time):
                    some = values_of(rows, np.arange(first, min(first + at_a_time, len(rows))))
                    yield some, some[-1][1].position + 1, 0
                size = int(frames.lengths().sum()) + HEADER_BYTES * len(frames)
                yield [], int(frames.positions[-1]) + 1, size


class _Page:
    """A page being built."""

    def __init__(
        self, feed: ChangeFeed, opened: OpenedIndex, end: int, token: Token, limit: int
    ) -> None:
        self._feed = feed
        self._opened = opened
        self._end = end
        self._limit = limit
        self.token = token
        self.changes: list[BlobChange] = []

    def fill(self) -> None:
        opened = self._opened
        for ref in opened.manifest.segments:
            if not ref.sealed or ref.id == opened.recent.segment_id:
                break
            if ref.last_position >= self.token.position and not self._sealed(ref):
                return
        self._recent()

    def _sealed(self, ref: SegmentRef) -> bool:
        """Read a segment; False if the page is full before its end."""
        token = self.token
        bucket = token.bucket if ref.name == token.segment else 0
        step = max(1, BUCKETS * self._limit // max(1, ref.entries))
        while bucket < BUCKETS:
            if len(self.changes) >= self._limit:
                self._move(token.position, ref.name, bucket)
                return False
            stop = min(BUCKETS, bucket + step)
            self._add(self._feed.read_sealed(ref, bucket, stop, token.position))
            bucket = stop
        self._move(ref.last_position + 1)
        return True

    def _recent(self) -> None:
        read = 0
        if self.token.position >= self._end:
            return
        for rows, position, size in self._feed.read_recent(self.token.position, self._limit):
            if len(self.changes) >= self._limit or read >= SCAN_BYTES_MAX:
                return
            for id_hash, row in rows:
                if len(self.changes) >= self._limit or row.position >= self._end:
                    return
                self._add([(id_hash, row)])
                self._move(row.position + 1)
            self._move(min(position, self._end))
            read += size
        # Frames at the end of the log may have been compacted away.
        self._move(self._end)

    def _add(self, rows: list[tuple[bytes, IndexRow]]) -> None:
        for id_hash, row in rows:
            change = self._feed.change_of(self._opened, id_hash, row, self._end)
            if change is not None:
                self.changes.append(change)

    def _move(self, position: int, segment: str = "", bucket: int = 0) -> None:
        self.token = replace(self.token, position=position, segment=segment, bucket=bucket)


def _segment_of(opened: OpenedIndex, position: int) -> SegmentRef:
    """The segment of a record; sealed segments have their last position."""
    for ref in opened.manifest.segments:
        if not ref.sealed or position <= ref.last_position:
            return ref
    return opened.manifest.active


def read_identity(file: File, row: IndexRow) -> RecordIdentity:
    """The blob of a record, from its first bytes."""
    body_bytes = min(row.length - HEADER_BYTES, IDENTITY_BYTES_MAX)
    at = row.offset + HEADER_BYTES
    try:
        start = file.pread(body_bytes, at)
    except OSError as error:
        raise ReadFailed(file.path, at, error) from error
    return decode_identity(start, file.path, row.offset)
