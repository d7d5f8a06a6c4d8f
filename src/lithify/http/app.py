"""The HTTP side of a node: one application of all routes.

    app = create_app(broker, blobs)   # then any ASGI server, in the loop that the broker runs in

Topics belong to the event loop's thread, so every route is `async def` and runs there; what blobs
need of the disk is done by threads (`blob_content.py`). Each module here has the routes of one
noun; names in paths are checked in `paths.py`, refusals are answered in `errors.py`. The
description of all routes is at /openapi.json.

A command that works on a data directory runs the same application in its process, for one or two
requests. It creates an `empty` one and adds the routes of each path with `add_routes`: importing
and building all of them would take longer than the request.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI

from lithify.http.auth import TokenFirst, authorize
from lithify.http.errors import add_error_handlers
from lithify.http.paths import BodyLimit, RawPaths
from lithify.http.shares import Shares

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lithify.blobs.stores import BlobStores
    from lithify.http.blobs import BlobService
    from lithify.pulsar.broker import Broker

__all__ = ["add_routes", "close_app", "create_app"]


def create_app(
    broker: Broker,
    stores: BlobStores | None = None,
    *,
    cluster: str = "standalone",
    metrics_open: bool = False,
    empty: bool = False,
) -> FastAPI:
    """The application, without blobs if there are no stores; `cluster` is the one there is.

    With `metrics_open` /metrics is answered without a token. An `empty` application has no routes
    until `add_routes` adds those of a path.
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
    app.state.stores = stores
    app.state.blobs = None
    app.state.parts = set()
    app.add_middleware(RawPaths)
    app.add_middleware(BodyLimit)
    app.add_middleware(TokenFirst)
    add_error_handlers(app)
    if not empty:
        for prefix, _ in _PARTS:
            add_routes(app, prefix)
    # Streaming answers import it when the first one is sent: not a client's time, and not when the
    # process has no descriptors left.
    import_module("anyio._backends._asyncio")
    return app


def add_routes(app: FastAPI, path: str) -> None:
    """Add all routes that a request of this path may match; those that were added stay."""
    add = next(add for prefix, add in _PARTS if path.startswith(prefix))
    if add not in app.state.parts:
        app.state.parts.add(add)
        add(app)


async def close_app(app: FastAPI) -> None:
    """Wait for the threads of the application; the files that they use are closed after this."""
    service: BlobService | None = app.state.blobs
    if service is not None:
        await asyncio.to_thread(service.threads.close)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    # FastAPI builds its routes at the first lookup, which takes 0.1 s: not a client's time.
    nowhere = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    await asyncio.to_thread(lambda: [route.matches(nowhere) for route in app.router.routes])
    yield
    await close_app(app)


# --- the parts of the application, each imported when its routes are added ----------------------
# ruff: noqa: PLC0415


def _add_blobs(app: FastAPI) -> None:
    from lithify.http import blob_admin, blob_replication, blobs
    from lithify.http.blob_short import ShortGet

    if app.state.stores is None:
        return
    app.state.blobs = blobs.BlobService(app.state.stores)
    # First those whose last word would else be taken for an id.
    routers = blob_admin.router, blob_replication.router, blobs.router
    app.router.routes.append(ShortGet(routers))
    for router in routers:
        app.include_router(router)


def _add_messages(app: FastAPI) -> None:
    from lithify.http import lookup, produce, tail

    app.state.publisher = produce.Publisher(app.state.broker)
    app.state.readers = Shares(tail.READERS_MAX, "readers of topics")
    app.state.lookups = asyncio.Lock()
    for module in (produce, tail, lookup):
        app.include_router(module.router)


def _add_topics(app: FastAPI) -> None:
    from lithify.http import (
        compaction,
        namespaces,
        policies,
        quotas,
        subscriptions,
        topics,
        upkeep,
    )

    # Compaction before the subscriptions: the name of one of them means the compacted view.
    for module in (namespaces, quotas, compaction, subscriptions, topics, policies, upkeep):
        app.include_router(module.router)


def _add_unclaimed(app: FastAPI) -> None:
    from lithify.http import unclaimed

    app.include_router(unclaimed.router)
    app.include_router(unclaimed.missing_router)


def _add_others(app: FastAPI) -> None:
    from lithify.http import brokers, description, health, metrics, schemas, tenants, topics

    app.state.health = health.Health(app.state.broker, app.state.stores)
    for module in (health, brokers, tenants, schemas, metrics):
        app.include_router(module.router)
    app.include_router(topics.non_persistent)
    app.include_router(description.router)


_PARTS: tuple[tuple[str, Callable[[FastAPI], None]], ...] = (
    # Blobs first: routes are tried one after the other, and there are many.
    ("/blobs", _add_blobs),
    ("/topics/", _add_messages),
    ("/admin/v2/persistent/", _add_topics),
    ("/admin/v2/namespaces/", _add_topics),
    ("/admin/v2/unclaimed", _add_unclaimed),
    ("/admin/v2/missing", _add_unclaimed),
    ("", _add_others),
)
"""The first prefix of a path decides; no part has routes below a prefix of another one."""
