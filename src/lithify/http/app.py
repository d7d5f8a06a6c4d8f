"""The HTTP side of a node: one application of all routes.

    app = create_app(broker)          # then any ASGI server, in the loop that the broker runs in

Topics belong to the event loop's thread, so every route is `async def` and runs there. Each module
here has the routes of one noun; names in paths are checked in `paths.py`, refusals are answered in
`errors.py`. The description of all routes is at /openapi.json.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI

from lithify.http import (
    brokers,
    compaction,
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
    upkeep,
)
from lithify.http.auth import authorize
from lithify.http.errors import add_error_handlers
from lithify.http.paths import BodyLimit, RawPaths

if TYPE_CHECKING:
    from lithify.pulsar.broker import Broker

__all__ = ["create_app"]


def create_app(broker: Broker, *, cluster: str = "standalone") -> FastAPI:
    """The application; `cluster` is the name of the one cluster that there is."""
    app = FastAPI(
        title="Lithify",
        version=broker.server_version,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(authorize)],
    )
    app.state.broker = broker
    app.state.cluster = cluster
    app.state.publisher = produce.Publisher(broker)
    app.state.readers = tail.Readers()
    app.state.lookups = asyncio.Lock()
    app.add_middleware(RawPaths)
    app.add_middleware(BodyLimit)
    add_error_handlers(app)
    for module in (
        # Before the subscriptions: the name of one of them means the compacted view.
        *(
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
        *(policies, produce, tail, lookup, upkeep),
    ):
        app.include_router(module.router)
    app.include_router(topics.non_persistent)
    return app
