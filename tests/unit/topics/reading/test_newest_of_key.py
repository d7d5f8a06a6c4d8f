"""The newest message of a key, without a scan."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import FaultyFileSystem
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.messages.message import decode_entry
from lithify.topics.topic import FLAG_BATCH, Topic
from tests.unit.topics import segments

if TYPE_CHECKING:
    from lithify.fs import FileSystem
    from lithify.topics.messages.message import Message

KEYS = [f"k{number}" for number in range(12)]


def new_topic(fs: FileSystem, order: str = "publish", segment_bytes_max: int = 2**20) -> Topic:
    return Topic.open(
        fs,
        "/t",
        TopicName.parse("orders"),
        settings=LogSettings(segment_bytes_max=segment_bytes_max),
        clock=ManualClock(),
        events=ignore_events,
        compaction_settings=lambda: TopicCompactionSettings(compaction_order=order),
    )


def value_of(topic: Topic, key: str | bytes) -> bytes | None:
    found = topic.get(key)
    return None if found is None else found.value


def test_the_newest_wherever_it_is() -> None:
    topic = new_topic(MemoryFileSystem())
    assert topic.get("a") is None
    topic.append(key="a", value=b"1")
    topic.append(key=b"a", value=b"2")
    assert value_of(topic, "a") == b"2"
    topic.log.roll()
    assert value_of(topic, b"a") == b"2"
    topic.append(key="b", value=b"3")
    assert (value_of(topic, "a"), value_of(topic, "b")) == (b"2", b"3")
    topic.service.compact("test")
    assert (value_of(topic, "a"), value_of(topic, "b")) == (b"2", b"3")
    topic.append(key="a", value=None)
    assert topic.get("a") is None
    topic.service.compact("test")
    assert topic.get("a") is None
    assert value_of(topic, "b") == b"3"
    assert topic.get("c") is None


def test_a_lookup_reads_one_bucket_and_one_entry() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    topic = new_topic(fs, segment_bytes_max=2**16)
    for number in range(2000):
        topic.append(key=f"key-{number}", value=b"x" * 100)
    topic.service.compact("test")
    topic.get("key-0")
    before = fs.operations
    assert value_of(topic, "key-1000") == b"x" * 100
    segments_of_view = len(topic.log.manifest.view or ())
    assert fs.operations - before < 20 * segments_of_view


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("order", ["publish", "event"])
def test_the_same_as_replaying_everything(order: str, seed: int) -> None:
    """Single messages and batches, tombstones, rolls and runs in any order."""
    rng = random.Random(f"{order}{seed}")
    topic = new_topic(MemoryFileSystem(), order)
    newest: dict[str, Message] = {}
    for step in range(60):
        if rng.random() < 0.6:
            key, event = rng.choice(KEYS), rng.randrange(1, 50)
            value = b"%d" % step if rng.random() < 0.8 else None
            topic.append(key=key, value=value, event_time_ms=event)
        else:
            messages = [
                segments.message(rng.choice(KEYS), b"%d" % step, event_time=rng.randrange(1, 50))
                for _ in range(rng.randrange(1, 6))
            ]
            body = segments.batch(*messages, codec=rng.choice([0, 1, 3]))
            topic.writer.append_entries(
                [body], times=[1], counts=[len(messages)], flags=FLAG_BATCH
            ).result()
        last = topic.log.last_position
        with topic.log.snapshot() as snapshot:
            for message in decode_entry(next(snapshot.read(last))):
                key = (message.key or b"").decode()
                known = newest.get(key)
                if (
                    order == "publish"
                    or known is None
                    or message.event_time_ms >= known.event_time_ms
                ):
                    newest[key] = message
        if rng.random() < 0.1:
            topic.log.roll()
        if rng.random() < 0.1:
            topic.service.compact("test")
            # A tombstone that is gone cannot beat an older event.
            newest = {key: m for key, m in newest.items() if m.value is not None}
        for key in KEYS:
            expected = newest.get(key)
            if expected is not None and expected.value is None:
                expected = None
            assert topic.get(key) == expected


def test_a_chunked_message_is_assembled() -> None:
    topic = new_topic(MemoryFileSystem())

    def chunk(number: int, value: bytes, count: int = 3) -> bytes:
        return segments.single(
            "a",
            value,
            uuid="u",
            chunk_id=number,
            num_chunks_from_msg=count,
            total_chunk_msg_size=9,
        )

    topic.append(key="a", value=b"before")
    for number, value in enumerate((b"one", b"two")):
        topic.writer.append_entries([chunk(number, value)], times=[1], counts=[1]).result()
        assert value_of(topic, "a") == b"before"
        topic.log.roll()
    topic.writer.append_entries([chunk(2, b"six")], times=[1], counts=[1]).result()
    assert value_of(topic, "a") == b"onetwosix"
    topic.service.compact("test")
    assert value_of(topic, "a") == b"onetwosix"


def test_a_damaged_index_is_rebuilt() -> None:
    fs = MemoryFileSystem()
    topic = new_topic(fs)
    topic.append(key="a", value=b"1")
    topic.log.roll()
    assert value_of(topic, "a") == b"1"
    (name,) = [name for name in fs.list("/t/log") if name.endswith(".keys")]
    for cut in (0, 100, fs.stat(f"/t/log/{name}").size - 1):
        with fs.open_append(f"/t/log/{name}") as file:
            file.truncate(cut)
        assert value_of(topic, "a") == b"1"
    fs.remove(f"/t/log/{name}")
    found = topic.get("a")
    assert found is not None
    assert replace(found, value=b"") != found
