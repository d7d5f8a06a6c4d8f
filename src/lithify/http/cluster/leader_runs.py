"""Compaction of what the leader of the metastore compacts for all nodes, over HTTP.

| path below that of the log | |
|---|---|
| /compaction          | PUT: run; DELETE: cancel                                              |
| /compaction/progress | GET: status with phase, progress and report; with `?request` that of one |
|                      | request                                                               |
| /compaction/plan     | POST: what a run would do, with all holds                             |
| /compaction/history  | GET: the reports of the last runs, newest first                       |
| /holds               | GET: what keeps the history, and from which position                  |

Another node redirects to the leader, and answers dry runs and holds itself.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from lithify.compaction.reports.status import report_row
from lithify.http.cluster.access import ClusterAccess, ClusterDep, in_cluster
from lithify.http.error_responses import RequestRefused
from lithify.metastore.compaction.leader_runs import LeaderRuns
from lithify.ownership import NodeUrls, NotOwner
from lithify.raft.errors import MemberReadsOnly

__all__ = ["add_leader_runs", "at_leader"]

HISTORY_MAX = 1000
REQUEST = "x-lithify-request"

Runs = LeaderRuns[Any]
Find = Callable[[ClusterAccess], Runs | None]


def _here(cluster: ClusterAccess, find: Find) -> Runs:
    """The compaction of this node."""
    found = find(cluster)
    if found is None:
        raise MemberReadsOnly(cluster.name, cluster.node.others)
    return found


async def at_leader(cluster: ClusterAccess, find: Find) -> Runs:
    """The compaction of this node, if it leads or no leader is known; otherwise its address."""
    here = _here(cluster, find)

    async def find_leader() -> str:
        if not cluster.metastore.group.leader:
            # The node has just started, or there is an election: this waits for its end.
            await cluster.metastore.status()
        return cluster.metastore.group.leader

    leader = await in_cluster(cluster, find_leader)
    if leader in ("", cluster.name):
        return here
    known = cluster.nodes().get(leader)
    urls = NodeUrls() if known is None else NodeUrls(known.pulsar, known.pulsar_tls, known.http)
    raise NotOwner(f"the compaction of the {here.name}", leader, urls)


def add_leader_runs(router: APIRouter, find: Find, position: str) -> None:
    """Add the routes; `position` is what the horizon is, as a field of an answer."""

    def row(cluster: ClusterAccess, runs: Runs) -> dict[str, Any]:
        return {"node": cluster.name, "log": runs.name}

    @router.put("/compaction", status_code=204)
    async def run(cluster: ClusterDep, *, wait: bool = True) -> Response:
        """Compact the history, after runs in progress.

        With `wait=false`, 409 if the run would have to wait for another one, or for the disk. The
        header `x-lithify-request` of the answer identifies the run in requests for progress.
        """
        runs = await at_leader(cluster, find)
        request = partial(cluster.queue.request, runs, runs.begin, waits=wait)
        return Response(status_code=204, headers={REQUEST: await asyncio.to_thread(request)})

    @router.delete("/compaction", status_code=204)
    async def cancel(cluster: ClusterDep) -> Response:
        """Cancel runs that are in progress or wait for their turn; what is published stays."""
        runs = await at_leader(cluster, find)
        if not await asyncio.to_thread(cluster.queue.cancel, runs):
            reason = f"no run on the {runs.name} is in progress"
            raise RequestRefused(HTTPStatus.CONFLICT, reason)
        return Response(status_code=204)

    @router.get("/compaction/progress")
    async def progress(cluster: ClusterDep, request: str | None = None) -> list[dict[str, Any]]:
        """The full status, of the last run or that of a request."""
        runs = await at_leader(cluster, find)
        status = await asyncio.to_thread(cluster.queue.status, runs, request)
        return [{**row(cluster, runs), "request": request, **status.row()}]

    @router.post("/compaction/plan")
    async def plan(cluster: ClusterDep) -> list[dict[str, Any]]:
        """What a run would do now."""
        runs = _here(cluster, find)
        dry_run = await in_cluster(cluster, runs.plan)
        return [{**row(cluster, runs), **dry_run.row()}]

    @router.get("/compaction/history")
    async def history(
        cluster: ClusterDep, limit: Annotated[int, Query(ge=0, le=HISTORY_MAX)] = 10
    ) -> list[dict[str, Any]]:
        """The reports of the last runs of the node that leads, newest first."""
        runs = await at_leader(cluster, find)
        reports = await asyncio.to_thread(runs.history.newest, limit)
        return [{**row(cluster, runs), **report_row(each)} for each in reports]

    @router.get("/holds")
    async def holds(cluster: ClusterDep) -> dict[str, Any]:
        """The holds by name, the lowest first, and the position up to which they permit it."""
        runs = _here(cluster, find)
        horizon = await in_cluster(cluster, runs.horizon)
        rows = sorted(map(asdict, horizon.holds), key=lambda each: (each["position"], each["name"]))
        return {"node": cluster.name, position: horizon.position, "holds": rows}
