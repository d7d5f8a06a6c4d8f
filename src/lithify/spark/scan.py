"""A read of a topic, split into parts that Spark's tasks execute.

Planning, on the driver:

1. Open the log of each partition as any other process may do it, with its generation pinned
   (`lithify.log.read_only_log`). The query reads what was appended up to then.
2. Prune segments by the manifest: those outside the requested positions, and those outside the
   requested times, unless a message in them has a corrected publish time.
3. Split the rest into parts of one segment, a large segment into several parts of `PART_BYTES`.

Reading, in a task:

1. Pin the part's generation in this process, which may start long after planning. If files were
   deleted in between, because the planner has exited and a reclaim ran, the read fails with
   `QueryStale`. A part is read as it was planned or not at all.
2. If only ids and times are requested, read the key index instead of the segment: in the compacted
   view, where each live message has a row, and in a segment of the log whose index dropped no row.
   A missing or damaged index is ignored.
3. Otherwise read the frames, verify every CRC, and extract the columns (`arrow_rows.py`).
4. Drop messages outside the requested times.

A part can be pickled. For the Spark source.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from lithify.clock import SystemClock
from lithify.compaction.limits.budget import Budget
from lithify.errors import Corrupt, LithifyError, MissingFile, UnsupportedVersion
from lithify.fs import LocalFileSystem
from lithify.log.file_names import key_index_name
from lithify.log.key_index.key_index import ORDER_EVENT, ORDER_PUBLISH
from lithify.log.key_index.key_index_kernels import position_order
from lithify.log.open_segments import OpenSegment, OpenSegments, read_dead_set
from lithify.log.read_only_log import find_manifest, open_readonly, pinned_generation
from lithify.log.reader import ActiveTail, Snapshot
from lithify.log.segments.block_index import BlockIndex
from lithify.positions import NO_POSITION, POSITION_MAX
from lithify.spark.arrow_rows import ArrowRows, id_columns
from lithify.topics.compaction.build_key_index import IndexTask, open_index
from lithify.topics.messages.entry_flags import FLAG_AHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

    from numpy.typing import NDArray

    from lithify.fs import FileSystem
    from lithify.log.key_index.key_index import KeyIndex, KeyRows
    from lithify.log.manifest import Manifest, SegmentRef
    from lithify.log.reader import SegmentSpan
    from lithify.log.segments.scan import Frames
    from lithify.spark.place import Partition

__all__ = ["Bounds", "QueryStale", "ScanPart", "open_partition", "plan_partition", "read_part"]

PART_BYTES = 64 << 20
INDEX_ROWS = 1 << 16
"""Rows of a record batch that is read from the key index."""

_IN_INDEX = frozenset(
    ("topic", "partition", "ledger", "entry", "batch_index", "publish_time", "event_time")
)
_TIME_MAX = 2**63 - 1
_TIME = pa.field("publish_time", pa.timestamp("us", "UTC"))


class QueryStale(LithifyError):
    """The topic was compacted or trimmed after planning, and its files were deleted."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The requested positions and publish times; all inclusive."""

    low: int = 0
    high: int = POSITION_MAX
    time_min_ms: int = 0
    time_max_ms: int = _TIME_MAX

    def meets(self, span: SegmentSpan) -> bool:
        """May the span have a message within the bounds?"""
        ref = span.ref
        low = max(span.low, ref.first_position)
        if low > self.high or span.high < self.low or low > span.high:
            return False
        if not ref.sealed:
            return True
        # The publish time of a message may be later than that of its frame, which was corrected.
        late_enough = ref.time_max >= self.time_min_ms or ref.flags & FLAG_AHEAD != 0
        return late_enough and ref.time_min <= self.time_max_ms

    @property
    def has_times(self) -> bool:
        """Are publish times bounded?"""
        return self.time_min_ms > 0 or self.time_max_ms < _TIME_MAX

    def within(self, times_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask of the publish times that are within the bounds."""
        mask: NDArray[np.bool_] = (times_ms >= self.time_min_ms) & (times_ms <= self.time_max_ms)
        return mask


@dataclass(frozen=True)
class ScanPart(InputPartition):
    """A range of positions of one segment."""

    partition: Partition
    manifest: Manifest
    """The manifest of the log, reduced to this segment."""
    low: int
    high: int
    """Inclusive."""
    tail: ActiveTail | None
    """The end of the segment at planning, if it is active."""
    in_view: bool
    bounds: Bounds
    """The task checks the times of each message."""

    @property
    def segment(self) -> SegmentRef:
        """The one segment."""
        return self.manifest.segments[0]


def new_token() -> str:
    """A pin name that is unique among processes."""
    return f"spark-{os.getpid()}-{uuid.uuid4().hex}"


def open_partition(stack: ExitStack, fs: FileSystem, partition: Partition) -> Snapshot:
    """A snapshot of the partition's log, pinned until the stack is closed."""
    opened = open_readonly(
        fs, partition.directory, owner="Spark query", clock=SystemClock(), token=new_token()
    )
    return stack.enter_context(opened)


def plan_partition(
    fs: FileSystem,
    partition: Partition,
    snapshot: Snapshot,
    *,
    compacted: bool,
    through: int | None = None,
    bounds: Bounds,
) -> list[ScanPart]:
    """The parts of one log; for `through` see `Snapshot.spans`."""
    manifest = snapshot.manifest
    view = {ref.name for ref in manifest.view or ()} if compacted else set()
    horizon = manifest.horizon
    parts = []
    for span in filter(bounds.meets, snapshot.spans(compacted=compacted, through=through)):
        ref = span.ref
        # A segment may be in the log and in the view; above the horizon it counts for the log.
        in_view = ref.name in view and span.high <= horizon
        alone = replace(manifest, segments=(ref,), view=None, retired=(), state={})
        tail = None if ref.sealed else snapshot.tail
        low = max(span.low, ref.first_position, bounds.low)
        high = min(span.high, bounds.high)
        for first, last in _split(fs, partition.directory, ref, snapshot, low, high):
            parts.append(ScanPart(partition, alone, first, last, tail, in_view, bounds))
    return parts


def _split(
    fs: FileSystem, directory: str, ref: SegmentRef, snapshot: Snapshot, low: int, high: int
) -> Iterator[tuple[int, int]]:
    """The positions from low to high, in ranges that begin with a block."""
    if ref.sealed:
        if ref.file_bytes <= PART_BYTES:
            yield low, high
            return
        segment = OpenSegment(fs, directory, ref)
        segment.file.close()
        blocks = segment.blocks
    else:
        blocks = snapshot.tail.blocks
    positions, offsets = blocks.arrays()
    inside = (positions > low) & (positions <= high)
    positions, offsets = positions[inside], offsets[inside]
    cuts = np.flatnonzero(np.diff(offsets // PART_BYTES, prepend=0) > 0)
    borders = [low, *positions[cuts].tolist(), high + 1]
    yield from ((first, stop - 1) for first, stop in pairwise(borders))


def read_part(part: ScanPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All messages of a part within its bounds, in log order."""
    if not part.bounds.has_times:
        yield from _read_all(part, schema)
        return
    timed = schema if _TIME.name in schema.names else schema.append(_TIME)
    for batch in _read_all(part, timed):
        times_ms = batch.column(_TIME.name).cast(pa.int64()).to_numpy() // 1000
        kept = batch.filter(pa.array(part.bounds.within(times_ms)))
        yield kept.select(schema.names)


def _read_all(part: ScanPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    fs = LocalFileSystem()
    directory = part.partition.directory
    generation = part.manifest.generation
    clock, token = SystemClock(), new_token()
    try:
        with pinned_generation(
            fs, directory, generation, owner="Spark task", clock=clock, token=token
        ):
            if _IN_INDEX.issuperset(schema.names) and part.segment.sealed:
                index = _index_of(fs, part)
                if index is not None:
                    with index:
                        yield from _read_index(fs, part, index, schema)
                    return
            rows = ArrowRows(schema, part.partition.topic, part.partition.number)
            yield from rows.batches(_frames(fs, part))
    except MissingFile as error:
        names = find_manifest(fs, directory).sizes()
        segment = part.segment
        if segment.name in names and (segment.dead is None or segment.dead.name in names):
            raise
        what = f"{part.partition.topic} has been compacted or trimmed since this query was planned"
        raise QueryStale(f"{what}, generation {generation} was deleted: run it again") from error


def _frames(fs: FileSystem, part: ScanPart) -> Iterator[Frames]:
    directory = part.partition.directory
    segments = OpenSegments(fs, directory, 1)
    tail = part.tail or ActiveTail(BlockIndex(), 0, NO_POSITION)
    try:
        snapshot = Snapshot(part.manifest, segments, tail)
        for frames in snapshot.read_frames(part.low):
            stop = int(np.searchsorted(frames.positions, part.high, side="right"))
            if stop:
                yield frames if stop == len(frames) else frames.select(slice(0, stop))
            if stop < len(frames):
                return
    finally:
        segments.close()


def _index_of(fs: FileSystem, part: ScanPart) -> KeyIndex | None:
    """The segment's key index, if it has a row for each of its messages."""
    directory, ref = part.partition.directory, part.segment
    if not fs.exists(f"{directory}/{key_index_name(ref.name)}"):
        return None
    for order in (ORDER_PUBLISH, ORDER_EVENT):
        task = IndexTask(fs, directory, ref, part.manifest.log_id, order, Budget())
        try:
            index = open_index(task)
        except (Corrupt, UnsupportedVersion):
            continue
        facts = index.facts
        whole = part.in_view or index.rows == facts.messages - facts.markers
        # An unreadable entry has a row, but only a read of the segment reports it.
        if whole and not facts.opaque:
            return index
        index.__exit__()
        return None
    return None


def _read_index(
    fs: FileSystem, part: ScanPart, index: KeyIndex, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    times = {"publish_time": "publish_ms", "event_time": "event_ms"}
    requested = {name: column for name, column in times.items() if name in schema.names}
    rows: KeyRows = index.read(columns=("position", "slot", *requested.values()))
    keep = (rows.position >= part.low) & (rows.position <= part.high)
    ref = part.segment
    if ref.dead is not None:
        dead = read_dead_set(fs, part.partition.directory, ref.dead)
        keep &= ~dead.messages(rows.position, rows.slot)
    order: NDArray[np.int64] = position_order(np.flatnonzero(keep), rows.position, rows.slot)
    topic, number = part.partition.topic, part.partition.number
    for begin in range(0, len(order), INDEX_ROWS):
        chosen = order[begin : begin + INDEX_ROWS]
        columns = {name: getattr(rows, column)[chosen] for name, column in requested.items()}
        yield id_columns(schema, topic, number, rows.position[chosen], rows.slot[chosen], columns)
