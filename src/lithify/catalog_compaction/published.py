"""The published minimum begin time of a replica of a partition.

    published = PublishedTime(replica)
    await published.write(minimum)      # on the leader
    await published.settle(minimum)     # on each replica: have it published soon
    await published.read()              # 0: none is published

The time is the key `PUBLISHED_KEY` of the partition's group. The leader writes it through Raft. On
a replica it counts when the newest **durable snapshot** there has it: a restart replays the log
from that snapshot, so nothing that was written at an earlier time is read again. Until then the
value before it counts, which is read at the revision of the snapshot.

Nothing of this is in memory only: after a restart the same snapshot and the same key say the same.
If the floor of the group has passed the snapshot, the value before cannot be read, and none is
published until the next snapshot.

A replica whose newest value is not in its snapshot asks its group for one: an idle group takes none
by itself. If that fails it is asked again by the next `read` or `settle`.

The time ascends: a smaller one, from a coordinator that is late, changes nothing.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Protocol

from lithify.metastore.errors import RevisionCompacted, RevisionNotReached
from lithify.metastore.transaction import Compare, Condition, Put, Transaction
from lithify.tables.keys import PUBLISHED_KEY

if TYPE_CHECKING:
    from lithify.metastore.local_metastore import LocalMetastore
    from lithify.metastore.metastore import KeyValue, Outcome

__all__ = ["GroupReplica", "PublishedTime", "Replica", "Store"]

_TIME = struct.Struct(">Q")


class Store(Protocol):
    """What is needed of the `Metastore` of a partition."""

    async def get(self, key: bytes, *, revision: int = 0, local: bool = False) -> KeyValue | None:
        """See `Metastore`."""

    async def transact(self, transaction: Transaction) -> Outcome:
        """See `Metastore`."""


class Replica(Protocol):
    """A member of a partition's group on this node."""

    @property
    def store(self) -> Store:
        """The partition."""

    @property
    def leads(self) -> bool:
        """Does it lead the group?"""

    @property
    def snapshot_index(self) -> int:
        """The revision up to which its newest durable snapshot has everything; 0 for none."""

    def take_snapshot(self) -> None:
        """Have a snapshot taken soon."""


class GroupReplica:
    """A `Replica` over a member of a Raft group; in the event loop of the Raft node.

    It remembers the newest row: most groups are idle, and a node may have thousands of them.
    """

    def __init__(self, metastore: LocalMetastore) -> None:
        self.group = metastore.group
        """A later member of the same name is another replica."""
        self._metastore = metastore
        self._newest: KeyValue | None = None

    @property
    def store(self) -> GroupReplica:
        """See `Replica`."""
        return self

    @property
    def leads(self) -> bool:
        """See `Replica`."""
        return bool(self._metastore.leading_term)

    @property
    def snapshot_index(self) -> int:
        """See `Replica`."""
        return self._metastore.snapshot_index

    def take_snapshot(self) -> None:
        """See `Replica`."""
        group = self._metastore.group
        group.take_snapshot()
        self._metastore.node.mark(group)

    async def get(self, key: bytes, *, revision: int = 0, local: bool = False) -> KeyValue | None:
        """See `Store`."""
        is_newest, known = not revision and local, self._newest
        present = self._metastore.state.keys.newest
        if (
            is_newest
            and known is not None
            and (known.key, known.revision) == (key, present.get(key))
        ):
            return known
        found = await self._metastore.get(key, revision=revision, local=local)
        if is_newest:
            self._newest = found
        return found

    async def transact(self, transaction: Transaction) -> Outcome:
        """See `Store`."""
        return await self._metastore.transact(transaction)


class PublishedTime:
    """See the module."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    async def read(self) -> int:
        """The time that is published here; asks for a snapshot if a newer one is not."""
        # First: a snapshot that is taken meanwhile does not make what is read here too new.
        durable = self.replica.snapshot_index
        newest = await self._newest()
        if newest is None:
            return 0
        if newest.revision <= durable:
            return _decode(newest)
        self.replica.take_snapshot()
        if not durable:
            return 0
        try:
            before = await self.replica.store.get(PUBLISHED_KEY, revision=durable, local=True)
        except (RevisionCompacted, RevisionNotReached):
            return 0
        return 0 if before is None else _decode(before)

    async def write(self, minimum: int) -> bool:
        """Raise the time of the group, on its leader; False if it is there already."""
        found = await self._newest()
        if found is not None and _decode(found) >= minimum:
            return False
        compare = Compare(PUBLISHED_KEY, Condition.REVISION, 0 if found is None else found.revision)
        put = Put(PUBLISHED_KEY, _TIME.pack(minimum))
        return (await self.replica.store.transact(Transaction((compare,), (put,)))).succeeded

    async def settle(self, minimum: int) -> bool:
        """Has the replica this time? Asks for a snapshot that has it."""
        newest = await self._newest()
        if newest is None or _decode(newest) < minimum:
            return False
        if newest.revision > self.replica.snapshot_index:
            self.replica.take_snapshot()
        return True

    async def _newest(self) -> KeyValue | None:
        return await self.replica.store.get(PUBLISHED_KEY, local=True)


def _decode(row: KeyValue) -> int:
    return int(_TIME.unpack(row.value)[0])
