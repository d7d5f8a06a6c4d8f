"""A data directory as version 0.1 wrote it, before there was a catalog.

`tests/golden/data_directory_v0_1.tar.gz` was made with that version: topics with several segments,
a compacted view, tombstones, a durable subscription and schemas; a partitioned topic, one that was
never used, one in a namespace with settings; and a blob store.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from lithify.errors import LithifyError

if TYPE_CHECKING:
    from lithify.node.node import Node

ARCHIVE = Path(__file__).parent / "golden/data_directory_v0_1.tar.gz"

ORDERS = [b"order %d" % number for number in range(20)] + [None, b"order 20"]
MESSAGES: dict[str, list[bytes | None]] = {
    "persistent://public/default/orders": ORDERS,
    "persistent://public/default/parts-partition-0": [b"part 0"],
    "persistent://public/default/parts-partition-1": [],
    "persistent://public/default/parts-partition-2": [b"part 2"],
    "persistent://acme/shop/carts": [b"cart"],
}
COMPACTED = [b"order 16", b"order 17", b"order 18", b"order 20"]
BLOBS = {"photos": {"kept": b"cheese"}}
_NO_DATA = ("OBJECT", "LOCK")


def extract(directory: Path) -> Path:
    """Write the data directory below a directory."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    return directory / "data"


def data_files(data: Path) -> dict[str, bytes]:
    """Every file of every topic and store, but locks and the names of objects."""
    paths = [path for part in ("topics", "blobs") for path in (data / part).rglob("*")]
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in paths
        if path.is_file() and path.name not in _NO_DATA
    }


def messages_of(node: Node, topic: str) -> list[bytes | None]:
    return [message.value for message in node.topics.get(topic).read()]


def served(node: Node) -> tuple[set[str], set[str]]:
    """The topics, by partition, and the stores that are served, with everything that they had."""
    topics, stores = set(), set()
    for topic, values in MESSAGES.items():
        try:
            found = messages_of(node, topic)
        except LithifyError:
            continue
        assert found[: len(values)] == values, topic
        topics.add(topic)
    for store, blobs in BLOBS.items():
        try:
            opened = node.blobs.get(store)
        except LithifyError:
            continue
        assert {name: opened.get(name).read() for name in blobs} == blobs
        stores.add(store)
    return topics, stores
