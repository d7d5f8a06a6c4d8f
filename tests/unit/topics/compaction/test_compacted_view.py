"""Stories of single topics whose compaction once went wrong, or easily could."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lithify.clock import ManualClock
from lithify.fs import MemoryFileSystem
from lithify.log.verify import verify_log
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.messages import message_pb2 as pb
from tests.topic_life import SECRET, Life
from tests.unit.topics.segments import batch, compress, message, single


def topic(**settings: Any) -> Life:
    return Life(
        MemoryFileSystem(), random.Random(1), ManualClock(), TopicCompactionSettings(**settings)
    )


def keys(life: Life) -> list[bytes | None]:
    life.check()
    return [each.key for each in life.oracle.view()]


def test_a_topic_that_is_empty_has_nothing_to_do() -> None:
    life = topic()
    assert life.compact().result == "nothing to do"
    assert keys(life) == []


def test_a_view_that_became_empty_can_be_compacted_again() -> None:
    life = topic()
    life.append([(single("a"), 0), (single("a", b""), 0)])
    assert life.compact().result == "done"
    assert keys(life) == []
    assert life.compact().result == "nothing to do"
    life.append([(single("b"), 0)])
    life.compact()
    assert keys(life) == [b"b"]


def test_a_key_outlives_a_change_of_order() -> None:
    """The later one wins by publishing; its rival, dead since, has the greater event time."""
    life = topic()
    life.append([(single("a", event_time=9), 0), (single("a", event_time=1), 0)])
    life.append([(single("b"), 0)])
    life.compact()
    life.settings = TopicCompactionSettings(compaction_order="event")
    life.append([(single("c"), 0)])
    life.compact()
    assert keys(life) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("codec", [pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_one_message_is_left_of_a_batch_that_takes_less_than_a_byte_for_each(codec: int) -> None:
    life = topic(live_ratio_min=0.0)
    many = [message("a", bytes(40)) for _ in range(2000)]
    life.append([(batch(*many, codec=codec), len(many))])
    life.compact()
    assert keys(life) == [b"a"]
    life.settings = TopicCompactionSettings(live_ratio_min=1.0)
    life.append([(single("b"), 0)])
    life.compact()
    assert keys(life) == [b"a", b"b"]


def test_shrunk_batches_are_counted_with_their_stored_size() -> None:
    """Else a segment that was just rewritten looks sparse as soon as anything in it dies."""
    life = topic(live_ratio_min=0.7)
    numbers = range(20)
    first = batch(*(message(f"key {n}", bytes(60)) for n in numbers), codec=pb.LZ4)
    life.append([(first, 20), (batch(message("x"), message("y"), message("z")), 3)])
    life.append([(batch(*(message(f"key {n}") for n in numbers if n)), 19)])
    life.compact()
    life.append([(single("y", b""), 0)])
    life.compact()
    assert len(keys(life)) == 22
    life.settle()
    life.log.close()
    assert verify_log(life.fs, life.directory).damage is None


EMPTY = [
    single("a", b"", null_value=True),
    single("a", b""),
    single("a", compress(pb.ZLIB, b""), compression=pb.ZLIB, uncompressed_size=0),
    single("a", bytes(16), encryption_keys=[SECRET]),
    single("a", bytes(21), encryption_keys=[SECRET], null_value=True),
    batch(message("a", b"", null_value=True)),
    batch(message("a", b""), codec=pb.ZSTD),
]


@pytest.mark.parametrize("tombstone", EMPTY)
def test_tombstones_of_all_clients(tombstone: bytes) -> None:
    life = topic()
    life.append([(single("a"), 0), (single("b"), 0), (tombstone, 0)])
    life.compact()
    assert keys(life) == [b"b"]
