"""All topics of a node: created, opened when first used, deleted, whatever happens meanwhile."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from lithify.clock import ManualClock
from lithify.errors import InvalidInput, LogLocked, OpenFailed, WriteFailed
from lithify.events import ignore_events
from lithify.fs import FileSystem, MemoryFileSystem
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import MUTATING, Fault, FaultyFileSystem, PowerCut
from lithify.topics.definitions.definitions import AlreadyDefined
from lithify.topics.definitions.topic_names import Namespace
from lithify.topics.producers.producers import Producer
from lithify.topics.topics import TopicNotFound, Topics, TopicSettings
from tests.unit.log.helpers import PATIENCE_S, Gate, Hook

NODE = "/data"


def open_topics(fs: FileSystem, owner: str = "pid 1") -> Topics:
    return Topics(
        fs,
        NODE,
        settings=TopicSettings(log=LogSettings()),
        clock=ManualClock(),
        events=ignore_events,
        owner=owner,
    )


def values(topics: Topics, name: str) -> list[bytes | None]:
    return [message.value for message in topics.get(name).read()]


def test_a_topic_outlives_its_node() -> None:
    fs = MemoryFileSystem()
    topics = open_topics(fs)
    topics.create("orders").append(value=b"one")
    topics.close()
    assert values(open_topics(fs), "orders") == [b"one"]


def test_a_second_process_gets_the_pid_of_the_owner() -> None:
    fs = MemoryFileSystem()
    topics = open_topics(fs, "pid 77")
    with pytest.raises(LogLocked, match="pid 77"):
        open_topics(fs)
    topics.close()
    open_topics(fs)


def test_names_that_differ_only_in_odd_characters_have_their_own_files() -> None:
    fs = MemoryFileSystem()
    topics = open_topics(fs)
    names = ["a/b", "a%2Fb", "a.b", "a b", "A", "a", "ä", "a~b", "%61", "*?", "a:b"]
    full = [f"persistent://public/default/{name}" for name in names]
    for name in full:
        topics.get(name, create=True).append(value=name.encode())
    topics.close()
    topics = open_topics(fs)
    assert [values(topics, name) for name in full] == [[name.encode()] for name in full]


def test_partitions_are_topics_of_their_own() -> None:
    topics = open_topics(MemoryFileSystem())
    topics.create_partitioned("orders", 2)
    topics.get("orders-partition-1").append(value=b"x")
    with pytest.raises(InvalidInput, match="name a partition"):
        topics.get("orders")
    with pytest.raises(TopicNotFound):
        topics.get("orders-partition-2")
    topics.delete("orders")
    with pytest.raises(TopicNotFound):
        topics.get("orders-partition-1")


def test_a_topic_in_use_is_not_deleted() -> None:
    topics = open_topics(MemoryFileSystem())
    topic = topics.get("orders", create=True)
    producer = Producer("p")
    topic.producers.add(producer)
    with pytest.raises(InvalidInput, match="in use"):
        topics.delete("orders")
    topic.producers.remove(producer)
    topics.delete("orders")
    assert not topics.exists("orders")


def test_a_recreated_topic_has_nothing_of_the_deleted_one() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    topics = open_topics(fs)
    topics.get("orders", create=True).append(value=b"old")
    fs.add(Fault.parse("remove * nth=2 EIO"))
    with pytest.raises(WriteFailed):
        topics.delete("orders")
    assert not topics.exists("orders")
    assert values_of_new(topics) == []


def values_of_new(topics: Topics) -> list[bytes | None]:
    topics.create("orders")
    return values(topics, "orders")


def delete_one_of_two(fs: FileSystem) -> None:
    topics = open_topics(fs)
    topics.get("kept", create=True).append(value=b"kept")
    topics.get("gone", create=True).append(value=b"gone")
    topics.delete("gone")
    topics.close()


def test_the_power_is_cut_at_every_operation_of_a_deletion() -> None:
    whole = FaultyFileSystem(MemoryFileSystem(), record=True)
    delete_one_of_two(whole)
    mutating = [line.split()[0] in MUTATING for line in whole.trace]
    assert sum(mutating) > 30
    seen = set()
    for number in range(1, sum(mutating) + 1):
        memory = MemoryFileSystem()
        cut = Fault.parse(f"mutating * nth={number} CRASH")
        with pytest.raises(PowerCut):
            delete_one_of_two(FaultyFileSystem(memory, [cut]))
        for clone in (memory.kill_clone(), memory.crash_clone(random.Random(number))):
            topics = open_topics(clone)
            names = {name.rpartition("/")[2] for name in topics.definitions.current.topics}
            seen.add(frozenset(names))
            for name in names:
                assert values(topics, name) in ([], [name.encode()])
            topics.close()
            left = f"{NODE}/topics/public/default"
            found = set(clone.list(left)) if clone.exists(left) else set()
            assert found <= names
    assert seen == {frozenset(), frozenset({"kept"}), frozenset({"kept", "gone"})}


def test_closing_tries_all_and_raises_the_first_error() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    topics = open_topics(fs)
    first = topics.get("a", create=True)
    second = topics.get("b", create=True)
    first.writer.append_entries([b"x"], times=[1], counts=[1])
    fs.add(Fault.parse("fdatasync */a/log/* nth=1 EIO"))
    with pytest.raises(WriteFailed):
        topics.close()
    assert first.log.closed
    assert second.log.closed
    open_topics(fs)


def test_a_thousand_topics_are_opened_only_when_they_are_used() -> None:
    memory = MemoryFileSystem()
    topics = open_topics(memory)
    topics.create_partitioned("many", 1000)
    topics.get("many-partition-7").append(value=b"x")
    topics.close()
    fs = FaultyFileSystem(memory)
    topics = open_topics(fs)
    assert fs.operations < 50
    assert not topics.opened()
    assert values(topics, "many-partition-7") == [b"x"]
    assert len(topics.opened()) == 1


# --- opening by another thread ------------------------------------------------------------------


def stored(*names: str) -> MemoryFileSystem:
    """The disk of a node that had these topics, with a message in each."""
    memory = MemoryFileSystem()
    topics = open_topics(memory)
    for name in names:
        topics.create(name).append(value=name.encode())
    topics.close()
    return memory


def test_only_topics_that_have_been_used_wait_to_be_opened() -> None:
    memory = stored("a", "b")
    topics = open_topics(memory)
    topics.create_partitioned("many", 1000)
    topics.get("many-partition-7")
    topics.get("a")
    assert [name.local for name in topics.unopened()] == ["b"]
    topics.close()
    topics = open_topics(memory)
    assert [name.local for name in topics.unopened()] == ["a", "b", "many-partition-7"]


def stopped_at(name: str, *others: str) -> tuple[Topics, Gate]:
    """A node of these topics that stops at a gate where it opens the first."""
    gate = Gate()
    rules = [Fault("open_append", f"*/{name}/log/*", kind="SLOW")]
    fs = FaultyFileSystem(stored(name, *others), rules, Hook(gate.stop))
    return open_topics(fs), gate


def test_two_threads_open_a_topic_once_and_neither_waits_for_another_topic() -> None:
    topics, gate = stopped_at("slow", "fast")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(topics.get, "slow")
        gate.wait_until_reached()
        second = threads.submit(topics.get, "slow")
        assert values(topics, "fast") == [b"fast"]
        assert not first.done()
        assert not second.done()
        gate.open()
        assert first.result(PATIENCE_S) is second.result(PATIENCE_S)


def test_a_topic_is_deleted_after_another_thread_has_opened_it() -> None:
    topics, gate = stopped_at("t")
    with ThreadPoolExecutor(2) as threads:
        opened = threads.submit(topics.get, "t")
        gate.wait_until_reached()
        deleted = threads.submit(topics.delete, "t")
        gate.open()
        assert opened.result(PATIENCE_S).name.local == "t"
        deleted.result(PATIENCE_S)
    assert not topics.opened()
    with pytest.raises(TopicNotFound):
        topics.get("t")


def test_a_topic_that_cannot_be_created_is_removed_before_others_may_use_it() -> None:
    gate = Gate()
    fs = FaultyFileSystem(MemoryFileSystem(), [], Hook(gate.stop))
    topics = open_topics(fs)
    fs.add(Fault("open_append", "*/t/log/*"))
    fs.add(Fault("rmdir", "*/default/t", kind="SLOW"))
    with ThreadPoolExecutor(2) as threads:
        created = threads.submit(topics.create, "t")
        gate.wait_until_reached()
        used = threads.submit(topics.get, "t")
        # It must not end before the removal does, however long that takes.
        ended = wait([used], 0.1).done
        gate.open()
        assert not ended
        with pytest.raises(OpenFailed):
            created.result(PATIENCE_S)
        with pytest.raises(TopicNotFound):
            used.result(PATIENCE_S)
    assert not fs.exists(f"{NODE}/topics/public/default/t")


def test_names_of_a_namespace_are_those_of_its_topics_without_making_each() -> None:
    topics = open_topics(MemoryFileSystem())
    topics.create_partitioned("many", 3)
    topics.create("a-b")
    topics.create("a")
    space = Namespace("public", "default")
    assert topics.names_in(space) == [str(name) for name in topics.list(space)]
    assert topics.names_in(Namespace("public", "def")) == []
    topics.create_partitioned("lots", 5000)
    assert len(topics.names_in(space)) == 5005


def test_a_topic_in_deletion_is_closed_at_once() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    topics = open_topics(fs)
    topics.create("orders").append(value=b"old")
    finish = topics.deleting("orders")
    assert topics.opened() == {}
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(topics.get, "orders", create=True)
        finish()
        assert list(again.result(PATIENCE_S).read()) == [], "it is a new one"
    fs.add(Fault("rename", "*definitions*"))
    with pytest.raises(WriteFailed):
        topics.deleting("orders")()
    topics.get("orders").append(value=b"it is still there")


def test_threads_that_change_definitions_lose_none_of_them() -> None:
    fs = MemoryFileSystem()
    topics = open_topics(fs)
    names = [f"topic-{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(topics.create, names))
        with pytest.raises(AlreadyDefined):
            list(pool.map(topics.create, names[:1]))
    topics.close()
    assert all(map(open_topics(fs).exists, names))
