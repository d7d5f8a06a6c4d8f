"""Replicas of blob stores over HTTP: their list, and the requests between them.

| path of a store        |                                                                       |
|------------------------|-----------------------------------------------------------------------|
| replicas               | GET: the other replicas, and how far each was read                    |
|                        | PUT: a list of them: names of peers, or http://HOST:PORT/blobs/STORE  |
| replication/changes    | POST: a page of the changes since a token                             |
| replication/records    | POST: blobs with their contents, as a stream                          |
| replication/unknown    | POST: which of these ids have no record in the store                  |

All but GET need the permission to administer the namespace. The formats are those of
`blobs/replication/tokens_and_pages.py` and `blobs/replication/blob_stream.py`.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from lithify.blobs.errors import ReplicaAnswerInvalid
from lithify.blobs.records import hash_id
from lithify.blobs.replication.feed import CHANGES_MAX
from lithify.blobs.replication.tokens_and_pages import Token
from lithify.errors import InvalidInput
from lithify.http.blobs.content import BlobThreads
from lithify.http.blobs.stores_and_blobs import BlobsDep, StoreName

__all__ = ["router"]

router = APIRouter(prefix="/blobs/{store}", tags=["blobs"])

IDS_MAX = 1000
PIECE_BYTES = 2**20
LIMIT_MAX = 10 * CHANGES_MAX


class Since(BaseModel):
    """The start of the requested changes, and the reader."""

    model_config = ConfigDict(strict=True)
    replica: str
    token: list[Any] | None = None
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = CHANGES_MAX
    settled: bool = False


def _checked_id(blob_id: str) -> str:
    """Raise if the id is invalid, before the answer has begun."""
    hash_id(blob_id, b"")
    return blob_id


class Ids(BaseModel):
    """Ids of blobs."""

    model_config = ConfigDict(strict=True)
    ids: Annotated[list[Annotated[str, AfterValidator(_checked_id)]], Field(max_length=IDS_MAX)]


# --- the list of replicas ---------------------------------------------------------------------


@router.get("/replicas")
async def replicas(name: StoreName, service: BlobsDep) -> list[dict[str, Any]]:
    """The other replicas, and how far this one has read them."""
    store = await service.store(name)
    return [asdict(each) for each in store.replication.status()]


@router.put("/replicas")
async def set_replicas(
    name: StoreName, service: BlobsDep, replicas: Annotated[list[str], Body()]
) -> list[str]:
    """Replace the list of replicas, which must be stores of peers."""
    store, peers = await service.store(name), service.stores.peers
    with service.using(name, store):
        found = [peers.url_of(each, name) for each in replicas]
        await service.threads.step(store.replication.set_peers, found)
    return list(store.replication.peers)


# --- requests of replicas ---------------------------------------------------------------------


@router.post("/replication/changes")
async def changes(name: StoreName, service: BlobsDep, wanted: Since) -> dict[str, Any]:
    """The changes since a token."""
    store = await service.store(name)
    try:
        token = None if wanted.token is None else Token.from_row(wanted.token)
    except ReplicaAnswerInvalid as error:
        raise InvalidInput(str(error)) from error

    def page() -> dict[str, Any]:
        serve = store.replication.serve
        return serve(wanted.replica, token, wanted.limit, settled=wanted.settled).to_json()

    with service.using(name, store):
        return await service.threads.step(page)


@router.post("/replication/records", response_class=StreamingResponse)
async def records(name: StoreName, service: BlobsDep, wanted: Ids) -> StreamingResponse:
    """Blobs with their contents; a missing blob is marked as missing."""
    store = await service.store(name)
    pieces = store.replication.feed.records(wanted.ids)
    return StreamingResponse(
        _streamed(pieces, service.threads), media_type="application/octet-stream"
    )


@router.post("/replication/unknown")
async def unknown(name: StoreName, service: BlobsDep, wanted: Ids) -> dict[str, list[str]]:
    """The ids of which the store has no record."""
    store = await service.store(name)
    with service.using(name, store):
        found = await service.threads.step(store.replication.feed.unknown, wanted.ids)
    return {"unknown": found}


async def _streamed(pieces: Iterator[bytes], threads: BlobThreads) -> AsyncIterator[bytes]:
    while True:
        piece = await threads.step(_gathered, pieces)
        if not piece:
            return
        yield piece


def _gathered(pieces: Iterator[bytes]) -> bytes:
    """About a megabyte of pieces: small blobs are sent together."""
    held, size = [], 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            break
    return b"".join(held)
