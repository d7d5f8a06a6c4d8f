"""Columns cut out of entries say what decoding each entry says, whatever the entry is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from lithify.errors import InvalidInput
from lithify.log.dead_set.dead_set import Parts
from lithify.log.manifest import Manifest
from lithify.log.open_segments import OpenSegments
from lithify.log.reader import ActiveTail, Snapshot
from lithify.log.segments.block_index import BlockIndex
from lithify.spark import arrow_rows
from lithify.spark.arrow_rows import ArrowRows
from lithify.topics.messages.message import FLAG_SHRUNK, PLAIN_BYTES_MAX, decode_entry
from lithify.topics.messages.message_pb2 import LZ4, SNAPPY, ZLIB, ZSTD, EncryptionKeys, KeyValue
from tests.unit.topics.segments import DIRECTORY, LOG_ID, batch, compress, message, sealed, single

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.log.segments.frame import LogEntry
    from lithify.log.segments.scan import Frames

SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "ledger": pa.int64(),
        "entry": pa.int64(),
        "batch_index": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "properties": pa.map_(pa.string(), pa.string()),
        "publish_time": pa.timestamp("us", "UTC"),
        "event_time": pa.timestamp("us", "UTC"),
        "producer": pa.string(),
        "sequence_id": pa.int64(),
    }
)
CODECS = (LZ4, ZLIB, ZSTD, SNAPPY)


def pair(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=value)


def snapshot(*bodies: bytes | tuple[bytes, int]) -> Snapshot:
    task = sealed(*bodies)
    manifest = Manifest("topic", LOG_ID, 1, 2, (task.segment,))
    segments = OpenSegments(task.fs, DIRECTORY, 1)
    return Snapshot(manifest, segments, ActiveTail(BlockIndex(), 0, -1))


def frames_of(
    bodies: tuple[bytes | tuple[bytes, int], ...], parts: Parts | None
) -> Iterator[Frames]:
    for frames in snapshot(*bodies).read_frames():
        object.__setattr__(frames, "parts", parts)
        yield frames


def row_of(entry: LogEntry) -> Iterator[dict[str, Any]]:
    for found in decode_entry(entry, 3):
        yield {
            "topic": "t",
            "partition": 3,
            "ledger": found.id.ledger,
            "entry": found.id.entry,
            "batch_index": found.id.batch_index,
            "key": found.key,
            "value": found.value,
            "properties": sorted(found.properties.items()),
            "publish_time": found.publish_time_ms * 1000,
            "event_time": found.event_time_ms * 1000 or None,
            "producer": found.producer,
            "sequence_id": found.sequence_id,
        }


def rows(
    *bodies: bytes | tuple[bytes, int],
    columns: tuple[str, ...] = tuple(SCHEMA.names),
    parts: Parts | None = None,
) -> list[dict[str, Any]]:
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    found: list[dict[str, Any]] = []
    for cut in ArrowRows(schema, "t", 3).batches(frames_of(bodies, parts)):
        assert cut.schema.equals(schema)
        cut.validate(full=True)
        plain = [
            cut.column(name).cast(pa.int64()) if name.endswith("_time") else cut.column(name)
            for name in columns
        ]
        found += pa.RecordBatch.from_arrays(plain, names=list(columns)).to_pylist()
    for row in found:
        if "properties" in row:
            row["properties"] = sorted(row["properties"])
    return found


def check(*bodies: bytes | tuple[bytes, int], parts: Parts | None = None) -> int:
    """The same messages both ways; how many."""
    expected = [
        row
        for frames in frames_of(bodies, parts)
        for entry in frames.entries()
        for row in row_of(entry)
    ]
    assert rows(*bodies, parts=parts) == expected
    return len(expected)


KEYS: list[dict[str, Any]] = [
    {"key": "a"},
    {"key": "YWJj", "partition_key_b64_encoded": True},
    {"key": "not base64", "partition_key_b64_encoded": True},
    {"key": ""},
    {"key": None},
    {"key": "there", "null_partition_key": True},
]


def test_single_messages_of_every_kind() -> None:
    assert check(
        *(single(**key) for key in KEYS),
        single("tombstone", b"", null_value=True),
        single("empty", b""),
        single("ünï", b"x" * 5000, event_time=17, sequence_id=2**63 - 1),
        single("k", properties=[pair("a", "1"), pair("b", ""), pair("a", "2")][:2]),
        single("late", publish_time=5, producer_name="another producer"),
    )


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_single_messages_are_opened(codec: int) -> None:
    value = b"again and " * 50
    body = single("k", compress(codec, value), compression=codec, uncompressed_size=len(value))
    assert check(single("before"), body, single("behind")) == 3
    assert rows(body)[0]["value"] == value


def messages() -> list[bytes]:
    return [
        *(message(**key) for key in KEYS),
        message("tombstone", b"", null_value=True),
        message("gone", b"", compacted_out=True),
        message("timed", event_time=5, sequence_id=9),
        message("p", properties=[pair("x", "y")]),
    ]


@pytest.mark.parametrize("codec", [0, *CODECS])
def test_batches_between_single_messages(codec: int) -> None:
    one = single("before", properties=[pair("of", "entry")])
    assert check(one, batch(*messages(), codec=codec), one, batch(message("z"), codec=codec))


@pytest.mark.parametrize("codec", [0, LZ4])
def test_a_batch_with_only_its_retained_messages_keeps_their_slots(codec: int) -> None:
    body = batch(message("c"), message("f"), codec=codec)
    shrunk = batch(
        message("c"),
        message("f"),
        codec=codec,
        num_messages_in_batch=9,
        compacted_batch_indexes=[2, 5],
    )
    assert check(body, (shrunk, FLAG_SHRUNK), body) == 6
    assert [row["batch_index"] for row in rows((shrunk, FLAG_SHRUNK))] == [2, 5]


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_only_live_messages_of_a_partly_live_batch_are_read(codec: int) -> None:
    bodies = (batch(*messages(), codec=codec), single("s"), batch(*messages(), codec=codec))
    first = 1 << 32
    live = np.array([1, 4, 5], np.int32)
    parts = Parts.of(np.full(3, first + 2, np.int64), live, np.full(3, 10, np.uint32))
    assert check(*bodies, parts=parts) == 9 + 1 + 3


def test_encrypted_messages_are_passed_on_and_markers_are_skipped() -> None:
    keys = [EncryptionKeys(key="k", value=b"v")]
    assert (
        check(
            single("clear key", b"cipher", encryption_keys=keys, compression=LZ4),
            batch(message("a"), message("b"), encryption_keys=keys),
        )
        == 2
    )
    assert rows(single("m", marker_type=3), single("k"), columns=("key",)) == [{"key": b"k"}]


def test_texts_that_are_not_utf8_are_readable() -> None:
    body = single("k", producer_name="prod", properties=[pair("name", "text")])
    for good, bad in ((b"prod", b"pr\xffd"), (b"name", b"n\xffme"), (b"text", b"te\xfft")):
        body = body.replace(good, bad)
    found = rows(body[6:])[0]
    assert found["producer"] == "pr\N{REPLACEMENT CHARACTER}d"
    assert found["properties"] == [("n\N{REPLACEMENT CHARACTER}me", "te\N{REPLACEMENT CHARACTER}t")]


def test_only_requested_columns_are_built() -> None:
    value = b"v" * 100
    broken = single("k", b"not lz4", compression=LZ4, uncompressed_size=len(value))
    assert rows(broken, columns=("entry", "key")) == [{"entry": 0, "key": b"k"}]
    with pytest.raises(InvalidInput, match="entry 1:0 is not valid compressed data"):
        rows(broken, columns=("value",))


def test_an_invalid_message_is_named() -> None:
    with pytest.raises(InvalidInput, match="entry 1:1 is malformed"):
        rows(single("k"), b"anything")
    cut = batch(message("a"), num_messages_in_batch=2)
    with pytest.raises(InvalidInput, match="entry 1:0 is malformed"):
        rows(cut)


@pytest.mark.parametrize("size", [PLAIN_BYTES_MAX + 1, 2**31 - 1])
def test_a_few_bytes_cannot_take_all_memory(size: int) -> None:
    """No more is set aside than for any other reader of the topic."""
    bomb = single("k", b"few", compression=LZ4, uncompressed_size=size)
    with pytest.raises(InvalidInput, match=f"entry 1:0 claims {size} bytes when decompressed"):
        rows(bomb)


def test_many_messages_are_joined_and_large_batches_find_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow_rows, "BLOCK_ROWS", 4)
    monkeypatch.setattr(arrow_rows, "BATCH_ROWS", 7)
    many = [message(f"k{number}") for number in range(30)]
    bodies = [
        *(single(f"s{number}") for number in range(10)),
        batch(*many),
        batch(*many, codec=LZ4),
    ]
    assert check(*bodies, single("last")) == 71
    sizes = [
        cut.num_rows
        for cut in ArrowRows(pa.schema([SCHEMA.field("key")]), "t", 3).batches(
            frames_of(tuple(bodies), None)
        )
    ]
    assert sizes == [8, 32, 30]


def test_times_beyond_the_calendar_are_the_last_there_is() -> None:
    body = single("k", publish_time=2**64 - 1, event_time=2**62)
    found = rows(body, columns=("publish_time", "event_time"))
    assert found == [{"publish_time": 9223372036854775000, "event_time": 9223372036854775000}]
