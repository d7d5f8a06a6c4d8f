"""Metadata fields that compiled loops parse: numbers, wire types, presence flags.

One definition for all loops. A loop names the columns that receive the numbers and spans it needs;
all other fields are only validated. `protobuf_fields.py` describes the tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.topics.messages.protobuf_fields import (
    BYTES,
    KEYS,
    NOTHING,
    NUMBER,
    PAIR,
    SPAN,
    table_of,
)

if TYPE_CHECKING:
    import numpy as np

    _Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]

__all__ = [
    "BATCH",
    "BATCH_INDEXES",
    "CHUNK_ID",
    "CODEC_MAX",
    "ENCRYPTED",
    "FIRST",
    "KEYED",
    "MARKER",
    "MESSAGE_BYTES_MIN",
    "REQUIRED",
    "UUID",
    "metadata_table",
    "single_table",
]

FIRST, SECOND, THIRD = 1 << 0, 1 << 1, 1 << 2
"""Presence of required fields: three in an entry's metadata, one in a batch message's."""
REQUIRED = FIRST | SECOND | THIRD
KEYED, BATCH, ENCRYPTED, MARKER, CHUNK_ID, UUID = (1 << bit for bit in range(3, 9))
"""Presence of optional fields."""

BATCH_INDEXES = 31
"""Field number of compacted_batch_indexes."""
CODEC_MAX = 4
"""The highest value of CompressionType."""
MESSAGE_BYTES_MIN = 6
"""The least size of a message in a batch: its size prefix and its one required field."""

_METADATA = {
    "producer_name": (1, BYTES, FIRST, SPAN),
    "sequence_id": (2, NUMBER, SECOND, NOTHING),
    "publish_time": (3, NUMBER, THIRD, NOTHING),
    "properties": (4, BYTES, 0, PAIR),
    "partition_key": (6, BYTES, KEYED, SPAN),
    "compression": (8, NUMBER, 0, NOTHING),
    "uncompressed_size": (9, NUMBER, 0, NOTHING),
    "num_messages_in_batch": (11, NUMBER, BATCH, NOTHING),
    "event_time": (12, NUMBER, 0, NOTHING),
    "encryption_keys": (13, BYTES, ENCRYPTED, KEYS),
    "partition_key_b64_encoded": (17, NUMBER, 0, NOTHING),
    "marker_type": (20, NUMBER, MARKER, NOTHING),
    "null_value": (25, NUMBER, 0, NOTHING),
    "uuid": (26, BYTES, UUID, SPAN),
    "num_chunks_from_msg": (27, NUMBER, 0, NOTHING),
    "chunk_id": (29, NUMBER, CHUNK_ID, NOTHING),
    "null_partition_key": (30, NUMBER, 0, NOTHING),
}
_SINGLE = {
    "properties": (1, BYTES, 0, PAIR),
    "partition_key": (2, BYTES, KEYED, SPAN),
    "payload_size": (3, NUMBER, FIRST, NOTHING),
    "compacted_out": (4, NUMBER, 0, NOTHING),
    "event_time": (5, NUMBER, 0, NOTHING),
    "partition_key_b64_encoded": (6, NUMBER, 0, NOTHING),
    "sequence_id": (8, NUMBER, 0, NOTHING),
    "null_value": (9, NUMBER, 0, NOTHING),
    "null_partition_key": (10, NUMBER, 0, NOTHING),
}


def metadata_table(**columns: int) -> _Table:
    """The `walk` table of MessageMetadata; each named field goes to its column."""
    return _table(_METADATA, columns)


def single_table(**columns: int) -> _Table:
    """The `walk` table of SingleMessageMetadata."""
    return _table(_SINGLE, columns)


def _table(fields: dict[str, tuple[int, int, int, int]], columns: dict[str, int]) -> _Table:
    assert columns.keys() <= fields.keys()
    return table_of(
        *(
            (number, wire, flags, columns.get(name, -1), handling)
            for name, (number, wire, flags, handling) in fields.items()
        )
    )
