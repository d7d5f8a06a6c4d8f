"""The backlog limit of a topic: producers are refused while a subscription is too far behind.

1. Maintenance checks the backlogs of all durable subscriptions once per second (`maintenance.py`).
   If one exceeds `backlog_bytes_max`, the topic's writer gets a reason to refuse appends.
2. The writer raises `BacklogExceeded` with that reason, until a later check finds no such backlog.

`subscriptions/backlog.py` measures a backlog. The thread of the topic calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.topics.subscriptions.backlog import backlog

if TYPE_CHECKING:
    from lithify.log.log import Log
    from lithify.topics.disk_steps import Steps
    from lithify.topics.subscriptions.cursor_gaps import CursorGaps
    from lithify.topics.subscriptions.subscription import Subscription

__all__ = ["checking_backlogs"]

CHECKED_PER_STEP = 200
"""Subscriptions checked per step, about 1 ms."""


def checking_backlogs(
    log: Log, subscriptions: dict[str, Subscription], gaps: CursorGaps, limit: int
) -> Steps[str]:
    """Move durable cursors over gaps; returns why a backlog exceeds the limit, or an empty text.

    A negative limit is off. Yields between steps, as there may be thousands of subscriptions.
    """
    size = 0
    for number, each in enumerate(list(subscriptions.values()), 1):
        if not number % CHECKED_PER_STEP:
            yield None
        if not each.durable or subscriptions.get(each.name) is not each:
            continue
        if not each.compacted:
            gaps.take(each)
        if limit >= 0:
            size = max(size, backlog(log, each.acked)[1])
    return f"has a backlog of {size} bytes, the limit is {limit}" if 0 <= limit < size else ""
