"""A blob store's statistics against reading its index files once.

The store has segments of a hundred thousand records each, as far as its key indexes know; that is
all that statistics read, so the segments themselves are almost empty. A fifth of the records
deletes a blob of the segment before, half of the puts expire. Neither side has anything in the page
cache; the raw side reads the files in pieces of 1 MiB.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from bench.cold import drop_from_cache
from bench.harness import Case
from lithify.blobs.build_key_index import IndexTask, put_index
from lithify.blobs.records import NEVER_MS, BlobRecordKind
from lithify.blobs.store import BlobStore
from lithify.fs import LocalFileSystem
from lithify.log.file_names import key_index_name
from lithify.log.key_index.key_index import COLUMNS, KeyRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    _Hashes = NDArray[np.uint64]

__all__ = ["statistics"]

SEGMENT_RECORDS = 100_000
SEGMENT_BYTES = 2**20
PIECE_BYTES = 2**20
FOURTEEN_DAYS_MS = 14 * 24 * 3_600_000
SEED = 5

FS = LocalFileSystem()


def statistics(directory: str, records: int) -> Iterator[Case]:
    """What is valid now and in the next two days, of a store of this many records."""
    segments = -(-records // SEGMENT_RECORDS)
    path = f"{directory}/store"
    with BlobStore.create(
        FS, path, capacity_bytes=(segments + 2) * SEGMENT_BYTES, segment_bytes=SEGMENT_BYTES
    ) as store:
        files = list(_indexes(store, segments, records // segments))

        def ours() -> float:
            began_s = time.perf_counter()
            found = store.statistics()
            took_s = time.perf_counter() - began_s
            assert 0 < found.valid_records < records
            return took_s

        def raw() -> float:
            buffer = bytearray(PIECE_BYTES)
            began_s = time.perf_counter()
            for name in files:
                with open(name, "rb", buffering=0) as file:
                    while file.readinto(buffer):
                        pass
            return time.perf_counter() - began_s

        def cold(side: Callable[[], float]) -> float:
            drop_from_cache(files)
            return side()

        yield Case(
            "blob-statistics",
            f"valid bytes now and forecast, store of {records:,} records",
            "reading its index files once; nothing in the page cache",
            0.3,
            records,
            "records",
            lambda: cold(ours),
            lambda: cold(raw),
        )


def _indexes(store: BlobStore, segments: int, records: int) -> Iterator[str]:
    """Fill the store, and put indexes of this many records in the place of the real ones."""
    rng = np.random.default_rng(SEED)
    for _ in range(segments):
        store.put(b"x", service="bench")
        store.writer.roll()
    manifest = store.log.manifest
    before: _Hashes = np.empty((2, 0), np.uint64)
    for segment in manifest.segments:
        if segment.sealed:
            rows, before = _rows(rng, records, before, time.time_ns() // 1_000_000)
            put_index(IndexTask(FS, store.directory, segment, manifest.log_id), rows)
            yield f"{store.directory}/{key_index_name(segment.name)}"


def _rows(
    rng: np.random.Generator, records: int, before: _Hashes, now_ms: int
) -> tuple[KeyRows, _Hashes]:
    """(the rows of a segment, the hashes in it); `before` are those of the segment before."""
    hashes = rng.integers(0, 2**64, (2, records), dtype=np.uint64)
    deletes = min(records // 5, before.shape[1])
    hashes[:, records - deletes :] = before[:, :deletes]
    kinds = np.full(records, BlobRecordKind.PUT)
    kinds[records - deletes :] = BlobRecordKind.DELETE
    lengths = rng.integers(100, 60_000, records)
    around_ms = now_ms + rng.integers(-FOURTEEN_DAYS_MS, FOURTEEN_DAYS_MS, records)
    columns = {
        "hash_high": hashes[0],
        "hash_low": hashes[1],
        "position": np.arange(records),
        "slot": np.zeros(records),
        "slots": np.ones(records),
        "length": lengths,
        "flags": kinds,
        "publish_ms": now_ms - rng.integers(0, FOURTEEN_DAYS_MS, records),
        "event_ms": np.where(rng.random(records) < 0.5, NEVER_MS, around_ms),
        "group": np.cumsum(lengths),
    }
    return KeyRows(**{n: columns[n].astype(kind) for n, kind in COLUMNS.items()}), hashes
