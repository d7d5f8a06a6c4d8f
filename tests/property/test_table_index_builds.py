"""An index that is built while rows change has the entries of all rows in the end.

Writers that know the index run between the steps of a build, which may be stopped and continued.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.catalog.catalog import Catalog
from lithify.catalog.commands.batch import plan_batch
from lithify.catalog.commands.indexes import CreateIndex
from lithify.catalog.commands.initial import initial_commands
from lithify.catalog.commands.tables import ColumnDefinition, CreateTable
from lithify.clock import ManualClock
from lithify.hybrid_time import MAX_TIMESTAMP, HybridClock
from lithify.metastore.transaction import prefix_range
from lithify.tables.active_transactions import ActiveTransactions
from lithify.tables.errors import TransactionConflict, UniqueViolation
from lithify.tables.index_builds import NotUnique, build_batch
from lithify.tables.keys import index_entry_key, primary_key, primary_key_of_entry, space_of
from lithify.tables.partition_transaction import PartitionTransaction
from lithify.tables.rows import decode_row
from lithify.testing.memory_metastore import MemoryMetastoreCluster

if TYPE_CHECKING:
    from lithify.testing.memory_metastore import MemoryMetastore

Write = tuple[int, int | None, bool, int]
"""Key, the value of the indexed column, whether it deletes, and turns of the loop before it."""
WRITES = st.lists(
    st.tuples(st.integers(0, 6), st.none() | st.integers(0, 3), st.booleans(), st.integers(0, 6)),
    max_size=12,
)


def catalog_after(*batches: tuple[Any, ...]) -> Catalog:
    catalog = Catalog()
    for batch in (tuple(initial_commands()), *batches):
        plan = plan_batch(catalog, batch)
        assert plan is not None
        catalog = plan.catalog
    return catalog


def catalogs(*, unique: bool) -> tuple[Catalog, Catalog]:
    """Without the index, and with it."""
    columns = (
        ColumnDefinition("zone", "int8"),
        ColumnDefinition("k", "int32"),
        ColumnDefinition("a", "int32", nullable=True),
    )
    table = (CreateTable("t", columns, ("zone", "k"), ("zone",)),)
    index = (CreateIndex("t", "i", ("zone", "a"), unique=unique),)
    return catalog_after(table), catalog_after(table, index)


class Story:
    def __init__(self, *, unique: bool) -> None:
        clock = ManualClock()
        self.store: MemoryMetastore = MemoryMetastoreCluster(clock).node()
        self.active = ActiveTransactions(HybridClock(clock).now, clock.monotonic_s)
        self.before, self.after = catalogs(unique=unique)
        table = self.after.table("t")
        assert table is not None
        self.table = table
        [self.index] = self.after.indexes_of(table.id)

    async def store_of(self, _: tuple[int, int]) -> MemoryMetastore:
        return self.store

    async def no_limit(self, _tables: frozenset[int], _above: int, /) -> int:
        return MAX_TIMESTAMP

    async def write(self, catalog: Catalog, write: Write) -> None:
        number, value, deletes, turns = write
        for _ in range(turns):
            await asyncio.sleep(0)
        opened = self.active.begin(lambda _: catalog, 30)
        transaction = PartitionTransaction(opened, self.store_of, self.no_limit)
        try:
            if deletes:
                await transaction.delete("t", {"zone": 0, "k": number})
            else:
                await transaction.put("t", {"zone": 0, "k": number, "a": value})
            await transaction.commit()
        except (TransactionConflict, UniqueViolation):
            pass
        finally:
            self.active.end(opened)

    async def build(self) -> bool:
        """Build to the end; returns whether the rows are unique."""
        try:
            while not await build_batch(self.store, self.table, self.index, rows_max=2):
                await asyncio.sleep(0)
        except NotUnique:
            return False
        return True

    async def spaces(self) -> tuple[list[dict[str, Any]], dict[bytes, bytes]]:
        rows = (await self.store.range(*prefix_range(space_of(self.table.id)))).rows
        entries = (await self.store.range(*prefix_range(space_of(self.index.id)))).rows
        return (
            [decode_row(self.table, each.value) for each in rows],
            {each.key: each.value for each in entries},
        )


@settings(max_examples=150, deadline=None)
@given(WRITES, WRITES, st.booleans())
def test_a_built_index_has_exactly_the_entries_of_the_rows(
    before: list[Write], meanwhile: list[Write], unique: bool
) -> None:
    async def run() -> None:
        story = Story(unique=unique)
        for write in before:
            await story.write(story.before, write)

        async def writes() -> None:
            for write in meanwhile:
                await story.write(story.after, write)

        built, _ = await asyncio.gather(story.build(), writes())
        rows, entries = await story.spaces()
        if not built:
            assert unique
            return
        expected = {index_entry_key(story.table, story.index, row): row for row in rows}
        assert len(expected) == len(rows)
        assert expected.keys() == entries.keys()
        for key, row in expected.items():
            found = primary_key_of_entry(story.table, story.index, key, entries[key])
            assert found == primary_key(story.table, row)

    asyncio.run(run())
