"""Disconnects clients from topics, so that these can be moved or removed.

A disconnected client looks its topic up and reconnects automatically. Readers that follow a topic
over HTTP are woken when it is closed, so that they look for it again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from lithify.claims import Claimed
from lithify.http.paths import parts_of
from lithify.pulsar.broker import PUT_OUT_A_STEP

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.pulsar.broker import Broker
    from lithify.topics.definitions.topic_names import TopicName
    from lithify.topics.disk_steps import Steps
    from lithify.topics.topic import Topic

__all__ = [
    "delete_topic",
    "putting_out_of_topic",
    "putting_out_producers",
    "unload",
]

UNLOADED_TOGETHER = 200
"""Partitions that are taken out of use in one turn of the loop, less than 1 ms."""
WAIT_S = 1.0
"""A thread waits no longer: the event that it waits for may need one of the same threads."""


def putting_out_of_topic(broker: Broker, topic: Topic) -> Steps[None]:
    """Send the consumers and producers of a topic away."""
    for number, subscription in enumerate(list(topic.subscriptions.values()), 1):
        yield from broker.putting_out(subscription)
        if not number % PUT_OUT_A_STEP:
            yield None
    yield from putting_out_producers(broker, topic)


def putting_out_producers(broker: Broker, topic: Topic) -> Steps[None]:
    """Send the producers of a topic away."""
    producers = topic.producers
    # Those that wait go first: they must not take the place of one that leaves.
    for number, producer in enumerate([*producers.waiting, *producers.joined.values()], 1):
        producers.remove(producer)
        broker.producer_put_out(producer)
        if not number % PUT_OUT_A_STEP:
            yield None


async def delete_topic(broker: Broker, name: TopicName, *, force: bool) -> None:
    """Delete a topic, which must have no clients; `force` disconnects them first."""
    if not broker.topics.exists(name):
        # Nobody uses it. Whether it was lost is known after a look at the disk.
        await broker.call(name, partial(broker.topics.delete_lost, name))
        return

    def take() -> Callable[[], None]:
        return broker.topics.deleting(name, wait=False, in_use=force)

    await _take_out(broker, parts_of(broker, name), take)


async def unload(broker: Broker, names: list[TopicName]) -> None:
    """Send everybody away who uses one of these topics, and close them; use opens them again."""
    for start in range(0, len(names), UNLOADED_TOGETHER):
        some = names[start : start + UNLOADED_TOGETHER]
        await _take_out(broker, some, partial(broker.topics.unloading, some, wait=False))


async def _take_out(
    broker: Broker, names: list[TopicName], take: Callable[[], Callable[[], None]]
) -> None:
    """Take topics out of use, send away who uses them, some at a time, and do the rest in a thread.

    From the first step on nobody can join: who opens one of these topics waits for the last.
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
            broker.tell_followers(name)


async def _finish(broker: Broker, users: list[Topic], finish: Callable[[], None]) -> None:
    try:
        for topic in users:
            await broker.run(putting_out_of_topic(broker, topic))
    finally:
        await broker.release(finish)
