"""Messages as Arrow record batches, with the requested columns only.

| column | type | |
|---|---|---|
| `topic`, `partition` | string, int | the topic or the partition; -1 if it is not partitioned |
| `ledger`, `entry`, `batch_index` | long, long, int | the message id; -1 outside a batch |
| `key`, `value` | binary | null without a key; null for a tombstone |
| `properties` | map of strings | |
| `publish_time`, `event_time` | timestamp | the latter null if the producer set none |
| `producer`, `sequence_id` | string, long | |

1. Compiled loops locate the fields of each message (`arrow_kernels.py`). A compressed payload is
   decompressed if it is a batch, or if values are requested.
2. Rows of dead messages in partly live entries are dropped.
3. The bytes of each requested column are concatenated. Nothing else is copied.
4. Small batches are merged to about `BATCH_ROWS` rows or `BATCH_BYTES`.

Unreadable data raises `InvalidInput` with its position, as in other reads of the topic; it is never
skipped. Invalid UTF-8 in texts becomes replacement characters.

Memory: a piece of the segment, a decompressed payload and a record batch. For `scan.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lithify.errors import InvalidInput
from lithify.positions import unpack
from lithify.spark import arrow_kernels as kernels
from lithify.topics.messages.message import PLAIN_BYTES_MAX, open_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from lithify.log.segments.scan import Frames

    Maker = Callable[[pa.DataType], pa.Array]

__all__ = ["BATCH_BYTES", "BATCH_ROWS", "ArrowRows", "id_columns"]

BATCH_ROWS = 8192
BATCH_BYTES = 4 << 20
BLOCK_ROWS = 4096

_MICROSECONDS_MAX = 2**63 - 1
_PROPERTIES_OF_ENTRY = 4 << 3 | 2
_PROPERTIES_OF_MESSAGE = 1 << 3 | 2
"""Tags of the properties in the metadata of an entry and of a message in a batch."""


def id_columns(
    schema: pa.Schema,
    topic: str,
    partition: int,
    positions: NDArray[np.int64],
    slots: NDArray[np.int32],
    times_ms: Mapping[str, NDArray[np.int64]],
) -> pa.RecordBatch:
    """A record batch of the columns that need no message bytes.

    `times_ms` has the times by column name.
    """
    makers = _id_makers(topic, partition, positions, slots, times_ms)
    columns = [makers[field.name](field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _id_makers(
    topic: str,
    partition: int,
    positions: NDArray[np.int64],
    slots: NDArray[Any],
    times_ms: Mapping[str, NDArray[np.int64]],
) -> dict[str, Maker]:
    count = len(positions)
    return {
        "topic": lambda kind: pa.repeat(pa.scalar(topic, kind), count),
        "partition": lambda kind: pa.repeat(pa.scalar(partition, kind), count),
        "ledger": lambda kind: _numbers(kind, positions >> 32),
        "entry": lambda kind: _numbers(kind, positions & (2**32 - 1)),
        "batch_index": lambda kind: _numbers(kind, slots.astype(np.int32)),
        "publish_time": lambda kind: _times(kind, times_ms["publish_time"]),
        "event_time": lambda kind: _event_times(kind, times_ms["event_time"]),
    }


class ArrowRows:
    """Converts frames of one topic into record batches of one schema."""

    def __init__(self, schema: pa.Schema, topic: str, partition: int) -> None:
        self._schema = schema
        self._topic = topic
        self._partition = partition
        self._values = "value" in schema.names
        self._rows = np.empty((kernels.COLUMNS, BLOCK_ROWS), dtype=np.int64)
        self._pause = np.zeros(kernels.PAUSE, dtype=np.int64)

    def batches(self, pieces: Iterable[Frames]) -> Iterator[pa.RecordBatch]:
        """All messages of the frames, in log order."""
        pending: list[pa.RecordBatch] = []
        rows = size = 0
        for frames in pieces:
            for batch in self._of_frames(frames):
                pending.append(batch)
                rows += batch.num_rows
                size += batch.nbytes
                if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield _merged(pending)
                    pending, rows, size = [], 0, 0
        if pending:
            yield _merged(pending)

    def _of_frames(self, frames: Frames) -> Iterator[pa.RecordBatch]:
        number = 0
        while number < len(frames):
            number, count, why = kernels.walk_frames(
                frames.buffer, frames.offsets, number, self._values, self._rows, self._pause
            )
            if count:
                yield from self._cut(frames, count, frames.buffer)
            if why == kernels.PACKED:
                yield from self._opened(frames, number)
                number += 1
            elif why == kernels.FULL:
                self._make_room(int(self._pause[0]))
            elif why == kernels.BROKEN:
                raise _unreadable(frames, number, "is malformed")

    def _opened(self, frames: Frames, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of an entry with a compressed payload."""
        begin, end, codec, size = self._pause.tolist()
        if size > PLAIN_BYTES_MAX:
            raise _unreadable(frames, number, f"claims {size} bytes when decompressed")
        plain = np.empty(size, np.uint8)
        payload = frames.buffer.data[begin:end]
        if size and not open_payload(codec, payload, plain.data):
            raise _unreadable(frames, number, "is not valid compressed data")
        why = kernels.FULL
        while why == kernels.FULL:
            count, why = kernels.walk_plain(
                frames.buffer, frames.offsets[number], plain, self._rows, self._pause
            )
            if why == kernels.FULL:
                self._make_room(int(self._pause[0]))
        if why == kernels.BROKEN:
            raise _unreadable(frames, number, "is a malformed batch")
        if count:
            yield from self._cut(frames, int(count), plain)

    def _make_room(self, wanted: int) -> None:
        if wanted > self._rows.shape[1]:
            self._rows = np.empty((kernels.COLUMNS, wanted), dtype=np.int64)

    def _cut(
        self, frames: Frames, count: int, payload: NDArray[np.uint8]
    ) -> Iterator[pa.RecordBatch]:
        """The columns of the first rows; `payload` has the values, and the keys of a batch."""
        rows = self._rows[:, :count]
        if frames.parts is not None:
            slots = rows[kernels.SLOT].astype(np.int32)
            # A single message is its whole entry, which is never partly live.
            dead = frames.parts.dead_slots(rows[kernels.POSITION], slots) & (slots >= 0)
            if dead.any():
                rows = np.compress(~dead, rows, axis=1)
        if rows.shape[1]:
            block = _Block(rows, frames.buffer, payload)
            yield block.batch(self._schema, self._topic, self._partition)


class _Block:
    """Some rows, and the bytes that their spans refer to."""

    __slots__ = ("_data", "_payload", "_rows")

    def __init__(
        self, rows: NDArray[np.int64], data: NDArray[np.uint8], payload: NDArray[np.uint8]
    ) -> None:
        self._rows = rows
        self._data = data
        self._payload = payload

    def batch(self, schema: pa.Schema, topic: str, partition: int) -> pa.RecordBatch:
        """A record batch with the columns of the schema."""
        rows = self._rows
        times_ms = {"publish_time": rows[kernels.PUBLISH], "event_time": rows[kernels.EVENT]}
        positions, slots = rows[kernels.POSITION], rows[kernels.SLOT]
        makers = _id_makers(topic, partition, positions, slots, times_ms) | {
            # Copied, because the next block reuses the rows.
            "sequence_id": lambda kind: _numbers(kind, rows[kernels.SEQUENCE].copy()),
            "producer": self._producers,
            "key": self._keys,
            "value": self._values,
            "properties": self.properties,
        }
        columns = [makers[field.name](field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _producers(self, kind: pa.DataType) -> pa.Array:
        return _texts(kind, self._data, *self._rows[kernels.PRODUCER : kernels.PRODUCER + 2])

    def _values(self, kind: pa.DataType) -> pa.Array:
        begins, stops = self._rows[kernels.VALUE : kernels.VALUE + 2]
        return _spans(kind, self._payload, begins, stops, self._rows[kernels.EMPTY] != 0)

    def _key_bytes(self) -> NDArray[np.uint8]:
        """The bytes with keys and properties: the payload of a batch, else the entry."""
        return self._payload if self._rows[kernels.SLOT, 0] >= 0 else self._data

    def _keys(self, kind: pa.DataType) -> pa.Array:
        begins, stops = self._rows[kernels.KEY : kernels.KEY + 2]
        is_base64 = self._rows[kernels.BASE64]
        missing = begins < 0
        if not is_base64.any():
            return _spans(kind, self._key_bytes(), begins, stops, missing)
        out = np.empty(int((stops - begins).sum()), np.uint8)
        offsets = np.zeros(len(begins) + 1, np.int64)
        kernels.decode_keys(self._key_bytes(), begins, stops, is_base64, out, offsets)
        return _bytes(kind, offsets, out, missing)

    def properties(self, kind: pa.DataType) -> pa.Array:
        """The properties of each row as a map."""
        batch = self._rows[kernels.SLOT] >= 0
        if batch.any() and not batch.all():
            # Batches may be mixed with single messages, and their property tags differ.
            halves = [
                _Block(np.compress(half, self._rows, axis=1), self._data, self._payload)
                for half in (batch, ~batch)
            ]
            both = pa.concat_arrays([half.properties(kind) for half in halves])
            order = np.argsort(np.concatenate([np.flatnonzero(batch), np.flatnonzero(~batch)]))
            return both.take(_numbers(pa.int64(), order))
        tag = _PROPERTIES_OF_MESSAGE if batch.any() else _PROPERTIES_OF_ENTRY
        source = self._key_bytes()
        begins, stops = self._rows[kernels.HEAD : kernels.HEAD + 2]
        counts = np.zeros(len(begins), np.int64)
        kernels.count_pairs(source, begins, stops, tag, counts)
        spans = np.empty((4, int(counts.sum())), np.int64)
        kernels.span_pairs(source, begins, stops, tag, spans)
        offsets = np.zeros(len(begins) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        items = [_texts(pa.string(), source, *spans[at : at + 2]) for at in (0, 2)]
        return pa.MapArray.from_arrays(_numbers(pa.int32(), offsets), *items, type=kind)


def _numbers(kind: pa.DataType, values: NDArray[Any]) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [None, data])


def _microseconds(times_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert uint64 milliseconds of the protocol to microseconds, with saturation."""
    limit = _MICROSECONDS_MAX // 1000
    return np.where((times_ms < 0) | (times_ms > limit), limit, times_ms) * 1000


def _times(kind: pa.DataType, times_ms: NDArray[np.int64]) -> pa.Array:
    return _numbers(kind, _microseconds(times_ms))


def _event_times(kind: pa.DataType, times_ms: NDArray[np.int64]) -> pa.Array:
    buffers = [_validity(times_ms == 0), pa.py_buffer(_microseconds(times_ms))]
    return pa.Array.from_buffers(kind, len(times_ms), buffers)


def _validity(missing: NDArray[np.bool_]) -> pa.Buffer | None:
    if not missing.any():
        return None
    return pa.py_buffer(np.packbits(~missing, bitorder="little"))


def _spans(
    kind: pa.DataType,
    source: NDArray[np.uint8],
    begins: NDArray[np.int64],
    stops: NDArray[np.int64],
    missing: NDArray[np.bool_],
) -> pa.Array:
    sizes = np.where(missing, 0, stops - begins)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    kernels.gather(source, begins, begins + sizes, out)
    return _bytes(kind, offsets, out, missing)


def _bytes(
    kind: pa.DataType,
    offsets: NDArray[np.int64],
    data: NDArray[np.uint8],
    missing: NDArray[np.bool_],
) -> pa.Array:
    ends = pa.py_buffer(offsets.astype(np.int32))
    return pa.Array.from_buffers(
        kind, len(offsets) - 1, [_validity(missing), ends, pa.py_buffer(data)]
    )


def _texts(
    kind: pa.DataType,
    source: NDArray[np.uint8],
    begins: NDArray[np.int64],
    stops: NDArray[np.int64],
) -> pa.Array:
    array = _spans(kind, source, begins, stops, np.zeros(len(begins), np.bool_))
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        texts = [data.decode(errors="replace") for data in array.cast(pa.binary()).to_pylist()]
        return pa.array(texts, kind)
    return array


def _merged(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _unreadable(frames: Frames, number: int, what: str) -> InvalidInput:
    ledger, entry = unpack(int(frames.positions[number]))
    return InvalidInput(f"entry {ledger}:{entry} {what}")
