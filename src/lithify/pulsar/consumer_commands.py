"""A session's consumers: SUBSCRIBE, FLOW, ACK, SEEK, REDELIVER and what else they send."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import InvalidInput, LithifyError
from lithify.positions import unpack
from lithify.pulsar.fast_path import frames
from lithify.pulsar.schema_commands import consumer_schema
from lithify.pulsar.seek_positions import LATEST, position_of, resolved, slots_of, start_of
from lithify.pulsar.wire import replies
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.error_codes import BeginAgain, error_code
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.definitions.topic_names import check_client_name
from lithify.topics.messages.message import MessageId
from lithify.topics.producers.admission import check_consumer, check_subscription
from lithify.topics.subscriptions.consumer import SubscriptionRemoved
from lithify.topics.subscriptions.cursor import BATCH_MESSAGES_MAX, bits_from_words, words_from_bits
from lithify.topics.subscriptions.cursor_changes import Acked, AckedBatch, AckedUpTo
from lithify.topics.subscriptions.entry_flags import message_count
from lithify.topics.subscriptions.subscription import (
    Consumer,
    Delivery,
    Subscription,
    SubscriptionType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lithify.checksum import Buffer
    from lithify.pulsar.session import Handler, Session
    from lithify.topics.definitions.topic_names import Namespace
    from lithify.topics.disk_steps import Steps
    from lithify.topics.subscriptions.compacted_batch import WireBatch
    from lithify.topics.topic import Topic

__all__ = ["Consuming"]

_Type = wire.BaseCommand
STEP_COST = 20
"""Of acknowledgements taken in one turn of the loop, about 0.2 ms. Each is a write, which may take
ten times as long while the disk is busy. A source has several turns in a round."""
READ_COST = 10
LONG_ACK = 1000
"""Ids in one command."""
ACK_SET_WORDS_MAX = BATCH_MESSAGES_MAX // 64
REDELIVERED_A_STEP = 500
LEAVING_A_STEP = 20
"""Consumers that leave, or are put out, in one turn of the loop."""
SMALL_BYTES_MAX = 2**13
RUN_MIN = 4
"""So many entries, each not larger than that, are worth to be copied into one piece of memory."""
_SIZES_MAX = 1000
_SENT_MAX = 10_000
"""Batches to a consumer of which is known how many messages they have, or how they went out."""


@dataclass(slots=True, eq=False)
class _Joined:
    """A consumer of this connection."""

    id: int
    topic: Topic
    subscription: Subscription
    consumer: Consumer
    leaving: bool = False
    """It may not go on, and is to be put out."""
    batches: dict[int, tuple[int, WireBatch | None]] = field(default_factory=dict)
    """Of the batches delivered last: how many messages they have, which the client does not say in
    an acknowledgement, and how they went out if it was not as they are."""

    def remember(self, delivery: Delivery) -> None:
        """Note a batch; the one that was noted first is forgotten if there are too many."""
        batches, entry = self.batches, delivery.entry
        batches.pop(entry.position, None)
        batches[entry.position] = message_count(entry), delivery.wire
        # How many messages it has can be read again, but not in which form it went out.
        if len(batches) > (_SENT_MAX if self.subscription.compacted else _SIZES_MAX):
            del batches[next(iter(batches))]

    def forget_up_to(self, position: int) -> None:
        """These are acknowledged."""
        while self.batches and (first := next(iter(self.batches))) <= position:
            del self.batches[first]


class Consuming:
    """The consumers of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._joined: dict[int, _Joined] = {}
        self._to_put_out: deque[_Joined] = deque()

    def handlers(self) -> dict[int, Handler]:
        """The commands that this takes."""
        return {
            _Type.SUBSCRIBE: partial(self._session.repeating, self._subscribe),
            _Type.FLOW: self._flow,
            _Type.ACK: self._ack,
            _Type.UNSUBSCRIBE: self._unsubscribe,
            _Type.CLOSE_CONSUMER: self._close_consumer,
            _Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: self._redeliver,
            _Type.SEEK: self._seek,
            _Type.GET_LAST_MESSAGE_ID: self._last_message_id,
            _Type.CONSUMER_STATS: self._stats,
        }

    # --- joining and leaving ----------------------------------------------------------------

    def _subscribe(self, command: wire.BaseCommand) -> Steps[None]:
        request = command.subscribe
        host = self._session.host
        known = self._joined.get(request.consumer_id)
        if known is not None:
            # The client asks again because the answer was late: it is the same consumer.
            self._session.send(replies.success(request.request_id))
            return
        try:
            name = request.consumer_name or host.new_name()
            check_client_name("consumer", name)
            check_client_name("subscription", request.subscription)
            host.limits.check_consumers(len(self._joined))
            topic = yield from self._session.topic(command)
            with self._session.using(topic):
                joined, was_active = yield from self._join(topic, command, name)
        except LithifyError as error:
            self._fail(request.request_id, error)
            return
        self._joined[request.consumer_id] = joined
        joined.consumer.paused = self._session.paused
        host.consumer_joined(joined.consumer, self, request.consumer_id)
        self._session.send(replies.success(request.request_id))
        if joined.subscription.kind is SubscriptionType.FAILOVER:
            host.active_changed(joined.subscription, was_active)

    def _join(
        self, topic: Topic, command: wire.BaseCommand, name: str
    ) -> Steps[tuple[_Joined, Consumer | None]]:
        """Add a consumer to the subscription that it asks for; also who was active before."""
        request = command.subscribe
        check = partial(self._session.check_unchanged, topic, command)
        subscription = yield from self._subscription(topic, request, check)
        consumer = Consumer(
            name=name,
            priority=request.priority_level,
            slots=slots_of(request),
            client=self._session.client(),
        )
        was_active = subscription.active
        try:
            yield from topic.joining(
                subscription,
                consumer,
                SubscriptionType(request.subType),
                compacted=request.read_compacted,
                check=check,
            )
            check()
        except SubscriptionRemoved as error:
            self._give_up(topic, subscription, consumer)
            raise BeginAgain from error
        except BaseException:
            # Also if the client is gone.
            self._give_up(topic, subscription, consumer)
            raise
        return _Joined(request.consumer_id, topic, subscription, consumer), was_active

    def _give_up(self, topic: Topic, subscription: Subscription, consumer: Consumer) -> None:
        """A consumer that has not joined leaves; others may have waited for its place."""
        host, was_active = self._session.host, subscription.active
        topic.leave(subscription, consumer)
        if subscription.active is not None and subscription.active is not was_active:
            host.active_changed(subscription, was_active)
            host.dispatch(topic, subscription)

    def _subscription(
        self, topic: Topic, request: wire.CommandSubscribe, check_unchanged: Callable[[], None]
    ) -> Steps[Subscription]:
        """The subscription that a consumer asks for, if it may have it."""
        name, topics = request.subscription, self._session.host.topics

        def check() -> None:
            check_unchanged()
            check_subscription(topic, name)
            check_consumer(topic, name)
            topic.check_readable(name)

        check()
        yield from consumer_schema(topics, topic, request)
        start = yield from start_of(request, topic, topics.now_ms())
        return (
            yield from topic.creating(
                name,
                SubscriptionType(request.subType),
                durable=request.durable,
                start=start,
                compacted=request.read_compacted,
                check=check,
            )
        )

    def _fail(self, request_id: int, error: LithifyError) -> None:
        self._session.send(replies.error(request_id, error_code(error), str(error)))

    def _known(self, consumer_id: int, request_id: int) -> _Joined | None:
        joined = self._joined.get(consumer_id)
        if joined is None:
            self._fail(request_id, _missing(consumer_id))
        return joined

    def _is_there(self, joined: _Joined) -> bool:
        """Is it still a consumer of this connection? It may be put out while a command waits."""
        return self._joined.get(joined.id) is joined

    def _check_there(self, joined: _Joined) -> None:
        if not self._is_there(joined):
            raise _missing(joined.id)

    def _leave(self, joined: _Joined, *, keep: bool = False) -> None:
        host = self._session.host
        subscription = joined.subscription
        was_active = subscription.active
        host.consumer_left(joined.consumer)
        joined.topic.leave(subscription, joined.consumer, keep=keep)
        if subscription.kind is SubscriptionType.FAILOVER:
            host.active_changed(subscription, was_active)
        host.dispatch(joined.topic, subscription)

    def put_out(self, consumer_id: int) -> None:
        """The subscription was moved: the client has to subscribe again."""
        joined = self._joined.pop(consumer_id, None)
        if joined is not None:
            self._leave(joined, keep=True)
            self._session.host.forget_later(joined.topic, joined.subscription)
            self._session.send(replies.close_consumer(consumer_id))

    def _close_consumer(self, command: wire.BaseCommand) -> None:
        request = command.close_consumer
        joined = self._joined.pop(request.consumer_id, None)
        if joined is not None:
            self._leave(joined)
        self._session.send(replies.success(request.request_id))

    def _unsubscribe(self, command: wire.BaseCommand) -> Steps[None]:
        request = command.unsubscribe
        joined = self._known(request.consumer_id, request.request_id)
        if joined is None:
            return
        subscription = joined.subscription
        if len(subscription.consumers) > 1 and not request.force:
            self._fail(
                request.request_id,
                InvalidInput(f"subscription {subscription.name} has other consumers"),
            )
            return
        yield from self._session.host.putting_out(subscription, but=joined.consumer)
        if not self._is_there(joined):
            self._fail(request.request_id, _missing(joined.id))
            return
        del self._joined[request.consumer_id]
        self._leave(joined)
        try:
            yield from joined.topic.unsubscribing(subscription)
        except LithifyError as error:
            # It is still there, but without this consumer, whose client subscribes again.
            self._fail(request.request_id, error)
            self._session.send(replies.close_consumer(request.consumer_id))
            return
        self._session.send(replies.success(request.request_id))

    def close(self) -> None:
        """The connection is gone: its consumers get nothing more, and leave, some at a time."""
        self.pause()
        self._leave_some()

    def _leave_some(self) -> None:
        for consumer_id in list(itertools.islice(self._joined, LEAVING_A_STEP)):
            self._leave(self._joined.pop(consumer_id))
        if self._joined:
            self._session.host.soon(self._session.source, self._leave_some)

    def close_unauthorized(self, may_stay: Callable[[Namespace], bool]) -> None:
        """Close the consumers that may not go on; the client is told for each.

        From now on they get nothing; they are closed some at a time.
        """
        for joined in self._joined.values():
            if not joined.leaving and not may_stay(joined.topic.name.namespace):
                joined.leaving = joined.consumer.paused = True
                self._to_put_out.append(joined)
        self._put_out_some()

    def _put_out_some(self) -> None:
        for _ in range(min(LEAVING_A_STEP, len(self._to_put_out))):
            joined = self._to_put_out.popleft()
            if self._is_there(joined):
                self.put_out(joined.id)
        if self._to_put_out:
            self._session.host.soon(self._session.source, self._put_out_some)

    def pause(self) -> None:
        """Deliver nothing more to this connection."""
        for joined in self._joined.values():
            joined.consumer.paused = True

    def resume(self) -> None:
        """Go on."""
        for joined in self._joined.values():
            joined.consumer.paused = joined.leaving
            self._session.host.dispatch(joined.topic, joined.subscription)

    # --- messages ---------------------------------------------------------------------------

    def _flow(self, command: wire.BaseCommand) -> None:
        joined = self._joined.get(command.flow.consumer_id)
        if joined is not None:
            joined.consumer.grant(command.flow.messagePermits)
            self._session.host.dispatch(joined.topic, joined.subscription)

    def deliver(self, consumer_id: int, deliveries: Iterable[Delivery]) -> None:
        """Send entries to a consumer of this connection."""
        joined = self._joined[consumer_id]
        run: list[Delivery] = []
        for delivery in deliveries:
            if message_count(delivery.entry) > 1:
                joined.remember(delivery)
            if delivery.as_stored and len(delivery.entry.body) <= SMALL_BYTES_MAX:
                run.append(delivery)
                continue
            self._send_small(joined, run)
            run = []
            self._send_one(joined, delivery)
        self._send_small(joined, run)

    def _send_small(self, joined: _Joined, run: list[Delivery]) -> None:
        """Send small entries as they are stored: many are copied at once, behind their headers."""
        if len(run) < RUN_MIN:
            for delivery in run:
                self._send_one(joined, delivery)
            return
        entries = [delivery.entry for delivery in run]
        bodies = [entry.body for entry in entries]
        self._session.send(
            frames.messages(
                bodies,
                np.array([entry.position for entry in entries], dtype=np.int64),
                joined.id,
                joined.topic.name.partition,
            )
        )

    def _send_one(self, joined: _Joined, delivery: Delivery) -> None:
        entry, sent = delivery.entry, delivery.wire
        ledger, number = unpack(entry.position)
        bits, size = delivery.remaining, message_count(entry)
        body: Buffer = entry.body
        if sent is not None:
            body, bits, size = sent.body, sent.ack_set, sent.messages
        words = [] if bits is None else words_from_bits(bits, size)
        header = frames.message_header(
            joined.id,
            ledger,
            number,
            joined.topic.name.partition,
            delivery.redeliveries,
            words,
            len(body),
            None,
        )
        self._session.send(header)
        self._session.send(body)

    def set_active(self, consumer_id: int, *, active: bool) -> None:
        """Failover: this consumer gets the messages from now on, or no longer."""
        self._session.send(replies.active_consumer_change(consumer_id, active=active))

    def _ack(self, command: wire.BaseCommand) -> Steps[None] | None:
        request = command.ack
        joined = self._joined.get(request.consumer_id)
        if joined is None:
            return None
        if request.ack_type == wire.CommandAck.Cumulative and not joined.subscription.kind.single:
            # Several consumers hold entries of it: what one has done says nothing of the others.
            kind = joined.subscription.kind.name.lower()
            self._answer_ack(joined, request, f"a {kind} subscription takes no cumulative ACK")
            return None
        return self._acks(joined, request)

    def _acks(self, joined: _Joined, request: wire.CommandAck) -> Steps[None]:
        """Take the acknowledgements of a command in steps that cost about the same."""
        problem, cost = "", 0
        try:
            if len(request.message_id) > LONG_ACK:
                # To read the command has taken a turn.
                yield None
            returns_permits = _returns_permits(joined, request)
            for message_id in request.message_id:
                if returns_permits:
                    _give_permits_back(joined, message_id)
                cost += yield from self._ack_one(joined, message_id, request.ack_type)
                if cost >= STEP_COST:
                    cost = 0
                    yield None
        except LithifyError as error:
            problem = str(error)
        self._answer_ack(joined, request, problem)

    def _answer_ack(self, joined: _Joined, request: wire.CommandAck, problem: str) -> None:
        if request.HasField("request_id"):
            self._session.send(
                replies.ack_response(request.consumer_id, request.request_id, problem)
            )
        self._session.host.dispatch(joined.topic, joined.subscription)

    def _ack_one(
        self, joined: _Joined, message_id: wire.MessageIdData, ack_type: int
    ) -> Steps[int]:
        """Take one acknowledgement; what it cost, in units of about 10 µs."""
        position = position_of(message_id)
        topic, subscription = joined.topic, joined.subscription
        check = partial(self._check_there, joined)
        if position > topic.last_position:
            raise InvalidInput(f"position {position} is behind the last, {topic.last_position}")
        whole, part, cost = True, None, 1
        if message_id.ack_set and position >= 0:
            if len(message_id.ack_set) > ACK_SET_WORDS_MAX:
                raise InvalidInput(
                    f"ack set of {len(message_id.ack_set)} words, the limit is {ACK_SET_WORDS_MAX}"
                )
            bits = bits_from_words(message_id.ack_set)
            part = yield from self._part_of(joined, position, bits)
            whole = part is not None and not part.remaining
            # One whose size has to be looked up costs a read; a large batch is copied and written.
            cost = 2 if part is None else 2 + part.size // 4096
            if position not in joined.batches:
                cost += READ_COST
        if ack_type == wire.CommandAck.Cumulative:
            last = position if whole else position - 1
            yield from topic.acknowledging(subscription, AckedUpTo(max(last, -1)), check)
            joined.forget_up_to(last)
        if whole:
            if ack_type == wire.CommandAck.Individual and position >= 0:
                yield from topic.acknowledging(subscription, Acked(position), check)
                joined.batches.pop(position, None)
        elif part is not None:
            yield from topic.acknowledging(subscription, part, check)
        return cost

    @staticmethod
    def _part_of(joined: _Joined, position: int, bits: int) -> Steps[AckedBatch | None]:
        """What of a batch is acknowledged if the client has these left of it.

        None if nobody knows any more in which form it went out, and so which messages these are:
        they stay as they are, and come again when the consumer comes back.
        """
        size, sent = joined.batches.get(position, (0, None))
        if not size:
            if joined.subscription.compacted:
                return None
            found = yield from joined.topic.reader.entry_at(max(position, 0))
            size = 1 if found is None else message_count(found)
        everything = (1 << size) - 1
        if sent is None:
            return AckedBatch(position, bits & everything, size)
        left, masked = sent.left_of(bits), everything & ~sent.left_of(-1)
        return AckedBatch(position, left | masked if left else 0, size, masked)

    def _redeliver(self, command: wire.BaseCommand) -> Steps[None]:
        request = command.redeliverUnacknowledgedMessages
        joined = self._joined.get(request.consumer_id)
        if joined is None:
            return
        subscription, ids = joined.subscription, request.message_ids
        if not ids or subscription.kind.single:
            subscription.redeliver(joined.consumer, None)
        else:
            for start in range(0, len(ids), REDELIVERED_A_STEP):
                some = ids[start : start + REDELIVERED_A_STEP]
                subscription.redeliver(joined.consumer, [position_of(each) for each in some])
                yield None
                if not self._is_there(joined):
                    return
        self._session.host.dispatch(joined.topic, subscription)

    # --- positions --------------------------------------------------------------------------

    def _seek(self, command: wire.BaseCommand) -> Steps[None]:
        request = command.seek
        joined = self._known(request.consumer_id, request.request_id)
        if joined is None:
            return
        topic = joined.topic
        try:
            if request.HasField("message_publish_time"):
                position = yield from topic.reader.finding_time(
                    min(request.message_publish_time, LATEST),
                    compacted=joined.subscription.compacted,
                )
                self._check_there(joined)
            else:
                position = resolved(position_of(request.message_id), topic)
        except LithifyError as error:
            self._fail(request.request_id, error)
            return
        # The client must see CLOSE_CONSUMER before SUCCESS, or it drops what comes next.
        yield from self._session.host.putting_out(joined.subscription)
        try:
            yield from topic.seeking(joined.subscription, position)
        except LithifyError as error:
            self._fail(request.request_id, error)
            return
        self._session.send(replies.success(request.request_id))

    def _last_message_id(self, command: wire.BaseCommand) -> Steps[None]:
        request = command.getLastMessageId
        joined = self._known(request.consumer_id, request.request_id)
        if joined is None:
            return
        topic = joined.topic
        try:
            last = yield from topic.reader.finding_last_message_id(joined.consumer.through)
        except LithifyError as error:
            self._fail(request.request_id, error)
            return
        mark_delete = joined.subscription.cursor.mark_delete
        ledger, entry = unpack(mark_delete) if mark_delete >= 0 else (-1, -1)
        marked = MessageId(ledger, entry, -1, topic.name.partition)
        if last.entry >= 0:
            # Behind the last message it is moved over what does not exist or is not retained, and
            # the client would take that for a message which is not there.
            marked = min(marked, replace(last, batch_index=-1))
        self._session.send(replies.last_message_id(request.request_id, last, marked))

    def _stats(self, command: wire.BaseCommand) -> None:
        request = command.consumerStats
        reply = wire.BaseCommand(type=_Type.CONSUMER_STATS_RESPONSE)
        stats = reply.consumerStatsResponse
        stats.request_id = request.request_id
        joined = self._joined.get(request.consumer_id)
        if joined is None:
            stats.error_code = wire.ServerError.ConsumerNotFound
            stats.error_message = str(_missing(request.consumer_id))
        else:
            stats.consumerName = joined.consumer.name
            stats.availablePermits = max(joined.consumer.permits, 0)
            stats.unackedMessages = joined.consumer.unacked_messages
            stats.type = joined.subscription.kind.name.title()
        self._session.send(encode_command(reply))


def _missing(consumer_id: int) -> InvalidInput:
    return InvalidInput(f"consumer {consumer_id} is not one of this connection")


def _returns_permits(joined: _Joined, ack: wire.CommandAck) -> bool:
    """Could the client not open these? Of the permits that a batch has cost it returns only one.

    Only the Java client returns all, and only of a batch that it cannot decrypt.
    """
    undecrypted = ack.validation_error == wire.CommandAck.DecryptionError
    return ack.HasField("validation_error") and not (undecrypted and joined.consumer.client.is_java)


def _give_permits_back(joined: _Joined, message_id: wire.MessageIdData) -> None:
    size, sent = joined.batches.pop(position_of(message_id), (1, None))
    joined.consumer.grant((size if sent is None else sent.messages) - 1)
