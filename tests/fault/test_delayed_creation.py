"""A topic or store that is created after its definition, on a disk that refuses it.

A topic of the catalog gets its log on its first use, a store of the catalog gets its files from the
owner. Whatever the disk refuses, nothing is acknowledged, the error is typed, and both are created
when the disk works again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lithify.blobs.settings import BlobSettings
from lithify.blobs.stores import BlobStores
from lithify.catalog.commands.blob_stores import CreateBlobStore
from lithify.catalog.commands.topics import CreateTopic
from lithify.clock import ManualClock
from lithify.errors import LithifyError
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.node.catalog.definitions import CatalogDefinitions
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.topics.topics import Topics, TopicSettings
from tests.definitions_cluster import MemoryCluster

if TYPE_CHECKING:
    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.fs import FileSystem

SPACE = "public/default"
SHAPE: dict[str, Any] = {"capacity_bytes": 2**20, "segment_bytes": 2**18}
KINDS = ["ENOSPC", "SHORT", "EIO", "EACCES"]
OPERATIONS_MAX = 200


class Opened:
    """The topics and stores of a node, as they open on a file system."""

    def __init__(self, cluster: MemoryCluster, fs: FileSystem) -> None:
        fs.mkdir("data")
        self.definitions = CatalogDefinitions(cluster.member("n1"), fs, "data", ignore_events)
        clock = ManualClock(5)
        self.topics = Topics(
            fs,
            "data",
            settings=TopicSettings(log=LogSettings()),
            clock=clock,
            events=ignore_events,
            owner="pid 1",
            definitions=self.definitions,
        )
        self.stores = BlobStores(
            fs, "data", self.definitions, settings=BlobSettings(), clock=clock, events=ignore_events
        )

    def close(self) -> None:
        self.stores.close()
        self.topics.close()


def define(cluster: MemoryCluster) -> None:
    """As a text does that any node applies: nothing is created yet."""
    member = cluster.member("n1")
    commands: list[CatalogCommand] = [
        CreateTopic(SPACE, "orders", owners=("n1",), created_ms=7),
        CreateTopic(SPACE, "parts", partitions=2, owners=("n1", "n1"), created_ms=7),
        CreateBlobStore(SPACE, "photos", **SHAPE, owner="n1"),
    ]
    member.ask(lambda: member.execute(commands))


def fill(opened: Opened, name: str, value: bytes) -> None:
    """Use a topic, or a store, for the first time or again."""
    if name == "photos":
        opened.stores.get(name).put(value, service="test", blob_id=value.decode())
    else:
        opened.topics.get(name).append(value=value)


def contents(opened: Opened, name: str) -> list[bytes | None]:
    if name == "photos":
        return [info.blob_id.encode() for info in opened.stores.get(name).list()]
    return [message.value for message in opened.topics.get(name).read()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["orders", "parts-partition-1", "photos"])
def test_a_first_use_that_the_disk_refuses_acknowledges_nothing_and_works_later(
    name: str, kind: str
) -> None:
    refused: list[str] = []
    for nth in range(1, OPERATIONS_MAX):
        with MemoryCluster() as cluster:
            disk = MemoryFileSystem()
            fs = FaultyFileSystem(disk)
            opened = Opened(cluster, fs)
            define(cluster)
            fs.add(Fault("mutating", nth=nth, count=None, kind=kind))
            acknowledged = [b"first"]
            try:
                fill(opened, name, b"first")
            except LithifyError as error:
                acknowledged = []
                refused.append(str(error))
            fs.clear()
            fill(opened, name, b"second")
            assert contents(opened, name) == [*acknowledged, b"second"]
            opened.close()
            again = Opened(cluster, disk.kill_clone())
            assert contents(again, name) == [*acknowledged, b"second"]
            again.close()
        if acknowledged:
            break
    assert len(refused) > 5
    assert [text for text in refused if "data/" not in text] == [], "each names the path"
