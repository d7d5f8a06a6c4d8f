"""Decides when the chunks of an unfinished message are deleted.

A producer that fails in the middle of a chunked message leaves chunks that no consumer can
assemble. They may be deleted once the message was unfinished for `UNFINISHED_MS_MAX`. Neither a
chunk nor its frame has a reliable arrival time: both use the producer's clock. Therefore runs
record **watermarks**, which stay in the manifest's `state` while a chunk waits for its last chunk:

    mark = (end, time_ms)      the log's last position at the start of a run, by the broker's clock

1. A run records a watermark if there is none, or if the newest is `UNFINISHED_MS_MAX` old.
2. A chunk at or below the end of a watermark had arrived by its time. If the end of the next
   watermark is at or below the horizon, everything that arrived in between is in the scope of the
   run. The chunk is abandoned if its last chunk is not there either.
3. Watermarks are removed once they are used, and all of them when no chunk waits.

So a chunk is kept for at least a day, and deleted by the first run after that whose horizon covers
the day. A last chunk that arrives later still counts as the newest value of its key, but no
consumer can assemble its message.

Pure. For the topic's rule.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from lithify.positions import NO_POSITION

if TYPE_CHECKING:
    from collections.abc import Sequence

    Mark = Sequence[int]

__all__ = ["UNFINISHED_MS_MAX", "given_up_through", "is_mark_due", "with_mark", "without_used"]

UNFINISHED_MS_MAX = 24 * 3_600_000
"""A producer sends the chunks of a message in sequence; no retry takes a day."""


def is_mark_due(marks: Sequence[Mark], now_ms: int) -> bool:
    """Is the newest watermark old enough for another one?"""
    return bool(marks) and now_ms - marks[-1][1] >= UNFINISHED_MS_MAX


def with_mark(marks: Sequence[Mark], end: int, now_ms: int) -> list[Mark]:
    """The watermarks of a run that starts now, with the log's end at `end`."""
    added = [[end, now_ms]] if not marks or is_mark_due(marks, now_ms) else []
    return [*marks, *added]


def given_up_through(marks: Sequence[Mark], horizon: int) -> int:
    """Chunks up to this position are abandoned unless their last chunk is within the horizon."""
    ends = (mark[0] for mark, later in pairwise(marks) if later[0] <= horizon)
    return max(ends, default=NO_POSITION)


def without_used(marks: Sequence[Mark], given_up: int) -> list[Mark]:
    """The watermarks that chunks above `given_up` still need."""
    return [mark for mark in marks if mark[0] > given_up]
