"""A blob store: objects in a segmented log of fixed capacity.

    store = BlobStore.create(fs, "data/photos", capacity_bytes=2**30, segment_bytes=2**26)
    info = store.put(stream, service="camera", content_type="image/jpeg")
    with store.get(info.blob_id, span=(0, 1000)) as blob: first = blob.read()
    store.delete(info.blob_id); store.undelete(info.blob_id); store.compaction.run()

What it promises
    An operation that returned is durable as configured, and `open` finds it after any crash. Nobody
    sees one before that. What is deleted does not come back but by an undelete.
    `docs/blobs.md` says what each look at a blob answers, before and after a compaction.

How it works
    Each operation is a record in the log (`records.py`); the newest record of a blob is its state
    (`validity.py`). The index finds records by the hash of an id (`index.py`), writes go through
    `writer.py`, content comes in by `spool.py` and goes out by `reading.py`, and `compaction.py`
    gives space back.

While a run is not over, time does not go back behind its beginning, whatever the clock does: what
the run has judged as expired or gone takes no record any more.

All methods may be called from any thread; none holds a content in memory.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from lithify.blobs.answer import Include, answer, info_of, is_seen
from lithify.blobs.compaction import BlobCompaction
from lithify.blobs.errors import (
    BlobDeletedForever,
    BlobExists,
    BlobExpired,
    BlobNotDeleted,
    BlobNotFound,
    BlobStoreExists,
    NotABlobStore,
)
from lithify.blobs.index import BlobIndex
from lithify.blobs.judging import read_part
from lithify.blobs.reading import Blob, BlobInfo, read_head
from lithify.blobs.records import (
    NEVER_MS,
    PART_BYTES,
    Kind,
    PutRecord,
    encode_change,
    encode_put,
    hash_id,
)
from lithify.blobs.rows import values_of
from lithify.blobs.rule import Above, BlobRule
from lithify.blobs.settings import BlobSettings, Shape
from lithify.blobs.spool import Spool
from lithify.blobs.writer import BlobWriter, read_recent, used_bytes
from lithify.clock import SystemClock
from lithify.errors import InvalidInput
from lithify.events import ignore_events
from lithify.log.keyindex import BUCKETS
from lithify.log.log import Log
from lithify.log.manifest import read_manifest
from lithify.log.names import MANIFEST
from lithify.log.reader import OpenSegments
from lithify.positions import POSITION_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lithify.blobs.index import Found, Recent
    from lithify.blobs.rows import Row
    from lithify.blobs.spool import Content
    from lithify.clock import Clock
    from lithify.compaction.budget import DiskGate
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef
    from lithify.log.reader import Snapshot

__all__ = ["KIND", "BlobStore", "Include"]

KIND = "blob"


class BlobStore:
    """One store, open for writing."""

    def __init__(
        self,
        fs: FileSystem,
        log: Log,
        shape: Shape,
        settings: BlobSettings,
        clock: Clock,
        events: EventSink,
        gate: DiskGate | None,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """Use `create` or `open`."""
        self._fs = fs
        self._log = log
        self._clock = clock
        self._random_bytes = random_bytes
        self._segments = OpenSegments(fs, log.directory, settings.open_files_max)
        manifest = log.manifest
        recent = read_recent(log)
        rows_max = settings.index_rows_max
        self._index = BlobIndex(fs, log.directory, manifest.log_id, rows_max, recent)
        self._index.load(manifest)
        self._writer = BlobWriter(log, self._index, shape)
        self.shape = shape
        self.settings = settings
        self.compaction = BlobCompaction(
            fs,
            log,
            BlobRule(lambda: settings.deleted_retention_ms, self._above),
            shape,
            settings,
            clock=clock,
            events=events,
            gate=gate,
            published=self._published,
            reclaimed=self._forget,
        )
        self._floor_ms = self.compaction.unfinished_as_of_ms()

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        directory: str,
        *,
        capacity_bytes: int,
        segment_bytes: int,
        settings: BlobSettings | None = None,
        clock: Clock | None = None,
        events: EventSink = ignore_events,
        gate: DiskGate | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> BlobStore:
        """Make a store; one whose creation was interrupted is made again."""
        shape = Shape(capacity_bytes, segment_bytes)
        if fs.exists(f"{directory}/{MANIFEST}") and _shape_in(fs, directory) is not None:
            raise BlobStoreExists(f"{directory} holds a blob store already")
        return cls._open(fs, directory, shape, settings, clock, events, gate, random_bytes)

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: str,
        *,
        settings: BlobSettings | None = None,
        clock: Clock | None = None,
        events: EventSink = ignore_events,
        gate: DiskGate | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> BlobStore:
        """Open a store; what a crash has left is put right."""
        shape = _shape_in(fs, directory) if fs.exists(f"{directory}/{MANIFEST}") else None
        if shape is None:
            raise NotABlobStore(f"{directory} holds no blob store, or one half created")
        return cls._open(fs, directory, shape, settings, clock, events, gate, random_bytes)

    @classmethod
    def _open(
        cls,
        fs: FileSystem,
        directory: str,
        shape: Shape,
        settings: BlobSettings | None,
        clock: Clock | None,
        events: EventSink,
        gate: DiskGate | None,
        random_bytes: Callable[[int], bytes],
    ) -> BlobStore:
        settings = settings or BlobSettings()
        clock = clock or SystemClock()
        log = Log.open(
            fs,
            directory,
            kind=KIND,
            settings=shape.log_settings(settings),
            clock=clock,
            events=events,
            random_bytes=random_bytes,
        )
        try:
            if Shape.from_state(log.manifest.state) is None:
                # A crash before this leaves a log without a shape, which `open` does not take.
                log.publish(lambda m: replace(m, state=shape.to_state()), "blob store created")
            return cls(fs, log, shape, settings, clock, events, gate, random_bytes)
        except BaseException:
            log.abandon()
            raise

    # --- writing ----------------------------------------------------------------------------

    def put(
        self,
        content: Content,
        *,
        service: str,
        owner: str = "",
        content_type: str = "application/octet-stream",
        metadata: Mapping[str, str] | None = None,
        expiry_ms: int | None = None,
        blob_id: str | None = None,
    ) -> BlobInfo:
        """Store a content; None for `expiry_ms` is never, for `blob_id` a new random one."""
        blob_id = self._random_bytes(16).hex() if blob_id is None else blob_id
        id_hash = hash_id(blob_id, self._log.manifest.log_id)
        limit = self.shape.record_bytes_max
        directory = self._log.directory
        with Spool(content, limit, self._fs, directory, self._random_bytes) as spool:
            now_ms = self._now_ms()
            put = PutRecord(
                blob_id,
                service,
                owner,
                content_type,
                now_ms,
                self._checked_expiry(expiry_ms, now_ms),
                spool.size,
                spool.crc,
                dict(metadata or {}),
            )
            body = encode_put(put, id_hash)
            if spool.size <= PART_BYTES:
                body += spool.whole()
            with self._writer.lock:
                self._writer.ready()
                if self._state(id_hash) is not None:
                    raise BlobExists(blob_id)
                pending = self._writer.append(
                    Kind.PUT,
                    id_hash,
                    body,
                    life_version=0,
                    expiry_ms=put.expiry_ms,
                    now_ms=now_ms,
                    spool=spool if spool.size > PART_BYTES else None,
                )
            position = pending.result()
        return BlobInfo(put, position, put.expiry_ms, 0, deleted=False, changed_ms=now_ms)

    def delete(self, blob_id: str) -> None:
        """Delete a blob; within the retention it can be undeleted."""

        def decide(found: Found, now_ms: int) -> tuple[int, int]:
            answer(blob_id, found, Include.NONE, now_ms)
            return found.newest.life_version, found.newest.expiry_ms

        self._change(Kind.DELETE, blob_id, decide)

    def ttl(self, blob_id: str, expiry_ms: int | None) -> None:
        """Let a blob expire at another time, or never."""

        def decide(found: Found, now_ms: int) -> tuple[int, int]:
            answer(blob_id, found, Include.NONE, now_ms)
            return found.newest.life_version, self._checked_expiry(expiry_ms, now_ms)

        self._change(Kind.TTL, blob_id, decide)

    def undelete(self, blob_id: str) -> None:
        """Take a delete back, if its retention is not over."""

        def decide(found: Found, now_ms: int) -> tuple[int, int]:
            newest = found.newest
            if newest.kind is not Kind.DELETE:
                answer(blob_id, found, Include.NONE, now_ms)
                raise BlobNotDeleted(blob_id)
            deleted_before_ms = now_ms - self.settings.deleted_retention_ms
            if found.put is None or newest.time_ms < deleted_before_ms:
                raise BlobDeletedForever(blob_id)
            if now_ms > newest.expiry_ms:
                raise BlobExpired(blob_id)
            return newest.life_version + 1, newest.expiry_ms

        self._change(Kind.UNDELETE, blob_id, decide)

    def _change(
        self, kind: Kind, blob_id: str, decide: Callable[[Found, int], tuple[int, int]]
    ) -> None:
        """Append a record whose life version and expiry `decide` says, or which it refuses."""
        id_hash = hash_id(blob_id, self._log.manifest.log_id)
        with self._writer.lock:
            self._writer.ready()
            now_ms = self._now_ms()
            found = self._state(id_hash)
            if found is None:
                raise BlobNotFound(blob_id)
            life_version, expiry_ms = decide(found, now_ms)
            pending = self._writer.append(
                kind,
                id_hash,
                encode_change(kind, blob_id, life_version, expiry_ms, id_hash),
                life_version=life_version,
                expiry_ms=expiry_ms,
                now_ms=now_ms,
            )
        pending.result()

    @staticmethod
    def _checked_expiry(expiry_ms: int | None, now_ms: int) -> int:
        if expiry_ms is None:
            return NEVER_MS
        if expiry_ms < now_ms:
            raise InvalidInput(f"expiry {expiry_ms} ms is over, it is {now_ms} ms already")
        return expiry_ms

    # --- reading ----------------------------------------------------------------------------

    def get(
        self,
        blob_id: str,
        *,
        include: Include = Include.NONE,
        span: tuple[int, int | None] | None = None,
    ) -> Blob:
        """Open a blob, or the bytes of it from the first up to the second of `span`."""
        id_hash = hash_id(blob_id, self._log.manifest.log_id)
        with ExitStack() as stack:
            snapshot, recent = self._snapshot(stack, "get")
            found = self._index.find(snapshot, recent, id_hash, snapshot.last_position + 1)
            row, ref = answer(blob_id, found, include, self._now_ms())
            segment = stack.enter_context(self._segments.use(ref))
            head = read_head(segment.file, row)
            assert found is not None
            info = info_of(head.put, row, found)
            return Blob(info, head, segment.file, stack.pop_all(), span)

    def head(self, blob_id: str, *, include: Include = Include.NONE) -> BlobInfo:
        """A blob without its content."""
        with self.get(blob_id, include=include) as blob:
            return blob.info

    def list(self, *, include: Include = Include.NONE, after: int = -1) -> Iterator[BlobInfo]:
        """The blobs whose puts are at positions above `after`, in that order."""
        with ExitStack() as stack:
            snapshot, recent = self._snapshot(stack, "list")
            below = snapshot.last_position + 1
            now_ms = self._now_ms()
            for ref in snapshot.manifest.segments:
                for id_hash, row in self._puts(ref, recent, after):
                    found = self._index.find(snapshot, recent, id_hash, below)
                    if found is None or found.put != row or not is_seen(found, include, now_ms):
                        continue
                    with self._segments.use(ref) as segment:
                        put = read_head(segment.file, row).put
                    yield info_of(put, row, found)

    def _puts(self, ref: SegmentRef, recent: Recent, after: int) -> Sequence[tuple[bytes, Row]]:
        """(hash, row) of the puts of a segment above a position, ascending."""
        if ref.id == recent.segment_id:
            with self._writer.lock:
                rows = recent.rows()
            live = np.ones(len(rows), np.bool_)
        elif ref.sealed and ref.last_position > after:
            rows, dead = read_part(self._index.task(ref), 0, BUCKETS, every=True)
            live = ~dead
        else:
            return []
        chosen = np.flatnonzero(live & (rows.flags == Kind.PUT) & (rows.position > after))
        return values_of(rows, chosen[np.argsort(rows.position[chosen])])

    def _snapshot(self, stack: ExitStack, owner: str) -> tuple[Snapshot, Recent]:
        """What the log holds now, with the recent rows that belong to it."""
        while True:
            recent = self._index.recent
            with ExitStack() as attempt:
                snapshot = attempt.enter_context(self._log.snapshot(f"blob {owner}"))
                if self._index.recent is recent:
                    stack.push(attempt.pop_all())
                    return snapshot, recent

    def _state(self, id_hash: bytes) -> Found | None:
        """A blob's newest records, also those that are not durable yet; for writers."""
        with ExitStack() as stack:
            snapshot, recent = self._snapshot(stack, "look-up")
            return self._index.find(snapshot, recent, id_hash, POSITION_MAX)

    # --- the rest ---------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes of the log's segments."""
        return used_bytes(self._log.manifest) + self._log.active_bytes

    @property
    def directory(self) -> str:
        """Where it is."""
        return self._log.directory

    def _now_ms(self) -> int:
        return max(self._floor_ms, self._clock.now_ms())

    def _above(self, horizon: int, as_of_ms: int) -> Above:
        """What a run must know of records that it does not judge."""
        with self._writer.lock:
            self._writer.ready()
            self._floor_ms = max(self._floor_ms, as_of_ms)
            sealed = (s for s in self._log.manifest.segments if s.sealed)
            higher = tuple(s for s in sealed if s.last_position > horizon)
            return Above(higher, self._index.recent.rows())

    def _published(self) -> None:
        manifest = self._log.manifest
        self._index.load(manifest)
        self._index.retain(manifest)
        self._floor_ms = self.compaction.unfinished_as_of_ms()

    def _forget(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._segments.forget(name)

    def close(self) -> None:
        """Make everything durable and let go of the directory."""
        self._segments.close()
        self._log.close()

    def abandon(self) -> None:
        """Let go without making anything durable, as a killed process would."""
        self._segments.close()
        self._log.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _shape_in(fs: FileSystem, directory: str) -> Shape | None:
    """The shape of the store in a directory that holds a log; None if it was not created."""
    manifest = read_manifest(fs, directory)
    return Shape.from_state(manifest.state) if manifest.kind == KIND else None
