"""The newest message of a key over HTTP, without reading the topic.

    GET /topics/persistent/TENANT/NAMESPACE/TOPIC/keys/KEY

The response is a row of `topics/messages/message_json.py`; 404 if the key has no message or was
deleted. In a partitioned topic all partitions are searched, because the producer has selected the
partition.

Lookups read the disk, so they run in a thread, one at a time.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

import asyncio
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request

from lithify.http.error_responses import RequestRefused
from lithify.http.paths import BrokerDep, TopicPath, decoded, topics_at
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.messages.message_json import row_of

__all__ = ["router"]

router = APIRouter(prefix="/topics/persistent/{tenant}/{namespace}/{topic}", tags=["messages"])


class KeyNotFound(RequestRefused):
    """The topic has no message of a key."""

    def __init__(self, topic: TopicName, key: str) -> None:
        super().__init__(HTTPStatus.NOT_FOUND, f"topic {topic} has no message of key {key!r}")


@router.get("/keys/{key}")
async def newest(request: Request, name: TopicPath, broker: BrokerDep, key: str) -> dict[str, Any]:
    """The newest message of a key."""
    wanted = decoded(key)
    found = []
    async with request.app.state.lookups:
        for topic in await topics_at(broker, name):
            message = await asyncio.to_thread(topic.get, wanted)
            if message is not None:
                found.append(message)
    if not found:
        raise KeyNotFound(name, wanted)
    return row_of(max(found, key=lambda message: message.publish_time_ms))
