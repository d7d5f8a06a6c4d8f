"""Disconnects clients from topics, so that these can be moved or removed.

A disconnected client repeats the lookup of its topic and reconnects automatically. Readers that
follow a topic over HTTP are woken when it is closed, and open it again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from lithify.http.paths import parts_of
from lithify.name_locks import Claimed
from lithify.pulsar.disconnect_topics import disconnecting_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.pulsar.broker import Broker
    from lithify.topics.definitions.topic_names import TopicName
    from lithify.topics.topic import Topic

__all__ = ["delete_topic", "unload"]

UNLOADED_TOGETHER = 200
"""Partitions that are unregistered per turn of the loop, less than 1 ms."""
WAIT_S = 1.0
"""Limit of one wait in a thread: the event that it waits for may need a thread of the same pool."""


async def delete_topic(broker: Broker, name: TopicName, *, force: bool) -> None:
    """Delete a topic, which must have no clients; `force` disconnects them first."""
    if not broker.topics.exists(name):
        # The topic is not defined. A check of the disk shows whether its definition was lost.
        await broker.call(name, partial(broker.topics.delete_lost, name))
        return

    def take() -> Callable[[], None]:
        return broker.topics.deleting(name, wait=False, in_use=force)

    names = list(dict.fromkeys([name, *parts_of(broker, name)]))
    await _disconnect_and_close(broker, names, take)


async def unload(broker: Broker, names: list[TopicName]) -> None:
    """Disconnect all clients of these topics and close them; the next use opens them again."""
    for start in range(0, len(names), UNLOADED_TOGETHER):
        some = names[start : start + UNLOADED_TOGETHER]
        take = partial(broker.topics.unloading, some, wait=False)
        await _disconnect_and_close(broker, some, take)


async def _disconnect_and_close(
    broker: Broker, names: list[TopicName], take: Callable[[], Callable[[], None]]
) -> None:
    """Unregister topics, disconnect their clients in steps, then close or delete them in a thread.

    No client can join after the first step: opening one of these topics waits for the last step.
    """
    try:
        while True:
            opened = broker.topics.opened()
            try:
                finish = take()
                break
            except Claimed:
                await asyncio.to_thread(broker.topics.wait_for_others, names, WAIT_S)
        users = [opened[name] for name in names if name in opened]
        await broker.complete(_finish(broker, users, finish))
    finally:
        for name in names:
            broker.notify_followers(name)


async def _finish(broker: Broker, users: list[Topic], finish: Callable[[], None]) -> None:
    try:
        for topic in users:
            await broker.run(disconnecting_all(broker, topic))
    finally:
        await broker.release(finish)
