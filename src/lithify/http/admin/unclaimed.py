"""Differences between directories and definitions: unclaimed data and missing data.

| path                         |                                                                   |
|------------------------------|-------------------------------------------------------------------|
| /admin/v2/unclaimed          | GET: {"topics": […], "stores": […]}, as they are on disk now      |
| /admin/v2/unclaimed/topics   | POST {"topic": NAME}: define it                                   |
| /admin/v2/unclaimed/stores   | POST {"store": NAME, "namespace": …, "settings": {…}}: define it  |
| /admin/v2/missing            | GET: {"topics": […], "stores": […]} whose files are missing       |

For superusers: a directory without a definition belongs to no namespace.
"""

import asyncio
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from lithify.blobs.definition import NAMESPACE_DEFAULT
from lithify.blobs.stores import BlobStores
from lithify.http.error_responses import RequestRefused
from lithify.http.paths import BrokerDep
from lithify.topics.definitions.topic_names import TopicName

__all__ = ["missing_router", "router"]

router = APIRouter(prefix="/admin/v2/unclaimed", tags=["unclaimed"])
missing_router = APIRouter(prefix="/admin/v2/missing", tags=["unclaimed"])


class AdoptTopic(BaseModel):
    """The topic to adopt."""

    topic: str


class AdoptStore(BaseModel):
    """The store to adopt, and what its directory does not contain."""

    store: str
    namespace: str = NAMESPACE_DEFAULT
    settings: dict[str, Any] = Field(default_factory=dict)


def _stores(request: Request) -> BlobStores | None:
    stores: BlobStores | None = request.app.state.stores
    return stores


@router.get("")
async def unclaimed(request: Request, broker: BrokerDep) -> dict[str, list[dict[str, Any]]]:
    """All unclaimed directories."""
    topics = await asyncio.to_thread(broker.topics.unclaimed)
    stores = _stores(request)
    found = [] if stores is None else await asyncio.to_thread(stores.unclaimed)
    return {"topics": [each.row() for each in topics], "stores": [each.row() for each in found]}


@missing_router.get("")
async def missing(request: Request, broker: BrokerDep) -> dict[str, list[dict[str, Any]]]:
    """Topics, partitions and stores whose files are missing."""
    topics = await asyncio.to_thread(broker.topics.missing)
    stores = _stores(request)
    found = [] if stores is None else await asyncio.to_thread(stores.missing)
    return {"topics": [each.row() for each in topics], "stores": found}


@router.post("/topics", status_code=204)
async def adopt_topic(wanted: AdoptTopic, broker: BrokerDep) -> Response:
    """Define a topic from its directories."""
    name = TopicName.parse(wanted.topic)
    await broker.call(name, partial(broker.topics.adopt, name))
    return Response(status_code=204)


@router.post("/stores", status_code=204)
async def adopt_store(wanted: AdoptStore, request: Request) -> Response:
    """Define a store from its directory."""
    stores = _stores(request)
    if stores is None:
        raise RequestRefused(HTTPStatus.NOT_FOUND, "this node has no blob stores")

    def adopt() -> None:
        stores.adopt(wanted.store, namespace=wanted.namespace, settings=wanted.settings)

    await asyncio.to_thread(adopt)
    return Response(status_code=204)
