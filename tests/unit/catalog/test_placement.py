from __future__ import annotations

from lithify.catalog.commands.blob_stores import CreateBlobStore
from lithify.catalog.commands.topics import AddPartitions, CreateTopic
from lithify.catalog.commands.zones import CreateZone
from lithify.catalog.placement import place
from tests.catalog_stage import NODES, after, started


def test_partitions_are_spread_over_all_nodes() -> None:
    catalog = started()
    assert place(catalog, 1, NODES, 5) == ("n1", "n2", "n3", "n1", "n2")


def test_the_node_that_owns_the_least_comes_first() -> None:
    catalog = started(CreateTopic("public/default", "a", 3, owners=("n1", "n1", "n2")))
    assert place(catalog, 1, NODES, 4) == ("n3", "n2", "n1", "n3")


def test_the_order_of_the_nodes_does_not_matter() -> None:
    catalog = started(CreateTopic("public/default", "a", owners=("n2",)))
    assert place(catalog, 1, ["n3", "n2", "n1", "n3"], 3) == place(catalog, 1, NODES, 3)


def test_among_equal_nodes_the_zone_counts() -> None:
    catalog = started(
        CreateZone("far"),
        CreateTopic("public/default", "a", owners=("n1",), zone="far"),
        CreateTopic("public/default", "b", owners=("n2",)),
    )
    far, near = catalog.zone("far"), catalog.default_zone
    assert far is not None
    assert near is not None
    assert place(catalog, far.id, ("n1", "n2")) == ("n2",)
    assert place(catalog, near.id, ("n1", "n2")) == ("n1",)


def test_all_partitions_of_a_topic_have_the_owner_that_owns_the_least() -> None:
    catalog = started(
        CreateTopic("public/default", "a", owners=("n1",)),
        CreateTopic("public/default", "b", 2, nodes=("n1", "n2")),
    )
    topic = after(catalog, AddPartitions("public/default", "b", 3)).topic("public/default", "b")
    assert topic is not None
    assert topic.owners == ("n2", "n2", "n2")


def test_a_batch_places_by_what_it_placed_before() -> None:
    stores = [CreateBlobStore("public/default", f"s{i}", 8192, 4096, nodes=NODES) for i in range(6)]
    catalog = started(*stores)
    assert [catalog.owned_by(node) for node in NODES] == [2, 2, 2]
