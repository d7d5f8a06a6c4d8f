"""Compaction of the history of the metastore over HTTP.

| path                                   |                                                     |
|----------------------------------------|-----------------------------------------------------|
| /cluster/metastore/compaction          | PUT: run; DELETE: cancel                            |
| /cluster/metastore/compaction/progress | GET: status with phase, progress and report; with   |
|                                        | `?request` that of one request                      |
| /cluster/metastore/compaction/plan     | POST: what a run would do, with all holds           |
| /cluster/metastore/compaction/history  | GET: the reports of the last runs, newest first     |
| /cluster/metastore/holds               | GET: what keeps the history, and from which revision |

The leader compacts the history of all nodes. Another node redirects to it, and answers dry runs and
holds itself.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

import asyncio
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from lithify.compaction.reports.status import report_row
from lithify.http.cluster.access import ClusterAccess, ClusterDep, in_cluster
from lithify.http.error_responses import RequestRefused
from lithify.metastore.compaction.history_compaction import HistoryCompaction
from lithify.ownership import NodeUrls, NotOwner
from lithify.raft.errors import MemberReadsOnly

__all__ = ["router"]

router = APIRouter(prefix="/cluster/metastore", tags=["cluster"])

HISTORY_MAX = 1000
REQUEST = "x-lithify-request"


async def _here(cluster: ClusterAccess) -> HistoryCompaction:
    """The compaction of this node."""
    if cluster.history is None:
        raise MemberReadsOnly(cluster.name, cluster.node.others)
    return cluster.history


async def _at_leader(cluster: ClusterAccess) -> HistoryCompaction:
    """The compaction of this node, if it leads or no leader is known; otherwise its address."""
    here = await _here(cluster)

    async def find() -> str:
        return cluster.metastore.group.leader

    leader = await in_cluster(cluster, find)
    if leader in ("", cluster.name):
        return here
    known = cluster.nodes().get(leader)
    urls = NodeUrls() if known is None else NodeUrls(known.pulsar, known.pulsar_tls, known.http)
    raise NotOwner("the compaction of the metastore", leader, urls)


def _row(cluster: ClusterAccess) -> dict[str, Any]:
    return {"node": cluster.name, "log": "metastore"}


@router.put("/compaction", status_code=204)
async def run(cluster: ClusterDep, *, wait: bool = True) -> Response:
    """Compact the history, after runs in progress.

    With `wait=false`, 409 if the run would have to wait for another one, or for the disk. The
    header `x-lithify-request` of the answer identifies the run in requests for progress.
    """
    compaction = await _at_leader(cluster)
    request = partial(cluster.queue.request, compaction, compaction.begin, waits=wait)
    return Response(status_code=204, headers={REQUEST: await asyncio.to_thread(request)})


@router.delete("/compaction", status_code=204)
async def cancel(cluster: ClusterDep) -> Response:
    """Cancel runs that are in progress or wait for their turn; what is published stays."""
    compaction = await _at_leader(cluster)
    if not await asyncio.to_thread(cluster.queue.cancel, compaction):
        raise RequestRefused(HTTPStatus.CONFLICT, "no run on the metastore is in progress")
    return Response(status_code=204)


@router.get("/compaction/progress")
async def progress(cluster: ClusterDep, request: str | None = None) -> list[dict[str, Any]]:
    """The full status, of the last run or that of a request."""
    compaction = await _at_leader(cluster)
    status = await asyncio.to_thread(cluster.queue.status, compaction, request)
    return [{**_row(cluster), "request": request, **status.row()}]


@router.post("/compaction/plan")
async def plan(cluster: ClusterDep) -> list[dict[str, Any]]:
    """What a run would do now."""
    compaction = await _here(cluster)
    dry_run = await in_cluster(cluster, compaction.plan)
    return [{**_row(cluster), **dry_run.row()}]


@router.get("/compaction/history")
async def history(
    cluster: ClusterDep, limit: Annotated[int, Query(ge=0, le=HISTORY_MAX)] = 10
) -> list[dict[str, Any]]:
    """The reports of the last runs of the node that leads, newest first."""
    compaction = await _at_leader(cluster)
    reports = await asyncio.to_thread(compaction.history.newest, limit)
    return [{**_row(cluster), **report_row(each)} for each in reports]


@router.get("/holds")
async def holds(cluster: ClusterDep) -> dict[str, Any]:
    """The holds by name, the lowest first, and the revision up to which they permit compaction."""
    compaction = await _here(cluster)
    horizon = await in_cluster(cluster, compaction.horizon)
    rows = sorted(map(asdict, horizon.holds), key=lambda row: (row["position"], row["name"]))
    return {"node": cluster.name, "revision": horizon.position, "holds": rows}
