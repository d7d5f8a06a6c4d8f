"""A segmented append-only log.

    log = Log.open(fs, "data/orders", kind="topic")
    pending = log.append(b"hello")             # in the file, not yet durable
    pending.result()                           # or: await pending
    with log.snapshot("report") as snapshot:
        for entry in snapshot.read(start=100): ...
    log.roll(); log.drop_head(before=5_000); log.reclaim(); log.close()

Guarantees
    No acknowledged entry is lost: an append is acknowledged when it is durable as configured, and
    `open` finds it after any crash. In mode `always` no reader sees an entry before it is durable.
    Positions ascend and never change their meaning. A failed write raises `WriteFailed` and leaves
    acknowledged entries as they were; the next write repairs the file first.

How it works
    Entries are appended to the active segment. Rolling seals it, starts the next, and publishes a
    manifest that names both. Manifest and active segment are replaced together, as one immutable
    value: a reader takes a reference and needs no lock afterwards.

Parts
    WriteState   the active segment, the next position, and what is in progress (`write_state.py`)
    Appender     writes entries to the active segment (`appending.py`)
    Syncer       makes them durable (`fsync.py`)
    Roller       seals the active segment and starts the next (`rolling.py`)
    Publisher    replaces the manifest (`manifest_publisher.py`)

Locks, always taken in this order
    of the Syncer       one fsync at a time
    of the WriteState   the active segment; held during a write, not during an fsync
    of the Publisher    the manifest; an append waits for it only when it has to roll

`recovery.py` opens a log after a crash. Events are delivered when no lock is held
(`deferred_events.py`), in the order of the changes they report.
"""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import contextmanager
from dataclasses import replace
from itertools import filterfalse
from typing import TYPE_CHECKING, Self

from lithify.clock import SystemClock
from lithify.errors import InvalidInput, LogClosed, LogLocked, WriteFailed
from lithify.events import Reclaimed, ignore_events
from lithify.fs import lock_owner
from lithify.log.active_segment import ActiveSegment
from lithify.log.appending import Appender
from lithify.log.deferred_events import DeferredEvents
from lithify.log.file_names import LOCK, MANIFEST, segment_name
from lithify.log.fsync import Syncer
from lithify.log.manifest import Manifest, SegmentRef, read_manifest, write_manifest
from lithify.log.manifest_publisher import ManifestPublisher
from lithify.log.open_segments import OpenSegments
from lithify.log.pins import Pins
from lithify.log.reader import ActiveTail, Snapshot
from lithify.log.recovery import (
    check_new_directory,
    last_before_active,
    recover_tail,
    remove_orphans,
    remove_unpublished,
)
from lithify.log.rolling import Roller
from lithify.log.segments.frame import NewEntry
from lithify.log.segments.frame_batch import FrameBatch
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES, SegmentHeader, SegmentWriter
from lithify.log.write_state import WriteState
from lithify.positions import DENSE, NO_POSITION
from lithify.settings import LogSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.clock import Clock
    from lithify.events import Event, EventSink
    from lithify.fs import FileLock, FileSystem
    from lithify.log.group_commit import Pending
    from lithify.log.pins import Pin, PinInfo
    from lithify.log.segments.frame_batch import Slices
    from lithify.positions import PositionRule

__all__ = ["Log"]


class Log:
    """A log that is open for writing. All methods are thread-safe."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        lock: FileLock,
        writes: WriteState,
        clock: Clock,
        rule: PositionRule,
    ) -> None:
        """Use `Log.open`."""
        self.directory = directory
        self._fs = fs
        self._lock = lock
        self._clock = clock
        self._rule = rule
        self._writes = writes
        self._events = writes.events
        self._publisher = writes.publisher
        self._syncer = Syncer(writes, clock)
        self._roller = Roller(fs, writes, self._syncer, clock, rule)
        self._appender = Appender(writes, self._syncer, self._roller, rule)
        self._segments = OpenSegments(fs, directory, writes.settings.open_files_max)
        self._pins = Pins(fs, directory, clock)
        self._deleting = threading.Lock()
        """Held while a retired file is deleted, and while the log is closed."""

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: str,
        *,
        kind: str,
        settings: LogSettings | None = None,
        clock: Clock | None = None,
        rule: PositionRule = DENSE,
        events: EventSink = ignore_events,
        owner: str | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> Log:
        """Open a log for writing and reading, creating it if necessary; see `recovery.py`."""
        settings = settings or LogSettings()
        clock = clock or SystemClock()
        existed = fs.exists(f"{directory}/{MANIFEST}")
        if not existed:
            # A directory with a manifest was made durable before the manifest.
            fs.mkdir(directory)
        lock = fs.lock(f"{directory}/{LOCK}", owner or f"pid {os.getpid()}")
        if lock is None:
            raise LogLocked(directory, lock_owner(fs, f"{directory}/{LOCK}"))
        try:
            # Another process may have created it before this one got the lock.
            existed = existed or fs.exists(f"{directory}/{MANIFEST}")
            manifest = (
                _read(fs, directory, kind)
                if existed
                else _create(fs, directory, kind, clock, rule, random_bytes(12))
            )
            for event in remove_orphans(fs, directory, manifest):
                events(event)
            tail = recover_tail(fs, directory, manifest)
        except BaseException:
            lock.release()
            raise
        deferred = DeferredEvents(events)
        publisher = ManifestPublisher(
            fs, directory, manifest, deferred.put, names_synced=not existed
        )
        active = ActiveSegment(tail.writer, last_before_active(manifest), tail.flags)
        writes = WriteState(directory, publisher, active, settings, deferred)
        log = cls(fs, directory, lock, writes, clock, rule)
        if tail.cut is not None:
            events(tail.cut)
            # Readers may have seen positions before the cut: never assign them again.
            try:
                log.roll()
            except BaseException:
                log.abandon()
                raise
        return log

    # --- writing ----------------------------------------------------------------------------

    def append(
        self,
        body: Buffer,
        *,
        time_ms: int | None = None,
        flags: int = 0,
        tag: int = 0,
        position: int | None = None,
    ) -> Pending:
        """Append one entry. `position` must be above all others; the default is the next one."""
        time_ms = self._clock.now_ms() if time_ms is None else time_ms
        return self._appender.append((NewEntry(body, time_ms, flags, tag),), position, None)

    def append_together(
        self, entries: Sequence[NewEntry], *, after: Pending | None = None
    ) -> Pending:
        """Append entries in one write to one segment; the result names the last position.

        The segment may exceed its size limit. If the append `after` has failed, nothing is written
        and its error is raised.
        """
        return self._appender.append(entries, None, after)

    def append_many(
        self,
        bodies: Sequence[Buffer] | Slices,
        *,
        time_ms: int | Sequence[int] | NDArray[np.int64] | None = None,
        flags: int | Sequence[int] | NDArray[np.int64] = 0,
        tags: int | Sequence[int] | NDArray[np.int64] = 0,
        positions: Sequence[int] | NDArray[np.int64] | None = None,
        after: Pending | None = None,
    ) -> Pending:
        """Append several entries; the result stands for all of them and names the last position.

        A number applies to all bodies, a sequence has one value per body. If a write fails in the
        middle, the entries before it are in the log and nothing is acknowledged. If the append
        `after` has failed, nothing is written and its error is raised.
        """
        times = self._clock.now_ms() if time_ms is None else time_ms
        limit = self._writes.settings.entry_bytes_max
        batch = FrameBatch(bodies, times, flags, tags, positions, limit)
        return self._appender.append_batch(batch, after)

    def sync(self) -> None:
        """Make everything appended so far durable, in any mode."""
        self._syncer.sync()

    def roll(self) -> None:
        """Seal the active segment and start the next; does nothing if it is empty."""
        self._roller.roll()

    def must_roll(self, size_bytes: int) -> bool:
        """Is the active segment too old, or too full for `size_bytes` more?"""
        return self._appender.must_roll(size_bytes)

    def must_settle(self) -> bool:
        """Would an append have to wait, for a roll or for the repair of an earlier failure?"""
        torn = self._writes.current.active.torn
        return self._roller.sealing or torn or not self._publisher.settled

    def settle(self) -> None:
        """Make sure that `manifest` is what is on disk; raises `WriteFailed` if that fails."""
        with self._events, self._writes.lock:
            self._writes.check_usable()

    @property
    def settings(self) -> LogSettings:
        """The current settings; see `change_settings`."""
        return self._writes.settings

    def change_settings(self, settings: LogSettings) -> None:
        """Replace the settings. Entries appended under the old ones are made durable first."""
        self.sync()
        self._writes.settings = settings
        self._segments.limit = settings.open_files_max

    def maintain(self) -> None:
        """Do what depends on time only: the fsync of mode `interval`, and rolling by age.

        The owner of the log calls it periodically; otherwise both wait for the next append, sync
        or close.
        """
        self._segments.forget_unused()
        # An idle log costs nothing here: there may be thousands of them.
        self._syncer.sync_if_due()
        with self._events, self._writes.lock:
            self._roller.roll_if_old()

    # --- generations ------------------------------------------------------------------------

    def publish(self, edit: Callable[[Manifest], Manifest], why: str) -> Manifest:
        """Publish `edit(manifest)` as the next generation; files it no longer names are retired.

        Everything it names must be durable. `edit` must keep the active segment; if it raises,
        nothing is published. Appends continue meanwhile.
        """

        def stamped(manifest: Manifest) -> Manifest:
            active = self._writes.current.active
            return replace(
                edit(manifest), synced_bytes=active.durable.end, last_position=active.visible[1]
            )

        with self._events:
            return self._publish(stamped, why)

    def _publish(self, edit: Callable[[Manifest], Manifest], why: str) -> Manifest:
        while True:
            with self._writes.lock:
                self._writes.check_usable()
            with self._publisher.lock:
                # Settling may replace the active segment, so it needs the write lock, which must
                # not be taken while this one is held.
                if self._writes.closed:
                    raise LogClosed(f"{self.directory} is closed")
                if self._publisher.settled:
                    return self._publisher.publish(edit, why, adopt=self._writes.adopt)

    def drop_head(self, before: int) -> tuple[SegmentRef, ...]:
        """Retire the sealed segments that end below `before`; they are deleted by `reclaim`."""

        def ends_below(segment: SegmentRef) -> bool:
            return segment.sealed and segment.last_position < before

        def without(manifest: Manifest) -> Manifest:
            # Selected again: another publish may have come first.
            gone = filter(ends_below, manifest.segments)
            dropped = max([manifest.dropped, *(segment.last_position for segment in gone)])
            kept = tuple(filterfalse(ends_below, manifest.segments))
            return replace(manifest, segments=kept, dropped=dropped)

        gone = tuple(filter(ends_below, self.manifest.segments))
        if gone:
            self.publish(without, "drop head")
        return gone

    def reclaim(self, pace: Callable[[int], None] = lambda _: None) -> Reclaimed:
        """Delete retired files that no reader pins; `pace` is called with the bytes before each."""
        self.settle()
        # In this order: a pin made after this line is on a generation that names none of these.
        retired = self.manifest.retired
        try:
            oldest = self._pins.oldest_generation()
        except OSError as error:
            raise WriteFailed(self.directory, error) from error
        forget, undisturbed = self._segments.forget, self._while_open
        gone = self._publisher.delete(retired, oldest, forget, pace, undisturbed)
        done = Reclaimed(self.directory, len(gone), sum(r.file_bytes for r in gone))
        if gone:
            self.publish(
                lambda m: replace(m, retired=tuple(r for r in m.retired if r not in gone)),
                "reclaim",
            )
            with self._events:
                self._events.put(done)
        return done

    @contextmanager
    def _while_open(self) -> Iterator[None]:
        """Keep the log from being closed during the block."""
        with self._deleting:
            if self._writes.closed:
                raise LogClosed(f"{self.directory} is closed")
            yield

    def sweep(self) -> list[Event]:
        """Remove what compaction wrote and the manifest does not name."""
        return remove_unpublished(self._fs, self.directory, self.manifest)

    # --- reading ----------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        """The current generation."""
        return self._writes.current.manifest

    @property
    def last_position(self) -> int:
        """The last readable position, -1 if there is none."""
        return self._writes.current.active.visible[1]

    @property
    def next_position(self) -> int:
        """The position of the next append, unless the caller gives one."""
        return self._writes.next_position

    def show_position(self, position: int) -> str:
        """Format a position as users of this kind of log write it."""
        return self._rule.show(position)

    @property
    def active_bytes(self) -> int:
        """Size of the active segment."""
        return self._writes.current.active.writer.end

    @property
    def active_times_ms(self) -> tuple[int, int] | None:
        """(creation, newest entry) of the active segment; None if it is empty."""
        writer = self._writes.current.active.writer
        return (writer.header.created_ms, writer.time_max) if writer.entries else None

    @contextmanager
    def snapshot(self, owner: str = "reader", *, cached: bool = False) -> Iterator[Snapshot]:
        """The current contents, pinned until the block ends; `cached`: see `reader.py`."""
        with self.pin(owner):
            state = self._writes.current
            end, last = state.active.visible
            tail = ActiveTail(state.active.writer.blocks, end, last)
            yield Snapshot(state.manifest, self._segments, tail, cached=cached)

    def pin(self, owner: str) -> Pin:
        """Pin the current generation: its files, and those of later ones, are not deleted."""
        if self._writes.closed:
            raise LogClosed(f"{self.directory} is closed")
        return self._pins.pin(lambda: self._writes.current.manifest.generation, owner)

    def pins(self) -> list[PinInfo]:
        """All pins, oldest generation first."""
        return self._pins.list()

    @property
    def closed(self) -> bool:
        """Was it closed or abandoned?"""
        return self._writes.closed

    # --- closing ----------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable and release the directory; a second call does nothing.

        Raises if entries may be lost. A manifest that cannot be written loses nothing: the next
        open recovers the entries after it, as after a crash.
        """
        writes = self._writes
        if writes.closed:
            return
        try:
            active = writes.current.active
            if active.unsynced or active.torn or self._publisher.failed:
                self.sync()
            if writes.current.active.durable.end != self.manifest.synced_bytes:
                self.publish(lambda m: m, "close")
        except WriteFailed as error:
            if error.path != f"{self.directory}/{MANIFEST}" or writes.current.active.unsynced:
                raise
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release the log without making anything durable, like a killed process."""
        writes = self._writes
        with writes.lock:
            while writes.rolling or writes.syncing:
                # The next owner of the log may reuse the name of a segment in progress, and an
                # fsync needs the file that is closed here.
                writes.ended.wait()
            if writes.closed:
                return
            # The next owner may have files with the same names: no publish and no deletion may be
            # in progress from here on.
            with self._publisher.lock, self._deleting:
                writes.closed = True
            writes.current.active.writer.file.close()
            self._segments.close()
            self._lock.release()
            writes.tick.complete(LogClosed(f"{self.directory} is closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _read(fs: FileSystem, directory: str, kind: str) -> Manifest:
    manifest = read_manifest(fs, directory)
    if manifest.kind != kind:
        raise InvalidInput(f"{directory} is a log of kind {manifest.kind!r}, not {kind!r}")
    return manifest


def _create(
    fs: FileSystem, directory: str, kind: str, clock: Clock, rule: PositionRule, log_id: bytes
) -> Manifest:
    """Create a log with one empty segment."""
    check_new_directory(fs, directory)
    first = rule.first(1, NO_POSITION)
    header = SegmentHeader(1, first, clock.now_ms(), kind, log_id)
    with SegmentWriter.create(fs, f"{directory}/{segment_name(1)}", header).file as file:
        file.fsync()
    manifest = Manifest(
        kind,
        log_id,
        generation=1,
        next_segment_id=2,
        segments=(SegmentRef(1, segment_name(1), first),),
        synced_bytes=SEGMENT_HEADER_BYTES,
    )
    write_manifest(fs, directory, manifest)
    return manifest
