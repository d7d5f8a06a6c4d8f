"""A client made by hand: frames through a plain socket, for what the real client never does."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Self

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command, encode_payload, next_frame
from lithify.topics.messages.message import encode_entry
from lithify.topics.messages.message_pb2 import MessageMetadata
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

Type = wire.BaseCommand
FRAME_BYTES_MAX = 64 * 2**20


class RawClient:
    """One connection."""

    def __init__(self, port: int, *, connect: bool = True, source: str = "127.0.0.1") -> None:
        """`source` is the address of the client, any of 127.0.0.0/8."""
        self.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=PROCESS_S_MAX, source_address=(source, 0)
        )
        self._bytes = b""
        self._requests = 0
        if connect:
            self.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def connect(self, token: str = "") -> None:
        """Introduce itself, with a token if it has one."""
        command = wire.BaseCommand(type=Type.CONNECT)
        command.connect.client_version = "raw"
        command.connect.protocol_version = 20
        if token:
            command.connect.auth_method_name = "token"
            command.connect.auth_data = token.encode()
        self.send(encode_command(command))
        self.connected = self.expect(Type.CONNECTED).connected
        assert self.connected.protocol_version == 20

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes, whatever they are."""
        self.socket.sendall(data)

    def end(self) -> None:
        """Send no more."""
        self.socket.shutdown(socket.SHUT_WR)

    def frames(self) -> Iterator[wire.BaseCommand]:
        """Every command that comes, until the broker hangs up."""
        return (command for command, _ in self.frames_and_entries())

    def frames_and_entries(self) -> Iterator[tuple[wire.BaseCommand, bytes]]:
        """The same, each with the entry that comes with it, which most have not."""
        while True:
            while (found := next_frame(memoryview(self._bytes), FRAME_BYTES_MAX)) is not None:
                frame, size = found
                command = wire.BaseCommand.FromString(bytes(frame.command))
                entry = bytes(frame.entry or b"")
                self._bytes = self._bytes[size:]
                yield command, entry
            try:
                received = self.socket.recv(2**20)
            except ConnectionResetError:
                return
            if not received:
                return
            self._bytes += received

    def expect(self, kind: int) -> wire.BaseCommand:
        """The next command, which must be of this type."""
        command = next(self.frames())
        assert command.type == kind, command
        return command

    @property
    def is_closed(self) -> bool:
        """Has the broker hung up? Waits for it."""
        for _ in self.frames():
            pass
        return True

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def producer(self, topic: str, producer_id: int = 1) -> None:
        """Join as a producer."""
        command = wire.BaseCommand(type=Type.PRODUCER)
        command.producer.topic = topic
        command.producer.producer_id = producer_id
        command.producer.request_id = self._request()
        self.send(encode_command(command))
        self.expect(Type.PRODUCER_SUCCESS)

    def subscribe(
        self,
        topic: str,
        subscription: str = "s",
        kind: wire.CommandSubscribe.SubType = wire.CommandSubscribe.Exclusive,
        consumer_id: int = 1,
    ) -> None:
        """Join a subscription from the first message."""
        self.ask_to_subscribe(topic, subscription, kind, consumer_id)
        self.expect(Type.SUCCESS)

    def ask_to_subscribe(
        self,
        topic: str,
        subscription: str = "s",
        kind: wire.CommandSubscribe.SubType = wire.CommandSubscribe.Exclusive,
        consumer_id: int = 1,
        **fields: Any,
    ) -> None:
        """Send SUBSCRIBE, with these fields too; the answer is still to be read."""
        command = wire.BaseCommand(type=Type.SUBSCRIBE)
        request = command.subscribe
        request.topic = topic
        request.subscription = subscription
        request.subType = kind
        request.consumer_id = consumer_id
        request.consumer_name = f"consumer-{consumer_id}"
        request.request_id = self._request()
        request.initialPosition = wire.CommandSubscribe.Earliest
        for name, value in fields.items():
            setattr(request, name, value)
        self.send(encode_command(command))

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        """Ask for messages."""
        command = wire.BaseCommand(type=Type.FLOW)
        command.flow.consumer_id = consumer_id
        command.flow.messagePermits = permits
        self.send(encode_command(command))

    def last_message_id(self, consumer_id: int = 1) -> wire.CommandGetLastMessageIdResponse:
        """The topic's last message, and where the subscription stands."""
        command = wire.BaseCommand(type=Type.GET_LAST_MESSAGE_ID)
        command.getLastMessageId.consumer_id = consumer_id
        command.getLastMessageId.request_id = self._request()
        self.send(encode_command(command))
        return self.expect(Type.GET_LAST_MESSAGE_ID_RESPONSE).getLastMessageIdResponse

    def ping(self) -> None:
        """Is the broker there?"""
        command = wire.BaseCommand(type=Type.PING)
        command.ping.SetInParent()
        self.send(encode_command(command))
        self.expect(Type.PONG)

    def pong(self) -> None:
        """Answer the broker's PING."""
        command = wire.BaseCommand(type=Type.PONG)
        command.pong.SetInParent()
        self.send(encode_command(command))


def send_frame(
    sequence_id: int,
    value: bytes,
    producer_id: int = 1,
    *,
    num_messages: int | None = None,
    **fields: Any,
) -> bytes:
    """A SEND of one message; `fields` are those of its metadata."""
    command = wire.BaseCommand(type=Type.SEND)
    command.send.producer_id = producer_id
    command.send.sequence_id = sequence_id
    if num_messages is not None:
        command.send.num_messages = num_messages
    metadata = MessageMetadata(
        **{"producer_name": "raw", "sequence_id": sequence_id, "publish_time": 1, **fields}
    )
    return b"".join(encode_payload(command, encode_entry(metadata, value)))
