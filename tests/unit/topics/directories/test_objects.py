"""Directories of topics that were deleted and created again."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.errors import UnclaimedDirectory
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem, write_atomic
from lithify.log.directory_marks import Deletion, log_id_in, write_deletion
from lithify.log.object_file import WrongObject, read_object
from lithify.node.catalog.definitions import CatalogDefinitions
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from lithify.topics.definitions.definitions import AlreadyDefined, TopicDefinition
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.directories.unclaimed import UnclaimedTopic, adopting
from lithify.topics.topics import Topics, TopicSettings
from tests.crash.test_directories import NODE
from tests.definitions_cluster import MemoryCluster
from tests.property.test_directories import copy_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.fs import FileSystem

ORDERS = f"{NODE}/topics/public/default/orders"
NAME = TopicName.parse("orders")


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster() as opened:
        yield opened


def definitions_of(cluster: MemoryCluster, fs: FileSystem) -> CatalogDefinitions:
    fs.mkdir(NODE)
    return CatalogDefinitions(cluster.member(), fs, NODE, ignore_events)


def opened(cluster: MemoryCluster, fs: FileSystem) -> Topics:
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


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_a_directory_that_names_no_object_is_not_served_until_it_is_adopted(
    cluster: MemoryCluster, damage: str
) -> None:
    fs = MemoryFileSystem()
    used(cluster, fs).close()
    if damage == "lost":
        fs.remove(f"{ORDERS}/OBJECT")
    else:
        write_atomic(fs, f"{ORDERS}/OBJECT", b"?")
    topics = opened(cluster, fs)
    with pytest.raises(
        UnclaimedDirectory, match="lithify topics adopt persistent://public/default/orders'"
    ):
        topics.get("orders")
    assert read_object(fs, ORDERS) is None
    assert [(each.name, each.problem) for each in topics.unclaimed()] == [(NAME, "")]
    identity = topics.definitions.current.identity(NAME)
    topics.adopt("orders")
    assert topics.definitions.current.identity(NAME) == identity == read_object(fs, ORDERS)
    assert [m.value for m in topics.get("orders").read()] == [b"old"]
    assert topics.unclaimed() == ()
    topics.close()


def test_an_adopted_topic_names_its_new_object(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    topics = opened(cluster, fs)
    topics.create_partitioned("parts", 2)
    topics.get("parts-partition-1").append(value=b"1")
    topics.close()
    with MemoryCluster() as new:
        new.clock.advance(100)
        topics = opened(new, fs)
        topics.adopt("parts")
        part = TopicName.parse("parts-partition-1")
        wanted = topics.definitions.current.identity(part)
        assert read_object(fs, f"{NODE}/topics/{part.path}") == wanted
        assert wanted is not None
        assert [m.value for m in topics.get(part).read()] == [b"1"]
        topics.close()


def test_some_partitions_that_name_no_object_are_adopted_and_others_are_added(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    topics = opened(cluster, fs)
    topics.create_partitioned("parts", 3)
    for number in range(3):
        topics.get(f"parts-partition-{number}").append(value=b"%d" % number)
    topics.close()
    paths = [f"{NODE}/topics/public/default/parts-partition-{number}" for number in range(4)]
    fs.rename(paths[2], paths[3])
    for number in (1, 3):
        fs.remove(f"{paths[number]}/OBJECT")
    fs.remove(f"{NODE}/inventory")
    topics = opened(cluster, fs)
    before = topics.definitions.current.identity(TopicName.parse("parts"))
    topics.adopt("parts")
    assert topics.partitions("parts") == 4
    for number in (0, 1, 3):
        assert read_object(fs, paths[number]) == before
    found = [m.value for n in range(4) for m in topics.get(f"parts-partition-{n}").read()]
    assert found == [b"0", b"1", b"2"]
    topics.close()


def test_deleting_a_topic_keeps_a_directory_that_names_no_object(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    used(cluster, fs).close()
    fs.remove(f"{ORDERS}/OBJECT")
    topics = opened(cluster, fs)
    topics.delete("orders")
    assert topics.definitions.removals() == []
    for _ in range(2):
        topics.close()
        topics = opened(cluster, fs)
    topics.adopt("orders")
    assert [m.value for m in topics.get("orders").read()] == [b"old"]
    topics.close()


def test_a_directory_of_a_topic_of_another_node_is_not_adopted(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    used(cluster, fs).close()
    fs.remove(f"{ORDERS}/OBJECT")
    with MemoryCluster() as new:
        other = definitions_of(new, MemoryFileSystem())
        other.change(lambda d: d.with_new_topic(NAME, TopicDefinition(0, 5, owners=("n2",))))
        topics = opened(new, fs)
        (unclaimed,) = topics.unclaimed()
        assert "is defined on node n2" in unclaimed.problem
        with pytest.raises(AlreadyDefined):
            topics.adopt("orders")
        assert read_object(fs, ORDERS) is None
        topics.close()


def test_a_topic_that_another_node_has_defined_meanwhile_is_not_adopted(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    used(cluster, fs).close()
    edit = adopting(fs, UnclaimedTopic(NAME, (), (ORDERS,)), 7)
    defined = definitions_of(cluster, MemoryFileSystem()).current
    theirs = replace(defined, node="n2")
    with pytest.raises(AlreadyDefined, match="node n1"):
        edit(theirs)


def old_mark(fs: MemoryFileSystem, logs: dict[str, str]) -> None:
    """As version 0.1 writes it: without an object."""
    fs.mkdir(ORDERS)
    write_deletion(fs, ORDERS, Deletion(str(NAME), 1, logs))


def test_an_old_mark_does_not_delete_a_topic_that_was_created_again(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    topics = used(cluster, fs)
    identity = topics.definitions.current.identity(NAME)
    topics.close()
    # Its log cannot be read at this start.
    fs.rename(f"{ORDERS}/log/MANIFEST", "/manifest")
    old_mark(fs, {"": "5f" * 12})
    topics = opened(cluster, fs)
    assert topics.definitions.current.identity(NAME) == identity
    topics.close()
    fs.rename("/manifest", f"{ORDERS}/log/MANIFEST")
    topics = opened(cluster, fs)
    assert [m.value for m in topics.get("orders").read()] == [b"old"]
    topics.close()


def test_an_old_mark_does_not_delete_the_partitions_of_a_topic_that_was_created_again(
    cluster: MemoryCluster,
) -> None:
    """The removal of its definition would permit to delete all of them."""
    fs = MemoryFileSystem()
    topics = opened(cluster, fs)
    topics.create_partitioned("orders", 2)
    for number in range(2):
        topics.get(f"orders-partition-{number}").append(value=b"%d" % number)
    topics.close()
    # The directory of the topic itself is of an old one that had no partitions.
    old_mark(fs, {"": ""})
    topics = opened(cluster, fs)
    found = [m.value for n in range(2) for m in topics.get(f"orders-partition-{n}").read()]
    assert found == [b"0", b"1"]
    assert not fs.exists(f"{ORDERS}/DELETED")
    topics.close()


def test_a_mark_that_an_adopted_directory_had_deletes_nothing_later(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    used(cluster, fs).close()
    own = log_id_in(fs, f"{ORDERS}/log")
    part = f"{ORDERS}-partition-1"
    copy_tree(fs, ORDERS, part)
    # It does not count, because the partition has another log.
    old_mark(fs, {"": own, "orders-partition-1": "5f" * 12})
    with MemoryCluster() as new:
        topics = opened(new, fs)
        topics.adopt("orders")
        topics.close()
        fs.rename(part, "/away")
        topics = opened(new, fs)
        assert [m.value for m in topics.get("orders").read()] == [b"old"]
        topics.close()


@pytest.mark.parametrize("act", ["create", "adopt", "claim", "delete"])
def test_a_power_cut_at_any_operation_leaves_a_topic_that_is_served_unclaimed_or_absent(
    act: str,
) -> None:
    for nth in range(1, 1000):
        disk = MemoryFileSystem()
        done = False
        with MemoryCluster() as cluster, MemoryCluster() as lost:
            used(lost if act == "adopt" else cluster, disk).close()
            if act == "claim":
                disk.remove(f"{ORDERS}/OBJECT")
                disk.sync_dir(ORDERS)
            with suppress(PowerCut):
                faults = [Fault("mutating", nth=nth, kind="CRASH")]
                topics = opened(cluster, FaultyFileSystem(disk, faults))
                if act == "create":
                    topics.create("new").append(value=b"new")
                elif act == "delete":
                    topics.delete("orders")
                else:
                    topics.adopt("orders")
                done = True
            left = disk.crash_clone(random.Random(nth))
            topics = opened(cluster, left)
            for each in topics.unclaimed():
                topics.adopt(each.name)
            if act != "delete":
                assert [m.value for m in topics.get("orders").read()] == [b"old"]
                assert read_object(left, ORDERS) == topics.definitions.current.identity(NAME)
            elif topics.exists("orders"):
                assert not done
                assert [m.value for m in topics.get("orders").read()] == [b"old"]
            else:
                assert not left.exists(ORDERS)
                assert topics.definitions.removals() == []
            if act == "create" and topics.exists("new"):
                found = [m.value for m in topics.get("new").read()]
                assert found == [b"new"] or not done
            topics.close()
        if done:
            assert nth > 3
            return
    raise AssertionError


def test_a_removal_keeps_a_log_in_the_directory_of_a_partitioned_topic_itself(
    cluster: MemoryCluster,
) -> None:
    """It is of no partition, whatever it names: a deletion by this node keeps it, too."""
    fs = MemoryFileSystem()
    topics = opened(cluster, fs)
    topics.create_partitioned("orders", 1)
    topics.get("orders-partition-0").append(value=b"old")
    topics.close()
    copy_tree(fs, f"{ORDERS}-partition-0", ORDERS)
    other = definitions_of(cluster, MemoryFileSystem())
    other.change(lambda d: d.without_topic(NAME))
    topics = opened(cluster, fs)
    assert topics.definitions.removals() == []
    assert not fs.exists(f"{ORDERS}-partition-0")
    topics.adopt("orders")
    assert [m.value for m in topics.get("orders").read()] == [b"old"]
    topics.close()
