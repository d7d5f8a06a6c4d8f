"""The metrics of the cluster: Raft groups of this node, metastore, catalog, nodes.

    lithify_raft_role{group,role} 1              of this node: leader, follower, …
    lithify_raft_term, _commit_index, _applied_index{group}
    lithify_raft_segments, _segment_bytes, _live_bytes, _snapshot_bytes, _damaged_files{group}
    lithify_raft_leader_changes_total            of the metastore, as seen here
    lithify_raft_compaction_runs_total{group,result}      done or failed, within the history
    lithify_metastore_revision, _floor, _keys, _leases
    lithify_metastore_compaction_runs_total{result}       by this node, likewise
    lithify_metastore_compaction_removed_total            values and tombstones
    lithify_catalog_version, _earliest_version
    lithify_catalog_compaction_runs_total{result}         by this node
    lithify_catalog_compaction_removed_total              versions
    lithify_nodes{state}                         members that are alive or silent
    lithify_table_partitions{state}              of the cluster, as known here: `partitions.py`
    lithify_cluster_problems                     see `overview.py`

`read_meters` runs in the cluster thread; `cluster_metrics` in any.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from lithify.http.cluster.overview import read_overview
from lithify.http.cluster.partitions import STATES, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from lithify.compaction.reports.status import CompactionRecord
    from lithify.http.cluster.access import ClusterAccess

__all__ = ["cluster_metrics", "read_meters"]

_OF_GROUP = (
    ("term", "The term of a group."),
    ("commit_index", "The last entry of a group that is committed."),
    ("applied_index", "The last entry of a group that is applied on this node."),
)
_ON_DISK = (
    ("segments", "The segments of a group."),
    ("segment_bytes", "Their entries, live or dead."),
    ("live_bytes", "The live part of them, estimated."),
    ("snapshot_bytes", "The newest snapshot of a group."),
    ("damaged_files", "Files of a group that wait for repair."),
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
    for name, group in list(cluster.node.groups.items()):
        status = group.status()
        groups[name] = {
            "role": "stopped" if group.stopped is not None else str(status.role),
            "term": status.term,
            "commit_index": status.commit,
            "applied_index": group.applied_index,
            "record": await asyncio.to_thread(group.compaction.runs.record),
        }
        if name in cluster.node.groups:
            seen = group.overview()
            groups[name] |= {each: seen[each] for each, _ in _ON_DISK[:-1]}
            groups[name]["damaged_files"] = len(seen["damaged"])
    history, trimming = cluster.history, cluster.trimming
    record = None if history is None else await asyncio.to_thread(history.runs.record)
    trimmed = None if trimming is None else await asyncio.to_thread(trimming.runs.record)
    tables = cluster.tables
    known = {} if tables is None else tables.hosting.assignments.known
    return await read_overview(cluster) | {
        "groups": groups,
        "partitions": Counter(state_of(each.assignment) for each in known.values()),
        "leader_changes": cluster.leader_changes,
        "record": record,
        "trimmed": trimmed,
    }


def cluster_metrics(found: dict[str, Any]) -> Iterator[Metric]:
    """All families."""
    role = GaugeMetricFamily(
        "lithify_raft_role", "The role of this node in a group.", labels=("group", "role")
    )
    for group, each in found["groups"].items():
        role.add_metric((group, each["role"]), 1)
    yield role
    for name, text in (*_OF_GROUP, *_ON_DISK):
        family = GaugeMetricFamily(f"lithify_raft_{name}", text, labels=("group",))
        for group, each in found["groups"].items():
            if name in each:
                family.add_metric((group,), each[name])
        yield family
    runs = CounterMetricFamily(
        "lithify_raft_compaction_runs", "Finished runs.", labels=("group", "result")
    )
    for group, each in found["groups"].items():
        _add_runs(runs, each["record"], group)
    yield runs
    yield CounterMetricFamily(
        "lithify_raft_leader_changes",
        "Leaders of the metastore since the start.",
        value=found["leader_changes"],
    )
    if found["metastore"] is not None:
        for name, text in _OF_METASTORE:
            yield _gauge(f"lithify_metastore_{name}", text, found["metastore"][name])
    for log, record, what in (
        ("metastore", found["record"], "Values and tombstones"),
        ("catalog", found["trimmed"], "Versions"),
    ):
        if record is None:
            continue
        name = f"lithify_{log}_compaction"
        runs = CounterMetricFamily(f"{name}_runs", "Finished runs.", labels=("result",))
        _add_runs(runs, record)
        yield runs
        text = f"{what} that runs of this node have removed."
        yield CounterMetricFamily(f"{name}_removed", text, value=record.removed)
    catalog = found["catalog"]
    yield _gauge("lithify_catalog_version", "The newest version here.", catalog["version"])
    earliest = catalog["earliest"]
    yield _gauge("lithify_catalog_earliest_version", "The oldest version left here.", earliest)
    nodes = GaugeMetricFamily("lithify_nodes", "Nodes of the cluster.", labels=("state",))
    alive = sum(each["alive"] for each in found["nodes"])
    nodes.add_metric(("alive",), alive)
    nodes.add_metric(("silent",), len(found["nodes"]) - alive)
    yield nodes
    partitions = GaugeMetricFamily(
        "lithify_table_partitions", "Partitions of tables.", labels=("state",)
    )
    for state in STATES:
        partitions.add_metric((state,), found["partitions"][state])
    yield partitions
    problems = len(found["problems"])
    yield _gauge("lithify_cluster_problems", "Problems that the health check names.", problems)


def _add_runs(family: CounterMetricFamily, record: CompactionRecord, *labels: str) -> None:
    family.add_metric((*labels, "done"), record.succeeded)
    family.add_metric((*labels, "failed"), record.failed)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
