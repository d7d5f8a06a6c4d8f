"""The catalog's history on a node with tables: it goes when nothing on the node needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lithify.catalog.commands.tables import AddColumns, ColumnDefinition, CreateTable
from lithify.catalog.commands.zones import CreateZone
from lithify.node.catalog.table_needs import TableNeeds
from lithify.node.node import Node
from lithify.node.settings import NodeSettings
from lithify.tables.assignments import Assignment
from tests.patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lithify.catalog.versions import CatalogVersions
    from lithify.catalog_compaction.compaction import CatalogCompaction
    from lithify.catalog_compaction.decision import Decision
    from lithify.catalog_compaction.runner import Placement
    from lithify.tables.tables import Tables

COLUMNS = (ColumnDefinition("id", "int32"), ColumnDefinition("count", "int32"))


class TableNode:
    """A node whose tables can be read as they were a second ago."""

    def __init__(self, directory: Path) -> None:
        given = NodeSettings(str(directory), table_availability_ms=1000)
        self.node = Node(given)

    @property
    def tables(self) -> Tables:
        assert self.node.cluster.tables is not None
        return self.node.cluster.tables

    @property
    def versions(self) -> CatalogVersions:
        return self.node.cluster.catalog.versions

    def ask(self, function: Callable[[], Any]) -> Any:
        return self.node.cluster.ask(function)

    def begin(self) -> str:
        async def begun() -> str:
            return self.tables.begin()

        return str(self.ask(begun))

    def put(self, table: str, number: int, handle: str = "") -> None:
        self.ask(lambda: self.tables.put(table, {"id": number, "count": number}, handle))

    def get(self, table: str, number: int) -> dict[str, Any]:
        return dict(self.ask(lambda: self.tables.get(table, {"id": number})))

    def execute(self, *commands: Any) -> None:
        self.ask(lambda: self.node.cluster.execute(commands))

    def alter(self, *columns: str) -> None:
        """Add columns to orders, each in a version of its own."""
        for name in columns:
            added = ColumnDefinition(name, "int32", default=7)
            self.execute(AddColumns("orders", (added,)))

    @property
    def trimming(self) -> CatalogCompaction:
        assert self.node.cluster.trimming is not None
        return self.node.cluster.trimming

    def decision(self) -> Decision:
        found: Decision = self.ask(self.trimming.plan).decision
        return found

    def run(self) -> None:
        """A requested run; after one that finds nothing to do, triggers rest for a minute."""
        queue = self.node.queue
        queue.request(self.trimming, self.trimming.begin)
        wait_until(lambda: not queue.is_busy(self.trimming))

    def is_trimmed_to(self, version: int) -> bool:
        """Is it after one more run?"""
        self.run()
        return self.versions.earliest.version == version


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[TableNode]:
    opened = TableNode(tmp_path / "data")
    try:
        opened.execute(
            CreateZone("z", 2, 1),
            *(CreateTable(name, COLUMNS, ("id",), zone="z") for name in ("orders", "others")),
        )
        yield opened
    finally:
        opened.node.close()


def test_only_the_newest_version_stays_when_no_transaction_is_open(
    opened: TableNode, tmp_path: Path
) -> None:
    for number in range(4):
        opened.put("orders", number)
    opened.alter("a", "b", "c")
    newest = opened.versions.latest.version
    assert not opened.is_trimmed_to(newest)
    wait_until(lambda: opened.is_trimmed_to(newest))
    # Rows of before are read without the versions in which they were written.
    wanted = [{"id": each, "count": each, "a": 7, "b": 7, "c": 7} for each in range(4)]
    assert [opened.get("orders", each) for each in range(4)] == wanted
    opened.node.close()
    again = TableNode(tmp_path / "data")
    try:
        assert again.versions.earliest.version == newest
        assert [again.get("orders", each) for each in range(4)] == wanted
        again.alter("d")
        wait_until(lambda: again.is_trimmed_to(newest + 1))
    finally:
        again.node.close()


def test_the_version_of_an_open_transaction_stays_until_it_has_ended(opened: TableNode) -> None:
    opened.put("orders", 1)
    opened.alter("a")
    held = opened.versions.latest.version
    handle = opened.begin()
    opened.put("others", 1, handle)
    opened.alter("b", "c")
    newest = opened.versions.latest.version
    wait_until(lambda: opened.is_trimmed_to(held))

    def what_holds() -> dict[str, int]:
        return {each.name: each.position for each in opened.decision().horizon.holds}

    wait_until(lambda: what_holds()["low watermark"] == newest)
    assert what_holds()["published"] == held
    assert opened.is_trimmed_to(held)
    opened.ask(lambda: opened.tables.commit(handle))
    assert opened.get("others", 1) == {"id": 1, "count": 1}
    wait_until(lambda: opened.is_trimmed_to(newest))


def test_the_version_that_a_moving_partition_follows_is_needed(opened: TableNode) -> None:
    moving = Assignment(("n1", "n2"), 7, pending=("n2", "n3"), formed=True)
    needs = TableNeeds(opened.tables, opened.node.cluster.catalog)

    async def placed() -> Placement:
        await opened.tables.hosting.assignments.create({(999, 0): moving})
        return await needs.placement()

    found: Placement = opened.ask(placed)
    assert found.rebalances == {(999, 0): 7}
    assert found.assignments[999, 0] == {"n1", "n2"}
