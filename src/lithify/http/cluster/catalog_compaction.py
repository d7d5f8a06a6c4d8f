"""Compaction of the catalog's history, and its pins, over HTTP.

| path                |                                                                            |
|---------------------|----------------------------------------------------------------------------|
| /catalog/compaction | and below, /catalog/holds: see `leader_runs.py`                            |
| /catalog/snapshot   | POST `?version=N`: have a version become the earliest one, if nothing      |
|                     | needs an earlier one; with `?force=true` although nodes or replicas do not |
|                     | answer, but not against a named hold                                       |
| /catalog/pins       | GET: the named pins                                                        |
| /catalog/pins/NAME  | PUT {"version", "owner", "reason", "ttl_ms"}: place or change one; without |
|                     | a version, at the one in force; DELETE: release it                         |

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from lithify.catalog_compaction.compaction import CatalogCompaction
from lithify.catalog_compaction.pins import NamedPin, place_pin, read_pins, release_pin
from lithify.http.cluster.access import ClusterAccess, ClusterDep, in_cluster
from lithify.http.cluster.leader_runs import add_leader_runs, at_leader
from lithify.http.error_responses import RequestRefused
from lithify.raft.errors import MemberReadsOnly

__all__ = ["router"]

router = APIRouter(prefix="/catalog", tags=["catalog"])
add_leader_runs(router, lambda cluster: cluster.trimming, "version")

TTL_MS_MAX = 10 * 365 * 86_400_000


class _Pin(BaseModel):
    """A pin to be placed."""

    model_config = ConfigDict(extra="forbid")

    version: int | None = Field(default=None, ge=0)
    owner: str = ""
    reason: str = ""
    ttl_ms: int = Field(default=86_400_000, ge=1, le=TTL_MS_MAX)


def _compaction(cluster: ClusterAccess) -> CatalogCompaction:
    """That of this node."""
    if cluster.trimming is None:
        raise MemberReadsOnly(cluster.name, cluster.node.others)
    return cluster.trimming


@router.post("/snapshot")
async def snapshot(cluster: ClusterDep, version: int, *, force: bool = False) -> dict[str, Any]:
    """Replace the updates up to a version; earlier versions are dropped on every node."""
    await at_leader(cluster, lambda found: found.trimming)
    runs = _compaction(cluster)
    made = await in_cluster(cluster, partial(runs.snapshot, version, force=force))
    return {"version": version, "made": made}


@router.get("/pins")
async def pins(cluster: ClusterDep) -> list[dict[str, Any]]:
    """The named pins that have not expired, by name."""
    found = await in_cluster(cluster, partial(read_pins, cluster.metastore))
    now_ms = _compaction(cluster).clock.now_ms()
    return [asdict(each) for each in found.named if each.expires_ms > now_ms]


@router.put("/pins/{name}")
async def pin(cluster: ClusterDep, name: str, asked: _Pin) -> dict[str, Any]:
    """Place a pin, or change it."""
    clock = _compaction(cluster).clock
    version = cluster.catalog.current.version if asked.version is None else asked.version
    cluster.catalog.versions.at_version(version)
    expires_ms = clock.now_ms() + asked.ttl_ms
    placed = NamedPin(name, version, asked.owner or cluster.name, asked.reason, expires_ms)
    await in_cluster(cluster, partial(place_pin, cluster.metastore, clock, placed))
    return asdict(placed)


@router.delete("/pins/{name}", status_code=204)
async def unpin(cluster: ClusterDep, name: str) -> Response:
    """Release a pin."""
    if not await in_cluster(cluster, partial(release_pin, cluster.metastore, name)):
        raise RequestRefused(HTTPStatus.NOT_FOUND, f"there is no pin {name}")
    return Response(status_code=204)
