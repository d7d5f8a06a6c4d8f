"""The tables of a node: rows of all tables of the cluster, wherever their partitions are.

    await tables.put("orders", {"id": 5, "count": 1})
    row = await tables.get("orders", {"id": 5})
    handle = tables.begin()
    await tables.put("orders", {"id": 5, "count": 2}, handle)
    await tables.commit(handle)

A request without a handle is a transaction of its own. A put or delete that meets a change by
others is done again. A get is answered from the newest row; a scan reads at the present time.

Transactions are those of `partition_transaction.py`, on one partition. Read-only ones are readers
at a timestamp (`reads.py`), of any partitions; while they are open they hold the low watermark.

**The limit of a commit.** A node that has all versions of the catalog up to the safe time S of the
metastore knows every version that is active up to S + delay: each is appended that long before. So
tables are as a transaction sees them below the next change of them that is known, and below S +
delay. Alone, a node knows all versions, and there is no other limit.

One event loop, that of the Raft node.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.catalog.errors import CatalogVersionTrimmed
from lithify.catalog.manager.activation import ALONE
from lithify.catalog.objects import TableDescriptor, ZoneDescriptor
from lithify.catalog.update_log.format import VERSION_KEY, parse_version
from lithify.errors import InvalidInput
from lithify.hybrid_time import MAX_TIMESTAMP, add_ms, describe
from lithify.ownership import NotOwner
from lithify.tables.active_transactions import ActiveTransactions
from lithify.tables.errors import (
    RowNotFound,
    SchemaChanged,
    TransactionConflict,
    WrongTransaction,
)
from lithify.tables.keys import partition_of, row_key
from lithify.tables.leaving import LeavingNodes
from lithify.tables.open_handles import OpenHandles, node_of_handle
from lithify.tables.partition_transaction import PartitionTransaction
from lithify.tables.partitions import PartitionHosting
from lithify.tables.reads import Page, TableReader, decode_checked, partitions_with, table_named
from lithify.tables.rows import check_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.catalog.manager.activation import ActivationTiming
    from lithify.catalog.manager.executions import Executed
    from lithify.catalog.manager.manager import CatalogManager
    from lithify.clock import Clock
    from lithify.metastore.local_metastore import LocalMetastore
    from lithify.metastore.metastore import Metastore
    from lithify.ownership import NodeUrls
    from lithify.raft.node.node import RaftNode
    from lithify.tables.active_transactions import OpenTransaction
    from lithify.tables.assignments import Partition
    from lithify.tables.low_watermark import LowWatermark
    from lithify.tables.reads import Cursor
    from lithify.tables.settings import TableSettings

__all__ = ["Tables"]

ATTEMPTS_MAX = 20
"""Of a request that is a transaction of its own, if others change what it reads."""
AHEAD_MS = 250
"""A commit may take this long before its limit has to be asked for again."""


class Tables:
    """See the module."""

    def __init__(
        self,
        node: RaftNode,
        metastore: LocalMetastore,
        catalog: CatalogManager,
        clock: Clock,
        low_watermark: LowWatermark,
        settings: TableSettings,
        timing: Callable[[], ActivationTiming],
        urls: Callable[[str], NodeUrls],
    ) -> None:
        self.node = node.identity.node
        """The name of this node."""
        self.hosting = PartitionHosting(node, metastore, clock)
        self.leaving = LeavingNodes(metastore, self.hosting.assignments)
        self.active = ActiveTransactions(catalog.now, clock.monotonic_s)
        self.low_watermark = low_watermark
        self.handles = OpenHandles(self.node, clock)
        self._metastore = metastore
        self._catalog = catalog
        self._settings = settings
        self._timing = timing
        self._urls = urls

    def hosted(self) -> dict[Partition, LocalMetastore]:
        """The partitions with a member on this node."""
        return self.hosting.hosted()

    async def execute(self, commands: Sequence[CatalogCommand]) -> Executed:
        """Change tables; see `CatalogManager.execute`."""
        return await self._catalog.execute(commands)

    # --- rows -------------------------------------------------------------------------------

    async def put(self, table: str, row: Mapping[str, Any], handle: str = "") -> None:
        """Insert or replace a row."""
        await self._write(handle, lambda transaction: transaction.put(table, row))

    async def delete(self, table: str, key: Mapping[str, Any], handle: str = "") -> None:
        """Delete a row; no change if there is none."""
        await self._write(handle, lambda transaction: transaction.delete(table, key))

    async def put_all(
        self, table: str, rows: Sequence[Mapping[str, Any]], handle: str = ""
    ) -> None:
        """Insert or replace rows, which are in one partition: all or none."""

        async def put(transaction: PartitionTransaction) -> None:
            for row in rows:
                await transaction.put(table, row)

        await self._write(handle, put)

    async def get(
        self, table: str, key: Mapping[str, Any], handle: str = "", at: int = 0
    ) -> dict[str, Any]:
        """A row: the newest one, that of a transaction, or at a time; raises `RowNotFound`."""
        if handle:
            _check_no_time(at)
            async with self.handles.use(self._own(handle)) as used:
                row = await used.transaction.get(table, key)
        elif at:
            with ExitStack() as ends:
                row = await (await self._reader(at, ends)).get(table, key)
        else:
            row = await self._newest(table, key)
        if row is None:
            raise RowNotFound(table, dict(key))
        return row

    async def scan(
        self,
        table: str,
        prefix: Mapping[str, Any],
        *,
        index: str = "",
        limit: int,
        after: Cursor | None = None,
        at: int = 0,
        handle: str = "",
    ) -> tuple[Page, int]:
        """A page of a scan or look-up (`reads.py`), and the time at which it was read.

        The next page is read at this time. A read-write transaction scans one partition, at once.
        """
        if handle:
            _check_no_time(at)
            async with self.handles.use(self._own(handle)) as used:
                used_by = used.transaction
                if isinstance(used_by, PartitionTransaction):
                    if index:
                        raise WrongTransaction("indexes are read by read-only transactions only")
                    return Page(await used_by.scan(table, prefix), None), 0
                return await self._page(used_by, table, prefix, index, limit, after)
        at = at or await self._present(table, prefix)
        with ExitStack() as ends:
            reader = await self._reader(at, ends)
            return await self._page(reader, table, prefix, index, limit, after)

    async def _page(
        self,
        reader: TableReader,
        table: str,
        prefix: Mapping[str, Any],
        index: str,
        limit: int,
        after: Cursor | None,
    ) -> tuple[Page, int]:
        if index:
            page = await reader.look_up(table, index, prefix, limit=limit, after=after)
        else:
            page = await reader.scan(table, prefix, limit=limit, after=after)
        return page, reader.timestamp

    async def _present(self, name: str, prefix: Mapping[str, Any]) -> int:
        """A time at which everything is seen that was committed before, on any node."""
        if self._timing() != ALONE:
            catalog = self._catalog.current
            table = table_named(catalog, name)
            numbers = partitions_with(catalog, table, prefix)
            stores = [await self.hosting.ready((table.zone_id, each)) for each in numbers]
            # The clocks of their leaders may be ahead.
            times = await asyncio.gather(*(store.read_time() for store in stores))
            self._catalog.observe(max(times))
        return self._catalog.now()

    async def _newest(self, name: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
        catalog = self._catalog.current
        while True:
            table = table_named(catalog, name)
            checked = check_key(table, key)
            zone = catalog.get(ZoneDescriptor, table.zone_id)
            partition = zone.id, partition_of(table, checked, zone.partitions)
            store = await self.hosting.ready(partition)
            found = await store.get(row_key(table, checked))
            if found is None:
                return None
            try:
                return decode_checked(table, found.value)
            except SchemaChanged:
                # Written by a node whose clock is ahead.
                if catalog is self._catalog.versions.latest:
                    raise
                catalog = self._catalog.versions.latest

    # --- transactions -----------------------------------------------------------------------

    def begin(self) -> str:
        """Begin a read-write transaction; returns its handle."""
        life_ms = self._settings.table_transaction_life_ms
        opened = self._opened(life_ms)
        ends = ExitStack()
        ends.callback(self.active.end, opened)
        return self.handles.add(self._transaction(opened), life_ms, ends)

    async def begin_read(self, at: int = 0) -> tuple[str, int]:
        """Begin a read-only transaction at a time, or now; returns its handle and its time."""
        at = at or self._catalog.now()
        life_ms = self._settings.table_read_life_ms
        with ExitStack() as ends:
            reader = await self._reader(at, ends)
            return self.handles.add(reader, life_ms, ends.pop_all()), at

    async def commit(self, handle: str) -> None:
        """Commit a transaction; a read-only one only ends."""
        async with self.handles.use(self._own(handle)) as used:
            try:
                if isinstance(used.transaction, PartitionTransaction):
                    await self._commit(used.transaction)
            finally:
                self.handles.end(handle)

    async def roll_back(self, handle: str) -> None:
        """End a transaction without its writes."""
        async with self.handles.use(self._own(handle)):
            self.handles.end(handle)

    async def _write(
        self, handle: str, work: Callable[[PartitionTransaction], Awaitable[None]]
    ) -> None:
        if handle:
            async with self.handles.use(self._own(handle)) as used:
                if not isinstance(used.transaction, PartitionTransaction):
                    raise WrongTransaction("the transaction only reads")
                await work(used.transaction)
            return
        for attempt in range(1, ATTEMPTS_MAX + 1):
            opened = self._opened(self._settings.table_transaction_life_ms)
            try:
                transaction = self._transaction(opened)
                await work(transaction)
                await self._commit(transaction)
            except (TransactionConflict, SchemaChanged):
                if attempt == ATTEMPTS_MAX:
                    raise
            else:
                return
            finally:
                self.active.end(opened)

    async def _commit(self, transaction: PartitionTransaction) -> None:
        outcome = await transaction.commit()
        if outcome is not None:
            # What begins here from now on sees it.
            self._catalog.observe(outcome.timestamp)

    def _opened(self, life_ms: int) -> OpenTransaction:
        return self.active.begin(self._catalog.versions.at_time, life_ms / 1000)

    def _transaction(self, opened: OpenTransaction) -> PartitionTransaction:
        return PartitionTransaction(opened, self._store_of, partial(self._limit, opened))

    # --- what is known ----------------------------------------------------------------------

    async def _store_of(self, partition: Partition) -> Metastore:
        return await self.hosting.ready(partition)

    async def _reader(self, at: int, ends: ExitStack) -> TableReader:
        """A reader at a time, which holds the low watermark until `ends` is closed."""
        if at > self._catalog.now():
            raise InvalidInput(f"{describe(at)} is in the future: nothing can be read then")
        ends.enter_context(self.low_watermark.read_lock(at))
        await self._until_known(at)
        return TableReader(self._catalog.versions.at_time(at), at, self._store_of)

    async def _limit(self, opened: OpenTransaction, tables: frozenset[int], above: int, /) -> int:
        """The time below which tables are as a transaction sees them; see the module."""
        if self._timing() != ALONE:
            ahead = add_ms(self._catalog.now(), AHEAD_MS)
            known = await self._until_known(max(ahead, above + 1))
        else:
            known = MAX_TIMESTAMP
        return min(known, self._next_change(opened.catalog, tables))

    async def _until_known(self, time: int) -> int:
        """Wait until all versions up to a time are known; returns the time up to which they are."""
        timing = self._timing()
        if timing == ALONE:
            return MAX_TIMESTAMP
        await self._metastore.wait_safe_time(add_ms(time, -timing.delay_ms))
        safe = self._metastore.state.time
        # Read after the time: it is not older than what the time has.
        newest = await self._metastore.get(VERSION_KEY, local=True)
        if newest is not None:
            await self._catalog.wait_applied(parse_version(newest.value))
        return add_ms(safe, timing.delay_ms)

    def _next_change(self, seen: Catalog, tables: frozenset[int]) -> int:
        """The activation of the first version in which tables are not as they are seen."""
        versions = self._catalog.versions
        for number in range(seen.version + 1, versions.latest.version + 1):
            try:
                catalog = versions.at_version(number)
            except CatalogVersionTrimmed:
                return versions.earliest.activation
            if any(_differs(seen, catalog, table) for table in tables):
                return catalog.activation
        return MAX_TIMESTAMP

    def _own(self, handle: str) -> str:
        """A handle of this node; raises `NotOwner` for one of another."""
        node = node_of_handle(handle)
        if node and node != self.node:
            raise NotOwner(f"transaction {handle}", node, self._urls(node))
        return handle


def _check_no_time(at: int) -> None:
    if at:
        raise WrongTransaction("a transaction reads at its own time")


def _differs(one: Catalog, other: Catalog, table_id: int) -> bool:
    """Do writers have to treat a table in two ways?"""
    return _as_written(one, table_id) != _as_written(other, table_id)


def _as_written(catalog: Catalog, table_id: int) -> object:
    table = catalog.find(TableDescriptor, table_id)
    if table is None:
        return None
    return table.schema_version, [each.id for each in catalog.alive_indexes_of(table_id)]
