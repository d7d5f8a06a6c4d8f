"""Key indexes as used by tasks: located by segment, opened, and built if necessary.

`lithify.log.key_index.key_index` defines the file. The store decides which rows a segment has, and
passes the function that builds an index. This module finds the index of a segment, validates it,
and reads it, whatever its state.

A key index can always be rebuilt: one that is missing, damaged, of another segment or of another
order is rebuilt and read again. A second failure is raised.

Called by the rules of stores and their tasks, in any process that sees the files.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.compaction.limits.budget import Budget
from lithify.errors import Corrupt, DamagedFile, MissingFile, UnsupportedVersion
from lithify.log.file_names import key_index_name
from lithify.log.key_index.key_index import ORDER_PUBLISH, KeyIndex, segment_crc_of, write_key_index
from lithify.log.segments.segment_file import read_footer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.fs import File, FileSystem
    from lithify.log.key_index.key_index import IndexFacts, KeyRows
    from lithify.log.manifest import SegmentRef

__all__ = [
    "IndexTask",
    "has_index",
    "index_facts",
    "index_rows",
    "open_index",
    "place_index",
    "read_index",
    "segment_crc",
]


@dataclass(frozen=True, slots=True)
class IndexTask:
    """One sealed segment, by names and numbers only: it can be sent to another process."""

    fs: FileSystem
    directory: str
    segment: SegmentRef
    log_id: bytes
    order: int = ORDER_PUBLISH
    """`ORDER_PUBLISH` or `ORDER_EVENT`: the time that decides which message of a key wins."""
    budget: Budget = field(default_factory=Budget)
    """The budget of this task."""


def open_index(task: IndexTask) -> KeyIndex:
    """Open the segment's index; the caller closes it. Raises if there is no intact one."""
    crc = segment_crc(task)
    file = _open_file(task, key_index_name(task.segment.name))
    try:
        index = KeyIndex(file, task.segment.id, task.log_id, crc)
    except BaseException:
        file.close()
        raise
    found = index.facts.order
    if found != task.order:
        file.close()
        raise DamagedFile(file.path, 12, f"key index of order {found}, not {task.order}")
    return index


def segment_crc(task: IndexTask) -> int:
    """The CRC that identifies the segment in its index."""
    with _open_file(task, task.segment.name) as segment:
        return segment_crc_of(read_footer(segment))


def _open_file(task: IndexTask, name: str) -> File:
    path = f"{task.directory}/{name}"
    try:
        return task.fs.open_read(path)
    except FileNotFoundError:
        raise MissingFile(path, "an index task") from None


def has_index(task: IndexTask) -> bool:
    """Has the segment an index in this order? Reads header, tables and size."""
    try:
        with open_index(task):
            return True
    except (Corrupt, UnsupportedVersion):
        return False


def index_facts(task: IndexTask) -> IndexFacts:
    """The counts in the segment's index."""
    with open_index(task) as index:
        return index.facts


def index_rows(task: IndexTask) -> int:
    """Number of rows in the segment's index."""
    with open_index(task) as index:
        return int(index.rows)


def read_index(
    task: IndexTask,
    first: int,
    stop: int,
    columns: Sequence[str],
    make: Callable[[IndexTask], object],
    before_read: Callable[[int], None] = lambda _: None,
) -> tuple[KeyRows, NDArray[np.int64]]:
    """(rows of a range of buckets, first row of each bucket); `make` rebuilds a damaged index."""
    try:
        with open_index(task) as index:
            return index.read(first, stop, columns, before_read), index.starts
    except (Corrupt, UnsupportedVersion):
        make(task)
    with open_index(task) as index:
        return index.read(first, stop, columns, before_read), index.starts


def place_index(task: IndexTask, pieces: Sequence[Buffer]) -> None:
    """Write an encoded index beside its segment, replacing an existing one."""
    path = f"{task.directory}/{key_index_name(task.segment.name)}"
    write_key_index(task.fs, path, pieces, f"{os.getpid():x}-{threading.get_ident():x}")
