"""Key indexes: rows of each kind of entry, what is dropped, what is rebuilt."""

from __future__ import annotations

import base64
import pickle
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from lithify.compaction.limits.budget import Budget
from lithify.errors import Corrupt, DamagedFrame, RunCancelled
from lithify.fs import LocalFileSystem, MemoryFileSystem, read_file
from lithify.log.key_index.key_index import ORDER_EVENT, ORDER_PUBLISH, IndexFacts
from lithify.positions import unpack
from lithify.topics.compaction.build_key_index import (
    BLOCK_ROWS,
    IndexTask,
    has_index,
    open_index,
    run_index,
)
from lithify.topics.compaction.key_index_flags import (
    CHUNK_LAST,
    CHUNK_PART,
    KEYLESS,
    OPAQUE,
    TOMBSTONE,
)
from lithify.topics.messages.key_siphash import key_hash
from lithify.topics.messages.message import FLAG_SHRUNK
from lithify.topics.messages.message_pb2 import LZ4, SNAPPY, ZLIB, ZSTD, EncryptionKeys, KeyValue
from tests.unit.topics.segments import (
    DIRECTORY,
    LOG_ID,
    TIME_MS,
    batch,
    compress,
    message,
    seal,
    sealed,
    single,
)

CODECS = (LZ4, ZLIB, ZSTD, SNAPPY)
ENCRYPTION: dict[str, Any] = {"encryption_keys": [EncryptionKeys(key="k", value=b"v")]}
KEYS_PATH = f"{DIRECTORY}/000000000001.keys"


@dataclass(frozen=True, slots=True)
class Row:
    """One row, its position as the number of the entry."""

    entry: int
    slot: int
    slots: int
    flags: int
    hash: tuple[int, int]
    length: int
    publish_ms: int
    event_ms: int
    group: int


def index(task: IndexTask) -> tuple[list[Row], IndexFacts]:
    """(rows in the order of the log, facts)."""
    facts = run_index(task, lambda: None)
    with open_index(task) as found:
        assert found.facts == facts
        rows = found.read()
    values = [
        Row(
            unpack(int(rows.position[n]))[1],
            int(rows.slot[n]),
            int(rows.slots[n]),
            int(rows.flags[n]),
            (int(rows.hash_high[n]), int(rows.hash_low[n])),
            int(rows.length[n]),
            int(rows.publish_ms[n]),
            int(rows.event_ms[n]),
            int(rows.group[n]),
        )
        for n in range(len(rows))
    ]
    return sorted(values, key=lambda row: (row.entry, row.slot)), facts


def rows_of(*bodies: bytes | tuple[bytes, int], order: int = ORDER_PUBLISH) -> list[Row]:
    return index(sealed(*bodies, order=order))[0]


def flags_of(*bodies: bytes | tuple[bytes, int]) -> list[int]:
    return [row.flags for row in rows_of(*bodies)]


def places_of(*bodies: bytes | tuple[bytes, int], order: int = 0) -> list[tuple[int, int]]:
    return [(row.entry, row.slot) for row in rows_of(*bodies, order=order)]


def hashed(key: bytes) -> tuple[int, int]:
    return key_hash(key, LOG_ID)


def test_a_single_message_has_one_row() -> None:
    body = single("key", b"12345", event_time=77)
    assert rows_of(body) == [
        Row(0, -1, 1, 0, hashed(b"key"), 32 + len(body), TIME_MS, 77, 0),
    ]


def test_the_messages_of_a_batch_have_a_row_each_and_share_its_frame() -> None:
    body = batch(message("a", b"x" * 100, event_time=5), message("b"), message(None))
    first, second, third = rows_of(body)
    assert [row.slot for row in (first, second, third)] == [0, 1, 2]
    assert {row.slots for row in (first, second, third)} == {3}
    assert (first.hash, first.event_ms, first.publish_ms) == (hashed(b"a"), 5, TIME_MS)
    assert (second.hash, second.event_ms, second.flags) == (hashed(b"b"), 0, 0)
    assert third.flags == KEYLESS
    assert first.length + second.length + third.length == 32 + len(body)
    assert first.length > 100 > second.length


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_batch_is_opened(codec: int) -> None:
    messages = [message(f"key {number}", bytes(200)) for number in range(10)]
    plain = rows_of(batch(*messages))
    packed = rows_of(batch(*messages, codec=codec))
    assert [(row.slot, row.hash) for row in packed] == [(row.slot, row.hash) for row in plain]


def test_keys_are_compared_by_their_bytes() -> None:
    text = base64.b64encode(b"\xff\0key").decode()
    as_bytes, as_text, not_base64, empty = rows_of(
        single(text, partition_key_b64_encoded=True),
        single(text),
        single("no base64!", partition_key_b64_encoded=True),
        single(""),
    )
    assert as_bytes.hash == hashed(b"\xff\0key")
    assert as_text.hash == hashed(text.encode())
    assert not_base64.hash == hashed(b"no base64!")
    assert (empty.hash, empty.flags) == (hashed(b""), 0)


def test_a_key_flagged_as_null_is_no_key() -> None:
    assert (
        flags_of(
            single(None),
            single("key", null_partition_key=True),
            batch(message("key", null_partition_key=True)),
        )
        == [KEYLESS] * 3
    )


@pytest.mark.parametrize(
    ("body", "tombstone"),
    [
        (single("k", b""), True),
        (single("k", b"x", null_value=True), True),
        (single("k", b"x"), False),
        (single("k", b"x", uncompressed_size=0), False),
        (single("k", compress(LZ4, b""), compression=LZ4), True),
        (single("k", compress(LZ4, b""), compression=LZ4, uncompressed_size=0), True),
        (single("k", compress(LZ4, b"x"), compression=LZ4, uncompressed_size=1), False),
        (single("k", bytes(16), **ENCRYPTION), True),
        (single("k", bytes(17), **ENCRYPTION), False),
        (single("k", bytes(16)), False),
        (single("k", bytes(24), compression=ZSTD, uncompressed_size=0, **ENCRYPTION), True),
        (single("k", bytes(16), compression=ZSTD, uncompressed_size=9, **ENCRYPTION), False),
        (batch(message("k", b"")), True),
        (batch(message("k", b"x", null_value=True)), True),
        (batch(message("k", b"x")), False),
    ],
)
def test_a_tombstone_is_known_by_the_size_of_its_value(body: bytes, tombstone: bool) -> None:
    assert flags_of(body) == [TOMBSTONE if tombstone else 0]


def test_a_marker_has_no_row() -> None:
    rows, facts = index(sealed(single("k"), single("k", marker_type=3)))
    assert [row.entry for row in rows] == [0]
    assert facts == IndexFacts(ORDER_PUBLISH, messages=2, markers=1, opaque=0)


OPAQUE_ENTRIES = {
    "encrypted batch": (batch(message("k"), message("l"), **ENCRYPTION), 2),
    "fewer messages than it says": (batch(message("k"), num_messages_in_batch=2), 2),
    "no messages": (batch(message("k"), num_messages_in_batch=0), 0),
    "not compressed as it says": (batch(message("k"), compression=LZ4, uncompressed_size=9), 1),
    "larger than it says": (batch(message("k" * 99), codec=ZLIB, uncompressed_size=9), 1),
    "smaller than it says": (batch(message("k" * 99), codec=ZSTD, uncompressed_size=999), 1),
    "absurdly large": (batch(message("k"), codec=SNAPPY, uncompressed_size=2**32 - 1), 1),
    "message without its size": (batch(b"\0\0\0\0"), 1),
    "no metadata": (b"garbage", 0),
    "nothing at all": (b"", 0),
    "chunk without a uuid": (single("k", num_chunks_from_msg=2, chunk_id=0), 0),
    "chunk behind the last": (single("k", num_chunks_from_msg=2, chunk_id=2, uuid="u"), 0),
}


@pytest.mark.parametrize("name", OPAQUE_ENTRIES)
def test_an_undecodable_batch_is_kept_as_a_whole(name: str) -> None:
    body, messages = OPAQUE_ENTRIES[name]
    (row,), facts = index(sealed(body))
    assert (row.slot, row.slots, row.flags, row.group) == (-1, 1, OPAQUE, messages)
    assert row.length == 32 + len(body)
    # Where the metadata cannot be read, the frame's time is used.
    assert row.publish_ms == TIME_MS + 5 * (name in {"no metadata", "nothing at all"})
    assert (facts.messages, facts.opaque) == (1, 1)


def test_a_shrunk_batch_has_only_the_slots_that_its_metadata_lists() -> None:
    body = batch(
        message("b"), message("d"), num_messages_in_batch=5, compacted_batch_indexes=[1, 3]
    )
    rows = rows_of((body, FLAG_SHRUNK))
    assert [(row.slot, row.slots, row.hash) for row in rows] == [
        (1, 2, hashed(b"b")),
        (3, 2, hashed(b"d")),
    ]


@pytest.mark.parametrize("slots", [[], [1], [1, 1], [3, 1], [-1, 2], [1, 5], [0, 1, 2]])
def test_a_shrunk_batch_with_an_invalid_list_is_opaque(slots: list[int]) -> None:
    body = batch(message("b"), message("d"), num_messages_in_batch=5, compacted_batch_indexes=slots)
    # A list that is too short leaves bytes over; the messages that are there are as it says.
    expected = [0] if slots == [1] else [OPAQUE]
    assert flags_of((body, FLAG_SHRUNK)) == expected


def test_slots_that_were_compacted_out_the_old_way_have_no_row() -> None:
    gone = message(None, b"", compacted_out=True)
    body = batch(gone, message("b"), gone, message("d"), compacted_batch_indexes=[1, 3])
    assert [(row.slot, row.slots) for row in rows_of(body)] == [(1, 4), (3, 4)]


def test_metadata_of_another_broker_is_skipped() -> None:
    body = b"\x0e\x02" + (3).to_bytes(4, "big") + b"abc" + single("key")
    assert rows_of(body)[0].hash == hashed(b"key")


def test_properties_are_skipped() -> None:
    properties = [KeyValue(key="a" * 300, value="b")] * 3
    assert rows_of(single("key", properties=properties))[0].hash == hashed(b"key")


def test_the_last_message_of_each_key_is_kept() -> None:
    assert places_of(
        single("a"),
        single("b"),
        batch(message("a"), message("c"), message("a", b"")),
        single("b"),
    ) == [(2, 1), (2, 2), (3, -1)]


def test_by_event_time_the_greatest_is_kept_and_the_later_of_equal_ones() -> None:
    bodies = [
        single("a", event_time=9),
        single("a", event_time=7),
        single("b", event_time=1),
        single("b", event_time=1),
        single("c"),
        single("c", event_time=2**64 - 1),
        single("c", event_time=2**63 - 2),
    ]
    assert places_of(*bodies, order=ORDER_EVENT) == [(0, -1), (3, -1), (5, -1)]
    assert places_of(*bodies) == [(1, -1), (3, -1), (6, -1)]


def test_messages_without_a_key_and_opaque_ones_are_all_kept() -> None:
    assert len(rows_of(*[single(None)] * 3, *[b"garbage"] * 2)) == 5


def chunks(key: str, uuid: str, count: int) -> list[bytes]:
    return [
        single(key, b"part", uuid=uuid, num_chunks_from_msg=count, chunk_id=number)
        for number in range(count)
    ]


def test_chunks_of_one_message_are_a_group() -> None:
    rows = rows_of(*chunks("k", "p-1", 3))
    assert [row.flags for row in rows] == [CHUNK_PART, CHUNK_PART, CHUNK_LAST]
    assert {row.group for row in rows} == {hashed(b"p-1")[0]}


def test_parts_go_with_a_superseded_message_and_its_last_chunk_stays() -> None:
    older, newer = chunks("k", "p-1", 3), chunks("k", "p-2", 2)
    # Parts of the first message may be in an earlier segment: they need its last chunk.
    assert places_of(*older, *newer) == [(2, -1), (3, -1), (4, -1)]


def test_parts_without_their_last_chunk_stay() -> None:
    begun = chunks("k", "p-1", 3)[:2]
    assert places_of(*begun, single("k")) == [(0, -1), (1, -1), (2, -1)]


def test_a_producer_that_uses_a_uuid_again_loses_only_the_first_message() -> None:
    assert places_of(*chunks("k", "p-0", 2), *chunks("k", "p-0", 2)) == [(1, -1), (2, -1), (3, -1)]


def test_a_chunk_is_no_tombstone_by_its_size() -> None:
    body = single("k", b"", uuid="u", num_chunks_from_msg=2, chunk_id=1)
    assert flags_of(body) == [CHUNK_LAST]


def test_more_rows_than_a_block_has_room_for() -> None:
    count = BLOCK_ROWS + 7
    messages = [message(f"{number}") for number in range(count)]
    bodies = [single("x"), batch(*messages), batch(*messages, codec=LZ4), single("y")]
    rows = rows_of(*bodies)
    assert [row.entry for row in rows] == [0, *[2] * count, 3]
    assert [row.slot for row in rows[1:-1]] == list(range(count))


def test_a_segment_without_entries_has_an_index() -> None:
    assert index(sealed()) == ([], IndexFacts(ORDER_PUBLISH, 0))


def test_the_index_of_one_order_is_not_used_for_the_other() -> None:
    task = sealed(single("a"))
    assert not has_index(task)
    run_index(task, lambda: None)
    assert has_index(task)
    assert not has_index(replace(task, order=ORDER_EVENT))


def test_a_damaged_index_counts_as_missing_and_is_rebuilt_with_the_same_bytes() -> None:
    fs = MemoryFileSystem()
    task = seal(fs, [single("a"), batch(message("b"), message("a"))])
    run_index(task, lambda: None)
    good = read_file(fs, KEYS_PATH)
    fs.flip(KEYS_PATH, 50, 1)
    assert not has_index(task)
    run_index(task, lambda: None)
    assert read_file(fs, KEYS_PATH) == good
    fs.flip(KEYS_PATH, len(good) - 1, 1)
    assert has_index(task)
    with open_index(task) as found, pytest.raises(Corrupt):
        found.read()


def test_a_damaged_segment_gets_no_index() -> None:
    fs = MemoryFileSystem()
    task = seal(fs, [single("a"), single("b")])
    fs.flip(f"{DIRECTORY}/{task.segment.name}", 150, 1)
    with pytest.raises(DamagedFrame):
        run_index(task, lambda: None)
    assert not has_index(task)


def test_indexing_stops_when_cancelled() -> None:
    def check() -> None:
        raise RunCancelled("enough")

    task = sealed(single("a"))
    with pytest.raises(RunCancelled):
        run_index(task, check)
    assert not has_index(task)


def test_a_task_can_be_pickled() -> None:
    task = IndexTask(LocalFileSystem(), "/data", sealed().segment, LOG_ID, 0, Budget())
    sent = pickle.loads(pickle.dumps(task))
    assert (sent.directory, sent.segment, sent.budget) == ("/data", task.segment, task.budget)


def test_keyless_rows_spread_over_the_buckets() -> None:
    rows = rows_of(*[single(None)] * 400)
    buckets = np.bincount([row.hash[0] >> 56 for row in rows], minlength=256)
    assert buckets.max() < 12
