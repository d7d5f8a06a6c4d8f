"""The interfaces between the broker, a session, and the handlers of its commands.

The broker implements `Host`, a session `CommandSession`. The handlers of commands know a session
only by this interface, and the broker knows the handlers by `SessionProducers`, `SessionConsumers`
and `SessionPermissions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from lithify.checksum import Buffer
    from lithify.errors import LithifyError
    from lithify.log.group_commit import Pending
    from lithify.pulsar.connection_limits import ConnectionLimits
    from lithify.pulsar.disk_threads import Ended
    from lithify.pulsar.wire import wire_pb2 as wire
    from lithify.topics.client_info import ClientInfo
    from lithify.topics.definitions.topic_names import Namespace, TopicName
    from lithify.topics.disk_steps import DiskCall, Steps
    from lithify.topics.permissions import Action, Permissions
    from lithify.topics.producers.producers import Producer
    from lithify.topics.subscriptions.subscription import Consumer, Delivery, Subscription
    from lithify.topics.topic import Topic
    from lithify.topics.topics import Topics

    Handler = Callable[[wire.BaseCommand], Steps[None] | None]
    """Executes a command; returns its remaining steps, if any."""

__all__ = [
    "CommandSession",
    "Host",
    "SessionConsumers",
    "SessionPermissions",
    "SessionProducers",
]


class SessionProducers(Protocol):
    """The producers of a session."""

    def report_ready(self, producer_id: int) -> None:
        """Notify the client that a waiting producer is the exclusive one."""

    def disconnect_client(self, producer_id: int) -> None:
        """Disconnect a producer."""


class SessionConsumers(Protocol):
    """The consumers of a session."""

    def deliver(self, consumer_id: int, deliveries: Iterable[Delivery]) -> None:
        """Send entries to a consumer."""

    def set_active(self, consumer_id: int, *, active: bool) -> None:
        """Notify a consumer whether it is the active one."""

    def disconnect_client(self, consumer_id: int) -> None:
        """Disconnect a consumer."""


class SessionPermissions(Protocol):
    """The authentication and authorization of a session."""

    def __hash__(self) -> int:
        """A key of the alarms of the broker."""

    def check_clock(self) -> None:
        """Check the wall clock."""

    def review(self) -> None:
        """Permissions have changed."""


class Host(Protocol):
    """The interface of the broker that a session uses."""

    topics: Topics
    access: Permissions | None
    server_version: str
    max_message_bytes: int
    service_url: str
    service_url_tls: str
    limits: ConnectionLimits

    def is_busy(self, on: object) -> bool:
        """Does a thread run a call on this object?"""

    def wait_for(
        self,
        steps: Steps[None],
        yielded: DiskCall | None,
        ended: Ended,
        is_alive: Callable[[], bool],
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """Continue an operation from its step `yielded`; see `disk_threads.py`."""

    def when_durable(
        self,
        topic: Topic,
        pending: Pending,
        then: Callable[[LithifyError | None], Steps[None] | None],
    ) -> None:
        """Call `then` once an append is durable or has failed. Keeps the order of these calls.

        The steps that `then` returns run to their end before the next callback of the topic.
        """

    def in_order(self, topic: Topic, then: Callable[[], Steps[None] | None]) -> None:
        """Call `then` after all callbacks that were added to this topic before it."""

    def opening(self, name: TopicName, *, create: bool = False) -> Steps[None]:
        """Open a topic if it is not open."""

    def when_writable(self, topic: Topic, reason: str, then: Callable[[], None]) -> None:
        """Call `then` once a topic's directory accepts writes again."""

    def soon(self, source: str, then: Callable[[], None]) -> None:
        """Call `then` in the next turn of `source`, after the callbacks that are ready now."""

    def dispatch(self, topic: Topic, subscription: Subscription | None = None) -> None:
        """Schedule a delivery to one subscription, or to all subscriptions of a topic."""

    def new_name(self) -> str:
        """Return a unique name for a producer or consumer that has none."""

    def producer_joined(self, producer: Producer, of: SessionProducers, producer_id: int) -> None:
        """Register a producer with its session."""

    def producer_left(self, producer: Producer) -> None:
        """Unregister a producer."""

    def producer_ready(self, producer: Producer) -> None:
        """A waiting producer has become the exclusive producer of its topic."""

    def disconnect_producer(self, producer: Producer) -> None:
        """Disconnect a producer that another one has replaced."""

    def consumer_joined(self, consumer: Consumer, of: SessionConsumers, consumer_id: int) -> None:
        """Register a consumer with its session."""

    def consumer_left(self, consumer: Consumer) -> None:
        """Unregister a consumer."""

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Disconnect a consumer whose subscription was moved or removed."""

    def disconnecting(self, subscription: Subscription, but: Consumer | None = None) -> Steps[None]:
        """Disconnect all consumers of a subscription except `but`."""

    def forget_later(self, topic: Topic, subscription: Subscription) -> None:
        """Delete a reader's subscription if it does not reconnect in `RETURN_SECONDS_MAX`."""

    def active_changed(self, subscription: Subscription, before: Consumer | None) -> None:
        """Notify the consumers of a failover subscription which of them is active."""

    def gate_opened(self, gate: SessionPermissions) -> None:
        """The client is authenticated: review its session when permissions change."""

    def gate_closed(self, gate: SessionPermissions) -> None:
        """The client is not authenticated or has disconnected."""

    def at_time(self, gate: SessionPermissions, due_ms: int | None) -> None:
        """Let the gate check the wall clock at `due_ms`, and not before; None cancels."""

    def after(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` after a delay; the returned function cancels it."""


class CommandSession(Protocol):
    """The interface of a session that the handlers of its commands use."""

    host: Host
    send: Callable[[Buffer], None]
    paused: bool
    waiting: bool
    unanswered: int

    @property
    def source(self) -> str:
        """The source that shares turns."""

    def answered(self, count: int) -> None:
        """`count` messages have their outcome."""

    def in_steps(self, steps: Steps[None]) -> None:
        """Run an operation. The session handles no other command before it ends."""

    def handle(self, command: wire.BaseCommand) -> Steps[None] | None:
        """Execute or refuse a command; returns its remaining steps, if any."""

    def repeating(self, handler: Handler, command: wire.BaseCommand) -> Steps[None]:
        """Execute a command, and restart it on each `CommandRestarted`."""

    def check_unchanged(self, topic: Topic, command: wire.BaseCommand) -> None:
        """Raise `CommandRestarted` if the command lost its topic or permission while it waited."""

    def using(self, topic: Topic) -> AbstractContextManager[None]:
        """Raise `CommandRestarted` for an error of a topic that was unloaded or deleted since."""

    def close_unauthorized(self, may: Callable[[Namespace, Action], bool]) -> None:
        """Close the producers and consumers without permission, and notify the client."""

    def topic(self, command: wire.BaseCommand) -> Steps[Topic]:
        """Open the topic of a command, or create it if allowed; it is ready for appends."""

    def client(self) -> ClientInfo:
        """Describe this client, for a producer or consumer that joins now."""
