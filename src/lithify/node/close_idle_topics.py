"""Closes idle topics, so that their files are released; the next use opens them again.

1. A topic is in use while it has a producer, a consumer, a follower over HTTP or a run. A topic
   that has not been in use for `topic_idle_ms` is closed, unless a durable subscription of it has a
   backlog: monitoring depends on backlog metrics, which list open topics. At the limit of open
   topics, the broker closes those that have been unused the longest, in any case
   (`Broker.make_room`).
2. Policies apply to closed topics too: once per `topic_idle_ms`, or per minute if that is longer,
   each is opened for `VISIT_S`, a few at a time. During that time retention, time to live and
   triggers of compaction are checked, as for every open topic.

Runs in the event loop; disk access runs in a thread. Called by `server.py`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from lithify.errors import LithifyError
from lithify.logger import get_logger
from lithify.node.open_topics import open_some

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.pulsar.broker import Broker
    from lithify.topics.definitions.topic_names import TopicName

__all__ = ["release_idle"]

CHECK_S = 1.0
CLOSED_MAX = 100
VISITED_MAX = 20
"""Topics to close, and to open for a visit, per check."""
ROUND_S_MIN = 60.0
"""Minimum time between two visits of a closed topic."""
VISIT_S = 5.0
"""Several rounds of maintenance, and of the check for compactions."""

log = get_logger("lithify.node")


async def release_idle(broker: Broker, ended: asyncio.Event, idle_s: float) -> None:
    """Close idle topics and visit closed ones until `ended` is set."""
    loop = asyncio.get_running_loop()
    unvisited: list[TopicName] = []
    round_s = loop.time()
    while not ended.is_set():
        try:
            await broker.release(partial(_close, broker.release_idle(idle_s, CLOSED_MAX)))
            if loop.time() - round_s >= max(idle_s, ROUND_S_MIN):
                unvisited = list(await asyncio.to_thread(broker.topics.unopened))
                round_s = loop.time()
            if broker.topics.has_room(VISITED_MAX):
                names, unvisited = unvisited[:VISITED_MAX], unvisited[VISITED_MAX:]
                await asyncio.to_thread(open_some, broker.topics, names)
                broker.topics.mark_visited(names, max(0.0, idle_s - VISIT_S))
        except Exception:
            log.exception("checking for idle topics failed")
        try:
            await asyncio.wait_for(ended.wait(), CHECK_S)
        except TimeoutError:
            continue


def _close(close: Callable[[], None]) -> None:
    try:
        close()
    except LithifyError as error:
        # Acknowledged data is durable; the next open truncates or keeps the rest.
        log.warning("closing an idle topic failed", reason=str(error))
