"""Time to live of messages: older ones count as acknowledged by every subscription.

The age of a message is that of the publish time in its frame (`producers/publish_times.py`), which
is never more than a minute ahead. Nothing is deleted here: what all subscriptions have acknowledged
is subject to retention (`retention.py`).

Called by the maintenance of a topic, once per second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.topics.disk_steps import Steps
    from lithify.topics.reading.find_time import TimeSearch

__all__ = ["expiring"]


def expiring(
    times: TimeSearch,
    acknowledging_below: Callable[[int], Steps[None]],
    message_ttl_ms: int,
    now_ms: int,
) -> Steps[None]:
    """Acknowledge the messages that are older than `message_ttl_ms`, unless it is 0.

    `acknowledging_below` acknowledges everything below a position for every subscription.
    """
    if message_ttl_ms:
        position = yield from times.finding(now_ms - message_ttl_ms)
        yield from acknowledging_below(position)
