"""Deletions of topics whose definition changes meanwhile, or whose outcome is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.errors import LithifyError, OpenFailed, is_outcome_unknown
from lithify.events import ignore_events
from lithify.fs import FileSystem, MemoryFileSystem
from lithify.log.directory_marks import read_deletion
from lithify.metastore.errors import MetastoreUnavailable
from lithify.node.catalog.definitions import CatalogDefinitions
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.testing.memory_metastore import Happens, Moment
from lithify.topics.definitions.definitions import (
    AlreadyDefined,
    NotDefined,
    TopicChanged,
    TopicDefinition,
)
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.topics import TopicNotFound, Topics, TopicSettings
from tests.crash.test_directories import NODE
from tests.definitions_cluster import MemoryCluster
from tests.unit.topics.directories.test_objects import NAME, ORDERS, definitions_of, opened, used

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.testing.memory_metastore import MemoryMetastore

ANSWERS = 100
"""More than a change asks for."""


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster() as made:
        yield made


def with_metastore(
    cluster: MemoryCluster, fs: FileSystem, *, use: bool = False
) -> tuple[Topics, MemoryMetastore]:
    """The topics of a node, and what it sends changes to."""
    fs.mkdir(NODE)
    member = cluster.member()
    topics = Topics(
        fs,
        NODE,
        settings=TopicSettings(log=LogSettings()),
        clock=ManualClock(),
        events=ignore_events,
        owner="pid 1",
        definitions=CatalogDefinitions(member, fs, NODE, ignore_events),
    )
    if use:
        topics.create("orders").append(value=b"old")
    return topics, member.metastore


def test_a_topic_whose_definition_is_gone_is_not_put_back_into_use(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    topics = used(cluster, fs)
    other = definitions_of(cluster, MemoryFileSystem())
    finish = topics.deleting("orders")
    other.change(lambda d: d.without_topic(NAME))
    with pytest.raises(NotDefined):
        finish()
    assert topics.opened() == {}
    with pytest.raises(TopicNotFound):
        topics.get("orders")
    topics.close()
    opened(cluster, fs).close()
    assert not fs.exists(f"{ORDERS}/log")


def test_a_topic_that_was_created_again_is_not_deleted_in_place_of_the_old_one(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    topics = used(cluster, fs)
    other = definitions_of(cluster, MemoryFileSystem())
    finish = topics.deleting("orders")
    other.change(lambda d: d.without_topic(NAME))
    other.change(lambda d: d.with_new_topic(NAME, TopicDefinition(0, 5, owners=("n1",))))
    new = other.current.identity(NAME)
    with pytest.raises(TopicChanged, match="orders"):
        finish()
    assert topics.definitions.current.identity(NAME) == new
    assert list(topics.get("orders").read()) == []
    topics.close()


def test_partitions_that_are_added_during_a_deletion_refuse_it(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    topics = opened(cluster, fs)
    topics.create_partitioned("orders", 2)
    topics.get("orders-partition-1").append(value=b"kept")
    finish = topics.deleting("orders")
    topics.add_partitions("orders", 3)
    topics.get("orders-partition-2").append(value=b"new")
    with pytest.raises(TopicChanged, match="3 partitions"):
        finish()
    for part, value in ((1, b"kept"), (2, b"new")):
        found = topics.get(f"orders-partition-{part}")
        assert [m.value for m in found.read()] == [value]
        found.append(value=b"more")
    topics.delete("orders")
    assert topics.opened() == {}
    topics.close()


@pytest.mark.parametrize("fate", [Happens.NO, Happens.LATER])
def test_a_topic_without_a_directory_stays_out_of_use_if_its_deletion_is_unknown(
    cluster: MemoryCluster, fate: Happens
) -> None:
    fs = MemoryFileSystem()
    topics, metastore = with_metastore(cluster, fs)
    topics.definitions.change(
        lambda d: d.with_new_topic(NAME, TopicDefinition(0, 5, owners=("n1",)))
    )
    metastore.lose_answers(*[fate] * ANSWERS)
    with pytest.raises(LithifyError) as caught:
        topics.delete("orders")
    assert is_outcome_unknown(caught.value)
    with pytest.raises(TopicNotFound, match="marked as deleted"):
        topics.get("orders")
    topics.close()


def test_a_topic_whose_creation_is_undone_stays_out_of_use_if_that_is_unknown(
    cluster: MemoryCluster,
) -> None:
    disk = MemoryFileSystem()
    fs = FaultyFileSystem(disk)
    topics, metastore = with_metastore(cluster, fs)
    appended: list[str] = []

    async def gate(request: str, moment: Moment) -> None:
        if request == "transact" and moment is Moment.BEFORE:
            appended.append(request)
            if len(appended) == 2:
                metastore.lose_answers(*[Happens.LATER] * ANSWERS)

    fs.add(Fault("open_append", "*/orders/log/*"))
    metastore.gate = gate
    with pytest.raises(OpenFailed):
        topics.create("orders")
    assert topics.exists("orders")
    mark = read_deletion(disk, ORDERS)
    assert mark is not None
    assert mark.of == topics.definitions.current.identity(NAME)
    with pytest.raises(TopicNotFound, match="marked as deleted"):
        topics.get("orders")
    topics.close()


def test_partitions_of_a_topic_of_another_node_are_not_adopted(cluster: MemoryCluster) -> None:
    fs = MemoryFileSystem()
    topics = opened(cluster, fs)
    topics.create_partitioned("orders", 3)
    topics.get("orders-partition-2").append(value=b"x")
    topics.close()
    with MemoryCluster() as second:
        definitions = definitions_of(second, MemoryFileSystem())
        definitions.change(
            lambda d: d.with_new_topic(NAME, TopicDefinition(2, 5, owners=("n2", "n2")))
        )
        topics = opened(second, fs)
        before = definitions.current
        with pytest.raises(AlreadyDefined, match="n2"):
            topics.adopt("orders")
        assert topics.definitions.current.topics[str(NAME)].owners == ("n2", "n2")
        assert topics.definitions.current == before
        topics.close()


# --- the flag `logs` --------------------------------------------------------------------------


def test_a_deletion_succeeds_if_only_the_flag_of_logs_cannot_be_written(
    cluster: MemoryCluster,
) -> None:
    fs = MemoryFileSystem()
    topics, metastore = with_metastore(cluster, fs, use=True)
    asked: list[str] = []

    async def gate(request: str, moment: Moment) -> None:
        if request == "transact" and moment is Moment.BEFORE:
            asked.append(request)
            if len(asked) == 2:
                raise MetastoreUnavailable("no quorum")

    metastore.gate = gate
    topics.delete("orders")
    assert not topics.exists("orders")
    assert topics.opened() == {}
    assert not fs.exists(ORDERS)
    metastore.gate = None
    topics.create("orders").append(value=b"new")
    topics.close()


def test_a_change_does_not_undo_the_flag_that_another_one_has_set_meanwhile(
    cluster: MemoryCluster,
) -> None:
    definitions = definitions_of(cluster, MemoryFileSystem())
    definitions.change(lambda d: d.with_new_topic(TopicName.parse("a"), TopicDefinition()))
    before = definitions.current
    assert not before.logs

    def edit(current):  # type: ignore[no-untyped-def]
        if not definitions.current.logs:
            definitions.change(lambda d: replace(d, logs=True))
        return current.with_tenant("acme", {})

    # Its first call is in this thread, before the command.
    definitions.change(edit)
    assert definitions.current.logs
    definitions.change(lambda d: d.without_topic(TopicName.parse("a")))
    assert not definitions.current.logs
