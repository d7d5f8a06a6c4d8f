"""Keeps producers waiting whose messages the file system refused, until it accepts writes again.

A disconnected client sends its messages again at once, and the C++ client restarts its send timeout
with each connection: on a full disk it would reconnect forever, and its application would never get
an error. So such a producer stays connected without receipts, and the send timeout of its client
runs. In the meantime:

1. Its new messages are dropped. They have no receipt, so the client sends them again or has given
   up.
2. A thread checks periodically whether the topic's directory accepts writes, first after
   `DELAY_S_MIN`. If writes fail again soon after a successful check, the delay doubles, up to
   `DELAY_S_MAX`, which is longer than the default send timeout of clients.
3. Once a check succeeds, all waiting producers of the topic are disconnected. Their clients
   reconnect and send the messages that have not timed out.

Runs in the event loop of the broker, which owns it.
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
    """The waiting producers of a broker, by topic."""

    def __init__(self, why_not_writable: Callable[[Topic], str]) -> None:
        """`why_not_writable` is called in a thread; it returns "" if writes may succeed."""
        self._why_not_writable = why_not_writable
        self._waiting: dict[Topic, list[Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._released: dict[Topic, tuple[float, float]] = {}
        """Per topic, the time of the last successful check, and the delay before it."""

    def wait(self, topic: Topic, reason: str, then: Callable[[], None]) -> None:
        """Call `then` once the topic accepts writes; `reason` is logged once per wait."""
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[topic] = [then]
        log.error(
            "producers wait until the disk accepts writes", topic=str(topic.name), reason=reason
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
        log.info("the disk accepts writes again", topic=str(topic.name))
        for then in self._waiting.pop(topic):
            then()

    def end(self) -> None:
        """The node stops: cancel all waits."""
        for task in self._tasks:
            task.cancel()
