"""A blob store: objects in a segmented log of fixed capacity.

    store = BlobStore.create(fs, "data/photos", capacity_bytes=2**30, segment_bytes=2**26)
    info = store.put(stream, service="camera", content_type="image/jpeg")
    with store.get(info.blob_id, span=(0, 1000)) as blob: first = blob.read()
    store.delete(info.blob_id); store.undelete(info.blob_id); store.compaction.run()

Guarantees
    An operation that returned is durable as configured, and `open` finds it after any crash. No
    reader sees it before that. Only an undelete brings back a deleted blob. `docs/blobs.md` has
    the results of all reads, before and after a compaction.

How it works
    Each operation is a record in the log (`records.py`); the newest record of a blob is its state
    (`record_fates.py`). The index finds records by the hash of an id (`index.py`). This file opens
    a store and connects its parts: `writes.py` writes, with `content/spool.py` and `log_writer.py`;
    `reads.py` reads, with `visibility.py` and `content/reader.py`; `erase/erase.py` overwrites what
    is deleted for good; `compaction/store_compaction.py` frees space. The clock is that of
    `monotonic_clock.py`.

Any thread may call any method; none holds a content in memory.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from lithify.blobs.compaction.live_blobs import BlobRule, RecordsAbove
from lithify.blobs.compaction.store_compaction import BlobCompaction
from lithify.blobs.erase.erase import Erase, finish_erase
from lithify.blobs.errors import (
    BlobStoreExists,
    NotABlobStore,
)
from lithify.blobs.log_writer import used_bytes
from lithify.blobs.purge_bounds import PurgedTombstones
from lithify.blobs.reads import BlobReads
from lithify.blobs.record_fates import ValidityTerms
from lithify.blobs.replication.apply import Applier
from lithify.blobs.replication.feed import CHANGES_MAX, ChangeFeed
from lithify.blobs.replication.read_progress import Replication
from lithify.blobs.settings import BlobSettings, StoreShape
from lithify.blobs.statistics.statistics import find_statistics
from lithify.blobs.statistics.tasks import Spans, Subject
from lithify.blobs.store_parts import open_parts
from lithify.blobs.visibility import Include
from lithify.blobs.writes import BlobWrites
from lithify.clock import SystemClock
from lithify.errors import InvalidInput
from lithify.events import ignore_events
from lithify.log.file_names import MANIFEST
from lithify.log.log import Log
from lithify.log.manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lithify.blobs.content.reader import Blob, BlobInfo
    from lithify.blobs.content.spool import Content
    from lithify.blobs.replication.tokens_and_pages import BlobChanges, Token
    from lithify.blobs.statistics.statistics import StoreStatistics
    from lithify.clock import Clock
    from lithify.compaction.limits.one_run_per_disk import DiskGate
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.events import EventSink
    from lithify.fs import FileSystem

__all__ = ["KIND", "BlobStore", "Include"]

KIND = "blob"


class BlobStore:
    """One store, open for writing."""

    def __init__(
        self,
        fs: FileSystem,
        log: Log,
        shape: StoreShape,
        settings: BlobSettings,
        clock: Clock,
        events: EventSink,
        gate: DiskGate | None,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """Use `create` or `open`."""
        self._fs = fs
        self._monotonic_s = clock.monotonic_s
        self.object_id = 0
        """In the catalog; 0 without one."""
        self.log = log
        self.settings = settings
        core = open_parts(fs, log, shape, lambda: self.settings, clock, random_bytes)
        self._segments, self.index = core.segments, core.index
        self.writer, self._clock = core.writer, core.clock
        self.erase = Erase(
            fs,
            log,
            self.index,
            self.writer,
            self._clock,
            deleted_retention_ms=lambda: self.settings.deleted_retention_ms,
            floor_ms=self._unfinished_as_of_ms,
        )
        self._reads = BlobReads(core, self.erase.explain)
        self._operations = BlobWrites(core, self._reads)
        self.replication = Replication(
            fs,
            log,
            ChangeFeed(log, self.index, self._segments, self._reads),
            Applier(core, self._reads, self.purged, lambda: self.compaction.reserve),
            events,
            lambda: self.compaction.reserve,
        )
        self.replicas_passed: Callable[[], int | None] = self.replication.read_by_all
        """The position up to which every replica has read; None: there are no replicas."""
        self.shape = shape
        self.compaction = BlobCompaction(
            fs,
            log,
            BlobRule(
                lambda: self.settings.deleted_retention_ms,
                self._above,
                self._passed,
                self.purged,
            ),
            shape,
            lambda: self.settings,
            clock=clock,
            events=events,
            gate=gate,
            published=self._published,
            reclaimed=self._forget,
            erase_paused=self.erase.paused,
            must_seal=lambda: self.writer.must_seal(self._terms()),
            seal_full=lambda: self.writer.seal_full(self._terms()),
        )
        self._clock.floor_ms = self._unfinished_as_of_ms()

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
        """Create a store; an interrupted creation is repeated."""
        shape = StoreShape(capacity_bytes, segment_bytes)
        if fs.exists(f"{directory}/{MANIFEST}") and _shape_in(fs, directory) is not None:
            raise BlobStoreExists(f"{directory} already holds a blob store")
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
        """Open a store and recover from a crash."""
        shape = _shape_in(fs, directory) if fs.exists(f"{directory}/{MANIFEST}") else None
        if shape is None:
            raise NotABlobStore(
                f"{directory} holds no blob store, or one whose creation was not finished"
            )
        return cls._open(fs, directory, shape, settings, clock, events, gate, random_bytes)

    @classmethod
    def _open(
        cls,
        fs: FileSystem,
        directory: str,
        shape: StoreShape,
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
            if StoreShape.from_state(log.manifest.state) is None:
                # A crash before this leaves a log without a shape, which `open` does not take.
                log.publish(lambda m: replace(m, state=shape.to_state()), "blob store created")
            # Before the first read: overwrite frames that a crash has torn during an erase.
            finish_erase(fs, directory, events)
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
        ttl_ms: int | None = None,
        blob_id: str | None = None,
    ) -> BlobInfo:
        """Store a content, without a `blob_id` under a new random one.

        It expires at `expiry_ms`, or `ttl_ms` after the whole content was received; without both,
        never. An expiry that has passed by then is refused, and a `ttl_ms` below 1.
        """
        if blob_id is not None and self.replication.peers:
            # Replicas could put two contents under one id, or under an id that is free only here.
            raise InvalidInput(f"blob {blob_id!r}: a store with replicas generates the ids itself")
        return self._operations.put(
            content,
            service=service,
            owner=owner,
            content_type=content_type,
            metadata=metadata,
            expiry_ms=expiry_ms,
            ttl_ms=ttl_ms,
            blob_id=blob_id,
        )

    def delete(self, blob_id: str) -> None:
        """Delete a blob, also on a full disk; within the retention it can be undeleted."""
        with self.compaction.reserve.if_full():
            self._operations.delete(blob_id)

    def ttl(self, blob_id: str, expiry_ms: int | None) -> None:
        """Set or remove the expiry of a blob, also on a full disk."""
        with self.compaction.reserve.if_full():
            self._operations.ttl(blob_id, lambda _: expiry_ms)

    def live_for(self, blob_id: str, ttl_ms: int | None) -> int | None:
        """Set the expiry of a blob relative to now, or remove it; returns it.

        Also on a full disk.
        """
        with self.compaction.reserve.if_full():
            return self._operations.live_for(blob_id, ttl_ms)

    def undelete(self, blob_id: str) -> None:
        """Undo a delete within its retention, also on a full disk."""
        with self.compaction.reserve.if_full():
            self._operations.undelete(blob_id)

    # --- reading ----------------------------------------------------------------------------

    def get(
        self,
        blob_id: str,
        *,
        include: Include = Include.NONE,
        span: tuple[int, int | None] | None = None,
    ) -> Blob:
        """Open a blob, or the half-open range `span` of its bytes."""
        started_s = self._monotonic_s()
        blob = self._reads.get(blob_id, include, span)
        self.compaction.latencies.add(self._monotonic_s() - started_s)
        return blob

    def head(self, blob_id: str, *, include: Include = Include.NONE) -> BlobInfo:
        """A blob without its content."""
        with self._reads.get(blob_id, include) as blob:
            return blob.info

    def list(self, *, include: Include = Include.NONE, after: int = -1) -> Iterator[BlobInfo]:
        """The blobs whose puts are at positions above `after`, in that order."""
        return self._reads.list(include, after)

    def changes_since(self, token: Token | None = None, limit: int = CHANGES_MAX) -> BlobChanges:
        """The states of blobs that have changed since a token, or of all; about `limit` of them."""
        return self.replication.feed.changes_since(token, limit)

    # --- statistics, settings, closing ------------------------------------------------------------

    def statistics(
        self, jobs: Jobs | None = None, *, buckets: int = 48, span_ms: int = 3_600_000
    ) -> StoreStatistics:
        """What is valid now, and what stops being valid in each of the next spans of time."""
        with ExitStack() as stack:
            with self.writer.lock:
                self.writer.ready()
                snapshot = stack.enter_context(self.log.snapshot("blob statistics"))
                recent, active_bytes = self.index.recent.rows(), self.log.active_bytes
            subject = Subject(
                self._fs,
                self.log.directory,
                snapshot.manifest,
                recent,
                active_bytes,
                self._clock.now_ms(),
                self.settings.deleted_retention_ms,
                self.replicas_passed(),
            )
            spans = Spans(buckets, span_ms)
            return find_statistics(subject, self.shape.capacity_bytes, jobs, spans)

    def change_settings(self, settings: BlobSettings) -> None:
        """Replace the settings; a run in progress keeps those it began with."""
        with self.writer.lock:
            self.log.change_settings(self.shape.log_settings(settings))
            self._segments.limit = settings.open_files_max
            self.index.buckets.rows_max = settings.index_rows_max
            self.settings = settings

    @property
    def used_bytes(self) -> int:
        """Bytes of the log's segments."""
        return used_bytes(self.log.manifest) + self.log.active_bytes

    @property
    def directory(self) -> str:
        """The directory of the store."""
        return self.log.directory

    def _above(self, horizon: int, as_of_ms: int) -> RecordsAbove:
        """The records above the horizon, which a run needs but does not judge."""
        with self.writer.lock:
            self.writer.ready()
            self._clock.floor_ms = max(self._clock.floor_ms, as_of_ms)
            sealed = (s for s in self.log.manifest.segments if s.sealed)
            higher = tuple(s for s in sealed if s.last_position > horizon)
            above = RecordsAbove(higher, self.index.recent.rows())
        # What the run drops because of these records must not be durable before them: otherwise a
        # crash could remove an undelete and leave the put of a delete that was dropped because of
        # it.
        self.log.sync()
        return above

    def purged(self) -> PurgedTombstones:
        """The deletes that compaction has purged."""
        return PurgedTombstones.from_state(self.log.manifest.state)

    def _passed(self) -> int | None:
        return self.replicas_passed()

    def _terms(self) -> ValidityTerms:
        now_ms = self._clock.now_ms()
        return ValidityTerms(now_ms, now_ms - self.settings.deleted_retention_ms)

    def _published(self) -> None:
        manifest = self.log.manifest
        self.index.load(manifest)
        self.index.retain(manifest)
        self._clock.floor_ms = self._unfinished_as_of_ms()

    def _unfinished_as_of_ms(self) -> int:
        return self.compaction.unfinished_as_of_ms()

    def _forget(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._segments.forget(name)

    def maintain(self) -> None:
        """Run periodic work: late fsyncs, and deleting files that readers have released."""
        self.log.maintain()
        if self.log.manifest.retired and not self.compaction.running:
            self.compaction.reclaim()

    def close(self) -> None:
        """Make everything durable and release the directory; a run is suspended."""
        self._end(self.log.close)

    def abandon(self) -> None:
        """Release the directory without making anything durable, like a killed process."""
        self._end(self.log.abandon)

    def _end(self, close_log: Callable[[], None]) -> None:
        # After this returns nothing may write to the files: the directory may then be deleted, and
        # another store be created there.
        self.compaction.close()
        self.erase.close()
        with self.writer.lock:
            self._segments.close()
            close_log()

    @property
    def closed(self) -> bool:
        """Whether the store was closed or abandoned."""
        return self.log.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _shape_in(fs: FileSystem, directory: str) -> StoreShape | None:
    """The shape of the store in a directory with a log; None if none was created."""
    manifest = read_manifest(fs, directory)
    return StoreShape.from_state(manifest.state) if manifest.kind == KIND else None
