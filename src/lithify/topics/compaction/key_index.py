"""Makes the key index of a topic's segment: what a run does first with each new one.

1. Read the segment once, in pieces, every CRC checked.
2. Compiled loops read the fields of each entry's metadata and of each message of a batch, and put a
   row: the hash of its key, position and slot, its times and flags. Batches that are compressed are
   opened one by one in between.
3. Rows that can never win are dropped (`key_index_reduce_kernels.py`), unless the segment was
   judged before, or has an index of the other order, by which a run may be judging it right now:
   what wins in one order may be dead by the other.
4. The rest is written beside the segment (`lithify.log.keyindex.key_index`).

What the flags of a row say is in `key_index_flags.py`:

| entry | its rows |
|---|---|
| single message with a key | one; a tombstone if its value is null or empty |
| message of a batch | the same, by its slot; none if it is compacted out |
| no key, or one said to be null | one, keyless |
| server marker | none |
| encrypted batch; batch or metadata that cannot be read | one, opaque, for the entry as a whole |
| batch that is over a limit when opened | the same |
| chunk | one; its `group` is a hash of the uuid |

The `group` of an opaque batch is the number of messages that it says it has; of all others it is 0.

A key is its bytes; base64 text is decoded first, and text that only says it were base64 is the key
as it stands. Rows without a key and opaque ones have a hash of their position.

Memory: 62 bytes a message of the segment and 18 while they are reduced. Runs in any process that
sees the files; run twice, the second one replaces the first by the same bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lithify.clock import SystemClock
from lithify.compaction.limits.budget import Allowance
from lithify.compaction.tasks.key_indexes import (
    IndexTask,
    has_index,
    index_facts,
    index_rows,
    open_index,
    place_index,
)
from lithify.log.keyindex.key_index import (
    COLUMNS,
    ORDER_EVENT,
    ORDER_PUBLISH,
    IndexFacts,
    KeyRows,
    encode,
    segment_crc_of,
)
from lithify.log.keyindex.key_index_kernels import bucket_order
from lithify.log.reader import OpenSegment
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
"""Of 80 bytes each, 312 KiB: in the CPU's cache while it is filled. No power of two: the columns of
a row would stand in the same few places of that cache and drive each other out."""


def run_index(task: IndexTask, check: Callable[[], None]) -> IndexFacts:
    """Make the segment's index, also if it has one; `check` may raise to stop it."""
    allowance = Allowance(task.budget, SystemClock(), check)
    segment = OpenSegment(task.fs, task.directory, task.segment)
    with segment.file:
        footer = read_footer(segment.file)
        found = SegmentRows(footer.entries, task.log_id)
        first, after = SEGMENT_HEADER_BYTES, task.segment.first_position - 1
        for frames in scan_frames(segment.file, first, segment.frames_end, after, allowance.read):
            check()
            found.add(frames)
    rows = found.rows()
    facts = found.facts(task.order)
    keep = np.ones(len(rows), dtype=np.bool_)
    if task.segment.dead is None and not _has_other_order(task):
        # Where it was judged before, rows that are dead must not beat those that are live.
        _reduce(rows, keep, by_event=task.order == ORDER_EVENT)
    pieces = encode(rows, keep, facts, task.segment.id, task.log_id, segment_crc_of(footer))
    allowance.write(sum(len(piece) for piece in pieces))
    place_index(task, pieces)
    return facts


def _has_other_order(task: IndexTask) -> bool:
    return has_index(replace(task, order=ORDER_EVENT + ORDER_PUBLISH - task.order))


def _reduce(rows: KeyRows, keep: NDArray[np.bool_], *, by_event: bool) -> None:
    """Unset `keep` of rows that can never win."""
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
    """The rows of a segment while it is read, in the order of position and slot.

    Compiled loops fill a block of them, which is emptied into one array a column.
    """

    __slots__ = (
        "_block",
        "_columns",
        "_filled",
        "_plain",
        "_scratch",
        "_state",
        "_taken",
    )

    def __init__(self, entries: int, log_id: bytes) -> None:
        # As many as single messages would need; batches ask for more.
        self._columns = {name: np.empty(entries, dtype=kind) for name, kind in COLUMNS.items()}
        self._taken = 0
        self._block = np.empty((kernels.COLUMNS, BLOCK_ROWS), dtype=np.int64)
        self._filled = 0
        self._state = kernels.new_state(log_id)
        self._plain = np.empty(0, dtype=np.uint8)
        self._scratch = np.empty(0, dtype=np.uint8)

    def add(self, frames: Frames) -> None:
        """Index some frames."""
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
        """Index a batch that is compressed."""
        begin, end, codec, size = self._state[kernels.PAUSE : kernels.PAUSE + 4].tolist()
        opened = 0
        if size <= PLAIN_BYTES_MAX:
            self._make_room(size)
            payload = frames.buffer.data[begin:end]
            if open_payload(codec, payload, self._plain.data[:size]):
                opened = size
        why = kernels.FULL
        while why == kernels.FULL:
            self._filled, why = kernels.index_plain(
                frames.buffer,
                frames.offsets[number],
                self._plain,
                opened,
                self._block,
                self._filled,
                self._scratch,
                self._state,
            )
            if why == kernels.FULL:
                self._empty_block(int(self._state[kernels.PAUSE]))

    def _make_room(self, size: int) -> None:
        """For an opened payload, and for keys decoded out of it, which are never larger."""
        if len(self._scratch) < size:
            self._plain = np.empty(size, dtype=np.uint8)
            self._scratch = np.empty(size, dtype=np.uint8)

    def _empty_block(self, wanted: int) -> None:
        """Move the block's rows to the columns; it then has room for as many as are wanted."""
        stop = self._taken + self._filled
        for name, block in zip(COLUMNS, self._block, strict=True):
            column = self._columns[name]
            if stop > len(column):
                # What is not written to takes no memory, but to copy what is there takes time.
                column = np.empty(4 * stop, dtype=column.dtype)
                column[: self._taken] = self._columns[name][: self._taken]
                self._columns[name] = column
            column[self._taken : stop] = block[: self._filled]
        self._taken, self._filled = stop, 0
        if wanted > self._block.shape[1]:
            self._block = np.empty((kernels.COLUMNS, wanted), dtype=np.int64)

    def facts(self, order: int) -> IndexFacts:
        """What was counted."""
        state = self._state.tolist()
        return IndexFacts(
            order, state[kernels.MESSAGES], state[kernels.MARKERS], state[kernels.OPAQUES]
        )

    def rows(self) -> KeyRows:
        """All of them."""
        self._empty_block(0)
        return KeyRows(**{name: column[: self._taken] for name, column in self._columns.items()})
