"""Builds of indexes on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.catalog.commands.indexes import CreateIndex
from lithify.catalog.commands.tables import CreateTable
from lithify.catalog.commands.zones import CreateZone
from lithify.catalog.objects import IndexDescriptor, IndexStatus
from lithify.metastore.errors import TimeCompacted
from lithify.tables.index_builds import IndexBuilds
from tests.patience import wait_until
from tests.unit.node.catalog.test_table_needs import COLUMNS, TableNode

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_an_index_is_built_although_the_history_of_its_registration_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def later(_: IndexBuilds, __: IndexDescriptor) -> None:
        """The leader of the partition is away."""

    opened = TableNode(tmp_path / "data")
    try:
        table = CreateTable("orders", COLUMNS, ("id",), zone="z")
        opened.execute(CreateZone("z", 1, 1), table)
        opened.put("orders", 1)
        monkeypatch.setattr(IndexBuilds, "_build", later)
        opened.execute(CreateIndex("orders", "by_count", ("count",)))

        def index() -> IndexDescriptor:
            catalog = opened.node.cluster.catalog.current
            found = catalog.table("orders")
            assert found is not None
            return next(iter(catalog.indexes_of(found.id)))

        wait_until(lambda: index().status is IndexStatus.BUILDING)
        (store,) = opened.tables.hosted().values()

        def is_gone() -> bool:
            opened.put("orders", 1)
            try:
                opened.ask(lambda: store.revision_at(index().updated))
            except TimeCompacted:
                return True
            return False

        wait_until(is_gone, every_s=0.1)
        monkeypatch.undo()
        wait_until(lambda: index().status is IndexStatus.AVAILABLE)
    finally:
        opened.node.close()
