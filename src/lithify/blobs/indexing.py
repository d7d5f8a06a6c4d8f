"""Makes the key index of a blob store's segment, out of the segment alone.

1. Read the segment once, in pieces, every CRC checked.
2. Take the fields of each record out of all frames of a piece at once (`rows.py`).
3. Write the index beside the segment (`lithify.log.keyindex`).

A store makes the index of a segment that it has just sealed from its recent writes, by `put_index`;
this task is for what a crash, damage or a rewrite leaves without one. Both give the same bytes.

Memory: 62 bytes a record. Runs in any process that sees the files; run twice, the second one
replaces the first by the same bytes.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.rows import join_rows, rows_of_frames
from lithify.clock import SystemClock
from lithify.compaction.budget import Allowance, Budget
from lithify.compaction.jobs import no_check
from lithify.errors import Corrupt, MissingFile, UnsupportedVersion
from lithify.log.keyindex import (
    ORDER_PUBLISH,
    IndexFacts,
    KeyIndex,
    encode,
    segment_crc_of,
    write_key_index,
)
from lithify.log.names import key_index_name
from lithify.log.reader import OpenSegment
from lithify.log.scan import scan_frames
from lithify.log.segment import SEGMENT_HEADER_BYTES, read_footer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lithify.fs import File, FileSystem
    from lithify.log.keyindex import KeyRows
    from lithify.log.manifest import SegmentRef

__all__ = [
    "IndexTask",
    "has_index",
    "open_index",
    "put_index",
    "read_rows",
    "run_index",
    "scan_rows",
]


@dataclass(frozen=True, slots=True)
class IndexTask:
    """One sealed segment, as names and numbers only: it can be sent to another process."""

    fs: FileSystem
    directory: str
    segment: SegmentRef
    log_id: bytes
    budget: Budget = field(default_factory=Budget)


def open_index(task: IndexTask) -> KeyIndex:
    """The segment's index, to be closed by the caller; raises if it has none that is whole."""
    with _open_file(task, task.segment.name) as segment:
        segment_crc = segment_crc_of(read_footer(segment))
    file = _open_file(task, key_index_name(task.segment.name))
    try:
        return KeyIndex(file, task.segment.id, task.log_id, segment_crc)
    except BaseException:
        file.close()
        raise


def _open_file(task: IndexTask, name: str) -> File:
    path = f"{task.directory}/{name}"
    try:
        return task.fs.open_read(path)
    except FileNotFoundError:
        raise MissingFile(path, "an index task") from None


def has_index(task: IndexTask) -> bool:
    """Whether the segment has its index; header, tables and size are looked at."""
    try:
        with open_index(task):
            return True
    except (Corrupt, UnsupportedVersion):
        return False


def read_rows(
    task: IndexTask, first: int, stop: int, columns: Sequence[str]
) -> tuple[KeyRows, NDArray[np.int64]]:
    """(rows of a range of buckets, first row of each bucket); a damaged index is made again."""
    try:
        with open_index(task) as index:
            return index.read(first, stop, columns), index.starts
    except (Corrupt, UnsupportedVersion):
        run_index(task, no_check)
    with open_index(task) as index:
        return index.read(first, stop, columns), index.starts


def run_index(task: IndexTask, check: Callable[[], None]) -> int:
    """Make the segment's index, also if it has one; the number of rows."""
    rows = scan_rows(task, check)
    put_index(task, rows)
    return len(rows)


def scan_rows(task: IndexTask, check: Callable[[], None]) -> KeyRows:
    """The rows of a segment, from the segment itself, in the order of positions."""
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
    """Write the index of a segment whose records these are, in the order of positions."""
    with _open_file(task, task.segment.name) as segment:
        segment_crc = segment_crc_of(read_footer(segment))
    facts = IndexFacts(ORDER_PUBLISH, len(rows))
    keep = np.ones(len(rows), dtype=np.bool_)
    pieces = encode(rows, keep, facts, task.segment.id, task.log_id, segment_crc)
    path = f"{task.directory}/{key_index_name(task.segment.name)}"
    write_key_index(task.fs, path, pieces, f"{os.getpid():x}-{threading.get_ident():x}")
