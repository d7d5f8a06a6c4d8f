"""A defined topic whose log was there and is not: an error, never an empty log in its place."""

from __future__ import annotations

import pytest

from lithify.errors import MissingCursors, MissingFile, MissingLog
from lithify.fs import MemoryFileSystem
from lithify.fs.remove_tree import remove_tree
from lithify.topics.subscriptions.cursor import Cursor
from tests.unit.topics.test_topics import NODE, open_topics, values

ROOT = f"{NODE}/topics"
ORDERS = f"{ROOT}/public/default/orders"


def filled(fs: MemoryFileSystem) -> None:
    topics = open_topics(fs)
    topic = topics.create("orders")
    topic.append(value=b"one")
    topic.cursors.create("mine", Cursor(0), {})
    topics.close()


def test_a_topic_with_cursors_and_without_a_log_is_not_served() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    remove_tree(fs, f"{ORDERS}/log")
    topics = open_topics(fs)
    assert topics.unopened() == ()
    (reason,) = topics.damage_found()
    assert "orders" in reason
    with pytest.raises(MissingLog, match=r"orders/log/MANIFEST.*orders has cursors"):
        topics.get("orders", create=True)
    assert not fs.exists(f"{ORDERS}/log")
    assert topics.damage_found() == (reason,)
    topics.delete("orders")
    assert topics.damage_found() == ()
    topics.create("orders")
    assert values(topics, "orders") == []


@pytest.mark.parametrize("mounted", [False, True], ids=["no directory", "an empty one"])
def test_without_the_directory_of_all_topics_nothing_is_created(*, mounted: bool) -> None:
    fs = MemoryFileSystem()
    filled(fs)
    remove_tree(fs, ROOT)
    if mounted:
        fs.mkdir(ROOT)
    topics = open_topics(fs)
    topics.unopened()
    assert len(topics.damage_found()) == 1
    uses = (topics.get, topics.schemas, lambda _: topics.create("new"))
    for use in (*uses, lambda _: topics.create_partitioned("parts", 2)):
        with pytest.raises(MissingFile, match="topics at byte 0: missing"):
            use("orders")
    assert fs.exists(ROOT) is mounted
    assert not mounted or fs.list(ROOT) == []
    topics.delete("orders")
    topics.create("new").append(value=b"x")
    assert values(topics, "new") == [b"x"]


def test_a_topic_that_was_defined_and_never_used_opens_empty() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    topics = open_topics(fs)
    topics.create_partitioned("parts", 2)
    topics.close()
    topics = open_topics(fs)
    assert topics.damage_found() == ()
    assert values(topics, "parts-partition-1") == []


@pytest.mark.parametrize("left", ["entries", "no entries"])
def test_a_topic_with_entries_and_without_cursors_is_not_served(left: str) -> None:
    """A new subscription would begin at the end, and retention would not wait for the old ones."""
    fs = MemoryFileSystem()
    filled(fs)
    if left == "no entries":
        topics = open_topics(fs)
        log = topics.get("orders").log
        log.roll()
        log.drop_head(log.next_position)
        log.reclaim()
        topics.close()
    remove_tree(fs, f"{ORDERS}/cursors")
    topics = open_topics(fs)
    for _ in range(2):
        with pytest.raises(MissingCursors, match="orders/cursors at byte 0: missing"):
            topics.get("orders", create=True)
        (reason,) = topics.damage_found()
        assert "orders/cursors" in reason
    assert not fs.exists(f"{ORDERS}/cursors")
    # The administrator accepts the loss.
    fs.mkdir(f"{ORDERS}/cursors")
    assert values(topics, "orders") == ([b"one"] if left == "entries" else [])
    assert topics.get("orders").cursors.names() == []
    assert topics.damage_found() == ()


def test_cursors_that_are_put_back_are_served_again() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    fs.rename(f"{ORDERS}/cursors", f"{ORDERS}/away")
    topics = open_topics(fs)
    with pytest.raises(MissingCursors):
        topics.get("orders")
    fs.rename(f"{ORDERS}/away", f"{ORDERS}/cursors")
    assert topics.get("orders").cursors.names() == ["mine"]
    fs.rename(f"{ORDERS}/cursors", f"{ORDERS}/away")
    topics.close()
    topics = open_topics(fs)
    topics.delete("orders")
    topics.create("orders")
    assert values(topics, "orders") == []


def test_a_topic_that_was_killed_before_it_had_cursors_opens() -> None:
    fs = MemoryFileSystem()
    topics = open_topics(fs)
    topics.create("orders")
    topics.close()
    remove_tree(fs, f"{ORDERS}/cursors")
    assert values(open_topics(fs), "orders") == []
