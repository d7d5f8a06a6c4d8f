"""A data directory of version 0.1 is imported: all of it is served, and the way back works."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import lithify
from lithify.clock import SystemClock
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem
from lithify.log.object_file import read_object
from lithify.positions import pack
from lithify.topics.definitions.definitions_file import read_definitions
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.topics import Topics, TopicSettings
from tests.old_directory import BLOBS, COMPACTED, MESSAGES, data_files, extract, messages_of, served

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.node.node import Node


def check(node: Node) -> None:
    assert served(node) == (set(MESSAGES), set(BLOBS))
    assert (node.topics.unclaimed(), node.blobs.unclaimed()) == ((), [])
    assert (node.topics.missing(), node.blobs.missing()) == ((), [])
    orders = node.topics.get("orders")
    assert [message.value for message in orders.read(compacted=True)] == COMPACTED
    assert orders.subscriptions["billing"].cursor.mark_delete == pack(1, 9)
    for name in ("orders", "parts"):
        assert len(node.topics.schemas(name).all()) == 1


def test_a_data_directory_of_version_0_1_is_imported(tmp_path: Path) -> None:
    data = extract(tmp_path)
    files, before = data_files(data), (data / "definitions").read_bytes()
    with lithify.open(str(data)) as node:
        assert data_files(data) == files
        current = node.topics.definitions.current
        defined = read_definitions(LocalFileSystem(), str(data / "definitions.taken-over"))
        assert current == defined
        check(node)
        for text in current.topics:
            name = TopicName.parse(text)
            for part in current.topics[text].logs_of(name):
                path = data / "topics" / part.path
                if path.exists():
                    found = read_object(LocalFileSystem(), str(path))
                    assert found == current.identity(name)
        stored = read_object(LocalFileSystem(), str(data / "blobs/photos"))
        assert stored == current.store_identity("photos")
    assert (data / "definitions.taken-over").read_bytes() == before
    with lithify.open(str(data)) as node:
        check(node)
        node.topics.create("young").append(value=b"young")


def test_the_earlier_version_opens_it_again_with_the_copy_of_the_definitions(
    tmp_path: Path,
) -> None:
    """As version 0.1 does: definitions in a file, no catalog. Then it is imported again."""
    data = extract(tmp_path)
    with lithify.open(str(data)) as node:
        node.topics.create("young").append(value=b"young")
        before = node.topics.definitions.current.topics.keys()
        ids = {name: each.id for name, each in node.topics.definitions.current.topics.items()}
    files = data_files(data)
    shutil.copy(data / "definitions.copy", data / "definitions")
    earlier = Topics(
        LocalFileSystem(),
        str(data),
        settings=TopicSettings(),
        clock=SystemClock(),
        events=ignore_events,
        owner="version 0.1",
    )
    assert earlier.definitions.current.topics.keys() == before
    assert earlier.unclaimed() == ()
    assert data_files(data) == files
    for topic, values in MESSAGES.items():
        assert [message.value for message in earlier.get(topic).read()] == values
    assert [message.value for message in earlier.get("young").read()] == [b"young"]
    earlier.get("orders").append(value=b"of the earlier version")
    earlier.create("old").append(value=b"old")
    earlier.close()
    with lithify.open(str(data)) as node:
        assert messages_of(node, "orders")[-1] == b"of the earlier version"
        assert messages_of(node, "old") == [b"old"]
        assert served(node) == (set(MESSAGES), set(BLOBS))
        topics = node.topics.definitions.current.topics
        assert {name: topics[name].id for name in ids} == ids
        assert node.topics.unclaimed() == ()
    assert json.loads((data / "definitions.copy").read_text().partition(" ")[2])["topics"]
