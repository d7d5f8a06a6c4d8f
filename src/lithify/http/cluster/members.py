"""The nodes of the cluster over HTTP.

| path          |                                                                              |
|---------------|------------------------------------------------------------------------------|
| /cluster      | GET: the nodes, the leader, the metastore and the catalog, as known here     |
| /cluster/join | POST {"name", "address", "voter"}: add a node that runs with --join, or make |
|               | a member a voter or a learner; answered when it is in force                  |
| /cluster/leave| POST {"name"}: remove a node from the cluster                                |

Any node accepts these requests.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from lithify.http.cluster.access import ClusterDep, in_cluster
from lithify.http.cluster.overview import read_overview

__all__ = ["router"]

router = APIRouter(tags=["cluster"])

TEXT_MAX = 1000


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
    add = partial(
        cluster.node.requests.add_member, joining.name, joining.address, voter=joining.voter
    )
    await in_cluster(cluster, add)
    return Response(status_code=204)


@router.post("/cluster/leave", status_code=204)
async def leave(leaving: Leaving, cluster: ClusterDep) -> Response:
    """Remove a node."""
    await in_cluster(cluster, partial(cluster.node.requests.remove_member, leaving.name))
    return Response(status_code=204)
