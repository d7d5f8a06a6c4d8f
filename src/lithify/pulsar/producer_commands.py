"""The producers of a session and their commands: PRODUCER, SEND, CLOSE_PRODUCER.

Entries of a topic are appended in the order of their SENDs, and receipts are sent in the order of
the appends. After the first entry that is not written, a producer's later entries are dropped and
the producer is disconnected: its client reconnects and sends all messages without receipts again.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import LithifyError, ProtocolError, WriteFailed
from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.segments.frame_batch import Slices, size_of
from lithify.positions import unpack
from lithify.pulsar.duplicate_sends import repeat_receipts, split_run
from lithify.pulsar.fast_path import frames
from lithify.pulsar.schema_commands import producer_schema
from lithify.pulsar.wire import replies
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.error_codes import error_code
from lithify.topics.admission import check_producer
from lithify.topics.definitions.topic_names import check_client_name
from lithify.topics.messages.entry_flags import BATCH_MESSAGES_MAX
from lithify.topics.producers.producers import AccessMode, Producer
from lithify.topics.subscriptions.subscription import SubscriptionType
from lithify.topics.topic import FLAG_BATCH, FLAG_DELAYED

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lithify.log.group_commit import Pending
    from lithify.pulsar.fast_path.frames import Sends
    from lithify.pulsar.session_interfaces import CommandSession, Handler
    from lithify.topics.definitions.topic_names import Namespace
    from lithify.topics.disk_steps import Steps
    from lithify.topics.producers.deduplication import Deduplication, ProducerProgress
    from lithify.topics.topic import Topic

__all__ = ["Producing"]

GONE_MAX = 10_000
"""Disconnected producers whose late SENDs are dropped; a SEND of an older one is an error."""

LEAVING_A_STEP = 200
"""Producers that leave, or are disconnected, per turn."""
RUNS_A_TURN = 50
"""Runs of SENDs, each of one producer, that are appended per turn."""
REFUSED_A_TURN = 100
"""SENDs of a run that are refused per turn."""

_Type = wire.BaseCommand

_LOG_FLAGS = np.zeros((frames.DELAYED | frames.BATCH) + 1, dtype=np.int64)
"""The log's flags of an entry, by the frame flags `DELAYED` and `BATCH`."""
_LOG_FLAGS[frames.BATCH] = FLAG_BATCH
_LOG_FLAGS[frames.DELAYED] = FLAG_DELAYED
_LOG_FLAGS[frames.DELAYED | frames.BATCH] = FLAG_DELAYED | FLAG_BATCH


@dataclass(slots=True, eq=False)
class _Joined:
    """A producer of this connection."""

    id: int
    topic: Topic
    producer: Producer
    request_id: int
    schema_version: bytes
    ready: bool = True
    failed: bool = False
    """An append failed. Later entries are dropped: otherwise they would precede the resent ones."""
    leaving: bool = False
    """It has lost its permission and will be disconnected."""
    waits: bool = False
    """It waits until the file system accepts writes again, see `write_retries.py`."""


class Producing:
    """Handles the producers of one session."""

    def __init__(self, session: CommandSession) -> None:
        self._session = session
        self.joined: dict[int, _Joined] = {}
        self._disconnected: dict[int, None] = {}
        """Ids of the producers disconnected last, which may have SENDs in flight."""
        self._to_disconnect: deque[_Joined] = deque()

    def handlers(self) -> dict[int, Handler]:
        """The handler of each command type of this class."""
        return {
            _Type.PRODUCER: partial(self._session.repeating, self._producer),
            _Type.CLOSE_PRODUCER: self._close_producer,
        }

    # --- joining and leaving ----------------------------------------------------------------

    def _producer(self, command: wire.BaseCommand) -> Steps[None]:
        request = command.producer
        session = self._session
        host = session.host
        known = self.joined.get(request.producer_id)
        if known is not None:
            # The client repeats a request whose reply was late: it is the same producer.
            known.request_id = request.request_id
            self._answer(known)
            return
        try:
            name = request.producer_name or host.new_name()
            check_client_name("producer", name)
            if request.initial_subscription_name:
                check_client_name("subscription", request.initial_subscription_name)
            host.limits.check_producers(len(self.joined))
            topic = yield from session.topic(command)
            with session.using(topic):
                schema_version = yield from producer_schema(host.topics, topic, request)
                check = partial(self._check, topic, command, name)
                check()
                if request.initial_subscription_name:
                    first, kind = request.initial_subscription_name, SubscriptionType.EXCLUSIVE
                    yield from topic.creating(first, kind, durable=True, start=0, check=check)
                    check()
                producer = Producer(
                    name=name,
                    epoch=request.epoch,
                    user_named=bool(request.producer_name) and request.user_provided_producer_name,
                    mode=AccessMode(request.producer_access_mode),
                    topic_epoch=request.topic_epoch if request.HasField("topic_epoch") else None,
                    client=session.client(),
                )
                ready, replaced = topic.producers.add(producer)
        except LithifyError as error:
            session.send(replies.error(request.request_id, error_code(error), str(error)))
            return
        joined = _Joined(
            request.producer_id, topic, producer, request.request_id, schema_version, ready
        )
        self.joined[request.producer_id] = joined
        self._disconnected.pop(request.producer_id, None)
        host.producer_joined(producer, self, request.producer_id)
        for other in replaced:
            host.disconnect_producer(other)
        if topic.writer.deduplication is None:
            self._answer(joined)
        else:
            # The last sequence id is known once the appends in flight have their outcome.
            host.in_order(topic, lambda: self._answer_if_joined(joined))

    def _check(self, topic: Topic, command: wire.BaseCommand, name: str) -> None:
        """Raise an error if a producer with this name must not join now."""
        self._session.check_unchanged(topic, command)
        topic.writer.check_writable()
        check_producer(topic, name)

    def _answer_if_joined(self, joined: _Joined) -> None:
        if self.joined.get(joined.id) is joined:
            self._answer(joined)

    def _answer(self, joined: _Joined) -> None:
        producer = joined.producer
        self._session.send(
            replies.producer_success(
                joined.request_id,
                producer.name,
                joined.topic.writer.last_sequence_id(producer.name),
                ready=joined.ready,
                topic_epoch=producer.topic_epoch if joined.ready else None,
                schema_version=joined.schema_version,
            )
        )

    def report_ready(self, producer_id: int) -> None:
        """A waiting producer has become the exclusive producer of its topic: notify its client."""
        joined = self.joined.get(producer_id)
        if joined is not None and not joined.ready:
            joined.ready = True
            self._answer(joined)

    def disconnect_client(self, producer_id: int) -> None:
        """Disconnect a producer, for example because another one has replaced it."""
        if self.joined.pop(producer_id, None) is not None:
            self._send_close(producer_id)

    def _send_close(self, producer_id: int) -> None:
        self._disconnected[producer_id] = None
        if len(self._disconnected) > GONE_MAX:
            del self._disconnected[next(iter(self._disconnected))]
        self._session.send(replies.close_producer(producer_id))

    def _close_producer(self, command: wire.BaseCommand) -> None:
        request = command.close_producer
        self._disconnected.pop(request.producer_id, None)
        joined = self.joined.pop(request.producer_id, None)
        if joined is not None:
            self._leave(joined)
        self._session.send(replies.success(request.request_id))

    def _leave(self, joined: _Joined) -> None:
        host = self._session.host
        host.producer_left(joined.producer)
        following = joined.topic.producers.remove(joined.producer)
        if following is not None:
            host.producer_ready(following)

    def close(self) -> None:
        """The connection is closed: its producers leave in steps."""
        for producer_id in list(itertools.islice(self.joined, LEAVING_A_STEP)):
            self._leave(self.joined.pop(producer_id))
        if self.joined:
            self._session.host.soon(self._session.source, self.close)

    def close_unauthorized(self, may_stay: Callable[[Namespace], bool]) -> None:
        """Close the producers without permission, and notify the client of each.

        Their writes stop at once; they are closed in steps.
        """
        for joined in self.joined.values():
            if not joined.leaving and not may_stay(joined.topic.name.namespace):
                joined.leaving = joined.failed = True
                self._to_disconnect.append(joined)
        self._disconnect_some()

    def _disconnect_some(self) -> None:
        for _ in range(min(LEAVING_A_STEP, len(self._to_disconnect))):
            self._disconnect(self._to_disconnect.popleft())
        if self._to_disconnect:
            self._session.host.soon(self._session.source, self._disconnect_some)

    # --- messages ---------------------------------------------------------------------------

    def take(self, data: NDArray[np.uint8], sends: Sends) -> int:
        """Append the entries of SEND frames; consecutive frames of one producer form a run.

        Returns the number of processed frames. It is less than all if the session must wait, after
        `RUNS_A_TURN` runs, after `REFUSED_A_TURN` bad frames in a run, and if a run has more bytes
        than one append to a segment may have.
        """
        starts = [0]
        if not sends.plain:
            ids = sends.producer_ids
            starts += (np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist()
        for start, stop in zip(starts[:RUNS_A_TURN], [*starts[1:], len(sends)], strict=False):
            end = self._take_run(data, sends, start, stop)
            if end < stop:
                return end
        return stop

    def _take_run(self, data: NDArray[np.uint8], sends: Sends, start: int, stop: int) -> int:
        """Append one run, or its first part; returns the end of that part."""
        producer_id = int(sends.producer_ids[start]) % replies.UNSIGNED
        joined = self.joined.get(producer_id)
        if joined is None and producer_id in self._disconnected:
            # The producer was disconnected while these were in flight; its client is notified.
            return stop
        if joined is None or not joined.ready:
            raise ProtocolError(f"SEND by producer {producer_id}, which has not joined")
        if self._has_failed(joined):
            return stop
        topic = joined.topic
        stop, size_bytes = _piece(sends, start, stop, topic.writer.append_bytes_max)
        if (
            self._session.host.is_busy(topic.writer)
            or topic.writer.preparation(size_bytes) is not None
        ):
            self._session.in_steps(self._preparing(joined, size_bytes))
            if self._session.waiting:
                return start
            if self._has_failed(joined):
                return stop
        if sends.plain:
            self._append(data, sends, joined, start, stop)
            return stop
        bad = (sends.crcs[start:stop] == frames.BAD_CRC) | (
            sends.flags[start:stop] & (frames.BAD_METADATA | frames.BAD_BATCH | frames.UNUSUAL) != 0
        )
        at, places = start, np.flatnonzero(bad) + start
        if len(places) > REFUSED_A_TURN:
            stop = int(places[REFUSED_A_TURN])
        for place in places[:REFUSED_A_TURN].tolist():
            if place > at:
                self._append(data, sends, joined, at, place)
            self._refuse(sends, joined, place)
            at = place + 1
        if at < stop:
            self._append(data, sends, joined, at, stop)
        return stop

    @staticmethod
    def _has_failed(joined: _Joined) -> bool:
        return joined.failed

    def _preparing(self, joined: _Joined, size_bytes: int) -> Steps[None]:
        """Wait until `size_bytes` can be appended without waiting; a failure ends the producer."""
        try:
            yield from joined.topic.writer.preparing(size_bytes)
        except LithifyError as error:
            self._cannot_append(joined, error)

    def _cannot_append(self, joined: _Joined, error: LithifyError) -> None:
        """Nothing was written: disconnect the producer after all earlier replies."""
        joined.failed = True
        refused = error if isinstance(error, WriteFailed) else None
        self._session.host.in_order(joined.topic, lambda: self._fail(joined, refused=refused))

    def _refuse(self, sends: Sends, joined: _Joined, place: int) -> None:
        flags = int(sends.flags[place])
        if joined.failed:
            return
        if flags & frames.UNUSUAL:
            raise ProtocolError("SEND with a transaction, a marker or a message id")
        what = "message metadata is malformed"
        if int(sends.crcs[place]) == frames.BAD_CRC:
            what = "CRC-32C of the message does not match"
        elif flags & frames.BAD_BATCH:
            size_bytes = int(sends.entry_stops[place] - sends.payload_starts[place])
            what = (
                f"batch of {int(sends.nums_in_batch[place])} messages in {size_bytes} bytes: the"
                f" number must match the payload, and be 1 to {BATCH_MESSAGES_MAX}"
            )
        session = self._session
        frame = replies.send_error(
            joined.id,
            int(sends.sequence_ids[place]) % replies.UNSIGNED,
            wire.ServerError.ChecksumError,
            what,
        )
        session.unanswered += 1
        # Resent after later messages, it would be dropped as a duplicate: so later ones must fail.
        joined.failed = joined.topic.writer.deduplication is not None

        def then() -> Steps[None] | None:
            session.answered(1)
            session.send(frame)
            return self._fail(joined) if joined.failed else None

        session.host.in_order(joined.topic, then)

    def _append(
        self, data: NDArray[np.uint8], sends: Sends, joined: _Joined, start: int, stop: int
    ) -> None:
        """Append the new entries, and acknowledge the duplicates."""
        known = joined.topic.writer.deduplication
        if joined.failed:
            return
        if known is None:
            self._write(data, sends, joined, start, stop)
            return
        try:
            stretches = split_run(known, joined.producer.name, data, sends, start, stop)
        except LithifyError:
            # An earlier append has failed; its reply is pending.
            joined.failed = True
            self._session.host.in_order(joined.topic, lambda: self._fail(joined))
            return
        for each in stretches:
            low, high = start + each.start, start + each.stop
            if each.is_new:
                self._write(data, sends, joined, low, high, each.progress)
            else:
                self._repeat(known, joined, sends, low, high, each.progress)

    def _repeat(
        self,
        known: Deduplication,
        joined: _Joined,
        sends: Sends,
        start: int,
        stop: int,
        progress: ProducerProgress,
    ) -> None:
        """Acknowledge duplicates once the original messages are durable."""
        session = self._session
        receipts = repeat_receipts(
            joined.id, sends.sequence_ids[start:stop], sends.highest_sequence_ids[start:stop]
        )
        session.unanswered += stop - start

        def then() -> Steps[None] | None:
            session.answered(stop - start)
            if not known.is_durable(joined.producer.name, progress):
                return self._fail(joined)
            if self.joined.get(joined.id) is joined:
                session.send(receipts)
            return None

        session.host.in_order(joined.topic, then)

    def _write(
        self,
        data: NDArray[np.uint8],
        sends: Sends,
        joined: _Joined,
        start: int,
        stop: int,
        progress: ProducerProgress | None = None,
    ) -> None:
        """Append entries; `progress` is the producer's deduplication state after them."""
        if joined.failed:
            return
        bodies = Slices(
            data,
            sends.entry_starts[start:stop],
            sends.entry_stops[start:stop],
            sends.entry_crcs[start:stop],
        )
        topic = joined.topic
        producer = joined.producer
        known = topic.writer.deduplication if progress is not None else None
        # The count in the metadata was checked against the payload; that in the command was not.
        counts = np.where(
            sends.flags[start:stop] & frames.BATCH != 0, sends.nums_in_batch[start:stop], 1
        )
        flags = _LOG_FLAGS[sends.flags[start:stop] & (frames.DELAYED | frames.BATCH)]
        sequences = sends.sequence_ids[start:stop].copy()
        highest = sends.highest_sequence_ids[start:stop].copy()
        session = self._session
        try:
            pending = topic.writer.append_entries(
                bodies,
                times=sends.publish_times_ms[start:stop],
                counts=counts,
                flags=flags,
                after=None if known is None else known.last_append(producer.name),
            )
        except LithifyError as error:
            self._cannot_append(joined, error)
            return
        producer.messages += int(counts.sum())
        producer.bytes += size_of(bodies)
        appended = None
        if known is not None and progress is not None:
            appended = known.appended(producer.name, progress, pending, stop - start)
        runs = pending.runs
        session.unanswered += stop - start

        def then(error: LithifyError | None) -> Steps[None] | None:
            session.answered(stop - start)
            if error is not None:
                refused = error if isinstance(error, WriteFailed) else None
                return self._fail(joined, pending, refused)
            if known is not None and appended is not None:
                known.durable(appended)
            # Another producer may have joined with the same id since.
            if self.joined.get(joined.id) is joined:
                self._receipts(joined.id, sequences, highest, runs)
            session.host.dispatch(topic)
            return None

        session.host.when_durable(topic, pending, then)

    def _fail(
        self, joined: _Joined, failed: Pending | None = None, refused: WriteFailed | None = None
    ) -> Steps[None] | None:
        """Disconnect a producer: its client joins again, and resends messages without receipts.

        If the file system `refused` the write, it is disconnected once writes are accepted again.
        """
        joined.failed = True
        known = joined.topic.writer.deduplication
        if known is not None:
            return self._failing(known, joined, failed, refused)
        self._disconnect_later(joined, refused)
        return None

    def _failing(
        self,
        known: Deduplication,
        joined: _Joined,
        failed: Pending | None,
        refused: WriteFailed | None,
    ) -> Steps[None]:
        # The reply to the next producer that joins waits for these steps.
        yield from known.failing(joined.producer.name, failed)
        self._disconnect_later(joined, refused)

    def _disconnect_later(self, joined: _Joined, refused: WriteFailed | None) -> None:
        if joined.waits:
            return
        if refused is None:
            self._disconnect(joined)
            return
        joined.waits = True
        then = partial(self._disconnect, joined)
        self._session.host.when_writable(joined.topic, str(refused), then)

    def _disconnect(self, joined: _Joined) -> None:
        if self.joined.get(joined.id) is joined:
            self._leave(joined)
            self.disconnect_client(joined.id)

    def _receipts(
        self,
        producer_id: int,
        sequences: NDArray[np.int64],
        highest: NDArray[np.int64],
        runs: list[tuple[int, int]],
    ) -> None:
        at = 0
        for first, last in runs:
            ledger, entry = unpack(first)
            stop = at + last - first + 1
            ids = np.full(stop - at, frames.signed(producer_id), dtype=np.int64)
            out = np.empty((stop - at) * frames.RECEIPT_BYTES_MAX, dtype=np.uint8)
            size = frames.write_receipts(
                out, ids, sequences[at:stop], highest[at:stop], ledger, entry
            )
            self._session.send(out.data[:size])
            at = stop


def _piece(sends: Sends, start: int, stop: int, bytes_max: int) -> tuple[int, int]:
    """The part of a run for one append: its end, and its size in the log."""
    begun = int(sends.entry_starts[start])
    size_bytes = int(sends.entry_stops[stop - 1]) - begun + HEADER_BYTES * (stop - start)
    if size_bytes <= bytes_max:
        return stop, size_bytes
    sizes = sends.entry_stops[start:stop] - begun + HEADER_BYTES * np.arange(1, stop - start + 1)
    count = max(1, int(np.searchsorted(sizes, bytes_max, side="right")))
    return start + count, int(sizes[count - 1])
