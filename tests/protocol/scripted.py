"""A broker that sends what a test gives it and remembers which acknowledgements came.

It shows what the real client makes of a MESSAGE, byte for byte, so it has no topics: all
subscriptions, to any topic, get the same messages. It listens in threads of the test's process.
"""

from __future__ import annotations

import socketserver
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lithify.pulsar.wire import replies
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_payload, next_frame
from lithify.topics.subscriptions.cursor import bits_from_words, words_from_bits
from tests.protocol.harness import Server
from tests.protocol.partly_live_client import LEDGER

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

    from lithify.topics.subscriptions.compacted_batch import WireBatch

Type = wire.BaseCommand
FRAME_BYTES_MAX = 64 * 2**20


class Scripted(Server):
    """Sends batches as the entries 5:0, 5:1, …"""

    def __init__(self, batches: Sequence[WireBatch]) -> None:
        super().__init__(Path("scripted"))
        self.batches = batches
        self.acks: list[tuple[str, int, int | None]] = []
        """(kind, entry, bits of the messages that are left or None) in the order they came."""
        self.asked: list[wire.BaseCommand] = []
        answer = self._answer

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                for command in _commands(self.request):
                    answer(self.request, command)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def kill(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def log(self) -> str:
        """What came, for the text of a failure."""
        return "\n".join(str(command) for command in self.asked)

    def _answer(self, connection: socket.socket, command: wire.BaseCommand) -> None:
        self.asked.append(command)
        if command.type == Type.CONNECT:
            connection.sendall(replies.connected("scripted", 5 * 2**20, 20))
        elif command.type == Type.PARTITIONED_METADATA:
            asked = command.partitionMetadata.request_id
            connection.sendall(replies.partitions_response(asked, 0))
        elif command.type == Type.LOOKUP:
            url = f"pulsar://127.0.0.1:{self.port}"
            connection.sendall(replies.lookup_response(command.lookupTopic.request_id, url, ""))
        elif command.type == Type.SUBSCRIBE:
            connection.sendall(replies.success(command.subscribe.request_id))
            self._send(connection, command.subscribe.consumer_id)
        elif command.type == Type.ACK:
            self._note(command.ack)
        elif command.type == Type.SEEK:
            connection.sendall(replies.close_consumer(command.seek.consumer_id))
            connection.sendall(replies.success(command.seek.request_id))
        elif command.type == Type.CLOSE_CONSUMER:
            connection.sendall(replies.success(command.close_consumer.request_id))

    def _send(self, connection: socket.socket, consumer_id: int) -> None:
        for entry, batch in enumerate(self.batches):
            command = wire.BaseCommand(type=Type.MESSAGE)
            command.message.consumer_id = consumer_id
            command.message.message_id.ledgerId = LEDGER
            command.message.message_id.entryId = entry
            if batch.ack_set is not None:
                words = words_from_bits(batch.ack_set, batch.messages)
                command.message.ack_set.extend(words)
            connection.sendall(b"".join(encode_payload(command, batch.body)))

    def _note(self, ack: wire.CommandAck) -> None:
        kind = wire.CommandAck.AckType.Name(ack.ack_type)
        for each in ack.message_id:
            entry = each.entryId if each.entryId < 2**63 else -1
            left = bits_from_words(each.ack_set) if each.ack_set else None
            self.acks.append((kind, entry, left))


def _commands(connection: socket.socket) -> Iterator[wire.BaseCommand]:
    held = b""
    while received := connection.recv(2**20):
        held += received
        while (found := next_frame(memoryview(held), FRAME_BYTES_MAX)) is not None:
            frame, size = found
            command: Any = wire.BaseCommand.FromString(bytes(frame.command))
            held = held[size:]
            yield command
