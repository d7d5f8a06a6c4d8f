"""The nodes of the cluster over HTTP.

| path               |                                                                         |
|--------------------|-------------------------------------------------------------------------|
| /cluster           | GET: the nodes, the leader, the metastore and the catalog, as known     |
|                    | here                                                                    |
| /cluster/join      | POST {"name", "address", "voter"}: add a node that runs with --join, or |
|                    | make a member a voter or a learner; answered when it is in force        |
| /cluster/leave     | POST {"name"}: remove a node from the cluster, when other nodes have    |
|                    | its partitions of tables; until then 202 with what it waits for         |
| /cluster/partitions| GET: the partitions of tables and their nodes, as known here            |

A node that leaves gets no partitions, also if it is never removed; `join` ends that.

Any node accepts these requests.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from lithify.errors import LithifyError
from lithify.http.cluster.access import ClusterAccess, ClusterDep, in_cluster
from lithify.http.cluster.overview import read_overview
from lithify.http.cluster.partitions import read_partitions
from lithify.raft.net.client_operations import MayHaveHappened

__all__ = ["router"]

router = APIRouter(tags=["cluster"])

TEXT_MAX = 1000
MOVE_S = 15.0
"""How long a request waits for partitions that are being moved."""


class Joining(BaseModel):
    """A node that joins."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(max_length=TEXT_MAX)
    address: str = Field(max_length=TEXT_MAX)
    voter: bool = True


class Leaving(BaseModel):
    """A node that leaves."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(max_length=TEXT_MAX)


@router.get("/cluster")
async def overview(cluster: ClusterDep) -> dict[str, Any]:
    """The cluster, as this node knows it."""
    return await in_cluster(cluster, partial(read_overview, cluster))


@router.post("/cluster/join", status_code=204)
async def join(joining: Joining, cluster: ClusterDep) -> Response:
    """Add a node, as a voter or a learner."""
    await in_cluster(cluster, partial(_join, cluster, joining))
    return Response(status_code=204)


async def _join(cluster: ClusterAccess, joining: Joining) -> None:
    name, address = joining.name, joining.address
    await cluster.node.requests.add_member(name, address, voter=joining.voter)
    if cluster.tables is not None:
        await cluster.tables.leaving.cancel(name)


@router.post("/cluster/leave", status_code=204)
async def leave(leaving: Leaving, cluster: ClusterDep) -> Response:
    """Remove a node, when its partitions are moved."""
    waits = await in_cluster(cluster, partial(_leave, cluster, leaving.name))
    if waits:
        return JSONResponse({"name": leaving.name, "waits": list(waits)}, status_code=202)
    return Response(status_code=204)


async def _leave(cluster: ClusterAccess, name: str) -> tuple[str, ...]:
    def alive() -> list[str]:
        return [node for node, each in cluster.nodes().items() if each.is_alive]

    if cluster.tables is not None:
        waits = await cluster.tables.leaving.move_away(name, MOVE_S, alive)
        if waits:
            return waits
    try:
        await cluster.node.requests.remove_member(name)
    except MayHaveHappened:
        raise
    except LithifyError:
        if cluster.tables is not None:
            # It stays, with partitions as before.
            await cluster.tables.leaving.cancel(name)
        raise
    return ()


@router.get("/cluster/partitions")
async def partitions(cluster: ClusterDep) -> dict[str, Any]:
    """The partitions of tables and their nodes."""
    return await in_cluster(cluster, partial(read_partitions, cluster))
