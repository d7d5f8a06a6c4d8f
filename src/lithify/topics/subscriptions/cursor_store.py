"""The durable subscriptions of one topic: name, properties and cursor of each, in a small log.

Every change of a cursor is appended to the log as a record of a few bytes, then made in memory, so
memory is always what replaying the log gives (and the gaps taken since, which are found again). An
append is with the operating system when it returns: it survives the death of the process at once,
and a power cut after `sync` or the next `maintain` that finds the interval over. Creating and
deleting a subscription is durable when it returns.

Records: the entry's `tag` is the number of the subscription, the high byte of its `flags` the kind.

    kind         body
    1  snapshot  length of the head (4, little-endian), the head (JSON: name, properties, and
                 "compacted": true of one that reads compacted), cursor
    2  deleted   nothing
    3 … 7        a change, see `cursor_changes.py`

A checkpoint keeps the log short. It runs in `maintain` when the log has grown past
`checkpoint_bytes_min` and past `checkpoint_factor` times the snapshots in it:

1. Roll. All records so far are now in sealed segments, and all of them are applied.
   A crash here leaves one more segment; replay is the same.
2. Append a snapshot of every subscription, while acknowledgements go on between them.
   A crash here leaves some snapshots. Each says what the records before it say.
3. Sync. From here on the new segment says everything.
4. Drop the sealed segments by one publish, and delete them.
   A crash before the publish replays old and new, after it the new alone; one before the deletion
   leaves retired files, which the next checkpoint deletes.

So a log may begin with changes of a subscription whose snapshot comes only later, and which has
them in it: replay passes over those. If no snapshot and no deletion follows, something is missing,
and that is damage.

Owned by the topic. All methods may be called from any thread, but the cursor that `get` returns
is changed by `ack` and `take_gaps`: whoever reads it does so on the thread that calls those. These
two are for an event loop. They wait neither for the disk, if `preparation` had nothing to do, nor
for another thread. So other records are written only where room is left for theirs, and no thread
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
"""Of an ordinary record; the largest, of a batch of 2^20 messages, has a quarter of this."""


@dataclass(frozen=True, slots=True)
class CursorSettings:
    """How the cursors of a topic are kept; any may change between two opens."""

    sync_interval_ms: int = 200
    checkpoint_bytes_min: int = 4 * 2**20
    """A shorter log is left alone. Replaying this much, 100 000 records, takes under a second."""
    checkpoint_factor: int = 8
    """With long snapshots, so many times as much is appended before they are written again."""

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
        facts: dict[str, object] = {"name": self.name, "properties": self.properties}
        if self.compacted:
            facts["compacted"] = True
        head = json.dumps(facts).encode()
        return b"".join((_LENGTH.pack(len(head)), head, self.cursor.to_bytes()))

    @classmethod
    def from_entry(cls, entry: LogEntry, path: str) -> _Subscription:
        body = entry.body
        (length,) = _LENGTH.unpack_from(body)
        split = _LENGTH.size + length
        head = json.loads(body[_LENGTH.size : split])
        cursor = Cursor.from_bytes(body[split:], path)
        found = cls(entry.tag, head["name"], head["properties"], cursor, len(body))
        found.compacted = head.get("compacted", False)
        return found


class CursorStore:
    """The subscriptions of one topic; see the module."""

    def __init__(self, log: Log, settings: CursorSettings) -> None:
        """Use `CursorStore.open`."""
        self._log = log
        self._settings = settings
        # Held while a record is appended and made in memory, so that both have the same order.
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
        """Open the cursors in `directory`, which is created if it is not there."""
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
        """Add a subscription, durably; the cursor is the store's from now on."""
        new = _Subscription(0, name, dict(properties), cursor, compacted=compacted)
        with self._writing(lambda: new) as body:
            if name in self._subscriptions:
                raise InvalidInput(f"subscription {name!r} exists in {self._log.directory}")
            new.number = self._next_number
            self._append_snapshot(new, body)
            self._next_number += 1
            self._subscriptions[name] = new
        try:
            self._log.sync()
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
        self._log.sync()

    @contextmanager
    def _writing(self, snapshot_of: Callable[[], _Subscription | None]) -> Iterator[bytes]:
        """Hold the lock, with room for a snapshot and for changes after it; the snapshot."""
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
        """All subscriptions, sorted."""
        with self._lock:
            return sorted(self._subscriptions)

    def __contains__(self, name: str) -> bool:
        return name in self._subscriptions

    def get(self, name: str) -> Cursor:
        """The cursor of a subscription, only to be read."""
        return self._named(name).cursor

    def properties(self, name: str) -> dict[str, str]:
        """What was given when it was created."""
        return dict(self._named(name).properties)

    def is_compacted(self, name: str) -> bool:
        """Did its last consumer read compacted? Then what was trimmed from the log still counts."""
        return self._named(name).compacted

    def set_compacted(self, name: str, *, compacted: bool) -> None:
        """Remember how it is read; as durable as an acknowledgement."""
        with self._writing(lambda: replace(self._named(name), compacted=compacted)) as body:
            subscription = self._named(name)
            if subscription.compacted is not compacted:
                self._append_snapshot(subscription, body)
                subscription.compacted = compacted

    def preparation(self) -> Callable[[], None] | None:
        """What waits for the disk or a thread before the next `ack`: to be called, in any thread.

        None if nothing does, as nearly always.
        """
        return self._wait_for_lock if self._lock.locked() else self._waits_for(RECORD_BYTES_MAX)

    def _waits_for(self, size_bytes: int) -> Callable[[], None] | None:
        if self._log.must_settle():
            return self._log.settle
        return self._log.roll if self._log.must_roll(size_bytes) else None

    def _wait_for_lock(self) -> None:
        with self._lock:
            return

    def ack(self, name: str, change: CursorChange) -> bool:
        """Record a change of a cursor and make it; see the module for what survives when.

        False, and nothing has happened, if another thread has to end something first. Raises
        `WriteFailed` if it could not be recorded; then it did not happen.
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
        """Forget, durably, what is acknowledged at or above `end`; the subscriptions that had any.

        For a log that is older than the cursors: positions at its end are used again.
        """
        with self._lock:
            found = [each for each in self._subscriptions.values() if each.cursor.cut(end)]
            for each in found:
                self._append_snapshot(each, each.to_bytes())
        if found:
            self._log.sync()
        return sorted(each.name for each in found)

    def take_gaps(self, name: str, following: Callable[[int], int]) -> None:
        """Move a cursor over what does not exist; not recorded, see `Cursor.take_gaps`.

        It stays where it is while another thread writes it down; the next call moves it.
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
            raise InvalidInput(f"no subscription {name!r} in {self._log.directory}") from None

    def _append(self, kind: int, subscription: _Subscription, body: bytes) -> None:
        self._log.append(body, flags=kind << _KIND_SHIFT, tag=subscription.number)

    def _append_snapshot(self, subscription: _Subscription, body: bytes) -> None:
        self._append(_SNAPSHOT, subscription, body)
        subscription.snapshot_bytes = len(body)

    # --- the log ----------------------------------------------------------------------------

    def sync(self) -> None:
        """Make every change so far durable."""
        self._log.sync()

    def maintain(self) -> None:
        """What only time brings about: the fsync of the interval, and the checkpoint.

        To be called every now and then by the owner, not by those who acknowledge: a checkpoint
        waits for the disk.
        """
        self._log.maintain()
        if self._checkpoint_due():
            self.checkpoint()

    def _checkpoint_due(self) -> bool:
        with self._lock:
            snapshots = sum(s.snapshot_bytes for s in self._subscriptions.values())
        sealed = sum(segment.file_bytes for segment in self._log.manifest.segments[:-1])
        settings = self._settings
        limit = max(settings.checkpoint_bytes_min, settings.checkpoint_factor * snapshots)
        return sealed + self._log.active_bytes > limit

    def checkpoint(self) -> None:
        """Replace the log by a snapshot of every subscription; the steps are in the module."""
        self._log.roll()
        with self._lock:
            # Under the lock, so that every record below it is applied. It does not matter if
            # others have appended to the new segment meanwhile, or have rolled it.
            before = self._log.manifest.active.first_position
        for name in self.names():
            # It may have been deleted meanwhile, and must not come back.
            with self._writing(partial(self._subscriptions.get, name)) as body:
                subscription = self._subscriptions.get(name)
                if subscription is not None:
                    self._append_snapshot(subscription, body)
        self._log.sync()
        self._log.drop_head(before)
        self._log.reclaim()

    def close(self) -> None:
        """Make everything durable and let go of the directory; a second call does nothing."""
        self._log.close()


def _replay(entries: Iterable[LogEntry], directory: str) -> tuple[list[_Subscription], int]:
    """The subscriptions that the records leave, and the next free number."""
    found: dict[int, _Subscription] = {}
    awaited: set[int] = set()
    highest = 0
    for entry in entries:
        number, kind = entry.tag, entry.flags >> _KIND_SHIFT
        highest = max(highest, number)
        try:
            if kind == _SNAPSHOT:
                found[number] = _Subscription.from_entry(entry, directory)
                awaited.discard(number)
            elif kind == _DELETED:
                found.pop(number, None)
                awaited.discard(number)
            elif number in found:
                change_from_bytes(kind, entry.body).apply(found[number].cursor)
            else:
                awaited.add(number)
        except (ValueError, KeyError, TypeError, struct.error) as error:
            what = f"record at position {entry.position}: {error!r}"
            raise DamagedFile(directory, 0, what) from error
    if awaited:
        what = f"changes of subscriptions {sorted(awaited)}, but no snapshot of them"
        raise DamagedFile(directory, 0, what)
    return list(found.values()), highest + 1
