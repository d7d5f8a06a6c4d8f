"""Blob stores over HTTP: create and delete stores; put, read and change blobs.

| path                       |                                                                     |
|----------------------------|---------------------------------------------------------------------|
| /blobs                     | GET: the stores of `?namespace`, default public/default             |
| /blobs/STORE               | PUT: create, in `?namespace`, on the node `?owner`, default: placed |
|                            | by the zone; GET: definition and use; DELETE                        |
|                            | POST: put a blob; its id is in the answer and in `Location`         |
| /blobs/STORE/list          | GET: its blobs, `?limit` of them after position `?after`            |
| /blobs/STORE/ID            | GET, HEAD: the content, or a range of it; DELETE                    |
| /blobs/STORE/ID/info       | GET: everything about it except the content                         |
| /blobs/STORE/ID/ttl        | PUT: seconds, in the header `x-lithify-ttl` or as {"ttl": seconds}  |
| /blobs/STORE/ID/undelete   | PUT: undo a delete                                                  |

With `?include=expired|deleted|all` a read sees more blobs. Headers are in `headers.py`, the
transfer of contents in `content.py`, compaction in `admin.py`. The response to an invalid request
is 400, with the reason in the body.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Body, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers

from lithify.blobs.blob_json import etag_of, info_row, listed_row, store_row, ttl_ms_of
from lithify.blobs.content.reader import BlobInfo
from lithify.blobs.definition import NAMESPACE_DEFAULT
from lithify.blobs.errors import BlobNotFound, BlobStoreNotFound
from lithify.blobs.replication.http_peer import HttpPeer
from lithify.blobs.store import BlobStore
from lithify.blobs.stores import BlobStores
from lithify.blobs.visibility import Include
from lithify.errors import InvalidInput, LithifyError
from lithify.http.blobs.conditions_and_ranges import is_known
from lithify.http.blobs.content import BlobAnswer, BlobThreads, open_content, receive_content
from lithify.http.blobs.headers import TTL, headers_of, put_options
from lithify.http.blobs.metrics import BlobMeters
from lithify.http.blobs.replica_proxy import GET, HEAD, INFO, BlobRequest, open_at_replica
from lithify.http.paths import decoded
from lithify.ownership import NotOwner
from lithify.topics.definitions.topic_names import Namespace

__all__ = ["BlobId", "BlobService", "BlobsDep", "StoreName", "router"]

router = APIRouter(prefix="/blobs", tags=["blobs"])

LIST_MAX = 1000


class BlobService:
    """The stores of a node with their threads and metrics; one per application."""

    def __init__(self, stores: BlobStores) -> None:
        self.stores = stores
        self.threads = BlobThreads()
        self.meters = BlobMeters()

    async def store(self, name: str) -> BlobStore:
        """The store, opened on first use."""
        opened = self.stores.opened_store(name)
        return await self.threads.step(self.stores.get, name) if opened is None else opened

    @contextmanager
    def using(self, name: str, store: BlobStore, operation: str = "") -> Iterator[None]:
        """Use a store; if it is deleted during the block, raise `BlobStoreNotFound`.

        A successful operation with a name is counted, with its duration.
        """
        clock = self.stores.clock
        begun_s = clock.monotonic_s()
        try:
            yield
        except (LithifyError, OSError) as error:
            if store.closed:
                raise BlobStoreNotFound(
                    f"blob store {name} was deleted during the request"
                ) from error
            raise
        if operation:
            self.meters.add(name, operation, clock.monotonic_s() - begun_s)


async def _service(request: Request) -> BlobService:
    service = request.app.state.blobs
    assert isinstance(service, BlobService)
    return service


async def _store_name(store: str) -> str:
    return decoded(store)


async def _blob_id(blob_id: str) -> str:
    return decoded(blob_id)


BlobsDep = Annotated[BlobService, Depends(_service)]
StoreName = Annotated[str, Depends(_store_name)]
BlobId = Annotated[str, Depends(_blob_id)]


class NewStore(BaseModel):
    """The shape and settings of a new store."""

    model_config = ConfigDict(extra="forbid", strict=True)
    capacity_bytes: int
    segment_bytes: int
    settings: dict[str, Any] = {}


class NewTtl(BaseModel):
    """Seconds from now; -1: never."""

    model_config = ConfigDict(extra="forbid", strict=True)
    ttl: int


# --- stores -----------------------------------------------------------------------------------


@router.get("")
async def stores(service: BlobsDep, namespace: str = NAMESPACE_DEFAULT) -> list[dict[str, Any]]:
    """The stores of a namespace with their use, or with the error of a store that cannot open."""
    rows = []
    for name in service.stores.names(str(Namespace.parse(namespace))):
        # One that is deleted in the meantime is not listed.
        with suppress(BlobStoreNotFound):
            rows.append(await service.threads.step(listed_row, service.stores, name))
    return rows


@router.put("/{store}", status_code=201)
async def create(
    request: Request,
    name: StoreName,
    service: BlobsDep,
    wanted: Annotated[NewStore, Body()],
    namespace: str = NAMESPACE_DEFAULT,
    owner: str = "",
) -> dict[str, Any]:
    """Create a store; 409 if one of that name exists.

    In a cluster it is placed on a node, or on `owner`, to which this one redirects.
    """
    try:
        await service.threads.step(service.stores.check_place, name, owner)
    except NotOwner as error:
        # So that the owner does not choose again.
        query = urlencode({"namespace": namespace, "owner": error.owner})
        request.scope["query_string"] = query.encode()
        raise

    def make() -> dict[str, Any]:
        service.stores.create(
            name,
            capacity_bytes=wanted.capacity_bytes,
            segment_bytes=wanted.segment_bytes,
            settings=wanted.settings,
            namespace=namespace,
        )
        return store_row(service.stores, name)

    return await service.threads.step(make)


@router.get("/{store}")
async def stats(name: StoreName, service: BlobsDep) -> dict[str, Any]:
    """The definition of a store and how full it is."""
    return await service.threads.step(store_row, service.stores, name)


@router.delete("/{store}", status_code=204)
async def delete_store(name: StoreName, service: BlobsDep) -> Response:
    """Delete a store with all its blobs."""
    await service.threads.step(service.stores.delete, name)
    service.meters.forget(name)
    return Response(status_code=204)


# --- putting and listing ----------------------------------------------------------------------

_CONTENT: dict[str, Any] = {"requestBody": {"content": {"application/octet-stream": {}}}}


@router.post("/{store}", status_code=201, openapi_extra=_CONTENT)
async def put(
    request: Request, name: StoreName, service: BlobsDep, response: Response
) -> dict[str, Any]:
    """Put a blob; the body is its content."""
    store = await service.store(name)
    options = put_options(request.headers)

    def do_put(content: Any) -> BlobInfo:
        return store.put(
            content,
            service=options.service,
            owner=options.owner,
            content_type=options.content_type,
            metadata=options.metadata,
            ttl_ms=options.ttl_ms,
        )

    with service.using(name, store, "put"):
        limit_bytes = store.shape.record_bytes_max
        info = await receive_content(request, limit_bytes, service.threads, do_put)
    response.headers["Location"] = f"/blobs/{name}/{info.blob_id}"
    response.headers["ETag"] = etag_of(info)
    return info_row(info, service.stores.now_ms())


@router.get("/{store}/list")
async def list_blobs(
    name: StoreName,
    service: BlobsDep,
    include: Include = Include.NONE,
    after: int = -1,
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = LIST_MAX,
) -> dict[str, Any]:
    """Blobs in the order of their puts; pass `next` as `after` to continue, null: the end."""
    store = await service.store(name)

    def rows() -> dict[str, Any]:
        now_ms = service.stores.now_ms()
        found = itertools.islice(store.list(include=include, after=after), limit)
        blobs = [info_row(info, now_ms) for info in found]
        return {"blobs": blobs, "next": blobs[-1]["position"] if len(blobs) == limit else None}

    with service.using(name, store):
        return await service.threads.step(rows)


# --- one blob ---------------------------------------------------------------------------------

_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}},
    206: {"content": {"application/octet-stream": {}}},
}


@router.get("/{store}/{blob_id}", response_class=Response, responses=_BYTES)
async def get(
    request: Request,
    store: str,
    blob_id: str,
    include: Include = Include.NONE,
    *,
    replicas: bool = True,
) -> Response:
    """The content of a blob, or a range of it; if it is not in this store, from a replica."""
    # No dependencies here: resolving them takes a quarter of the time of a small get.
    service: BlobService = request.app.state.blobs
    name, threads = decoded(store), service.threads
    opened = await service.store(name)
    with service.using(name, opened, "get"):
        now_ms = service.stores.now_ms()
        arguments = decoded(blob_id), include, request.headers
        try:
            content = await threads.step(open_content, opened, *arguments, now_ms)
        except BlobNotFound:
            if not replicas:
                raise
            return await _proxied(service, GET, name, opened, *arguments)
    return BlobAnswer(content, threads)


async def _proxied(
    service: BlobService,
    kind: BlobRequest,
    name: str,
    store: BlobStore,
    blob_id: str,
    include: Include,
    headers: Headers,
) -> BlobAnswer:
    """The response of a replica for a blob that is not in this store."""
    stores, threads = service.stores, service.threads
    namespace = stores.definition(name).namespace

    def connect(url: str) -> HttpPeer:
        return stores.peers.connect(url, namespace)

    content = await threads.step(open_at_replica, kind, store, blob_id, include, headers, connect)
    return BlobAnswer(content, threads)


@router.head("/{store}/{blob_id}", response_class=Response)
async def head(
    request: Request,
    name: StoreName,
    blob_id: BlobId,
    service: BlobsDep,
    include: Include = Include.NONE,
    *,
    replicas: bool = True,
) -> Response:
    """The headers of a get."""
    store = await service.store(name)
    with service.using(name, store, "head"):
        try:
            info = await service.threads.step(_head, store, blob_id, include)
        except BlobNotFound:
            if not replicas:
                raise
            return await _proxied(service, HEAD, name, store, blob_id, include, request.headers)
    known = is_known(request.headers, etag_of(info))
    answer = Response(status_code=HTTPStatus.NOT_MODIFIED if known else HTTPStatus.OK)
    length = [] if known else [(b"content-length", b"%d" % info.size)]
    answer.raw_headers = headers_of(info, service.stores.now_ms()) + length
    return answer


@router.get("/{store}/{blob_id}/info", response_model=dict[str, Any])
async def info_of_blob(
    name: StoreName,
    blob_id: BlobId,
    service: BlobsDep,
    include: Include = Include.NONE,
    *,
    replicas: bool = True,
) -> dict[str, Any] | Response:
    """Everything about a blob except its content."""
    store = await service.store(name)
    with service.using(name, store, "head"):
        try:
            info = await service.threads.step(_head, store, blob_id, include)
        except BlobNotFound:
            if not replicas:
                raise
            return await _proxied(service, INFO, name, store, blob_id, include, Headers())
    return info_row(info, service.stores.now_ms())


def _head(store: BlobStore, blob_id: str, include: Include) -> BlobInfo:
    return store.head(blob_id, include=include)


@router.delete("/{store}/{blob_id}", status_code=202)
async def delete(name: StoreName, blob_id: BlobId, service: BlobsDep) -> dict[str, Any]:
    """Delete a blob; within the retention it can be undeleted."""
    store = await service.store(name)
    with service.using(name, store, "delete"):
        await service.threads.step(store.delete, blob_id)
    return {"id": blob_id}


@router.put("/{store}/{blob_id}/ttl")
async def ttl(
    request: Request,
    name: StoreName,
    blob_id: BlobId,
    service: BlobsDep,
    wanted: Annotated[NewTtl | None, Body()] = None,
) -> dict[str, Any]:
    """Set the time to live of a blob in seconds from now; -1: never."""
    seconds: str | int | None = request.headers.get(TTL)
    if (seconds is None) == (wanted is None):
        reason = f'give the seconds once: in the header {TTL} or as {{"ttl": seconds}}'
        raise InvalidInput(reason)
    if wanted is not None:
        seconds = wanted.ttl
    assert seconds is not None
    ttl_ms = ttl_ms_of(seconds)
    store = await service.store(name)
    with service.using(name, store, "ttl"):
        expiry_ms = await service.threads.step(store.live_for, blob_id, ttl_ms)
    return {"id": blob_id, "expiry_ms": expiry_ms}


@router.put("/{store}/{blob_id}/undelete")
async def undelete(name: StoreName, blob_id: BlobId, service: BlobsDep) -> dict[str, Any]:
    """Undo a delete within its retention."""
    store = await service.store(name)
    with service.using(name, store, "undelete"):
        await service.threads.step(store.undelete, blob_id)
    return {"id": blob_id}
