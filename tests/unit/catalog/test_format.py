from __future__ import annotations

import json

import pytest

from lithify.catalog.catalog import Catalog
from lithify.catalog.changes import CatalogUpdate, PutObject, SetNextId
from lithify.catalog.commands.batch import plan_batch
from lithify.catalog.commands.indexes import CreateIndex
from lithify.catalog.commands.tables import AddColumns, AlterColumn, ColumnDefinition, DropColumns
from lithify.catalog.commands.tenants_and_namespaces import AlterTenant, CreateTenant
from lithify.catalog.commands.topics import CreateTopic, DropTopic
from lithify.catalog.errors import UpdateTooLarge
from lithify.catalog.format import (
    UPDATE_BYTES_MAX,
    SnapshotDecoder,
    decode_snapshot,
    decode_update,
    encode_update,
    snapshot_chunks,
)
from lithify.catalog.objects import TenantDescriptor
from lithify.errors import DamagedFile, UnsupportedVersion
from tests.catalog_stage import NODES, PEOPLE, after, started


def full() -> Catalog:
    """A catalog with objects of all kinds."""
    return after(
        started(
            PEOPLE,
            CreateIndex("people", "by_age", ("age",)),
            CreateTopic("public/default", "ä/b", 3, {"a": [1, {"b": None}]}, nodes=NODES),
            CreateTopic("public/default", "gone", nodes=NODES),
        ),
        AddColumns("people", (ColumnDefinition("height", "decimal(5,2)", default="1.5"),)),
        AlterColumn("people", "height", type="decimal(7,2)"),
        AddColumns("people", (ColumnDefinition("x", "boolean", default=False),)),
        DropColumns("people", ("x",)),
        DropTopic("public/default", "gone"),
    )


def test_an_update_is_read_as_written() -> None:
    planned = plan_batch(started(), [PEOPLE, CreateTopic("public/default", "a", nodes=NODES)], 500)
    assert planned is not None
    assert decode_update(encode_update(planned.update)) == planned.update


@pytest.mark.parametrize("chunk_bytes", [1, 300, 1000, 2**18])
def test_a_snapshot_is_read_as_written(chunk_bytes: int) -> None:
    catalog = full()
    chunks = list(snapshot_chunks(catalog, chunk_bytes=chunk_bytes))
    found = decode_snapshot(chunks)
    assert found == catalog
    assert found.directory == catalog.directory
    assert found.owned == catalog.owned
    assert b"".join(snapshot_chunks(found)) == b"".join(chunks)


def test_chunks_are_bounded_and_whole_lines() -> None:
    chunks = list(snapshot_chunks(full(), chunk_bytes=300))
    assert len(chunks) > 3
    assert all(chunk.endswith(b"\n") for chunk in chunks)
    assert all(len(chunk) <= 300 or chunk.count(b"\n") == 1 for chunk in chunks)


def test_the_snapshot_of_version_0() -> None:
    assert decode_snapshot(snapshot_chunks(Catalog())) == Catalog()


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="catalog update 7 has format version 2"):
        decode_update(b'{"format":2,"anything":[]}', "catalog update 7")
    with pytest.raises(UnsupportedVersion, match="catalog snapshot"):
        decode_snapshot([b'{"format":2}\n'])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":1}',
        b'{"format":1,"version":1,"delay_ms":0,"changes":[{}]}',
        b'{"format":1,"version":1,"delay_ms":0,"changes":[{"burn":1}]}',
        b'{"format":1,"version":1,"delay_ms":0,"changes":[{"put":"castle","id":1}]}',
        b'{"format":1,"version":1,"delay_ms":0,"changes":[{"put":"zone","id":1,"colour":2}]}',
        b'{"format":1,"version":1,"delay_ms":0,"changes":["put"]}',
        b"[" * 100_000,
    ],
)
def test_bytes_that_are_not_an_update_are_damage(data: bytes) -> None:
    with pytest.raises(DamagedFile, match="catalog update 7"):
        decode_update(data, "catalog update 7")


def test_an_incomplete_snapshot_is_damage() -> None:
    chunks = list(snapshot_chunks(full(), chunk_bytes=300))
    for wrong in ([], chunks[:-1], chunks[1:], [*chunks, chunks[-1]], [chunks[0][:20]]):
        with pytest.raises(DamagedFile, match="catalog snapshot"):
            decode_snapshot(wrong)


def test_a_wrong_line_of_a_snapshot_is_damage() -> None:
    decoder = SnapshotDecoder("catalog snapshot 3")
    decoder.feed(next(snapshot_chunks(Catalog())))
    with pytest.raises(DamagedFile, match="catalog snapshot 3"):
        decoder.feed(b'{"kind":"castle"}\n')


def test_an_update_has_a_limit() -> None:
    catalog = started()
    commands = [AlterTenant("public", {"a": "x" * 60_000})] + [
        CreateTopic("public/default", f"t{i}", settings={"a": "x" * 50_000}, nodes=NODES)
        for i in range(20)
    ]
    planned = plan_batch(catalog, commands)
    assert planned is not None
    with pytest.raises(UpdateTooLarge, match="largest change is tenant public") as found:
        encode_update(planned.update)
    assert found.value.size_bytes > found.value.limit_bytes == UPDATE_BYTES_MAX


def test_numbers_of_versions_have_no_limit() -> None:
    for version in (127, 128, 255, 256, 65_535, 65_536, 2**53 + 1, 2**62):
        update = CatalogUpdate(version, 0, (SetNextId(version),))
        assert decode_update(encode_update(update)) == update


def test_defaults_and_times_are_not_in_an_update() -> None:
    update = CatalogUpdate(1, 0, (PutObject(TenantDescriptor(1, "t", updated=77)),))
    row = json.loads(encode_update(update))
    assert row["changes"] == [{"put": "tenant", "id": 1, "name": "t"}]


def test_lines_of_a_snapshot_are_in_the_order_of_ids() -> None:
    catalog = started(*(CreateTenant(f"t{i}") for i in range(100)))
    lines = b"".join(snapshot_chunks(catalog)).splitlines()[1:]
    ids = [json.loads(line)["id"] for line in lines]
    assert ids == list(range(1, 104))
    assert list(catalog.objects) != ids, "the map has another order"
