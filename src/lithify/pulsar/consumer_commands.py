"""The consumers of a session and their commands: SUBSCRIBE, FLOW, ACK, SEEK, REDELIVER and others.

Acknowledgements, redeliveries and disconnects of many consumers are split into steps of bounded
cost, so that one client cannot block the event loop.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import InvalidInput, LithifyError
from lithify.ownership import NotOwner
from lithify.positions import unpack
from lithify.pulsar.fast_path import frames
from lithify.pulsar.schema_commands import consumer_schema
from lithify.pulsar.seek_and_start_positions import (
    position_of,
    seek_position,
    slots_of,
    start_position,
)
from lithify.pulsar.wire import replies
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.error_codes import CommandRestarted, error_code
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.admission import check_consumer, check_subscription
from lithify.topics.definitions.topic_names import check_client_name
from lithify.topics.messages.entry_flags import BATCH_MESSAGES_MAX, message_count
from lithify.topics.messages.message import MessageId
from lithify.topics.subscriptions.consumer import SubscriptionRemoved
from lithify.topics.subscriptions.cursor import bits_from_words, words_from_bits
from lithify.topics.subscriptions.cursor_changes import Acked, AckedBatch, AckedUpTo
from lithify.topics.subscriptions.subscription import (
    Consumer,
    Delivery,
    Subscription,
    SubscriptionType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lithify.checksum import Buffer
    from lithify.pulsar.session_interfaces import CommandSession, Handler
    from lithify.topics.definitions.topic_names import Namespace
    from lithify.topics.disk_steps import Steps
    from lithify.topics.subscriptions.compacted_batch import WireBatch
    from lithify.topics.topic import Topic

__all__ = ["Consuming"]

_Type = wire.BaseCommand
STEP_COST = 20
"""Cost of the acknowledgements per turn, about 0.2 ms. Each is a write, which may take ten times as
long while the disk is busy. A source has several turns in a round."""
READ_COST = 10
LONG_ACK = 1000
"""Number of message ids from which an ACK ends the turn before it is processed."""
ACK_SET_WORDS_MAX = BATCH_MESSAGES_MAX // 64
REDELIVERED_A_STEP = 500
LEAVING_A_STEP = 20
"""Consumers that leave, or are disconnected, per turn."""
SMALL_BYTES_MAX = 2**13
RUN_MIN = 4
"""From this number of consecutive entries of up to `SMALL_BYTES_MAX`, copying them into one buffer
is faster than sending each."""
_SIZES_MAX = 1000
_SENT_MAX = 10_000
"""Delivered batches per consumer whose message count (`_SIZES_MAX`) or wire form (`_SENT_MAX`) is
kept."""


@dataclass(slots=True, eq=False)
class _Joined:
    """A consumer of this connection."""

    id: int
    topic: Topic
    subscription: Subscription
    consumer: Consumer
    leaving: bool = False
    """It has lost its permission and will be disconnected."""
    batches: dict[int, tuple[int, WireBatch | None]] = field(default_factory=dict)
    """The batches delivered last, by position: their message count, which an acknowledgement does
    not contain, and their wire form if it differs from the stored one."""

    def remember(self, delivery: Delivery) -> None:
        """Store a delivered batch; above the limit the oldest is dropped."""
        batches, entry = self.batches, delivery.entry
        batches.pop(entry.position, None)
        batches[entry.position] = message_count(entry), delivery.wire
        # The message count can be read from the log again, the wire form cannot.
        if len(batches) > (_SENT_MAX if self.subscription.compacted else _SIZES_MAX):
            del batches[next(iter(batches))]

    def forget_up_to(self, position: int) -> None:
        """Drop the batches up to `position`, which are acknowledged."""
        while self.batches and (first := next(iter(self.batches))) <= position:
            del self.batches[first]


class Consuming:
    """Handles the consumers of one session."""

    def __init__(self, session: CommandSession) -> None:
        self._session = session
        self.joined: dict[int, _Joined] = {}
        self._to_disconnect: deque[_Joined] = deque()

    def handlers(self) -> dict[int, Handler]:
        """The handler of each command type of this class."""
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
        known = self.joined.get(request.consumer_id)
        if known is not None:
            # The client repeats a request whose reply was late: it is the same consumer.
            self._session.send(replies.success(request.request_id))
            return
        try:
            name = request.consumer_name or host.new_name()
            check_client_name("consumer", name)
            check_client_name("subscription", request.subscription)
            host.limits.check_consumers(len(self.joined))
            topic = yield from self._session.topic(command)
            with self._session.using(topic):
                joined, was_active = yield from self._join(topic, command, name)
        except LithifyError as error:
            if isinstance(error, NotOwner):
                # With the error alone, the C++ client does not look up the topic again.
                self._session.send(replies.close_consumer(request.consumer_id))
            self._fail(request.request_id, error)
            return
        self.joined[request.consumer_id] = joined
        joined.consumer.paused = self._session.paused
        host.consumer_joined(joined.consumer, self, request.consumer_id)
        self._session.send(replies.success(request.request_id))
        if joined.subscription.kind is SubscriptionType.FAILOVER:
            host.active_changed(joined.subscription, was_active)

    def _join(
        self, topic: Topic, command: wire.BaseCommand, name: str
    ) -> Steps[tuple[_Joined, Consumer | None]]:
        """Add a consumer to its subscription; also returns the previous active consumer."""
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
            self._undo_join(topic, subscription, consumer)
            raise CommandRestarted from error
        except BaseException:
            # Also GeneratorExit, if the client has disconnected.
            self._undo_join(topic, subscription, consumer)
            raise
        return _Joined(request.consumer_id, topic, subscription, consumer), was_active

    def _undo_join(self, topic: Topic, subscription: Subscription, consumer: Consumer) -> None:
        """Remove a consumer that failed to join; another one may become active."""
        host, was_active = self._session.host, subscription.active
        topic.leave(subscription, consumer)
        if subscription.active is not None and subscription.active is not was_active:
            host.active_changed(subscription, was_active)
            host.dispatch(topic, subscription)

    def _subscription(
        self, topic: Topic, request: wire.CommandSubscribe, check_unchanged: Callable[[], None]
    ) -> Steps[Subscription]:
        """Open or create the subscription of a SUBSCRIBE command, if allowed."""
        name, topics = request.subscription, self._session.host.topics

        def check() -> None:
            check_unchanged()
            check_subscription(topic, name)
            check_consumer(topic, name)
            topic.check_readable(name)

        check()
        yield from consumer_schema(topics, topic, request)
        start = yield from start_position(request, topic, topics.now_ms())
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
        joined = self.joined.get(consumer_id)
        if joined is None:
            self._fail(request_id, _missing(consumer_id))
        return joined

    def _is_joined(self, joined: _Joined) -> bool:
        """Is it still joined? A consumer may be disconnected while its command waits."""
        return self.joined.get(joined.id) is joined

    def _check_joined(self, joined: _Joined) -> None:
        if not self._is_joined(joined):
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

    def disconnect_client(self, consumer_id: int) -> None:
        """Disconnect a consumer; its client subscribes again."""
        joined = self.joined.pop(consumer_id, None)
        if joined is not None:
            self._leave(joined, keep=True)
            self._session.host.forget_later(joined.topic, joined.subscription)
            self._session.send(replies.close_consumer(consumer_id))

    def _close_consumer(self, command: wire.BaseCommand) -> None:
        request = command.close_consumer
        joined = self.joined.pop(request.consumer_id, None)
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
        yield from self._session.host.disconnecting(subscription, but=joined.consumer)
        if not self._is_joined(joined):
            self._fail(request.request_id, _missing(joined.id))
            return
        del self.joined[request.consumer_id]
        self._leave(joined)
        try:
            yield from joined.topic.unsubscribing(subscription)
        except LithifyError as error:
            # The subscription still exists. This consumer has left it; its client subscribes again.
            self._fail(request.request_id, error)
            self._session.send(replies.close_consumer(request.consumer_id))
            return
        self._session.send(replies.success(request.request_id))

    def close(self) -> None:
        """The connection is closed: stop delivery at once; the consumers leave in steps."""
        self.pause()
        self._leave_some()

    def _leave_some(self) -> None:
        for consumer_id in list(itertools.islice(self.joined, LEAVING_A_STEP)):
            self._leave(self.joined.pop(consumer_id))
        if self.joined:
            self._session.host.soon(self._session.source, self._leave_some)

    def close_unauthorized(self, may_stay: Callable[[Namespace], bool]) -> None:
        """Close the consumers without permission, and notify the client of each.

        Delivery to them stops at once; they are closed in steps.
        """
        for joined in self.joined.values():
            if not joined.leaving and not may_stay(joined.topic.name.namespace):
                joined.leaving = joined.consumer.paused = True
                self._to_disconnect.append(joined)
        self._disconnect_some()

    def _disconnect_some(self) -> None:
        for _ in range(min(LEAVING_A_STEP, len(self._to_disconnect))):
            joined = self._to_disconnect.popleft()
            if self._is_joined(joined):
                self.disconnect_client(joined.id)
        if self._to_disconnect:
            self._session.host.soon(self._session.source, self._disconnect_some)

    def pause(self) -> None:
        """Stop delivery to this connection."""
        for joined in self.joined.values():
            joined.consumer.paused = True

    def resume(self) -> None:
        """Resume delivery to this connection."""
        for joined in self.joined.values():
            joined.consumer.paused = joined.leaving
            self._session.host.dispatch(joined.topic, joined.subscription)

    # --- messages ---------------------------------------------------------------------------

    def _flow(self, command: wire.BaseCommand) -> None:
        joined = self.joined.get(command.flow.consumer_id)
        if joined is not None:
            joined.consumer.grant(command.flow.messagePermits)
            self._session.host.dispatch(joined.topic, joined.subscription)

    def deliver(self, consumer_id: int, deliveries: Iterable[Delivery]) -> None:
        """Send entries to a consumer of this connection."""
        joined = self.joined[consumer_id]
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
        """Send small entries in their stored form, copied with their headers into one buffer."""
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
        """Notify a consumer of a failover subscription whether it is the active one."""
        self._session.send(replies.active_consumer_change(consumer_id, active=active))

    def _ack(self, command: wire.BaseCommand) -> Steps[None] | None:
        request = command.ack
        joined = self.joined.get(request.consumer_id)
        if joined is None:
            return None
        if request.ack_type == wire.CommandAck.Cumulative and not joined.subscription.kind.single:
            # Several consumers hold entries: one of them cannot acknowledge those of the others.
            kind = joined.subscription.kind.name.lower()
            self._answer_ack(joined, request, f"a {kind} subscription accepts no cumulative ACK")
            return None
        return self._acks(joined, request)

    def _acks(self, joined: _Joined, request: wire.CommandAck) -> Steps[None]:
        """Apply the acknowledgements of a command, in steps of about the same cost."""
        problem, cost = "", 0
        try:
            if len(request.message_id) > LONG_ACK:
                # Parsing the command has used up this turn.
                yield None
            returns_permits = _returns_permits(joined, request)
            for message_id in request.message_id:
                if returns_permits:
                    _return_permits(joined, message_id)
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
        """Apply one acknowledgement; returns its cost, in units of about 10 µs."""
        position = position_of(message_id)
        topic, subscription = joined.topic, joined.subscription
        check = partial(self._check_joined, joined)
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
            # An unknown batch size costs a read; the bits of a large batch are copied and written.
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
        """The acknowledged part of a batch, from the bits of its remaining messages.

        None if the wire form of the batch is not known, so that the bits cannot be mapped to its
        messages. They stay unacknowledged, and are delivered again when the consumer reconnects.
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
        joined = self.joined.get(request.consumer_id)
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
                if not self._is_joined(joined):
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
            position = yield from seek_position(
                request, topic, compacted=joined.subscription.compacted
            )
            self._check_joined(joined)
        except LithifyError as error:
            self._fail(request.request_id, error)
            return
        # CLOSE_CONSUMER must arrive before SUCCESS: otherwise the client drops the next messages.
        yield from self._session.host.disconnecting(joined.subscription)
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
            last = yield from topic.reader.end.finding(joined.consumer.through)
        except LithifyError as error:
            self._fail(request.request_id, error)
            return
        mark_delete = joined.subscription.cursor.mark_delete
        ledger, entry = unpack(mark_delete) if mark_delete >= 0 else (-1, -1)
        marked = MessageId(ledger, entry, -1, topic.name.partition)
        if last.entry >= 0:
            # The cursor may be past the last message, over positions without a retained message.
            # The client would take such a position for a message.
            marked = min(marked, replace(last, batch_index=-1))
        self._session.send(replies.last_message_id(request.request_id, last, marked))

    def _stats(self, command: wire.BaseCommand) -> None:
        request = command.consumerStats
        reply = wire.BaseCommand(type=_Type.CONSUMER_STATS_RESPONSE)
        stats = reply.consumerStatsResponse
        stats.request_id = request.request_id
        joined = self.joined.get(request.consumer_id)
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
    """Does the ACK report messages that the client could not decode?

    For such a batch a client returns only one of the permits that the batch has cost. Only the Java
    client returns all of them, and only for a batch that it cannot decrypt.
    """
    undecrypted = ack.validation_error == wire.CommandAck.DecryptionError
    return ack.HasField("validation_error") and not (undecrypted and joined.consumer.client.is_java)


def _return_permits(joined: _Joined, message_id: wire.MessageIdData) -> None:
    size, sent = joined.batches.pop(position_of(message_id), (1, None))
    joined.consumer.grant((size if sent is None else sent.messages) - 1)
