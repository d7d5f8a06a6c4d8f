"""The description of all routes, at /openapi.json.

Building it takes half a second, so a thread builds it on the first request, and it is cached.
"""

import asyncio
import json

from fastapi import APIRouter, FastAPI, Request, Response

__all__ = ["router"]

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def description(request: Request) -> Response:
    """The OpenAPI description of all routes."""
    state = request.app.state
    if getattr(state, "description", None) is None:
        state.description = await asyncio.to_thread(_make, request.app)
    return Response(state.description, media_type="application/json")


def _make(app: FastAPI) -> bytes:
    return json.dumps(app.openapi()).encode()
