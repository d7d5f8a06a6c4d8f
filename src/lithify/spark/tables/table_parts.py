"""The parts of a scan of a table, and how Spark's tasks read them.

Planning, on the driver, has one part per partition of the table. If the keys begin with values
that determine the partition, there is only that one. A partition with more than `PART_ROWS` keys is
split by key ranges, for which the planner reads the keys of its snapshot, but no values.

Reading, in a task:

1. Hold the scan, so that nothing that it reads goes (`node_scan.py`).
2. If the files of the partition are on this machine: read the snapshot as columns, select the keys
   of the range that have a value at the revision, and cut the values out of the segments
   (`lithify/metastore/bulk_read.py`). The node does nothing for it. If files were deleted since,
   ask the node for the present ones.
3. Otherwise the node sends keys and values in pages, from wherever the partition is.
4. Make columns of the rows (`arrow_columns.py`).

A part can be pickled.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from lithify.errors import LithifyError, MissingFile
from lithify.fs import LocalFileSystem
from lithify.metastore.bulk_read import EntriesMissing, NotInState, read_values, select_values
from lithify.metastore.state_columns import read_columns
from lithify.raft.storage.segment_scan import scan_segments
from lithify.raft.storage.snapshots.snapshot_file import read_head, read_pieces
from lithify.spark.place import NodeRefused
from lithify.spark.tables.arrow_columns import record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from lithify.catalog.objects import TableDescriptor
    from lithify.fs import FileSystem
    from lithify.metastore.bulk_read import SelectedValues
    from lithify.metastore.state_columns import StateColumns
    from lithify.spark.tables.node_scan import NodeScan
    from lithify.tables.partition_files import PartitionFiles

__all__ = ["ScanStale", "Stored", "TablePart", "read_part", "read_stored", "split_range"]

PART_ROWS = 500_000
SPLIT_BYTES = 32 << 20
"""A smaller snapshot has fewer keys than that."""
ATTEMPTS = 5
"""To read files that are deleted meanwhile."""

_GONE = (FileNotFoundError, MissingFile, EntriesMissing, NotInState)

Stored = tuple["list[bytes] | None", "NDArray[np.uint8]", "NDArray[np.int64]"]
"""The keys of some rows, if they were asked for; all values; and where each ends."""


class ScanStale(LithifyError):
    """Files of a scan are gone, and no node holds it."""


@dataclass(frozen=True)
class TablePart(InputPartition):
    """A range of keys of a partition."""

    table: TableDescriptor
    number: int
    revision: int
    files: PartitionFiles | None
    """None if they are not on this machine."""
    low: bytes
    high: bytes
    timestamp: int
    scan: NodeScan | None
    """None if no node runs."""
    part: int = 0
    parts: int = 1


def split_range(
    fs: FileSystem, files: PartitionFiles, low: bytes, high: bytes
) -> list[tuple[bytes, bytes]]:
    """A range of keys of a partition, as ranges with about `PART_ROWS` of its keys each."""
    with fs.open_read(files.snapshot) as file:
        if file.size() < SPLIT_BYTES:
            return [(low, high)]
    columns = _columns(fs, files)
    existing = columns.existing
    step = max(1, existing // 10_000)
    stops, data = columns.key_stops, columns.keys.data
    sample = []
    for at in range(0, existing, step):
        key = bytes(data[int(stops[at - 1]) if at else 0 : int(stops[at])])
        if key >= low and (key < high or not high):
            sample.append(key)
    sample.sort()
    ranges = max(1, -(-len(sample) * step // PART_ROWS))
    cuts = sorted({sample[len(sample) * each // ranges] for each in range(1, ranges)} - {low})
    return list(pairwise([low, *cuts, high]))


def read_part(part: TablePart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a part."""
    for _, data, stops in read_stored(part, part.low, part.high):
        yield from record_batches(part.table, schema, data, stops)
    if part.scan is not None:
        # If the node is away, the hold ends by itself.
        with suppress(NodeRefused):
            part.scan.finish(part.part, part.parts)


def read_stored(
    part: TablePart, low: bytes, high: bytes, *, with_keys: bool = False
) -> Iterator[Stored]:
    """The values of a range of keys in the partition of a part; each valid until the next one."""
    if not part.revision:
        return
    scan = part.scan
    with nullcontext() if scan is None else scan.held(part.timestamp):
        if part.files is None:
            assert scan is not None
            yield from scan.pages(part.number, low, high)
        else:
            yield from _read_files(part, part.files, low, high, with_keys=with_keys)


def _read_files(
    part: TablePart, files: PartitionFiles, low: bytes, high: bytes, *, with_keys: bool
) -> Iterator[Stored]:
    fs = LocalFileSystem()
    done: set[bytes] = set()
    for _ in range(ATTEMPTS):
        selected: SelectedValues | None = None
        read = 0
        try:
            selected = select_values(_columns(fs, files), part.revision, low, high)
            selected = selected.without(done)
            frames = scan_segments(fs, files.directory, files.spans, selected.places)
            for batch in read_values(selected, frames):
                read += len(batch)
                keys = selected.keys(batch.numbers) if with_keys else None
                yield keys, batch.data, batch.stops
        except _GONE as error:
            if part.scan is None:
                what = "a node has changed the files since this query was planned"
                raise ScanStale(f"{what}: {error}; run it again") from error
            if selected is not None:
                done.update(selected.keys(selected.numbers[:read]))
            found = part.scan.files(part.number)[1]
            if not done and found in (None, files):
                # They are on another machine than this task.
                yield from part.scan.pages(part.number, low, high)
                return
            if found is None:
                what = f"partition {part.number} has left the node"
                raise ScanStale(f"{what} while it was read; run the query again") from error
            files = found
        else:
            return
    raise ScanStale(f"files of partition {part.number} were deleted {ATTEMPTS} times; run it again")


def _columns(fs: FileSystem, files: PartitionFiles) -> StateColumns:
    with fs.open_read(files.snapshot) as file:
        return read_columns(read_pieces(file, read_head(file)[1]))
