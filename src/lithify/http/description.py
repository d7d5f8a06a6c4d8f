"""The description of all routes, at /openapi.json.

It takes half a second to make, so a thread makes it for the first who asks, and it is kept.
"""

import asyncio
import json

from fastapi import APIRouter, FastAPI, Request, Response

__all__ = ["router"]

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def description(request: Request) -> Response:
    """All routes, as OpenAPI has them."""
    state = request.app.state
    if getattr(state, "description", None) is None:
        state.description = await asyncio.to_thread(_make, request.app)
    return Response(state.description, media_type="application/json")


def _make(app: FastAPI) -> bytes:
    return json.dumps(app.openapi()).encode()
