"""The broker against the system calls and the sockets under it.

The node is `lithify serve` in a process of its own, and so are the raw servers (`peers.py`); this
process makes the load and holds the watch. Clients are made by hand, frames are built beforehand:
what is measured is the node, not a client, but for the row that compares two nodes with the real
client. Every round has a topic of its own, which is deleted after it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.harness import Case
from bench.make_topics import make_topics
from bench.peers import REPLY
from bench.served import FRAME_BYTES_MAX, RECEIVE_BYTES, Served, ask, client, connected, serving
from lithify.pulsar.fast_path import frames
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command, encode_payload, next_frame
from lithify.topics.messages.message import encode_entry
from lithify.topics.messages.message_pb2 import MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

BODY_BYTES = 1024
BATCH_MESSAGES = 1000
RUN_FRAMES = 1000
MEMORY_MB_MAX = 500


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    batches: int
    """Of 1 MiB, produced or consumed."""
    runs: int
    """Of `RUN_FRAMES` messages that are sent one by one."""
    client_messages: int
    topics: int
    segments: int
    """Sealed ones, of each of the topics."""


FULL = Sizes(rounds=7, batches=256, runs=200, client_messages=100_000, topics=1000, segments=20)
QUICK = Sizes(rounds=1, batches=2, runs=2, client_messages=200, topics=3, segments=2)


# --- raw servers, and what a client sends -------------------------------------------------------


@contextmanager
def _peer(*words: str) -> Iterator[int]:
    """A raw server; its port."""
    command = [sys.executable, "-m", "bench.peers", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _seconds(module: str, *words: str) -> float:
    """What a process that measures itself has printed."""
    command = [sys.executable, "-m", module, *words]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(run.stdout)


def _join(connection: socket.socket, topic: str, producer_id: int = 1) -> None:
    command = wire.BaseCommand(type=wire.BaseCommand.PRODUCER)
    command.producer.topic = topic
    command.producer.producer_id = producer_id
    command.producer.request_id = producer_id
    ask(connection, command, wire.BaseCommand.PRODUCER_SUCCESS)


def _send_frame(sequence_id: int, metadata: MessageMetadata, payload: bytes) -> bytes:
    metadata.producer_name = "bench"
    metadata.sequence_id = sequence_id
    metadata.publish_time = 1
    command = wire.BaseCommand(type=wire.BaseCommand.SEND)
    command.send.producer_id = 1
    command.send.sequence_id = sequence_id
    command.send.num_messages = metadata.num_messages_in_batch
    return b"".join(encode_payload(command, encode_entry(metadata, payload)))


def _batch_frame() -> bytes:
    """A SEND of a batch of about 1 MiB."""
    single = SingleMessageMetadata(payload_size=BODY_BYTES).SerializeToString()
    message = len(single).to_bytes(4, "big") + single + os.urandom(BODY_BYTES)
    metadata = MessageMetadata(num_messages_in_batch=BATCH_MESSAGES)
    return _send_frame(0, metadata, message * BATCH_MESSAGES)


def _receipt_bytes(sequence_ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    """How much a node answers to these, in the first segment of a topic."""
    out = np.empty(len(sequence_ids) * frames.RECEIPT_BYTES_MAX, dtype=np.uint8)
    producers, highest = np.ones_like(sequence_ids), np.zeros_like(sequence_ids)
    return frames.write_receipts(out, producers, sequence_ids, highest, 1, 0)


def _exchange(connection: socket.socket, data: bytes, times: int, answer_bytes: int) -> float:
    """Send the same bytes this many times while taking the answers; the seconds."""

    def send() -> None:
        for _ in range(times):
            connection.sendall(data)

    began_s = time.perf_counter()
    sender = threading.Thread(target=send)
    sender.start()
    _receive(connection, answer_bytes)
    took_s = time.perf_counter() - began_s
    sender.join()
    return took_s


def _receive(connection: socket.socket, count: int) -> None:
    buffer = bytearray(RECEIVE_BYTES)
    while count > 0:
        received = connection.recv_into(buffer)
        assert received, "the other side hung up"
        count -= received
    assert count == 0, f"{-count} bytes too many"


def _produce(node: Served, data: bytes, times: int, answer_bytes: int) -> float:
    topic = f"t{time.monotonic_ns()}"
    with client(node.port) as connection:
        _join(connection, topic)
        took_s = _exchange(connection, data, times, answer_bytes)
    node.delete(topic)
    return took_s


# --- the rows -----------------------------------------------------------------------------------


def produce_batches(directory: str, sizes: Sizes) -> Iterator[Case]:
    """Large batches in, through one connection."""
    frame = _batch_frame()
    answer_bytes = _receipt_bytes(np.zeros(sizes.batches, dtype=np.int64))

    def raw() -> float:
        path = f"{directory}/raw"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        began_s = time.perf_counter()
        for _ in range(sizes.batches):
            os.write(fd, frame)
        took_s = time.perf_counter() - began_s
        os.close(fd)
        os.unlink(path)
        return took_s

    with serving(f"{directory}/data", "interval") as node:
        yield Case(
            "produce-batches",
            f"{sizes.batches} SEND frames of 1 MiB batches, durability interval",
            "write of the same bytes",
            0.6,
            sizes.batches * len(frame) / 1e9,
            "GB",
            lambda: _produce(node, frame, sizes.batches, answer_bytes),
            raw,
        )


def produce_single(directory: str, sizes: Sizes) -> Iterator[Case]:
    """Small messages in, one by one, through one connection."""
    body = os.urandom(BODY_BYTES)
    run = b"".join(_send_frame(i, MessageMetadata(), body) for i in range(RUN_FRAMES))
    answer_bytes = _receipt_bytes(np.tile(np.arange(RUN_FRAMES), sizes.runs))
    entries = sizes.runs * RUN_FRAMES

    with serving(f"{directory}/data", "interval") as node, _peer("echo") as echo:

        def raw() -> float:
            with connected(echo) as connection:
                return _exchange(connection, run, sizes.runs, entries * len(REPLY))

        yield Case(
            "produce-single",
            "SEND frames of one message of 1 KiB, durability interval",
            "asyncio echo of a receipt's size",
            0.5,
            entries,
            "entries",
            lambda: _produce(node, run, sizes.runs, answer_bytes),
            raw,
        )


def produce_client(directory: str, sizes: Sizes) -> Iterator[Case]:
    """What fsync costs a real client."""
    count = sizes.client_messages

    def produce(node: Served) -> float:
        topic = f"t{time.monotonic_ns()}"
        took_s = _seconds("bench.peers", "produce", node.pulsar, topic, str(count))
        node.delete(topic)
        return took_s

    with (
        serving(f"{directory}/always", "always") as synced,
        serving(f"{directory}/none", "none") as unsynced,
    ):
        yield Case(
            "produce-client",
            "pulsar-client, batches of 1 KiB messages, durability always",
            "the same client, durability none",
            0.8,
            count,
            "messages",
            lambda: produce(synced),
            lambda: produce(unsynced),
        )


def consume_backlog(directory: str, sizes: Sizes) -> Iterator[Case]:
    """Large batches out, through one connection."""
    frame = _batch_frame()
    found = next_frame(memoryview(frame), FRAME_BYTES_MAX)
    assert found is not None
    assert found[0].entry is not None
    entry_bytes = len(found[0].entry)
    headers = (
        frames.message_header(1, 1, entry, -1, 0, (), entry_bytes, None)
        for entry in range(sizes.batches)
    )
    message_bytes = sum(map(len, headers)) + sizes.batches * entry_bytes
    topic = "backlog"
    segment = f"{directory}/data/topics/public/default/{topic}/log"

    with serving(f"{directory}/data", "interval") as node:
        with client(node.port) as connection:
            _join(connection, topic)
            receipts = _receipt_bytes(np.zeros(sizes.batches, dtype=np.int64))
            _exchange(connection, frame, sizes.batches, receipts)
        (name,) = (name for name in os.listdir(segment) if name.endswith(".seg"))
        path = f"{segment}/{name}"

        with _peer("sendfile", path) as sender:
            file_bytes = os.path.getsize(path)

            def raw() -> float:
                began_s = time.perf_counter()
                with connected(sender) as connection:
                    _receive(connection, file_bytes)
                return time.perf_counter() - began_s

            yield Case(
                "consume-backlog",
                f"{sizes.batches} entries of 1 MiB to one exclusive consumer",
                "sendfile of the segment",
                0.5,
                file_bytes / 1e9,
                "GB",
                lambda: _consume(node, topic, message_bytes),
                raw,
            )


def _consume(node: Served, topic: str, message_bytes: int) -> float:
    subscribe = wire.BaseCommand(type=wire.BaseCommand.SUBSCRIBE)
    request = subscribe.subscribe
    request.topic, request.subscription = topic, f"s{time.monotonic_ns()}"
    request.subType = wire.CommandSubscribe.Exclusive
    request.consumer_id = request.request_id = 1
    request.durable = False
    request.initialPosition = wire.CommandSubscribe.Earliest
    flow = wire.BaseCommand(type=wire.BaseCommand.FLOW)
    flow.flow.consumer_id = 1
    flow.flow.messagePermits = 2**31 - 1
    with client(node.port) as connection:
        ask(connection, subscribe, wire.BaseCommand.SUCCESS)
        began_s = time.perf_counter()
        connection.sendall(encode_command(flow))
        _receive(connection, message_bytes)
        return time.perf_counter() - began_s


def many_topics(directory: str, sizes: Sizes) -> Iterator[Case]:
    """Starting with many topics, and what a node of them takes while nothing happens."""
    data = f"{directory}/data"
    make_topics(data, sizes.topics, sizes.segments)
    manifests = [
        os.path.join(path, "MANIFEST") for path, _, names in os.walk(data) if "MANIFEST" in names
    ]

    def raw() -> float:
        began_s = time.perf_counter()
        for path in manifests:
            with open(path, "rb", buffering=0) as manifest:
                manifest.readall()
        return time.perf_counter() - began_s

    def memory() -> str:
        with serving(data, "interval") as node, client(node.port) as connection:
            for number in range(sizes.topics):
                _join(connection, f"t{number}", number + 1)
            seen = node.memory_mb()
        verdict = "pass" if seen < MEMORY_MB_MAX else "miss"
        return f"{seen:.0f} MB idle, under {MEMORY_MB_MAX}: {verdict}"

    what = f"{sizes.topics:,} topics of {sizes.segments} sealed segments"
    yield Case(
        "many-topics",
        f"start of a node with {what}",
        "read of their manifests",
        0.1,
        sizes.topics,
        "topics",
        lambda: _seconds("bench.starting", "start", data),
        raw,
        memory,
    )
    yield Case(
        "many-topics (open)",
        f"opening {what}",
        "read of their manifests",
        None,
        sizes.topics,
        "topics",
        lambda: _seconds("bench.starting", "open", data),
        raw,
    )


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {
    "produce-batches": produce_batches,
    "produce-single": produce_single,
    "produce-client": produce_client,
    "consume-backlog": consume_backlog,
    "many-topics": many_topics,
}
"""Row by row, in the order of the table."""
