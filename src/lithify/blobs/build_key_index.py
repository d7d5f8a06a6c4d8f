"""Builds the key index of a blob store's segment from the segment alone.

1. Read the segment once, in pieces, every CRC checked.
2. Extract the fields of each record from all frames of a piece at once (`index_rows.py`).
3. Write the index beside the segment (`lithify.log.key_index.key_index`).

A store builds the index of a segment that it has just sealed from its recent writes, with
`put_index`. This task builds those that a crash, damage or a rewrite has left missing. Both produce
the same bytes.

Memory: 62 bytes per record. Runs in any process that sees the files. A second run replaces the
index by the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.index_rows import join_rows, rows_of_frames
from lithify.clock import SystemClock
from lithify.compaction.limits.budget import Allowance
from lithify.compaction.tasks.find_or_build_key_index import (
    IndexTask,
    has_index,
    open_index,
    place_index,
    read_index,
    segment_crc,
)
from lithify.compaction.tasks.jobs import no_check
from lithify.log.key_index.key_index import IndexFacts, encode
from lithify.log.open_segments import OpenSegment
from lithify.log.segments.scan import scan_frames
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lithify.log.key_index.key_index import KeyRows

__all__ = [
    "IndexTask",
    "has_index",
    "open_index",
    "put_index",
    "read_rows",
    "run_index",
    "scan_rows",
]


def read_rows(
    task: IndexTask, first: int, stop: int, columns: Sequence[str]
) -> tuple[KeyRows, NDArray[np.int64]]:
    """(rows of a range of buckets, first row of each bucket); a damaged index is rebuilt."""
    return read_index(task, first, stop, columns, lambda damaged: run_index(damaged, no_check))


def run_index(task: IndexTask, check: Callable[[], None]) -> int:
    """Build the segment's index, even if it exists; returns the number of rows."""
    rows = scan_rows(task, check)
    put_index(task, rows)
    return len(rows)


def scan_rows(task: IndexTask, check: Callable[[], None]) -> KeyRows:
    """The rows of a segment, read from the segment itself, in the order of positions."""
    allowance = Allowance(task.budget, SystemClock())
    segment = OpenSegment(task.fs, task.directory, task.segment)
    pieces = []
    with segment.file:
        first, after = SEGMENT_HEADER_BYTES, task.segment.first_position - 1
        for frames in scan_frames(segment.file, first, segment.frames_end, after, allowance.read):
            check()
            pieces.append(rows_of_frames(frames))
    return join_rows(pieces)


def put_index(task: IndexTask, rows: KeyRows) -> None:
    """Write the index of a segment with these records, in the order of positions."""
    facts = IndexFacts(task.order, len(rows))
    keep = np.ones(len(rows), dtype=np.bool_)
    crc = segment_crc(task)
    place_index(task, encode(rows, keep, facts, task.segment.id, task.log_id, crc))
