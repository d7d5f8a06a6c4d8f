"""A session's consumers: SUBSCRIBE, FLOW, ACK, SEEK, REDELIVER and what else they send."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput, LithifyError
from lithify.positions import PACKED_ENTRY_BITS, pack, unpack
from lithify.pulsar import hot, replies
from lithify.pulsar import wire_pb2 as wire
from lithify.pulsar.errors import error_code
from lithify.pulsar.framing import encode_command
from lithify.pulsar.schemas import consumer_schema
from lithify.topics.cursor import bits_from_words, words_from_bits
from lithify.topics.cursor_changes import Acked, AckedBatch, AckedUpTo
from lithify.topics.message import MessageId
from lithify.topics.names import TopicName, check_client_name
from lithify.topics.subscription import Consumer, Delivery, Subscription, SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.pulsar.session import Session
    from lithify.topics.topic import Topic

__all__ = ["Consuming"]

_Type = wire.BaseCommand
_LATEST = 2**63 - 1
_SIZES_MAX = 1000


@dataclass(slots=True, eq=False)
class _Joined:
    """A consumer of this connection."""

    id: int
    topic: Topic
    subscription: Subscription
    consumer: Consumer
    sizes: dict[int, int] = field(default_factory=dict)
    """Messages of the batches delivered last: the client does not say in an acknowledgement."""


class Consuming:
    """The consumers of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._joined: dict[int, _Joined] = {}

    def handlers(self) -> dict[int, Callable[[wire.BaseCommand], None]]:
        """The commands that this takes."""
        return {
            _Type.SUBSCRIBE: self._subscribe,
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

    def _subscribe(self, command: wire.BaseCommand) -> None:
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
            create = host.topics.settings.auto_create and request.force_topic_creation
            topic = host.topics.get(TopicName.parse(request.topic), create=create)
            consumer_schema(host.topics, topic, request)
            subscription = topic.subscription(
                request.subscription,
                SubscriptionType(request.subType),
                durable=request.durable,
                start=_start_of(request, topic),
            )
            consumer = Consumer(
                name=name,
                priority=request.priority_level,
                slots=_slots_of(request),
            )
            was_active = subscription.active
            try:
                subscription.add(consumer, SubscriptionType(request.subType))
            except LithifyError:
                topic.leave(subscription, consumer)
                raise
        except LithifyError as error:
            self._fail(request.request_id, error)
            return
        joined = _Joined(request.consumer_id, topic, subscription, consumer)
        self._joined[request.consumer_id] = joined
        consumer.paused = self._session.paused
        host.consumer_joined(consumer, self, request.consumer_id)
        self._session.send(replies.success(request.request_id))
        if subscription.kind is SubscriptionType.FAILOVER:
            host.active_changed(subscription, was_active)

    def _fail(self, request_id: int, error: LithifyError) -> None:
        self._session.send(replies.error(request_id, error_code(error), str(error)))

    def _known(self, consumer_id: int, request_id: int) -> _Joined | None:
        joined = self._joined.get(consumer_id)
        if joined is None:
            missing = InvalidInput(f"consumer {consumer_id} is not one of this connection")
            self._fail(request_id, missing)
        return joined

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

    def _unsubscribe(self, command: wire.BaseCommand) -> None:
        request = command.unsubscribe
        joined = self._known(request.consumer_id, request.request_id)
        if joined is None:
            return
        if len(joined.subscription.consumers) > 1 and not request.force:
            self._fail(
                request.request_id,
                InvalidInput(f"subscription {joined.subscription.name} has other consumers"),
            )
            return
        try:
            joined.topic.unsubscribe(joined.subscription)
        except LithifyError as error:
            self._fail(request.request_id, error)
            return
        for consumer in list(joined.subscription.consumers):
            if consumer is not joined.consumer:
                self._session.host.consumer_put_out(consumer)
        del self._joined[request.consumer_id]
        self._leave(joined)
        self._session.send(replies.success(request.request_id))

    def close(self) -> None:
        """The connection is gone."""
        for joined in list(self._joined.values()):
            self._leave(joined)
        self._joined.clear()

    def let_go(self) -> None:
        """The client may not go on; it is told for each consumer."""
        for consumer_id in list(self._joined):
            self.put_out(consumer_id)

    def pause(self) -> None:
        """Deliver nothing more to this connection."""
        for joined in self._joined.values():
            joined.consumer.paused = True

    def resume(self) -> None:
        """Go on."""
        for joined in self._joined.values():
            joined.consumer.paused = False
            self._session.host.dispatch(joined.topic, joined.subscription)

    # --- messages ---------------------------------------------------------------------------

    def _flow(self, command: wire.BaseCommand) -> None:
        joined = self._joined.get(command.flow.consumer_id)
        if joined is not None:
            joined.consumer.permits += command.flow.messagePermits
            self._session.host.dispatch(joined.topic, joined.subscription)

    def deliver(self, consumer_id: int, delivery: Delivery) -> None:
        """Send an entry to a consumer of this connection."""
        entry = delivery.entry
        ledger, number = unpack(entry.position)
        words = []
        if delivery.remaining is not None:
            size = max(1, entry.tag)
            words = words_from_bits(delivery.remaining, size)
        joined = self._joined[consumer_id]
        if entry.tag > 1:
            joined.sizes[entry.position] = entry.tag
            if len(joined.sizes) > _SIZES_MAX:
                del joined.sizes[next(iter(joined.sizes))]
        header = hot.message_header(
            consumer_id,
            ledger,
            number,
            joined.topic.name.partition,
            delivery.redeliveries,
            words,
            len(entry.body),
            None,
        )
        self._session.send(header)
        self._session.send(entry.body)

    def is_active(self, consumer_id: int, *, active: bool) -> None:
        """Failover: this consumer gets the messages from now on, or no longer."""
        self._session.send(replies.active_consumer_change(consumer_id, active=active))

    def _ack(self, command: wire.BaseCommand) -> None:
        request = command.ack
        joined = self._joined.get(request.consumer_id)
        if joined is None:
            return
        problem = ""
        try:
            for message_id in request.message_id:
                self._ack_one(joined, message_id, request.ack_type)
        except LithifyError as error:
            problem = str(error)
        if request.HasField("request_id"):
            self._session.send(
                replies.ack_response(request.consumer_id, request.request_id, problem)
            )
        self._session.host.dispatch(joined.topic, joined.subscription)

    def _ack_one(self, joined: _Joined, message_id: wire.MessageIdData, ack_type: int) -> None:
        position = position_of(message_id)
        topic, subscription = joined.topic, joined.subscription
        if position > topic.last_position:
            raise InvalidInput(f"position {position} is behind the last, {topic.last_position}")
        size = remaining = 0
        if message_id.ack_set:
            size = joined.sizes.get(position) or _messages_at(topic, position)
            remaining = bits_from_words(message_id.ack_set) & (1 << size) - 1
        if ack_type == wire.CommandAck.Cumulative:
            last = position - 1 if remaining else position
            topic.acknowledge(subscription, AckedUpTo(max(last, -1)))
        if position < 0:
            return
        if remaining:
            topic.acknowledge(subscription, AckedBatch(position, remaining, size, 0))
        elif ack_type == wire.CommandAck.Individual:
            topic.acknowledge(subscription, Acked(position))

    def _redeliver(self, command: wire.BaseCommand) -> None:
        request = command.redeliverUnacknowledgedMessages
        joined = self._joined.get(request.consumer_id)
        if joined is None:
            return
        positions = [position_of(each) for each in request.message_ids]
        joined.subscription.redeliver(joined.consumer, positions or None)
        self._session.host.dispatch(joined.topic, joined.subscription)

    # --- positions --------------------------------------------------------------------------

    def _seek(self, command: wire.BaseCommand) -> None:
        request = command.seek
        joined = self._known(request.consumer_id, request.request_id)
        if joined is None:
            return
        topic = joined.topic
        try:
            if request.HasField("message_publish_time"):
                position = topic.find_time(min(request.message_publish_time, _LATEST))
            else:
                position = _resolved(position_of(request.message_id), topic)
        except LithifyError as error:
            self._fail(request.request_id, error)
            return
        # The client must see CLOSE_CONSUMER before SUCCESS, or it drops what comes next.
        for consumer in list(joined.subscription.consumers):
            self._session.host.consumer_put_out(consumer)
        try:
            topic.seek(joined.subscription, position)
        except LithifyError as error:
            self._fail(request.request_id, error)
            return
        self._session.send(replies.success(request.request_id))

    def _last_message_id(self, command: wire.BaseCommand) -> None:
        request = command.getLastMessageId
        joined = self._known(request.consumer_id, request.request_id)
        if joined is None:
            return
        topic = joined.topic
        mark_delete = joined.subscription.cursor.mark_delete
        ledger, entry = unpack(mark_delete) if mark_delete >= 0 else (-1, -1)
        marked = MessageId(ledger, entry, -1, topic.name.partition)
        self._session.send(
            replies.last_message_id(request.request_id, topic.last_message_id(), marked)
        )

    def _stats(self, command: wire.BaseCommand) -> None:
        request = command.consumerStats
        reply = wire.BaseCommand(type=_Type.CONSUMER_STATS_RESPONSE)
        stats = reply.consumerStatsResponse
        stats.request_id = request.request_id
        joined = self._joined.get(request.consumer_id)
        if joined is None:
            stats.error_code = wire.ServerError.ConsumerNotFound
            stats.error_message = f"consumer {request.consumer_id} is not one of this connection"
        else:
            stats.consumerName = joined.consumer.name
            stats.availablePermits = max(joined.consumer.permits, 0)
            stats.unackedMessages = joined.consumer.unacked_messages
            stats.type = joined.subscription.kind.name.title()
        self._session.send(encode_command(reply))


def position_of(message_id: wire.MessageIdData) -> int:
    """The position of an entry; -1 for "earliest" and for "before the first entry"."""
    ledger, entry = message_id.ledgerId, message_id.entryId
    if ledger >= _LATEST:
        return -1 if ledger == replies.UNSIGNED - 1 else _LATEST
    if entry >= _LATEST:
        return pack(ledger, 0) - 1
    # No ledger has so many entries, and a larger number would be one of the next ledger.
    return pack(ledger, min(entry, 2**PACKED_ENTRY_BITS - 1))


def _resolved(position: int, topic: Topic) -> int:
    """A place to begin at: what is yet to be written is not skipped."""
    return min(max(position, 0), topic.log.next_position)


def _messages_at(topic: Topic, position: int) -> int:
    """How many messages the entry there has; 1 if there is none."""
    with topic.log.snapshot("batch size") as snapshot:
        found = next(snapshot.read(max(position, 0), limit=1), None)
    return max(1, found.tag) if found is not None and found.position == position else 1


def _start_of(request: wire.CommandSubscribe, topic: Topic) -> int:
    """Where a new subscription begins."""
    if request.HasField("start_message_id"):
        position = _resolved(position_of(request.start_message_id), topic)
        if position < topic.log.next_position:
            return position
    if request.initialPosition == wire.CommandSubscribe.Earliest:
        return 0
    return topic.log.next_position


def _slots_of(request: wire.CommandSubscribe) -> list[tuple[int, int]]:
    if request.keySharedMeta.keySharedMode != wire.KeySharedMeta.STICKY:
        return []
    return [(each.start, each.end) for each in request.keySharedMeta.hashRanges]
