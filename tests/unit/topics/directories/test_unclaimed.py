"""Directories of topics that no definition explains: they stay, and can be adopted."""

from __future__ import annotations

import pytest

from lithify.errors import UnclaimedDirectory, WriteFailed
from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.log.file_names import DELETED
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.topics.definitions.definitions import (
    AlreadyDefined,
    NamespaceDefinition,
    TopicDefinition,
)
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.schemas.schemas import Schema, SchemaType
from lithify.topics.subscriptions.cursor import Cursor
from lithify.topics.topics import TopicNotFound, Topics
from tests.unit.topics.test_topics import NODE, open_topics, values

DEFINITIONS = f"{NODE}/definitions"


def unclaimed(topics: Topics) -> dict[str, int]:
    """The number of partitions of each."""
    return {each.name.local: len(each.partitions) for each in topics.unclaimed()}


def filled(*names: str, fs: MemoryFileSystem | None = None) -> MemoryFileSystem:
    fs = fs or MemoryFileSystem()
    topics = open_topics(fs)
    for name in names:
        topics.create(name).append(value=name.encode())
    topics.close()
    return fs


def test_without_a_definitions_file_all_data_stays_and_is_not_served() -> None:
    fs = filled("a", "b")
    fs.remove(DEFINITIONS)
    topics = open_topics(fs)
    assert topics.list(Namespace("public", "default")) == []
    assert unclaimed(topics) == {"a": 0, "b": 0}
    assert topics.unclaimed_count == 2
    with pytest.raises(TopicNotFound):
        topics.get("a")
    topics.adopt("a")
    assert values(topics, "a") == [b"a"]
    topics.close()
    topics = open_topics(fs)
    assert unclaimed(topics) == {"b": 0}
    assert values(topics, "a") == [b"a"]


def test_an_older_definitions_file_deletes_nothing() -> None:
    fs = filled("a")
    older = read_file(fs, DEFINITIONS)
    filled("b", fs=fs)
    write_atomic(fs, DEFINITIONS, older)
    topics = open_topics(fs)
    assert values(topics, "a") == [b"a"]
    assert unclaimed(topics) == {"b": 0}
    topics.adopt("b")
    assert values(topics, "b") == [b"b"]


def test_an_unclaimed_directory_is_neither_destroyed_nor_taken_by_a_new_topic() -> None:
    fs = filled("a")
    fs.remove(DEFINITIONS)
    topics = open_topics(fs)
    for use in (topics.create, lambda name: topics.get(name, create=True)):
        with pytest.raises(UnclaimedDirectory, match="lithify topics adopt persistent://"):
            use("a")
    with pytest.raises(UnclaimedDirectory):
        topics.create_partitioned("a", 2)
    topics.adopt("a")
    assert values(topics, "a") == [b"a"]
    with pytest.raises(AlreadyDefined):
        topics.adopt("a")
    with pytest.raises(TopicNotFound):
        topics.adopt("nothing")


def test_partitions_are_adopted_together_with_their_schemas_cursors_and_producers() -> None:
    fs = MemoryFileSystem()
    topics = open_topics(fs)
    topics.create_partitioned("t", 4)
    for number in (0, 2):
        topics.get(f"t-partition-{number}").append(value=b"%d" % number)
    topics.get("t-partition-2").cursors.create("mine", Cursor(-1), {})
    topics.schemas("t").register(Schema(SchemaType.STRING, b"", "", {}))
    topics.close()
    fs.open_append(f"{NODE}/topics/public/default/t-partition-0/producers").close()
    fs.remove(DEFINITIONS)
    topics = open_topics(fs)
    assert unclaimed(topics) == {"t": 2}
    # A client that finds no partitions must not put a topic without partitions in their place.
    with pytest.raises(UnclaimedDirectory):
        topics.get("t", create=True)
    with pytest.raises(UnclaimedDirectory, match=r"adopt persistent://public/default/t'"):
        topics.get("t-partition-2", create=True)
    topics.adopt("t")
    assert topics.partitions("t") == 3
    assert values(topics, "t-partition-2") == [b"2"]
    assert topics.get("t-partition-2").cursors.names() == ["mine"]
    assert len(topics.schemas("t").all()) == 1
    settings = topics.definitions.current.topics["persistent://public/default/t"].settings
    assert settings["deduplication"] is True
    assert (settings["retention_ms"], settings["message_ttl_ms"]) == (-1, 0)


def test_tenants_and_namespaces_that_are_missing_are_defined_with_the_topic() -> None:
    fs = MemoryFileSystem()
    topics = open_topics(fs)
    topics.definitions.change(lambda d: d.with_tenant("acme", {}))
    space = Namespace("acme", "shop")
    topics.definitions.change(lambda d: d.with_namespace(space, NamespaceDefinition()))
    topics.create("acme/shop/orders").append(value=b"paid")
    topics.close()
    fs.remove(DEFINITIONS)
    topics = open_topics(fs)
    topics.adopt("acme/shop/orders")
    assert values(topics, "acme/shop/orders") == [b"paid"]


def test_partitions_beyond_older_definitions_are_adopted_with_their_messages() -> None:
    fs = MemoryFileSystem()
    topics = open_topics(fs)
    topics.create_partitioned("t", 1)
    older = read_file(fs, DEFINITIONS)
    topics.add_partitions("t", 3)
    topics.get("t-partition-2").append(value=b"new")
    topics.close()
    write_atomic(fs, DEFINITIONS, older)
    topics = open_topics(fs)
    assert unclaimed(topics) == {"t": 1}
    with pytest.raises(UnclaimedDirectory):
        topics.add_partitions("t", 3)
    topics.adopt("t")
    assert topics.partitions("t") == 3
    assert values(topics, "t-partition-2") == [b"new"]


def test_a_topic_with_the_name_of_a_partition_is_not_taken_by_a_partitioned_one() -> None:
    fs = filled("t-partition-1")
    topics = open_topics(fs)
    with pytest.raises(AlreadyDefined):
        topics.create_partitioned("t", 2)
    topics.create_partitioned("u", 1)
    topics.create("u-partition-1").append(value=b"alone")
    with pytest.raises(AlreadyDefined):
        topics.add_partitions("u", 2)
    assert values(topics, "t-partition-1") == [b"t-partition-1"]
    assert values(topics, "u-partition-1") == [b"alone"]


def test_a_deleted_topic_does_not_come_back_with_older_definitions() -> None:
    fs = filled("a")
    older = read_file(fs, DEFINITIONS)
    faulty = FaultyFileSystem(fs, [Fault("rmdir", kind="EIO")])
    topics = open_topics(faulty)
    with pytest.raises(WriteFailed):
        topics.delete("a")
    topics.close()
    write_atomic(fs, DEFINITIONS, older)
    topics = open_topics(fs)
    assert topics.list(Namespace("public", "default")) == []
    assert unclaimed(topics) == {}
    assert not fs.exists(f"{NODE}/topics/public/default/a")
    topics.create("a")
    assert values(topics, "a") == []


def test_a_mark_about_another_log_deletes_nothing() -> None:
    fs, other = filled("a"), filled("a")
    topics = open_topics(FaultyFileSystem(fs, [Fault("rmdir", nth=1, kind="EIO")]))
    path = topics.directories.path(TopicName.parse("a"))
    topics.directories.mark_deleted(TopicName.parse("a"), TopicDefinition(), 0)
    topics.close()
    mark = read_file(fs, f"{path}/{DELETED}")
    write_atomic(other, f"{path}/{DELETED}", mark)
    topics = open_topics(other)
    assert values(topics, "a") == [b"a"]
    topics.close()
    # Half a byte of it is no mark either.
    write_atomic(fs, f"{path}/{DELETED}", mark.replace(b"time", b"TIME"))
    assert values(open_topics(fs), "a") == [b"a"]


def test_a_delete_that_fails_leaves_the_topic_in_use() -> None:
    fs = filled("a")
    faulty = FaultyFileSystem(fs)
    topics = open_topics(faulty)
    faulty.add(Fault("rename", path=DEFINITIONS, kind="EIO"))
    topics.get("a")
    with pytest.raises(WriteFailed):
        topics.delete("a")
    assert values(topics, "a") == [b"a"]
    topics.close()
    assert values(open_topics(fs), "a") == [b"a"]


def test_a_delete_that_can_neither_finish_nor_roll_back_closes_the_topic() -> None:
    fs = filled("a")
    faulty = FaultyFileSystem(fs)
    topics = open_topics(faulty)
    topics.get("a")
    faulty.add(Fault("rename", path=DEFINITIONS, kind="EIO"))
    faulty.add(Fault("remove", path=f"*/{DELETED}", kind="EIO"))
    with pytest.raises(WriteFailed):
        topics.delete("a")
    with pytest.raises(TopicNotFound):
        topics.get("a")
    topics.delete("a")
    assert not fs.exists(f"{NODE}/topics/public/default/a")


def test_foreign_directories_are_not_touched() -> None:
    fs = filled("a")
    fs.mkdir(f"{NODE}/topics/public/default/.snapshot")
    fs.open_append(f"{NODE}/topics/README").close()
    topics = open_topics(fs)
    assert unclaimed(topics) == {}
    assert fs.exists(f"{NODE}/topics/public/default/.snapshot")


def with_other_definitions() -> MemoryFileSystem:
    """A topic without partitions, and definitions that give its name two partitions."""
    fs, other = filled("orders"), MemoryFileSystem()
    topics = open_topics(other)
    topics.create_partitioned("orders", 2)
    topics.close()
    write_atomic(fs, DEFINITIONS, read_file(other, DEFINITIONS))
    return fs


def test_a_log_under_the_name_of_a_partitioned_topic_is_unclaimed() -> None:
    fs = with_other_definitions()
    topics = open_topics(fs)
    (found,) = topics.unclaimed()
    assert found.name.local == "orders"
    assert "defined with 2 partitions" in found.row()["problem"]
    with pytest.raises(AlreadyDefined, match=r"2 partitions.*move the directory away"):
        topics.adopt("orders")
    topics.get("orders-partition-1").append(value=b"p")
    assert topics.unclaimed_count == 1


@pytest.mark.parametrize("interrupted", [False, True])
def test_deleting_a_topic_leaves_a_log_that_its_definition_does_not_explain(
    *, interrupted: bool
) -> None:
    fs = with_other_definitions()
    topics = open_topics(fs)
    for number in range(2):
        topics.get(f"orders-partition-{number}").append(value=b"p")
    if interrupted:
        name = TopicName.parse("orders")
        topics.directories.mark_deleted(name, TopicDefinition(2), 0)
    else:
        topics.delete("orders")
    topics.close()
    topics = open_topics(fs)
    assert not topics.exists("orders")
    assert unclaimed(topics) == {"orders": 0}
    assert topics.unclaimed_count == 1
    assert fs.list(f"{NODE}/topics/public/default") == ["orders"]
    topics.adopt("orders")
    assert values(topics, "orders") == [b"orders"]
