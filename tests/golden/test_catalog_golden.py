"""The bytes of the catalog's updates and snapshots, version 1, as they were first written.

`python tests/golden/test_catalog_golden.py` writes files that are missing and leaves the others
alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lithify.catalog.catalog import Catalog
from lithify.catalog.commands.batch import plan_batch
from lithify.catalog.commands.blob_stores import CreateBlobStore
from lithify.catalog.commands.indexes import CreateIndex, DropIndex
from lithify.catalog.commands.initial import initial_commands
from lithify.catalog.commands.removals import ConfirmRemoval
from lithify.catalog.commands.tables import (
    AddColumns,
    AlterColumn,
    ColumnDefinition,
    CreateTable,
    DropColumns,
)
from lithify.catalog.commands.topics import AlterTopic, CreateTopic, DropTopic
from lithify.catalog.commands.zones import CreateZone, SetDefaultZone
from lithify.catalog.format import (
    decode_snapshot,
    decode_update,
    encode_update,
    snapshot_chunks,
)
from lithify.hybrid_time import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parent
UPDATES = GOLDEN / "catalog_updates_v1.txt"
SNAPSHOT = GOLDEN / "catalog_snapshot_v1.txt"

NS = "public/default"
BATCHES = (
    initial_commands(),
    (
        CreateTopic(NS, "orders", 2, {"retention_ms": 1}, owners=("n1", "n2"), created_ms=5),
        CreateTopic(NS, "ä/b", owners=("n3",)),
        CreateTopic(NS, "gone", 2, owners=("n3", "n1"), created_ms=6),
        CreateBlobStore(NS, "pictures", 8192, 4096, {"budget": {"x": 1}}, owner="n2"),
        CreateTable(
            "people",
            (
                ColumnDefinition("id", "int64"),
                ColumnDefinition("name", "string(9)", nullable=True),
                ColumnDefinition("x", "boolean", default=False),
            ),
            ("id",),
        ),
        CreateIndex("people", "by_name", ("name",)),
        CreateIndex("people", "old", ("name", "id"), unique=True),
    ),
    (
        AlterColumn("people", "name", "string"),
        AddColumns("people", (ColumnDefinition("y", "decimal(5,2)", default="1.5"),)),
        DropColumns("people", ("x",)),
        DropIndex("people", "old"),
        CreateIndex("people", "old", ("y",)),
        CreateZone("archive", 4, 3),
        SetDefaultZone("archive"),
    ),
    (DropTopic(NS, "gone"), AlterTopic(NS, "orders", {"terminated": [0]}, ("retention_ms",))),
    (ConfirmRemoval(6, "n1"), DropTopic(NS, "ä/b")),
    (ConfirmRemoval(5, "n3"),),
)


def history() -> tuple[Catalog, list[bytes]]:
    catalog, updates = Catalog(), []
    for commands in BATCHES:
        planned = plan_batch(catalog, commands, 500)
        assert planned is not None
        updates.append(encode_update(planned.update))
        catalog = catalog.with_update(planned.update, timestamp(1000 * planned.update.version))
    return catalog, updates


FILES: dict[Path, Callable[[], bytes]] = {
    UPDATES: lambda: b"".join(update + b"\n" for update in history()[1]),
    SNAPSHOT: lambda: b"".join(snapshot_chunks(history()[0])),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_bytes_are_what_they_were(path: Path) -> None:
    assert FILES[path]() == path.read_bytes()


def test_version_1_is_read() -> None:
    catalog = Catalog()
    for number, line in enumerate(UPDATES.read_bytes().splitlines(), 1):
        catalog = catalog.with_update(decode_update(line), timestamp(1000 * number))
    assert catalog == history()[0] == decode_snapshot([SNAPSHOT.read_bytes()])


if __name__ == "__main__":
    for path, written in FILES.items():
        if not path.exists():
            path.write_bytes(written())
