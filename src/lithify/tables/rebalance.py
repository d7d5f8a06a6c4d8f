"""Moves partitions to other nodes: what the next steps are. Pure.

    targets(catalog, members, alive, known)           # on the leader of the metastore
    next_steps(own, config, goal, connected)          # on the leader of a partition's group

1. The nodes of a partition are chosen again when the members of the cluster, or the replicas of its
   zone, have changed. If they differ from its goal, they become `pending`, with the version of the
   catalog whose zone was followed. A partition has one goal at a time: a newer one replaces one
   that was not reached, and the nodes of the old one are remembered as `earlier`.
2. The leader of the group brings it to the goal, one change of members at a time:

       LEARN      a node of the goal that is no member becomes a learner, and gets the log
       PROMOTE    a learner that has the log becomes a voter
       TRANSFER   all nodes of the goal are voters, and the leader is not among them: one of them
                  leads
       REMOVE     the members that are not in the goal leave, all at once
       FINISH     pending becomes stable

   No member leaves before all nodes of the goal are voters, so an acknowledged row is always on a
   majority of what the group was and of what it will be.

Each step follows from the configuration in force and the goal alone. So it does not matter which
leader does it, how often, or what a crash interrupts: the next leader continues. Every change of an
assignment is conditional on the revision that it was decided on (`assignments.py`).

A group whose members differ from its stable nodes, with nothing pending, is brought back to them by
the same steps. A node that is removed deletes the files of its group (`raft/node/node.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from lithify.catalog.objects import ZoneDescriptor
from lithify.tables.assignments import choose_nodes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lithify.catalog.catalog import Catalog
    from lithify.raft.core import Config
    from lithify.tables.assignments import Assigned, Assignment, Partition

__all__ = ["MoveAction", "MoveStep", "finished", "next_steps", "targets"]


class MoveAction(StrEnum):
    """What a step does; see the module."""

    LEARN = "learn"
    PROMOTE = "promote"
    TRANSFER = "transfer"
    REMOVE = "remove"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class MoveStep:
    """One step, and the nodes that it is about."""

    action: MoveAction
    nodes: tuple[str, ...] = ()


def targets(
    catalog: Catalog,
    members: Collection[str],
    alive: Collection[str],
    known: Mapping[Partition, Assigned],
) -> dict[Partition, Assignment]:
    """The assignments that must change, as they should be; `members` may have partitions."""
    found = {}
    for partition, assigned in known.items():
        zone = catalog.find(ZoneDescriptor, partition[0])
        if zone is None or assigned.assignment.ending or not members:
            continue
        nodes = choose_nodes(partition, zone.replicas, members)
        new = _retargeted(assigned.assignment, nodes, members, alive, catalog.version)
        if new is not None:
            found[partition] = new
    return found


def _retargeted(
    old: Assignment,
    nodes: tuple[str, ...],
    members: Collection[str],
    alive: Collection[str],
    version: int,
) -> Assignment | None:
    """An assignment with other nodes; None if it stays."""
    if old.formed:
        if set(nodes) == set(old.goal):
            return None
        new = replace(old, pending=nodes, version=version)
    elif old.stable[0] in members:
        # It has no rows yet: it is moved when it is formed.
        return None
    else:
        first = tuple(sorted(nodes, key=lambda node: node not in alive))
        new = replace(old, stable=first, version=version)
    earlier = old.nodes - {*new.stable, *new.pending}
    return replace(new, earlier=tuple(sorted(earlier)))


def finished(old: Assignment) -> Assignment:
    """The assignment of a group that has the members of its goal."""
    return replace(old, stable=old.goal, pending=(), earlier=())


def next_steps(
    own: str, config: Config, goal: Collection[str], connected: Collection[str]
) -> tuple[MoveStep, ...]:
    """What the leader of a group can do for its goal now, the most useful first.

    `FINISH` is for a configuration that is committed.
    """
    if config.joint:
        # The leader leaves it by itself.
        return ()
    wanted = set(goal)
    if not wanted <= config.voters:
        there = wanted.intersection(connected)
        return (
            *(MoveStep(MoveAction.PROMOTE, (node,)) for node in sorted(there & config.learners)),
            *(MoveStep(MoveAction.LEARN, (node,)) for node in sorted(there - config.members)),
        )
    leaving = config.members - wanted
    if not leaving:
        return (MoveStep(MoveAction.FINISH),)
    if own not in wanted:
        there = wanted.intersection(connected)
        return tuple(MoveStep(MoveAction.TRANSFER, (node,)) for node in sorted(there))
    return (MoveStep(MoveAction.REMOVE, tuple(sorted(leaving))),)
