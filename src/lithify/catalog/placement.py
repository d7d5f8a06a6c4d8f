"""Chooses the nodes that own a new topic partition or blob store. Pure and deterministic.

The partitions of a topic are spread first: each is placed on the live node with the fewest
partitions of the topic; among these on the one that owns the least, then that owns the least of the
zone, then by name. So all nodes that see the same version and the same live nodes choose alike.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lithify.catalog.catalog import Catalog

__all__ = ["place"]


def place(
    catalog: Catalog,
    zone_id: int,
    nodes: Collection[str],
    count: int = 1,
    *,
    owners: Iterable[str] = (),
) -> tuple[str, ...]:
    """One owner for each of `count` new partitions of an object with these owners; needs nodes."""
    of_object = Counter(owners)
    heap = [
        (of_object[node], catalog.owned_by(node), catalog.owned_by(node, zone_id), node)
        for node in sorted(set(nodes))
    ]
    heapq.heapify(heap)
    chosen = []
    for _ in range(count):
        own, total, in_zone, node = heap[0]
        chosen.append(node)
        heapq.heapreplace(heap, (own + 1, total + 1, in_zone + 1, node))
    return tuple(chosen)
