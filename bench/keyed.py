"""Logs of keyed messages, made fast: what the rows of `compaction.py` compact.

A message has one of as many keys as there are fifths of messages, of number K·u^1.5 for an even u:
low ones come more often, and about a fifth of the messages is live. Entries are as clients send
them, CRC included: copies of a template, into which keys, values and CRCs are put.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numba import njit
from pyarrow import parquet

from lithify.log.segments.frame_batch import Slices
from lithify.log.segments.frame_kernels import crc32c_of
from lithify.topics.messages.entry_flags import FLAG_BATCH
from lithify.topics.messages.message import compress, encode_entry
from lithify.topics.messages.message_pb2 import MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lithify.log.log import Log

__all__ = ["KEY_BYTES", "Load", "fill", "parquet_batches"]

KEY_BYTES = 16
TIME_MS = 1_700_000_000_000
APPEND_BYTES = 64 * 2**20
VALUES_BYTES = 64 * 2**20
CRC_BYTES = 6
"""In front of an entry: two that say that a CRC follows, and the CRC."""


@dataclass(frozen=True, slots=True)
class Load:
    """Messages to be appended."""

    messages: int
    keys: int
    value_bytes: int = 1024
    batch: int = 1
    """Messages in an entry; 1 is no batch."""
    codec: int = 0
    distinct: bool = False
    """Each has a key of its own."""
    seed: int = 1


def fill(log: Log, load: Load) -> None:
    """Append the messages and seal what was written."""
    append = _append_compressed if load.codec else _append_plain
    for keys in key_runs(load):
        append(log, load, keys)
    log.roll()


def parquet_batches(load: Load, directory: str) -> None:
    """The same messages as Parquet files: key, value and number."""
    os.mkdir(directory)
    written = 0
    for number, keys in enumerate(key_runs(load)):
        rows = _messages(load, keys)
        first = rows.shape[1] - load.value_bytes
        table = pa.table(
            {
                "key": pa.array([b"%016d" % key for key in keys.tolist()], pa.binary()),
                "value": pa.array([row.tobytes() for row in rows[:, first:]], pa.binary()),
                "seq": np.arange(written, written + len(keys)),
            }
        )
        parquet.write_table(table, f"{directory}/{number:06}.parquet", compression="none")
        written += len(keys)


def key_runs(load: Load) -> Iterator[NDArray[np.int64]]:
    """The numbers of the messages' keys, some megabytes of messages at a time."""
    random = np.random.default_rng(load.seed)
    most = max(1, APPEND_BYTES // (load.value_bytes * load.batch)) * load.batch
    for first in range(0, load.messages, most):
        count = min(most, load.messages - first)
        if load.distinct:
            yield np.arange(first, first + count)
        else:
            yield (load.keys * random.random(count) ** 1.5).astype(np.int64)


@cache
def values(seed: int, *, compressible: bool) -> NDArray[np.uint8]:
    """Bytes that values are cut out of: random ones, or words that compress to about a third."""
    random = np.random.default_rng(seed)
    if not compressible:
        return random.integers(0, 256, VALUES_BYTES, np.uint8)
    words = random.integers(97, 123, (4096, 8), np.uint8)
    words[:, -1] = 32
    return words[random.integers(0, len(words), VALUES_BYTES // 8)].reshape(-1)


def _rows(load: Load, keys: NDArray[np.int64], template: bytes, key_at: int) -> NDArray[np.uint8]:
    """The template once for each key, with the key and a value at its end."""
    pool = values(load.seed, compressible=load.codec != 0)
    rows = np.empty((len(keys), len(template)), np.uint8)
    rows[:] = np.frombuffer(template, np.uint8)
    _put_keys_and_values(rows, keys, key_at, pool, load.value_bytes)
    return rows


def _metadata(load: Load) -> MessageMetadata:
    metadata = MessageMetadata(producer_name="bench", sequence_id=1, publish_time=TIME_MS)
    if load.batch > 1:
        metadata.num_messages_in_batch = load.batch
    return metadata


def _messages(load: Load, keys: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Messages in the format of a batch, one per row."""
    key = "0" * KEY_BYTES
    single = SingleMessageMetadata(partition_key=key, payload_size=load.value_bytes)
    head = single.SerializeToString()
    template = len(head).to_bytes(4, "big") + head + bytes(load.value_bytes)
    return _rows(load, keys, template, template.index(key.encode()))


def _append_plain(log: Log, load: Load, keys: NDArray[np.int64]) -> None:
    metadata = _metadata(load)
    if load.batch > 1:
        rows = _messages(load, keys)
        count = len(keys) // load.batch
        entry = encode_entry(metadata, bytes(load.batch * rows.shape[1]))
        data = np.empty((count, len(entry)), np.uint8)
        data[:] = np.frombuffer(entry, np.uint8)
        data[:, -load.batch * rows.shape[1] :] = rows[: count * load.batch].reshape(count, -1)
    else:
        metadata.partition_key = "0" * KEY_BYTES
        template = encode_entry(metadata, bytes(load.value_bytes))
        data = _rows(load, keys, template, template.index(b"0" * KEY_BYTES))
    _put_crcs(data)
    starts = np.arange(len(data), dtype=np.int64) * data.shape[1]
    bodies = Slices(data.reshape(-1), starts, starts + data.shape[1], np.full(len(data), -1))
    flags = FLAG_BATCH if load.batch > 1 else 0
    log.append_many(bodies, time_ms=TIME_MS, flags=flags, tags=load.batch)


def _append_compressed(log: Log, load: Load, keys: NDArray[np.int64]) -> None:
    rows = _messages(load, keys)
    metadata = _metadata(load)
    metadata.compression = load.codec  # type: ignore[assignment]
    metadata.uncompressed_size = load.batch * rows.shape[1]
    bodies = [
        encode_entry(metadata, compress(load.codec, rows[first : first + load.batch].tobytes()))
        for first in range(0, len(rows) - load.batch + 1, load.batch)
    ]
    log.append_many(bodies, time_ms=TIME_MS, flags=FLAG_BATCH, tags=load.batch)


@njit(cache=True)
def _put_keys_and_values(rows, keys, key_at, pool, value_bytes):  # type: ignore[no-untyped-def]
    room = pool.size - value_bytes
    for row in range(rows.shape[0]):
        left = keys[row]
        for digit in range(KEY_BYTES - 1, -1, -1):
            rows[row, key_at + digit] = 48 + left % 10
            left //= 10
        at = (keys[0] + row) * 4_099 % room
        rows[row, rows.shape[1] - value_bytes :] = pool[at : at + value_bytes]


@njit(cache=True)
def _put_crcs(entries):  # type: ignore[no-untyped-def]
    for row in range(entries.shape[0]):
        crc = crc32c_of(entries[row], CRC_BYTES, entries.shape[1])
        for byte in range(4):
            entries[row, 2 + byte] = (crc >> (24 - 8 * byte)) & 0xFF
