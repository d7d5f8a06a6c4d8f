"""Deduplication: tracks the sequence ids that each producer of a topic has written.

A producer numbers its messages with ascending sequence ids and sends unacknowledged messages again.
`ProducerProgress` has the highest sequence id of a producer in the log. An entry is a duplicate if
its highest sequence id is not above that. The highest sequence id of a batch is in its metadata;
where it is missing, as from C++ clients, it is computed from the number of messages, which ascend
by at least one.

All chunks of a large message have the same sequence id and are distinguished by their chunk number.
The message counts as written with its last chunk.

There are two progress values per producer. *Appended* decides whether an entry is a duplicate.
*Durable* decides whether a duplicate may be acknowledged, and is what the snapshot stores. A failed
append resets *appended* to *durable*. Until the producer has joined again it must not continue with
later messages: they would make the failed ones duplicates. Therefore each append of a producer is
made `after` its previous one: if that has failed by the time the bytes would be written, they are
not written, and no crash can leave the later message in the log without the earlier one.

The snapshot on disk is one checked line (`fs/checked_lines.py`), replaced atomically:

    {"version":1,"position":…,"producers":[["name",17],["other",4,[5,"uuid",publish_time_ms,1]],…]}

It has the state of the log up to `position`, which is durable before the snapshot is written. The
file exists as long as deduplication is on. To open:

1. Read the snapshot. Without one, deduplication starts here: entries before the end of the log are
   ignored, because a producer may have restarted its numbering while deduplication was off. A first
   snapshot records this.
2. A snapshot that is damaged, or has positions that the log does not have, counts as the snapshot
   of an empty log.
3. Replay the log after the snapshot's position.

So after a crash at any time the progress is that of the entries in the log. A snapshot is due every
`snapshot_entries` (`save_due`), which bounds step 3. The owner triggers it; `close` writes the last
one. A failed snapshot is reported and retried later. The owner drops no entries from the log after
a `failure`: a replay could not find them.

At most `producers_max` producers are tracked, those that wrote last.

Owned by the topic, one thread at a time; `discard` and the result of `saving` may be called from
other threads.
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
from lithify.log.side_files import check_is_unusable, set_aside
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
    """Limits; they may change between two opens."""

    producers_max: int = 10_000
    snapshot_entries: int = 100_000
    """Replaying this number of entries takes about half a second."""

    def __post_init__(self) -> None:
        check_range("producers_max", self.producers_max, 1, 1_000_000)
        check_range("snapshot_entries", self.snapshot_entries, 1, 2**40)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a large message; a different publish time means a new message."""

    sequence_id: int
    uuid: str
    publish_time_ms: int
    number: int
    is_last: bool = False

    def repeats(self, other: Chunk) -> bool:
        """Is it a chunk of the same message with the same or a lower number?"""
        message = self.sequence_id, self.uuid, self.publish_time_ms
        return (
            message == (other.sequence_id, other.uuid, other.publish_time_ms)
            and self.number <= other.number
        )


@dataclass(frozen=True, slots=True)
class Sent:
    """The content of an entry: sequence ids up to `highest`, or a chunk."""

    highest: int
    chunk: Chunk | None = None


@dataclass(frozen=True, slots=True)
class ProducerProgress:
    """The last complete message of a producer, and the last chunk of one after it."""

    last: int = -1
    chunk: Chunk | None = None

    def covers(self, sent: Sent) -> bool:
        """Is the entry a duplicate?"""
        if sent.highest <= self.last:
            return True
        chunk = sent.chunk
        return chunk is not None and self.chunk is not None and chunk.repeats(self.chunk)

    def after(self, sent: Sent) -> ProducerProgress:
        """The progress with one more entry."""
        if sent.chunk is None or sent.chunk.is_last:
            return ProducerProgress(max(self.last, sent.highest))
        return ProducerProgress(self.last, sent.chunk)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Entries `start` to `stop` (exclusive) of an append, all new or all duplicates.

    `progress` is that after these entries. Duplicates may be acknowledged once it is durable.
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
    """The last append."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The argument of `durable` for a completed append."""

    producer: _Producer
    progress: ProducerProgress
    pending: Pending
    entries: int


class Deduplication:
    """The deduplication state of one topic; see the module."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        log: Log,
        *,
        events: EventSink,
        settings: DeduplicationSettings | None = None,
    ) -> None:
        """Open the state of the producers of `log`, with its snapshot in the file `path`."""
        self._fs = fs
        self._path = path
        self._log = log
        self._events = events
        self._settings = settings or DeduplicationSettings()
        self._producers: dict[str, _Producer] = {}
        """Least recently used first."""
        self._position = NO_POSITION
        self._unsaved_entries = 0
        self._discarded = False
        """Switched off or closed: no snapshot may be written."""
        self.failure: LithifyError | None = None
        """Why the last snapshot could not be written; None if it was."""
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

    # --- duplicates -------------------------------------------------------------------------

    def last_sequence_id(self, producer: str) -> int:
        """The highest durable sequence id, -1 for an unknown producer."""
        state = self._producers.get(producer)
        return -1 if state is None else state.durable.last

    def next_sequence_id(self, producer: str) -> int:
        """The lowest sequence id that is not a duplicate."""
        return self._of(producer).appended.last + 1

    def last_append(self, producer: str) -> Pending | None:
        """The append that the producer's next one must be made `after`."""
        return self._of(producer).pending

    def split(
        self, producer: str, sequence_ids: NDArray[np.int64], highest: NDArray[np.int64]
    ) -> list[Stretch]:
        """Split entries into new ones and duplicates.

        `highest` counts where it is above the sequence id. Raises the error of the producer's last
        append if that has failed.
        """
        tops = np.maximum(sequence_ids, highest)
        last = self._usable_producer(producer).appended.last
        if tops[0] > last and bool((tops[1:] > tops[:-1]).all()):
            return [Stretch(0, len(tops), ProducerProgress(int(tops[-1])), is_new=True)]
        # An entry is new if its highest sequence id is above all earlier ones.
        before = np.maximum.accumulate(np.concatenate(([last], tops[:-1])))
        new = tops > before
        edges = [0, *(np.flatnonzero(new[1:] != new[:-1]) + 1).tolist(), len(tops)]
        return [
            Stretch(start, stop, ProducerProgress(int(tops[start:stop].max())), bool(new[start]))
            for start, stop in itertools.pairwise(edges)
        ]

    def split_chunks(self, producer: str, bodies: Iterable[Buffer]) -> list[Stretch]:
        """Like `split` for entries with chunks among them; checks them one by one."""
        progress = self._usable_producer(producer).appended
        stretches = []
        for number, body in enumerate(bodies):
            sent = _sent(_metadata_of(body))
            is_new = not progress.covers(sent)
            if is_new:
                progress = progress.after(sent)
            stretches.append(Stretch(number, number + 1, progress, is_new))
        return stretches

    def _usable_producer(self, producer: str) -> _Producer:
        state = self._of(producer)
        if state.pending is not None and state.pending.done():
            state.pending.result()
        return state

    # --- outcomes ---------------------------------------------------------------------------

    def appended(
        self, producer: str, progress: ProducerProgress, pending: Pending, entries: int
    ) -> Appended:
        """Record that new entries are in the log, not yet durable."""
        state = self._use(producer)
        state.appended = progress
        state.pending = pending
        self._forget_oldest()
        return Appended(state, progress, pending, entries)

    def durable(self, appended: Appended) -> None:
        """Record that an append is durable as configured. Call in the order of the appends."""
        appended.producer.durable = appended.progress
        self._position = appended.pending.position
        self._unsaved_entries += appended.entries

    @property
    def save_due(self) -> bool:
        """Is a snapshot due?"""
        return self._unsaved_entries >= self._settings.snapshot_entries

    def is_durable(self, producer: str, progress: ProducerProgress) -> bool:
        """Is the progress durable, so that duplicates up to it may be acknowledged?"""
        durable = self._of(producer).durable
        chunk = progress.chunk
        return progress.last <= durable.last and (
            chunk is None or durable.covers(Sent(chunk.sequence_id, chunk))
        )

    def failed(self, producer: str, pending: Pending | None = None) -> None:
        """Run `failing` in this thread."""
        run_here(self.failing(producer, pending))

    def failing(self, producer: str, pending: Pending | None = None) -> Steps[None]:
        """Record that an append failed, or was refused without `pending`. Call in their order.

        If the append spanned segments, the log may have its first part. A thread reads that back;
        until then the producer's progress must not be reported.
        """
        durable = self._of(producer).durable
        if producer in self._producers:
            # A new object, so that appends in flight no longer count.
            self._producers[producer] = _Producer(durable, durable)
        last = POSITION_MAX if pending is None else pending.position
        read = partial(self._sent_by, producer, self._position + 1, last)
        for sent in (yield DiskCall(self, lambda: read)):
            self._apply(producer, sent)

    def _sent_by(self, producer: str, start: int, last: int) -> list[Sent]:
        """The entries of a producer between two positions; may run in any thread."""
        entries = self._written(start, last)
        return [sent for _, name, sent in entries if name == producer and sent is not None]

    # --- memory and disk --------------------------------------------------------------------

    def _of(self, producer: str) -> _Producer:
        return self._producers.get(producer) or _Producer(ProducerProgress(), ProducerProgress())

    def _use(self, producer: str) -> _Producer:
        state = self._producers.pop(producer, None) or _Producer(
            ProducerProgress(), ProducerProgress()
        )
        self._producers[producer] = state
        return state

    def _forget_oldest(self) -> None:
        excess = len(self._producers) - self._settings.producers_max
        if excess <= 0:
            return
        # A producer with an append in flight stays: the acknowledgement depends on it.
        idle = (n for n, each in self._producers.items() if each.appended == each.durable)
        for name in list(itertools.islice(idle, excess)):
            del self._producers[name]

    def _load(self) -> bool:
        """Load the snapshot; an unusable one is set aside and the whole log is replayed.

        It stays in place until the next one replaces it: without a file, the next open would
        ignore all entries in the log.
        """
        row: dict[str, Any] = {}
        reason = "must have exactly one line"
        try:
            lines, _ = read_lines(self._fs, self._path)
            if len(lines) == 1:
                row = json.loads(lines[0][1])
                reason = f"has version {row['version']}, this build reads {_VERSION}"
        except (Corrupt, OSError) as error:
            check_is_unusable(error)
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
        """Apply the entries after the snapshot's position."""
        for position, name, sent in self._written(self._position + 1):
            self._position = position
            if sent is not None:
                self._apply(name, sent)
                self._unsaved_entries += 1

    def _written(
        self, start: int, last: int = POSITION_MAX
    ) -> Iterator[tuple[int, str, Sent | None]]:
        """(position, producer, content) of the entries from a position on."""
        with self._log.snapshot("deduplication") as snapshot:
            for entry in snapshot.read(start):
                if entry.position > last:
                    return
                try:
                    metadata = _metadata_of(entry.body)
                except DecodeError:
                    # The entry is not from a producer.
                    yield entry.position, "", None
                else:
                    yield entry.position, text_of(metadata.producer_name), _sent(metadata)

    def _apply(self, name: str, sent: Sent) -> None:
        producer = self._use(name)
        producer.durable = producer.appended = producer.durable.after(sent)
        self._forget_oldest()

    def save(self) -> None:
        """Write a snapshot if entries were appended since the last one."""
        save = self.saving()
        if save is not None:
            save()

    def saving(self) -> Callable[[], None] | None:
        """Return a function that writes the current snapshot in any thread; None if unchanged."""
        if not (self._unsaved_entries or self.failure):
            return None
        self._unsaved_entries = 0
        return partial(self._save, self._position, self._rows())

    def _rows(self) -> list[tuple[str, ProducerProgress]]:
        return [(name, each.durable) for name, each in self._producers.items()]

    def _save(self, position: int, rows: list[tuple[str, ProducerProgress]]) -> None:
        self.failure = None
        try:
            self._write(position, rows)
        except LithifyError as error:
            self.failure = error
        except OSError as error:
            self.failure = WriteFailed(self._path, error)
        if self.failure is not None:
            self._events(WriteRefused(self._log.directory, self._path, str(self.failure)))

    def _write(self, position: int, rows: list[tuple[str, ProducerProgress]]) -> None:
        producers = [[name, *_fields_of(durable)] for name, durable in rows]
        row = {"version": _VERSION, "position": position, "producers": producers}
        if self._log.settings.durability is not Durability.ALWAYS:
            # If a power failure lost entries that a snapshot covers, the same messages, sent
            # again, would be dropped as duplicates.
            self._log.sync()
        line = encode_line(json.dumps(row, separators=(",", ":")))
        with self._saving:
            if not self._discarded:
                write_atomic(self._fs, self._path, line)

    def close(self) -> None:
        """Write the last snapshot. Call before the log is closed; no later one is written."""
        self.save()
        with self._saving:
            # The file may be that of a new topic in the same place.
            self._discarded = True

    def discard(self) -> None:
        """Switch deduplication off: delete the snapshot and prevent later ones."""
        with self._saving:
            self._discarded = True
            forget_producers(self._fs, self._path)


def forget_producers(fs: FileSystem, path: str) -> None:
    """Delete the snapshot of a topic whose deduplication is off."""
    if not fs.exists(path):
        return
    try:
        fs.remove(path)
        fs.sync_dir(path.rpartition("/")[0])
    except OSError as error:
        raise WriteFailed(path, error) from error


def _metadata_of(body: Buffer) -> MessageMetadata:
    """The metadata of an entry from the log or a verified SEND; does not verify the CRC."""
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
    """As int64, which is how the fast path reads the same bytes."""
    return number - 2**64 if number >= 2**63 else number


def _fields_of(progress: ProducerProgress) -> list[Any]:
    chunk = progress.chunk
    if chunk is None:
        return [progress.last]
    return [progress.last, [chunk.sequence_id, chunk.uuid, chunk.publish_time_ms, chunk.number]]


def _progress_from(fields: list[Any]) -> ProducerProgress:
    return ProducerProgress(fields[0], Chunk(*fields[1]) if fields[1:] else None)
