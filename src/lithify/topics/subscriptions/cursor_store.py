"""The durable subscriptions of one topic: name, properties and cursor of each, in a small log.

Each change of a cursor is appended to the log as a record of a few bytes, then applied in memory.
So memory always equals the result of a replay (plus the gaps taken since, which are found again).
An append is with the operating system when it returns: it survives the death of the process at
once, and a power cut after `sync` or after the first `maintain` past the interval. Creating and
deleting a subscription is durable when it returns.

Records: the `tag` of the entry is the number of the subscription, the high byte of its `flags` the
kind.

    kind         body
    1  snapshot  length of the head (4, little-endian), the head (JSON: name, properties, and
                 "compacted": true if it reads compacted), cursor
    2  deleted   empty
    3 … 7        a change, see `cursor_changes.py`

A checkpoint keeps the log short. `maintain` runs it when the log has grown past
`checkpoint_bytes_min` and past `checkpoint_factor` times the snapshots in it:

1. Roll. All records so far are in sealed segments, and all of them are applied.
   A crash here leaves one more segment; replay is the same.
2. Append a snapshot of every subscription, while acknowledgements continue between them.
   A crash here leaves some snapshots. Each equals the result of the records before it.
3. Sync. From here on the new segment is complete by itself.
4. Drop the sealed segments by one publish, and delete them.
   A crash before the publish replays old and new, after it the new alone; one before the deletion
   leaves retired files, which the next checkpoint deletes.

So a log may begin with changes of a subscription whose snapshot follows later and includes them:
replay skips those. If neither a snapshot nor a deletion follows, the log is damaged.

Owned by the topic. All methods may be called from any thread, but `ack` and `take_gaps` change the
cursor that `get` returns, so it may be read only on the thread that calls those. These two are for
an event loop. They wait neither for the disk, if `preparation` returned None, nor for another
thread. For this, other records are written only if they leave room for a change, and no thread
rolls the log while it holds the lock.
"""

from __future__ import annotations

import json
import struct
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from lithify.errors import DamagedFile, InvalidInput, LithifyError
from lithify.log.log import Log
from lithify.settings import Durability, LogSettings, check_range
from lithify.topics.subscriptions.cursor import Cursor
from lithify.topics.subscriptions.cursor_changes import change_from_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.segments.frame import LogEntry
    from lithify.topics.subscriptions.cursor_changes import CursorChange

__all__ = ["CursorSettings", "CursorStore"]

_KIND = "cursor"
_SNAPSHOT = 1
_DELETED = 2
_KIND_SHIFT = 8
_LENGTH = struct.Struct("<I")

RECORD_BYTES_MAX = 2**20
"""Room that a change needs; the largest, of a batch of 2^20 messages, takes a quarter of this."""


@dataclass(frozen=True, slots=True)
class CursorSettings:
    """Settings of a cursor store; each may change between two opens."""

    sync_interval_ms: int = 200
    checkpoint_bytes_min: int = 4 * 2**20
    """Minimum log size for a checkpoint. Replay of this, 100 000 records, takes under a second."""
    checkpoint_factor: int = 8
    """Minimum ratio of the log size to the size of its snapshots for a checkpoint."""

    def __post_init__(self) -> None:
        check_range("sync_interval_ms", self.sync_interval_ms, 1, 3_600_000)
        check_range("checkpoint_bytes_min", self.checkpoint_bytes_min, 1024, 2**32 - 1)
        check_range("checkpoint_factor", self.checkpoint_factor, 2, 1000)


@dataclass(slots=True)
class _Subscription:
    number: int
    name: str
    properties: Mapping[str, str]
    cursor: Cursor
    snapshot_bytes: int = 0
    """Size of its newest snapshot in the log."""
    compacted: bool = False

    def to_bytes(self) -> bytes:
        head_row: dict[str, object] = {"name": self.name, "properties": self.properties}
        if self.compacted:
            head_row["compacted"] = True
        head = json.dumps(head_row).encode()
        return b"".join((_LENGTH.pack(len(head)), head, self.cursor.to_bytes()))

    @classmethod
    def from_entry(cls, entry: LogEntry, path: str) -> _Subscription:
        body = entry.body
        (length,) = _LENGTH.unpack_from(body)
        split = _LENGTH.size + length
        head = json.loads(body[_LENGTH.size : split])
        cursor = Cursor.from_bytes(body[split:], path)
        subscription = cls(entry.tag, head["name"], head["properties"], cursor, len(body))
        subscription.compacted = head.get("compacted", False)
        return subscription


class CursorStore:
    """The durable subscriptions of one topic."""

    def __init__(self, log: Log, settings: CursorSettings) -> None:
        """Use `CursorStore.open`."""
        self.log = log
        self._settings = settings
        # Held while a record is appended and applied, so that both have the same order.
        self._lock = threading.Lock()
        with log.snapshot("cursor store") as snapshot:
            found, self._next_number = _replay(snapshot.read(), log.directory)
        self._subscriptions = {subscription.name: subscription for subscription in found}

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: str,
        *,
        clock: Clock,
        events: EventSink,
        settings: CursorSettings | None = None,
    ) -> CursorStore:
        """Open the store in `directory`, which is created if it does not exist."""
        settings = settings or CursorSettings()
        log_settings = LogSettings(
            durability=Durability.INTERVAL, sync_interval_ms=settings.sync_interval_ms
        )
        log = Log.open(fs, directory, kind=_KIND, settings=log_settings, clock=clock, events=events)
        try:
            return cls(log, settings)
        except BaseException:
            log.abandon()
            raise

    # --- subscriptions ----------------------------------------------------------------------

    def create(
        self,
        name: str,
        cursor: Cursor,
        properties: Mapping[str, str],
        *,
        compacted: bool = False,
    ) -> None:
        """Add a subscription, durably; the store takes ownership of the cursor."""
        new = _Subscription(0, name, dict(properties), cursor, compacted=compacted)
        with self._writing(lambda: new) as body:
            if name in self._subscriptions:
                raise InvalidInput(f"subscription {name!r} exists in {self.log.directory}")
            new.number = self._next_number
            self._append_snapshot(new, body)
            self._next_number += 1
            self._subscriptions[name] = new
        try:
            self.log.sync()
        except LithifyError:
            with self._lock:
                self._subscriptions.pop(name, None)
            raise

    def delete(self, name: str) -> None:
        """Remove a subscription, durably."""
        with self._writing(lambda: None):
            subscription = self._named(name)
            self._append(_DELETED, subscription, b"")
            del self._subscriptions[name]
        self.log.sync()

    @contextmanager
    def _writing(self, snapshot_of: Callable[[], _Subscription | None]) -> Iterator[bytes]:
        """Hold the lock, with room for a snapshot and a change after it; yields the snapshot."""
        while True:
            with self._lock:
                subscription = snapshot_of()
                body = b"" if subscription is None else subscription.to_bytes()
                prepare = self._waits_for(len(body) + RECORD_BYTES_MAX)
                if prepare is None:
                    yield body
                    return
            prepare()

    def names(self) -> list[str]:
        """The names of all subscriptions, sorted."""
        with self._lock:
            return sorted(self._subscriptions)

    def __contains__(self, name: str) -> bool:
        return name in self._subscriptions

    def get(self, name: str) -> Cursor:
        """The cursor of a subscription, read-only."""
        return self._named(name).cursor

    def properties(self, name: str) -> dict[str, str]:
        """The properties of a subscription, as it was created with."""
        return dict(self._named(name).properties)

    def is_compacted(self, name: str) -> bool:
        """Did its last consumer read compacted? If so, messages that only the view has count."""
        return self._named(name).compacted

    def set_compacted(self, name: str, *, compacted: bool) -> None:
        """Record whether a subscription reads compacted; as durable as an acknowledgement."""
        with self._writing(lambda: replace(self._named(name), compacted=compacted)) as body:
            subscription = self._named(name)
            if subscription.compacted is not compacted:
                self._append_snapshot(subscription, body)
                subscription.compacted = compacted

    def preparation(self) -> Callable[[], None] | None:
        """The function to call, in any thread, before the next `ack`; None if there is none.

        It waits for the disk or for another thread, and is rarely needed.
        """
        return self._wait_for_lock if self._lock.locked() else self._waits_for(RECORD_BYTES_MAX)

    def _waits_for(self, size_bytes: int) -> Callable[[], None] | None:
        if self.log.must_settle():
            return self.log.settle
        return self.log.roll if self.log.must_roll(size_bytes) else None

    def _wait_for_lock(self) -> None:
        with self._lock:
            return

    def ack(self, name: str, change: CursorChange) -> bool:
        """Record and apply a change of a cursor; the module docstring has its durability.

        Returns False, without any effect, if another thread holds the lock. Raises `WriteFailed`,
        without any effect, if the change could not be recorded.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            subscription = self._named(name)
            self._append(change.kind, subscription, change.to_bytes())
            change.apply(subscription.cursor)
        finally:
            self._lock.release()
        return True

    def cut(self, end: int) -> list[str]:
        """Discard, durably, acknowledgements at or above `end`; returns the names affected.

        For a log that is older than the cursors: it assigns the positions at its end again.
        """
        with self._lock:
            affected = [each for each in self._subscriptions.values() if each.cursor.cut(end)]
            for each in affected:
                self._append_snapshot(each, each.to_bytes())
        if affected:
            self.log.sync()
        return sorted(each.name for each in affected)

    def take_gaps(self, name: str, following: Callable[[int], int]) -> None:
        """Move a cursor over positions that do not exist; see `Cursor.take_gaps`. Not recorded.

        Does nothing while another thread holds the lock; the next call moves the cursor.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._named(name).cursor.take_gaps(following)
            finally:
                self._lock.release()

    def _named(self, name: str) -> _Subscription:
        try:
            return self._subscriptions[name]
        except KeyError:
            raise InvalidInput(f"no subscription {name!r} in {self.log.directory}") from None

    def _append(self, kind: int, subscription: _Subscription, body: bytes) -> None:
        self.log.append(body, flags=kind << _KIND_SHIFT, tag=subscription.number)

    def _append_snapshot(self, subscription: _Subscription, body: bytes) -> None:
        self._append(_SNAPSHOT, subscription, body)
        subscription.snapshot_bytes = len(body)

    # --- the log ----------------------------------------------------------------------------

    def sync(self) -> None:
        """Make every change so far durable."""
        self.log.sync()

    def maintain(self) -> None:
        """Do the periodic work: the fsync of the interval, and the checkpoint.

        The owner calls it periodically, outside of acknowledgements: a checkpoint waits for the
        disk.
        """
        self.log.maintain()
        if self._checkpoint_due():
            self.checkpoint()

    def _checkpoint_due(self) -> bool:
        with self._lock:
            snapshots = sum(s.snapshot_bytes for s in self._subscriptions.values())
        sealed = sum(segment.file_bytes for segment in self.log.manifest.segments[:-1])
        settings = self._settings
        limit = max(settings.checkpoint_bytes_min, settings.checkpoint_factor * snapshots)
        return sealed + self.log.active_bytes > limit

    def checkpoint(self) -> None:
        """Replace the log by a snapshot of every subscription; steps in the module docstring."""
        self.log.roll()
        with self._lock:
            # Under the lock, so that every record below it is applied. Other threads may have
            # appended to the new segment, or rolled it; both are harmless.
            before = self.log.manifest.active.first_position
        for name in self.names():
            # It may have been deleted since `names()`, and must not be restored.
            with self._writing(partial(self._subscriptions.get, name)) as body:
                subscription = self._subscriptions.get(name)
                if subscription is not None:
                    self._append_snapshot(subscription, body)
        self.log.sync()
        self.log.drop_head(before)
        self.log.reclaim()

    def close(self) -> None:
        """Make everything durable and close the log; idempotent."""
        self.log.close()


def _replay(entries: Iterable[LogEntry], directory: str) -> tuple[list[_Subscription], int]:
    """Replay the records: (subscriptions, next free number)."""
    subscriptions: dict[int, _Subscription] = {}
    awaited: set[int] = set()
    highest = 0
    for entry in entries:
        number, kind = entry.tag, entry.flags >> _KIND_SHIFT
        highest = max(highest, number)
        try:
            if kind == _SNAPSHOT:
                subscriptions[number] = _Subscription.from_entry(entry, directory)
                awaited.discard(number)
            elif kind == _DELETED:
                subscriptions.pop(number, None)
                awaited.discard(number)
            elif number in subscriptions:
                change_from_bytes(kind, entry.body).apply(subscriptions[number].cursor)
            else:
                awaited.add(number)
        except (ValueError, KeyError, TypeError, struct.error) as error:
            what = f"record at position {entry.position}: {error!r}"
            raise DamagedFile(directory, 0, what) from error
    if awaited:
        what = f"changes of subscriptions {sorted(awaited)}, but no snapshot of them"
        raise DamagedFile(directory, 0, what)
    return list(subscriptions.values()), highest + 1
