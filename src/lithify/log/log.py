"""A segmented append-only log.

    log = Log.open(fs, "data/orders", kind="topic")
    pending = log.append(b"hello")             # in the file, not yet durable
    pending.result()                           # or: await pending
    with log.snapshot("report") as snapshot:
        for entry in snapshot.read(start=100): ...
    log.roll(); log.drop_head(before=5_000); log.reclaim(); log.close()

What it promises
    Nothing acknowledged is lost: an append is acknowledged when it is durable as configured, and
    `open` finds it after any crash. In mode `always` nobody sees an entry before it is durable.
    Positions ascend and mean the same for ever. A write that fails raises `WriteFailed`, leaves
    what was acknowledged as it was, and the next one tries again.

How it works
    Entries are appended to the active segment. Rolling seals it, starts the next, and publishes a
    manifest that names both. Manifest and active segment are replaced together, as one value, and
    never changed: a reader takes it and needs no lock afterwards.

Locks, always taken in this order
    _sync_lock       one fsync at a time
    _write_lock      the active segment; held for a write, not for an fsync
    publisher.lock   the manifest; an append waits for it only when it has to roll

How entries are written is in `appending.py`, fsyncs and rolls are in `rolling.py`, publishing is in
`publisher.py`, opening after a crash in `recovery.py`. Events are told when no lock is held
(`telling.py`), in the order of what they are about.
"""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from dataclasses import replace
from itertools import filterfalse
from typing import TYPE_CHECKING, Self

from lithify.clock import SystemClock
from lithify.errors import InvalidInput, LogClosed, LogLocked, WriteFailed
from lithify.events import Reclaimed, ignore_events
from lithify.fs import lock_owner
from lithify.log.appending import Appending
from lithify.log.manifest import Manifest, SegmentRef, read_manifest, write_manifest
from lithify.log.names import LOCK, MANIFEST, segment_name
from lithify.log.pins import Pins
from lithify.log.publisher import Publisher
from lithify.log.reader import ActiveTail, OpenSegments, Snapshot
from lithify.log.recovery import (
    check_new_directory,
    last_before_active,
    recover_tail,
    remove_orphans,
    remove_unpublished,
)
from lithify.log.rolling import Active, State
from lithify.log.segment import SEGMENT_HEADER_BYTES, SegmentHeader, SegmentWriter
from lithify.log.telling import Telling
from lithify.positions import DENSE, NO_POSITION
from lithify.settings import Durability, LogSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.clock import Clock
    from lithify.events import Event, EventSink
    from lithify.fs import FileLock, FileSystem
    from lithify.log.pins import Pin, PinInfo
    from lithify.positions import PositionRule

__all__ = ["Log"]


class Log(Appending):
    """One log, open for writing. All methods may be called from any thread."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        lock: FileLock,
        publisher: Publisher,
        active: Active,
        settings: LogSettings,
        clock: Clock,
        rule: PositionRule,
        events: Telling,
    ) -> None:
        """Use `Log.open`."""
        super().__init__(fs, directory, publisher, active, settings, clock, rule, events)
        self._lock = lock
        self._segments = OpenSegments(fs, directory, settings.open_files_max)
        self._pins = Pins(fs, directory, clock)

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
        """Open a log to write and read, creating it if it is not there; see `recovery.py`."""
        settings = settings or LogSettings()
        clock = clock or SystemClock()
        found = fs.exists(f"{directory}/{MANIFEST}")
        if not found:
            # Where a manifest is, the directory was made durable before it.
            fs.mkdir(directory)
        lock = fs.lock(f"{directory}/{LOCK}", owner or f"pid {os.getpid()}")
        if lock is None:
            raise LogLocked(directory, lock_owner(fs, f"{directory}/{LOCK}"))
        try:
            # Another process may have created it before this one got the lock.
            found = found or fs.exists(f"{directory}/{MANIFEST}")
            manifest = (
                _read(fs, directory, kind)
                if found
                else _create(fs, directory, kind, clock, rule, random_bytes(12))
            )
            for event in remove_orphans(fs, directory, manifest):
                events(event)
            tail = recover_tail(fs, directory, manifest)
        except BaseException:
            lock.release()
            raise
        telling = Telling(events)
        publisher = Publisher(fs, directory, manifest, telling.put, names_synced=not found)
        active = Active(tail.writer, last_before_active(manifest), tail.flags)
        log = cls(fs, directory, lock, publisher, active, settings, clock, rule, telling)
        if tail.cut is not None:
            events(tail.cut)
            # Positions that a reader may have seen before the cut must not be given out again.
            try:
                log.roll()
            except BaseException:
                log.abandon()
                raise
        return log

    def maintain(self) -> None:
        """What only time brings about: the fsync of mode `interval`, rolling by age.

        To be called every now and then by whoever owns the log; without it both wait for the
        next append, sync or close.
        """
        self._segments.forget_unused()
        # Nothing is done for a log in which nothing happens: there may be thousands of them.
        if self.settings.durability is Durability.INTERVAL and self._has_unsynced():
            waited_ms = (self._clock.monotonic_s() - self._synced_at_s) * 1000
            if waited_ms >= self.settings.sync_interval_ms:
                self.sync()
        with self._events, self._write_lock:
            writer = self._state.active.writer
            if self._closed or self._torn or self._publisher.failed:
                self._check_usable()
            if writer.entries and self._too_old(writer):
                self._roll()

    # --- generations ------------------------------------------------------------------------

    def publish(self, edit: Callable[[Manifest], Manifest], why: str) -> Manifest:
        """Make `edit(manifest)` the next generation; what it no longer names is retired.

        Everything it names must be durable. `edit` must keep the active segment; it may raise, and
        then nothing happens. Appends go on meanwhile.
        """

        def stamped(manifest: Manifest) -> Manifest:
            active = self._state.active
            return replace(
                edit(manifest), synced_bytes=active.durable.end, last_position=active.visible[1]
            )

        with self._events:
            return self._publish(stamped, why)

    def _publish(self, edit: Callable[[Manifest], Manifest], why: str) -> Manifest:
        while True:
            with self._write_lock:
                self._check_usable()
            with self._publisher.lock:
                # Settling may replace the active segment, so it needs the write lock, which may
                # not be taken under this one.
                if self._publisher.settled:
                    return self._publisher.publish(edit, why, adopt=self._adopt)

    def _adopt(self, manifest: Manifest) -> None:
        self._state = State(manifest, self._state.active)

    def drop_head(self, before: int) -> tuple[SegmentRef, ...]:
        """Retire the sealed segments that end below `before`; they are deleted by `reclaim`."""

        def ends_below(segment: SegmentRef) -> bool:
            return segment.sealed and segment.last_position < before

        def without(manifest: Manifest) -> Manifest:
            # Decided again: another publish may come first.
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
        with self._events, self._write_lock:
            self._check_usable()
        # In this order: who pins after this line pins a generation that names none of these.
        retired = self.manifest.retired
        try:
            oldest = self._pins.oldest_generation()
        except OSError as error:
            raise WriteFailed(self.directory, error) from error
        gone = self._publisher.delete(retired, oldest, self._segments.forget, pace)
        done = Reclaimed(self.directory, len(gone), sum(r.file_bytes for r in gone))
        if gone:
            self.publish(
                lambda m: replace(m, retired=tuple(r for r in m.retired if r not in gone)),
                "reclaim",
            )
            with self._events:
                self._events.put(done)
        return done

    def sweep(self) -> list[Event]:
        """Remove what compaction wrote and the manifest does not name."""
        return remove_unpublished(self._fs, self.directory, self.manifest)

    # --- reading ----------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        """The generation that rules now."""
        return self._state.manifest

    @property
    def last_position(self) -> int:
        """The last position that may be read, -1 if there is none."""
        return self._state.active.visible[1]

    @property
    def next_position(self) -> int:
        """The position the next append will take, unless it gives one itself."""
        return self._next_position

    def show_position(self, position: int) -> str:
        """A position as people of this kind of log write it."""
        return self._rule.show(position)

    @property
    def active_bytes(self) -> int:
        """Size of the active segment."""
        return self._state.active.writer.end

    @property
    def active_times_ms(self) -> tuple[int, int] | None:
        """When the active segment was begun, and the newest time in it; None if it is empty."""
        writer = self._state.active.writer
        return (writer.header.created_ms, writer.time_max) if writer.entries else None

    @contextmanager
    def snapshot(self, owner: str = "reader", *, cached: bool = False) -> Iterator[Snapshot]:
        """What the log holds now, pinned until the block ends; `cached`: see `reader.py`."""
        with self.pin(owner):
            state = self._state
            end, last = state.active.visible
            tail = ActiveTail(state.active.writer.blocks, end, last)
            yield Snapshot(state.manifest, self._segments, tail, cached=cached)

    def change_settings(self, settings: LogSettings) -> None:
        """Go on with others. What was appended under the old ones is made durable first."""
        self.sync()
        self.settings = settings
        self._segments.limit = settings.open_files_max

    def pin(self, owner: str) -> Pin:
        """Claim the generation that rules now: its files, and those of later ones, stay."""
        if self._closed:
            raise LogClosed(f"{self.directory} is closed")
        return self._pins.pin(lambda: self._state.manifest.generation, owner)

    def pins(self) -> list[PinInfo]:
        """Who holds which generation, oldest first."""
        return self._pins.list()

    @property
    def closed(self) -> bool:
        """Was it closed or abandoned?"""
        return self._closed

    # --- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable and let go of the directory; a second call does nothing.

        Raises if entries may be lost. A manifest that cannot be written is no loss: the next open
        finds what is behind it, as after a crash.
        """
        if self._closed:
            return
        try:
            if self._has_unsynced() or self._torn or self._publisher.failed:
                self.sync()
            if self._state.active.durable.end != self.manifest.synced_bytes:
                self.publish(lambda m: m, "close")
        except WriteFailed as error:
            if error.path != f"{self.directory}/{MANIFEST}" or self._has_unsynced():
                raise
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go without making anything durable, as a killed process would."""
        with self._write_lock:
            while self._rolling or self._syncing:
                # Whoever opens the log next may give the same name to a segment, and an fsync
                # needs the file that is closed here.
                self._sync_ended.wait()
            if self._closed:
                return
            self._closed = True
            self._state.active.writer.file.close()
            self._segments.close()
            self._lock.release()
            self._tick.complete(LogClosed(f"{self.directory} is closed"))

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
    """A log with one empty segment."""
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
