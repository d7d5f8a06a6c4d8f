"""The maintenance of blob stores by a node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lithify.blobs.settings import BlobSettings
from lithify.blobs.stores import BlobStores
from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.node.blob_maintenance import keep_up
from lithify.topics.definitions.definitions_file import DefinitionsFile
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE: dict[str, Any] = {"capacity_bytes": 2**20, "segment_bytes": 2**17}


def open_stores(fs: MemoryFileSystem, clock: ManualClock) -> BlobStores:
    fs.mkdir("data")
    definitions = DefinitionsFile(fs, "data/definitions")
    more: Any = {"settings": BlobSettings(deleted_retention_ms=1000), "events": ignore_events}
    return BlobStores(fs, "data", definitions, clock=clock, **more)


def kept_up(stores: BlobStores, until: Callable[[], bool]) -> None:
    async def story() -> None:
        ended = asyncio.Event()
        task = asyncio.create_task(keep_up(stores, ended))
        while not until():
            await asyncio.sleep(0.001)
        ended.set()
        await task

    asyncio.run(asyncio.wait_for(story(), PROCESS_S_MAX))


def test_unused_stores_are_opened_and_a_failing_one_delays_no_other() -> None:
    fs, clock = MemoryFileSystem(), ManualClock()
    stores = open_stores(fs, clock)
    for name in ("broken", "photos"):
        stores.create(name, **SHAPE)
    stores.close()
    fs.rename("data/blobs/broken", "data/elsewhere")
    stores = open_stores(fs, clock)
    kept_up(stores, lambda: "photos" in stores.opened())
    assert list(stores.opened()) == ["photos"]
    stores.close()


def test_blobs_deleted_longer_than_the_retention_are_erased() -> None:
    clock = ManualClock()
    stores = open_stores(MemoryFileSystem(), clock)
    photos = stores.create("photos", **SHAPE)
    photos.delete(photos.put(b"secret" * 1000, service="s").blob_id)
    # Only sealed segments are written over.
    for _ in range(3):
        photos.put(bytes(60_000), service="s")
    clock.advance(2)
    kept_up(stores, lambda: photos.erase.status().blobs == 1)
    stores.close()
