"""The state of the cluster as this node knows it: for people, metrics and health.

`read_overview` and `find_problems` run in the cluster thread, and read what is in memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lithify.errors import LithifyError
from lithify.metastore.local_metastore import GROUP
from lithify.raft.node.held_members import HeldMember
from lithify.raft.storage.file_names import group_of

if TYPE_CHECKING:
    from lithify.http.cluster.access import ClusterAccess

__all__ = ["find_problems", "read_overview"]

AHEAD_MS_MAX = 1000
"""Clocks should differ by half a second at most; every command takes the time further."""


async def read_overview(cluster: ClusterAccess) -> dict[str, Any]:
    """The cluster as JSON."""
    node = cluster.node
    identity, group = node.identity, node.groups.get(GROUP)
    config = None if group is None else group.config
    leader = "" if group is None else group.leader
    to_rebuild = count_to_rebuild(cluster)
    rows = []
    for name, each in sorted(cluster.nodes().items()):
        role = "none"
        if config is not None and name in config.members:
            role = "voter" if name in config.electorate else "learner"
        rows.append(
            {
                "name": name,
                "role": role,
                "leads": name == leader,
                "alive": each.is_alive,
                "replicas_to_rebuild": to_rebuild[name],
                "cluster": each.cluster,
                "pulsar": each.pulsar,
                "pulsar_tls": each.pulsar_tls,
                "http": each.http,
                "version": each.version,
            }
        )
    versions = cluster.catalog.versions
    return {
        "cluster": identity.cluster,
        "cluster_id": identity.recognition.cluster_id,
        "node": cluster.name,
        "leader": leader,
        "term": 0 if group is None else group.term,
        "metastore": await _metastore(cluster),
        "catalog": {
            "version": versions.latest.version,
            "activation": versions.latest.activation,
            "current": cluster.catalog.current.version,
            "earliest": versions.earliest.version,
        },
        "problems": find_problems(cluster),
        "nodes": rows,
    }


def count_to_rebuild(cluster: ClusterAccess) -> Counter[str]:
    """By node, the number of replicas of tables that it has to rebuild, as known here."""
    if cluster.tables is None:
        return Counter()
    known = cluster.tables.hosting.assignments.known.values()
    return Counter(node for each in known for node in each.assignment.to_rebuild)


async def _metastore(cluster: ClusterAccess) -> dict[str, int] | None:
    """The numbers of the state that is applied here; None if this node is no member."""
    try:
        status, group = await cluster.metastore.status(local=True), cluster.metastore.group
    except LithifyError:
        return None
    indexes = {"applied_index": group.applied_index, "commit_index": group.status().commit}
    return asdict(status) | indexes


def _what(key: str) -> str:
    name = group_of(key)
    return "the metastore" if name == GROUP else f"group {name}"


def find_problems(cluster: ClusterAccess) -> list[str]:
    """What keeps this node from changing, or from knowing, the definitions."""
    node = cluster.node
    found = [
        f"{_what(key)} on this node waits for repair: {member.reason}"
        for key, member in node.ailing.items()
        if not isinstance(member, HeldMember)
    ]
    found += [f"node {name} is refused: {why}" for name, why in node.transport.refused.items()]
    found += [
        f"this node is refused by {name}: {why}" for name, why in node.transport.refused_by.items()
    ]
    if node.storage.refused:
        found.append(f"the disk refuses what the metastore writes: {node.storage.refused}")
    group = node.groups.get(GROUP)
    if group is None:
        return [*found, "this node is not, or no longer, a member of the cluster"]
    if group.stopped is not None:
        found.append(f"the metastore has stopped on this node: {group.stopped}")
    elif not group.leader:
        away = group.config.electorate - {cluster.name} - set(node.transport.connected)
        names = ", ".join(sorted(away))
        waits = f"not connected: {names}" if names else "an election is in progress"
        found.append(f"the metastore has no leader: {waits}")
    ahead_ms = cluster.metastore.ahead_ms
    if ahead_ms > AHEAD_MS_MAX:
        ahead = f"{ahead_ms / 1000:.1f} s ahead of the clock of this node"
        found.append(f"the time of the metastore is {ahead}: set the clocks of all nodes")
    return found
