"""Closing topics that nobody uses, so that their files are released; use opens them again.

1. A topic is in use while it has a producer, a consumer, a follower over HTTP or a run. One that is
   not in use for `topic_idle_ms` is closed, unless a durable subscription of it has a backlog: that
   is what metrics are watched for, and they list open topics. If as many topics are open as may be,
   the broker closes those that were unused for longest, in any case (`Broker.make_room`).
2. Policies hold for closed topics too: once in `topic_idle_ms`, or a minute if that is more, each
   is opened for `VISIT_S`, a few at a time. Retention, time to live and triggers of compaction are
   looked at meanwhile, as for every open topic.

In the event loop; what waits for the disk is done in a thread. Called by `serving.py`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from lithify.errors import LithifyError
from lithify.logger import get_logger
from lithify.node.opening import open_some

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.pulsar.broker import Broker
    from lithify.topics.names import TopicName

__all__ = ["release_idle"]

LOOK_S = 1.0
CLOSED_MAX = 100
VISITED_MAX = 20
"""Topics that are closed, and opened for a visit, in one look."""
ROUND_S_MIN = 60.0
"""Each closed topic is visited so often at most."""
VISIT_S = 5.0
"""Several rounds of upkeep, and of looking for what is to be compacted."""

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
                broker.topics.visited(names, max(0.0, idle_s - VISIT_S))
        except Exception:
            log.exception("looking for idle topics failed")
        try:
            await asyncio.wait_for(ended.wait(), LOOK_S)
        except TimeoutError:
            continue


def _close(close: Callable[[], None]) -> None:
    try:
        close()
    except LithifyError as error:
        # What was acknowledged is durable; the rest is cut or kept by the next open.
        log.warning("an idle topic was not closed in order", reason=str(error))
