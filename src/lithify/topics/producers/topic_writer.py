"""Appends to a topic: from producers, and by the library.

Entries are stored exactly as the producer sent them. Of each entry the log's own frame keeps what
dispatch needs without opening it: the publish time, the number of messages (the frame's tag), and
in flags whether it is a batch, whether it is to be delivered later, and whether its time was not
believed.

A publish time is what a client's clock says. The frame's is at most `AHEAD_MS_MAX` ahead of ours:
otherwise one wrong clock would keep what it has written, and everything behind it, young for years,
to retention, to the time to live and to compaction's minimum lag. The message has the time as sent.

One thread at a time, as for the topic. What waits for the disk is queued on the writer: one call at
a time, and no append before it has returned.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import CONFLICT, InvalidInput, LithifyError, LogClosed
from lithify.log.segments.frame_batch import size_of
from lithify.positions import unpack
from lithify.topics.disk_steps import DiskCall
from lithify.topics.messages.message import MessageId, new_entry
from lithify.topics.producers.deduplication import ProducerProgress
from lithify.topics.retention import BacklogExceeded
from lithify.topics.subscriptions.entry_flags import FLAG_AHEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.clock import Clock
    from lithify.log.group_commit import Pending
    from lithify.log.log import Log
    from lithify.log.segments.frame_batch import Slices
    from lithify.topics.definitions.topic_names import TopicName
    from lithify.topics.disk_steps import Steps
    from lithify.topics.producers.deduplication import Deduplication
    from lithify.topics.producers.deduplication_switch import DeduplicationSwitch
    from lithify.topics.reading.last_message_id import LastMessageId

__all__ = ["TopicTerminated", "TopicWriter"]

AHEAD_MS_MAX = 60_000
"""Clocks of clients may be so far ahead and still be believed, so that they are found by time."""

LIBRARY = "library"
"""The name of the producer that `append` is."""


class TopicTerminated(InvalidInput):
    """Nothing more is written to it; what is there can be read."""

    exit_code = CONFLICT


class TopicWriter:
    """Appends to one topic."""

    def __init__(
        self,
        name: TopicName,
        log: Log,
        end: LastMessageId,
        deduplication: DeduplicationSwitch,
        clock: Clock,
    ) -> None:
        self._name = name
        self._log = log
        self._end = end
        self._deduplication = deduplication
        self._clock = clock
        self._library_sequence = 0
        self.terminated = False
        self.refusal = ""
        """Why nothing may be written for now."""
        self.entries_in = 0
        self.messages_in = 0
        self.bytes_in = 0

    def close(self) -> None:
        """Write down what is known of the producers; before the log is closed."""
        self._deduplication.close()

    @property
    def deduplication(self) -> Deduplication | None:
        """What producers have written already; None where nobody wants to know."""
        return self._deduplication.current

    def preparation(self, size_bytes: int) -> Callable[[], None] | None:
        """What waits for the disk before so much is appended: to be called, in any thread.

        Nothing may be appended until it has returned. If it fails, so will the append.
        """
        if self._deduplication.differs():
            return self._deduplication.switch
        if self._log.must_settle():
            # Somebody else rolls it, a compaction run perhaps: this waits for its end.
            return self._log.settle
        known = self.deduplication
        if known is not None and known.save_due and (save := known.saving()) is not None:
            return save
        return self._log.roll if self._log.must_roll(size_bytes) else None

    @property
    def append_bytes_max(self) -> int:
        """Entries that take more bytes, with their frames, may need a roll in between."""
        return self._log.settings.segment_bytes_max // 2

    def preparing(self, size_bytes: int) -> Steps[None]:
        """Wait until so much can be appended without waiting."""
        yield DiskCall(self, partial(self.preparation, size_bytes))
        # Those who waited as well may have filled what was made ready.
        while self.preparation(size_bytes) is not None:
            yield DiskCall(self, partial(self.preparation, size_bytes))

    def saving_producers(self) -> Steps[None]:
        """With deduplication: write down what is known of the producers."""
        known = self.deduplication
        if known is not None:
            # By nobody else meanwhile, and nothing is appended.
            yield DiskCall(self, known.saving)

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
        pending = self._log.append_many(
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
            known.durable(known.appended(LIBRARY, ProducerProgress(sequence_id), pending, 1))
            if known.save_due:
                known.save()
        ledger, entry = unpack(position)
        return MessageId(ledger, entry, -1, self._name.partition)

    def last_sequence_id(self, producer: str) -> int:
        """The highest sequence id written by a producer, -1 while nothing is known of it."""
        return -1 if self.deduplication is None else self.deduplication.last_sequence_id(producer)

    def check_writable(self) -> None:
        """Raise `TopicTerminated`, or `BacklogExceeded` while a subscription is too far behind."""
        if self.terminated:
            raise TopicTerminated(f"topic {self._name} is terminated")
        if self.refusal:
            raise BacklogExceeded(self.refusal)

    def check_open(self) -> None:
        """Raise `LogClosed` if it was closed, by its deletion perhaps, while somebody waited."""
        if self._log.closed:
            raise LogClosed(f"topic {self._name} was closed meanwhile")
