"""The HTTP side of a node: one application of all routes.

    app = create_app(broker, blobs)   # then any ASGI server, in the event loop of the broker

Topics belong to the event loop's thread, so every route is `async def` and runs there; disk access
of blobs runs in threads (`blob_content.py`). Each module of this package has the routes of one
noun. `paths.py` checks names in paths, `errors.py` answers refusals. /openapi.json describes all
routes.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI

from lithify.http import (
    blob_admin,
    blob_replication,
    blobs,
    brokers,
    compaction,
    description,
    health,
    lookup,
    metrics,
    namespaces,
    policies,
    produce,
    quotas,
    schemas,
    subscriptions,
    tail,
    tenants,
    topics,
    unclaimed,
    upkeep,
)
from lithify.http.auth import TokenFirst, authorize
from lithify.http.blob_short import ShortGet
from lithify.http.errors import add_error_handlers
from lithify.http.paths import BodyLimit, RawPaths
from lithify.http.shares import Shares

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lithify.blobs.stores import BlobStores
    from lithify.pulsar.broker import Broker

__all__ = ["create_app"]


def create_app(
    broker: Broker,
    stores: BlobStores | None = None,
    *,
    cluster: str = "standalone",
    metrics_open: bool = False,
) -> FastAPI:
    """The application, without blobs if `stores` is None; `cluster` is the name of the only one.

    With `metrics_open`, /metrics needs no token.
    """
    app = FastAPI(
        title="Lithify",
        version=broker.server_version,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(authorize)],
        lifespan=_lifespan,
    )
    app.state.broker = broker
    app.state.cluster = cluster
    app.state.metrics_open = metrics_open
    app.state.publisher = produce.Publisher(broker)
    app.state.readers = Shares(tail.READERS_MAX, "readers of topics")
    app.state.lookups = asyncio.Lock()
    app.state.health = health.Health(broker, stores)
    app.add_middleware(RawPaths)
    app.add_middleware(BodyLimit)
    app.add_middleware(TokenFirst)
    add_error_handlers(app)
    app.state.blobs = None
    if stores is not None:
        app.state.blobs = blobs.BlobService(stores)
        # Before all others: routes are tried in order, and there are many. The routers come first
        # whose last path segment would otherwise be taken for an id.
        routers = blob_admin.router, blob_replication.router, blobs.router
        app.router.routes.append(ShortGet(routers))
        for router in routers:
            app.include_router(router)
    for module in (
        # Before the subscriptions: the name __compaction means the compacted view.
        *(
            health,
            brokers,
            tenants,
            namespaces,
            quotas,
            compaction,
            subscriptions,
            topics,
            schemas,
            metrics,
        ),
        *(policies, produce, tail, lookup, upkeep, unclaimed),
    ):
        app.include_router(module.router)
    app.include_router(topics.non_persistent)
    app.include_router(unclaimed.missing_router)
    app.include_router(description.router)
    # Streaming answers import it when the first one is sent: do it now, before a client waits for
    # it or the process has run out of descriptors.
    import_module("anyio._backends._asyncio")
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    # FastAPI builds its routes on the first lookup, which takes 0.1 s: do it before a client waits.
    nowhere = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    await asyncio.to_thread(lambda: [route.matches(nowhere) for route in app.router.routes])
    yield
    service: blobs.BlobService | None = app.state.blobs
    if service is not None:
        # The files that its threads use are closed after this.
        await asyncio.to_thread(service.threads.close)
