from __future__ import annotations

import pytest

from lithify.catalog.catalog import Catalog
from lithify.catalog.changes import CatalogUpdate, PutObject
from lithify.catalog.commands.blob_stores import CreateBlobStore, DropBlobStore
from lithify.catalog.commands.indexes import CreateIndex, DropIndex
from lithify.catalog.commands.tenants_and_namespaces import CreateNamespace, CreateTenant
from lithify.catalog.commands.topics import AddPartitions, AlterTopic, CreateTopic, DropTopic
from lithify.catalog.commands.zones import CreateZone
from lithify.catalog.errors import ObjectNotFound, OutOfOrder
from lithify.catalog.objects import (
    IndexDescriptor,
    TenantDescriptor,
    TopicDescriptor,
    ZoneDescriptor,
)
from lithify.hybrid_time import MIN_TIMESTAMP, add_ms, timestamp
from tests.catalog_stage import NODES, PEOPLE, after, started


def test_version_0_is_empty() -> None:
    catalog = Catalog()
    assert (catalog.version, catalog.activation, catalog.next_id) == (0, MIN_TIMESTAMP, 1)
    assert not catalog.objects
    assert catalog.default_zone is None


def test_objects_are_found_by_id_and_by_name() -> None:
    catalog = started(
        CreateTopic("public/default", "a", nodes=NODES),
        CreateBlobStore("public/default", "s", 8192, 4096, nodes=NODES),
        PEOPLE,
        CreateIndex("people", "by_age", ("age",)),
    )
    table = catalog.table("people")
    assert table is not None
    index = catalog.index(table.id, "by_age")
    found = (
        catalog.zone("default"),
        catalog.tenant("public"),
        catalog.namespace("public/default"),
        catalog.topic("public/default", "a"),
        catalog.store("s"),
        table,
        index,
    )
    for each in found:
        assert each is not None
        assert catalog.get(type(each), each.id) is each
    assert [each.id for each in found if each] == sorted(catalog.objects)
    assert index is not None
    assert catalog.full_name(index) == "people.by_age"
    assert catalog.topic("public/other", "a") is None
    assert catalog.topic("other/default", "a") is None


def test_an_id_of_another_kind_is_not_found() -> None:
    catalog = started()
    zone = catalog.zone("default")
    assert zone is not None
    assert catalog.find(TenantDescriptor, zone.id) is None
    with pytest.raises(ObjectNotFound, match=f"tenant {zone.id} does not exist"):
        catalog.get(TenantDescriptor, zone.id)


def test_lists_have_the_children_of_an_object_only() -> None:
    catalog = started(
        CreateTenant("t"),
        CreateNamespace("t/n"),
        CreateTopic("public/default", "a", nodes=NODES),
        CreateTopic("t/n", "a", nodes=NODES),
        CreateTopic("t/n", "b", nodes=NODES),
        CreateBlobStore("t/n", "s", 8192, 4096, nodes=NODES),
    )
    namespace = catalog.namespace("t/n")
    assert namespace is not None
    assert [each.name for each in catalog.topics_of(namespace.id)] == ["a", "b"]
    assert [each.name for each in catalog.stores_of(namespace.id)] == ["s"]
    assert [each.name for each in catalog.topics()] == ["a", "a", "b"]
    assert [each.name for each in catalog.namespaces()] == ["default", "n"]
    zone = catalog.default_zone
    assert zone is not None
    assert [each.name for each in catalog.in_zone(zone.id)] == ["a", "a", "b", "s"]


def test_a_dropped_object_is_in_no_list() -> None:
    catalog = started(
        CreateTopic("public/default", "a", nodes=NODES),
        CreateBlobStore("public/default", "s", 8192, 4096, nodes=NODES),
    )
    empty = after(catalog, DropTopic("public/default", "a"), DropBlobStore("s"))
    zone, namespace = empty.default_zone, empty.namespace("public/default")
    assert zone is not None
    assert namespace is not None
    assert empty.in_zone(zone.id) == []
    assert empty.topics_of(namespace.id) == []
    assert empty.stores_of(namespace.id) == []
    assert empty.stores() == []
    assert empty.topic("public/default", "a") is None
    assert [each.name for each in catalog.topics()] == ["a"], "the version before has it"


def test_a_stopping_index_is_listed_and_its_name_is_free() -> None:
    catalog = started(PEOPLE, CreateIndex("people", "i", ("age",)))
    table = catalog.table("people")
    assert table is not None
    catalog = after(catalog, DropIndex("people", "i"))
    assert catalog.index(table.id, "i") is None
    assert [each.name for each in catalog.indexes_of(table.id)] == ["i"]
    assert catalog.alive_indexes_of(table.id) == []
    catalog = after(catalog, CreateIndex("people", "i", ("age",)))
    assert len(catalog.indexes_of(table.id)) == 2


def test_a_created_again_object_has_a_new_id() -> None:
    catalog = started(CreateTopic("public/default", "a", nodes=NODES))
    old = catalog.topic("public/default", "a")
    catalog = after(catalog, DropTopic("public/default", "a"))
    catalog = after(catalog, CreateTopic("public/default", "a", nodes=NODES))
    new = catalog.topic("public/default", "a")
    assert old is not None
    assert new is not None
    assert new.id > old.id
    assert catalog.find(TopicDescriptor, old.id) is None


def test_owned_partitions_are_counted_by_node_and_zone() -> None:
    catalog = started(
        CreateZone("far"),
        CreateTopic("public/default", "a", 3, owners=("n1", "n1", "n2")),
        CreateBlobStore("public/default", "s", 8192, 4096, zone="far", owner="n1"),
    )
    far = catalog.zone("far")
    assert far is not None
    assert (catalog.owned_by("n1"), catalog.owned_by("n2"), catalog.owned_by("n3")) == (3, 1, 0)
    assert catalog.owned_by("n1", far.id) == 1
    catalog = after(catalog, AddPartitions("public/default", "a", 4, owners=("n3",)))
    assert catalog.owned_by("n3") == 1
    catalog = after(catalog, DropTopic("public/default", "a"), DropBlobStore("s"))
    assert not catalog.owned


def test_activation_is_the_time_of_the_append_and_the_delay() -> None:
    update = CatalogUpdate(1, 500, ())
    assert Catalog().with_update(update, timestamp(1000, 7)).activation == timestamp(1500, 7)


def test_activations_ascend_even_if_a_delay_is_shorter() -> None:
    first = Catalog().with_update(CatalogUpdate(1, 500, ()), timestamp(1000))
    second = first.with_update(CatalogUpdate(2, 0, ()), timestamp(1001))
    assert second.activation == first.activation + 1


def test_updated_is_the_activation_of_the_version_that_changed_the_object() -> None:
    catalog = started(CreateTopic("public/default", "a", nodes=NODES))
    tenant, created = catalog.tenant("public"), catalog.activation
    catalog = after(catalog, AlterTopic("public/default", "a", {"x": 1}))
    topic = catalog.topic("public/default", "a")
    assert topic is not None
    assert topic.updated == catalog.activation > created
    assert tenant is not None
    assert tenant.updated == created
    assert catalog.tenant("public") is tenant, "versions share what did not change"


@pytest.mark.parametrize("version", [0, 1, 3])
def test_an_update_must_follow_the_version(version: int) -> None:
    catalog = started()
    with pytest.raises(OutOfOrder, match=f"version {version} does not follow version 1"):
        catalog.with_update(CatalogUpdate(version, 0, ()), add_ms(catalog.activation, 1))


def test_forms_of_an_object_share_what_is_equal() -> None:
    catalog = started(CreateTopic("public/default", "a", 3, nodes=NODES))
    old = catalog.topic("public/default", "a")
    assert old is not None
    again = TopicDescriptor(
        old.id, old.namespace_id, "a", old.zone_id, tuple(each for each in old.owners), 3
    )
    assert again.owners is not old.owners
    new = after_put(catalog, again)
    assert isinstance(new, TopicDescriptor)
    assert new.owners is old.owners


def after_put(catalog: Catalog, of: TopicDescriptor | IndexDescriptor | ZoneDescriptor) -> object:
    update = CatalogUpdate(catalog.version + 1, 0, (PutObject(of),))
    return catalog.with_update(update, add_ms(catalog.activation, 1)).objects[of.id]
