"""When the parts of a chunked message go whose last chunk never came.

A producer that dies in the middle of a chunked message leaves parts that nobody can read. They may
go once the message was not finished within `UNFINISHED_MS_MAX`. Neither a part nor its frame says
reliably when it came, for both have the time of a client's clock. So runs take **marks**, which are
kept in the manifest's `state` as long as a part waits for its last chunk:

    mark = (end, time_ms)      the log's last position when a run judged it, by the broker's clock

1. A run takes a mark if there is none, or if the last one is `UNFINISHED_MS_MAX` old.
2. A part at or below the end of a mark had come by then. If the end of the next mark is at or below
   the horizon, all that came in the time between the two was judged. A part whose last chunk is
   not in it is given up.
3. Marks are forgotten once they are used, all of them when no part waits.

So a part stays for a day at least, and goes with the first run after that which judges the day. A
last chunk that comes still later stands for its key and can be read by nobody.

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
"""A client sends the chunks of a message one after the other: a day is more than any retry."""


def is_mark_due(marks: Sequence[Mark], now_ms: int) -> bool:
    """Is the last mark old enough for another one?"""
    return bool(marks) and now_ms - marks[-1][1] >= UNFINISHED_MS_MAX


def with_mark(marks: Sequence[Mark], end: int, now_ms: int) -> list[Mark]:
    """The marks of a run that begins now; the log ends at `end`."""
    taken = [[end, now_ms]] if not marks or is_mark_due(marks, now_ms) else []
    return [*marks, *taken]


def given_up_through(marks: Sequence[Mark], horizon: int) -> int:
    """Parts up to this position go unless their last chunk is at or below the horizon."""
    ends = (mark[0] for mark, later in pairwise(marks) if later[0] <= horizon)
    return max(ends, default=NO_POSITION)


def without_used(marks: Sequence[Mark], given_up: int) -> list[Mark]:
    """The marks that parts above a position need."""
    return [mark for mark in marks if mark[0] > given_up]
