"""The Raft groups of this node over HTTP.

| path                                    |                                                    |
|-----------------------------------------|----------------------------------------------------|
| /cluster/raft                           | GET: the node and its groups: roles, indexes, disk |
| /cluster/raft/{group}/members           | GET: the members, their addresses and the leader   |
| /cluster/raft/{group}/snapshot          | POST: take a snapshot on this node                 |
| /cluster/raft/{group}/transfer          | POST `?to=NODE`: transfer leadership to a member   |
| /cluster/raft/{group}/compaction        | PUT: run; DELETE: cancel                           |
| /cluster/raft/{group}/compaction/progress | GET: status with phase, progress and report; with |
|                                         | `?request` that of one request                     |
| /cluster/raft/{group}/compaction/plan   | POST: what a run would do                          |
| /cluster/raft/{group}/compaction/history| GET: the reports of the last runs, newest first    |

Every member of a group has its own files, so snapshots and compaction are about the node that is
asked. On the leader a run also moves scattered live entries to the head of the log, unless
`?rewrite=false`.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from lithify.errors import RunRefused
from lithify.http.cluster.access import ClusterAccess, ClusterDep, in_cluster
from lithify.http.paths import decoded
from lithify.raft.net.client_operations import ClientOperation

__all__ = ["router"]

router = APIRouter(prefix="/cluster/raft", tags=["cluster"])

_COMPACTION = "/{group}/compaction"
HISTORY_MAX = 1000
POLL_S = 0.1
REQUEST = "x-lithify-request"


async def _ask(
    cluster: ClusterAccess, group: str, operation: ClientOperation, **given: object
) -> dict[str, Any]:
    asked = partial(cluster.node.requests.administer, decoded(group), operation, given)
    return await in_cluster(cluster, asked)


@router.get("")
async def overview(cluster: ClusterDep) -> dict[str, Any]:
    """The Raft node of the process, and its groups."""
    return await _ask(cluster, "", ClientOperation.OVERVIEW)


@router.get("/{group}/members")
async def members(group: str, cluster: ClusterDep) -> dict[str, Any]:
    """The members of a group, as this node knows them."""
    return await _ask(cluster, group, ClientOperation.MEMBERS)


@router.post("/{group}/snapshot")
async def snapshot(group: str, cluster: ClusterDep) -> dict[str, Any]:
    """Begin a snapshot of the group on this node."""
    return await _ask(cluster, group, ClientOperation.SNAPSHOT)


@router.post("/{group}/transfer")
async def transfer(group: str, cluster: ClusterDep, to: str) -> dict[str, Any]:
    """Transfer leadership to a member, and wait until it leads; any node accepts this."""
    return await in_cluster(cluster, partial(cluster.node.requests.transfer, decoded(group), to))


@router.put(_COMPACTION, status_code=204)
async def run(
    group: str, cluster: ClusterDep, *, wait: bool = True, rewrite: bool = True
) -> Response:
    """Compact the segments of the group on this node, after runs in progress.

    With `wait=false`, 409 if the run would have to wait for another one, or for the disk. The
    header `x-lithify-request` of the answer identifies the run in requests for progress.
    """
    begun = await _ask(cluster, group, ClientOperation.COMPACT, rewrite=rewrite, wait=wait)
    return Response(status_code=204, headers={REQUEST: str(begun["request"])})


@router.delete(_COMPACTION, status_code=204)
async def cancel(group: str, cluster: ClusterDep) -> Response:
    """Cancel the run of this node; published changes stay."""
    await _ask(cluster, group, ClientOperation.COMPACTION, ask="cancel")
    return Response(status_code=204)


@router.get(f"{_COMPACTION}/progress")
async def progress(
    group: str, cluster: ClusterDep, request: str | None = None
) -> list[dict[str, Any]]:
    """The full status, of the last run or that of a request."""
    return [await _ask(cluster, group, ClientOperation.COMPACTION, ask="status", request=request)]


@router.post(f"{_COMPACTION}/plan")
async def plan(group: str, cluster: ClusterDep, *, wait: bool = True) -> list[dict[str, Any]]:
    """What a run would do now, after the current run; with `wait=false`, 409 during a run."""
    while True:
        try:
            return [await _ask(cluster, group, ClientOperation.COMPACTION, ask="plan")]
        except RunRefused:
            if not wait:
                raise
        await asyncio.sleep(POLL_S)


@router.get(f"{_COMPACTION}/history")
async def history(
    group: str, cluster: ClusterDep, limit: Annotated[int, Query(ge=0, le=HISTORY_MAX)] = 10
) -> list[dict[str, Any]]:
    """The reports of the last runs, newest first."""
    found = await _ask(cluster, group, ClientOperation.COMPACTION, ask="history", limit=limit)
    runs: list[dict[str, Any]] = found["runs"]
    return runs
