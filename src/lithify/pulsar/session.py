"""One connection of a Pulsar client, without the connection: bytes in, bytes out.

The listener hands over what it has received and sends what comes back; TCP, TLS and tests do the
same. Time and topics are parameters.

A command that may have to wait for the disk is an operation in steps (`topics/disk_steps.py`): it
is parsed once, and the broker carries it out, the waiting parts in threads. Until it has ended
nothing that the client has sent behind it is looked at. Other connections go on. SEND frames that
must wait (a segment is rolled, deduplication is switched) stay in the receive buffer and are
scanned again.

No client holds the loop: a *turn* of a session ends after commands that cost `TURN_COST` together,
and a command that takes longer (an acknowledgement of thousands of messages) ends its turn itself.
Sources share the loop turn by turn (`fair_turns.py`). Other callbacks of the loop run between
rounds.

States: *new* until CONNECT, then *connected*, then *closed*. A command out of place, a frame that
cannot be one, a topic that may not be used: the first two close the connection with a reason, the
last is answered with an error that the client turns into an exception.

SEND frames go the short way (`fast_path/frames.py`): all that stand together in one receive are
checked by compiled code, appended as one batch, and answered together once they are durable.
Everything else is parsed by the generated code.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import DecodeError

from lithify.errors import InvalidInput, LithifyError, ProtocolError
from lithify.pulsar.authorization import Gate
from lithify.pulsar.consumer_commands import Consuming
from lithify.pulsar.fast_path import frames
from lithify.pulsar.producer_commands import Producing
from lithify.pulsar.schema_commands import SchemaRequests
from lithify.pulsar.wire import replies
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.error_codes import BeginAgain, error_code
from lithify.pulsar.wire.framing import (
    CONNECT_BYTES_MAX,
    FRAME_MARGIN_BYTES,
    check_text,
    next_frame,
)
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.disk_steps import DiskCall, run_here
from lithify.topics.permissions import Action
from lithify.topics.producers.client import ClientInfo
from lithify.topics.topics import TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.log.group_commit import Pending
    from lithify.pulsar.connection_limits import ConnectionLimits
    from lithify.pulsar.disk_threads import Ended
    from lithify.pulsar.fast_path.frames import Sends
    from lithify.topics.disk_steps import Steps
    from lithify.topics.permissions import Permissions
    from lithify.topics.producers.producers import Producer
    from lithify.topics.subscriptions.subscription import Consumer, Subscription
    from lithify.topics.topic import Topic
    from lithify.topics.topics import Topics

    Handler = Callable[[wire.BaseCommand], Steps[None] | None]
    """Carries out a command; what is left to do of it, if anything."""

__all__ = ["PROTOCOL_VERSION", "Host", "Session"]

PROTOCOL_VERSION = 20
_Type = wire.BaseCommand
# These come often, and nobody looks at a text in them.
_TEXT_UNUSED = frozenset((_Type.ACK, _Type.FLOW, _Type.PING, _Type.PONG))
COMMAND_BYTES_MAX = 512 * 2**10
"""Of any command but SEND. The parser takes up to 8 ns a byte, so this is 4 ms. The largest command
of a client is a schema of `SCHEMA_BYTES_MAX`, or 50 000 message ids."""
CHECKED_MESSAGES_MAX = 50_000
"""Messages in batches that are checked in one turn of the loop, about 1 ms."""
SENDS_PER_COST = 10
TURN_COST = 200
"""About 2 ms: what commands cost is in units of 10 µs."""
_COSTS: dict[int, int] = {
    _Type.PING: 1,
    _Type.PONG: 1,
    _Type.FLOW: 1,
    _Type.ACK: 8,
    _Type.LOOKUP: 4,
    _Type.PARTITIONED_METADATA: 4,
    _Type.CONSUMER_STATS: 4,
    _Type.GET_LAST_MESSAGE_ID: 4,
}
_COST_OF_OTHERS = 40
_USES_TOPIC: dict[int, str] = {
    _Type.PRODUCER: "producer",
    _Type.SUBSCRIBE: "subscribe",
    _Type.GET_OR_CREATE_SCHEMA: "getOrCreateSchema",
}


class Host(Protocol):
    """What a session needs of the broker around it."""

    topics: Topics
    access: Permissions | None
    server_version: str
    max_message_bytes: int
    service_url: str
    service_url_tls: str
    limits: ConnectionLimits

    def is_busy(self, on: object) -> bool:
        """Is a thread doing something for it that others have to wait for?"""

    def wait_for(
        self,
        steps: Steps[None],
        wanted: DiskCall | None,
        ended: Ended,
        is_alive: Callable[[], bool],
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """Go on with an operation that has yielded `wanted`, see `disk_threads.py`."""

    def when_durable(
        self,
        topic: Topic,
        pending: Pending,
        then: Callable[[LithifyError | None], Steps[None] | None],
    ) -> None:
        """Call `then` once an append is durable or has failed; in the order of the calls.

        What `then` returns is carried out before the next one is called.
        """

    def in_order(self, topic: Topic, then: Callable[[], Steps[None] | None]) -> None:
        """Call `then` once everything given to `when_durable` before has been called."""

    def opening(self, name: TopicName, *, create: bool = False) -> Steps[None]:
        """Open a topic if it is not open."""

    def when_writable(self, topic: Topic, reason: str, then: Callable[[], None]) -> None:
        """Call `then` once the file system takes writes to a topic again."""

    def soon(self, source: str, then: Callable[[], None]) -> None:
        """Call `then` when it is the turn of that source, after what is ready in the loop now."""

    def dispatch(self, topic: Topic, subscription: Subscription | None = None) -> None:
        """There may be something to deliver: to one subscription, or to all of a topic."""

    def new_name(self) -> str:
        """A name that nobody has."""

    def producer_joined(self, producer: Producer, of: Producing, producer_id: int) -> None:
        """Remember whose producer it is."""

    def producer_left(self, producer: Producer) -> None:
        """Forget it."""

    def producer_ready(self, producer: Producer) -> None:
        """It waited for the topic and has it now."""

    def producer_put_out(self, producer: Producer) -> None:
        """Another one has taken its place."""

    def consumer_joined(self, consumer: Consumer, of: Consuming, consumer_id: int) -> None:
        """Remember whose consumer it is."""

    def consumer_left(self, consumer: Consumer) -> None:
        """Forget it."""

    def consumer_put_out(self, consumer: Consumer) -> None:
        """Its subscription was moved or removed."""

    def putting_out(self, subscription: Subscription, but: Consumer | None = None) -> Steps[None]:
        """Put the consumers of a subscription out, but for one; none of them is left at the end."""

    def forget_later(self, topic: Topic, subscription: Subscription) -> None:
        """A consumer was put out; a reader's subscription stays only until it should be back."""

    def active_changed(self, subscription: Subscription, before: Consumer | None) -> None:
        """Tell the consumers of a failover subscription which of them is active."""

    def gate_opened(self, gate: Gate) -> None:
        """A client is known: it is to be looked at again when permissions change."""

    def gate_closed(self, gate: Gate) -> None:
        """It is not known any more, or gone."""

    def at_time(self, gate: Gate, due_ms: int | None) -> None:
        """Let the gate look at the wall clock then, and not before; None is never."""

    def after(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Call after a while; what is returned prevents that."""


def _end_of_turn() -> Steps[None]:
    yield None


class Session:
    """The protocol's side of one connection."""

    def __init__(
        self,
        host: Host,
        send: Callable[[Buffer], None],
        wake: Callable[[], None] | None = None,
    ) -> None:
        """`wake` is called when what `receive` has left can be handed over again.

        Without it the session does not leave anything, and waits for the disk itself.
        """
        self.host = host
        self.send = send
        self.closed = False
        self.paused = False
        self.waiting = False
        """An operation is going on, without whose end it cannot go on, or its turn is over."""
        self._starting = False
        self._problem: Exception | None = None
        """Why the last operation failed."""
        self._checked: tuple[NDArray[np.uint8], int, Sends] | None = None
        """A large batch that a thread has checked: the buffer, where it is, what was found."""
        self._wake = wake
        self._created: set[TopicName] = set()
        self.unanswered = 0
        """Messages that were sent and wait for their receipts."""
        self._connected = False
        self.peer = ""
        """The address of the client, if there is one."""
        self._client_version = ""
        self._limit = host.max_message_bytes + FRAME_MARGIN_BYTES
        self._gate = Gate(self, host.access)
        self._producing = Producing(self)
        self._consuming = Consuming(self)
        self._handlers: dict[int, Handler] = {
            _Type.PING: lambda _: self.send(replies.pong()),
            _Type.PONG: lambda _: None,
            _Type.PARTITIONED_METADATA: self._partitioned_metadata,
            _Type.LOOKUP: self._lookup,
            _Type.GET_TOPICS_OF_NAMESPACE: self._topics_of_namespace,
            **self._gate.handlers(),
            **SchemaRequests(self).handlers(),
            **self._producing.handlers(),
            **self._consuming.handlers(),
        }

    # --- bytes ------------------------------------------------------------------------------

    def receive(self, data: NDArray[np.uint8], start: int, stop: int) -> int:
        """Handle the complete frames in `data[start:stop]`; where the first incomplete one begins.

        Stops early, and is to be called again after `resume`, if the client does not take the
        answers, and when it is woken, if something has to be done first. Raises `ProtocolError` if
        the connection has to be closed.
        """
        self._gate.look_at_clock()
        self._raise_problem()
        cost = 0
        limit = self.frame_bytes_max
        while start < stop and not (self.closed or self.paused or self.waiting):
            if cost >= TURN_COST and self._wake is not None:
                self.in_steps(_end_of_turn())
                break
            if self._connected:
                sends = self._scan(data, start, stop, limit)
                if sends is None:
                    break
                if len(sends):
                    taken = self._producing.take(data, sends)
                    if taken < len(sends):
                        start = int(sends.frame_starts[taken])
                        cost = TURN_COST
                        continue
                start = sends.stop
                if sends.why == frames.FULL:
                    cost = TURN_COST
                    continue
                cost += len(sends) // SENDS_PER_COST
                if sends.why in (frames.END, frames.NEED_MORE):
                    break
            found = next_frame(data.data[start:stop], limit)
            if found is None:
                break
            frame, size = found
            kind = self._command(frame.command)
            limit = self.frame_bytes_max
            cost += _COSTS.get(kind, _COST_OF_OTHERS)
            start += size
        return start

    def _scan(self, data: NDArray[np.uint8], start: int, stop: int, limit: int) -> Sends | None:
        """The SEND frames there; None if a thread has to check a large batch first."""
        checked, self._checked = self._checked, None
        if checked is not None and checked[0] is data and checked[1] == start:
            return checked[2]
        if self._wake is None:
            return frames.scan_sends(data, start, stop, limit)
        sends = frames.scan_sends(data, start, stop, limit, CHECKED_MESSAGES_MAX)
        if sends.why != frames.LARGE_BATCH:
            return sends

        # The buffer stays as it is: nothing is read from the client while the session waits.
        self.in_steps(self._check(data, start, limit))
        return None

    def _check(self, data: NDArray[np.uint8], start: int, limit: int) -> Steps[None]:
        """Check a large batch in a thread; alone, because the frames behind it may be as large."""
        frame_stop = start + 4 + int.from_bytes(data[start : start + 4].tobytes(), "big")
        scan = partial(frames.scan_sends, data, start, frame_stop, limit)
        found: Sends = yield DiskCall(self, lambda: scan)
        self._checked = data, start, replace(found, why=frames.FULL)

    def in_steps(self, steps: Steps[None]) -> None:
        """Run an operation; nothing else of this client is carried out before its end."""
        if self._wake is None:
            run_here(steps)
            return
        # Most have nothing to wait for.
        try:
            wanted = next(steps)
        except StopIteration:
            return
        self.waiting = self._starting = True
        self.host.wait_for(steps, wanted, self._ended, self._is_open, self._soon)
        self._starting = False
        self._raise_problem()

    def _is_open(self) -> bool:
        return not self.closed

    def _soon(self, then: Callable[[], None]) -> None:
        self.host.soon(self.source, then)

    def _ended(self, _: None, error: Exception | None) -> None:
        # The connection is closed by it, as by any other error of a command.
        self._problem = error
        if self._starting:
            self.waiting = False
        else:
            # Many may come back from threads at once: each waits for its turn.
            self._soon(self._go_on)

    def _go_on(self) -> None:
        self.waiting = False
        if self._wake is not None and not self.closed:
            self._wake()

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame taken now: a small one until it is known who the client is."""
        known = self._connected and self._gate.knows_client
        return self._limit if known else CONNECT_BYTES_MAX

    @property
    def source(self) -> str:
        """Whose turns these are: of the name in a token, or else of an address."""
        name = self._gate.client_name
        return f"name {name}" if name else f"address {self.peer.rpartition(':')[0]}"

    @property
    def connected(self) -> bool:
        """Has the client introduced itself?"""
        return self._connected

    def answered(self, count: int) -> None:
        """So many messages wait for nothing any more."""
        self.unanswered -= count
        # There may be no answer to send, but whoever stopped reading for this has to look again.
        self.send(b"")

    def pause(self) -> None:
        """The client does not take what it is sent: deliver nothing more."""
        self.paused = True
        self._consuming.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self.paused = False
        self._consuming.resume()

    def _command(self, data: memoryview) -> int:
        """Carry out a command, or begin to; its type."""
        if len(data) > COMMAND_BYTES_MAX:
            raise ProtocolError(
                f"command of {len(data)} bytes is larger than the limit {COMMAND_BYTES_MAX}"
            )
        try:
            command = wire.BaseCommand.FromString(bytes(data))
        except DecodeError as error:
            raise ProtocolError(f"command of {len(data)} bytes is not readable: {error}") from error
        if command.type not in _TEXT_UNUSED:
            check_text(command)
        if not self._connected:
            if command.type != _Type.CONNECT or not command.HasField("connect"):
                raise ProtocolError(f"command {command.type} before CONNECT")
            self._connect(command.connect)
        else:
            steps = self.handle(command)
            if steps is not None:
                self.in_steps(steps)
        return int(command.type)

    def handle(self, command: wire.BaseCommand) -> Steps[None] | None:
        """Carry out a command, or refuse it; what is left to do of it, if anything."""
        handler = self._handlers.get(command.type)
        if handler is None:
            raise ProtocolError(f"command {command.type} is not one that a broker takes")
        return handler(command) if self._gate.admits(command) else None

    def repeating(self, handler: Handler, command: wire.BaseCommand) -> Steps[None]:
        """Carry out a command, and again whenever it has to begin anew (`BeginAgain`)."""
        while True:
            try:
                steps = handler(command)
                if steps is not None:
                    yield from steps
            except BeginAgain:
                if self._gate.admits(command):
                    continue
            return

    def check_unchanged(self, topic: Topic, command: wire.BaseCommand) -> None:
        """Raise `BeginAgain` if, since a command began, its topic or its permission is gone."""
        if not (self._is_served(topic) and self._gate.still_admits(command)):
            raise BeginAgain
        topic.writer.check_open()

    @contextmanager
    def using(self, topic: Topic) -> Iterator[None]:
        """Raise `BeginAgain` for an error of a topic that was unloaded or deleted meanwhile."""
        try:
            yield
        except LithifyError as error:
            if self._is_served(topic):
                raise
            raise BeginAgain from error

    def _is_served(self, topic: Topic) -> bool:
        return self.host.topics.opened_topic(topic.name) is topic

    def close(self) -> None:
        """The connection is gone: producers and consumers go with it."""
        if not self.closed:
            self.closed = True
            self._gate.close()
            self._producing.close()
            self._consuming.close()

    def close_unauthorized(self, may: Callable[[Namespace, Action], bool]) -> None:
        """Close the producers and consumers that may not go on, and tell the client."""
        may = cache(may)
        self._producing.close_unauthorized(lambda namespace: may(namespace, Action.PRODUCE))
        self._consuming.close_unauthorized(lambda namespace: may(namespace, Action.CONSUME))

    # --- topics -----------------------------------------------------------------------------

    def topic(self, command: wire.BaseCommand) -> Steps[Topic]:
        """The topic that a command uses, opened or created if that may be, and ready to be used."""
        topics = self.host.topics
        name = TopicName.parse(getattr(command, _USES_TOPIC[command.type]).topic)
        while True:
            topic = topics.opened_topic(name)
            if topic is None:
                create = self._may_create(name, command)
                if not create and not topics.exists(name):
                    raise TopicNotFound(f"topic {name} does not exist")
                yield from self.host.opening(name, create=create)
                continue
            # If this fails, what is appended will.
            with suppress(LithifyError, OSError):
                yield DiskCall(topic.writer, partial(topic.writer.preparation, 0))
            if self._is_served(topic):
                return topic

    def _may_create(self, name: TopicName, command: wire.BaseCommand) -> bool:
        wanted = command.type != _Type.SUBSCRIBE or command.subscribe.force_topic_creation
        if not (self.host.topics.settings.auto_create and wanted):
            return False
        if not (name in self._created or self.host.topics.exists(name)):
            self.host.limits.check_topics_created(len(self._created))
            self._created.add(name)
        return True

    def client(self) -> ClientInfo:
        """Whose a producer or consumer is that joins now."""
        return ClientInfo(self.peer, self._client_version, self.host.topics.now_ms())

    # --- connection and lookup --------------------------------------------------------------

    def _connect(self, connect: wire.CommandConnect) -> None:
        self._connected = True
        self._client_version = connect.client_version
        self._gate.connect(connect)
        host = self.host
        version = min(PROTOCOL_VERSION, max(connect.protocol_version, 0)) or PROTOCOL_VERSION
        self.send(replies.connected(host.server_version, host.max_message_bytes, version))

    def _partitioned_metadata(self, command: wire.BaseCommand) -> None:
        request = command.partitionMetadata
        try:
            name = TopicName.parse(request.topic)
            may_create = self.host.topics.settings.auto_create
            if not self.host.topics.exists(name) and not (
                may_create and request.metadata_auto_creation_enabled
            ):
                raise TopicNotFound(f"topic {name} does not exist")
            count = self.host.topics.partitions(name)
        except InvalidInput as error:
            self.send(
                replies.partitions_response(request.request_id, 0, error_code(error), str(error))
            )
            return
        self.send(replies.partitions_response(request.request_id, count))

    def _lookup(self, command: wire.BaseCommand) -> None:
        request = command.lookupTopic
        try:
            TopicName.parse(request.topic)
        except InvalidInput as error:
            self.send(
                replies.lookup_response(request.request_id, "", "", error_code(error), str(error))
            )
            return
        host = self.host
        self.send(
            replies.lookup_response(request.request_id, host.service_url, host.service_url_tls)
        )

    def _topics_of_namespace(self, command: wire.BaseCommand) -> None:
        request = command.getTopicsOfNamespace
        try:
            topics = self.host.topics.names_in(Namespace.parse(request.namespace))
            if request.mode == wire.CommandGetTopicsOfNamespace.NON_PERSISTENT:
                topics = []
        except InvalidInput as error:
            self.send(replies.error(request.request_id, error_code(error), str(error)))
            return
        self.send(replies.topics_response(request.request_id, topics))
