"""The rows of tables over HTTP, and transactions.

| path                            |                                                               |
|---------------------------------|---------------------------------------------------------------|
| /tables/TABLE/row?key=KEY       | GET: a row; DELETE: delete it                                 |
| /tables/TABLE/rows              | GET: rows, see below; POST: put a row, or several as NDJSON   |
| /tables/transactions            | POST {"read_only", "at"}: begin one; the answer has its `id`  |
| /tables/transactions/ID/commit  | POST                                                          |
| /tables/transactions/ID/rollback| POST                                                          |

`KEY` is a JSON object. Each of these takes `?tx=ID`; reads take `?at=TIME`. Without `tx` every row
is a transaction of its own.

GET of rows: `?prefix=OBJECT` are values of the first columns of the key, or of those of the index
that `?index=NAME` names; the answer is a page of at most `?limit=N` rows. `?cursor=` is the `next`
of the page before, which is read at the same time. With `Accept: application/x-ndjson` the answer
has all rows, a line for each, and no pages.

A transaction is on the node on which it was begun; others redirect there.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

from lithify.errors import InvalidInput
from lithify.http.cluster.access import ClusterDep, in_cluster
from lithify.http.error_responses import RequestRefused
from lithify.http.long_responses import json_answer, sent_pieces
from lithify.http.tables.access import TablePath, TablesDep, Utf8Query, parse_at
from lithify.hybrid_time import MAX_TIMESTAMP, MIN_TIMESTAMP
from lithify.tables.errors import TransactionEnded, TransactionExpired
from lithify.tables.reads import PAGE_ROWS_MAX, Cursor, Page
from lithify.tables.row_request_format import decode_object

__all__ = ["router"]

router = APIRouter(prefix="/tables", tags=["tables"], dependencies=[Utf8Query])

JSON = "application/json"
NDJSON = "application/x-ndjson"
PUT_AT_ONCE = 64
LIMIT = 100

_ROWS = {
    "requestBody": {
        "content": {
            JSON: {"schema": {"type": "object"}},
            NDJSON: {"schema": {"type": "string"}},
        }
    }
}


class Beginning(BaseModel):
    """A transaction to begin."""

    model_config = ConfigDict(extra="forbid", strict=True)

    read_only: bool = False
    at: str | None = None


# --- transactions -------------------------------------------------------------------------------


@router.post("/transactions", status_code=201)
async def begin(beginning: Beginning, cluster: ClusterDep, tables: TablesDep) -> dict[str, Any]:
    """Begin a transaction on this node."""
    at = parse_at(beginning.at)
    if at and not beginning.read_only:
        raise InvalidInput("only a read-only transaction is at a time")

    async def begun() -> tuple[str, int]:
        if beginning.read_only:
            return await tables.begin_read(at)
        return tables.begin(), 0

    handle, timestamp = await in_cluster(cluster, begun)
    more = {"timestamp": timestamp} if beginning.read_only else {}
    return {"id": handle, "node": tables.node, "read_only": beginning.read_only, **more}


@router.post("/transactions/{transaction}/commit", status_code=204)
async def commit(transaction: str, cluster: ClusterDep, tables: TablesDep) -> Response:
    """Commit a transaction; a read-only one only ends."""
    await in_cluster(cluster, partial(tables.commit, transaction))
    return Response(status_code=204)


@router.post("/transactions/{transaction}/rollback", status_code=204)
async def roll_back(transaction: str, cluster: ClusterDep, tables: TablesDep) -> Response:
    """End a transaction without its writes."""
    await in_cluster(cluster, partial(tables.roll_back, transaction))
    return Response(status_code=204)


# --- rows ---------------------------------------------------------------------------------------


@router.get("/{table}/row")
async def get(
    cluster: ClusterDep,
    tables: TablesDep,
    table: TablePath,
    key: str,
    tx: str = "",
    at: str | None = None,
) -> Response:
    """A row."""
    values, time = decode_object("key", key), parse_at(at)
    return await json_answer(
        await in_cluster(cluster, partial(tables.get, table, values, tx, time))
    )


@router.delete("/{table}/row", status_code=204)
async def delete(
    cluster: ClusterDep, tables: TablesDep, table: TablePath, key: str, tx: str = ""
) -> Response:
    """Delete a row; no change if there is none."""
    values = decode_object("key", key)
    await in_cluster(cluster, partial(tables.delete, table, values, tx))
    return Response(status_code=204)


@router.post("/{table}/rows", openapi_extra=_ROWS)
async def put(
    request: Request, cluster: ClusterDep, tables: TablesDep, table: TablePath, tx: str = ""
) -> dict[str, int]:
    """Insert or replace rows. Without a transaction each is put by itself."""
    rows = _rows_of(request.headers.get("content-type", JSON), await request.body())

    async def put_all() -> None:
        if tx:
            for row in rows:
                await tables.put(table, row, tx)
            return
        for at in range(0, len(rows), PUT_AT_ONCE):
            part = rows[at : at + PUT_AT_ONCE]
            puts = (tables.put(table, row) for row in part)
            # Wait for all: after an error no put is still in progress.
            for result in await asyncio.gather(*puts, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    await in_cluster(cluster, put_all)
    return {"put": len(rows)}


def _rows_of(content_type: str, body: bytes) -> list[dict[str, Any]]:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == NDJSON:
        lines = [line for line in body.splitlines() if line.strip()]
        return [decode_object(f"row {place}", line) for place, line in enumerate(lines, 1)]
    if kind != JSON:
        reason = f"content-type {content_type:.80} must be {JSON} or {NDJSON}"
        raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason)
    return [decode_object("a row", body)]


@router.get("/{table}/rows")
async def rows(
    request: Request,
    cluster: ClusterDep,
    tables: TablesDep,
    table: TablePath,
    prefix: str = "{}",
    index: str = "",
    limit: Annotated[int, Query(ge=1, le=PAGE_ROWS_MAX)] = LIMIT,
    cursor: str | None = None,
    tx: str = "",
    at: str | None = None,
) -> Response:
    """A page of rows, or all as lines."""
    after, time = (None, parse_at(at)) if cursor is None else _parse_cursor(cursor)
    if tx:
        time = parse_at(at)
    scan = partial(tables.scan, table, decode_object("prefix", prefix), index=index, handle=tx)
    if NDJSON not in request.headers.get("accept", ""):
        page, read_at = await in_cluster(cluster, partial(scan, limit=limit, after=after, at=time))
        following = None if page.next is None else _cursor(page.next, read_at)
        return await json_answer({"rows": page.rows, "timestamp": read_at, "next": following})
    # The first page is read before the answer begins, so that it can be refused.
    first = await in_cluster(cluster, partial(scan, limit=PAGE_ROWS_MAX, after=after, at=time))

    return StreamingResponse(_lines(cluster, tables, scan, first, tx), media_type=NDJSON)


async def _lines(
    cluster: ClusterDep,
    tables: TablesDep,
    scan: Callable[..., Coroutine[Any, Any, tuple[Page, int]]],
    first: tuple[Page, int],
    tx: str,
) -> AsyncIterator[bytes]:
    """The rows of all pages; a transaction holds what is still to be read."""
    page, read_at = first
    held = ""
    if page.next is not None and not tx:
        held, _ = await in_cluster(cluster, partial(tables.begin_read, read_at))
    try:
        while True:
            lines = (
                json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in page.rows
            )
            text = "".join(f"{line}\n" for line in lines)
            async for piece in sent_pieces(text.encode()):
                yield piece
            if page.next is None:
                return
            more = partial(scan, limit=PAGE_ROWS_MAX, after=page.next, handle=tx or held)
            page, _ = await in_cluster(cluster, more)
    finally:
        if held:
            with suppress(TransactionEnded, TransactionExpired):
                await in_cluster(cluster, partial(tables.roll_back, held))


def _cursor(place: Cursor, timestamp: int) -> str:
    text = json.dumps([timestamp, place[0], place[1].hex()])
    return base64.urlsafe_b64encode(text.encode()).decode()


def _parse_cursor(text: str) -> tuple[Cursor, int]:
    refused = InvalidInput(f"cursor {text:.80} is none that was answered")
    try:
        timestamp, number, key = json.loads(base64.urlsafe_b64decode(text))
        place = bytes.fromhex(key)
    except (ValueError, TypeError, RecursionError) as error:
        raise refused from error
    # The reader checks the partition and the key.
    if type(timestamp) is not int or type(number) is not int:
        raise refused
    if not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
        raise refused
    return (number, place), timestamp
