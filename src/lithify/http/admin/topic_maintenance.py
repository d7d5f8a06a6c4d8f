"""Maintenance of a whole topic: unload, terminate, trim, truncate.

    unload      disconnect the clients and close the topic; the next use opens it again
    terminate   refuse all further writes, permanently; consumers read the existing messages
    trim        delete the messages that retention does not keep now, not at the next maintenance
    truncate    acknowledge and delete all messages, regardless of retention, and the compacted view

All but terminate apply to all partitions of a partitioned topic; terminating those has its own
path, as in Pulsar.
"""

import asyncio
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Response

from lithify.http.admin import disconnect_clients
from lithify.http.error_responses import RequestRefused
from lithify.http.message_ids import from_id
from lithify.http.paths import BrokerDep, TopicPath, parts_of, topic_at, topics_at
from lithify.pulsar.broker import Broker
from lithify.pulsar.disconnect_topics import disconnecting_producers
from lithify.topics.definitions.definitions import Definitions
from lithify.topics.definitions.policies import TERMINATED
from lithify.topics.topic import Topic
from lithify.topics.topics import TopicNotFound

__all__ = ["router"]

router = APIRouter(prefix="/admin/v2/persistent/{tenant}/{namespace}/{topic}", tags=["topics"])


def _done() -> Response:
    return Response(status_code=204)


@router.put("/unload", status_code=204)
async def unload(name: TopicPath, broker: BrokerDep) -> Response:
    """Disconnect its clients, which reconnect, and close it; the next use opens it again."""
    if not broker.topics.exists(name):
        raise TopicNotFound(f"topic {name} does not exist")
    await disconnect_clients.unload(broker, parts_of(broker, name))
    return _done()


@router.post("/terminate")
async def terminate(name: TopicPath, broker: BrokerDep) -> dict[str, Any]:
    """Refuse all further writes; returns the id of the last message."""
    topic = await topic_at(broker, name, HTTPStatus.METHOD_NOT_ALLOWED)
    return (await _terminate(broker, [topic]))[0]


@router.post("/terminate/partitions")
async def terminate_partitions(name: TopicPath, broker: BrokerDep) -> dict[str, dict[str, Any]]:
    """Refuse all further writes to all partitions; returns the last ids by partition number."""
    if not broker.topics.partitions(name):
        await topic_at(broker, name)
        raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, f"topic {name} is not partitioned")
    found = await _terminate(broker, await topics_at(broker, name))
    return {str(number): row for number, row in enumerate(found)}


async def _terminate(broker: Broker, topics: list[Topic]) -> list[dict[str, Any]]:
    for topic in topics:
        # Refuse writes now, before the definitions are durable: otherwise messages could follow the
        # id that is returned as the last one.
        topic.writer.terminated = True
    try:
        for topic in topics:
            await broker.run(disconnecting_producers(broker, topic))
        await asyncio.to_thread(broker.topics.definitions.change, lambda d: _ended(d, topics))
    except BaseException:
        for topic in topics:
            topic.writer.terminated = False
        raise
    found = []
    for topic in topics:
        # A topic that was unloaded in the meantime was reopened with the old definitions.
        current = await broker.topic(topic.name)
        current.writer.terminated = True
        await asyncio.to_thread(current.log.sync)
        found.append(from_id(await broker.run(current.reader.end.finding())))
    return found


def _ended(definitions: Definitions, topics: list[Topic]) -> Definitions:
    for topic in topics:
        name, partition = topic.name, -1
        if str(name) not in definitions.topics:
            name, partition = name.whole, name.partition
        found = definitions.topics[str(name)]
        ended = sorted({*found.settings.get(TERMINATED, ()), partition})
        settings = found.settings | {TERMINATED: ended}
        definitions = definitions.with_topic(name, replace(found, settings=settings))
    return definitions


@router.post("/trim", status_code=204)
async def trim(name: TopicPath, broker: BrokerDep) -> Response:
    """Delete the messages that retention does not keep."""
    for topic in await topics_at(broker, name):
        await broker.run(topic.enforcing())
        await asyncio.to_thread(topic.maintain_files)
    return _done()


@router.delete("/truncate", status_code=204)
async def truncate(name: TopicPath, broker: BrokerDep) -> Response:
    """Delete all messages, including those that only the compacted view has."""
    for topic in await topics_at(broker, name):
        await asyncio.to_thread(topic.log.roll)
        end = topic.log.manifest.active.first_position
        await broker.run(topic.skipping_below(end))
        broker.dispatch(topic)
        await asyncio.to_thread(_drop, topic, end)
    return _done()


def _drop(topic: Topic, end: int) -> None:
    # In this order: a run that begins in between finds an empty log, and its view is deleted too.
    topic.log.drop_head(end)
    topic.log.reclaim()
    topic.compaction.cancel()
    topic.service.delete_compacted()
