from __future__ import annotations

import json

from lithify.catalog.catalog import Catalog
from lithify.catalog.commands.indexes import CreateIndex, DropIndex
from lithify.catalog.commands.tables import DropColumns
from lithify.catalog.commands.tenants_and_namespaces import AlterNamespace, CreateTenant, DropTenant
from lithify.catalog.commands.topics import AddPartitions, AlterTopic, CreateTopic, DropTopic
from lithify.catalog.commands.zones import CreateZone, SetDefaultZone
from lithify.catalog.describe import catalog_rows
from lithify.catalog.diff import diff_catalogs
from tests.catalog_stage import NODES, PEOPLE, after, started


def lines(before: Catalog, after_it: Catalog) -> list[str]:
    found = diff_catalogs(before, after_it)
    json.dumps([each.row() for each in found])
    return [str(each) for each in found]


def test_a_catalog_does_not_differ_from_itself() -> None:
    catalog = started(PEOPLE)
    assert lines(catalog, catalog) == []


def test_added_changed_and_removed_objects() -> None:
    before = started(CreateTenant("t"), CreateTopic("public/default", "a", 1, nodes=NODES))
    catalog = after(
        before,
        DropTenant("t"),
        AddPartitions("public/default", "a", 2),
        AlterNamespace("public/default", {"retention_ms": 5}),
        CreateTopic("public/default", "b", nodes=NODES, created_ms=7),
    )
    assert lines(before, catalog) == [
        '~ namespace public/default (id 3): settings {} -> {"retention_ms":5}',
        "- tenant t (id 4)",
        "~ topic persistent://public/default/a (id 5): partitions 1 -> 2, owners n1 -> n1 n1",
        "+ topic persistent://public/default/b (id 6): owners n2, zone default, created ms 7",
    ]


def test_both_directions() -> None:
    before = started()
    catalog = after(before, CreateTenant("t"))
    assert lines(before, catalog) == ["+ tenant t (id 4)"]
    assert lines(catalog, before) == ["- tenant t (id 4)"]


def test_a_deleted_topic_is_gone_and_a_removal_there() -> None:
    before = started(CreateTopic("public/default", "a", 2, nodes=NODES))
    catalog = after(
        before,
        DropTopic("public/default", "a"),
        CreateTopic("public/default", "a", nodes=NODES),
    )
    assert lines(before, catalog) == [
        "- topic persistent://public/default/a (id 4)",
        "+ removal persistent://public/default/a (id 4): of topic, nodes n1, partitions 2",
        "+ topic persistent://public/default/a (id 5): owners n1, zone default",
    ]


def test_the_default_zone() -> None:
    before = started(CreateZone("far"))
    catalog = after(before, SetDefaultZone("far"))
    assert lines(before, catalog) == ["~ catalog: default zone default -> far"]
    assert lines(Catalog(), before)[0] == "~ catalog: default zone null -> default"


def test_true_is_not_1() -> None:
    before = started(CreateTopic("public/default", "a", settings={"x": 1}, nodes=NODES))
    catalog = after(before, AlterTopic("public/default", "a", {"x": True}))
    assert lines(before, catalog) == [
        '~ topic persistent://public/default/a (id 4): settings {"x":1} -> {"x":true}'
    ]


def test_a_stopping_index_of_a_dropped_column_has_its_name() -> None:
    catalog = started(PEOPLE, CreateIndex("people", "i", ("age",)))
    catalog = after(catalog, DropIndex("people", "i"), DropColumns("people", ("age",)))
    rows = {row["kind"]: row for row in catalog_rows(catalog)}
    assert rows["index"]["columns"] == ["age"]
    assert rows["index"]["status"] == "stopping"
    assert rows["table"]["schema_version"] == 2
    assert rows["table"]["key"] == ["id", "town"]
    json.dumps(rows)
