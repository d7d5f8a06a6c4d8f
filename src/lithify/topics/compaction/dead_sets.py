"""The dead-set task: turns the live rows of a segment's key index into the segment's dead set.

1. Select the live rows and sort them by position and slot.
2. An entry without a live row is dead. An entry with as many live rows as messages is live. An
   entry with fewer is a partly live batch: a mask records its live slots.
3. Count entries, messages and bytes, and find the last retained message.

A batch that cannot be decoded has one row for the whole entry. Placeholders, which other brokers
leave for removed messages, have no row, so a batch with placeholders counts as partly live.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.clock import SystemClock
from lithify.compaction.limits.budget import Allowance
from lithify.compaction.live_set_rules.by_key import live_rows
from lithify.live_set import LiveSet
from lithify.log.dead_set.dead_set import Parts
from lithify.log.key_index.key_index import BUCKETS
from lithify.log.key_index.key_index_kernels import position_order
from lithify.log.segments.frame import HEADER_BYTES
from lithify.topics.compaction.key_index_flags import OPAQUE
from lithify.topics.compaction.newest_per_key import read_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.compaction.tasks.find_or_build_key_index import IndexTask
    from lithify.topics.compaction.newest_per_key import Survivors

__all__ = ["DeadSetTask", "LiveRows", "run_dead_set"]


@dataclass(frozen=True, slots=True)
class DeadSetTask:
    """A segment and its live rows, split by ascending ranges of buckets."""

    index: IndexTask
    survivors: tuple[Survivors, ...]


@dataclass(frozen=True, slots=True)
class LiveRows:
    """What is live in a segment."""

    live: LiveSet
    parts: Parts
    live_entries: int
    live_messages: int
    live_bytes: int
    row_bytes: int
    """Bytes of the messages that have a row; other messages of the segment have none."""
    last: tuple[int, int] | None
    """(position, slot) of the last retained message; slot -1 outside a batch."""


def run_dead_set(task: DeadSetTask, check: Callable[[], None]) -> LiveRows:
    """Compute the dead set of one segment."""
    check()
    columns = ("position", "slot", "slots", "length", "flags", "group")
    allowance = Allowance(task.index.budget, SystemClock(), check)
    rows, _ = read_rows(task.index, 0, BUCKETS, columns, allowance.read)
    live = live_rows(task.index, task.survivors, len(rows))
    row_bytes = int(rows.length.sum(dtype=np.int64))
    order = position_order(live, rows.position, rows.slot)
    if not len(order):
        return LiveRows(LiveSet.empty(), Parts.empty(), 0, 0, 0, row_bytes, None)
    positions = rows.position[order]
    slots = rows.slot[order]
    begins = np.flatnonzero(np.diff(positions, prepend=-1))
    entries = positions[begins]
    counts = np.diff(begins, append=len(positions))
    partly = counts < rows.slots[order][begins]
    last = int(slots[-1])
    if rows.flags[order[-1]] & OPAQUE:
        last = int(rows.group[order[-1]]) - 1
    parts = Parts.empty()
    if partly.any():
        in_parts = np.repeat(partly, counts)
        # The last live slot of an entry is its highest and sets the width of the mask.
        widths = np.repeat(slots[begins + counts - 1] + 1, counts)
        parts = Parts.of(positions[in_parts], slots[in_parts], widths[in_parts].astype(np.uint32))
    segment = task.index.segment
    live_bytes = segment.frame_bytes
    if len(entries) < segment.entries or len(parts):
        # The sizes of messages in a batch are estimates, but each entry has at least its header.
        live_bytes = int(rows.length[order].sum(dtype=np.int64))
        live_bytes = min(
            live_bytes, segment.frame_bytes - HEADER_BYTES * (segment.entries - len(entries))
        )
        live_bytes = max(live_bytes, HEADER_BYTES * len(entries))
    return LiveRows(
        LiveSet.from_array(entries),
        parts,
        len(entries),
        len(order),
        live_bytes,
        row_bytes,
        (int(positions[-1]), last),
    )
