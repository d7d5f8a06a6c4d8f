"""Builds the key index of a topic's segment, the first step of a run for each new segment.

1. Read the segment once, in pieces, with every CRC verified.
2. Compiled loops parse the metadata of each entry and of each message in a batch and write one row
   per message: key hash, position, slot, times and flags. Compressed batches are decompressed one
   by one in between.
3. Drop rows that can never win (`key_index_reduce_kernels.py`). Skipped if the segment has a dead
   set, or an index of the other order that a concurrent run may be using: the winner in one order
   may be dead in the other.
4. Write the remaining rows beside the segment (`lithify.log.key_index.key_index`).

The rows of an entry; `key_index_flags.py` has the flags:

| entry | rows |
|---|---|
| single message with a key | one; a tombstone if its value is null or empty |
| message in a batch | the same, by its slot; none if it is compacted out |
| no key, or a null key | one, keyless |
| server marker | none |
| encrypted batch; unreadable batch or metadata | one, opaque, for the whole entry |
| batch that exceeds a limit when decompressed | the same |
| chunk | one; its `group` is a hash of the uuid |

The `group` of an opaque batch is the message count from its metadata. For all other rows it is 0.

A key is compared by its bytes. Base64 text is decoded first; invalid Base64 is the key itself.
Keyless and opaque rows have a hash of their position.

Memory: 62 bytes per message of the segment, plus 18 while rows are dropped. A build may run in any
process that has access to the files. A repeated build replaces the index with the same bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lithify.clock import SystemClock
from lithify.compaction.limits.budget import Allowance
from lithify.compaction.tasks.find_or_build_key_index import (
    IndexTask,
    has_index,
    index_facts,
    index_rows,
    open_index,
    place_index,
)
from lithify.log.key_index.key_index import (
    COLUMNS,
    ORDER_EVENT,
    ORDER_PUBLISH,
    IndexFacts,
    KeyRows,
    encode,
    segment_crc_of,
)
from lithify.log.key_index.key_index_kernels import bucket_order
from lithify.log.open_segments import OpenSegment
from lithify.log.segments.scan import scan_frames
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES, read_footer
from lithify.topics.compaction import key_index_kernels as kernels
from lithify.topics.compaction.key_index_reduce_kernels import reduce_rows
from lithify.topics.messages.message import PLAIN_BYTES_MAX, open_payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lithify.log.segments.scan import Frames

__all__ = [
    "IndexTask",
    "SegmentRows",
    "has_index",
    "index_facts",
    "index_rows",
    "open_index",
    "run_index",
]

BLOCK_ROWS = 4000
"""Rows of 80 bytes, 312 KiB together, so that a block fits into the CPU's cache. Not a power of
two: the columns of a row would map to the same few cache sets and evict each other."""


def run_index(task: IndexTask, check: Callable[[], None]) -> IndexFacts:
    """Build the segment's index, even if it has one; `check` may raise to cancel."""
    allowance = Allowance(task.budget, SystemClock(), check)
    segment = OpenSegment(task.fs, task.directory, task.segment)
    with segment.file:
        footer = read_footer(segment.file)
        collected = SegmentRows(footer.entries, task.log_id)
        first, after = SEGMENT_HEADER_BYTES, task.segment.first_position - 1
        for frames in scan_frames(segment.file, first, segment.frames_end, after, allowance.read):
            check()
            collected.add(frames)
    rows = collected.rows()
    facts = collected.facts(task.order)
    keep = np.ones(len(rows), dtype=np.bool_)
    if task.segment.dead is None and not _has_other_order(task):
        # With a dead set, a dead row could beat a live one, so all rows stay.
        _reduce(rows, keep, by_event=task.order == ORDER_EVENT)
    pieces = encode(rows, keep, facts, task.segment.id, task.log_id, segment_crc_of(footer))
    allowance.write(sum(len(piece) for piece in pieces))
    place_index(task, pieces)
    return facts


def _has_other_order(task: IndexTask) -> bool:
    return has_index(replace(task, order=ORDER_EVENT + ORDER_PUBLISH - task.order))


def _reduce(rows: KeyRows, keep: NDArray[np.bool_], *, by_event: bool) -> None:
    """Clear `keep` of rows that can never win."""
    order, starts = bucket_order(rows.hash_high, keep)
    reduce_rows(
        order,
        starts,
        rows.hash_high,
        rows.hash_low,
        rows.flags,
        rows.event_ms,
        rows.group,
        by_event,
        keep.view(np.uint8),
    )


class SegmentRows:
    """Collects the rows of a segment in the order of position and slot.

    Compiled loops fill a block of rows, which is then appended to one array per column.
    """

    __slots__ = (
        "_block",
        "_columns",
        "_filled",
        "_plain",
        "_row_count",
        "_scratch",
        "_state",
    )

    def __init__(self, entries: int, log_id: bytes) -> None:
        # One row per entry; batches grow the arrays.
        self._columns = {name: np.empty(entries, dtype=kind) for name, kind in COLUMNS.items()}
        self._row_count = 0
        self._block = np.empty((kernels.COLUMNS, BLOCK_ROWS), dtype=np.int64)
        self._filled = 0
        self._state = kernels.new_state(log_id)
        self._plain = np.empty(0, dtype=np.uint8)
        self._scratch = np.empty(0, dtype=np.uint8)

    def add(self, frames: Frames) -> None:
        """Add the rows of some frames."""
        self._make_room(len(frames.buffer))
        number = 0
        while number < len(frames):
            number, self._filled, why = kernels.index_frames(
                frames.buffer,
                frames.offsets,
                number,
                self._block,
                self._filled,
                self._scratch,
                self._state,
            )
            if why == kernels.FULL:
                self._empty_block(int(self._state[kernels.PAUSE]))
            elif why == kernels.PACKED:
                self._add_packed(frames, number)
                number += 1

    def _add_packed(self, frames: Frames, number: int) -> None:
        """Add the rows of a compressed batch."""
        begin, end, codec, size = self._state[kernels.PAUSE : kernels.PAUSE + 4].tolist()
        plain_bytes = 0
        if size <= PLAIN_BYTES_MAX:
            self._make_room(size)
            payload = frames.buffer.data[begin:end]
            if open_payload(codec, payload, self._plain.data[:size]):
                plain_bytes = size
        why = kernels.FULL
        while why == kernels.FULL:
            self._filled, why = kernels.index_plain(
                frames.buffer,
                frames.offsets[number],
                self._plain,
                plain_bytes,
                self._block,
                self._filled,
                self._scratch,
                self._state,
            )
            if why == kernels.FULL:
                self._empty_block(int(self._state[kernels.PAUSE]))

    def _make_room(self, size: int) -> None:
        """Grow the buffers for a decompressed payload and for decoded keys, which are smaller."""
        if len(self._scratch) < size:
            self._plain = np.empty(size, dtype=np.uint8)
            self._scratch = np.empty(size, dtype=np.uint8)

    def _empty_block(self, wanted: int) -> None:
        """Append the block's rows to the columns, and make room for `wanted` rows in the block."""
        stop = self._row_count + self._filled
        for name, block in zip(COLUMNS, self._block, strict=True):
            column = self._columns[name]
            if stop > len(column):
                # Grow generously: unwritten pages take no memory, but a copy takes time.
                column = np.empty(4 * stop, dtype=column.dtype)
                column[: self._row_count] = self._columns[name][: self._row_count]
                self._columns[name] = column
            column[self._row_count : stop] = block[: self._filled]
        self._row_count, self._filled = stop, 0
        if wanted > self._block.shape[1]:
            self._block = np.empty((kernels.COLUMNS, wanted), dtype=np.int64)

    def facts(self, order: int) -> IndexFacts:
        """The counts of messages, markers and opaque entries."""
        state = self._state.tolist()
        return IndexFacts(
            order, state[kernels.MESSAGES], state[kernels.MARKERS], state[kernels.OPAQUES]
        )

    def rows(self) -> KeyRows:
        """All rows."""
        self._empty_block(0)
        return KeyRows(
            **{name: column[: self._row_count] for name, column in self._columns.items()}
        )
