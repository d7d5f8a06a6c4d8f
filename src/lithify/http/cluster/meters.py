"""The metrics of the cluster: Raft groups of this node, metastore, catalog, nodes.

    lithify_raft_role{group,role} 1              of this node: leader, follower, …
    lithify_raft_term, _commit_index, _applied_index{group}
    lithify_raft_leader_changes_total            of the metastore, as seen here
    lithify_metastore_revision, _floor, _keys, _leases
    lithify_catalog_version, _earliest_version
    lithify_nodes{state}                         members that are alive or silent
    lithify_cluster_problems                     see `overview.py`

`read_meters` runs in the cluster thread; `cluster_metrics` in any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from lithify.http.cluster.overview import read_overview

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from lithify.http.cluster.access import ClusterAccess

__all__ = ["cluster_metrics", "read_meters"]

_OF_GROUP = (
    ("term", "The term of a group."),
    ("commit_index", "The last entry of a group that is committed."),
    ("applied_index", "The last entry of a group that is applied on this node."),
)
_OF_METASTORE = (
    ("revision", "The newest revision that is applied on this node."),
    ("floor", "The revision up to which the history is compacted."),
    ("keys", "Keys that have a value."),
    ("leases", "Leases that have not ended."),
)


async def read_meters(cluster: ClusterAccess) -> dict[str, Any]:
    """What `cluster_metrics` needs."""
    groups = {}
    for name, group in cluster.node.groups.items():
        status = group.status()
        groups[name] = {
            "role": "stopped" if group.stopped is not None else str(status.role),
            "term": status.term,
            "commit_index": status.commit,
            "applied_index": group.applied_index,
        }
    changes = cluster.leader_changes
    return await read_overview(cluster) | {"groups": groups, "leader_changes": changes}


def cluster_metrics(found: dict[str, Any]) -> Iterator[Metric]:
    """All families."""
    role = GaugeMetricFamily(
        "lithify_raft_role", "The role of this node in a group.", labels=("group", "role")
    )
    for group, each in found["groups"].items():
        role.add_metric((group, each["role"]), 1)
    yield role
    for name, text in _OF_GROUP:
        family = GaugeMetricFamily(f"lithify_raft_{name}", text, labels=("group",))
        for group, each in found["groups"].items():
            family.add_metric((group,), each[name])
        yield family
    yield CounterMetricFamily(
        "lithify_raft_leader_changes",
        "Leaders of the metastore since the start.",
        value=found["leader_changes"],
    )
    if found["metastore"] is not None:
        for name, text in _OF_METASTORE:
            yield _gauge(f"lithify_metastore_{name}", text, found["metastore"][name])
    catalog = found["catalog"]
    yield _gauge("lithify_catalog_version", "The newest version here.", catalog["version"])
    earliest = catalog["earliest"]
    yield _gauge("lithify_catalog_earliest_version", "The oldest version left here.", earliest)
    nodes = GaugeMetricFamily("lithify_nodes", "Nodes of the cluster.", labels=("state",))
    alive = sum(each["alive"] for each in found["nodes"])
    nodes.add_metric(("alive",), alive)
    nodes.add_metric(("silent",), len(found["nodes"]) - alive)
    yield nodes
    problems = len(found["problems"])
    yield _gauge("lithify_cluster_problems", "Problems that the health check names.", problems)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
