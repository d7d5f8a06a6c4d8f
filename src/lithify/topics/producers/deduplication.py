"""Deduplication: what each producer of a topic has written already.

A producer numbers its messages with ascending sequence ids and sends again what was not
acknowledged. Of each producer the `ProducerProgress` is kept, which is the highest sequence id that
is in the log. An entry is a duplicate if all of it is at or below that. An entry of a batch ends
with its highest sequence id; where the metadata does not say it, as that of C++ clients, it is
taken from the number of messages, which ascend by one or more.

All chunks of a large message have the same sequence id. They are told apart by their number; the
message counts as written with its last chunk.

Progress is kept twice: as *appended*, which decides what is a duplicate, and as *durable*, which
decides whether a duplicate may be acknowledged, and which goes to disk. An append that fails takes
the first back to the second. Its producer must then not go on with later messages, which would make
duplicates of those that failed, before it has joined again. So a producer's append is made `after`
the one before it: if that has failed by the time the bytes would be written, they are not, and no
crash can leave the later message in the log without the earlier one.

On disk there is a snapshot, one checked line (`fs/checked_lines.py`), replaced atomically:

    {"version":1,"position":…,"producers":[["name",17],["other",4,[5,"uuid",publish_time_ms,1]],…]}

It says what the log says up to `position`, which is durable before the snapshot is written. It is
there for as long as deduplication is switched on. To open:

1. Read the snapshot. Where there is none, deduplication begins here: nothing is known of producers
   and entries before the end of the log, because a producer may have begun its numbers again while
   nobody looked at them. A first snapshot says so.
2. One that is damaged, or of positions that the log does not have, is as one of an empty log.
3. Read the log behind its position and take every entry into account.

So after a crash at any time the progress is that of the entries that are in the log. A snapshot is
due every `snapshot_entries` (`save_due`), which bounds step 3. The owner has it written; `close`
writes the last one. One that cannot be written is reported and tried again later: it only saves
time, unless the log's head has been dropped since.

At most `producers_max` producers are remembered, those that wrote last.

Owned by the topic, one thread at a time; `discard` and what `saving` returns may be called from
others.
"""

from __future__ import annotations

import itertools
import json
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from lithify.errors import Corrupt, LithifyError, WriteFailed
from lithify.events import WriteRefused
from lithify.fs import write_atomic
from lithify.fs.checked_lines import encode_line, read_lines
from lithify.log.side_files import set_aside
from lithify.positions import NO_POSITION, POSITION_MAX
from lithify.settings import Durability, check_range
from lithify.topics.disk_steps import DiskCall, run_here
from lithify.topics.messages.message import text_of
from lithify.topics.messages.message_pb2 import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.group_commit import Pending
    from lithify.log.log import Log
    from lithify.topics.disk_steps import Steps

__all__ = [
    "Appended",
    "Chunk",
    "Deduplication",
    "DeduplicationSettings",
    "ProducerProgress",
    "Sent",
    "Stretch",
    "forget_producers",
]

_VERSION = 1
_BROKER_MAGIC = b"\x0e\x02"
_CRC_MAGIC = b"\x0e\x01"


@dataclass(frozen=True, slots=True)
class DeduplicationSettings:
    """How much is remembered; any may change between two opens."""

    producers_max: int = 10_000
    snapshot_entries: int = 100_000
    """Reading so many entries back takes about half a second."""

    def __post_init__(self) -> None:
        check_range("producers_max", self.producers_max, 1, 1_000_000)
        check_range("snapshot_entries", self.snapshot_entries, 1, 2**40)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a large message; the publish time tells a new message from one sent again."""

    sequence_id: int
    uuid: str
    publish_time_ms: int
    number: int
    is_last: bool = False

    def repeats(self, other: Chunk) -> bool:
        """Is it of the same message, and not later in it?"""
        mine = self.sequence_id, self.uuid, self.publish_time_ms
        return (
            mine == (other.sequence_id, other.uuid, other.publish_time_ms)
            and self.number <= other.number
        )


@dataclass(frozen=True, slots=True)
class Sent:
    """What an entry brings: sequence ids up to `highest`, or a chunk."""

    highest: int
    chunk: Chunk | None = None


@dataclass(frozen=True, slots=True)
class ProducerProgress:
    """How far a producer has come: the last whole message, and the last chunk of one after it."""

    last: int = -1
    chunk: Chunk | None = None

    def covers(self, sent: Sent) -> bool:
        """Is it written already?"""
        if sent.highest <= self.last:
            return True
        chunk = sent.chunk
        return chunk is not None and self.chunk is not None and chunk.repeats(self.chunk)

    def after(self, sent: Sent) -> ProducerProgress:
        """With an entry more."""
        if sent.chunk is None or sent.chunk.is_last:
            return ProducerProgress(max(self.last, sent.highest))
        return ProducerProgress(self.last, sent.chunk)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Entries `start` to `stop` of a run, all new or all duplicates.

    `progress` is where the producer is after them; for duplicates, where it has to be for them to
    be acknowledged.
    """

    start: int
    stop: int
    progress: ProducerProgress
    is_new: bool


@dataclass(slots=True, eq=False)
class _Producer:
    appended: ProducerProgress
    durable: ProducerProgress
    pending: Pending | None = None
    """Its last append."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What to tell `durable` when an append is."""

    producer: _Producer
    progress: ProducerProgress
    pending: Pending
    entries: int


class Deduplication:
    """The producers of one topic; see the module."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        log: Log,
        *,
        events: EventSink,
        settings: DeduplicationSettings | None = None,
    ) -> None:
        """Open what is kept in the file `path` about the producers of `log`."""
        self._fs = fs
        self._path = path
        self._log = log
        self._events = events
        self._settings = settings or DeduplicationSettings()
        self._producers: dict[str, _Producer] = {}
        """The one that was used last is last."""
        self._position = NO_POSITION
        self._unsaved_entries = 0
        self._discarded = False
        self._saving = threading.Lock()
        if fs.exists(path):
            usable = self._load()
            self._replay()
            if not usable:
                self._unsaved_entries += 1
                self.save()
        else:
            self._position = log.last_position
            try:
                self._write(self._position, self._rows())
            except OSError as error:
                raise WriteFailed(path, error) from error

    # --- what is new ------------------------------------------------------------------------

    def last_sequence_id(self, producer: str) -> int:
        """The highest that is durable, -1 while nothing is known of the producer."""
        found = self._producers.get(producer)
        return -1 if found is None else found.durable.last

    def next_sequence_id(self, producer: str) -> int:
        """The lowest that is new."""
        return self._of(producer).appended.last + 1

    def last_append(self, producer: str) -> Pending | None:
        """What the producer's next append has to be made `after`."""
        return self._of(producer).pending

    def split(
        self, producer: str, sequence_ids: NDArray[np.int64], highest: NDArray[np.int64]
    ) -> list[Stretch]:
        """Tell new entries from duplicates; `highest` counts where it is above the sequence id.

        Raises what became of an earlier append of the same producer, if it is known to have failed.
        """
        tops = np.maximum(sequence_ids, highest)
        last = self._going_on(producer).appended.last
        if tops[0] > last and bool((tops[1:] > tops[:-1]).all()):
            return [Stretch(0, len(tops), ProducerProgress(int(tops[-1])), is_new=True)]
        # An entry is new if it ends above everything before it.
        before = np.maximum.accumulate(np.concatenate(([last], tops[:-1])))
        new = tops > before
        edges = [0, *(np.flatnonzero(new[1:] != new[:-1]) + 1).tolist(), len(tops)]
        return [
            Stretch(start, stop, ProducerProgress(int(tops[start:stop].max())), bool(new[start]))
            for start, stop in itertools.pairwise(edges)
        ]

    def split_chunks(self, producer: str, bodies: Iterable[Buffer]) -> list[Stretch]:
        """The same where chunks are among the entries: one by one."""
        progress = self._going_on(producer).appended
        found = []
        for number, body in enumerate(bodies):
            sent = _sent(_metadata_of(body))
            is_new = not progress.covers(sent)
            if is_new:
                progress = progress.after(sent)
            found.append(Stretch(number, number + 1, progress, is_new))
        return found

    def _going_on(self, producer: str) -> _Producer:
        found = self._of(producer)
        if found.pending is not None and found.pending.done():
            found.pending.result()
        return found

    # --- what became of it ------------------------------------------------------------------

    def appended(
        self, producer: str, progress: ProducerProgress, pending: Pending, entries: int
    ) -> Appended:
        """New entries are in the log, not yet durable."""
        found = self._use(producer)
        found.appended = progress
        found.pending = pending
        self._forget_oldest()
        return Appended(found, progress, pending, entries)

    def durable(self, appended: Appended) -> None:
        """An append is durable as configured; to be told in the order of the appends."""
        appended.producer.durable = appended.progress
        self._position = appended.pending.position
        self._unsaved_entries += appended.entries

    @property
    def save_due(self) -> bool:
        """Is it time for a snapshot?"""
        return self._unsaved_entries >= self._settings.snapshot_entries

    def is_durable(self, producer: str, progress: ProducerProgress) -> bool:
        """May duplicates be acknowledged?"""
        durable = self._of(producer).durable
        chunk = progress.chunk
        return progress.last <= durable.last and (
            chunk is None or durable.covers(Sent(chunk.sequence_id, chunk))
        )

    def failed(self, producer: str, pending: Pending | None = None) -> None:
        """See `failing`; in this thread."""
        run_here(self.failing(producer, pending))

    def failing(self, producer: str, pending: Pending | None = None) -> Steps[None]:
        """An append failed, or was refused and has no `pending`; to be told in their order.

        If it needed more than one segment, the log may have the first part of it. That is read
        back in a thread: until it is known nobody may be told how far the producer has come.
        """
        durable = self._of(producer).durable
        if producer in self._producers:
            # Another object, so that what is still on its way no longer counts.
            self._producers[producer] = _Producer(durable, durable)
        last = POSITION_MAX if pending is None else pending.position
        read = partial(self._sent_by, producer, self._position + 1, last)
        for sent in (yield DiskCall(self, lambda: read)):
            self._take(producer, sent)

    def _sent_by(self, producer: str, start: int, last: int) -> list[Sent]:
        """What the log has of a producer between two positions; in any thread."""
        found = self._written(start, last)
        return [sent for _, name, sent in found if name == producer and sent is not None]

    # --- memory and disk --------------------------------------------------------------------

    def _of(self, producer: str) -> _Producer:
        return self._producers.get(producer) or _Producer(ProducerProgress(), ProducerProgress())

    def _use(self, producer: str) -> _Producer:
        found = self._producers.pop(producer, None) or _Producer(
            ProducerProgress(), ProducerProgress()
        )
        self._producers[producer] = found
        return found

    def _forget_oldest(self) -> None:
        excess = len(self._producers) - self._settings.producers_max
        if excess <= 0:
            return
        # One with an append on its way stays: the answer to that depends on it.
        idle = (n for n, each in self._producers.items() if each.appended == each.durable)
        for name in list(itertools.islice(idle, excess)):
            del self._producers[name]

    def _load(self) -> bool:
        """Read the snapshot; one that cannot be used is set aside, and the whole log replayed.

        It stays in its place until the next one replaces it: none at all would mean that nothing
        is to be known of producers before the end of the log.
        """
        row: dict[str, Any] = {}
        reason = "must have one whole line"
        try:
            lines, _ = read_lines(self._fs, self._path)
            if len(lines) == 1:
                row = json.loads(lines[0][1])
                reason = f"has version {row['version']}, this build reads {_VERSION}"
        except (Corrupt, OSError) as error:
            reason = str(error)
        if row.get("version") != _VERSION:
            set_aside(self._fs, self._path, reason, self._events)
            return False
        if row["position"] > self._log.last_position:
            return True
        self._position = row["position"]
        for name, *fields in row["producers"]:
            progress = _progress_from(fields)
            self._producers[name] = _Producer(progress, progress)
        self._forget_oldest()
        return True

    def _replay(self) -> None:
        """Take the entries behind the last known position into account."""
        for position, name, sent in self._written(self._position + 1):
            self._position = position
            if sent is not None:
                self._take(name, sent)
                self._unsaved_entries += 1

    def _written(
        self, start: int, last: int = POSITION_MAX
    ) -> Iterator[tuple[int, str, Sent | None]]:
        """(position, producer, what it sent) of the entries from a position on."""
        with self._log.snapshot("deduplication") as snapshot:
            for entry in snapshot.read(start):
                if entry.position > last:
                    return
                try:
                    metadata = _metadata_of(entry.body)
                except DecodeError:
                    # Not from a producer.
                    yield entry.position, "", None
                else:
                    yield entry.position, text_of(metadata.producer_name), _sent(metadata)

    def _take(self, name: str, sent: Sent) -> None:
        producer = self._use(name)
        producer.durable = producer.appended = producer.durable.after(sent)
        self._forget_oldest()

    def save(self) -> None:
        """Write a snapshot, if anything has happened since the last one."""
        save = self.saving()
        if save is not None:
            save()

    def saving(self) -> Callable[[], None] | None:
        """What writes a snapshot of what is known now, in any thread; None if there is no news."""
        if not self._unsaved_entries:
            return None
        self._unsaved_entries = 0
        return partial(self._save, self._position, self._rows())

    def _rows(self) -> list[tuple[str, ProducerProgress]]:
        return [(name, each.durable) for name, each in self._producers.items()]

    def _save(self, position: int, rows: list[tuple[str, ProducerProgress]]) -> None:
        try:
            self._write(position, rows)
        except (OSError, LithifyError) as error:
            self._events(WriteRefused(self._log.directory, self._path, str(error)))

    def _write(self, position: int, rows: list[tuple[str, ProducerProgress]]) -> None:
        producers = [[name, *_fields_of(durable)] for name, durable in rows]
        row = {"version": _VERSION, "position": position, "producers": producers}
        if self._log.settings.durability is not Durability.ALWAYS:
            # A snapshot of entries that a power cut takes away would call the same messages,
            # sent again, duplicates of nothing.
            self._log.sync()
        line = encode_line(json.dumps(row, separators=(",", ":")))
        with self._saving:
            if not self._discarded:
                write_atomic(self._fs, self._path, line)

    def close(self) -> None:
        """Write the last snapshot; before the log is closed."""
        self.save()

    def discard(self) -> None:
        """Deduplication is switched off: what was known must not be believed later."""
        with self._saving:
            self._discarded = True
            forget_producers(self._fs, self._path)


def forget_producers(fs: FileSystem, path: str) -> None:
    """Remove the snapshot of a topic whose deduplication is switched off."""
    if not fs.exists(path):
        return
    try:
        fs.remove(path)
        fs.sync_dir(path.rpartition("/")[0])
    except OSError as error:
        raise WriteFailed(path, error) from error


def _metadata_of(body: Buffer) -> MessageMetadata:
    """Of an entry from the log or from a checked SEND, so its CRC is not looked at again."""
    view = memoryview(body)
    at = 0
    if view[:2] == _BROKER_MAGIC:
        at = 6 + int.from_bytes(view[2:6], "big")
    if view[at : at + 2] == _CRC_MAGIC:
        at += 6
    size = int.from_bytes(view[at : at + 4], "big")
    metadata: MessageMetadata = MessageMetadata.FromString(bytes(view[at + 4 : at + 4 + size]))
    return metadata


def _sent(metadata: MessageMetadata) -> Sent:
    first = _signed(metadata.sequence_id)
    if metadata.HasField("chunk_id"):
        number = metadata.chunk_id
        is_last = number + 1 >= metadata.num_chunks_from_msg
        chunk = Chunk(first, metadata.uuid, metadata.publish_time, number, is_last)
        return Sent(first, chunk)
    count = max(metadata.num_messages_in_batch, 1)
    return Sent(max(first + count - 1, _signed(metadata.highest_sequence_id)))


def _signed(number: int) -> int:
    """What the hot path reads from the same bytes."""
    return number - 2**64 if number >= 2**63 else number


def _fields_of(progress: ProducerProgress) -> list[Any]:
    chunk = progress.chunk
    if chunk is None:
        return [progress.last]
    return [progress.last, [chunk.sequence_id, chunk.uuid, chunk.publish_time_ms, chunk.number]]


def _progress_from(fields: list[Any]) -> ProducerProgress:
    return ProducerProgress(fields[0], Chunk(*fields[1]) if fields[1:] else None)
