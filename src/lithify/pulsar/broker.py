"""The broker: the state that all sessions of a node share, in one event loop.

It maps each producer and consumer to its session, wakes subscriptions when they have messages to
deliver, and sends replies in the order of the appends. It does no I/O: a connection passes received
bytes to the sessions, one task per topic awaits the appends, and threads do all other disk work
(`disk_threads.py`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.errors import LithifyError, LogClosed, ReadFailed
from lithify.logger import get_logger
from lithify.name_locks import Claimed
from lithify.pulsar.connection_limits import ConnectionLimits
from lithify.pulsar.disk_threads import Owner, WorkThreads
from lithify.pulsar.fair_turns import Rounds
from lithify.pulsar.session import TURN_COST, Session
from lithify.pulsar.wall_clock_timers import Alarms
from lithify.pulsar.write_retries import WriteRetries
from lithify.topics.disk_steps import DiskCall

if TYPE_CHECKING:
    from lithify.checksum import Buffer
    from lithify.log.group_commit import Pending
    from lithify.pulsar.disk_threads import Ended
    from lithify.pulsar.session_interfaces import (
        SessionConsumers,
        SessionPermissions,
        SessionProducers,
    )
    from lithify.topics.definitions.topic_names import TopicName
    from lithify.topics.disk_steps import Steps
    from lithify.topics.permissions import Permissions
    from lithify.topics.producers.producers import Producer
    from lithify.topics.subscriptions.subscription import Consumer, Delivery, Subscription
    from lithify.topics.topic import Topic
    from lithify.topics.topics import Topics

__all__ = ["DISCONNECTS_PER_STEP", "MESSAGE_BYTES_MAX", "Broker"]

MESSAGE_BYTES_MAX = 5 * 2**20
RETURN_SECONDS_MAX = 60
"""Time that a disconnected reader has to reconnect, for example after a seek, before the broker
deletes its subscription."""

REVIEWED_MAX = 100
"""Sessions whose permissions are reviewed per iteration of the event loop."""
DISCONNECTS_PER_STEP = 20
"""Consumers of a subscription, or producers of a topic, to disconnect per turn."""
READ_RETRY_MS = 1000
"""Delay before a read is retried that could not open its file."""

log = get_logger("lithify.pulsar")

T = TypeVar("T")
_consumer_of = attrgetter("consumer")

_Then = Callable[["LithifyError | None"], "Steps[None] | None"]
_Answer = tuple["Pending | None", _Then]


class Broker:
    """Connects sessions with topics. Not thread-safe: all calls are made in one event loop."""

    def __init__(
        self,
        topics: Topics,
        *,
        name: str,
        version: str,
        access: Permissions | None = None,
    ) -> None:
        self.topics = topics
        self.access = access
        self.server_version = version
        self.max_message_bytes = MESSAGE_BYTES_MAX
        self.limits = ConnectionLimits()
        self.rounds = Rounds()
        self.service_url = ""
        self.service_url_tls = ""
        self._name = name
        self._numbers = itertools.count(1)
        self.producers: dict[Producer, tuple[SessionProducers, int]] = {}
        self.consumers: dict[Consumer, tuple[SessionConsumers, int]] = {}
        self._answers: dict[Topic, deque[_Answer]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._threads = WorkThreads()
        self._due: dict[Topic, set[Subscription]] = {}
        self._reading: set[Subscription] = set()
        """Subscriptions with a dispatch in progress, which may wait for a read."""
        self._cost = 0
        """Cost of the deliveries in this turn, see `TURN_COST`."""
        self.alarms = Alarms(topics.clock)
        self.gates: set[SessionPermissions] = set()
        self._to_review: deque[SessionPermissions] = deque()
        self._permissions = _permissions_of(topics)
        self._loop: asyncio.AbstractEventLoop | None = None
        topics.definitions.watchers.append(self._definitions_changed)
        self._forgetting: dict[Subscription, asyncio.TimerHandle] = {}
        self._write_retries = WriteRetries(topics.why_not_writable)
        self._arrivals: dict[TopicName, asyncio.Future[None]] = {}
        self.ending = False
        """The node is shutting down: HTTP requests that follow a topic must end."""

    def session(
        self, send: Callable[[Buffer], None], wake: Callable[[], None] | None = None
    ) -> Session:
        """Create the session of a new connection; see `Session` for `wake`."""
        return Session(self, send, wake)

    def new_name(self) -> str:
        """Return a unique name for a producer or consumer that has none."""
        return f"{self._name}-{next(self._numbers)}"

    # --- replies in order -------------------------------------------------------------------

    def when_durable(self, topic: Topic, pending: Pending, then: _Then) -> None:
        """Call `then` once an append is durable or has failed. Keeps the order of these calls.

        The steps that `then` returns run to their end before the next callback of the topic.
        """
        self._enqueue(topic, (pending, then))

    def in_order(self, topic: Topic, then: Callable[[], Steps[None] | None]) -> None:
        """Call `then` after all callbacks that were added to this topic before it."""
        self._enqueue(topic, (None, lambda _: then()))

    def _enqueue(self, topic: Topic, answer: _Answer) -> None:
        waiting = self._answers.get(topic)
        if waiting is not None:
            waiting.append(answer)
            return
        pending, then = answer
        steps: Steps[None] | None = None
        if pending is not None and pending.done():
            # No need to wait: the append is durable, and no earlier reply is pending.
            steps = self._call(topic, then, _problem_of(pending))
            if steps is None:
                return
        self._answers[topic] = deque([answer] if steps is None else ())
        task = asyncio.get_running_loop().create_task(self._answer(topic, steps))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, topic: Topic, steps: Steps[None] | None) -> None:
        """Send the pending replies of a topic, after the remaining `steps` of an earlier one."""
        await self._end(topic, steps)
        waiting = self._answers[topic]
        while waiting:
            pending, then = waiting.popleft()
            problem: LithifyError | None = None
            if pending is not None:
                try:
                    await pending
                except LithifyError as error:
                    problem = error
            await self._end(topic, self._call(topic, then, problem))
        del self._answers[topic]

    def _call(self, topic: Topic, then: _Then, problem: LithifyError | None) -> Steps[None] | None:
        try:
            return then(problem)
        except Exception:
            # A failed callback must not block the replies behind it.
            log.exception("reply failed", topic=str(topic.name))
            return None

    async def _end(self, topic: Topic, steps: Steps[None] | None) -> None:
        if steps is None:
            return
        try:
            await self._threads.run(steps)
        except Exception:
            log.exception("reply failed", topic=str(topic.name))

    # --- disk operations --------------------------------------------------------------------

    def when_writable(self, topic: Topic, reason: str, then: Callable[[], None]) -> None:
        """Call `then` once a topic's directory accepts writes again; see `WriteRetries`."""
        self._write_retries.wait(topic, reason, then)

    def is_busy(self, on: object) -> bool:
        """Does a thread run a call on this object?"""
        return self._threads.is_busy(on)

    def wait_for(
        self,
        steps: Steps[T],
        yielded: DiskCall | None,
        ended: Ended,
        is_alive: Callable[[], bool],
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """Continue an operation from its step `yielded`; see `disk_threads.py`."""
        self._threads.wait_for(steps, yielded, ended, Owner(is_alive, soon))

    async def run(self, steps: Steps[T]) -> T:
        """Run an operation and return its result."""
        return await self._threads.run(steps)

    def opening(self, name: TopicName, *, create: bool = False) -> Steps[None]:
        """Open a topic if it is not open. One thread opens it for all concurrent callers."""

        def find() -> Callable[[], object] | None:
            if self.topics.opened_topic(name) is not None:
                return None
            return partial(self.topics.get, name, create=create)

        self.make_room()
        yield DiskCall(name, find)

    async def topic(self, name: TopicName, *, create: bool = False) -> Topic:
        """Return a topic; open it first if necessary."""
        while (found := self.topics.opened_topic(name)) is None:
            await self.run(self.opening(name, create=create))
        return found

    async def call(self, name: TopicName, call: Callable[[], T]) -> T:
        """Make a call that claims a topic's name, after the pending calls that open the topic."""

        def steps() -> Steps[T]:
            result: T = yield DiskCall(name, lambda: call)
            return result

        return await self.run(steps())

    async def complete(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` to completion even if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        await asyncio.shield(task)

    async def release(self, call: Callable[[], None]) -> None:
        """Close or delete topics, in a thread of the release pool; see `disk_threads.py`."""
        await self._threads.release(call)

    def soon(self, source: str, then: Callable[[], None]) -> None:
        """Call `then` in the next turn of `source`; see `fair_turns.py`."""
        self.rounds.enqueue(source, then)

    @property
    def is_dispatching(self) -> bool:
        """Is a delivery due, or does one read?"""
        return bool(self._due or self._reading)

    async def settled(self) -> None:
        """Wait until no thread is active and no reply is pending; called before topics close."""
        while self._answering or self._threads.active:
            await self._threads.settled()
            if self._answering:
                await asyncio.wait(set(self._answering))

    # --- idle topics ------------------------------------------------------------------------

    def make_room(self) -> None:
        """Begin to close idle topics if the limit of open topics is reached."""
        topics = self.topics
        if topics.open_max is None or topics.has_room():
            return
        close = self.release_idle(0, max(1, topics.open_max // 20), backlogs=True)
        task = asyncio.get_running_loop().create_task(self._close(close))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def release_idle(
        self, idle_s: float, count: int, *, backlogs: bool = False
    ) -> Callable[[], None]:
        """Unregister up to `count` topics with an idle time of `idle_s`; the result closes them.

        Topics with a backlog are included only if `backlogs` is set.
        """
        closing = ExitStack()
        for topic in self.topics.idle(idle_s, count, backlogs=backlogs):
            if topic.name not in self._arrivals and not (
                topic in self._answers or topic in self._due or any(map(self.is_busy, topic.lanes))
            ):
                # A topic that a thread has claimed is not idle.
                with suppress(Claimed):
                    closing.callback(self.topics.unloading([topic.name], wait=False))
        return closing.close

    async def _close(self, close: Callable[[], None]) -> None:
        try:
            await self.release(close)
        except LithifyError as error:
            log.warning("closing an idle topic failed", reason=str(error))

    # --- delivery ---------------------------------------------------------------------------

    def dispatch(self, topic: Topic, subscription: Subscription | None = None) -> None:
        """Schedule a delivery for the next loop iteration. Repeated calls are merged."""
        due = self._due.get(topic)
        if due is None:
            due = self._due[topic] = set()
            asyncio.get_running_loop().call_soon(self._dispatch, topic)
        if subscription is None:
            due.update(topic.subscriptions.values())
            self.notify_followers(topic.name)
        else:
            due.add(subscription)

    def _dispatch(self, topic: Topic) -> None:
        """Deliver to the due subscriptions of a topic for one turn, and schedule the rest."""
        due = self._due.pop(topic)
        self._cost = 0
        while due and self._cost < TURN_COST:
            subscription = due.pop()
            # A subscription with a read in progress is dispatched again after the read.
            if subscription not in self._reading:
                self._reading.add(subscription)
                ended = partial(self._dispatched, topic, subscription)
                self._threads.carry_out(topic.dispatching(subscription), ended)
        for subscription in due:
            self.dispatch(topic, subscription)

    def _dispatched(
        self,
        topic: Topic,
        subscription: Subscription,
        deliveries: list[Delivery],
        error: Exception | None,
    ) -> None:
        """Send the deliveries of a subscription, then schedule its next dispatch."""
        self._reading.discard(subscription)
        self._cost += 4
        if error is None:
            try:
                self._send(deliveries)
            except Exception as problem:  # noqa: BLE001  (other subscriptions continue)
                error = problem
        if error is not None:
            self._cannot_deliver(topic, subscription, error)
            return
        self._cost += len(deliveries)
        if deliveries or subscription.unfinished:
            subscription.read_failure = None
            self.dispatch(topic, subscription)
        elif subscription.due_ms is not None and subscription.consumers:
            self._wake_at(subscription.due_ms, topic, subscription)
        else:
            self.alarms.cancel(subscription)

    def _send(self, deliveries: list[Delivery]) -> None:
        for consumer, theirs in itertools.groupby(deliveries, _consumer_of):
            consuming, consumer_id = self.consumers[consumer]
            consuming.deliver(consumer_id, theirs)

    def _cannot_deliver(self, topic: Topic, subscription: Subscription, error: Exception) -> None:
        if isinstance(error, LithifyError):
            self._cannot_read(topic, subscription, error)
        elif isinstance(error, OSError):
            # Usually the limit of open files: retry later.
            if topic.cannot_read(subscription, ReadFailed(topic.log.directory, 0, error)):
                log.warning("dispatch waits", topic=str(topic.name), reason=str(error))
            self._wake_at(self.topics.now_ms() + READ_RETRY_MS, topic, subscription)
        else:
            log.error(
                "dispatch failed",
                topic=str(topic.name),
                subscription=subscription.name,
                exc_info=error,
            )

    def _wake_at(self, due_ms: int, topic: Topic, subscription: Subscription) -> None:
        again = partial(self.dispatch, topic, subscription)
        self.alarms.set(subscription, due_ms, again)

    def _cannot_read(self, topic: Topic, subscription: Subscription, error: LithifyError) -> None:
        """An entry is damaged: disconnect the consumers and refuse them with the reason.

        Their clients subscribe again, receive the reason (`Topic.check_readable`), and back off.
        Statistics and health show the reason. It is logged once.
        """
        if not isinstance(error, LogClosed):
            self.topics.damage.record(error)
            if topic.cannot_read(subscription, error):
                log.error(
                    "a subscription cannot read further",
                    topic=str(topic.name),
                    subscription=subscription.name,
                    reason=str(error),
                )
        for consumer in list(subscription.consumers):
            self.disconnect_consumer(consumer)

    def next_arrival(self, name: TopicName) -> asyncio.Future[None]:
        """A future shared by all followers of a topic.

        It is done after the next append, when the topic closes, or when permissions change.
        """
        found = self._arrivals.get(name)
        if found is None:
            self._loop = asyncio.get_running_loop()
            found = self._arrivals[name] = self._loop.create_future()
        return found

    def notify_followers(self, name: TopicName) -> None:
        """Wake the HTTP requests that follow a topic."""
        found = self._arrivals.pop(name, None) if self._arrivals else None
        if found is not None:
            found.set_result(None)

    # --- review of permissions --------------------------------------------------------------

    def gate_opened(self, gate: SessionPermissions) -> None:
        """The client is authenticated: review its session when permissions change."""
        self.gates.add(gate)
        self._loop = asyncio.get_running_loop()

    def gate_closed(self, gate: SessionPermissions) -> None:
        """The client is not authenticated or has disconnected."""
        self.gates.discard(gate)
        self.alarms.cancel(gate)

    def at_time(self, gate: SessionPermissions, due_ms: int | None) -> None:
        """Let the gate check the wall clock at `due_ms`, and not before; None cancels."""
        if due_ms is None:
            self.alarms.cancel(gate)
        else:
            self.alarms.set(gate, due_ms, gate.check_clock)

    def after(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` after a delay; the returned function cancels it."""
        return asyncio.get_running_loop().call_later(seconds, call).cancel

    def _definitions_changed(self) -> None:
        """If permissions may have changed, review all open gates. Called in any thread."""
        permissions = _permissions_of(self.topics)
        if all(map(is_, permissions, self._permissions)):
            return
        self._permissions = permissions
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin_review)

    def _begin_review(self) -> None:
        in_progress = bool(self._to_review)
        self._to_review = deque(self.gates)
        for name in list(self._arrivals):
            self.notify_followers(name)
        if not in_progress:
            self._review()

    def _review(self) -> None:
        for _ in range(min(REVIEWED_MAX, len(self._to_review))):
            gate = self._to_review.popleft()
            if gate in self.gates:
                gate.review()
        if self._to_review:
            asyncio.get_running_loop().call_soon(self._review)

    def end(self) -> None:
        """The node stops: end pending write retries and wake all followers."""
        self.ending = True
        self._write_retries.end()
        for name in list(self._arrivals):
            self.notify_followers(name)

    # --- sessions of producers and consumers ------------------------------------------------

    def producer_joined(self, producer: Producer, of: SessionProducers, producer_id: int) -> None:
        """Register a producer with its session."""
        self.producers[producer] = of, producer_id

    def producer_left(self, producer: Producer) -> None:
        """Unregister a producer."""
        self.producers.pop(producer, None)

    def producer_ready(self, producer: Producer) -> None:
        """A waiting producer has become the exclusive producer of its topic."""
        of, producer_id = self.producers[producer]
        of.report_ready(producer_id)

    def disconnect_producer(self, producer: Producer) -> None:
        """Disconnect a producer that another one has replaced."""
        found = self.producers.pop(producer, None)
        if found is not None:
            found[0].disconnect_client(found[1])

    def consumer_joined(self, consumer: Consumer, of: SessionConsumers, consumer_id: int) -> None:
        """Register a consumer with its session."""
        self.consumers[consumer] = of, consumer_id

    def consumer_left(self, consumer: Consumer) -> None:
        """Unregister a consumer."""
        self.consumers.pop(consumer, None)

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Disconnect a consumer whose subscription was moved or removed."""
        found = self.consumers.get(consumer)
        if found is not None:
            found[0].disconnect_client(found[1])

    def disconnecting(self, subscription: Subscription, but: Consumer | None = None) -> Steps[None]:
        """Disconnect all consumers of a subscription except `but`."""
        for number, consumer in enumerate(list(subscription.consumers), 1):
            if consumer is not but:
                self.disconnect_consumer(consumer)
            if not number % DISCONNECTS_PER_STEP:
                yield None
        # Consumers that have reconnected in the meantime. They are few: to reconnect takes a client
        # longer than this loop.
        for consumer in list(subscription.consumers):
            if consumer is not but:
                self.disconnect_consumer(consumer)

    def forget_later(self, topic: Topic, subscription: Subscription) -> None:
        """Delete a reader's subscription if it does not reconnect in `RETURN_SECONDS_MAX`."""
        if subscription.durable:
            return

        def forget() -> None:
            del self._forgetting[subscription]
            topic.forget_unused(subscription)

        known = self._forgetting.pop(subscription, None)
        if known is not None:
            known.cancel()
        loop = asyncio.get_running_loop()
        self._forgetting[subscription] = loop.call_later(RETURN_SECONDS_MAX, forget)

    def active_changed(self, subscription: Subscription, before: Consumer | None) -> None:
        """Notify the consumers of a failover subscription which of them is active.

        Only those whose state has changed, and the last one, which may have just joined: a
        subscription may have thousands of standby consumers.
        """
        notified = set(islice(reversed(subscription.consumers), 1))
        if subscription.active is not before:
            notified |= {each for each in (before, subscription.active) if each is not None}
        for consumer in notified:
            found = self.consumers.get(consumer)
            if found is not None:
                of, consumer_id = found
                of.set_active(consumer_id, active=consumer is subscription.active)


def _permissions_of(topics: Topics) -> tuple[object, object]:
    """The objects with all permissions. They are replaced, not modified, by any change."""
    current = topics.definitions.current
    return current.tenants, current.namespaces


def _problem_of(pending: Pending) -> LithifyError | None:
    """The error of a finished append; None if it succeeded."""
    try:
        pending.result()
    except LithifyError as error:
        return error
    return None
