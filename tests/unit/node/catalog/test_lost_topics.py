"""A node whose data directory is new or an older copy does not serve what it has lost as empty."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from lithify.errors import MissingLog
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.fs.remove_tree import remove_tree
from lithify.log.object_file import WrongObject
from lithify.node.catalog.definitions import CatalogDefinitions
from lithify.settings import LogSettings
from lithify.topics.topics import Topics, TopicSettings
from tests.definitions_cluster import MemoryCluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster() as opened:
        yield opened


def opened(cluster: MemoryCluster, fs: MemoryFileSystem, identity: str) -> Topics:
    fs.mkdir("data")
    member = cluster.member("n1")
    member.identity = identity
    definitions = CatalogDefinitions(member, fs, "data", ignore_events)
    return Topics(
        fs,
        "data",
        settings=TopicSettings(log=LogSettings()),
        clock=cluster.clock,
        events=ignore_events,
        owner="n1",
        definitions=definitions,
    )


def fill(topics: Topics, name: str) -> None:
    topics.get(name, create=True).append(value=b"x")


def missing(topics: Topics) -> list[str]:
    return [each.name.local for each in topics.missing()]


def copied(fs: MemoryFileSystem) -> MemoryFileSystem:
    return fs.crash_clone(random.Random(0))


def test_a_topic_that_is_newer_than_a_copy_of_the_directory_is_missing(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    topics = opened(cluster, fs, "first")
    fill(topics, "old")
    topics.create("unused").close()
    topics.close()
    older = copied(fs)
    topics = opened(cluster, fs, "first")
    fill(topics, "new")
    topics.close()
    for _ in range(2):
        topics = opened(cluster, older, "second")
        assert missing(topics) == ["new"]
        with pytest.raises(MissingLog, match="new"):
            topics.get("new")
        assert topics.get("old").last_message_id() is not None
        topics.get("unused")
        topics.close()
    topics = opened(cluster, older, "second")
    topics.delete("new")
    assert not missing(topics)
    fill(topics, "new")
    topics.close()


def test_after_the_loss_of_a_disk_deleting_one_topic_does_not_make_the_others_empty(
    cluster: MemoryCluster,
) -> None:
    topics = opened(cluster, MemoryFileSystem(), "first")
    for name in ("a", "b"):
        fill(topics, name)
    topics.create_partitioned("parts", 2)
    fill(topics, "parts-partition-1")
    topics.close()
    topics = opened(cluster, MemoryFileSystem(), "second")
    names = ["a", "b", "parts-partition-0", "parts-partition-1"]
    assert missing(topics) == names
    topics.delete("a")
    fill(topics, "later")
    for name in names[1:]:
        with pytest.raises(MissingLog, match=name):
            topics.get(name)
    topics.close()


def test_a_directory_that_has_lost_only_its_raft_files_keeps_topics_that_were_never_used(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    topics = opened(cluster, fs, "first")
    fill(topics, "used")
    topics.create_partitioned("parts", 2)
    topics.close()
    topics = opened(cluster, fs, "second")
    assert not missing(topics)
    fill(topics, "parts-partition-0")
    topics.close()


def test_a_topic_that_was_created_again_after_the_copy_is_missing(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    topics = opened(cluster, fs, "first")
    fill(topics, "kept")
    fill(topics, "again")
    topics.close()
    older = copied(fs)
    topics = opened(cluster, fs, "first")
    topics.delete("again")
    cluster.clock.advance(1)
    fill(topics, "again")
    topics.close()
    topics = opened(cluster, older, "second")
    with pytest.raises(WrongObject, match="again"):
        topics.get("again")
    remove_tree(older, "data/topics/public/default/again")
    assert missing(topics) == ["again"]
    topics.close()
