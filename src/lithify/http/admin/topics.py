"""Topics: list, create, delete, partitions, statistics and single messages."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Response

from lithify.http.admin import disconnect_clients
from lithify.http.error_responses import RequestRefused
from lithify.http.long_responses import in_turns, json_answer
from lithify.http.message_ids import from_id, from_position
from lithify.http.messages.entry_response import message_response
from lithify.http.paths import BrokerDep, NamespacePath, TopicPath, topic_at, topics_at
from lithify.ownership import NotOwner
from lithify.pulsar.broker import Broker
from lithify.topics.definitions.definitions import AlreadyDefined, TopicDefinition
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.disk_steps import Steps
from lithify.topics.topic import Topic
from lithify.topics.topic_statistics import internal_stats_steps, sum_stats, topic_stats_steps
from lithify.topics.topics import PARTITIONS_MAX, TopicNotFound

__all__ = ["non_persistent", "router"]

router = APIRouter(prefix="/admin/v2/persistent/{tenant}/{namespace}", tags=["topics"])
non_persistent = APIRouter(prefix="/admin/v2/non-persistent/{tenant}/{namespace}", tags=["topics"])


def _done() -> Response:
    return Response(status_code=204)


def _definition(broker: Broker, name: TopicName) -> TopicDefinition:
    found = broker.topics.definitions.current.topics.get(str(name))
    if found is None:
        raise TopicNotFound(f"topic {name} does not exist")
    return found


def _partitioned(broker: Broker, name: TopicName) -> TopicDefinition:
    found = _definition(broker, name)
    if not found.partitions:
        raise RequestRefused(HTTPStatus.NOT_FOUND, f"topic {name} is not partitioned")
    return found


def _check_partitions(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise RequestRefused(
            HTTPStatus.NOT_ACCEPTABLE, f"{count} partitions: must be 1 to {PARTITIONS_MAX}"
        )


async def _create(broker: Broker, name: TopicName, partitions: int) -> Response:
    broker.topics.definitions.current.namespace(name.namespace)
    if broker.topics.exists(name):
        raise AlreadyDefined(f"topic {name} already exists")
    if partitions:
        create = partial(broker.topics.create_partitioned, name, partitions)
        await broker.call(name, create)
    else:
        broker.make_room()
        # The owner makes the files on first use; it may also have deleted the topic since.
        with suppress(NotOwner, TopicNotFound):
            await broker.call(name, partial(broker.topics.create, name))
    return _done()


async def _delete(broker: Broker, name: TopicName, *, force: bool) -> Response:
    await disconnect_clients.delete_topic(broker, name, force=force)
    return _done()


# --- the namespace's topics -------------------------------------------------------------------


@router.get("")
async def topics(name: NamespacePath, broker: BrokerDep) -> list[str]:
    """The topics, with each partition as a topic."""
    broker.topics.definitions.current.namespace(name)
    return broker.topics.names_in(name)


@router.get("/partitioned")
async def partitioned_topics(name: NamespacePath, broker: BrokerDep) -> list[str]:
    """The partitioned topics."""
    definitions = broker.topics.definitions.current
    definitions.namespace(name)
    return [str(each) for each in definitions.topics_of(name) if broker.topics.partitions(each)]


@non_persistent.get("")
@non_persistent.get("/partitioned")
async def non_persistent_topics(name: NamespacePath, broker: BrokerDep) -> list[str]:
    """Always empty; tools that list topics ask for both kinds."""
    broker.topics.definitions.current.namespace(name)
    return []


# --- one topic --------------------------------------------------------------------------------


@router.put("/{topic}", status_code=204)
async def create_topic(name: TopicPath, broker: BrokerDep) -> Response:
    """Create a topic without partitions."""
    return await _create(broker, name, 0)


@router.delete("/{topic}", status_code=204)
async def delete_topic(name: TopicPath, broker: BrokerDep, *, force: bool = False) -> Response:
    """Delete a topic with all its messages; `force` disconnects its clients first."""
    if broker.topics.partitions(name):
        raise RequestRefused(HTTPStatus.PRECONDITION_FAILED, f"topic {name} is partitioned")
    defined = str(name) in broker.topics.definitions.current.topics
    if broker.topics.exists(name) and not defined:
        reason = f"topic {name} is a partition: delete {name.whole}"
        raise RequestRefused(HTTPStatus.PRECONDITION_FAILED, reason)
    return await _delete(broker, name, force=force)


@router.put("/{topic}/partitions", status_code=204)
async def create_partitioned(
    name: TopicPath, broker: BrokerDep, partitions: Annotated[int, Body()]
) -> Response:
    """Create a topic with partitions."""
    _check_partitions(partitions)
    return await _create(broker, name, partitions)


@router.get("/{topic}/partitions")
async def partitions_of(
    name: TopicPath,
    broker: BrokerDep,
    checkAllowAutoCreation: bool = False,  # noqa: FBT001, FBT002, N803  (as clients write it)
) -> dict[str, Any]:
    """The number of partitions; 0 if it is not partitioned, or would be created on first use."""
    topics = broker.topics
    topics.definitions.current.namespace(name.namespace)
    created_by_use = checkAllowAutoCreation and topics.settings.auto_create
    if not topics.exists(name) and not created_by_use:
        raise TopicNotFound(f"topic {name} does not exist")
    return {"partitions": topics.partitions(name), "deleted": False}


@router.post("/{topic}/partitions", status_code=204)
async def add_partitions(
    name: TopicPath, broker: BrokerDep, partitions: Annotated[int, Body()]
) -> Response:
    """Add partitions to a partitioned topic."""
    _check_partitions(partitions)
    found = _partitioned(broker, name)
    if partitions < found.partitions:
        raise RequestRefused(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"topic {name} has {found.partitions} partitions and cannot have fewer: {partitions}",
        )
    await broker.call(name, partial(broker.topics.add_partitions, name, partitions))
    return _done()


@router.delete("/{topic}/partitions", status_code=204)
async def delete_partitioned(
    name: TopicPath, broker: BrokerDep, *, force: bool = False
) -> Response:
    """Delete a partitioned topic with all its messages."""
    _partitioned(broker, name)
    return await _delete(broker, name, force=force)


# --- statistics -------------------------------------------------------------------------------


@router.get("/{topic}/stats", response_model=dict[str, Any])
async def stats(name: TopicPath, broker: BrokerDep) -> Response:
    """Rates, connected clients and backlogs."""
    topic = await topic_at(broker, name)
    return await json_answer(await in_turns(topic_stats_steps(topic), broker))


@router.get("/{topic}/internalStats", response_model=dict[str, Any])
async def internal(name: TopicPath, broker: BrokerDep) -> Response:
    """The ledgers and cursors of a topic."""
    topic = await topic_at(broker, name)
    return await json_answer(await in_turns(internal_stats_steps(topic), broker))


@router.get("/{topic}/partitioned-stats", response_model=dict[str, Any])
async def partitioned_stats(name: TopicPath, broker: BrokerDep) -> Response:
    """The sum of the statistics of all partitions, and those of each."""
    _partitioned(broker, name)
    return await json_answer(sum_stats(await _of_each(broker, name, topic_stats_steps)))


@router.get("/{topic}/partitioned-internalStats", response_model=dict[str, Any])
async def partitioned_internal(name: TopicPath, broker: BrokerDep) -> Response:
    """Ledgers and cursors of each partition."""
    found = _partitioned(broker, name)
    return await json_answer(
        {
            "metadata": {"partitions": found.partitions, "deleted": False},
            "partitions": await _of_each(broker, name, internal_stats_steps),
        }
    )


async def _of_each(
    broker: Broker, name: TopicName, of: Callable[[Topic], Steps[dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """Call a function for each partition; returns the results by name."""
    topics = await topics_at(broker, name)
    return {str(topic.name): await in_turns(of(topic), broker) for topic in topics}


# --- messages ---------------------------------------------------------------------------------


@router.get("/{topic}/lastMessageId")
async def last_message_id(name: TopicPath, broker: BrokerDep) -> dict[str, Any]:
    """The id of the last message; -1 and -1 if there is none."""
    topic = await topic_at(broker, name, HTTPStatus.METHOD_NOT_ALLOWED)
    return from_id(await broker.run(topic.reader.end.finding()))


@router.get("/{topic}/messageid/{timestamp}")
async def message_id_at(name: TopicPath, broker: BrokerDep, timestamp: int) -> dict[str, Any]:
    """The first message published at or after a time in milliseconds, or the next one to come."""
    topic = await topic_at(broker, name, HTTPStatus.METHOD_NOT_ALLOWED)
    found = await asyncio.to_thread(topic.reader.times.find_message, timestamp)
    return from_position(found, name.partition)


@router.get("/{topic}/ledger/{ledger}/entry/{entry}")
async def message_at(name: TopicPath, broker: BrokerDep, ledger: int, entry: int) -> Response:
    """The message of an entry, or its batch."""
    topic = await topic_at(broker, name, HTTPStatus.METHOD_NOT_ALLOWED)
    return await asyncio.to_thread(message_response, topic, ledger, entry)
