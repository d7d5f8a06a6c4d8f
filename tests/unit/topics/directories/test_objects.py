"""Directories of topics that were deleted and created again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.errors import UnclaimedDirectory
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.log.object_file import WrongObject, read_object
from lithify.node.catalog_definitions import CatalogDefinitions
from lithify.settings import LogSettings
from lithify.topics.definitions.definitions import TopicDefinition
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.topics import Topics, TopicSettings
from tests.crash.test_directories import NODE
from tests.definitions_cluster import MemoryCluster
from tests.property.test_directories import copy_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDERS = f"{NODE}/topics/public/default/orders"
NAME = TopicName.parse("orders")


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster() as opened:
        yield opened


def definitions_of(cluster: MemoryCluster, fs: MemoryFileSystem) -> CatalogDefinitions:
    fs.mkdir(NODE)
    return CatalogDefinitions(cluster.member(), fs, NODE, ignore_events)


def opened(cluster: MemoryCluster, fs: MemoryFileSystem) -> Topics:
    return Topics(
        fs,
        NODE,
        settings=TopicSettings(log=LogSettings()),
        clock=ManualClock(),
        events=ignore_events,
        owner="pid 1",
        definitions=definitions_of(cluster, fs),
    )


def used(cluster: MemoryCluster, fs: MemoryFileSystem) -> Topics:
    topics = opened(cluster, fs)
    topics.create("orders").append(value=b"old")
    return topics


def test_a_directory_says_of_which_object_it_is(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    topics = used(cluster, fs)
    assert read_object(fs, ORDERS) == topics.definitions.current.identity(NAME)


def test_a_deletion_is_confirmed(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    topics = used(cluster, fs)
    topics.delete("orders")
    assert topics.definitions.removals() == []
    assert not fs.exists(ORDERS)


def test_the_old_directory_of_a_topic_that_was_created_again_is_not_served(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    topics = used(cluster, fs)
    topics.close()
    copy_tree(fs, ORDERS, "/copy")
    topics = opened(cluster, fs)
    topics.delete("orders")
    topics.definitions.change(lambda d: d.with_new_topic(NAME, TopicDefinition(0, 5)))
    topics.close()
    copy_tree(fs, "/copy", ORDERS)
    topics = opened(cluster, fs)
    with pytest.raises(WrongObject, match="move the directory away"):
        topics.get("orders")
    (unclaimed,) = topics.unclaimed()
    assert "another topic" in unclaimed.problem
    # Deleting the new topic leaves the directory, which can be adopted then.
    topics.delete("orders")
    assert topics.definitions.removals() == []
    with pytest.raises(UnclaimedDirectory):
        topics.get("orders", create=True)
    topics.adopt("orders")
    assert [m.value for m in topics.get("orders").read()] == [b"old"]
    topics.close()


@pytest.mark.parametrize("again", [False, True])
def test_a_removal_deletes_exactly_the_directory_of_what_was_deleted(
    cluster: MemoryCluster, *, again: bool
) -> None:
    fs = MemoryFileSystem()
    used(cluster, fs).close()
    other = definitions_of(cluster, MemoryFileSystem())
    other.change(lambda d: d.without_topic(NAME))
    if again:
        other.change(lambda d: d.with_new_topic(NAME, TopicDefinition(0, 5)))
    topics = opened(cluster, fs)
    assert topics.definitions.removals() == []
    assert not fs.exists(f"{ORDERS}/log")
    if again:
        assert list(topics.get("orders").read()) == []
    topics.close()


def test_a_removal_leaves_the_directory_of_another_object(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    used(cluster, fs).close()
    copy_tree(fs, ORDERS, "/copy")
    with MemoryCluster() as new:
        # The catalog was lost, and the name was used by another topic, which was deleted.
        other = definitions_of(new, MemoryFileSystem())
        other.change(lambda d: d.with_new_topic(NAME, TopicDefinition(0, 5, owners=("n1",))))
        other.change(lambda d: d.without_topic(NAME))
        topics = opened(new, fs)
        assert topics.definitions.removals() == []
        assert [each.name for each in topics.unclaimed()] == [NAME]
        topics.adopt("orders")
        assert [m.value for m in topics.get("orders").read()] == [b"old"]
        topics.close()
