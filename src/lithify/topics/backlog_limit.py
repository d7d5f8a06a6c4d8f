"""The backlog limit of a topic: producers are refused while a subscription is too far behind.

1. Maintenance checks the backlogs of all durable subscriptions once per second (`maintenance.py`).
   If one exceeds `backlog_bytes_max`, the writer gets a reason to refuse appends.
2. The writer raises `BacklogExceeded` with that reason, until a later check finds no such backlog.

`statistics/backlog.py` measures a backlog. The thread of the topic calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.exit_codes import CONFLICT
from lithify.topics.statistics.backlog import backlog

if TYPE_CHECKING:
    from lithify.topics.disk_steps import Steps
    from lithify.topics.subscriptions.cursor_gaps import CursorGaps
    from lithify.topics.topic import Topic

__all__ = ["BacklogExceeded", "checking_backlogs"]

CHECKED_PER_STEP = 200
"""Subscriptions checked per step, about 1 ms."""


class BacklogExceeded(InvalidInput):
    """The backlog of a subscription exceeds the limit; producers are refused."""

    exit_code = CONFLICT


def checking_backlogs(topic: Topic, gaps: CursorGaps, limit: int) -> Steps[None]:
    """Move durable cursors over gaps; refuse producers if a backlog exceeds the limit.

    A negative limit is off. Yields between steps, as there may be thousands of subscriptions.
    """
    size = 0
    for number, each in enumerate(list(topic.subscriptions.values()), 1):
        if not number % CHECKED_PER_STEP:
            yield None
        if not each.durable or topic.subscriptions.get(each.name) is not each:
            continue
        if not each.compacted:
            gaps.take(each)
        if limit >= 0:
            size = max(size, backlog(topic, each.acked)[1])
    topic.writer.refusal = ""
    if 0 <= limit < size:
        topic.writer.refusal = (
            f"topic {topic.name} has a backlog of {size} bytes, the limit is {limit}"
        )
