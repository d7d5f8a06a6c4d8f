"""The HTTP side of a node: one application of all routes.

    app = create_app(broker, blobs)   # then any ASGI server, in the event loop of the broker

Topics belong to the thread of the event loop, so every route is `async def` and runs there. Disk
access of blobs runs in threads (`blobs/content.py`). Each module of this package has the routes of
one noun. `paths.py` checks names in paths, `error_responses.py` converts errors to responses.
/openapi.json describes all routes.

A command on a data directory runs the same application in its process, for one or two requests. It
creates an `empty` application and adds the routes of each path with `add_routes`: importing and
building all routes would take longer than the request.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI

from lithify.http.auth import TokenFirst, authorize
from lithify.http.body_limits import BodyLimit
from lithify.http.error_responses import add_error_handlers
from lithify.http.fair_shares import Shares
from lithify.http.paths import RawPaths

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from lithify.blobs.stores import BlobStores
    from lithify.http.blobs.stores_and_blobs import BlobService
    from lithify.http.cluster.access import ClusterAccess
    from lithify.pulsar.broker import Broker

    Part = Callable[[FastAPI], None]
    """Adds the routes of one part to an application."""

__all__ = ["add_routes", "close_app", "create_app"]


def create_app(
    broker: Broker,
    stores: BlobStores | None = None,
    *,
    cluster: str = "standalone",
    member: ClusterAccess | None = None,
    metrics_open: bool = False,
    empty: bool = False,
) -> FastAPI:
    """The application, without blobs if `stores` is None; `cluster` is the name of the only one.

    `member` is the cluster that the process is a node of; without it /cluster, /catalog and /tables
    say so. If `metrics_open` is set, /metrics needs no token. An `empty` application has no routes
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
    app.state.member = member
    app.state.metrics_open = metrics_open
    app.state.stores = stores
    app.state.blobs = None
    app.state.parts = set()
    app.add_middleware(RawPaths)
    app.add_middleware(BodyLimit)
    app.add_middleware(TokenFirst)
    add_error_handlers(app)
    if not empty:
        _add(app, _PARTS)
    # Streaming answers import it when the first one is sent: do it now, before a client waits for
    # it or the process has run out of descriptors.
    import_module("anyio._backends._asyncio")
    return app


def add_routes(app: FastAPI, path: str) -> None:
    """Add all routes that a request with this path may match. Can be called repeatedly."""
    part = next((part for pattern, part in _SEPARATE if pattern.fullmatch(path)), None)
    _add(app, _PARTS if part is None else (part,))


def _add(app: FastAPI, parts: Iterable[Part]) -> None:
    for part in parts:
        if part not in app.state.parts:
            app.state.parts.add(part)
            part(app)


async def close_app(app: FastAPI) -> None:
    """Wait for the threads of the application. Call this before closing the files they use."""
    service: BlobService | None = app.state.blobs
    if service is not None:
        await asyncio.to_thread(service.threads.close)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    # FastAPI builds its routes on the first lookup, which takes 0.1 s: do it before a client waits.
    nowhere = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    await asyncio.to_thread(lambda: [route.matches(nowhere) for route in app.router.routes])
    yield
    await close_app(app)


# --- the parts of the application, each imported when its routes are added ----------------------
# ruff: noqa: PLC0415


def _add_blobs(app: FastAPI) -> None:
    from lithify.http.blobs import admin as blob_admin
    from lithify.http.blobs import replication as blob_replication
    from lithify.http.blobs import stores_and_blobs
    from lithify.http.blobs.fast_get import FastGet

    if app.state.stores is None:
        return
    app.state.blobs = stores_and_blobs.BlobService(app.state.stores)
    # First the routes with a fixed last segment, which would otherwise match as an id.
    routers = blob_admin.router, blob_replication.router, stores_and_blobs.router
    app.router.routes.append(FastGet(routers))
    for router in routers:
        app.include_router(router)


def _add_messages(app: FastAPI) -> None:
    from lithify.http.messages import newest_of_key, produce, read

    app.state.publisher = produce.HttpProducer(app.state.broker)
    app.state.readers = Shares(read.READERS_MAX, "readers of topics")
    app.state.lookups = asyncio.Lock()
    for module in (produce, read, newest_of_key):
        app.include_router(module.router)


def _add_compaction(app: FastAPI) -> None:
    from lithify.http.admin import compaction

    app.include_router(compaction.router)


def _add_topics(app: FastAPI) -> None:
    from lithify.http.admin import topics

    app.include_router(topics.router)
    app.include_router(topics.non_persistent)


def _add_unclaimed(app: FastAPI) -> None:
    from lithify.http.admin import unclaimed

    app.include_router(unclaimed.router)
    app.include_router(unclaimed.missing_router)


def _add_cluster(app: FastAPI) -> None:
    from lithify.http.cluster import catalog, catalog_compaction, members, metastore, raft

    for module in (members, raft, metastore, catalog, catalog_compaction):
        app.include_router(module.router)


def _add_tables(app: FastAPI) -> None:
    from lithify.http.tables import definitions, rows, scans

    # First the routes whose first segment is fixed, which would otherwise match as a table.
    for module in (scans, rows, definitions):
        app.include_router(module.router)


def _add_others(app: FastAPI) -> None:
    from lithify.http import health, metrics, openapi
    from lithify.http.admin import (
        backlog_quotas,
        brokers,
        namespaces,
        schemas,
        subscriptions,
        tenants,
        topic_maintenance,
        topic_policies,
    )

    app.state.health = health.Health(app.state.broker, app.state.stores, app.state.member)
    for module in (
        *(health, brokers, tenants, namespaces, backlog_quotas, subscriptions, schemas, metrics),
        *(topic_policies, topic_maintenance, openapi),
    ):
        app.include_router(module.router)


_PARTS: tuple[Part, ...] = (
    # Blobs first: routes are matched in order, and there are many.
    _add_blobs,
    _add_messages,
    # Before the subscriptions: one subscription name in a path means the compacted view.
    _add_compaction,
    _add_topics,
    _add_unclaimed,
    _add_cluster,
    _add_tables,
    _add_others,
)
_TOPICS = "/admin/v2/persistent/[^/]+/[^/]+"
_SEPARATE: tuple[tuple[re.Pattern[str], Part], ...] = (
    (re.compile("/blobs(/.*)?"), _add_blobs),
    (re.compile("/topics/.*"), _add_messages),
    (re.compile(f"{_TOPICS}(/[^/]+(/(partitions|(partitioned-)?stats))?)?"), _add_topics),
    (re.compile(f"{_TOPICS}/[^/]+/compaction(/.*)?"), _add_compaction),
    (re.compile("/(cluster|catalog)(/.*)?"), _add_cluster),
    (re.compile("/tables(/.*)?"), _add_tables),
    (re.compile("/admin/v2/(unclaimed|missing)(/.*)?"), _add_unclaimed),
)
"""Paths that only the routes of one part can match. Other paths need the routes of all parts."""
