"""Maintenance of blob stores over HTTP: compaction, settings, statistics, erasing.

| path of a store       |                                                                          |
|-----------------------|--------------------------------------------------------------------------|
| compaction            | POST: run, by `?policy` or the store's own; with `?dry_run=true` only    |
|                       | return the plan of a run. GET: progress and the last report, or those of |
|                       | one `?request`. DELETE: cancel                                           |
| compaction/history    | GET: the reports of the last runs, newest first                          |
| settings              | GET: the store's own and the effective ones.                             |
|                       | PATCH {"set": {NAME: VALUE}, "unset": [NAME]}                            |
| statistics            | GET: what is valid, and with `?forecast=true` until when                 |
| erase                 | GET: the state of erasing                                                |

The body may contain `policy` and `dry_run` as JSON. A run is a background task: 202 means that it
was requested, 409 that it is refused. A request during another run waits for its turn, or is
refused with `?wait=false`; `request` in the answer identifies it in later requests for its report.
Blobs whose id is one of these words cannot be reached over HTTP; generated ids never are.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel, ConfigDict

from lithify.blobs.blob_json import plan_row, settings_row, statistics_row
from lithify.blobs.settings import POLICY_NAMES
from lithify.blobs.stores import ONE_SEGMENT
from lithify.compaction.policies.plugins import check_policy
from lithify.compaction.reports.status import report_row
from lithify.errors import RunRefused
from lithify.http.blobs.stores_and_blobs import BlobsDep, StoreName
from lithify.http.dry_runs import when_free
from lithify.http.error_responses import RequestRefused

__all__ = ["router"]

router = APIRouter(prefix="/blobs/{store}", tags=["blobs"])

HISTORY_MAX = 1000


class NewRun(BaseModel):
    """The options of a run."""

    model_config = ConfigDict(extra="forbid", strict=True)
    policy: str | None = None
    dry_run: bool = False


class ChangedSettings(BaseModel):
    """Settings to set for the store, and names of those to reset to the node's."""

    model_config = ConfigDict(extra="forbid", strict=True)
    set: dict[str, Any] = {}
    unset: list[str] = []


@router.post("/compaction", status_code=202)
async def run(
    name: StoreName,
    service: BlobsDep,
    response: Response,
    wanted: Annotated[NewRun | None, Body()] = None,
    policy: str | None = None,
    *,
    dry_run: bool = False,
    wait: bool = True,
) -> dict[str, Any]:
    """Compact a store, or with `dry_run` return the plan.

    With `wait=false`, 409 if it would have to wait for another run, or a run for the disk.
    """
    given = wanted or NewRun()
    policy = given.policy or policy
    if policy is not None:
        check_policy(policy, POLICY_NAMES)
    store = await service.store(name)
    if store.shape.capacity_bytes == store.shape.segment_bytes:
        raise RunRefused("segments", ONE_SEGMENT)
    with service.using(name, store):
        if given.dry_run or dry_run:
            response.status_code = HTTPStatus.OK
            jobs = service.stores.compactions.queue.jobs
            plan = partial(plan_row, waits=False)
            plan_once = partial(service.threads.step, plan, name, store, policy, jobs)
            return await when_free(store.compaction.runs, plan_once, wait=wait)
        ask = partial(service.stores.compactions.request, waits=wait)
        request_id = await service.threads.step(ask, store, policy)
        return await status(name, service, request_id)


@router.get("/compaction")
async def status(name: StoreName, service: BlobsDep, request: str | None = None) -> dict[str, Any]:
    """The progress of a run, or the result of the last one, or those of a request."""
    with service.using(name, await service.store(name)):
        found = await service.threads.step(service.stores.compactions.status, name, request)
    return {"store": name, "request": request, **found.row()}


@router.delete("/compaction", status_code=204)
async def cancel(name: StoreName, service: BlobsDep) -> Response:
    """Cancel the run that is in progress or waits for its turn; the store is unchanged."""
    await service.store(name)
    if not await service.threads.step(service.stores.compactions.cancel, name):
        raise RequestRefused(HTTPStatus.CONFLICT, f"blob store {name} has no run in progress")
    return Response(status_code=204)


@router.get("/compaction/history")
async def history(
    name: StoreName, service: BlobsDep, limit: Annotated[int, Query(ge=0, le=HISTORY_MAX)] = 10
) -> list[dict[str, Any]]:
    """The reports of the last runs, newest first."""
    store = await service.store(name)
    with service.using(name, store):
        reports = await service.threads.step(store.compaction.history.newest, limit)
    return [{"store": name, **report_row(each)} for each in reports]


@router.get("/settings")
async def settings(name: StoreName, service: BlobsDep) -> dict[str, Any]:
    """The store's own settings, and the effective ones."""
    return await service.threads.step(settings_row, service.stores, name)


@router.patch("/settings")
async def change_settings(
    name: StoreName, service: BlobsDep, wanted: ChangedSettings
) -> dict[str, Any]:
    """Change settings, effective immediately. Those in `unset` revert to the node's."""

    def change() -> dict[str, Any]:
        service.stores.update(name, wanted.set, wanted.unset)
        return settings_row(service.stores, name)

    return await service.threads.step(change)


@router.get("/statistics")
async def statistics(
    name: StoreName, service: BlobsDep, *, forecast: bool = False
) -> dict[str, Any]:
    """Valid bytes by segment, and how much a run would find dead, now and later."""
    store = await service.store(name)
    with service.using(name, store):
        found = await service.threads.step(store.statistics)
    service.meters.valid_bytes[name] = found.valid_bytes
    return statistics_row(name, found, forecast=forecast)


@router.get("/erase")
async def erase(name: StoreName, service: BlobsDep) -> dict[str, Any]:
    """The state of erasing blobs that were deleted for good."""
    store = await service.store(name)
    return {"store": name, **asdict(await service.threads.step(store.erase.status))}
