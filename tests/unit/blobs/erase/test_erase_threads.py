"""Readers on threads of their own, on a real disk, while their blobs are erased."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lithify.blobs.errors import BlobDeleted
from lithify.blobs.offline.verify import verify_store
from lithify.blobs.settings import BlobSettings
from lithify.blobs.store import BlobStore
from lithify.blobs.visibility import Include
from lithify.clock import SystemClock
from lithify.fs import LocalFileSystem
from lithify.settings import Durability
from tests.unit.blobs.life import content_of

if TYPE_CHECKING:
    from pathlib import Path

SIZES = (300, 60_000, 200_000, 1_500_000)


def test_readers_get_the_content_or_an_error_never_zeros_or_damage(tmp_path: Path) -> None:
    settings = BlobSettings(deleted_retention_ms=0, durability=Durability.NONE)
    store = BlobStore.create(
        LocalFileSystem(),
        str(tmp_path / "store"),
        capacity_bytes=2**26,
        segment_bytes=2**23,
        settings=settings,
    )
    contents = {str(number): content_of(number, SIZES[number % 4]) for number in range(40)}
    for blob_id, content in contents.items():
        store.put(content, service="s", blob_id=blob_id)
    for blob_id in list(contents)[:32]:
        store.delete(blob_id)
    store.writer.seal()
    seen: dict[str, int] = {"content": 0, "deleted": 0}
    errors: list[BaseException] = []
    started, ended = threading.Barrier(4), threading.Event()

    def read() -> None:
        started.wait()
        try:
            while not ended.is_set():
                for blob_id, content in contents.items():
                    try:
                        with store.get(blob_id, include=Include.ALL) as blob:
                            assert blob.read() == content
                        seen["content"] += 1
                    except BlobDeleted:
                        seen["deleted"] += 1
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    started.wait()
    erased = 0
    while erased < 32 and not errors:
        erased += store.erase.step(500_000).blobs
    ended.set()
    for reader in readers:
        reader.join()
    store.close()
    assert errors == []
    assert erased == 32
    assert min(seen.values()) > 0, seen
    report = verify_store(LocalFileSystem(), str(tmp_path / "store"), SystemClock())
    assert (report.problems, report.erased) == ([], 32)
