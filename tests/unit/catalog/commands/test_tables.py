from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.catalog.commands.indexes import CreateIndex, DropIndex
from lithify.catalog.commands.tables import (
    AddColumns,
    AlterColumn,
    ColumnDefinition,
    CreateTable,
    DropColumns,
    DropTable,
)
from lithify.catalog.errors import (
    InvalidDefinition,
    ObjectExists,
    ObjectInUse,
    ObjectNotFound,
)
from tests.catalog_stage import PEOPLE, after, ids, started

if TYPE_CHECKING:
    from lithify.catalog.catalog import Catalog
    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.catalog.objects import TableDescriptor


def people(catalog: Catalog) -> TableDescriptor:
    found = catalog.table("people")
    assert found is not None
    return found


def columns(table: TableDescriptor, version: int) -> list[str]:
    return [f"{each.id} {each.name} {each.type}" for each in table.columns_at(version)]


def test_a_table_has_columns_and_keys() -> None:
    table = people(started(PEOPLE))
    assert columns(table, 1) == ["1 id int64", "2 town string(20)", "3 age int16"]
    assert (table.key, table.partition_key, table.schema_version) == ((1, 2), (2,), 1)
    table = people(started(replace(PEOPLE, partition_key=())))
    assert table.partition_key == table.key


def test_each_change_of_columns_is_a_schema_version() -> None:
    catalog = started(PEOPLE)
    catalog = after(catalog, AddColumns("people", (ColumnDefinition("x", "int8", default=1),)))
    catalog = after(catalog, AlterColumn("people", "x", type="int16", nullable=True))
    catalog = after(catalog, DropColumns("people", ("x",)))
    catalog = after(
        catalog,
        AddColumns("people", (ColumnDefinition("x", "string", nullable=True),)),
        AlterColumn("people", "age", type="int32"),
    )
    table = people(catalog)
    first = ["1 id int64", "2 town string(20)", "3 age int16"]
    assert columns(table, 1) == columns(table, 4) == first
    assert columns(table, 2) == [*first, "4 x int8"]
    assert columns(table, 3) == [*first, "4 x int16"]
    assert columns(table, 5) == [*first, "5 x string"]
    assert columns(table, 6) == [*first[:2], "3 age int32", "5 x string"]
    assert table.schema_version == 6
    assert [each.nullable for each in table.columns_at(3)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        (replace(PEOPLE, name="a b"), "letters, digits"),
        (replace(PEOPLE, columns=()), "0 columns, must have 1 to 1000"),
        (replace(PEOPLE, key=()), "it names no column"),
        (replace(PEOPLE, key=("x",)), "the table has no column x"),
        (replace(PEOPLE, key=("id", "id")), "it names a column twice"),
        (replace(PEOPLE, key=("id", "age")), "people.age: a column of the key must not be null"),
        (replace(PEOPLE, partition_key=("age",)), "its partition key is not part of its key"),
        (
            replace(PEOPLE, columns=tuple(ColumnDefinition(f"c{i}", "int8") for i in range(1001))),
            "1001 columns",
        ),
        (replace(PEOPLE, columns=(ColumnDefinition("id", "int65"),)), "people.id: type 'int65'"),
        (
            replace(PEOPLE, columns=(ColumnDefinition("id", "int8", default=128),)),
            "default 128 is not a value of int8",
        ),
    ],
)
def test_wrong_tables(table: CreateTable, rule: str) -> None:
    with pytest.raises(InvalidDefinition, match=rule):
        after(started(), table)


def test_a_column_has_a_name_of_its_own() -> None:
    twice = replace(PEOPLE, columns=(*PEOPLE.columns, ColumnDefinition("id", "int8")))
    with pytest.raises(ObjectExists, match=r"column people\.id"):
        after(started(), twice)
    with pytest.raises(ObjectExists, match=r"column people\.age"):
        after(started(PEOPLE), AddColumns("people", (ColumnDefinition("age", "int8"),)))


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        (AddColumns("people", (ColumnDefinition("x", "int8"),)), "needs a default"),
        (AlterColumn("people", "id", type="string"), "of the key cannot be changed"),
        (AlterColumn("people", "town", nullable=True), "of the key cannot be changed"),
        (AlterColumn("people", "age", type="int8"), "type int8 is not wider than int16"),
        (AlterColumn("people", "age", type="string"), "type string is not wider than int16"),
        (AlterColumn("people", "age", nullable=False), "a nullable column stays nullable"),
        (AlterColumn("people", "age", default="x"), "default 'x' is not a value of int16"),
        (DropColumns("people", ("town",)), "a column of the key cannot be dropped"),
    ],
)
def test_wrong_changes(command: CatalogCommand, rule: str) -> None:
    with pytest.raises(InvalidDefinition, match=rule):
        after(started(PEOPLE), command)


def test_a_default_is_set_and_unset() -> None:
    catalog = after(started(PEOPLE), AlterColumn("people", "age", default=7))
    assert people(catalog).columns[2].default == 7
    assert after(catalog, AlterColumn("people", "age")) is catalog
    catalog = after(catalog, AlterColumn("people", "age", default=None))
    assert people(catalog).columns[2].default is None


def test_a_column_of_an_alive_index_is_not_dropped() -> None:
    catalog = started(PEOPLE, CreateIndex("people", "i", ("age",)))
    with pytest.raises(ObjectInUse, match=r"column people\.age is in use: index i uses it"):
        after(catalog, DropColumns("people", ("age",)))
    catalog = after(catalog, DropIndex("people", "i"), DropColumns("people", ("age",)))
    assert people(catalog).column("age") is None


def test_a_dropped_table_has_no_indexes() -> None:
    before = started()
    catalog = after(
        before, PEOPLE, CreateIndex("people", "i", ("age",)), CreateIndex("people", "j", ("age",))
    )
    catalog = after(catalog, DropIndex("people", "j"), DropTable("people"))
    assert ids(catalog) == ids(before)
    assert catalog.directory == before.directory


def test_names_that_exist_and_that_do_not() -> None:
    catalog = started(PEOPLE)
    with pytest.raises(ObjectExists, match="table people"):
        after(catalog, PEOPLE)
    missing: tuple[CatalogCommand, ...] = (
        DropTable("x"),
        AddColumns("x", ()),
        DropColumns("x", ()),
        AlterColumn("x", "y"),
        AlterColumn("people", "x"),
        DropColumns("people", ("x",)),
    )
    for command in missing:
        with pytest.raises(ObjectNotFound, match=r"table x|column people\.x"):
            after(catalog, command)
    quiet: tuple[CatalogCommand, ...] = (
        replace(PEOPLE, if_not_exists=True),
        DropTable("x", if_exists=True),
        AddColumns("people", (ColumnDefinition("id", "int8"),), if_not_exists=True),
        DropColumns("people", ("x",), if_exists=True),
    )
    assert after(catalog, *quiet) is catalog
