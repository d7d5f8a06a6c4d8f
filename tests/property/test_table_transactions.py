"""Transactions on a partition are serialisable, and index entries are those of the rows.

Several transactions run interleaved. Those that commit are replayed one after the other, in the
order of their revisions: each must have read then what it has read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
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
from lithify.tables.keys import index_entry_key, primary_key, row_key, space_of
from lithify.tables.partition_transaction import PartitionTransaction
from lithify.tables.rows import decode_row
from lithify.testing.memory_metastore import MemoryMetastoreCluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.testing.memory_metastore import MemoryMetastore

KEYS = st.integers(0, 2)
Row = tuple[int, int | None, int]
"""Key, the column of a plain index, the column of a unique one."""
ROWS = st.tuples(KEYS, st.none() | st.integers(0, 1), st.integers(0, 3))


def catalog_with(*commands: Any) -> Catalog:
    catalog = Catalog()
    for batch in (initial_commands(), commands):
        plan = plan_batch(catalog, batch)
        assert plan is not None
        catalog = plan.catalog
    return catalog


CATALOG = catalog_with(
    CreateTable(
        "t",
        (
            ColumnDefinition("zone", "int8"),
            ColumnDefinition("k", "int32"),
            ColumnDefinition("a", "int32", nullable=True),
            ColumnDefinition("u", "int32"),
        ),
        ("zone", "k"),
        ("zone",),
    ),
    CreateIndex("t", "plain", ("a",)),
    CreateIndex("t", "alone", ("zone", "u"), unique=True),
)
TABLE = CATALOG.table("t")
assert TABLE is not None
INDEXES = list(CATALOG.indexes_of(TABLE.id))


def stored(row: Row) -> dict[str, Any]:
    return {"zone": 0, "k": row[0], "a": row[1], "u": row[2]}


@dataclass
class Told:
    """A transaction, and what it has seen and done."""

    transaction: PartitionTransaction
    steps: list[tuple[str, Any, Any]] = field(default_factory=list)
    is_over: bool = False


async def no_limit(_tables: frozenset[int], _above: int, /) -> int:
    return MAX_TIMESTAMP


class Story:
    def __init__(self) -> None:
        clock = ManualClock()
        self.cluster = MemoryMetastoreCluster(clock)
        self.store: MemoryMetastore = self.cluster.node()
        self.active = ActiveTransactions(HybridClock(clock).now, clock.monotonic_s)
        self.open: list[Told] = []
        self.committed: list[tuple[int, Told]] = []

    async def store_of(self, _: tuple[int, int]) -> MemoryMetastore:
        return self.store

    def begin(self) -> None:
        opened = self.active.begin(lambda _: CATALOG, 30)
        transaction = PartitionTransaction(opened, self.store_of, no_limit)
        self.open.append(Told(transaction))

    async def step(self, which: int, kind: str, row: Row) -> None:
        if not self.open or kind == "begin":
            self.begin()
            return
        told = self.open[which % len(self.open)]
        transaction, key = told.transaction, {"zone": 0, "k": row[0]}
        if kind == "get":
            told.steps.append(("get", row[0], await transaction.get("t", key)))
        elif kind == "scan":
            told.steps.append(("scan", None, await transaction.scan("t", {"zone": 0})))
        elif kind == "put":
            try:
                await transaction.put("t", stored(row))
            except UniqueViolation:
                self.open.remove(told)
            else:
                told.steps.append(("put", row[0], stored(row)))
        elif kind == "delete":
            await transaction.delete("t", key)
            told.steps.append(("delete", row[0], None))
        else:
            self.open.remove(told)
            await self.commit(told)

    async def commit(self, told: Told) -> None:
        try:
            outcome = await told.transaction.commit()
        except TransactionConflict:
            return
        if outcome is not None:
            self.committed.append((outcome.revision, told))

    async def check(self) -> None:
        rows: dict[int, dict[str, Any]] = {}
        for _, told in sorted(self.committed, key=lambda each: each[0]):
            for kind, key, value in told.steps:
                if kind == "get":
                    assert value == rows.get(key)
                elif kind == "scan":
                    assert value == [rows[each] for each in sorted(rows)]
                elif kind == "put":
                    rows[key] = value
                else:
                    rows.pop(key, None)
        await self.check_store(rows)

    async def check_store(self, rows: dict[int, dict[str, Any]]) -> None:
        assert TABLE is not None
        found = await self.store.range(*prefix_range(space_of(TABLE.id)))
        assert [each.key for each in found.rows] == sorted(
            row_key(TABLE, each) for each in rows.values()
        )
        assert sorted(decode_row(TABLE, each.value)["k"] for each in found.rows) == sorted(rows)
        for index in INDEXES:
            entries = await self.store.range(*prefix_range(space_of(index.id)))
            expected = {
                index_entry_key(TABLE, index, row): primary_key(TABLE, row) if index.unique else b""
                for row in rows.values()
            }
            assert {each.key: each.value for each in entries.rows} == expected
            assert len(expected) == len(rows)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["begin", "get", "put", "put", "delete", "scan", "commit", "commit"]),
        ROWS,
    ),
    min_size=10,
    max_size=50,
)


@settings(max_examples=400)
@given(steps=STEPS)
def test_committed_transactions_are_serialisable(
    steps: Sequence[tuple[int, str, Row]],
) -> None:
    async def run() -> None:
        story = Story()
        for step in steps:
            await story.step(*step)
        await story.check()

    asyncio.run(run())


@settings(max_examples=100)
@given(steps=STEPS)
def test_a_transaction_that_only_reads_has_read_at_one_moment(
    steps: Sequence[tuple[int, str, Row]],
) -> None:
    async def run() -> None:
        story = Story()
        for kind in ("begin", "put", "commit", "begin"):
            await story.step(0, kind, (0, 0, 0))
        reader = story.open.pop()
        moments: list[list[dict[str, Any]]] = []
        for number, step in enumerate(steps):
            await story.step(*step)
            if number % 3 == 0:
                moments.append(await reader.transaction.scan("t", {"zone": 0}))
                keys = [{"zone": 0, "k": key} for key in range(3)]
                rows = [await reader.transaction.get("t", key) for key in keys]
                assert [row for row in rows if row] == moments[0]
        assert all(each == moments[0] for each in moments)
        assert await reader.transaction.commit() is None

    asyncio.run(run())
