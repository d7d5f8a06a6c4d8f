"""Which nodes have the partitions of the zones that have tables; in the metastore.

    tables/assignments/<zone id><partition>     JSON; both numbers are 4 bytes big-endian

`stable` are the nodes of the partition's Raft group, the first of which creates it. The group is
`formed` when it may take commands: it then exists, and is not created again. One that is
`ending` is dropped; then the key goes. `pending` are the nodes that it is being moved to
(`rebalance.py`); `earlier` those of pending sets that were replaced before they were reached, so
the group may have a member there.

The nodes are chosen by rendezvous hashing among the members of the cluster, not among those that
are alive: each partition ranks all members by a hash of both. So a member that is added or removed
changes as few partitions as possible, and all nodes choose alike.

Each change is conditional on the revision that it was decided on, so any node may try it.
"""

from __future__ import annotations

import json
import re
import struct
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import mmh3

from lithify.metastore.errors import RevisionCompacted
from lithify.metastore.transaction import (
    Compare,
    Condition,
    Delete,
    Put,
    Transaction,
    prefix_range,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from lithify.catalog.objects import ZoneDescriptor
    from lithify.metastore.metastore import KeyValue, Metastore

__all__ = [
    "Assigned",
    "Assignment",
    "Assignments",
    "Partition",
    "assignment_key",
    "choose_nodes",
    "group_name",
    "parse_group",
]

Partition = tuple[int, int]
"""The id of a zone, and the number of one of its partitions."""

PREFIX = b"tables/assignments/"
CREATED_TOGETHER = 256
_KEY = struct.Struct(">II")
_GROUP = re.compile(r"zone-(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Assignment:
    """See the module."""

    stable: tuple[str, ...]
    version: int
    """The version of the catalog whose zone the nodes follow."""
    pending: tuple[str, ...] = ()
    formed: bool = False
    ending: bool = False
    earlier: tuple[str, ...] = ()

    @property
    def goal(self) -> tuple[str, ...]:
        """The nodes that the group should have."""
        return self.pending or self.stable

    @property
    def nodes(self) -> frozenset[str]:
        """All nodes that the group may have a member on."""
        return frozenset((*self.stable, *self.pending, *self.earlier))

    def encode(self) -> bytes:
        """The value in the metastore."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def parse(cls, value: bytes) -> Assignment:
        """The assignment with this value."""
        row = json.loads(value)
        return cls(
            tuple(row["stable"]),
            row["version"],
            tuple(row["pending"]),
            row["formed"],
            row["ending"],
            tuple(row.get("earlier", ())),
        )


@dataclass(frozen=True, slots=True)
class Assigned:
    """An assignment as it is known here."""

    assignment: Assignment
    revision: int
    """That has set it."""


def group_name(partition: Partition) -> str:
    """The name of the Raft group of a partition."""
    return f"zone-{partition[0]}-{partition[1]}"


def parse_group(name: str) -> Partition | None:
    """The partition of a Raft group; None if it is another group."""
    found = _GROUP.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def choose_nodes(partition: Partition, replicas: int, members: Collection[str]) -> tuple[str, ...]:
    """The nodes of a partition, the best one first; fewer if the cluster has fewer."""

    def rank(node: str) -> tuple[int, str]:
        text = f"{partition[0]}/{partition[1]}/{node}"
        return mmh3.hash64(text, signed=False)[0], node

    return tuple(sorted(members, key=rank, reverse=True)[:replicas])


def new_assignments(
    zone: ZoneDescriptor,
    version: int,
    members: Collection[str],
    alive: Collection[str],
    known: Collection[Partition],
) -> dict[Partition, Assignment]:
    """The assignments that a zone with tables lacks; a node that is alive creates each group."""
    found = {}
    for each in ((zone.id, number) for number in range(zone.partitions)):
        if each not in known:
            nodes = choose_nodes(each, zone.replicas, members)
            first = sorted(nodes, key=lambda node: node not in alive)
            found[each] = Assignment(tuple(first), version)
    return found


def assignment_key(partition: Partition) -> bytes:
    """The key of an assignment in the metastore."""
    return PREFIX + _KEY.pack(*partition)


def _partition(key: bytes) -> Partition:
    zone, number = _KEY.unpack(key[len(PREFIX) :])
    return zone, number


class Assignments:
    """The assignments as this node knows them, which may be behind. One event loop."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self.known: dict[Partition, Assigned] = {}
        self.changes = 0
        """Times that `known` has changed."""

    async def load(self) -> int:
        """Know all as of now; returns the revision at which they were read."""
        self.known, revision = await self.read()
        self.changes += 1
        return revision

    async def read(self) -> tuple[dict[Partition, Assigned], int]:
        """All as of now, and the revision at which they were read; what is known stays."""
        found: dict[Partition, Assigned] = {}
        start, end = prefix_range(PREFIX)
        revision = 0
        while True:
            page = await self._metastore.range(start, end, revision=revision)
            revision = page.revision
            found.update((_partition(row.key), _assigned(row)) for row in page.rows)
            if not page.more:
                break
            start = page.rows[-1].key + b"\0"
        return found, revision

    async def follow(self, changed: Callable[[], None]) -> None:
        """Follow the metastore until cancelled; `changed` is called after each change."""
        while True:
            after = await self.load()
            changed()
            try:
                watch = self._metastore.watch(*prefix_range(PREFIX), after=after)
                async with aclosing(watch) as revisions:
                    async for revision in revisions:
                        for change in revision.changes:
                            self._take(change.key, change.value, revision.revision)
                        changed()
            except RevisionCompacted:
                continue

    def _take(self, key: bytes, value: bytes | None, revision: int) -> None:
        partition = _partition(key)
        self.changes += 1
        if value is None:
            self.known.pop(partition, None)
        else:
            self.known[partition] = Assigned(Assignment.parse(value), revision)

    async def create(
        self, wanted: Mapping[Partition, Assignment], absent: Collection[bytes] = ()
    ) -> None:
        """Create assignments; those that exist stay, and nothing is done if a key is present."""
        items = list(wanted.items())
        for at in range(0, len(items), CREATED_TOGETHER):
            part = items[at : at + CREATED_TOGETHER]
            keys = (*absent, *(assignment_key(each) for each, _ in part))
            compares = tuple(Compare(key, Condition.ABSENT) for key in keys)
            puts = tuple(Put(assignment_key(each), new.encode()) for each, new in part)
            await self._metastore.transact(Transaction(compares, puts))

    async def is_current(self, partition: Partition, known: Assigned) -> bool:
        """Is an assignment as it was known? Linearizable."""
        found = await self._metastore.get(assignment_key(partition))
        return found is not None and found.revision == known.revision

    async def replace(
        self,
        partition: Partition,
        old: Assigned,
        new: Assignment | None,
        absent: Collection[bytes] = (),
    ) -> bool:
        """Change an assignment, or delete it, if it is as it was known and no key is present."""
        key = assignment_key(partition)
        compares = [Compare(key, Condition.REVISION, old.revision)]
        compares += (Compare(each, Condition.ABSENT) for each in absent)
        then = Delete(key) if new is None else Put(key, new.encode())
        outcome = await self._metastore.transact(Transaction(tuple(compares), (then,)))
        return outcome.succeeded


def _assigned(row: KeyValue) -> Assigned:
    return Assigned(Assignment.parse(row.value), row.revision)
