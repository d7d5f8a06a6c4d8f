"""Appends to a topic, from producers and from the library.

Entries are stored exactly as the producer sent them. The frame of an entry has what dispatch needs
without decoding the entry: the publish time, the number of messages (the frame's tag), and flags
for a batch, for delayed delivery, and for a publish time that was corrected (`publish_times.py`).

One thread at a time, as for the topic. Disk operations are queued on the writer: one at a time, and
no append before it has returned.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import InvalidInput, LithifyError, LogClosed
from lithify.exit_codes import CONFLICT
from lithify.log.segments.frame_batch import size_of
from lithify.positions import unpack
from lithify.topics.disk_steps import DiskCall
from lithify.topics.messages.message import MessageId, new_entry
from lithify.topics.producers.deduplication import ProducerProgress
from lithify.topics.producers.publish_times import correct_publish_times

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

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

__all__ = ["BacklogExceeded", "TopicTerminated", "TopicWriter"]

LIBRARY = "library"
"""The producer name of `append`."""


class BacklogExceeded(InvalidInput):
    """The backlog of a subscription exceeds the limit; producers are refused."""

    exit_code = CONFLICT


class TopicTerminated(InvalidInput):
    """The topic is terminated: it can be read but not written."""

    exit_code = CONFLICT


class TopicWriter:
    """The writer of one topic; see the module."""

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
        self.withdrawn = False
        """The topic was deleted, or is on another node: nothing more is accepted."""
        self.refusal = ""
        """The reason why writes are refused at the moment; empty if they are not."""
        self.entries_in = 0
        self.messages_in = 0
        self.bytes_in = 0

    def close(self) -> None:
        """Write the deduplication snapshot. Call before the log is closed."""
        self._deduplication.close()

    @property
    def deduplication(self) -> Deduplication | None:
        """The progress of producers; None if deduplication is off."""
        return self._deduplication.current

    def preparation(self, size_bytes: int) -> Callable[[], None] | None:
        """The disk operation that must precede an append of `size_bytes`; None if there is none.

        Any thread may call it. No append may happen until it has returned. If it fails, the append
        fails as well.
        """
        if self._deduplication.differs():
            return self._deduplication.switch
        if self._log.must_settle():
            # Another thread, such as a compaction run, is rolling the log: wait for it.
            return self._log.settle
        deduplication = self.deduplication
        if (
            deduplication is not None
            and deduplication.save_due
            and (save := deduplication.saving()) is not None
        ):
            return save
        return self._log.roll if self._log.must_roll(size_bytes) else None

    @property
    def append_bytes_max(self) -> int:
        """Limit of one append including frames; larger ones may need a roll in between."""
        return self._log.settings.segment_bytes_max // 2

    def preparing(self, size_bytes: int) -> Steps[None]:
        """Wait until `size_bytes` can be appended without blocking."""
        yield DiskCall(self, partial(self.preparation, size_bytes))
        # Other waiting appends may have filled the prepared space.
        while self.preparation(size_bytes) is not None:
            yield DiskCall(self, partial(self.preparation, size_bytes))

    def saving_producers(
        self, guard: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> Steps[None]:
        """Write the deduplication snapshot, if deduplication is on; raises if that fails.

        `guard` is entered in the thread that writes.
        """
        deduplication = self.deduplication
        if deduplication is None:
            return

        def find() -> Callable[[], None] | None:
            save = deduplication.saving()
            return None if save is None else partial(_guarded, guard, save)

        # The queue of the writer excludes other snapshots and appends meanwhile.
        yield DiskCall(self, find)
        if deduplication.failure is not None:
            raise deduplication.failure

    def append_entries(
        self,
        bodies: Sequence[Buffer] | Slices,
        *,
        times: NDArray[np.int64] | Sequence[int],
        counts: NDArray[np.int64] | Sequence[int],
        flags: NDArray[np.int64] | Sequence[int] | int = 0,
        after: Pending | None = None,
    ) -> Pending:
        """Append entries as producers sent them; the result has the last position.

        With deduplication, `after` is the producer's `last_append`.
        """
        self.check_writable()
        corrected, flags = correct_publish_times(times, flags, self._clock.now_ms())
        pending = self._log.append_many(
            bodies, time_ms=corrected, tags=counts, flags=flags, after=after
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
        deduplication = self.deduplication
        sequence_id = self._library_sequence
        if deduplication is not None:
            sequence_id = deduplication.next_sequence_id(LIBRARY)
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
            after = None if deduplication is None else deduplication.last_append(LIBRARY)
            pending = self.append_entries([body], times=[now_ms], counts=[1], after=after)
            position = pending.result()
        except LithifyError:
            if deduplication is not None:
                deduplication.failed(LIBRARY, pending)
            raise
        if deduplication is not None:
            deduplication.durable(
                deduplication.appended(LIBRARY, ProducerProgress(sequence_id), pending, 1)
            )
            if deduplication.save_due:
                deduplication.save()
        ledger, entry = unpack(position)
        return MessageId(ledger, entry, -1, self._name.partition)

    def last_sequence_id(self, producer: str) -> int:
        """The highest durable sequence id of a producer, -1 if unknown."""
        return -1 if self.deduplication is None else self.deduplication.last_sequence_id(producer)

    def check_writable(self) -> None:
        """Raise `TopicTerminated`, or `BacklogExceeded` while a subscription is too far behind.

        `LogClosed` if the topic was withdrawn.
        """
        if self.withdrawn:
            raise LogClosed(f"topic {self._name} was deleted, or is on another node")
        if self.terminated:
            raise TopicTerminated(f"topic {self._name} is terminated")
        if self.refusal:
            raise BacklogExceeded(self.refusal)

    def check_open(self) -> None:
        """Raise `LogClosed` if the topic was closed or deleted during a wait."""
        if self._log.closed:
            raise LogClosed(f"topic {self._name} was closed during the request")


def _guarded(guard: Callable[[], AbstractContextManager[None]], call: Callable[[], None]) -> None:
    with guard():
        call()
