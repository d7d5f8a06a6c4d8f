"""Leads indexes from one status to the next, and builds them over existing rows.

    REGISTERED -> BUILDING      no transaction that began before the index is left on any node
    BUILDING -> AVAILABLE       every partition has the entries of its rows
    STOPPING -> removed         no transaction that uses the index is left

1. Each node says once that its older transactions have ended. The leader of the metastore waits
   for all nodes that are alive. A node that was away cannot commit an older transaction: its time
   limit is over (`tables.py`).
2. The leader of each partition adds the entries of its rows, in batches. Each is one transaction
   which demands that the rows have not changed since they were read. It also stores how far the
   build is, so the next leader continues. A writer that knows the index has its entries in its own
   transaction.
3. Two rows with equal values in a unique index end its build: the index is dropped, and logged.

    tables/index/<index id>e<node>          transactions from before the present status have ended
    tables/index/<index id>b<partition>     the partition is built; or why it cannot be

One event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from lithify.catalog.commands.indexes import (
    DropIndex,
    MakeIndexAvailable,
    RemoveIndex,
    StartBuildingIndex,
)
from lithify.catalog.objects import IndexStatus, TableDescriptor, ZoneDescriptor
from lithify.errors import LithifyError
from lithify.logger import get_logger
from lithify.metastore.errors import MetastoreUnavailable, TimeCompacted
from lithify.metastore.transaction import (
    Compare,
    Condition,
    DeleteRange,
    Put,
    Transaction,
    prefix_range,
)
from lithify.tables.keys import build_key, index_entry_key, primary_key, space_of
from lithify.tables.rows import decode_row

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.catalog.manager.manager import CatalogManager
    from lithify.catalog.objects import IndexDescriptor
    from lithify.metastore.local_metastore import LocalMetastore
    from lithify.metastore.metastore import Metastore, Rows
    from lithify.tables.active_transactions import ActiveTransactions
    from lithify.tables.partitions import PartitionHosting

__all__ = ["BATCH_ROWS", "IndexBuilds", "NotUnique", "build_batch"]

PREFIX = b"tables/index/"
BATCH_ROWS = 250
_ENDED, _BUILT = b"e", b"b"
_DONE = b"done"
_NEXT = b">"
"""Before the key at which a build continues."""

log = get_logger("lithify.tables")


class NotUnique(LithifyError):
    """Two rows have equal values in an index that is to be unique."""

    def __init__(self, table: str, index: str) -> None:
        super().__init__(f"table {table}: two rows have the same values in unique index {index}")


def _keys_of(index_id: int, kind: bytes = b"") -> bytes:
    return PREFIX + space_of(index_id) + kind


class IndexBuilds:
    """See the module. `alive` returns the names of the nodes that are."""

    def __init__(
        self,
        node: str,
        metastore: LocalMetastore,
        catalog: CatalogManager,
        hosting: PartitionHosting,
        active: ActiveTransactions,
        alive: Callable[[], Collection[str]],
    ) -> None:
        self._node = node
        self._metastore = metastore
        self._catalog = catalog
        self._hosting = hosting
        self._active = active
        self._alive = alive
        self._said: set[bytes] = set()
        """Keys that this node has put."""
        self._is_clean = False
        """Are there no keys of indexes that need none?"""
        self.error: LithifyError | None = None
        """Why the last step could not do everything, if it could not."""

    def unfinished(self) -> list[IndexDescriptor]:
        """The indexes that are in force and have a next status."""
        catalog = self._catalog.current
        return [
            index
            for table in catalog.tables()
            for index in catalog.indexes_of(table.id)
            if index.status is not IndexStatus.AVAILABLE
        ]

    @property
    def is_building(self) -> bool:
        """Is an index not built yet?"""
        return any(index.status is not IndexStatus.STOPPING for index in self.unfinished())

    async def step(self) -> bool:
        """Do what can be done now; returns whether more is to be done."""
        unfinished = self.unfinished()
        if not unfinished and self._is_clean:
            return False
        self._is_clean = False
        try:
            for index in unfinished:
                if index.status is IndexStatus.BUILDING:
                    await self._build(index)
                elif self._active.minimum_begin_time() >= index.updated:
                    await self._say(index, _ENDED + self._node.encode(), index.status.encode())
            if self._metastore.leading_term:
                await self._advance(unfinished)
            else:
                self._is_clean = not unfinished
        except LithifyError as error:
            self.error = error
            log.info("index builds wait", reason=str(error))
        else:
            self.error = None
        return True

    async def _say(self, index: IndexDescriptor, what: bytes, value: bytes) -> None:
        key = _keys_of(index.id, what)
        if key + value not in self._said:
            await self._metastore.transact(Transaction(then=(Put(key, value),)))
            self._said.add(key + value)

    # --- the leader of the metastore --------------------------------------------------------

    async def _advance(self, unfinished: list[IndexDescriptor]) -> None:
        said = {row.key: row.value for row in (await self._all()).rows}
        for index in unfinished:
            command = self._next_step(index, said)
            if command is not None:
                await self._catalog.execute([command])
        needed = tuple(_keys_of(index.id) for index in unfinished)
        for key in said:
            if not key.startswith(needed):
                delete = DeleteRange(*prefix_range(key[: len(_keys_of(0))]))
                await self._metastore.transact(Transaction(then=(delete,)))
        self._is_clean = not unfinished

    async def _all(self) -> Rows:
        return await self._metastore.range(*prefix_range(PREFIX))

    def _next_step(self, index: IndexDescriptor, said: dict[bytes, bytes]) -> CatalogCommand | None:
        if index.status is not IndexStatus.BUILDING:
            status = index.status.encode()
            nodes = {self._node, *self._alive()}
            keys = (_keys_of(index.id, _ENDED + node.encode()) for node in nodes)
            if not all(said.get(key) == status for key in keys):
                return None
            if index.status is IndexStatus.STOPPING:
                return RemoveIndex(index.id)
            return StartBuildingIndex(index.id)
        table = self._catalog.current.get(TableDescriptor, index.table_id)
        zone = self._catalog.current.get(ZoneDescriptor, table.zone_id)
        prefix = _keys_of(index.id, _BUILT)
        built = [value for key, value in said.items() if key.startswith(prefix)]
        failed = [value for value in built if value != _DONE]
        if failed:
            log.error("an index is dropped", table=table.name, reason=failed[0].decode())
            return DropIndex(table.name, index.name)
        return MakeIndexAvailable(index.id) if len(built) == zone.partitions else None

    # --- the leader of a partition ----------------------------------------------------------

    async def _build(self, index: IndexDescriptor) -> None:
        catalog = self._catalog.current
        table = catalog.get(TableDescriptor, index.table_id)
        for partition, store in self._hosting.led().items():
            what = _BUILT + partition[1].to_bytes(4, "big")
            if partition[0] != table.zone_id or _keys_of(index.id, what) + _DONE in self._said:
                continue
            try:
                # From here on every commit in the partition knows the index. If the history of
                # then is gone, the time of the group is above it.
                with suppress(TimeCompacted):
                    await store.revision_at(index.updated)
                while not await build_batch(store, table, index):
                    await asyncio.sleep(0)
            except NotUnique as error:
                await self._say(index, what, str(error).encode())
            except MetastoreUnavailable:
                # The group has another leader, which continues.
                continue
            else:
                await self._say(index, what, _DONE)


async def build_batch(
    store: Metastore, table: TableDescriptor, index: IndexDescriptor, rows_max: int = BATCH_ROWS
) -> bool:
    """Add the entries of the next rows of a partition; returns whether all have theirs."""
    progress = await store.get(build_key(index.id))
    if progress is not None and progress.value == _DONE:
        return True
    end = space_of(table.id + 1)
    start = space_of(table.id) if progress is None else progress.value[len(_NEXT) :]
    found = await store.range(start, end, limit=rows_max)
    through = found.rows[-1].key + b"\0" if found.more else end
    compares = [
        Compare(start, Condition.RANGE_UNCHANGED, found.revision, end=through),
        Compare(build_key(index.id), Condition.REVISION, progress.revision if progress else 0),
    ]
    entries: dict[bytes, bytes] = {}
    for row in found.rows:
        values = decode_row(table, row.value)
        entry, key = index_entry_key(table, index, values), primary_key(table, values)
        if index.unique:
            stored = await store.get(entry)
            others = {entries.get(entry, key), key if stored is None else stored.value}
            if others != {key}:
                raise NotUnique(table.name, index.name)
            revision = 0 if stored is None else stored.revision
            compares.append(Compare(entry, Condition.REVISION, revision))
        entries[entry] = key if index.unique else b""
    puts = [Put(entry, value) for entry, value in entries.items()]
    then = _NEXT + through if found.more else _DONE
    puts.append(Put(build_key(index.id), then))
    outcome = await store.transact(Transaction(tuple(compares), tuple(puts)))
    # If the rows have changed meanwhile, they are read again.
    return outcome.succeeded and not found.more
