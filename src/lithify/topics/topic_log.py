"""The log of a topic as producers and readers see it: appending, reading, finding.

A ledger of the protocol is a segment of the log; positions are packed (ledger, entry). Entries are
stored exactly as the producer sent them. Of each entry the log's own frame keeps what dispatch
needs without opening it: the publish time, the number of messages (the frame's tag), and in flags
whether it is a batch, whether it is to be delivered later, and whether its time was not believed.

A publish time is what a client's clock says. The frame's is at most `AHEAD_MS_MAX` ahead of ours:
otherwise one wrong clock would keep what it has written, and everything behind it, young for years,
to retention, to the time to live and to compaction's minimum lag. The message has the time as sent.

Readers see what is durable as configured; compacted, what is retained up to the horizon and the log
above it.

The part of a `Topic` that knows nothing of subscriptions. One thread at a time, as there, but for
what says otherwise.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import CONFLICT, InvalidInput, LithifyError, LogClosed
from lithify.log.batch import size_of
from lithify.positions import NO_POSITION, unpack
from lithify.topics.compaction_service import LogCompactionService
from lithify.topics.dedup import Progress
from lithify.topics.entries import FLAG_AHEAD
from lithify.topics.log_end import LogEnd
from lithify.topics.lookup import Lookup
from lithify.topics.message import Message, MessageId, new_entry, read_entry
from lithify.topics.reading import Reading
from lithify.topics.retention import BacklogExceeded
from lithify.topics.steps import Work, run_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.log.batch import Slices
    from lithify.log.commit import Pending
    from lithify.log.frame import Entry
    from lithify.log.log import Log
    from lithify.log.reader import Snapshot
    from lithify.topics.compaction import TopicCompaction
    from lithify.topics.compaction_service import TopicCompactionService
    from lithify.topics.dedup import Deduplication
    from lithify.topics.dedup_switch import DeduplicationSwitch
    from lithify.topics.names import TopicName
    from lithify.topics.steps import Steps

__all__ = ["TopicLog", "TopicTerminated"]

LIBRARY_READ = 10_000
"""Retained entries that the library asks for at once."""

AHEAD_MS_MAX = 60_000
"""Clocks of clients may be so far ahead and still be believed, so that they are found by time."""

LIBRARY = "library"
"""The name of the producer that `append` is."""


class TopicTerminated(InvalidInput):
    """Nothing more is written to it; what is there can be read."""

    exit_code = CONFLICT


class TopicLog:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        name: TopicName,
        log: Log,
        clock: Clock,
        compaction: TopicCompaction,
        service: TopicCompactionService,
    ) -> None:
        self.name = name
        self.log = log
        self.compaction = compaction
        self.service = service
        self.terminated = False
        self.refusal = ""
        """Why nothing may be written for now."""
        self.entries_in = 0
        self.messages_in = 0
        self.bytes_in = 0
        self._clock = clock
        self._lookup = Lookup(fs, log)
        self._reading = Reading(log, service)
        self._end = LogEnd(log)
        self._deduplication: DeduplicationSwitch | None = None
        self._library_sequence = 0

    # --- writing ----------------------------------------------------------------------------

    @property
    def deduplication(self) -> Deduplication | None:
        """What producers have written already; None where nobody wants to know."""
        return None if self._deduplication is None else self._deduplication.current

    def preparation(self, size_bytes: int) -> Callable[[], None] | None:
        """What waits for the disk before so much is appended: to be called, in any thread.

        Nothing may be appended until it has returned. If it fails, so will the append.
        """
        if self._deduplication is not None and self._deduplication.differs():
            return self._deduplication.switch
        if self.log.must_settle():
            # Somebody else rolls it, a compaction run perhaps: this waits for its end.
            return self.log.settle
        known = self.deduplication
        if known is not None and known.save_due and (save := known.saving()) is not None:
            return save
        return self.log.roll if self.log.must_roll(size_bytes) else None

    @property
    def append_bytes_max(self) -> int:
        """More entries than take so much, with their frames, may need a roll in between."""
        return self.log.settings.segment_bytes_max // 2

    def preparing(self, size_bytes: int) -> Steps[None]:
        """Wait until so much can be appended without waiting."""
        yield Work(self, partial(self.preparation, size_bytes))
        # Those who waited as well may have filled what was made ready.
        while self.preparation(size_bytes) is not None:
            yield Work(self, partial(self.preparation, size_bytes))

    def saving_producers(self) -> Steps[None]:
        """With deduplication: write down what is known of the producers."""
        known = self.deduplication
        if known is not None:
            # By nobody else meanwhile, and nothing is appended.
            yield Work(self, known.saving)

    def append_entries(
        self,
        bodies: Sequence[Buffer] | Slices,
        *,
        times: NDArray[np.int64] | Sequence[int],
        counts: NDArray[np.int64] | Sequence[int],
        flags: NDArray[np.int64] | Sequence[int] | int = 0,
        after: Pending | None = None,
    ) -> Pending:
        """Append entries as producers sent them; the result names the last position.

        With deduplication, `after` is the producer's `last_append`.
        """
        self.check_writable()
        latest_ms = np.uint64(self._clock.now_ms() + AHEAD_MS_MAX)
        # As unsigned numbers, as in the protocol: the greatest must not be taken for negative ones.
        sent = np.asarray(times, dtype=np.int64).view(np.uint64)
        believed = np.minimum(sent, latest_ms).view(np.int64)
        ahead = sent > latest_ms
        if ahead.any():
            flags = np.where(ahead, FLAG_AHEAD, 0) | np.asarray(flags)
        pending = self.log.append_many(
            bodies, time_ms=believed, tags=counts, flags=flags, after=after
        )
        self.entries_in += len(bodies)
        self.messages_in += int(np.sum(counts))
        self.bytes_in += size_of(bodies)
        if len(bodies):
            last_flags = flags if isinstance(flags, int) else int(flags[-1])
            self._end.appended(pending.position, int(counts[-1]), last_flags)
        return pending

    def append(
        self,
        *,
        value: bytes | None,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
    ) -> MessageId:
        """Append one message and wait until it is durable."""
        if self._deduplication is not None:
            self._deduplication.switch()
        known = self.deduplication
        sequence_id = self._library_sequence
        if known is not None:
            sequence_id = known.next_sequence_id(LIBRARY)
        self._library_sequence = sequence_id + 1
        now_ms = self._clock.now_ms()
        body = new_entry(
            value=value,
            key=key,
            properties=properties or {},
            event_time_ms=event_time_ms,
            producer=LIBRARY,
            sequence_id=sequence_id,
            publish_time_ms=now_ms,
        )
        pending = None
        try:
            after = None if known is None else known.last_append(LIBRARY)
            pending = self.append_entries([body], times=[now_ms], counts=[1], after=after)
            position = pending.result()
        except LithifyError:
            if known is not None:
                known.failed(LIBRARY, pending)
            raise
        if known is not None:
            known.durable(known.appended(LIBRARY, Progress(sequence_id), pending, 1))
            if known.save_due:
                known.save()
        ledger, entry = unpack(position)
        return MessageId(ledger, entry, -1, self.name.partition)

    def last_sequence_id(self, producer: str) -> int:
        """The highest sequence id written by a producer, -1 while nothing is known of it."""
        return -1 if self.deduplication is None else self.deduplication.last_sequence_id(producer)

    def check_writable(self) -> None:
        """Raise `TopicTerminated`, or `BacklogExceeded` while a subscription is too far behind."""
        if self.terminated:
            raise TopicTerminated(f"topic {self.name} is terminated")
        if self.refusal:
            raise BacklogExceeded(self.refusal)

    def check_open(self) -> None:
        """Raise `LogClosed` if it was closed, by its deletion perhaps, while somebody waited."""
        if self.log.closed:
            raise LogClosed(f"topic {self.name} was closed meanwhile")

    # --- reading ----------------------------------------------------------------------------

    def read(self, start: MessageId | None = None, *, compacted: bool = False) -> Iterator[Message]:
        """All messages from `start` (inclusive) on, as they are now; compacted, the retained.

        An entry that cannot be opened is one message that says so in `error`.
        """
        position = 0 if start is None else start.ledger << 32 | start.entry
        with self.log.snapshot("library reader") as snapshot:
            entries = self._retained(snapshot, position) if compacted else snapshot.read(position)
            for entry in entries:
                for message in read_entry(entry, self.name.partition):
                    if start is None or message.id >= start:
                        yield message

    def get(self, key: str | bytes) -> Message | None:
        """The newest message of a key by the key indexes; None if it has none or a tombstone."""
        return self._lookup.newest(
            key.encode() if isinstance(key, str) else key,
            by_event_time=self.compaction.settings().by_event_time,
            partition=self.name.partition,
        )

    def _retained(self, snapshot: Snapshot, position: int) -> Iterator[Entry]:
        """What is retained, and the log above it."""
        if isinstance(self.service, LogCompactionService):
            # Of one generation: a later run may drop what is superseded by messages that this
            # reader, who sees the topic as it is now, never gets.
            yield from snapshot.read(position, compacted=True)
            return
        horizon = self.service.last_compacted_position
        while position <= horizon:
            entries, looked = self.service.read_compacted_entries(position, LIBRARY_READ, horizon)
            if looked < position:
                break  # Everything compacted was deleted meanwhile: the rest is in the log.
            yield from entries
            position = looked + 1
        yield from snapshot.read(position)

    @property
    def last_position(self) -> int:
        """Of the last entry that may be read, -1 if there is none."""
        return self.log.last_position

    def last_message_id(self, through: int | None = None) -> MessageId:
        """Of the last message; (-1, -1) if there is none.

        With `through`, of the last one that a consumer gets which found this horizon.
        """
        return run_here(self.finding_last_message_id(through))

    def finding_last_message_id(self, through: int | None = None) -> Steps[MessageId]:
        """See `last_message_id`. An entry is read for it only after an open or a failed write."""
        if through is None or self.log.last_position > self._reading.border(through):
            position, index = yield from self._end.finding_last()
        else:
            found = self.service.last_message_position()
            position, index = (NO_POSITION, -1) if found is None else (found.position, found.slot)
        ledger, entry = unpack(position) if position >= 0 else (-1, -1)
        return MessageId(ledger, entry, index, self.name.partition)

    def border(self, joined: int) -> int:
        """Up to where a consumer that has found this horizon gets what is retained."""
        return self._reading.border(joined)

    def following(self, position: int) -> int:
        """The first position at or above one that an entry has or a future one may get."""
        return self._reading.following(position)

    def find_message_time(self, time_ms: int) -> int:
        """The first position of the log or the view published at or after a time.

        The view has messages that the log has lost to retention. The next position if there is
        none. Waits for the disk; in any thread.
        """
        in_log, in_view = self.find_time(time_ms), self.service.find_by_publish_time(time_ms)
        return in_log if in_view is None else min(in_log, in_view)

    def entry_at(self, position: int) -> Steps[Entry | None]:
        """The entry at a position, None if there is none."""
        piece = self._reading.at_hand(position)
        if piece is None:
            piece = yield from self._reading.loading(position)
        entries, _ = piece.take(position, 1)
        return entries[0] if entries and entries[0].position == position else None

    def finding_time(self, time_ms: int, *, compacted: bool = False) -> Steps[int]:
        """See `find_time`."""
        found: int = yield Work(
            self._reading, lambda: partial(self.find_time, time_ms, compacted=compacted)
        )
        return found

    def find_time(self, time_ms: int, *, compacted: bool = False) -> int:
        """The first position published at or after a time; the next one if there is none.

        Waits for the disk; in any thread.
        """
        horizon = NO_POSITION
        if compacted:
            found = self.service.find_by_publish_time(time_ms)
            if found is not None:
                return found
            horizon = self.service.last_compacted_position
        with self.log.snapshot("time search") as snapshot:
            found = snapshot.find_time(time_ms)
        return self.log.next_position if found is None else max(found, horizon + 1)
