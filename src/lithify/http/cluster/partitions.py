"""The partitions of tables and their nodes, for people and metrics, as this node knows them.

    creating    the group does not take commands yet
    moving      it is being brought to the `pending` nodes
    in place    it is on its `nodes`
    ending      it is dropped: its zone has no tables

Runs in the cluster thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lithify.catalog.objects import ZoneDescriptor
from lithify.errors import LithifyError
from lithify.tables.assignments import group_name

if TYPE_CHECKING:
    from lithify.http.cluster.access import ClusterAccess
    from lithify.tables.assignments import Assignment

__all__ = ["STATES", "read_partitions", "state_of"]

STATES = ("creating", "moving", "in place", "ending")


def state_of(assignment: Assignment) -> str:
    """See the module."""
    if assignment.ending:
        return "ending"
    if not assignment.formed:
        return "creating"
    return "moving" if assignment.pending else "in place"


async def read_partitions(cluster: ClusterAccess) -> dict[str, Any]:
    """All partitions as JSON, and the nodes that leave."""
    tables, groups, catalog = cluster.tables, cluster.node.groups, cluster.catalog.current
    if tables is None:
        return {"leaving": [], "partitions": []}
    rows = []
    for partition, each in sorted(tables.hosting.assignments.known.items()):
        assignment, name = each.assignment, group_name(partition)
        zone, group = catalog.find(ZoneDescriptor, partition[0]), groups.get(name)
        rows.append(
            {
                "zone": str(partition[0]) if zone is None else zone.name,
                "partition": partition[1],
                "group": name,
                "state": state_of(assignment),
                "nodes": list(assignment.stable),
                "pending": list(assignment.pending),
                "version": assignment.version,
                "leader": "" if group is None else group.leader,
                "members": "" if group is None else str(group.config),
            }
        )
    try:
        leaving = await tables.leaving.read(local=True)
    except LithifyError:
        # This node has left the cluster itself.
        leaving = frozenset()
    members = cluster.nodes().keys()
    return {"leaving": sorted(leaving & members), "partitions": rows}
