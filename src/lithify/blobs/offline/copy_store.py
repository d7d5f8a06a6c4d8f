"""Copy the valid records of a store into a new one with another capacity or segment size.

1. Read the source without changing it (`read_only_store.py`). Validity is judged once, at the time
   when the copy begins (`blobs/record_fates.py`). Valid are puts that are neither expired nor gone,
   the newest record of each such blob, and deletes without a put within their retention.
2. Before anything is written, check that each record fits into a segment of the target, and all of
   them into its capacity, packed as the target would pack them.
3. Write the records in their order into the directory `TARGET.copying`. Ids, times, life versions,
   expiries and contents are the source's. Positions, the log's id and the hashes of the ids are
   new. Every CRC is checked, and the CRC of each content.
4. When all is durable, write the target's shape, rename the directory to `TARGET`, define the
   store, and remove the mark `CREATING`, which the directory has had from the beginning.

A crash before the last step leaves `TARGET.copying`, or `TARGET` with its mark
(`log/directory_marks.py`). Such a directory is not a store; opening the stores or copying to the
same target removes it. Memory: as for reading the source, plus 1 MiB.

Any process may call it, even while another process has the source open.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.capacity import SpaceUse, has_room
from lithify.blobs.content.reader import Blob, read_head
from lithify.blobs.content.spool import Spool
from lithify.blobs.errors import BlobDeleted, BlobStoreExists, BlobTooLarge, TargetTooSmall
from lithify.blobs.index import BlobIndex
from lithify.blobs.index_rows import values_of
from lithify.blobs.log_writer import BlobWriter, NewRecord, read_recent, used_bytes
from lithify.blobs.offline.read_only_store import open_stored
from lithify.blobs.record_fates import HistoryRecord, RecordFate, ValidityTerms, judge_history
from lithify.blobs.records import BlobRecordKind, decode_id, encode_change, encode_put, hash_id
from lithify.blobs.settings import BlobSettings, StoreShape
from lithify.blobs.store import KIND
from lithify.blobs.visibility import info_of
from lithify.clock import SystemClock
from lithify.errors import (
    DamagedFrame,
    LithifyError,
    LogLocked,
    WriteFailed,
    is_outcome_unknown,
)
from lithify.log.directory_marks import (
    begin_creation,
    clear_mark,
    is_creating,
    is_empty,
    remove_created,
)
from lithify.log.file_names import CREATING, LOCK
from lithify.log.log import Log
from lithify.log.segments.frame import decode_frame
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES
from lithify.settings import Durability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.blobs.index import FoundRecords
    from lithify.blobs.index_rows import IndexRow
    from lithify.blobs.offline.read_only_store import StoredBlobs
    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef

__all__ = ["CopyReport", "copy_store"]

COPYING = ".copying"


@dataclass(frozen=True, slots=True)
class CopyReport:
    """Result of a copy."""

    source: str
    target: str
    blobs: int
    """Number of puts."""
    records: int
    """Number of records of every kind."""
    content_bytes: int
    left_out: int
    """Records of the source that were not valid."""
    used_bytes: int
    """Bytes used in the target."""


@dataclass(frozen=True, slots=True)
class _Valid:
    """A record to copy."""

    row: IndexRow
    ref: SegmentRef
    found: FoundRecords


def copy_store(
    fs: FileSystem,
    source: str,
    target: str,
    *,
    capacity_bytes: int,
    segment_bytes: int,
    settings: BlobSettings | None = None,
    clock: Clock | None = None,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    progress: Callable[[int], None] = lambda _: None,
    define: Callable[[], None] = lambda: None,
) -> CopyReport:
    """Create `target`, which must not exist; `progress` is called with the bytes of each record.

    `define` is called when the target has its final name; it adds the definition of the store.

    The retention in `settings` decides what is valid: use the settings of the source.
    """
    settings, clock = settings or BlobSettings(), clock or SystemClock()
    shape = StoreShape(capacity_bytes, segment_bytes)
    if fs.exists(target):
        raise BlobStoreExists(f"{target} exists already")
    as_of_ms = clock.now_ms()
    terms = ValidityTerms(as_of_ms, as_of_ms - settings.deleted_retention_ms)
    token = random_bytes(8).hex()
    with open_stored(fs, source, owner=f"copy to {target}", clock=clock, token=token) as stored:
        _check_fits(stored, terms, shape, target)
        copying_to = target + COPYING
        _remove_leftover(fs, copying_to)
        begin_creation(fs, copying_to)
        try:
            copy = _Copy(fs, copying_to, shape, settings, clock, random_bytes)
            with copy.log:
                for valid in _valid(stored, terms):
                    copy.add(stored, valid)
                    progress(valid.row.length)
                # A crash before this leaves a log without a shape.
                copy.log.publish(lambda m: replace(m, state=shape.to_state()), "blob store copied")
                used = used_bytes(copy.log.manifest) + copy.log.active_bytes
            fs.rename(copying_to, target)
            fs.sync_dir(target.rpartition("/")[0] or ".")
            define()
        except BaseException as error:
            # If the target may be defined, the next open decides by its mark.
            for unfinished in () if is_outcome_unknown(error) else (copying_to, target):
                with suppress(LithifyError):
                    remove_created(fs, unfinished)
            if isinstance(error, OSError):
                raise WriteFailed(copying_to, error) from error
            raise
        clear_mark(fs, target, CREATING)
        rows = sum(len(stored.live_rows(ref)) for ref in stored.opened.manifest.segments)
    left_out = rows - copy.records
    return CopyReport(source, target, copy.blobs, copy.records, copy.bytes, left_out, used)


def _remove_leftover(fs: FileSystem, copying_to: str) -> None:
    if not fs.exists(copying_to):
        return
    lock = fs.lock(f"{copying_to}/{LOCK}", "a copy")
    if lock is None:
        raise LogLocked(copying_to, "another copy")
    lock.release()
    if not is_creating(fs, copying_to) and not is_empty(fs, copying_to):
        # A store may have this name.
        raise BlobStoreExists(f"{copying_to} is in the way: it is not an unfinished copy")
    remove_created(fs, copying_to)


def _valid(stored: StoredBlobs, terms: ValidityTerms) -> Iterator[_Valid]:
    """The records to copy, in the order of positions."""
    below = stored.snapshot.last_position + 1
    for ref in stored.opened.manifest.segments:
        rows = stored.live_rows(ref)
        for id_hash, row in values_of(rows, np.argsort(rows.position)):
            found = stored.index.find(stored.opened, id_hash, below)
            assert found is not None
            if _is_valid(row, found, terms):
                yield _Valid(row, ref, found)


def _is_valid(row: IndexRow, found: FoundRecords, terms: ValidityTerms) -> bool:
    history = [found.newest]
    if found.put is not None and found.put != found.newest:
        history.insert(0, found.put)
    # As two runs would judge: a delete outlives its put by one run, and here the put is not copied.
    for _ in range(2):
        operations = [HistoryRecord(each.kind, each.time_ms, each.expiry_ms) for each in history]
        fates = judge_history(operations, terms)
        history = [
            each for each, fate in zip(history, fates, strict=True) if fate is RecordFate.LIVE
        ]
    return row in history


def _check_fits(stored: StoredBlobs, terms: ValidityTerms, shape: StoreShape, target: str) -> None:
    """Step 2: the arithmetic of the target's writer."""
    use = SpaceUse(0, SEGMENT_HEADER_BYTES, 0)
    for valid in _valid(stored, terms):
        row = valid.row
        if row.length > shape.record_bytes_max:
            raise BlobTooLarge(row.length, shape.record_bytes_max, _id_of(stored, valid))
        rolls = use.active_bytes + row.length > shape.segment_bytes - shape.closing_bytes
        use = use.with_record(shape, row.length, row.entries, rolls=rolls)
        if not has_room(shape, row.kind, use):
            raise TargetTooSmall(target, use.bytes(shape), shape.capacity_bytes)


def _id_of(stored: StoredBlobs, valid: _Valid) -> str:
    row = valid.row
    path = f"{stored.directory}/{valid.ref.name}"
    with stored.fs.open_read(path) as file:
        if row.kind is BlobRecordKind.PUT:
            return read_head(file, row).put.blob_id
        entry = decode_frame(file.pread(row.length, row.offset), 0, path)
    return decode_id(entry.body)


class _Copy:
    """The store being written."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        shape: StoreShape,
        settings: BlobSettings,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._limit = shape.record_bytes_max
        self._random_bytes = random_bytes
        # No write is acknowledged before the end: closing makes all of them durable.
        unsynced = replace(settings, durability=Durability.NONE)
        self.log = Log.open(
            fs,
            directory,
            kind=KIND,
            settings=shape.log_settings(unsynced),
            clock=clock,
            random_bytes=random_bytes,
        )
        log_id = self.log.manifest.log_id
        index = BlobIndex(fs, directory, log_id, settings.index_rows_max, read_recent(self.log))
        self._writer = BlobWriter(self.log, index, shape)
        self.blobs = self.records = self.bytes = 0

    def add(self, stored: StoredBlobs, valid: _Valid) -> None:
        """Write a record with its original fields."""
        if valid.row.kind is BlobRecordKind.PUT:
            self._add_put(stored, valid)
            return
        row, blob_id = valid.row, _id_of(stored, valid)
        id_hash = hash_id(blob_id, self.log.manifest.log_id)
        body = encode_change(row.kind, blob_id, row.life_version, row.expiry_ms, id_hash)
        self._append(row, id_hash, body, None)

    def _add_put(self, stored: StoredBlobs, valid: _Valid) -> None:
        row, path = valid.row, f"{stored.directory}/{valid.ref.name}"
        with stored.fs.open_read(path) as file:
            try:
                head = read_head(file, row)
            except BlobDeleted:
                # Erased, but the clock was set back and judges it valid. Copying its delete is
                # enough.
                return
            put, info = head.put, info_of(head.put, row, valid.found)
            content = _Pieces(Blob(info, head, file, _nothing, _as_it_is, None))
            id_hash = hash_id(put.blob_id, self.log.manifest.log_id)
            directory, random_bytes = self._directory, self._random_bytes
            with Spool(content, self._limit, self._fs, directory, random_bytes) as spool:
                if (spool.size, spool.crc) != (put.size, put.content_crc):
                    raise DamagedFrame(path, row.offset, f"blob {put.blob_id!r} has other content")
                self._append(row, id_hash, encode_put(put, id_hash), spool)
        self.blobs += 1
        self.bytes += put.size

    def _append(self, row: IndexRow, id_hash: bytes, body: bytes, spool: Spool | None) -> None:
        with self._writer.lock:
            self._writer.append(
                NewRecord(
                    row.kind,
                    id_hash,
                    body,
                    life_version=row.life_version,
                    expiry_ms=row.expiry_ms,
                    time_ms=row.time_ms,
                    spool=spool,
                )
            )
        self.records += 1


class _Pieces:
    """The content of a blob as a readable stream."""

    def __init__(self, blob: Blob) -> None:
        self._pieces = iter(blob)
        self._held = b""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        data = self._held or next(self._pieces, b"")
        self._held = data[size:]
        return data[:size]


def _nothing() -> None:
    return


def _as_it_is(damage: DamagedFrame, _: str) -> LithifyError:
    return damage
