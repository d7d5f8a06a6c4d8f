"""Deletions of blob stores that other nodes delete, or create again, meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lithify.blobs.settings import BlobSettings
from lithify.blobs.stores import BlobStores
from lithify.catalog.commands.blob_stores import CreateBlobStore
from lithify.clock import ManualClock
from lithify.errors import InvalidInput, LogClosed
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.node.catalog.definitions import CatalogDefinitions
from tests.definitions_cluster import MemoryCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPE: dict[str, Any] = {"capacity_bytes": 2**20, "segment_bytes": 2**18}


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster() as made:
        yield made


def definitions_of(cluster: MemoryCluster, fs: MemoryFileSystem, node: str) -> CatalogDefinitions:
    fs.mkdir("data")
    return CatalogDefinitions(cluster.member(node), fs, "data", ignore_events)


def open_stores(fs: MemoryFileSystem, definitions: CatalogDefinitions) -> BlobStores:
    return BlobStores(
        fs,
        "data",
        definitions,
        settings=BlobSettings(),
        clock=ManualClock(5),
        events=ignore_events,
    )


@pytest.mark.parametrize("again", [False, True])
def test_a_store_whose_definition_is_gone_is_not_put_back_into_use(
    cluster: MemoryCluster, *, again: bool
) -> None:
    fs = MemoryFileSystem()
    definitions = definitions_of(cluster, fs, "n1")
    other = definitions_of(cluster, MemoryFileSystem(), "n2")
    stores = open_stores(fs, definitions)
    store = stores.create("photos", **SHAPE)
    change: Callable[..., Any] = definitions.change

    def late(*given: Any) -> Any:
        other.remove_store("photos")
        if again:
            other.execute([CreateBlobStore("public/default", "photos", **SHAPE, owner="n2")])
        return change(*given)

    definitions.change = late  # type: ignore[assignment, method-assign]
    with pytest.raises(InvalidInput, match="photos"):
        stores.delete("photos")
    assert stores.opened() == {}
    with pytest.raises(LogClosed):
        store.put(b"x", service="s")
    owners = {name: each.owner for name, each in other.current.store_places.items()}
    assert owners == ({"photos": "n2"} if again else {})
