"""The metrics of tables on this node, and of what the last run of catalog compaction has found.

    lithify_tables                               tables in force
    lithify_table_indexes{status}                their indexes
    lithify_table_partitions{role}               with a member here that is leader or follower
    lithify_table_transactions{kind}             open here: of clients, and active read-write ones
    lithify_table_low_watermark_seconds          nothing is read below this Unix time; 0: none yet
    lithify_table_replicas_to_rebuild{node}      replicas of nodes that were away for too long
    lithify_catalog_hold_version{hold}           the smallest version that a hold keeps
    lithify_catalog_aborts{reason}               why the last run trimmed less than was wanted

The last two are those of the last run of this node, so they are there on the node that leads.

`read_table_meters` runs in the cluster thread; `table_metrics` in any.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from prometheus_client.core import GaugeMetricFamily

from lithify.hybrid_time import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from lithify.http.cluster.access import ClusterAccess

__all__ = ["read_table_meters", "table_metrics"]


async def read_table_meters(cluster: ClusterAccess) -> dict[str, Any] | None:
    """What `table_metrics` needs; None if the cluster is only read."""
    tables, trimming = cluster.tables, cluster.trimming
    if tables is None:
        return None
    catalog = cluster.catalog.current
    hosted, led = tables.hosting.hosted(), tables.hosting.led()
    known = tables.hosting.assignments.known.values()
    dry_run = None if trimming is None else trimming.last
    holds: dict[str, int] = {}
    aborts: Counter[str] = Counter()
    if dry_run is not None:
        for hold in dry_run.decision.horizon.holds:
            holds[hold.name] = min(hold.position, holds.get(hold.name, hold.position))
        aborts.update(str(abort.kind) for abort in dry_run.decision.aborts)
    found = list(catalog.tables())
    return {
        "tables": len(found),
        "indexes": Counter(
            str(index.status) for table in found for index in catalog.indexes_of(table.id)
        ),
        "partitions": {"leader": len(led), "follower": len(hosted) - len(led)},
        "transactions": {
            "client": tables.handles.count,
            "read-write": tables.active.versions().total(),
        },
        "low_watermark": milliseconds(tables.low_watermark.value) / 1000,
        "to_rebuild": Counter(node for each in known for node in each.assignment.to_rebuild),
        "holds": holds,
        "aborts": aborts,
    }


def table_metrics(found: dict[str, Any]) -> Iterator[Metric]:
    """All families."""
    yield GaugeMetricFamily("lithify_tables", "Tables.", value=found["tables"])
    yield _by("lithify_table_indexes", "Indexes of tables.", "status", found["indexes"])
    text = "Partitions of tables with a member on this node."
    yield _by("lithify_table_partitions", text, "role", found["partitions"])
    text = "Transactions that are open on this node."
    yield _by("lithify_table_transactions", text, "kind", found["transactions"])
    text = "The time below which nothing is read on this node."
    name = "lithify_table_low_watermark_seconds"
    yield GaugeMetricFamily(name, text, value=found["low_watermark"])
    text = "Replicas that nodes have to rebuild, because they were away for too long."
    yield _by("lithify_table_replicas_to_rebuild", text, "node", found["to_rebuild"])
    text = "The versions of the catalog that holds have kept in the last run of this node."
    yield _by("lithify_catalog_hold_version", text, "hold", found["holds"])
    text = "What has kept the last run of this node from trimming as far as was wanted."
    yield _by("lithify_catalog_aborts", text, "reason", found["aborts"])


def _by(name: str, text: str, label: str, values: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value, count in sorted(values.items()):
        family.add_metric((value,), count)
    return family
