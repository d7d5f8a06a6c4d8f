"""A session's producers: PRODUCER, SEND, CLOSE_PRODUCER."""

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
from lithify.topics.definitions.topic_names import check_client_name
from lithify.topics.producers.admission import check_producer
from lithify.topics.producers.producers import AccessMode, Producer
from lithify.topics.subscriptions.cursor import BATCH_MESSAGES_MAX
from lithify.topics.subscriptions.subscription import SubscriptionType
from lithify.topics.topic import FLAG_BATCH, FLAG_DELAYED

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lithify.log.group_commit import Pending
    from lithify.pulsar.fast_path.frames import Sends
    from lithify.pulsar.session import Handler, Session
    from lithify.topics.definitions.topic_names import Namespace
    from lithify.topics.disk_steps import Steps
    from lithify.topics.producers.deduplication import Deduplication, ProducerProgress
    from lithify.topics.topic import Topic

__all__ = ["Producing"]

GONE_MAX = 10_000
"""Producers that were put out and not closed since; a message of an older one is an error."""

LEAVING_A_STEP = 200
"""Producers that leave, or are put out, in one turn of the loop."""
RUNS_A_TURN = 50
"""Runs of SENDs, each of one producer, that are appended in one turn of the loop."""
REFUSED_A_TURN = 100
"""SENDs of a run that are refused in one turn of the loop."""

_Type = wire.BaseCommand

_LOG_FLAGS = np.zeros((frames.DELAYED | frames.BATCH) + 1, dtype=np.int64)
"""What the log is told of an entry, by those two of its flags."""
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
    """An append failed: what follows is not written, or it would stand before what is resent."""
    leaving: bool = False
    """It may not go on, and is to be put out."""
    waits: bool = False
    """For the file system to take writes again, see `write_retries.py`."""


class Producing:
    """The producers of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._joined: dict[int, _Joined] = {}
        self._gone: dict[int, None] = {}
        """Those that were put out last, whose messages may still be on their way."""
        self._to_put_out: deque[_Joined] = deque()

    def handlers(self) -> dict[int, Handler]:
        """The commands that this takes."""
        return {
            _Type.PRODUCER: partial(self._session.repeating, self._producer),
            _Type.CLOSE_PRODUCER: self._close_producer,
        }

    # --- joining and leaving ----------------------------------------------------------------

    def _producer(self, command: wire.BaseCommand) -> Steps[None]:
        request = command.producer
        session = self._session
        host = session.host
        known = self._joined.get(request.producer_id)
        if known is not None:
            # The client asks again because the answer was late: it is the same producer.
            known.request_id = request.request_id
            self._answer(known)
            return
        try:
            name = request.producer_name or host.new_name()
            check_client_name("producer", name)
            if request.initial_subscription_name:
                check_client_name("subscription", request.initial_subscription_name)
            host.limits.check_producers(len(self._joined))
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
                ready, put_out = topic.producers.add(producer)
        except LithifyError as error:
            session.send(replies.error(request.request_id, error_code(error), str(error)))
            return
        joined = _Joined(
            request.producer_id, topic, producer, request.request_id, schema_version, ready
        )
        self._joined[request.producer_id] = joined
        self._gone.pop(request.producer_id, None)
        host.producer_joined(producer, self, request.producer_id)
        for other in put_out:
            host.producer_put_out(other)
        if topic.writer.deduplication is None:
            self._answer(joined)
        else:
            # Only what is on its way now decides which sequence id is the last.
            host.in_order(topic, lambda: self._answer_if_there(joined))

    def _check(self, topic: Topic, command: wire.BaseCommand, name: str) -> None:
        """May a producer of that name join now?"""
        self._session.check_unchanged(topic, command)
        topic.writer.check_writable()
        check_producer(topic, name)

    def _answer_if_there(self, joined: _Joined) -> None:
        if self._joined.get(joined.id) is joined:
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
        """The producer that waited for the topic has it now."""
        joined = self._joined.get(producer_id)
        if joined is not None and not joined.ready:
            joined.ready = True
            self._answer(joined)

    def put_out(self, producer_id: int) -> None:
        """Another producer has taken the topic or the name over."""
        if self._joined.pop(producer_id, None) is not None:
            self._send_away(producer_id)

    def _send_away(self, producer_id: int) -> None:
        self._gone[producer_id] = None
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
        self._session.send(replies.close_producer(producer_id))

    def _close_producer(self, command: wire.BaseCommand) -> None:
        request = command.close_producer
        self._gone.pop(request.producer_id, None)
        joined = self._joined.pop(request.producer_id, None)
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
        """The connection is gone: its producers leave, some at a time."""
        for producer_id in list(itertools.islice(self._joined, LEAVING_A_STEP)):
            self._leave(self._joined.pop(producer_id))
        if self._joined:
            self._session.host.soon(self._session.source, self.close)

    def close_unauthorized(self, may_stay: Callable[[Namespace], bool]) -> None:
        """Close the producers that may not go on; the client is told for each.

        From now on they write nothing; they are closed some at a time.
        """
        for joined in self._joined.values():
            if not joined.leaving and not may_stay(joined.topic.name.namespace):
                joined.leaving = joined.failed = True
                self._to_put_out.append(joined)
        self._put_out_some()

    def _put_out_some(self) -> None:
        for _ in range(min(LEAVING_A_STEP, len(self._to_put_out))):
            self._let_go(self._to_put_out.popleft())
        if self._to_put_out:
            self._session.host.soon(self._session.source, self._put_out_some)

    # --- messages ---------------------------------------------------------------------------

    def take(self, data: NDArray[np.uint8], sends: Sends) -> int:
        """Append the entries of SEND frames, a run of the same producer at a time.

        Returns how many were taken: all, unless the session has to wait before the next, or there
        are more than `RUNS_A_TURN` runs, or a run with more than `REFUSED_A_TURN` bad ones or more
        bytes than go into a segment.
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
        """Where it ended."""
        producer_id = int(sends.producer_ids[start]) % replies.UNSIGNED
        joined = self._joined.get(producer_id)
        if joined is None and producer_id in self._gone:
            # It was put out while these were on their way; its client has been told.
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
        """Wait until so much can be appended without waiting; if it cannot, the producer goes."""
        try:
            yield from joined.topic.writer.preparing(size_bytes)
        except LithifyError as error:
            self._cannot_append(joined, error)

    def _cannot_append(self, joined: _Joined, error: LithifyError) -> None:
        """Nothing was written: the producer goes once all before it has been answered."""
        joined.failed = True
        refused = error if isinstance(error, WriteFailed) else None
        self._session.host.in_order(joined.topic, lambda: self._fail(joined, refused=refused))

    def _refuse(self, sends: Sends, joined: _Joined, place: int) -> None:
        flags = int(sends.flags[place])
        if joined.failed:
            return
        if flags & frames.UNUSUAL:
            raise ProtocolError("SEND with a transaction, a marker or an id of its own")
        what = "message metadata is malformed"
        if int(sends.crcs[place]) == frames.BAD_CRC:
            what = "CRC-32C of the message does not match"
        elif flags & frames.BAD_BATCH:
            size_bytes = int(sends.entry_stops[place] - sends.payload_starts[place])
            what = (
                f"batch of {int(sends.nums_in_batch[place])} messages in {size_bytes} bytes: must"
                f" have as many as it says, 1 to {BATCH_MESSAGES_MAX}"
            )
        session = self._session
        frame = replies.send_error(
            joined.id,
            int(sends.sequence_ids[place]) % replies.UNSIGNED,
            wire.ServerError.ChecksumError,
            what,
        )
        session.unanswered += 1
        # Were it sent again after later ones, it would count as a duplicate.
        joined.failed = joined.topic.writer.deduplication is not None

        def then() -> Steps[None] | None:
            session.answered(1)
            session.send(frame)
            return self._fail(joined) if joined.failed else None

        session.host.in_order(joined.topic, then)

    def _append(
        self, data: NDArray[np.uint8], sends: Sends, joined: _Joined, start: int, stop: int
    ) -> None:
        """Append what is new."""
        known = joined.topic.writer.deduplication
        if joined.failed:
            return
        if known is None:
            self._write(data, sends, joined, start, stop)
            return
        try:
            stretches = split_run(known, joined.producer.name, data, sends, start, stop)
        except LithifyError:
            # An append before this one has failed; its answer is on the way.
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
        """Acknowledge duplicates, once what they repeat is durable."""
        session = self._session
        receipts = repeat_receipts(
            joined.id, sends.sequence_ids[start:stop], sends.highest_sequence_ids[start:stop]
        )
        session.unanswered += stop - start

        def then() -> Steps[None] | None:
            session.answered(stop - start)
            if not known.is_durable(joined.producer.name, progress):
                return self._fail(joined)
            if self._joined.get(joined.id) is joined:
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
        """Append entries; `progress` is where deduplication sees the producer after them."""
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
        # Not the command's count: the metadata's was checked against the payload.
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
            # Another producer may have joined with the same id meanwhile.
            if self._joined.get(joined.id) is joined:
                self._receipts(joined.id, sequences, highest, runs)
            session.host.dispatch(topic)
            return None

        session.host.when_durable(topic, pending, then)

    def _fail(
        self, joined: _Joined, failed: Pending | None = None, refused: WriteFailed | None = None
    ) -> Steps[None] | None:
        """Let go of a producer, so that its client joins and sends again what has no receipt.

        If the file system `refused` the write, only once it takes writes again.
        """
        joined.failed = True
        known = joined.topic.writer.deduplication
        if known is not None:
            return self._failing(known, joined, failed, refused)
        self._let_go_later(joined, refused)
        return None

    def _failing(
        self,
        known: Deduplication,
        joined: _Joined,
        failed: Pending | None,
        refused: WriteFailed | None,
    ) -> Steps[None]:
        # Whoever joins next is answered after that.
        yield from known.failing(joined.producer.name, failed)
        self._let_go_later(joined, refused)

    def _let_go_later(self, joined: _Joined, refused: WriteFailed | None) -> None:
        if joined.waits:
            return
        if refused is None:
            self._let_go(joined)
            return
        joined.waits = True
        self._session.host.when_writable(joined.topic, str(refused), lambda: self._let_go(joined))

    def _let_go(self, joined: _Joined) -> None:
        if self._joined.get(joined.id) is joined:
            self._leave(joined)
            self.put_out(joined.id)

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
    """What of a run is appended together: where it ends, and what it takes in the log."""
    begun = int(sends.entry_starts[start])
    size_bytes = int(sends.entry_stops[stop - 1]) - begun + HEADER_BYTES * (stop - start)
    if size_bytes <= bytes_max:
        return stop, size_bytes
    sizes = sends.entry_stops[start:stop] - begun + HEADER_BYTES * np.arange(1, stop - start + 1)
    count = max(1, int(np.searchsorted(sizes, bytes_max, side="right")))
    return start + count, int(sizes[count - 1])
