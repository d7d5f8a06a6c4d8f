"""Every side file of a topic and of a blob store, damaged in every way.

A side file saves time or informs people. Whatever happens to one, the store opens, serves what it
has, compacts, and writes the file again. What could not be read is kept under another name, and the
log says so once.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.events import SideFileSetAside
from lithify.fs.checked_lines import encode_line
from lithify.node.node import Node
from lithify.node.settings import NodeSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.events import Event

TOPIC = "persistent://public/default/orders"
KEYS = 20
TOPIC_DIR = "topics/public/default/orders"
SIDE_FILES = [
    f"{TOPIC_DIR}/producers",
    f"{TOPIC_DIR}/log/HISTORY",
    f"{TOPIC_DIR}/log/*.keys",
    "blobs/photos/HISTORY",
    "blobs/photos/ERASE",
    "blobs/photos/REPLICATION",
    "blobs/photos/*.keys",
]
"""Patterns, each of at least one file."""


@dataclass
class Opened:
    """A node of the library, and what its stores told."""

    node: Node
    events: list[Event]

    @property
    def set_aside(self) -> list[SideFileSetAside]:
        return [event for event in self.events if isinstance(event, SideFileSetAside)]


def opened(data: Path) -> Opened:
    events: list[Event] = []
    settings = NodeSettings(data=str(data), deduplication=True)
    node = Node(settings, clock=ManualClock(10**12), events=events.append)
    return Opened(node, events)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a node whose topic and store were compacted."""
    data = tmp_path_factory.mktemp("side-files") / "data"
    with opened(data).node as node:
        node.topics.create(TOPIC)
        node.blobs.create(
            "photos",
            capacity_bytes=64 * 2**20,
            segment_bytes=2**20,
            settings={"deleted_retention_ms": 0},
        )
        write(node, b"first")
        node.topics.get(TOPIC).compaction.run("test")
        write(node, b"second")
        compact(node)
        store = node.blobs.get("photos")
        store.delete(store.put(b"to be erased", service="test").put.blob_id)
        assert isinstance(node.clock, ManualClock)
        node.clock.advance(1)
        store.log.roll()
        assert store.erase.step(2**30).blobs == 1
        store.replication._save()
    for pattern in SIDE_FILES:
        assert list(data.glob(pattern)), f"no {pattern} to damage"
    return data


def write(node: Node, value: bytes) -> None:
    """A new value for each key, and for each blob a new one in place of the old."""
    topic = node.topics.get(TOPIC)
    store = node.blobs.get("photos")
    for blob in list(store.list()):
        store.delete(blob.put.blob_id)
    for number in range(KEYS):
        topic.append(key=f"key {number}", value=value)
        store.put(value, service="test")
    assert isinstance(node.clock, ManualClock)
    node.clock.advance(1)
    topic.log.roll()
    store.log.roll()


def compact(node: Node) -> None:
    """Both runs publish, and are reported."""
    for compaction in (node.topics.get(TOPIC).compaction, node.blobs.get("photos").compaction):
        report = compaction.run("test")
        assert report.result == "done", report.summary()
        compaction.reclaim()
        assert compaction.history.newest(1)[0].run_id == report.run_id


def check(node: Node, value: bytes) -> None:
    """The newest values are there, and nothing else."""
    topic = node.topics.get(TOPIC)
    found = {message.key: message.value for message in topic.read(compacted=True)}
    assert found == {f"key {number}".encode(): value for number in range(KEYS)}
    store = node.blobs.get("photos")
    assert [store.get(blob.put.blob_id).read() for blob in store.list()] == [value] * KEYS


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


def truncate(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def newer(file: Path) -> None:
    """As a later version of Lithify would write it."""
    if file.suffix == ".keys":
        data = bytearray(file.read_bytes())
        data[8] = 99
        file.write_bytes(data)
        return
    lines = file.read_bytes().splitlines()
    rows = [json.loads(line[9:]) | {"version": 99} for line in lines]
    file.write_bytes(b"".join(encode_line(json.dumps(row)) for row in rows))


DAMAGE: list[Callable[[Path], None]] = [flip, truncate, empty, newer, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda each: each.__name__)
@pytest.mark.parametrize("pattern", SIDE_FILES)
def test_a_damaged_side_file_is_written_again(
    whole: Path, tmp_path: Path, pattern: str, damage: Callable[[Path], None]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    files = list(data.glob(pattern))
    for file in files:
        damage(file)
    damaged = {file: file.read_bytes() for file in files if file.exists()}
    found = opened(data)
    with found.node as node:
        check(node, b"second")
        # A missing snapshot means that deduplication was switched on just now.
        forgotten = (pattern, damage) == (SIDE_FILES[0], Path.unlink)
        last = -1 if forgotten else 2 * KEYS - 1
        assert node.topics.get(TOPIC).writer.last_sequence_id("library") == last
        write(node, b"third")
        compact(node)
        check(node, b"third")
        store = node.blobs.get("photos")
        store.erase.step(2**30)
        store.replication._save()
    assert list(data.glob(pattern))
    told = {event.path for event in found.set_aside}
    assert len(found.set_aside) == len(told) <= 1, "said once"
    for event in found.set_aside:
        (file,) = files
        kept = file.with_name(event.kept_as)
        # The report of a run may come after lines of a newer version.
        assert kept.read_bytes().startswith(damaged[file])
        assert not list(file.parent.glob(f"{file.name}.damaged-2"))
    silent = damage is Path.unlink or pattern.endswith(".keys")
    # A torn last line of a history was never acknowledged: it is cut.
    cut = pattern.endswith("HISTORY") and damage in (truncate, empty)
    assert bool(told) == (not silent and not cut), told
    with opened(data).node as node:
        check(node, b"third")
