"""The protocol state of one Pulsar connection, without network I/O: bytes in, bytes out.

The listener passes in received bytes and sends the bytes that come back. TCP, TLS and tests use the
same interface. Time and topics are parameters.

A command that may wait for the disk is an operation in steps (`topics/disk_steps.py`). It is parsed
once; the broker runs it, and threads run the steps that wait. Later bytes of the same client are
not processed before it ends; other connections continue. SEND frames that must wait (for a segment
roll, or a change of deduplication) stay in the receive buffer and are scanned again.

No client can block the event loop. A *turn* of a session ends after commands with a total cost of
`TURN_COST`. A long command (an acknowledgement of thousands of messages) ends its turn itself.
Sources share the loop turn by turn (`fair_turns.py`). Other callbacks of the loop run between
rounds.

States: *new* until CONNECT, then *connected*, then *closed*. A command in the wrong state or a
malformed frame closes the connection with a reason. A command on a topic that the client may not
use is answered with an error, which the client raises as an exception.

SEND frames use the fast path (`fast_path/frames.py`): compiled code checks all consecutive SEND
frames of one receive. They are appended as one batch, and acknowledged together once durable.
The generated protobuf code parses all other commands.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from lithify.errors import InvalidInput, LithifyError, ProtocolError
from lithify.ownership import NodeUrls, NotOwner
from lithify.pulsar.authorization import Gate
from lithify.pulsar.connection_limits import CONNECT_BYTES_MAX
from lithify.pulsar.consumer_commands import Consuming
from lithify.pulsar.fast_path import frames
from lithify.pulsar.producer_commands import Producing
from lithify.pulsar.schema_commands import SchemaRequests
from lithify.pulsar.wire import replies
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.error_codes import CommandRestarted, error_code
from lithify.pulsar.wire.framing import (
    FRAME_MARGIN_BYTES,
    check_text,
    next_frame,
)
from lithify.topics.client_info import ClientInfo
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.disk_steps import DiskCall, run_here
from lithify.topics.permissions import Action
from lithify.topics.topics import TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.pulsar.fast_path.frames import Sends
    from lithify.pulsar.session_interfaces import Handler, Host
    from lithify.topics.disk_steps import Steps
    from lithify.topics.topic import Topic

__all__ = ["PROTOCOL_VERSION", "Session"]

PROTOCOL_VERSION = 20
_Type = wire.BaseCommand
# Frequent commands whose text fields are not used.
_TEXT_UNUSED = frozenset((_Type.ACK, _Type.FLOW, _Type.PING, _Type.PONG))
COMMAND_BYTES_MAX = 512 * 2**10
"""Limit for all commands except SEND. The parser takes up to 8 ns per byte, so this is 4 ms. The
largest command of a client has a schema of `SCHEMA_BYTES_MAX`, or 50 000 message ids."""
CHECKED_MESSAGES_MAX = 50_000
"""Messages in batches that are checked per turn, about 1 ms."""
SENDS_PER_COST = 10
TURN_COST = 200
"""Limit per turn, about 2 ms. One unit of cost is 10 µs."""
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


def _end_of_turn() -> Steps[None]:
    yield None


class Session:
    """The session of one connection."""

    def __init__(
        self,
        host: Host,
        send: Callable[[Buffer], None],
        wake: Callable[[], None] | None = None,
    ) -> None:
        """`wake` is called when the bytes that `receive` has not consumed can be passed in again.

        Without `wake`, `receive` consumes all complete frames and blocks for the disk.
        """
        self.host = host
        self.send = send
        self.closed = False
        self.paused = False
        self.waiting = False
        """The session waits for an operation in progress, or for its next turn."""
        self._starting = False
        self._problem: Exception | None = None
        """Why the last operation failed."""
        self._checked: tuple[NDArray[np.uint8], int, Sends] | None = None
        """A large batch that a thread has checked: the buffer, its offset, the result."""
        self._wake = wake
        self._created: set[TopicName] = set()
        self.unanswered = 0
        """Received messages without a receipt."""
        self._connected = False
        self.peer = ""
        """The address of the client; empty if unknown."""
        self._client_version = ""
        self._limit = host.max_message_bytes + FRAME_MARGIN_BYTES
        self.gate = Gate(self, host.access)
        self.producing = Producing(self)
        self.consuming = Consuming(self)
        self.handlers: dict[int, Handler] = {
            _Type.PING: lambda _: self.send(replies.pong()),
            _Type.PONG: lambda _: None,
            _Type.PARTITIONED_METADATA: self._partitioned_metadata,
            _Type.LOOKUP: self._lookup,
            _Type.GET_TOPICS_OF_NAMESPACE: self._topics_of_namespace,
            **self.gate.handlers(),
            **SchemaRequests(self).handlers(),
            **self.producing.handlers(),
            **self.consuming.handlers(),
        }

    # --- bytes ------------------------------------------------------------------------------

    def receive(self, data: NDArray[np.uint8], start: int, stop: int) -> int:
        """Handle the complete frames in `data[start:stop]`; returns the offset of the rest.

        Stops early while the session is paused, because the client does not read its replies, or
        waits for an operation. The caller calls again after `resume` or `wake`. Raises
        `ProtocolError` if the connection must be closed.
        """
        self.gate.check_clock()
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
                    taken = self.producing.take(data, sends)
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
        """Scan SEND frames; None if a thread must check a large batch first."""
        checked, self._checked = self._checked, None
        if checked is not None and checked[0] is data and checked[1] == start:
            return checked[2]
        if self._wake is None:
            return frames.scan_sends(data, start, stop, limit)
        sends = frames.scan_sends(data, start, stop, limit, CHECKED_MESSAGES_MAX)
        if sends.why != frames.LARGE_BATCH:
            return sends

        # The buffer does not change: the connection does not read while the session waits.
        self.in_steps(self._check(data, start, limit))
        return None

    def _check(self, data: NDArray[np.uint8], start: int, limit: int) -> Steps[None]:
        """Check one large batch in a thread. The frames behind it may be as large."""
        frame_stop = start + 4 + int.from_bytes(data[start : start + 4].tobytes(), "big")
        scan = partial(frames.scan_sends, data, start, frame_stop, limit)
        found: Sends = yield DiskCall(self, lambda: scan)
        self._checked = data, start, replace(found, why=frames.FULL)

    def in_steps(self, steps: Steps[None]) -> None:
        """Run an operation. The session handles no other command before it ends."""
        if self._wake is None:
            run_here(steps)
            return
        # Most operations do not wait.
        try:
            yielded = next(steps)
        except StopIteration:
            return
        self.waiting = self._starting = True
        self.host.wait_for(steps, yielded, self._ended, self._is_open, self._soon)
        self._starting = False
        self._raise_problem()

    def _is_open(self) -> bool:
        return not self.closed

    def _soon(self, then: Callable[[], None]) -> None:
        self.host.soon(self.source, then)

    def _ended(self, _: None, error: Exception | None) -> None:
        # `_raise_problem` raises it in `receive`, which closes the connection.
        self._problem = error
        if self._starting:
            self.waiting = False
        else:
            # The operations of many sessions may end at once: each session waits for its turn.
            self._soon(self._continue)

    def _continue(self) -> None:
        self.waiting = False
        if self._wake is not None and not self.closed:
            self._wake()

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem

    @property
    def frame_bytes_max(self) -> int:
        """The frame size limit; small until the client is authenticated."""
        authenticated = self._connected and self.gate.knows_client
        return self._limit if authenticated else CONNECT_BYTES_MAX

    @property
    def source(self) -> str:
        """The source that shares turns: the name in the client's token, otherwise its address."""
        name = self.gate.client_name
        return f"name {name}" if name else f"address {self.peer.rpartition(':')[0]}"

    @property
    def connected(self) -> bool:
        """Has the client sent CONNECT?"""
        return self._connected

    def answered(self, count: int) -> None:
        """`count` messages have their outcome: a receipt, an error, or a failed producer."""
        self.unanswered -= count
        # An empty send: the connection checks whether to resume reading, even without a reply.
        self.send(b"")

    def pause(self) -> None:
        """The client does not read its socket: stop delivery."""
        self.paused = True
        self.consuming.pause()

    def resume(self) -> None:
        """The client reads its socket again: resume delivery."""
        self.paused = False
        self.consuming.resume()

    def _command(self, data: memoryview) -> int:
        """Parse and execute a command, or start it; returns its type."""
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
        """Execute or refuse a command; returns its remaining steps, if any."""
        handler = self.handlers.get(command.type)
        if handler is None:
            raise ProtocolError(f"command {command.type} is not supported by a broker")
        return handler(command) if self.gate.admits(command) else None

    def repeating(self, handler: Handler, command: wire.BaseCommand) -> Steps[None]:
        """Execute a command, and restart it on each `CommandRestarted`."""
        while True:
            try:
                steps = handler(command)
                if steps is not None:
                    yield from steps
            except CommandRestarted:
                if self.gate.admits(command):
                    continue
            return

    def check_unchanged(self, topic: Topic, command: wire.BaseCommand) -> None:
        """Raise `CommandRestarted` if the command lost its topic or permission while it waited."""
        if not (self._is_served(topic) and self.gate.still_admits(command)):
            raise CommandRestarted
        topic.writer.check_open()

    @contextmanager
    def using(self, topic: Topic) -> Iterator[None]:
        """Raise `CommandRestarted` for an error of a topic that was unloaded or deleted since."""
        try:
            yield
        except LithifyError as error:
            if self._is_served(topic):
                raise
            raise CommandRestarted from error

    def _is_served(self, topic: Topic) -> bool:
        return self.host.topics.opened_topic(topic.name) is topic

    def close(self) -> None:
        """The connection is closed: close its producers and consumers."""
        if not self.closed:
            self.closed = True
            self.gate.close()
            self.producing.close()
            self.consuming.close()

    def close_unauthorized(self, may: Callable[[Namespace, Action], bool]) -> None:
        """Close the producers and consumers without permission, and notify the client."""
        may = cache(may)
        self.producing.close_unauthorized(lambda namespace: may(namespace, Action.PRODUCE))
        self.consuming.close_unauthorized(lambda namespace: may(namespace, Action.CONSUME))

    # --- topics -----------------------------------------------------------------------------

    def topic(self, command: wire.BaseCommand) -> Steps[Topic]:
        """Open the topic of a command, or create it if allowed; it is ready for appends."""
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
            # An append reports the failure.
            with suppress(LithifyError, OSError):
                yield DiskCall(topic.writer, partial(topic.writer.preparation, 0))
            if self._is_served(topic):
                return topic

    def _may_create(self, name: TopicName, command: wire.BaseCommand) -> bool:
        requested = command.type != _Type.SUBSCRIBE or command.subscribe.force_topic_creation
        if not (self.host.topics.settings.auto_create and requested):
            return False
        if not (name in self._created or self.host.topics.exists(name)):
            self.host.limits.check_topics_created(len(self._created))
            self._created.add(name)
        return True

    def client(self) -> ClientInfo:
        """Describe this client, for a producer or consumer that joins now."""
        return ClientInfo(self.peer, self._client_version, self.host.topics.now_ms())

    # --- connection and lookup --------------------------------------------------------------

    def _connect(self, connect: wire.CommandConnect) -> None:
        self._connected = True
        self._client_version = connect.client_version
        self.gate.connect(connect)
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
        urls = NodeUrls(self.host.service_url, self.host.service_url_tls)
        try:
            self.host.topics.definitions.check_owner(TopicName.parse(request.topic))
        except (InvalidInput, NotOwner) as error:
            urls = error.urls if isinstance(error, NotOwner) else NodeUrls()
            if not (urls.pulsar or urls.pulsar_tls):
                code, why = error_code(error), str(error)
                self.send(replies.lookup_response(request.request_id, "", "", code, why))
                return
        self.send(replies.lookup_response(request.request_id, urls.pulsar, urls.pulsar_tls))

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
