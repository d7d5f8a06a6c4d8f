"""What a compacted reader waits for, against what any other reader waits for.

The node is `lithify serve` in a process of its own, the client is made by hand, over one connection
through the loopback (`served.py`). Both sides ask the same node and take turns; a round is the
median of many repetitions.

`last-message-id`: GET_LAST_MESSAGE_ID of a consumer, answered again and again, of a topic that ends
in a batch of 5 MiB and of one that ends in a small message. Both topics were compacted up to their
end, so that compacted consumers are answered from the manifest and others from the log's end.

`first-message`: from SUBSCRIBE until the first message is there. All keys were written once, and
then as many messages as a fifth of them, so that all segments of the topic's view have dead sets.
From the beginning both sides find what the repetition before has read; *anywhere* each begins at
another place, and *after a start* nothing of the topic is open yet: there, another topic is read
first, because loading compiled code is not to count.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lithify
from bench.harness import Case
from bench.keyed import KEY_BYTES, TIME_MS, Load, fill
from bench.served import ask, client, serving, take_command
from lithify.positions import unpack
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.messages.entry_flags import FLAG_BATCH
from lithify.topics.messages.message import encode_entry
from lithify.topics.messages.message_pb2 import MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from bench.served import Served
    from lithify.topics.topic import Topic

__all__ = ["CASES", "FULL", "QUICK", "Sizes"]

MESSAGE_BYTES = 100
BATCH_MESSAGES = 5
PERMITS = 1000
"""What real clients begin with."""
EARLIEST = 2**64 - 1
"""Ledger and entry of the id that means the first message."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    questions: int
    readers: int
    messages: int
    """In the compacted view."""
    starts: int
    """Of a node, a round."""
    segment_bytes: int = 256 * 2**20


FULL = Sizes(rounds=15, questions=200, readers=9, messages=10_000_000, starts=1)
QUICK = Sizes(rounds=1, questions=3, readers=2, messages=2000, starts=1, segment_bytes=2**17)


# --- the last message ---------------------------------------------------------------------------


def last_message_id(directory: str, sizes: Sizes) -> Iterator[Case]:
    """What is asked for by every `has_message_available`."""
    data = f"{directory}/data"
    _private_runs(directory)
    with lithify.open(data) as library:
        for name, messages in (("batch", BATCH_MESSAGES), ("single", 1)):
            topic = library.topics.create(TopicName.parse(name))
            _append_last(topic, messages)
            topic.compact()
    with serving(data, "interval") as node, client(node.port) as connection:
        for number, suffix in ((1, ""), (3, " (log)")):
            _subscribe(connection, "batch", number, compacted=not suffix)
            _subscribe(connection, "single", number + 1, compacted=not suffix)
            yield Case(
                f"last-message-id{suffix}",
                f"GET_LAST_MESSAGE_ID of a {'plain' if suffix else 'compacted'} consumer, "
                "last entry a batch of 5 MiB",
                "last entry a single message",
                0.83,
                1,
                "answers",
                lambda number=number: _median_s(sizes.questions, _ask_last, connection, number),  # type: ignore[misc]
                lambda number=number: _median_s(sizes.questions, _ask_last, connection, number + 1),  # type: ignore[misc]
            )


def _append_last(topic: Topic, messages: int) -> None:
    """A small message, and then one more, or a batch of nearly 5 MiB."""
    first = MessageMetadata(producer_name="bench", sequence_id=1, publish_time=TIME_MS)
    first.partition_key = "first"
    last = MessageMetadata(producer_name="bench", sequence_id=2, publish_time=TIME_MS)
    if messages == 1:
        last.partition_key, payload = "last", os.urandom(MESSAGE_BYTES)
    else:
        last.num_messages_in_batch = messages
        payload = b"".join(_message_of_batch(number) for number in range(messages))
    bodies = [encode_entry(first, b"sediment"), encode_entry(last, payload)]
    flags = [0, FLAG_BATCH if messages > 1 else 0]
    times = [TIME_MS, TIME_MS]
    topic.writer.append_entries(bodies, times=times, counts=[1, messages], flags=flags).result()


def _message_of_batch(number: int) -> bytes:
    # All of them stay together below what a node takes by default.
    size = (5 * 2**20 - 1024) // BATCH_MESSAGES
    single = SingleMessageMetadata(partition_key=f"last{number}", payload_size=size)
    head: bytes = single.SerializeToString()
    return len(head).to_bytes(4, "big") + head + os.urandom(size)


def _ask_last(connection: socket.socket, consumer_id: int) -> float:
    command = wire.BaseCommand(type=wire.BaseCommand.GET_LAST_MESSAGE_ID)
    command.getLastMessageId.consumer_id = consumer_id
    command.getLastMessageId.request_id = 1
    began_s = time.perf_counter()
    ask(connection, command, wire.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    return time.perf_counter() - began_s


# --- the first message --------------------------------------------------------------------------


def first_message(directory: str, sizes: Sizes) -> Iterator[Case]:
    """What a client waits for that begins to read."""
    data, topic = f"{directory}/data", "view"
    _private_runs(directory)
    places = _make_view(data, topic, sizes)
    chance = random.Random(1)

    def here(node: Served, *, compacted: bool, place: int | None = None) -> float:
        with client(node.port) as connection:
            return _first_s(connection, topic, place, compacted=compacted)

    def anywhere(node: Served, *, compacted: bool) -> float:
        low, high = chance.choice(places)
        return here(node, compacted=compacted, place=chance.randint(low, high))

    def started(*, compacted: bool) -> float:
        with serving(data, "interval") as fresh:
            with client(fresh.port) as connection:
                _first_s(connection, "other", None, compacted=compacted)
            return here(fresh, compacted=compacted)

    def case(suffix: str, what: str, repeat: int, once: Callable[..., float]) -> Case:
        return Case(
            f"first-message{suffix}",
            f"first message of a compacted reader {what}, view of {sizes.messages:,} messages",
            "of a plain reader of the same topic",
            0.5,
            1,
            "readers",
            lambda: _median_s(repeat, once, compacted=True),
            lambda: _median_s(repeat, once, compacted=False),
        )

    with serving(data, "interval") as node:
        yield case("", "from the beginning", sizes.readers, lambda **how: here(node, **how))
        yield case(
            " (anywhere)", "from some id", sizes.readers, lambda **how: anywhere(node, **how)
        )
    yield case(" (after a start)", "that is a node's first", sizes.starts, started)


def _make_view(data: str, name: str, sizes: Sizes) -> list[tuple[int, int]]:
    """A topic with a view of this many messages; the first and last positions of its segments."""
    overwritten = sizes.messages // 5
    value_bytes = MESSAGE_BYTES - KEY_BYTES
    with lithify.open(data, segment_bytes_max=sizes.segment_bytes) as library:
        _append_last(library.topics.create(TopicName.parse("other")), 1)
        topic = library.topics.create(TopicName.parse(name))
        fill(topic.log, Load(sizes.messages, sizes.messages, value_bytes, distinct=True))
        fill(topic.log, Load(overwritten, sizes.messages, value_bytes, seed=2))
        topic.compact()
        view = topic.log.manifest.view
        assert view
        retained = sum(ref.entries - (ref.dead.entries if ref.dead else 0) for ref in view)
        assert retained == sizes.messages, retained
        return [(ref.first_position, ref.last_position) for ref in view]


def _first_s(connection: socket.socket, topic: str, place: int | None, *, compacted: bool) -> float:
    began_s = time.perf_counter()
    _subscribe(connection, topic, 1, place, compacted=compacted)
    flow = wire.BaseCommand(type=wire.BaseCommand.FLOW)
    flow.flow.consumer_id, flow.flow.messagePermits = 1, PERMITS
    connection.sendall(encode_command(flow))
    answer = take_command(connection)
    took_s = time.perf_counter() - began_s
    assert answer.type == wire.BaseCommand.MESSAGE, answer
    return took_s


# --- both ---------------------------------------------------------------------------------------


def _subscribe(
    connection: socket.socket,
    topic: str,
    consumer_id: int,
    place: int | None = None,
    *,
    compacted: bool,
) -> None:
    """A reader, as clients make one, from a position or from the beginning."""
    command = wire.BaseCommand(type=wire.BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription = topic, f"reader-{consumer_id}-{time.monotonic_ns()}"
    request.subType = wire.CommandSubscribe.Exclusive
    request.consumer_id = request.request_id = consumer_id
    request.durable, request.read_compacted = False, compacted
    start = request.start_message_id
    start.ledgerId, start.entryId = (EARLIEST, EARLIEST) if place is None else unpack(place)
    ask(connection, command, wire.BaseCommand.SUCCESS)


def _median_s(times: int, once: Callable[..., float], *args: object, **how: object) -> float:
    return statistics.median(once(*args, **how) for _ in range(times))


def _private_runs(directory: str) -> None:
    # Runs of other programs on the machine must not refuse a run here.
    tempfile.tempdir = directory


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {
    "last-message-id": last_message_id,
    "first-message": first_message,
}
"""Row by row, in the order of the table."""
