"""The catalog over HTTP: its versions, what differs between them, and changes as TOML.

| path              |                                                                          |
|-------------------|--------------------------------------------------------------------------|
| /catalog          | GET: all objects of the version in force; `?version=N` of that version,  |
|                   | `?at=TIME` of the one in force then (ISO 8601, or milliseconds)          |
| /catalog/history  | GET: the newest versions that are left, with what each has changed       |
| /catalog/diff     | GET `?a=N&b=N`: what differs between two versions                        |
| /catalog/apply    | POST: definitions as TOML (`catalog/definitions_toml.py`); idempotent;   |
|                   | `?dry_run=true` answers what would differ, and changes nothing           |

Versions are those that this node has applied. Threads build the answers: a catalog may have many
thousands of objects.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response

from lithify.catalog.catalog import Catalog
from lithify.catalog.commands.batch import CatalogCommand, plan_batch
from lithify.catalog.definitions_toml import ApplyDefinitions
from lithify.catalog.describe import catalog_rows
from lithify.catalog.diff import diff_catalogs
from lithify.catalog.manager.executions import Executed
from lithify.errors import InvalidInput, LithifyError
from lithify.http.cluster.access import ClusterAccess, ClusterDep, in_cluster
from lithify.http.cluster.applied_definitions import check_applied
from lithify.http.error_responses import RequestRefused
from lithify.http.long_responses import json_answer
from lithify.http.paths import BrokerDep
from lithify.hybrid_time import MAX_TIMESTAMP, timestamp

__all__ = ["router"]

router = APIRouter(prefix="/catalog", tags=["catalog"])

T = TypeVar("T")

HISTORY_MAX = 100
"""Each version of a history is compared with the one before it."""
TEXT_BYTES_MAX = 2**18
ASSIGNMENTS_MAX = 5_000
"""So that a text of definitions is parsed and planned within some tenths of a second."""

_TOML = {"requestBody": {"content": {"application/toml": {"schema": {"type": "string"}}}}}


def parse_time(text: str) -> int:
    """The last timestamp of a millisecond, given as a number or in ISO 8601; UTC by default."""
    try:
        if text.isdecimal():
            ms = int(text)
        else:
            # A plus sign in a query is a space.
            when = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
            ms = round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    except ValueError as error:
        # Also a number of thousands of digits.
        what = f"time {text!r:.80} must be in ISO 8601, or milliseconds since 1970"
        raise InvalidInput(what) from error
    if not 0 <= ms <= MAX_TIMESTAMP >> 16:
        raise InvalidInput(f"time {text!r} must be after 1970 and below 2**47 milliseconds")
    return timestamp(ms, 2**16 - 1)


def _chosen(cluster: ClusterAccess, version: int | None, at: str | None) -> Catalog:
    if version is not None and at is not None:
        raise InvalidInput("version and at exclude each other")
    if version is not None:
        return cluster.catalog.versions.at_version(version)
    if at is not None:
        return cluster.catalog.versions.at_time(parse_time(at))
    return cluster.catalog.current


async def _answer(build: Callable[[], Any]) -> Response:
    return await json_answer(await asyncio.to_thread(build))


@router.get("")
async def show(cluster: ClusterDep, version: int | None = None, at: str | None = None) -> Response:
    """All objects of a version."""
    catalog = _chosen(cluster, version, at)
    return await _answer(
        lambda: {
            "version": catalog.version,
            "activation": catalog.activation,
            "objects": list(catalog_rows(catalog)),
        }
    )


@router.get("/history")
async def history(
    cluster: ClusterDep, limit: Annotated[int, Query(ge=0, le=HISTORY_MAX)] = 20
) -> Response:
    """The newest versions, newest first; the earliest one that is left has no changes here."""
    versions = cluster.catalog.versions

    def build() -> list[dict[str, Any]]:
        newest, earliest = versions.latest.version, versions.earliest.version
        rows = []
        for number in range(newest, max(earliest - 1, newest - limit), -1):
            catalog = versions.at_version(number)
            changes = None
            if number > earliest:
                differences = diff_catalogs(versions.at_version(number - 1), catalog)
                changes = [str(each) for each in differences]
            rows.append(
                {
                    "version": number,
                    "activation": catalog.activation,
                    "objects": len(catalog.objects),
                    "changes": changes,
                }
            )
        return rows

    return await _answer(build)


def _difference(before: Catalog, after: Catalog) -> list[dict[str, Any]]:
    return [each.row() | {"text": str(each)} for each in diff_catalogs(before, after)]


@router.get("/diff")
async def diff(cluster: ClusterDep, a: int, b: int) -> Response:
    """What differs between two versions."""
    before, after = (cluster.catalog.versions.at_version(each) for each in (a, b))
    return await _answer(lambda: {"a": a, "b": b, "differences": _difference(before, after)})


@router.post("/apply", openapi_extra=_TOML)
async def apply(
    request: Request, cluster: ClusterDep, broker: BrokerDep, *, dry_run: bool = False
) -> Response:
    """Change the catalog to what a text defines."""
    command = ApplyDefinitions(
        _text(await request.body()),
        tuple(sorted(name for name, each in cluster.nodes().items() if each.is_alive)),
        broker.topics.now_ms(),
        partial(check_applied, stores=request.app.state.stores.settings),
    )
    base = cluster.catalog.versions.latest
    if dry_run:

        def build() -> dict[str, Any]:
            planned = plan_batch(base, [command])
            after = base if planned is None else planned.catalog
            return {"version": base.version, "differences": _difference(base, after)}

        return await _answer(build)
    executed = await in_cluster(cluster, partial(_execute, cluster, command))
    [changed] = executed.applied
    versions = cluster.catalog.versions

    def differs() -> list[dict[str, Any]]:
        if not changed:
            return []
        before, after = (versions.at_version(executed.version - back) for back in (1, 0))
        return _difference(before, after)

    return await _answer(
        lambda: {
            "version": executed.version,
            "activation": executed.activation,
            "changed": changed,
            "differences": differs(),
        }
    )


async def _execute(cluster: ClusterAccess, command: CatalogCommand) -> Executed:
    """Execute a command; afterwards this node no longer serves what it has deleted."""
    executed = await cluster.execute([command], is_long=True)
    with suppress(LithifyError):
        await cluster.catalog.wait_ready(executed.version)
    return executed


def _text(body: bytes) -> str:
    for count, limit, what in (
        (len(body), TEXT_BYTES_MAX, "bytes"),
        (body.count(b"="), ASSIGNMENTS_MAX, "values"),
    ):
        if count > limit:
            reason = f"the text has {count} {what}, the limit is {limit}: split it"
            raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the text is not UTF-8: {error}") from error
