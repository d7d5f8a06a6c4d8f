"""Compaction of the metastore's history over HTTP, at /cluster/metastore; see `leader_runs.py`.

The leader compacts the history of all nodes.
"""

from fastapi import APIRouter

from lithify.http.cluster.leader_runs import add_leader_runs

__all__ = ["router"]

router = APIRouter(prefix="/cluster/metastore", tags=["cluster"])
add_leader_runs(router, lambda cluster: cluster.history, "revision")
