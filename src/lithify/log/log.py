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

Whoever calls `roll` has what takes longest done before the second one: what was written is fsynced
and the next segment's file is made while others append. They wait for the footer's fsync and for
the manifest. An append that finds its segment full does all of it under the lock.

After a failed fsync in mode `always` everything that was not acknowledged is cut off again,
because the operating system may have dropped those pages while still showing them. Their positions
are not given out again, nor are those of a failed write. In the other modes the bytes stay, and the
error of an fsync goes to whoever syncs.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import filterfalse
from typing import TYPE_CHECKING, Self

from lithify.clock import SystemClock
from lithify.errors import InvalidInput, LogClosed, LogLocked, PositionOutOfRange, WriteFailed
from lithify.events import Reclaimed, SegmentSealed, WriteRefused, ignore_events
from lithify.fs import read_file
from lithify.log.batch import Batch
from lithify.log.commit import Pending, Tick
from lithify.log.frame import HEADER_BYTES, check_fields, encode_header
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
)
from lithify.log.segment import SEGMENT_HEADER_BYTES, SegmentHeader, SegmentWriter
from lithify.positions import DENSE, NO_POSITION, POSITION_MAX
from lithify.settings import Durability, LogSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileLock, FileSystem
    from lithify.log.batch import Slices
    from lithify.log.pins import Pin, PinInfo
    from lithify.log.segment import SegmentFooter, WriterMark
    from lithify.positions import PositionRule

__all__ = ["Log"]

_DONE = Tick()
_DONE.complete()


class _Active:
    """The active segment: what is written, what is durable, what may be read."""

    __slots__ = ("durable", "visible", "writer")

    def __init__(self, writer: SegmentWriter, last_position: int) -> None:
        self.writer = writer
        self.durable: WriterMark = writer.mark()
        last = writer.last_position if writer.entries else last_position
        self.visible = (writer.end, last)


@dataclass(frozen=True, slots=True)
class _State:
    manifest: Manifest
    active: _Active


class Log:
    """One log, open for writing. All methods may be called from any thread."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        lock: FileLock,
        publisher: Publisher,
        active: _Active,
        settings: LogSettings,
        clock: Clock,
        rule: PositionRule,
        events: EventSink,
    ) -> None:
        """Use `Log.open`."""
        self._fs = fs
        self._lock = lock
        self._publisher = publisher
        self._clock = clock
        self._rule = rule
        self._events = events
        self._sync_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._sync_ended = threading.Condition(self._write_lock)
        self._syncing = False
        self._rolling = False
        """Is somebody making the next segment's file?"""
        self.sealing = False
        """Would an append have to wait for a roll?"""
        self._state = _State(publisher.manifest, active)
        self._tick = Tick()
        self._next_position = self._first_free()
        self._torn = False
        self._closed = False
        self._synced_at_s = clock.monotonic_s()
        self._segments = OpenSegments(fs, directory, settings.open_files_max)
        self._pins = Pins(fs, directory, clock)
        self.directory = directory
        self.settings = settings

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
            raise LogLocked(directory, read_file(fs, f"{directory}/{LOCK}").decode() or "unknown")
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
        publisher = Publisher(fs, directory, manifest, events, names_synced=not found)
        active = _Active(tail.writer, last_before_active(manifest))
        log = cls(fs, directory, lock, publisher, active, settings, clock, rule, events)
        if tail.cut is not None:
            events(tail.cut)
            # Positions that a reader may have seen before the cut must not be given out again.
            try:
                log.roll()
            except BaseException:
                log.abandon()
                raise
        return log

    # --- appending -------------------------------------------------------------------------

    def append(
        self,
        body: Buffer,
        *,
        time_ms: int | None = None,
        flags: int = 0,
        tag: int = 0,
        position: int | None = None,
        more: Buffer = b"",
        after: Pending | None = None,
    ) -> Pending:
        """Append one entry. `position` must be above all others; by default it is the next one.

        Its body is `body` and then `more`: two that stand apart need not be joined. If the append
        `after` has failed, nothing is written, and its error is raised.
        """
        time_ms = self._clock.now_ms() if time_ms is None else time_ms
        length = len(body) + len(more)
        check_fields(length, position or 0, time_ms, flags, tag, self.settings.entry_bytes_max)
        size = HEADER_BYTES + length
        with self._write_lock:
            active, place = self._prepare(size, position)
            if after is not None and after.done():
                after.result()
            synced = active.durable.end
            header = encode_header(body, place, time_ms, flags, tag, synced, more)
            try:
                active.writer.append((header, body, more), size, place, time_ms)
            except OSError as error:
                raise self._write_failed(error, place) from error
            return self._written(active, place)

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

        Numbers hold for all bodies, sequences give one for each. If a write fails in the middle,
        the entries before it are in the log and nothing is acknowledged. If the append `after` has
        failed, these must not be without it: nothing is written, and its error is raised.
        """
        times = self._clock.now_ms() if time_ms is None else time_ms
        batch = Batch(bodies, times, flags, tags, positions, self.settings.entry_bytes_max)
        with self._write_lock:
            place = self._state.active.visible[1]
            pending = Pending(place, _DONE, self)
            runs: list[tuple[int, int]] = []
            while len(batch):
                active, place = self._prepare(batch.next_size, batch.next_position)
                if pending.done():
                    # Rolling may have waited for an fsync that failed and took the pieces before
                    # this one with it: then nothing of the batch may be acknowledged.
                    pending.result()
                if after is not None and after.done():
                    after.result()
                writer = active.writer
                room = self.settings.segment_bytes_max - writer.end
                limit = self._rule.last(writer.header.segment_id)
                piece = batch.take(room, place, limit, active.durable.end)
                try:
                    writer.append_piece(piece)
                except OSError as error:
                    raise self._write_failed(error, int(piece.positions[-1])) from error
                pending = self._written(active, int(piece.positions[-1]))
                runs.append((int(piece.positions[0]), pending.position))
            pending.runs = runs
            return pending

    def _prepare(self, size: int, position: int | None) -> tuple[_Active, int]:
        """The active segment, rolled if need be, and the position for the next entry."""
        self._check_usable()
        writer = self._state.active.writer
        place = self._place(position)
        full = writer.end + size > self.settings.segment_bytes_max
        used_up = place > self._rule.last(writer.header.segment_id)
        if writer.entries and (full or used_up or self._too_old(writer)):
            self._roll()
            # Rolling may have waited for an fsync, and others may have appended meanwhile.
            place = self._place(position)
        last = self._rule.last(self._state.active.writer.header.segment_id)
        if place > last:
            raise PositionOutOfRange(place, f"{last} or lower")
        return self._state.active, place

    def _place(self, position: int | None) -> int:
        """The position for the next entry, which may have been given."""
        if position is None:
            return self._next_position
        if position < self._first_free():
            raise PositionOutOfRange(position, f"{self._first_free()} or higher")
        return position

    def _written(self, active: _Active, last: int) -> Pending:
        self._next_position = last + 1
        if self.settings.durability is Durability.ALWAYS:
            return Pending(last, self._tick, self)
        active.visible = (active.writer.end, last)
        return Pending(last, _DONE, self)

    def _first_free(self) -> int:
        """The lowest position that an append may take."""
        active = self._state.active
        writer = active.writer
        after = writer.last_position if writer.entries else active.visible[1]
        return max(after + 1, writer.header.first_position)

    def _too_old(self, writer: SegmentWriter) -> bool:
        limit = self.settings.segment_age_ms_max
        return limit is not None and self._clock.now_ms() - writer.header.created_ms >= limit

    def _check_usable(self) -> None:
        """Raise if closed; repair what an earlier failed write left behind."""
        if self._closed:
            raise LogClosed(f"{self.directory} is closed")
        if not self._publisher.settled:
            self._publisher.settle()
        if self._torn:
            writer = self._state.active.writer
            try:
                writer.file.truncate(writer.end)
            except OSError as error:
                raise WriteFailed(writer.path, error) from error
            self._torn = False

    def _write_failed(self, error: OSError, last: int = NO_POSITION) -> WriteFailed:
        """A write may have left part of its bytes: cut them off, now or before the next write.

        Of its frames, up to position `last`, some may be whole. A power cut can undo the cut and
        bring them back, so their positions go to nobody else.
        """
        writer = self._state.active.writer
        self._next_position = max(self._next_position, last + 1)
        self._events(WriteRefused(self.directory, writer.path, str(error)))
        self._torn = True
        with suppress(WriteFailed):
            self._check_usable()
        return WriteFailed(writer.path, error)

    # --- making durable ---------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything appended so far durable, in any mode."""
        with self._sync_lock:
            self._sync()

    def sync_tick(self, tick: Tick) -> None:
        """Make what belongs to a tick durable; nothing if somebody has done it meanwhile."""
        with self._sync_lock:
            if not tick.done:
                self._sync()

    def _sync(self) -> None:
        with self._write_lock:
            try:
                self._check_usable()
            except WriteFailed as refused:
                # Nobody else would tell those who wait.
                self._drop_unacknowledged(self._state.active, refused)
                raise
            active, tick = self._state.active, self._tick
            mark = active.writer.mark()
            self._tick = Tick()
            self._syncing = True
        failure: WriteFailed | None = None
        try:
            if mark.end != active.durable.end:
                active.writer.file.fdatasync()
        except OSError as error:
            failure = WriteFailed(active.writer.path, error)
            self._events(WriteRefused(self.directory, active.writer.path, str(error)))
        except BaseException:
            # An interrupt: nobody may wait for this fsync any longer. The next one covers it.
            with self._write_lock:
                self._syncing = False
                self._sync_ended.notify_all()
            cause = InterruptedError(errno.EINTR, "fsync was interrupted")
            tick.complete(WriteFailed(active.writer.path, cause))
            raise
        with self._write_lock:
            self._syncing = False
            self._sync_ended.notify_all()
            if failure is None:
                self._durable_up_to(active, mark)
            else:
                self._drop_unacknowledged(active, failure)
                # Under the lock: an append that is to stand behind these must know.
                tick.complete(failure)
        self._synced_at_s = self._clock.monotonic_s()
        if failure is not None:
            raise failure
        tick.complete()

    def _has_unsynced(self) -> bool:
        active = self._state.active
        return active.writer.end != active.durable.end

    def _durable_up_to(self, active: _Active, mark: WriterMark) -> None:
        active.durable = mark
        if mark.entries and mark.end > active.visible[0]:
            active.visible = (mark.end, mark.last_position)

    def _drop_unacknowledged(self, active: _Active, failure: WriteFailed) -> None:
        """After a failed fsync: back to what is durable, if that is what was promised."""
        if self.settings.durability is not Durability.ALWAYS:
            return
        active.writer.rewind(active.durable)
        self._torn = True
        tick, self._tick = self._tick, Tick()
        tick.complete(failure)
        with suppress(WriteFailed):
            self._check_usable()

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
        with self._write_lock:
            writer = self._state.active.writer
            if self._closed or self._torn or self._publisher.failed:
                self._check_usable()
            if writer.entries and self._too_old(writer):
                self._roll()

    # --- segments and generations -----------------------------------------------------------

    def must_roll(self, size_bytes: int) -> bool:
        """Do so many bytes more not fit into the active segment, or is it too old for them?"""
        writer = self._state.active.writer
        full = writer.end + size_bytes > self.settings.segment_bytes_max
        return writer.entries > 0 and (full or self._too_old(writer))

    def roll(self) -> None:
        """Seal the active segment and start the next; an empty one stays. See the module."""
        if self._has_unsynced():
            self.sync()
        with self._write_lock:
            self._check_usable()
            while self._rolling:
                self._sync_ended.wait()
            if not self._state.active.writer.entries:
                return
            header = self._successor()
            self._rolling = True
        spare: SegmentWriter | None = None
        try:
            spare = self._begin(header)
        finally:
            with self._write_lock:
                try:
                    if spare is not None:
                        self._roll(spare)
                finally:
                    self._rolling = False
                    self._sync_ended.notify_all()

    def _roll(self, spare: SegmentWriter | None = None) -> None:
        """Under the write lock; `spare` is the successor, if it was made before."""
        rolled = self._state.active
        while self._syncing or (self._rolling and spare is None):
            self._sync_ended.wait()
        self.sealing = True
        try:
            with self._publisher.lock, ExitStack() as unused:
                if spare is not None:
                    unused.callback(spare.file.close)
                # While this waited for the fsync or for the manifest, others may have closed the
                # log, left something to be repaired first, or rolled.
                self._check_usable()
                active = self._state.active
                if active is not rolled or not active.writer.entries:
                    return
                header = self._successor()
                footer = self._seal(active)
                if spare is None or not _is_for(spare.header, header):
                    # If this fails the footer is cut off again before the next write.
                    self._torn = True
                    spare = self._begin(header)
                    self._torn = False
                else:
                    unused.pop_all()
                self._start(footer, spare)
        finally:
            self.sealing = False

    def _successor(self) -> SegmentHeader:
        """The header of the segment after the active one."""
        segment_id = self._publisher.manifest.next_segment_id
        first = self._rule.first(segment_id, self._next_position - 1)
        if first > POSITION_MAX:
            raise PositionOutOfRange(first, f"{POSITION_MAX} or lower")
        return replace(
            self._state.active.writer.header,
            segment_id=segment_id,
            first_position=first,
            created_ms=self._clock.now_ms(),
        )

    def _begin(self, header: SegmentHeader) -> SegmentWriter:
        """A segment without entries, durable; nobody knows it yet."""
        path = f"{self.directory}/{segment_name(header.segment_id)}"
        try:
            writer = SegmentWriter.create(self._fs, path, header)
            try:
                writer.file.fsync()
            except BaseException:
                writer.file.close()
                raise
        except OSError as error:
            self._events(WriteRefused(self.directory, path, str(error)))
            raise WriteFailed(path, error) from error
        return writer

    def _seal(self, active: _Active) -> SegmentFooter:
        try:
            footer = active.writer.seal()
        except OSError as error:
            failure = self._write_failed(error)
            self._drop_unacknowledged(active, failure)
            raise failure from error
        self._durable_up_to(active, active.writer.mark())
        return footer

    def _start(self, footer: SegmentFooter, successor: SegmentWriter) -> None:
        """Publish that the active segment is sealed and its successor active."""
        name = self._publisher.manifest.active.name
        self._publisher.publish(
            lambda m: _rolled(m, footer, successor.header),
            "roll",
            adopt=lambda m: self._switch(m, successor),
            drop=lambda: self._unseal(successor),
        )
        self._events(SegmentSealed(self.directory, name, footer.entries, footer.file_bytes))

    def _switch(self, manifest: Manifest, successor: SegmentWriter) -> None:
        """The roll is published: the successor is active, and all before it is durable."""
        old = self._state.active
        self._state = _State(manifest, _Active(successor, old.visible[1]))
        self._next_position = max(self._next_position, self._first_free())
        old.writer.file.close()
        tick, self._tick = self._tick, Tick()
        tick.complete()

    def _unseal(self, successor: SegmentWriter) -> None:
        """The roll was not published: the footer goes, the segment stays active."""
        successor.file.close()
        self._torn = True

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

        while True:
            with self._write_lock:
                self._check_usable()
            with self._publisher.lock:
                # Settling may replace the active segment, so it needs the write lock, which may
                # not be taken under this one.
                if self._publisher.settled:
                    return self._publisher.publish(stamped, why, adopt=self._adopt)

    def _adopt(self, manifest: Manifest) -> None:
        self._state = _State(manifest, self._state.active)

    def settle(self) -> None:
        """Make sure that `manifest` is what is on disk; raises `WriteFailed` while it is not."""
        with self._write_lock:
            self._check_usable()

    def drop_head(self, before: int) -> tuple[SegmentRef, ...]:
        """Retire the sealed segments that end below `before`; they are deleted by `reclaim`."""

        def ends_below(segment: SegmentRef) -> bool:
            return segment.sealed and segment.last_position < before

        gone = tuple(filter(ends_below, self.manifest.segments))
        if gone:
            # Decided again in the edit: another publish may come first.
            self.publish(
                lambda m: replace(m, segments=tuple(filterfalse(ends_below, m.segments))),
                "drop head",
            )
        return gone

    def reclaim(self, pace: Callable[[int], None] = lambda _: None) -> Reclaimed:
        """Delete retired files that no reader pins; `pace` is called with the bytes before each."""
        with self._write_lock:
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
            self._events(done)
        return done

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
    def snapshot(self, owner: str = "reader") -> Iterator[Snapshot]:
        """What the log holds now, pinned until the block ends."""
        with self.pin(owner):
            state = self._state
            end, last = state.active.visible
            tail = ActiveTail(state.active.writer.blocks, end, last)
            yield Snapshot(state.manifest, self._segments, tail)

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
        """Make everything durable and let go of the directory; a second call does nothing."""
        if self._closed:
            return
        try:
            if self._has_unsynced() or self._torn or self._publisher.failed:
                self.sync()
            if self._state.active.durable.end != self.manifest.synced_bytes:
                self.publish(lambda m: m, "close")
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


def _is_for(made: SegmentHeader, wanted: SegmentHeader) -> bool:
    """May a segment with the one header be used where the other is wanted?"""
    return replace(made, created_ms=wanted.created_ms) == wanted


def _rolled(manifest: Manifest, footer: SegmentFooter, header: SegmentHeader) -> Manifest:
    """The manifest after the active segment was sealed and `header` begins the next."""
    sealed = replace(
        manifest.active,
        last_position=footer.last_position,
        entries=footer.entries,
        frame_bytes=footer.frame_bytes,
        file_bytes=footer.file_bytes,
        time_min=footer.time_min,
        time_max=footer.time_max,
        sealed=True,
    )
    successor = SegmentRef(
        header.segment_id, segment_name(header.segment_id), header.first_position
    )
    return replace(
        manifest,
        next_segment_id=manifest.next_segment_id + 1,
        segments=(*manifest.segments[:-1], sealed, successor),
        last_position=footer.last_position,
        synced_bytes=SEGMENT_HEADER_BYTES,
    )
