"""Nodes that leave the cluster give their partitions to others first.

    tables/leaving/<node>       in the metastore: the node gets no partitions, and those it has go

    waits = await leaving.move_away("n4", timeout_s, alive)     # what is left; () when nothing is
    await leaving.cancel("n4")                                  # it may have partitions again

An assignment gets a node only in a transaction that demands that it has no such key. So when a node
has the key and is in no assignment, no leader of the metastore can change that. The key stays when
the node has left, until it joins again.

Any node may call this, again and again. One event loop.
"""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import TYPE_CHECKING

from lithify.metastore.errors import MetastoreUnavailable
from lithify.metastore.transaction import Delete, Put, Transaction, prefix_range

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from lithify.metastore.local_metastore import LocalMetastore
    from lithify.tables.assignments import Assigned, Assignments, Partition

__all__ = ["LeavingNodes", "leaving_key"]

PREFIX = b"tables/leaving/"
LOOK_S = 0.1
NAMED_MAX = 10
"""Partitions that an answer names."""


def leaving_key(node: str) -> bytes:
    """The key of a node that leaves."""
    return PREFIX + node.encode()


class LeavingNodes:
    """See the module."""

    def __init__(self, metastore: LocalMetastore, assignments: Assignments) -> None:
        self._metastore = metastore
        self._assignments = assignments

    async def read(self, *, local: bool = False) -> frozenset[str]:
        """The nodes that leave, or have left."""
        rows = await self._metastore.range(*prefix_range(PREFIX), local=local)
        return frozenset(row.key[len(PREFIX) :].decode() for row in rows.rows)

    async def move_away(
        self, node: str, timeout_s: float, alive: Callable[[], Collection[str]]
    ) -> tuple[str, ...]:
        """Have the partitions of a node moved; returns what is not moved in time, as text.

        Nothing happens if the node is no member, or no other member could have the partitions.
        """
        try:
            members = self._metastore.group.config.members
        except MetastoreUnavailable:
            # This node has left the cluster.
            return ()
        if node not in members or not members - await self.read() - {node}:
            return ()
        await self._metastore.transact(Transaction(then=(Put(leaving_key(node), b""),)))
        loop = asyncio.get_running_loop()
        limit_s = loop.time() + timeout_s
        while True:
            waits = _waits(node, self._assignments.known, alive())
            if not waits:
                # What is known here may be behind.
                found, _ = await self._assignments.read()
                waits = _waits(node, found, alive())
            if not waits or loop.time() > limit_s:
                return waits
            await asyncio.sleep(LOOK_S)

    async def cancel(self, node: str) -> None:
        """Let a node have partitions again."""
        await self._metastore.transact(Transaction(then=(Delete(leaving_key(node)),)))


def _waits(
    node: str, known: Mapping[Partition, Assigned], alive: Collection[str]
) -> tuple[str, ...]:
    """The partitions that a node may have, each with what it waits for."""
    # Groups that are being ended have no rows that anything needs.
    left = [
        (partition, each.assignment)
        for partition, each in sorted(known.items(), key=itemgetter(0))
        if node in each.assignment.nodes and not each.assignment.ending
    ]
    found = []
    for (zone, number), assignment in left[:NAMED_MAX]:
        text = f"partition {number} of zone {zone} is on {', '.join(assignment.stable)}"
        if assignment.pending:
            text += f", moves to {', '.join(assignment.pending)}"
        silent = sorted({*assignment.stable, *assignment.pending} - set(alive))
        if silent:
            text += f"; silent: {', '.join(silent)}"
        found.append(text)
    if len(left) > NAMED_MAX:
        found.append(f"{len(left) - NAMED_MAX} other partitions")
    return tuple(found)
