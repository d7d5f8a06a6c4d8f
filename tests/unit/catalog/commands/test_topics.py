from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.catalog.catalog import Catalog
from lithify.catalog.commands.removals import ConfirmRemoval
from lithify.catalog.commands.tenants_and_namespaces import CreateNamespace, CreateTenant
from lithify.catalog.commands.topics import AddPartitions, AlterTopic, CreateTopic, DropTopic
from lithify.catalog.errors import (
    InvalidDefinition,
    ObjectExists,
    ObjectInUse,
    ObjectNotFound,
)
from lithify.catalog.objects import ObjectKind, Removal
from tests.catalog_stage import NODES, after, started

if TYPE_CHECKING:
    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.catalog.objects import TopicDescriptor

NS = "public/default"


def topic(catalog: Catalog, name: str = "a") -> TopicDescriptor:
    found = catalog.topic(NS, name)
    assert found is not None
    return found


def test_a_topic_has_one_owner_per_partition() -> None:
    catalog = started(
        CreateTopic(NS, "a", nodes=NODES),
        CreateTopic(NS, "b", 4, {"x": 1}, owners=("n9", "n9", "n8", "n7"), created_ms=5),
    )
    assert (topic(catalog).partitions, topic(catalog).owners) == (0, ("n1",))
    found = topic(catalog, "b")
    assert found.owners == ("n9", "n9", "n8", "n7")
    assert (found.partitions, found.created_ms, found.settings) == (4, 5, {"x": 1})


def test_partitions_only_grow() -> None:
    catalog = started(CreateTopic(NS, "a", 2, owners=("n1", "n2")))
    catalog = after(catalog, AddPartitions(NS, "a", 4, owners=("n3", "n1")))
    assert topic(catalog).owners == ("n1", "n2", "n3", "n1")
    assert after(catalog, AddPartitions(NS, "a", 4)) is catalog
    with pytest.raises(InvalidDefinition, match="it has 4 partitions; their number only grows"):
        after(catalog, AddPartitions(NS, "a", 3))


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        (CreateTopic(NS, "b", 10_001, nodes=NODES), "partitions is 10001, must be 0 to 10000"),
        (CreateTopic(NS, "b", -1, nodes=NODES), "partitions is -1"),
        (CreateTopic(NS, "b//c", nodes=NODES), "printable"),
        (CreateTopic(NS, "b"), "no owner is given, and no node to choose from"),
        (CreateTopic(NS, "b", 2, owners=("n1",)), "it has 1 owners, must have 2"),
        (CreateTopic(NS, "b", 0, owners=("n1", "n2")), "it has 2 owners, must have 1"),
        (CreateTopic(NS, "b", owners=("n 1",)), "member name 'n 1' is invalid"),
        (AddPartitions(NS, "a", 0), "partitions is 0, must be 1 to 10000"),
        (AddPartitions(NS, "a", 3), "it is not partitioned"),
    ],
)
def test_wrong_topics(command: CatalogCommand, rule: str) -> None:
    catalog = started(CreateTopic(NS, "a", nodes=NODES))
    with pytest.raises(InvalidDefinition, match=rule) as found:
        after(catalog, command)
    assert f"topic persistent://{NS}/" in str(found.value)


def test_added_partitions_have_an_owner_each() -> None:
    catalog = started(CreateTopic(NS, "a", 2, nodes=NODES))
    with pytest.raises(InvalidDefinition, match="it has 1 owners, must have 2: one per partition"):
        after(catalog, AddPartitions(NS, "a", 4, owners=("n1",)))


def test_a_partition_and_a_topic_do_not_share_a_name() -> None:
    catalog = started(CreateTopic(NS, "a", 2, nodes=NODES))
    with pytest.raises(ObjectExists, match="a-partition-1 exists"):
        after(catalog, CreateTopic(NS, "a-partition-1", nodes=NODES))
    catalog = after(catalog, CreateTopic(NS, "a-partition-2", nodes=NODES))
    with pytest.raises(ObjectExists, match="a-partition-2 exists"):
        after(catalog, AddPartitions(NS, "a", 3))
    catalog = after(catalog, CreateTopic(NS, "b-partition-1", nodes=NODES))
    with pytest.raises(ObjectExists, match="b-partition-1 exists"):
        after(catalog, CreateTopic(NS, "b", 2, nodes=NODES))
    assert after(catalog, CreateTopic(NS, "b", 1, nodes=NODES)) is not catalog


def test_the_same_name_in_another_namespace() -> None:
    catalog = started(
        CreateTenant("t"), CreateNamespace("t/n"), CreateTopic("t/n", "a", nodes=NODES)
    )
    assert after(catalog, CreateTopic(NS, "a", nodes=NODES)).topic("t/n", "a") is not None


def test_a_topic_needs_a_zone() -> None:
    catalog = after(Catalog(), CreateTenant("t"), CreateNamespace("t/n"))
    with pytest.raises(InvalidDefinition, match="there is no default zone"):
        after(catalog, CreateTopic("t/n", "a", nodes=NODES))
    with pytest.raises(ObjectNotFound, match="zone z does not exist"):
        after(catalog, CreateTopic("t/n", "a", zone="z", nodes=NODES))


def test_names_that_exist_and_that_do_not() -> None:
    catalog = started(CreateTopic(NS, "a", nodes=NODES))
    with pytest.raises(ObjectExists):
        after(catalog, CreateTopic(NS, "a", nodes=NODES))
    with pytest.raises(ObjectNotFound, match="namespace x/y"):
        after(catalog, CreateTopic("x/y", "a", nodes=NODES))
    for command in (AlterTopic(NS, "b"), AddPartitions(NS, "b", 1), DropTopic(NS, "b")):
        with pytest.raises(ObjectNotFound, match=f"topic persistent://{NS}/b"):
            after(catalog, command)
    quiet = (
        CreateTopic(NS, "a", nodes=NODES, if_not_exists=True),
        AlterTopic(NS, "b", if_exists=True),
        DropTopic(NS, "b", if_exists=True),
    )
    assert after(catalog, *quiet) is catalog


def test_a_deleted_topic_is_a_removal_until_all_owners_confirm() -> None:
    catalog = started(
        CreateTopic(NS, "a", 3, owners=("n2", "n1", "n2"), created_ms=9),
    )
    deleted = topic(catalog).id
    catalog = after(catalog, DropTopic(NS, "a"))
    (removal,) = catalog.removals()
    assert removal == Removal(
        deleted,
        ObjectKind.TOPIC,
        f"persistent://{NS}/a",
        ("n1", "n2"),
        3,
        9,
        catalog.activation,
    )
    assert after(catalog, ConfirmRemoval(deleted, "n3")) is catalog
    catalog = after(catalog, ConfirmRemoval(deleted, "n2"))
    assert [each.nodes for each in catalog.removals()] == [("n1",)]
    assert after(catalog, ConfirmRemoval(deleted, "n2")) is catalog
    catalog = after(catalog, ConfirmRemoval(deleted, "n1"))
    assert catalog.removals() == []
    assert after(catalog, ConfirmRemoval(deleted, "n1")) is catalog


def test_only_a_removal_is_confirmed() -> None:
    catalog = started(CreateTopic(NS, "a", owners=("n1",)))
    with pytest.raises(ObjectInUse, match="persistent://public/default/a is in use: it is not del"):
        after(catalog, ConfirmRemoval(topic(catalog).id, "n1"))
    for unknown in (0, catalog.next_id):
        with pytest.raises(ObjectNotFound, match=f"removal {unknown}"):
            after(catalog, ConfirmRemoval(unknown, "n1"))
