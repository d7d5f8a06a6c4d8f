"""Fast path for the content of a blob.

Most requests for blobs are gets without options. Matching the routes in order, and resolving the
dependencies of the match, would take longer than the get itself. So one route precedes all others
and handles

    GET /blobs/STORE/ID

unless it has a query, or its last segment is that of another route. Such requests are handled by
`stores_and_blobs.py`, which also has the description of the routes, and whose `get` is called here.
Authorization is the same.

Called by `http/app.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.routing import BaseRoute, Match

from lithify.http.auth import authorize
from lithify.http.blobs.stores_and_blobs import get

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastapi import APIRouter
    from starlette.types import Receive, Scope, Send

__all__ = ["FastGet"]

_A_STORE = "/blobs/{store}/"


class FastGet(BaseRoute):
    """The route of gets without options; see the module."""

    path = f"{_A_STORE}{{blob_id}}"
    """The route that `authorize` uses."""

    def __init__(self, routers: Iterable[APIRouter]) -> None:
        """Requests that match a route of `routers` are not handled here."""
        paths = (getattr(route, "path", "") for router in routers for route in router.routes)
        self._words = frozenset(
            path.removeprefix(_A_STORE) for path in paths if path.startswith(_A_STORE)
        )

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether this route handles the request."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope["query_string"]:
            return Match.NONE, {}
        parts = scope["path"].split("/")
        if len(parts) != 4 or parts[:2] != ["", "blobs"] or parts[3] in self._words:
            return Match.NONE, {}
        _, _, store, blob_id = parts
        if not (store and blob_id):
            return Match.NONE, {}
        named = {"store": store, "blob_id": blob_id}
        return Match.FULL, {"route": self, "endpoint": get, "path_params": named}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        request = Request(scope, receive, send)
        await authorize(request)
        answer = await get(request, **scope["path_params"])
        await answer(scope, receive, send)
