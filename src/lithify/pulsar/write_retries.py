"""Producers whose messages the file system refused: kept waiting until it takes writes again.

A client that is told to reconnect sends its messages again at once, and the C++ client begins its
send timeout anew with each connection: on a full disk it would reconnect for ever and its
application never hear of it. So such a producer stays connected and gets no receipts, and its
client's own send timeout runs. Meanwhile:

1. What it sends is dropped. It has no receipt, so its client sends it again, or has given it up.
2. A thread asks again and again whether the topic's directory takes writes. The first time is after
   `DELAY_S_MIN`. If writes fail again soon after the answer was yes, the delay doubles, up to
   `DELAY_S_MAX`, which is more than the send timeout of clients that did not set one.
3. Once it does, all waiting producers of the topic are let go: their clients reconnect and send
   what has not timed out.

In the event loop of the broker, which owns it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.topics.topic import Topic

__all__ = ["WriteRetries"]

DELAY_S_MIN = 0.5
DELAY_S_MAX = 60.0

log = get_logger("lithify.pulsar")


class WriteRetries:
    """See the module."""

    def __init__(self, why_not_writable: Callable[[Topic], str]) -> None:
        """`why_not_writable` is called in a thread and answers "" when it is worth a try."""
        self._why_not_writable = why_not_writable
        self._waiting: dict[Topic, list[Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._released: dict[Topic, tuple[float, float]] = {}
        """When the producers of a topic were last let go, and the delay before."""

    def wait(self, topic: Topic, reason: str, then: Callable[[], None]) -> None:
        """Call `then` once the topic can be written again; `reason` is logged once a wait."""
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[topic] = [then]
        log.error(
            "producers wait until the disk takes writes", topic=str(topic.name), reason=reason
        )
        task = asyncio.get_running_loop().create_task(self._retry(topic))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _retry(self, topic: Topic) -> None:
        loop = asyncio.get_running_loop()
        delay_s = DELAY_S_MIN
        released_s, delay_before_s = self._released.pop(topic, (0.0, 0.0))
        if delay_before_s and loop.time() - released_s < 2 * delay_before_s:
            delay_s = min(2 * delay_before_s, DELAY_S_MAX)
        while True:
            await asyncio.sleep(delay_s)
            if topic.log.closed or not await asyncio.to_thread(self._why_not_writable, topic):
                break
        self._released = {
            each: (at_s, before_s)
            for each, (at_s, before_s) in self._released.items()
            if loop.time() - at_s < 2 * before_s
        }
        self._released[topic] = loop.time(), delay_s
        log.info("the disk takes writes again", topic=str(topic.name))
        for then in self._waiting.pop(topic):
            then()

    def end(self) -> None:
        """The node stops: nobody waits any more."""
        for task in self._tasks:
            task.cancel()
