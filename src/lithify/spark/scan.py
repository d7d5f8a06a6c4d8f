"""A read of a topic, cut into parts that Spark's tasks do.

Planning, on the driver:

1. The log of each partition of the topic is opened as any other process may do it, its generation
   pinned (`lithify.log.read_only_log`). What was appended up to then is read, nothing after it.
2. Segments are left out by what the manifest says of them: those outside the positions that are
   asked for, and those outside the times, unless a message in them was sent with a later time than
   was believed.
3. The rest is cut into parts of one segment, of a large one into several, each about `PART_BYTES`.

Reading, in a task:

1. The part's generation is pinned again by this process, which may start long after planning. If
   files were deleted in between, which takes a planner that is gone and a reclaim, `QueryStale`
   says so. A part is read as it was planned or not at all.
2. If nothing is asked for but ids and times, the key index answers, without touching the segment:
   in the compacted view, whose live messages all have a row, and in a segment of the log of which
   no row was dropped. An index that is missing or damaged is no loss.
3. Else the frames are read, every CRC checked, and cut into columns (`arrow_rows.py`).
4. Messages outside the times that are asked for are dropped.

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
from lithify.log.keyindex.key_index import ORDER_EVENT, ORDER_PUBLISH
from lithify.log.keyindex.key_index_kernels import position_order
from lithify.log.read_only_log import find_manifest, open_readonly, pinned_generation
from lithify.log.reader import ActiveTail, OpenSegment, OpenSegments, Snapshot, read_dead_set
from lithify.log.segments.block_index import BlockIndex
from lithify.positions import NO_POSITION, POSITION_MAX
from lithify.spark.arrow_rows import ArrowRows, id_columns
from lithify.topics.compaction.key_index import IndexTask, open_index
from lithify.topics.subscriptions.entry_flags import FLAG_AHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

    from numpy.typing import NDArray

    from lithify.fs import FileSystem
    from lithify.log.keyindex.key_index import KeyIndex, KeyRows
    from lithify.log.manifest import Manifest, SegmentRef
    from lithify.log.reader import SegmentSpan
    from lithify.log.segments.scan import Frames
    from lithify.spark.place import Partition

__all__ = ["Bounds", "QueryStale", "ScanPart", "open_partition", "plan_partition", "read_part"]

PART_BYTES = 64 << 20
INDEX_ROWS = 1 << 16
"""Rows of a record batch that the key index answers."""

_IN_INDEX = frozenset(
    ("topic", "partition", "ledger", "entry", "batch_index", "publish_time", "event_time")
)
_TIME_MAX = 2**63 - 1
_TIME = pa.field("publish_time", pa.timestamp("us", "UTC"))


class QueryStale(LithifyError):
    """The topic was compacted or trimmed after a query was planned, and its files are gone."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a query is to see of positions and publish times; all inclusive."""

    low: int = 0
    high: int = POSITION_MAX
    time_min_ms: int = 0
    time_max_ms: int = _TIME_MAX

    def meets(self, span: SegmentSpan) -> bool:
        """May there be something in it?"""
        ref = span.ref
        low = max(span.low, ref.first_position)
        if low > self.high or span.high < self.low or low > span.high:
            return False
        if not ref.sealed:
            return True
        # What was sent with a time that was not believed is later than its frame says.
        late_enough = ref.time_max >= self.time_min_ms or ref.flags & FLAG_AHEAD != 0
        return late_enough and ref.time_min <= self.time_max_ms

    @property
    def has_times(self) -> bool:
        """Do publish times matter?"""
        return self.time_min_ms > 0 or self.time_max_ms < _TIME_MAX

    def within(self, times_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these publish times are asked for?"""
        found: NDArray[np.bool_] = (times_ms >= self.time_min_ms) & (times_ms <= self.time_max_ms)
        return found


@dataclass(frozen=True)
class ScanPart(InputPartition):
    """Positions of one segment."""

    partition: Partition
    manifest: Manifest
    """The log as if it had only this segment."""
    low: int
    high: int
    """Inclusive, as those of the segment are."""
    tail: ActiveTail | None
    """How far the segment reached, if it is active."""
    in_view: bool
    bounds: Bounds
    """Of which the times are still to be looked at, message by message."""

    @property
    def segment(self) -> SegmentRef:
        """The one segment."""
        return self.manifest.segments[0]


def new_token() -> str:
    """The name of a pin that no other process has."""
    return f"spark-{os.getpid()}-{uuid.uuid4().hex}"


def open_partition(stack: ExitStack, fs: FileSystem, partition: Partition) -> Snapshot:
    """What the partition's log holds now, pinned until the stack is closed."""
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
    """The parts of one log; `through` as in `Snapshot.spans`."""
    manifest = snapshot.manifest
    view = {ref.name for ref in manifest.view or ()} if compacted else set()
    horizon = manifest.horizon
    parts = []
    for span in filter(bounds.meets, snapshot.spans(compacted=compacted, through=through)):
        ref = span.ref
        # A segment may stand in the log and in the view; above the horizon it is the log's.
        in_view = ref.name in view and span.high <= horizon
        alone = replace(manifest, segments=(ref,), view=None, retired=(), state={})
        tail = None if ref.sealed else snapshot.tail
        low = max(span.low, ref.first_position, bounds.low)
        high = min(span.high, bounds.high)
        for first, last in _cut(fs, partition.directory, ref, snapshot, low, high):
            parts.append(ScanPart(partition, alone, first, last, tail, in_view, bounds))
    return parts


def _cut(
    fs: FileSystem, directory: str, ref: SegmentRef, snapshot: Snapshot, low: int, high: int
) -> Iterator[tuple[int, int]]:
    """The positions from low to high, in stretches that begin with a block."""
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
    """All messages of a part that are within its bounds, in their order."""
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
        raise QueryStale(f"{what}, its generation {generation} is gone: run it again") from error


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
    """The segment's key index, if it has one that knows all of its messages."""
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
        # What cannot be opened has a row, but reading it says so.
        if whole and not facts.opaque:
            return index
        index.__exit__()
        return None
    return None


def _read_index(
    fs: FileSystem, part: ScanPart, index: KeyIndex, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    times = {"publish_time": "publish_ms", "event_time": "event_ms"}
    wanted = {name: column for name, column in times.items() if name in schema.names}
    rows: KeyRows = index.read(columns=("position", "slot", *wanted.values()))
    keep = (rows.position >= part.low) & (rows.position <= part.high)
    ref = part.segment
    if ref.dead is not None:
        dead = read_dead_set(fs, part.partition.directory, ref.dead)
        keep &= ~dead.messages(rows.position, rows.slot)
    order: NDArray[np.int64] = position_order(np.flatnonzero(keep), rows.position, rows.slot)
    topic, number = part.partition.topic, part.partition.number
    for begin in range(0, len(order), INDEX_ROWS):
        some = order[begin : begin + INDEX_ROWS]
        columns = {name: getattr(rows, column)[some] for name, column in wanted.items()}
        yield id_columns(schema, topic, number, rows.position[some], rows.slot[some], columns)
